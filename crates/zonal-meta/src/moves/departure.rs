//! Departures: the shard that a partition leaves.

use super::{Departure, MovedSession, some_keys};
use crate::config::Now;
use crate::keys;
use crate::outcome::WaitOn;
use crate::shard::MetaShard;
use std::sync::Arc;
use zonal_types::{
    Codec, ErrorCode, Ino, Instant, KvChange, KvRead, MapVersion, PartitionId, SessionId, ShardId,
};
use zonal_wire::MoveStage;
use zonal_wire::meta::Event;
use zonal_zonemap::ZoneMap;

/// Why a move is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveRefusal {
    /// The reason.
    Code(ErrorCode),
    /// Inodes of these partitions have names in the one to be moved, or the reverse.
    Joined(Vec<PartitionId>),
}

impl From<ErrorCode> for MoveRefusal {
    fn from(code: ErrorCode) -> Self {
        Self::Code(code)
    }
}

impl MetaShard {
    /// Begins a move, or goes on with the same one; returns the changes to log.
    ///
    /// # Errors
    /// * `NotOwner` where the partition is another shard's
    /// * `Exists` where it is to stay
    /// * `NotFound` where it is empty, or the shard unknown
    /// * `CrossShard` where that is in another zone
    /// * `Busy` during another move
    /// * `Joined` where it cannot go alone
    pub fn order_move(
        &mut self,
        kv: &dyn KvRead,
        partition: PartitionId,
        to: ShardId,
    ) -> Result<Vec<KvChange>, MoveRefusal> {
        if self.partitions.binary_search(&partition).is_err() {
            return Err(ErrorCode::NotOwner.into());
        }
        if to == self.config.shard {
            return Err(ErrorCode::Exists.into());
        }
        let (own, taker) = (self.map.shard(self.config.shard), self.map.shard(to));
        let taker = taker.ok_or(ErrorCode::NotFound)?;
        if self.config.is_root()
            || taker.id == ShardId(0)
            || own.map(|own| own.zone) != Some(taker.zone)
        {
            return Err(ErrorCode::CrossShard.into());
        }
        let is_under_way =
            |known: &Departure| matches!(known.stage, MoveStage::Copying | MoveStage::Switching);
        match self.moves.departures.get(&partition) {
            Some(known) if known.to == to && is_under_way(known) => return Ok(Vec::new()),
            Some(_other) => return Err(ErrorCode::Busy.into()),
            None if self.moves.departures.values().any(is_under_way) => {
                return Err(ErrorCode::Busy.into());
            }
            None => {}
        }
        if some_keys(kv, keys::tag_range(partition.0, keys::TAG_INODE), 1)?.is_empty() {
            return Err(ErrorCode::NotFound.into());
        }
        let joined = some_keys(kv, keys::tag_range(partition.0, keys::TAG_JOINED), 1_000)?;
        if !joined.is_empty() {
            let joined = joined.iter().filter_map(|key| keys::moved_partition(key));
            return Err(MoveRefusal::Joined(joined.collect()));
        }
        let departure = Departure {
            number: 0,
            to,
            stage: MoveStage::Copying,
            pages: 0,
        };
        Ok(vec![self.note_departure(partition, departure)])
    }

    /// Notes how far a departure is; returns the change to log.
    #[must_use]
    pub fn note_departure(&mut self, partition: PartitionId, departure: Departure) -> KvChange {
        let value = departure.to_bytes();
        if departure.stage == MoveStage::Switching {
            self.moves.frozen.insert(partition);
        }
        self.moves.departures.insert(partition, departure);
        KvChange::put(keys::departure(partition), value)
    }

    /// Forgets a departure that is over; returns the change to log.
    #[must_use]
    pub fn forget_departure(&mut self, partition: PartitionId) -> KvChange {
        self.moves.departures.remove(&partition);
        KvChange::remove(keys::departure(partition))
    }

