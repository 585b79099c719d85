//! Arrivals: the shard that gets a partition.

use super::{Arrival, ArrivalStage, MovedSession, some_keys};
use crate::config::Now;
use crate::keys;
use crate::shard::MetaShard;
use crate::tx::OrphanRecord;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{
    Codec, ErrorCode, HolderNumber, KvChange, KvRead, MapVersion, PartitionId, SessionId, ShardId,
};
use zonal_wire::MovedEntry;
use zonal_zonemap::ZoneMap;

/// Keys removed in one step before an arrival begins.
const CLEARED_AT_ONCE: usize = 2_048;

impl MetaShard {
    /// Begins an arrival. Returns the changes to log, and false while what an earlier attempt left
    /// is removed: the caller asks again.
    ///
    /// # Errors
    /// * `NotOwner` where the map gives the partition to another than `from`
    /// * `NotReady` while it is still leaving this shard, or clients have yet to tell what they
    ///   hold
    /// * `BadSequence` where a later attempt has begun
    pub fn begin_arrival(
        &mut self,
        kv: &dyn KvRead,
        partition: PartitionId,
        (from, number): (ShardId, u64),
    ) -> Result<(Vec<KvChange>, bool), ErrorCode> {
        let owner = self.map.shard_of(partition).map(|shard| shard.id);
        if owner != Some(from) || from == self.config.shard || self.config.is_root() {
            return Err(ErrorCode::NotOwner);
        }
        if self.moves.departures.contains_key(&partition) || !self.is_settled() {
            return Err(ErrorCode::NotReady);
        }
        let begun = Arrival {
            number,
            from,
            stage: ArrivalStage::Receiving,
            pages: 0,
            has_remote_data: false,
        };
        match self.moves.arrivals.get(&partition) {
            Some(known) if *known == begun => return Ok((Vec::new(), true)),
            Some(known) if known.number >= number => return Err(ErrorCode::BadSequence),
            _older => {}
        }
        let (mut effect, is_clear) = self.clear_arrival(kv, partition)?;
        if is_clear {
            effect.push(self.note_arrival(partition, begun));
        }
        Ok((effect, is_clear))
    }

    fn clear_arrival(
        &self,
        kv: &dyn KvRead,
        partition: PartitionId,
    ) -> Result<(Vec<KvChange>, bool), ErrorCode> {
        let mut left = some_keys(kv, keys::partition_range(partition), CLEARED_AT_ONCE)?;
        let room = CLEARED_AT_ONCE - left.len();
        left.extend(some_keys(kv, keys::moved_sessions(partition), room)?);
        let is_clear = left.len() < CLEARED_AT_ONCE;
        Ok((left.into_iter().map(KvChange::remove).collect(), is_clear))
    }

    fn note_arrival(&mut self, partition: PartitionId, arrival: Arrival) -> KvChange {
        self.moves.arrivals.insert(partition, arrival);
        KvChange::put(keys::arrival(partition), arrival.to_bytes())
    }

    fn arrival(&self, partition: PartitionId, number: u64) -> Result<Arrival, ErrorCode> {
        let known = self.moves.arrivals.get(&partition).copied();
        let known = known.filter(|known| known.number == number);
        known.ok_or(ErrorCode::BadSequence)
    }

    /// Takes a page of an arrival; returns the changes to log, none for a repeat.
    ///
    /// # Errors
    /// `BadSequence` where it is not the next page of this attempt; `Protocol` where a key is not
    /// the partition's.
    pub fn take_page(
        &mut self,
        partition: PartitionId,
        (number, page): (u64, u64),
        entries: &[MovedEntry],
    ) -> Result<Vec<KvChange>, ErrorCode> {
        let mut known = self.arrival(partition, number)?;
        if page <= known.pages {
            return Ok(Vec::new());
        }
        if page != known.pages + 1 || known.stage != ArrivalStage::Receiving {
            return Err(ErrorCode::BadSequence);
        }
        let ranges = [
            keys::partition_range(partition),
            keys::moved_sessions(partition),
        ];
        let is_of = |key: &Vec<u8>| ranges.iter().any(|(start, end)| start <= key && key < end);
        if !entries.iter().all(|entry| is_of(&entry.key.0)) {
            return Err(ErrorCode::Protocol);
        }
        known.pages = page;
        let mut effect = vec![self.note_arrival(partition, known)];
        effect.extend(entries.iter().map(|entry| KvChange {
            key: entry.key.0.clone(),
            value: entry.value.as_ref().map(|value| value.0.clone()),
        }));
        Ok(effect)
    }

    /// Notes that an arrival is complete; returns the changes to log, none for a repeat.
    ///
    /// # Errors
    /// `BadSequence` where pages are missing, or another attempt is under way.
    pub fn end_arrival(
        &mut self,
        partition: PartitionId,
        (number, pages): (u64, u64),
        has_remote_data: bool,
    ) -> Result<Vec<KvChange>, ErrorCode> {
        if self.partitions.binary_search(&partition).is_ok() {
            return Ok(Vec::new());
        }
        let mut known = self.arrival(partition, number)?;
        if pages != known.pages {
            return Err(ErrorCode::BadSequence);
        }
        if known.stage == ArrivalStage::Complete {
            return Ok(Vec::new());
        }
        known.stage = ArrivalStage::Complete;
        known.has_remote_data = has_remote_data;
        Ok(vec![self.note_arrival(partition, known)])
    }

