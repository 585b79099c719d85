//! Records whose changes are applied later: entries of a replicated log before their commit.
//!
//! Invariant: a checkpoint frees no record that is held, and freezes no change without its record.
//! So after a crash the log still has every record whose changes are not in the index.

use zonal_types::KvChange;

use crate::engine::{Engine, LogRoom, Tail};
use crate::files::error::DiskError;
use crate::files::group_commit::lock;
use crate::log::record::{self, Lsn, Record};
use crate::log::{Origin, Reader, RecordKind};

/// The place of a record in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordPlace {
    /// Where it begins, behind a pad.
    pub start: Lsn,
    /// Where it ends.
    pub end: Lsn,
    /// The opening that wrote it.
    pub epoch: u64,
}

impl Engine {
    /// Writes a record with a note and no changes, and holds it: it stays in the log until
    /// [`Self::release`] passes it.
    ///
    /// # Errors
    /// As [`Engine::append_with`].
    pub fn append_held(&self, note: &[u8], room: LogRoom) -> Result<RecordPlace, DiskError> {
        self.append_record(Vec::new(), note, room, true)
    }

    /// Applies changes of held records and releases all records below `held_from`, in one step for
    /// checkpoints.
    pub fn release(&self, changes: Vec<KvChange>, held_from: Option<RecordPlace>) {
        let mut guard = lock(&self.append_lock);
        guard.held_from = held_from;
        self.apply(changes);
        let due = self.is_due(&guard);
        drop(guard);
        if due {
            self.request_checkpoint();
        }
    }

    /// The record that begins at `start`, as a replay found it.
    ///
    /// # Errors
    /// The medium fails, or there is no record.
    pub fn place_of(&self, start: Lsn) -> Result<RecordPlace, DiskError> {
        let mut reader = Reader::new(self.log.as_ref(), self.whole_log());
        let found = reader.at(start.0, 0)?;
        let item = found.filter(|item| item.header.kind == RecordKind::Record);
        let missing = || DiskError::Corrupt(format!("log: no record at {}", start.0));
        let item = item.ok_or_else(missing)?;
        Ok(RecordPlace {
            start,
            end: Lsn(item.end),
            epoch: item.header.epoch,
        })
    }

    /// Reads records at these places of the log, also where a checkpoint has freed them; `None` for
    /// those that newer ones have overwritten.
    ///
    /// # Errors
    /// The medium fails.
    pub fn read_records(&self, places: &[RecordPlace]) -> Result<Vec<Option<Record>>, DiskError> {
        let mut reader = Reader::new(self.log.as_ref(), self.whole_log());
        let mut records = Vec::with_capacity(places.len());
        for place in places {
            let found = match reader.at(place.start.0, 0)? {
                Some(item) if item.header.kind == RecordKind::Record => {
                    record::decode(reader.payload(&item.header)?)
                }
                _ => None,
            };
            records.push(found);
        }
        Ok(records)
    }

    /// The position from which records are sure to be in the log's file, even while an append is
    /// under way.
    #[must_use]
    pub fn kept_from(&self) -> Lsn {
        Lsn(self.head().0.saturating_sub(self.capacity / 8 * 7))
    }

    /// Where a checkpoint that begins now ends, and the least epoch of records from there on.
    pub(crate) fn checkpoint_end(&self, guard: &Tail) -> (Lsn, u64) {
        match guard.held_from {
            Some(place) => (place.start, place.epoch),
            None => (Lsn(guard.head), self.epoch),
        }
    }

    /// Everything that is still in the file.
    fn whole_log(&self) -> Origin {
        Origin {
            capacity: self.capacity,
            store: self.store,
            applied: self.head().0.saturating_sub(self.capacity),
            applied_epoch: 0,
            epoch: self.epoch,
            kept: true,
        }
    }
}
