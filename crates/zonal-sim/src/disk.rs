//! Disks of simulated processes: an ordered store behind a log, and segments.
//!
//! What was appended survives the kill of its process. A power loss takes back unsynced records from the end, and any of the
//! unsynced segment writes.

use crate::rng::Rng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use zonal_object::Record;
use zonal_types::{ErrorCode, KvChange, KvRead};

/// One disk.
#[derive(Default)]
pub struct Disk {
    keys: RefCell<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Records since the last sync: what they did, and how to take it back.
    unsynced: RefCell<Vec<Logged>>,
    /// Notes of records that no checkpoint has covered.
    notes: RefCell<Vec<Vec<u8>>>,
    segments: RefCell<BTreeMap<u32, Vec<u8>>>,
    unsynced_writes: RefCell<Vec<(u32, u64, Vec<u8>)>>,
    power_losses: Cell<u64>,
}

struct Logged {
    record: Record,
    undo: Vec<KvChange>,
    has_note: bool,
}

impl Disk {
    /// Appends a record and applies it.
    pub fn append(&self, record: Record, has_note: bool) {
        let undo = self.apply(&record.changes);
        if has_note {
            self.notes.borrow_mut().push(record.note.clone());
        }
        self.unsynced.borrow_mut().push(Logged {
            record,
            undo,
            has_note,
        });
    }

    /// Appends changes without a note.
    pub fn append_changes(&self, changes: Vec<KvChange>) {
        let note = Vec::new();
        self.append(Record { changes, note }, false);
    }

    /// Applies changes outside of the log and returns how to take them back, last change first.
    fn apply(&self, changes: &[KvChange]) -> Vec<KvChange> {
        let mut keys = self.keys.borrow_mut();
        let mut undo = Vec::with_capacity(changes.len());
        for change in changes {
            let before = match &change.value {
                Some(value) => keys.insert(change.key.clone(), value.clone()),
                None => keys.remove(&change.key),
            };
            undo.push(KvChange {
                key: change.key.clone(),
                value: before,
            });
        }
        undo.reverse();
        undo
    }

    /// A checkpoint: these changes go in, everything is durable, and the notes are forgotten.
    pub fn checkpoint(&self, changes: &[KvChange]) {
        self.apply(changes);
        self.sync();
        self.notes.borrow_mut().clear();
    }

    /// How often the power failed.
    #[must_use]
    pub fn power_losses(&self) -> u64 {
        self.power_losses.get()
    }

    /// Everything so far is durable.
    pub fn sync(&self) {
        self.unsynced.borrow_mut().clear();
        self.unsynced_writes.borrow_mut().clear();
    }

    /// Notes for the start of a target.
    #[must_use]
    pub fn notes(&self) -> Vec<Vec<u8>> {
        self.notes.borrow().clone()
    }

    /// Writes to a segment.
    pub fn write_segment(&self, segment: u32, offset: u64, bytes: &[u8]) {
        let mut segments = self.segments.borrow_mut();
        let segment_bytes = segments.entry(segment).or_default();
        let from = offset as usize;
        if segment_bytes.len() < from + bytes.len() {
            segment_bytes.resize(from + bytes.len(), 0);
        }
        let place = &mut segment_bytes[from..from + bytes.len()];
        let mut unsynced = self.unsynced_writes.borrow_mut();
        unsynced.push((segment, offset, place.to_vec()));
        place.copy_from_slice(bytes);
    }

    /// Reads from a segment; what was never written is zeros.
    pub fn read_segment(&self, segment: u32, offset: u64, out: &mut [u8]) {
        out.fill(0);
        let segments = self.segments.borrow();
        if let Some(bytes) = segments.get(&segment) {
            let from = (offset as usize).min(bytes.len());
            let count = out.len().min(bytes.len() - from);
            out[..count].copy_from_slice(&bytes[from..from + count]);
        }
    }

    /// The power fails: unsynced records from some point on are gone, and some of the unsynced segment writes.
    /// `is_whole` tells whether a surviving record's data arrived; the log ends before the first whose did not.
    pub fn lose_power(&self, rng: &mut Rng, is_whole: impl Fn(&Self, &Record) -> bool) {
        self.power_losses.set(self.power_losses.get() + 1);
        let writes = std::mem::take(&mut *self.unsynced_writes.borrow_mut());
        for (segment, offset, before) in writes.iter().rev() {
            if rng.chance(300) {
                let mut segments = self.segments.borrow_mut();
                if let Some(bytes) = segments.get_mut(segment) {
                    let from = *offset as usize;
                    bytes[from..from + before.len()].copy_from_slice(before);
                }
            }
        }
        let logged = std::mem::take(&mut *self.unsynced.borrow_mut());
        let mut keep = rng.below(logged.len() as u64 + 1) as usize;
        if let Some(torn) = logged[..keep]
            .iter()
            .position(|one| !is_whole(self, &one.record))
        {
            keep = torn;
        }
        for one in logged[keep..].iter().rev() {
            self.apply(&one.undo);
            if one.has_note {
                self.notes.borrow_mut().pop();
            }
        }
    }
}

impl KvRead for Disk {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        Ok(self.keys.borrow().get(key).cloned())
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        if start >= end {
            return Ok(());
        }
        for (key, value) in self.keys.borrow().range::<[u8], _>((
            std::ops::Bound::Included(start),
            std::ops::Bound::Excluded(end),
        )) {
            if !visit(key, value) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: u8, value: u8) -> Vec<KvChange> {
        vec![KvChange::put(vec![key], vec![value])]
    }

    #[test]
    fn a_power_loss_takes_back_a_tail_of_what_was_not_synced() {
        for seed in 0..50 {
            let disk = Disk::default();
            disk.append_changes(put(1, 1));
            disk.sync();
            for value in 2..10 {
                disk.append_changes(put(1, value));
                disk.append_changes(put(value, value));
            }
            disk.lose_power(&mut Rng::new(seed), |_disk, _record| true);
            let last = disk.get(&[1]).unwrap().unwrap()[0];
            assert!((1..10).contains(&last));
            assert_eq!(disk.get(&[last + 1]), Ok(None));
            if last > 2 {
                assert_eq!(disk.get(&[last - 1]), Ok(Some(vec![last - 1])));
            }
        }
    }
}