    /// Partitions that are leaving.
    pub fn departures(&self) -> impl Iterator<Item = (PartitionId, Departure)> + '_ {
        let all = self.moves.departures.iter();
        all.map(|(partition, known)| (*partition, *known))
    }

    /// Number of partitions that are leaving, or coming.
    #[must_use]
    pub fn moves(&self) -> usize {
        self.moves.departures.len() + self.moves.arrivals.len()
    }

    /// These, in words.
    #[must_use]
    pub fn moves_in_words(&self) -> String {
        format!("{:?}", self.moves)
    }

    /// How far the departure of a partition is.
    #[must_use]
    pub fn departure(&self, partition: PartitionId) -> Option<Departure> {
        self.moves.departures.get(&partition).copied()
    }

    /// Notes that the map `by` has given a partition away. Returns the changes to log as one
    /// record. Then the shard must begin a new life.
    #[must_use]
    pub fn adopt_departure(
        &mut self,
        partition: PartitionId,
        departure: Departure,
        by: MapVersion,
    ) -> Vec<KvChange> {
        let stage = MoveStage::Clearing;
        let noted = self.note_departure(partition, Departure { stage, ..departure });
        vec![noted, KvChange::put(keys::ownership(), by.to_bytes())]
    }

    /// Partitions that the map has given away.
    #[must_use]
    pub fn departed(&self, map: &ZoneMap) -> Vec<(PartitionId, Departure)> {
        let is_gone = |(partition, known): &(PartitionId, Departure)| {
            let owner = map.shard_of(*partition).map(|shard| shard.id);
            known.stage == MoveStage::Switching && owner.is_some_and(|of| of != self.config.shard)
        };
        self.departures().filter(is_gone).collect()
    }

    /// Lets no append begin in the partition, and recalls lent ends of its files, once clients have
    /// told what they hold. True when none is under way, and no session is ending whose locks may
    /// outlast it here. Asked again until then.
    pub fn close_partition(&mut self, partition: PartitionId, now: Now) -> bool {
        if !self.is_settled() {
            return false;
        }
        self.moves.closing = Some(partition);
        let lent: Vec<Ino> = self.ends.inos_of(partition).collect();
        for ino in &lent {
            let told = self.ends.want(*ino, SessionId(0), now.instant);
            if let Some(holder) = told {
                self.queue_events(vec![(holder, Event::EndRecalled { ino: *ino })]);
            }
        }
        lent.is_empty() && !self.tickets.has_in(partition) && !self.fencing.has_ending()
    }

    /// True where all clients have told what they hold since this life began. A move before that
    /// would lose what they have not told, and one after the other would keep requests waiting.
    pub(super) fn is_settled(&self) -> bool {
        self.sessions.silent.is_empty()
    }

    /// True where no client uses what an earlier life of this shard let it cache.
    #[must_use]
    pub fn are_old_leases_over(&self, now: Instant) -> bool {
        self.leases.is_grace_over(now)
    }

    /// Requests to wake after [`Self::close_partition`].
    pub fn take_woken(&mut self) -> Vec<WaitOn> {
        std::mem::take(&mut self.woken).into_iter().collect()
    }

    /// True where the partition takes no append.
    #[must_use]
    pub fn is_closing(&self, partition: PartitionId) -> bool {
        self.moves.closing == Some(partition)
    }

    /// Answers nothing about the partition from now on.
    pub fn freeze_partition(&mut self, partition: PartitionId) {
        self.moves.frozen.insert(partition);
    }

    /// Serves the partition again.
    pub fn thaw_partition(&mut self, partition: PartitionId) {
        self.moves.closing = None;
        let known = self.moves.departures.get(&partition);
        if known.is_none_or(|known| known.stage != MoveStage::Switching) {
            self.moves.frozen.remove(&partition);
        }
    }

    /// True where nothing about the partition may change.
    #[must_use]
    pub fn is_frozen(&self, partition: PartitionId) -> bool {
        self.moves.frozen.contains(&partition)
    }

    /// True where files of the shard may lie on targets of other zones.
    #[must_use]
    pub fn has_remote_data(&self) -> bool {
        self.has_remote_data
    }

    /// The sessions that have files of the partition open or locked, as entries of the shard that
    /// gets it. It treats their clients as its own from before a restart: they have to tell what
    /// they hold before others get it.
    #[must_use]
    pub fn sessions_to_move(&self, partition: PartitionId) -> Vec<(Vec<u8>, Vec<u8>)> {
        let locked = self.locks.sessions_in(partition);
        let mut all = self.opens.sessions_in(partition);
        all.extend(&locked);
        let live = all.into_iter().filter_map(|id| {
            let session = self.sessions.get(id)?;
            (!session.is_ending).then_some((id, session))
        });
        live.map(|(id, session)| {
            let mut record = session.record.clone();
            record.has_locked = locked.contains(&id);
            let holder = session.holder.clone();
            let moved = MovedSession { record, holder };
            (keys::moved_session(partition, id), moved.to_bytes())
        })
        .collect()
    }

    /// Keys of a partition that has left, to be removed; at most `limit`.
    ///
    /// # Errors
    /// The store's error.
    pub fn keys_of_departed(
        &self,
        kv: &dyn KvRead,
        partition: PartitionId,
        limit: usize,
    ) -> Result<Vec<KvChange>, ErrorCode> {
        assert!(
            self.partitions.binary_search(&partition).is_err(),
            "{partition} is to be removed, which is the shard's"
        );
        let keys = some_keys(kv, keys::partition_range(partition), limit)?;
        Ok(keys.into_iter().map(KvChange::remove).collect())
    }

    /// Begins a new life with what the store has: clients tell again what they hold. Requests that
    /// wait run again.
    ///
    /// # Errors
    /// As [`Self::load`]; the old life goes on.
    pub fn begin_life(
        &mut self,
        kv: &dyn KvRead,
        boot: u64,
        now: Instant,
    ) -> Result<(), ErrorCode> {
        assert_ne!(boot, self.config.boot, "two lives with one boot");
        let mut config = self.config.clone();
        config.boot = boot;
        let mut next = Self::load(config, Arc::clone(&self.map), kv, now)?;
        next.keep_attempts_of(self);
        *self = next;
        Ok(())
    }
}
