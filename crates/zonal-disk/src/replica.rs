//! The log of a group's member, in a store: entries as held records, the vote in a file beside.
//!
//! An entry is a record with a note and no changes. Its changes reach the overlay when it is
//! applied: at its append where the member leads, at its commit elsewhere. With them goes the key
//! [`APPLIED_KEY`], so that an opening knows exactly which entries the index has.
//!
//! Nothing is cut off the log's file. An entry whose place was taken before makes void the one that
//! was there, and all behind it, as in etcd's log. A replay sees entries in the order of writing.
//!
//! Costs of an entry: one `pwrite`, as any record; about 40 bytes of memory while its bytes are in
//! the log. The newest entries are kept in memory, so that a commit reads nothing from the file.

mod entry_places;
mod recent_entries;
mod vote_file;

use std::sync::{Arc, Mutex};

use zonal_consensus::{
    EntryBody, EntryLog, LogEntry, LogIndex, LogUnread, Membership, ReplicaId, Term, Vote,
};
use zonal_types::codec::{Codec, CodecError, Reader};
use zonal_types::{ErrorCode, KvChange, KvRead, codec_struct};

use crate::engine::Engine;
use crate::engine::{EngineConfig, LogRoom};
use crate::files::StoreDir;
use crate::files::error::DiskError;
use crate::files::group_commit::lock;
use crate::files::identity::StoreIdentity;
use crate::files::power_loss::UnflushedWrites;
use crate::log::record::{self, Lsn, Record};
use entry_places::EntryPlaces;
use recent_entries::RecentEntries;
use vote_file::Promises;

/// The key of a replica's progress; no shard's key begins with these partition bits.
pub const APPLIED_KEY: &[u8] = b"\xff\xff\xff\xffapplied";
/// Bytes of entries that are read in one step.
const PAGE_BYTES: u64 = 1 << 20;
/// Keys removed in one step.
const EMPTIED_AT_ONCE: usize = 10_000;
/// First byte of an entry's note.
const NOTE_KIND: u8 = b'E';

codec_struct! {
    /// The last applied entry, and the members since.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct ReplicaProgress {
        /// Its place.
        index: LogIndex,
        /// Its term.
        term: Term,
        /// The members.
        members: Membership,
        /// The entry that made them so.
        since: LogIndex,
        /// The last applied entry that changes members. A leader applies it before its commit, when
        /// `members` still are those of before.
        changed: LogIndex,
        /// The generation of the group; each recovery of a lost majority begins another.
        generation: u64,
    }
}

impl ReplicaProgress {
    /// True where an applied entry changes the members that are here: nobody may begin with them.
    #[must_use]
    pub fn is_changing(&self) -> bool {
        self.changed > self.since
    }
}

/// The log and state of a group's member.
pub struct ReplicaStore {
    engine: Arc<Engine>,
    store: StoreDir,
    promises: Mutex<Promises>,
    places: Mutex<EntryPlaces>,
    /// Of the entries in `places`; locked after them.
    recent: Mutex<RecentEntries>,
    applied: Mutex<ReplicaProgress>,
}

impl ReplicaStore {
    /// Makes an empty, formatted store a member's of a new group. Its log begins behind entry 1,
    /// which stands for the store's contents and the first members. Others learn these from a
    /// snapshot only.
    ///
    /// # Errors
    /// The medium fails.
    pub fn begin(engine: &Engine, members: Membership) -> Result<(), DiskError> {
        let progress = ReplicaProgress {
            index: LogIndex(1),
            term: Term(1),
            members,
            since: LogIndex(1),
            changed: LogIndex(1),
            generation: 1,
        };
        Self::fill(engine, vec![progress_change(&progress)])
    }

    /// True where the store is a member's; a store that is being filled is not yet.
    ///
    /// # Errors
    /// The store cannot be read.
    pub fn is_member(engine: &Engine) -> Result<bool, DiskError> {
        let progress = engine.get(APPLIED_KEY);
        Ok(progress.map_err(unreadable)?.is_some())
    }