    /// Forgets an arrival whose move was cancelled; as [`Self::begin_arrival`].
    ///
    /// # Errors
    /// The store's error.
    pub fn drop_arrival(
        &mut self,
        kv: &dyn KvRead,
        partition: PartitionId,
        number: u64,
    ) -> Result<(Vec<KvChange>, bool), ErrorCode> {
        if self.arrival(partition, number).is_err() {
            return Ok((Vec::new(), true));
        }
        let (mut effect, is_clear) = self.clear_arrival(kv, partition)?;
        if is_clear {
            self.moves.arrivals.remove(&partition);
            effect.push(KvChange::remove(keys::arrival(partition)));
        }
        Ok((effect, is_clear))
    }

    /// The map that a client must know before it tells what it holds.
    #[must_use]
    pub fn map_to_tell_by(&self) -> MapVersion {
        self.moves.ownership
    }

    /// Partitions that are coming.
    pub fn arrivals(&self) -> impl Iterator<Item = (PartitionId, Arrival)> + '_ {
        let all = self.moves.arrivals.iter();
        all.map(|(partition, known)| (*partition, *known))
    }

    /// Complete arrivals that the map has given to this shard.
    #[must_use]
    pub fn arrived(&self, map: &ZoneMap) -> Vec<PartitionId> {
        let complete = self.moves.arrivals.iter();
        let complete = complete.filter(|(_, known)| known.stage == ArrivalStage::Complete);
        let own = complete.filter(|(partition, _)| {
            let owner = map.shard_of(**partition).map(|shard| shard.id);
            owner == Some(self.config.shard)
        });
        own.map(|(partition, _)| *partition).collect()
    }

    /// Makes an arrival part of the shard: the sessions of the other shard become sessions here, or
    /// are found among them. Returns the changes to log as one record; then the shard must begin a
    /// new life. `by`: the map's version. `chance`: random bits for the numbers of sessions.
    ///
    /// # Errors
    /// The store's error; `Corrupt`.
    pub fn adopt_arrival(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        partition: PartitionId,
        (by, chance): (MapVersion, u64),
    ) -> Result<Vec<KvChange>, ErrorCode> {
        let mut effect = vec![KvChange::put(keys::ownership(), by.to_bytes())];
        let mut here: BTreeMap<SessionId, SessionId> = BTreeMap::new();
        for (there, moved) in moved_sessions(kv, partition)? {
            effect.push(KvChange::remove(keys::moved_session(partition, there)));
            let (id, changes) = self.adopt_session(now, moved, chance);
            effect.extend(changes);
            here.extend(id.map(|id| (there, id)));
        }
        for (ino, record) in orphans(kv, partition)? {
            let sessions = record.sessions.iter().filter_map(|of| here.get(of));
            let sessions: BTreeSet<SessionId> = sessions.copied().collect();
            let record = OrphanRecord {
                sessions: sessions.into_iter().collect(),
            };
            effect.push(KvChange::put(keys::orphan(ino), record.to_bytes()));
        }
        if let Some(known) = self.moves.arrivals.remove(&partition)
            && known.has_remote_data
        {
            effect.push(KvChange::put(keys::remote_data(), 1_u8.to_bytes()));
        }
        effect.push(KvChange::remove(keys::arrival(partition)));
        Ok(effect)
    }

    /// The session of a client that had one at the other shard; none where it is fenced here.
    fn adopt_session(
        &mut self,
        now: Now,
        moved: MovedSession,
        chance: u64,
    ) -> (Option<SessionId>, Vec<KvChange>) {
        let MovedSession { mut record, holder } = moved;
        let client = record.identity.client;
        let number = HolderNumber::of(holder.as_deref());
        if record.identity.incarnation < self.fencing.lowest(client, number) {
            return (None, Vec::new());
        }
        let known = self.sessions.of_subject(client, holder.as_ref());
        match known.filter(|id| !self.fencing.is_ending(*id)) {
            Some(id) => {
                let mut changes = Vec::new();
                if let Some(session) = self.sessions.get_mut(id) {
                    record.has_locked |= session.record.has_locked;
                    record.identity = record.identity.max(session.record.identity);
                    if session.record != record {
                        session.record = record.clone();
                        changes.push(KvChange::put(keys::session(id), record.to_bytes()));
                    }
                }
                (Some(id), changes)
            }
            None => {
                self.sessions.add_chance(chance);
                let (id, changes) = self.add_session(now, record, holder);
                (Some(id), changes)
            }
        }
    }
}

fn moved_sessions(
    kv: &dyn KvRead,
    partition: PartitionId,
) -> Result<Vec<(SessionId, MovedSession)>, ErrorCode> {
    let (start, end) = keys::moved_sessions(partition);
    let mut found = Vec::new();
    let mut broken = false;
    kv.scan(&start, &end, &mut |key, value| {
        match (keys::moved_session_of(key), MovedSession::from_bytes(value)) {
            (Some(session), Ok(moved)) => found.push((session, moved)),
            _ => broken = true,
        }
        !broken
    })?;
    match broken {
        true => Err(ErrorCode::Corrupt),
        false => Ok(found),
    }
}

fn orphans(
    kv: &dyn KvRead,
    partition: PartitionId,
) -> Result<Vec<(zonal_types::Ino, OrphanRecord)>, ErrorCode> {
    crate::inode_records::all(kv, &[partition], keys::TAG_ORPHAN)
}
