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
//! the log.

mod entry_places;
mod vote_file;

use std::sync::{Arc, Mutex};

use zonal_consensus::{EntryBody, EntryLog, LogEntry, LogIndex, LogUnread, Membership, Term, Vote};
use zonal_types::codec::{Codec, CodecError, Reader};
use zonal_types::{KvChange, KvRead, codec_struct};

use crate::engine::Engine;
use crate::engine::{EngineConfig, LogRoom};
use crate::files::StoreDir;
use crate::files::error::DiskError;
use crate::files::group_commit::lock;
use crate::files::identity::StoreIdentity;
use crate::files::power_loss::UnflushedWrites;
use crate::log::record::{self, Lsn, Record};
use entry_places::EntryPlaces;

/// The key of a replica's progress; no shard's key begins with these partition bits.
pub const APPLIED_KEY: &[u8] = b"\xff\xff\xff\xffapplied";
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
        /// The members after it.
        members: Membership,
    }
}

/// The log and state of a group's member.
pub struct ReplicaStore {
    engine: Arc<Engine>,
    store: StoreDir,
    vote: Mutex<Vote>,
    places: Mutex<EntryPlaces>,
    applied: Mutex<ReplicaProgress>,
}

impl ReplicaStore {
    /// Makes an empty, formatted store a member's of a new group.
    ///
    /// # Errors
    /// The medium fails.
    pub fn begin(engine: &Engine, members: Membership) -> Result<(), DiskError> {
        let progress = ReplicaProgress {
            members,
            ..ReplicaProgress::default()
        };
        Self::fill(engine, vec![progress_change(&progress)])
    }

    /// Puts a part of a snapshot into an empty store, durably. A member's progress is one of its
    /// keys, so that a store is a member's once it has all.
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

    /// A member's log over an open engine, whose replay found these notes with their ends.
    ///
    /// # Errors
    /// `Corrupt` where the store is no member's; the vote cannot be read.
    pub fn over(
        engine: Arc<Engine>,
        store: StoreDir,
        found: Vec<(Vec<u8>, Lsn)>,
    ) -> Result<Self, DiskError> {
        let damaged = |_| DiskError::Corrupt("the store is no member's of a group".into());
        let stored = engine.get(APPLIED_KEY).map_err(damaged)?;
        let stored = stored.ok_or_else(|| damaged(zonal_types::ErrorCode::Corrupt))?;
        let applied = ReplicaProgress::from_bytes(&stored)
            .map_err(|_| DiskError::Corrupt("a member's progress".into()))?;
        let mut places = EntryPlaces::new(applied.index, applied.term);
        for (note, end) in found {
            let entry = decode_note(&note)?;
            let size = crate::log::record_size(record::encoded_size(&[], &note));
            let start = Lsn(end.0 - size as u64);
            let place = engine.place_of(start)?;
            places.put(entry.index, entry.term, place)?;
        }
        if let Some(place) = places.at(LogIndex(applied.index.0 + 1)) {
            engine.release(Vec::new(), Some(place));
        }
        let vote = vote_file::load(store.path())?;
        Ok(Self {
            engine,
            store,
            vote: Mutex::new(vote),
            places: Mutex::new(places),
            applied: Mutex::new(applied),
        })
    }

    /// The store's engine: for reads, flushes and checkpoints.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// True where unflushed entries of the last opening may be lost.
    #[must_use]
    pub fn may_have_lost(&self) -> bool {
        self.engine.past() != UnflushedWrites::Kept
    }

    /// The vote.
    #[must_use]
    pub fn vote(&self) -> Vote {
        *lock(&self.vote)
    }

    /// Writes and flushes the vote.
    ///
    /// # Errors
    /// The medium fails: the member must not go on.
    pub fn save_vote(&self, vote: Vote) -> Result<(), DiskError> {
        vote_file::save(&self.store, vote)?;
        *lock(&self.vote) = vote;
        Ok(())
    }

    /// The last applied entry, its term, and the members since.
    #[must_use]
    pub fn applied(&self) -> ReplicaProgress {
        lock(&self.applied).clone()
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
        }
        Ok(())
    }

    /// Applies an entry, which must follow the last applied one, with its changes.
    pub fn apply(&self, entry: &LogEntry, mut changes: Vec<KvChange>, members: Option<Membership>) {
        let places = lock(&self.places);
        let mut applied = lock(&self.applied);
        assert!(
            entry.index.0 == applied.index.0 + 1,
            "entries are applied in order"
        );
        (applied.index, applied.term) = (entry.index, entry.term);
        if let Some(members) = members {
            applied.members = members;
        }
        changes.push(progress_change(&applied));
        let next = places.at(LogIndex(entry.index.0 + 1));
        self.engine.release(changes, next);
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
        let places = lock(&self.places).range(from, to, max);
        let places = places.ok_or(LogUnread)?;
        let records = self.engine.read_records(&places).map_err(|_| LogUnread)?;
        let entry = |record: Option<Record>| {
            let note = record.ok_or(LogUnread)?.note;
            decode_note(&note).map_err(|_| LogUnread)
        };
        records.into_iter().map(entry).collect()
    }

    fn membership(&self) -> Membership {
        lock(&self.applied).members.clone()
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