    /// True where the store is no member's and never was: it may found a group.
    ///
    /// # Errors
    /// The store or the vote cannot be read.
    pub fn is_untouched(engine: &Engine, store: &StoreDir) -> Result<bool, DiskError> {
        Ok(!Self::is_member(engine)? && vote_file::load(store.path())? == Promises::default())
    }

    /// Empties the store, for a snapshot of the group ([`Self::fill`]). From now on the member
    /// promises nothing, also where this is interrupted. The store is to be opened again before it
    /// is used.
    ///
    /// # Errors
    /// The medium fails.
    pub fn empty(&self) -> Result<(), DiskError> {
        self.note_loss(true)?;
        self.engine
            .release(vec![KvChange::remove(APPLIED_KEY.to_vec())], None);
        self.engine.checkpoint(&mut || Ok(()))?;
        loop {
            let mut removed = Vec::new();
            let scanned = self.engine.scan(&[], &[0xff; 8], &mut |key, _value| {
                removed.push(KvChange::remove(key.to_vec()));
                removed.len() < EMPTIED_AT_ONCE
            });
            scanned.map_err(unreadable)?;
            if removed.is_empty() {
                return Ok(());
            }
            self.engine.release(removed, None);
            self.engine.checkpoint(&mut || Ok(()))?;
        }
    }

    /// Puts a part of a snapshot into an empty store, durably. A member's progress is the last of
    /// its keys, so that a store is a member's once it has all.
    ///
    /// # Errors
    /// The medium fails.
    pub fn fill(engine: &Engine, contents: Vec<KvChange>) -> Result<(), DiskError> {
        engine.apply_unlogged(contents);
        engine.checkpoint(&mut || Ok(()))
    }

    /// Opens the store in a folder as a member's.
    ///
    /// # Errors
    /// As [`Engine::open_in`]; `Corrupt` where the store is no member's.
    pub fn open(
        store: &StoreDir,
        expected: &StoreIdentity,
        config: EngineConfig,
    ) -> Result<Self, DiskError> {
        let mut found = Vec::new();
        let engine = Engine::open_in(store, expected, config, &mut |record, end, _| {
            found.push((record.note.clone(), end));
            true
        })?;
        Self::over(Arc::new(engine), store.clone(), found)
    }

    /// A member's log over an open engine, whose replay found these notes with their ends. A store
    /// that is no member's belongs to one that has everything to learn, and may have lost entries.
    ///
    /// # Errors
    /// `Corrupt` where the log contradicts itself; the vote cannot be read.
    pub fn over(
        engine: Arc<Engine>,
        store: StoreDir,
        found: Vec<(Vec<u8>, Lsn)>,
    ) -> Result<Self, DiskError> {
        let stored = engine.get(APPLIED_KEY).map_err(unreadable)?;
        let is_member = stored.is_some();
        let mut applied = match stored {
            Some(stored) => ReplicaProgress::from_bytes(&stored)
                .map_err(|_| DiskError::Corrupt("a member's progress".into()))?,
            None => ReplicaProgress::default(),
        };
        let mut places = EntryPlaces::new(applied.index, applied.term);
        for (note, end) in found.into_iter().filter(|_| is_member) {
            let entry = decode_note(&note)?;
            let size = crate::log::record_size(record::encoded_size(&[], &note));
            let start = Lsn(end.0 - size as u64);
            let place = engine.place_of(start)?;
            places.put(entry.index, entry.term, place)?;
        }
        if let Some(place) = places.at(LogIndex(applied.index.0 + 1)) {
            engine.release(Vec::new(), Some(place));
        }
        let promises = vote_file::load(store.path())?;
        if let Some((since, members)) = &promises.members
            && is_member
            && *since > applied.since
        {
            (applied.since, applied.members) = (*since, members.clone());
        }
        let is_lost = !is_member || engine.past() != UnflushedWrites::Kept;
        let member = Self {
            engine,
            store,
            promises: Mutex::new(promises),
            places: Mutex::new(places),
            recent: Mutex::default(),
            applied: Mutex::new(applied),
        };
        if is_lost {
            member.note_loss(true)?;
        }
        let term = member.applied().term;
        if member.vote().term < term {
            // A snapshot of a later term, in which it has not voted.
            let for_member = ReplicaId(0);
            member.save_vote(Vote { term, for_member })?;
        }
        Ok(member)
    }

    /// The store's engine: for reads, flushes and checkpoints.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// True where entries may be lost that the member has acknowledged, since
    /// [`Self::note_loss`] last said otherwise.
    #[must_use]
    pub fn may_have_lost(&self) -> bool {
        lock(&self.promises).may_have_lost
    }

    /// Notes durably whether entries may be lost.
    ///
    /// # Errors
    /// The medium fails.
    pub fn note_loss(&self, may_have_lost: bool) -> Result<(), DiskError> {
        self.change_promises(|promises| promises.may_have_lost = may_have_lost)
    }

    /// The generation of the group; 0: the store has nothing of a group yet.
    #[must_use]
    pub fn generation(&self) -> u64 {
        lock(&self.applied).generation
    }

    /// Begins another generation of the group, durably. Members of earlier ones are refused.
    ///
    /// # Errors
    /// The medium fails.
    pub fn begin_generation(&self) -> Result<u64, DiskError> {
        let mut applied = lock(&self.applied);
        applied.generation += 1;
        let generation = applied.generation;
        self.engine.apply_unlogged(vec![progress_change(&applied)]);
        drop(applied);
        self.engine.checkpoint(&mut || Ok(()))?;
        Ok(generation)
    }

    /// Counts the openings of the store.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.engine.opening()
    }

    /// The vote.
    #[must_use]
    pub fn vote(&self) -> Vote {
        lock(&self.promises).vote
    }

    /// Writes and flushes the vote.
    ///
    /// # Errors
    /// The medium fails: the member must not go on.
    pub fn save_vote(&self, vote: Vote) -> Result<(), DiskError> {
        self.change_promises(|promises| promises.vote = vote)
    }

    fn change_promises(&self, change: impl FnOnce(&mut Promises)) -> Result<(), DiskError> {
        let mut known = lock(&self.promises);
        let mut promises = known.clone();
        change(&mut promises);
        if promises != *known {
            vote_file::save(&self.store, &promises)?;
            *known = promises;
        }
        Ok(())
    }

    /// The last applied entry, its term, and the members since.
    #[must_use]
    pub fn applied(&self) -> ReplicaProgress {
        lock(&self.applied).clone()
    }

    /// The last applied entry and its term.
    #[must_use]
    pub fn applied_entry(&self) -> (LogIndex, Term) {
        let applied = lock(&self.applied);
        (applied.index, applied.term)
    }

    /// Writes entries; those from the place of the first one on are void.
    ///
    /// # Errors
    /// As [`Engine::append_held`]; nothing after the failed one is written.
    pub fn append(&self, entries: &[LogEntry]) -> Result<(), DiskError> {
        let mut places = lock(&self.places);
        for entry in entries {
            let place = self
                .engine
                .append_held(&encode_note(entry), LogRoom::Reserve)?;
            places.put(entry.index, entry.term, place)?;
            lock(&self.recent).put(entry);
        }
        Ok(())
    }

    /// Applies an entry, which must follow the last applied one, with its changes. After a change
    /// of the members [`Self::note_members`] follows, at its commit.
    pub fn apply(&self, entry: &LogEntry, mut changes: Vec<KvChange>) {
        let places = lock(&self.places);
        let mut applied = lock(&self.applied);
        assert!(
            entry.index.0 == applied.index.0 + 1,
            "entries are applied in order"
        );
        (applied.index, applied.term) = (entry.index, entry.term);
        if let EntryBody::Members { .. } = &entry.body {
            applied.changed = entry.index;
        }
        changes.push(progress_change(&applied));
        let next = places.at(LogIndex(entry.index.0 + 1));
        self.engine.release(changes, next);
    }

    /// Notes durably the members since an entry that was committed and applied.
    ///
    /// # Errors
    /// The medium fails: the member must not go on.
    pub fn note_members(&self, since: LogIndex, members: Membership) -> Result<(), DiskError> {
        self.change_promises(|promises| promises.members = Some((since, members.clone())))?;
        let mut applied = lock(&self.applied);
        (applied.members, applied.since) = (members, since);
        self.engine.apply_unlogged(vec![progress_change(&applied)]);
        Ok(())
    }

    /// The value of a key by all entries here, also by those that are not committed or applied yet.
    ///
    /// # Errors
    /// `Corrupt` where an entry cannot be read; failures of the medium.
    pub fn newest(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        let mut value = self.engine.get(key)?;
        let (mut next, last) = (self.applied_entry().0.0 + 1, self.last().0);
        while next <= last {
            let page = self.entries(LogIndex(next), LogIndex(last + 1), PAGE_BYTES);
            let page = page.map_err(|_unread| ErrorCode::Corrupt)?;
            next += page.len().max(1) as u64;
            for entry in &page {
                let effect = effect_of(&entry.body).map_err(|_no_effect| ErrorCode::Corrupt)?;
                let changes = effect.changes.into_iter();
                if let Some(change) = changes.rev().find(|change| change.key == key) {
                    value = change.value;
                }
            }
        }
        Ok(value)
    }

    /// The position behind an entry: a flush up to there makes it durable.
    #[must_use]
    pub fn end_of(&self, index: LogIndex) -> Option<Lsn> {
        lock(&self.places).at(index).map(|place| place.end)
    }
}

impl EntryLog for ReplicaStore {
    fn first(&self) -> LogIndex {
        let mut places = lock(&self.places);
        places.forget_before(self.engine.kept_from());
        places.first()
    }

    fn last(&self) -> LogIndex {
        lock(&self.places).last()
    }

    fn term(&self, index: LogIndex) -> Option<Term> {
        lock(&self.places).term(index)
    }

    fn entries(&self, from: LogIndex, to: LogIndex, max: u64) -> Result<Vec<LogEntry>, LogUnread> {
        if let Some(recent) = lock(&self.recent).range(from, to, max) {
            return Ok(recent);
        }
        let places = lock(&self.places).range(from, to, max);
        let places = places.ok_or(LogUnread)?;
        let records = self.engine.read_records(&places).map_err(|_| LogUnread)?;
        let entry = |record: Option<Record>| {
            let note = record.ok_or(LogUnread)?.note;
            decode_note(&note).map_err(|_| LogUnread)
        };
        records.into_iter().map(entry).collect()
    }

    fn membership(&self) -> (LogIndex, Membership) {
        let applied = lock(&self.applied);
        (applied.since, applied.members.clone())
    }
}

/// The changes of an entry's effect, in the encoding of records.
///
/// # Errors
/// `Corrupt` where the bytes are no effect.
pub fn effect_of(body: &EntryBody) -> Result<Record, DiskError> {
    match body {
        EntryBody::Effect { bytes } => record::decode(&bytes.0)
            .ok_or_else(|| DiskError::Corrupt("an entry that is no effect".into())),
        EntryBody::TermStart | EntryBody::Members { .. } => Ok(Record::default()),
    }
}

fn unreadable(code: ErrorCode) -> DiskError {
    DiskError::Corrupt(format!("the store cannot be read: {code}"))
}

fn progress_change(progress: &ReplicaProgress) -> KvChange {
    KvChange::put(APPLIED_KEY.to_vec(), progress.to_bytes())
}

fn encode_note(entry: &LogEntry) -> Vec<u8> {
    let mut note = vec![NOTE_KIND];
    entry.put(&mut note);
    note
}

fn decode_note(note: &[u8]) -> Result<LogEntry, DiskError> {
    let decode = || -> Result<LogEntry, CodecError> {
        match note.split_first() {
            Some((&NOTE_KIND, rest)) => {
                let mut reader = Reader::new(rest);
                let entry = LogEntry::get(&mut reader)?;
                match reader.left() {
                    0 => Ok(entry),
                    _ => Err(CodecError::Trailing),
                }
            }
            _ => Err(CodecError::BadValue),
        }
    };
    decode().map_err(|_| DiskError::Corrupt("log: a record that is no entry of a group".into()))
}
