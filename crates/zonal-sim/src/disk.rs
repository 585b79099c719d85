//! Disks of simulated processes: an ordered key-value store behind a log, and segments.
//!
//! Appended records survive the kill of their process. A loss of power drops unsynced records from
//! the end of the log. It also drops any of the unsynced segment writes, or any sectors of one. A
//! bad disk flips bits, loses and misdirects writes, misdirects and fails reads.

use crate::rng::SimRng;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use zonal_object::EffectRecord;
use zonal_types::limits::BLOCK_BYTES;
use zonal_types::{ErrorCode, KvChange, KvRead};

/// Bytes that a disk writes as a whole or not at all.
const SECTOR: usize = 512;

/// A fault of the next write to a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteTrick {
    /// The write is acknowledged and not done.
    Lost,
    /// The write goes to another place, this many blocks further.
    Misdirected(u64),
}

/// A fault of the next read of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadTrick {
    /// The read fails.
    Fails,
    /// The read comes from another place, this many blocks further.
    Misdirected(u64),
}

/// One disk.
#[derive(Default)]
pub struct VirtualDisk {
    keys: RefCell<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Records since the last sync, with the changes that take them back.
    unsynced: RefCell<Vec<Logged>>,
    /// Notes of records that no checkpoint has covered.
    notes: RefCell<Vec<Vec<u8>>>,
    segments: RefCell<BTreeMap<u32, Vec<u8>>>,
    unsynced_writes: RefCell<Vec<(u32, u64, Vec<u8>)>>,
    power_losses: Cell<u64>,
    write_trick: Cell<Option<WriteTrick>>,
    read_trick: Cell<Option<ReadTrick>>,
    is_full: Cell<bool>,
}

struct Logged {
    record: EffectRecord,
    undo: Vec<KvChange>,
    has_note: bool,
}

/// A checkpoint that was begun.
#[derive(Debug)]
pub struct BegunCheckpoint {
    changes: Vec<KvChange>,
    /// Number of the notes that the checkpoint covers.
    notes: usize,
}

impl VirtualDisk {
    /// Appends a record and applies it.
    pub fn append(&self, record: EffectRecord, has_note: bool) {
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
        self.append(EffectRecord { changes, note }, false);
    }

    /// Applies changes outside of the log and returns how to take them back, last change first.
    fn apply(&self, changes: &[KvChange]) -> Vec<KvChange> {
        let mut keys = self.keys.borrow_mut();
        let undo = changes.iter().map(|change| change.apply_to(&mut keys));
        let mut undo: Vec<KvChange> = undo.collect();
        undo.reverse();
        undo
    }

    /// Begins a checkpoint of all records so far and of `changes`.
    #[must_use]
    pub fn freeze(&self, changes: Vec<KvChange>) -> BegunCheckpoint {
        let notes = self.notes.borrow().len();
        BegunCheckpoint { changes, notes }
    }

    /// Completes a checkpoint: applies its changes and forgets the notes of its records. All
    /// records become durable, those since its beginning too.
    pub fn checkpoint(&self, frozen: &BegunCheckpoint) {
        self.apply(&frozen.changes);
        self.sync();
        self.notes.borrow_mut().drain(..frozen.notes);
    }

    /// How often the disk lost power.
    #[must_use]
    pub fn power_losses(&self) -> u64 {
        self.power_losses.get()
    }

    /// Counts a loss of power.
    pub fn note_power_loss(&self) {
        self.power_losses.set(self.power_losses.get() + 1);
    }

    /// Makes all records and writes durable.
    pub fn sync(&self) {
        self.unsynced.borrow_mut().clear();
        self.unsynced_writes.borrow_mut().clear();
    }

    /// Takes all unsynced records back.
    pub fn take_back(&self) {
        let logged = std::mem::take(&mut *self.unsynced.borrow_mut());
        for one in logged.iter().rev() {
            self.apply(&one.undo);
        }
    }

    /// Removes all keys, durably.
    pub fn clear(&self) {
        self.keys.borrow_mut().clear();
        self.sync();
    }

    /// All keys with their values.
    #[must_use]
    pub fn contents(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let keys = self.keys.borrow();
        let pairs = keys.iter().map(|(key, value)| (key.clone(), value.clone()));
        pairs.collect()
    }

    /// Notes of records that no checkpoint has covered, for the start of a target.
    #[must_use]
    pub fn notes(&self) -> Vec<Vec<u8>> {
        self.notes.borrow().clone()
    }

    /// Makes the next write to a segment go wrong.
    pub fn trick_write(&self, trick: WriteTrick) {
        self.write_trick.set(Some(trick));
    }

    /// Makes the next read of a segment go wrong.
    pub fn trick_read(&self, trick: ReadTrick) {
        self.read_trick.set(Some(trick));
    }

    /// Takes back tricks that did not happen yet. Damaged bytes stay damaged.
    pub fn end_tricks(&self) {
        self.write_trick.set(None);
        self.read_trick.set(None);
        self.is_full.set(false);
    }

    /// Sets whether a shard on this disk has room for changes that add something.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.set(is_full);
    }

    /// Whether the disk is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full.get()
    }

    /// Flips one bit of a segment; returns false where the disk has no segment.
    pub fn flip_bit(&self, rng: &mut SimRng) -> bool {
        let mut segments = self.segments.borrow_mut();
        let count = segments.len() as u64;
        let chosen = segments.values_mut().nth(rng.below(count) as usize);
        let Some(bytes) = chosen.filter(|bytes| !bytes.is_empty()) else {
            return false;
        };
        let at = rng.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << rng.below(8);
        true
    }

    /// Writes to a segment.
    pub fn write_segment(&self, segment: u32, offset: u64, bytes: &[u8]) {
        let offset = match self.write_trick.take() {
            None => offset,
            Some(WriteTrick::Lost) => return,
            Some(WriteTrick::Misdirected(blocks)) => offset + blocks * BLOCK_BYTES as u64,
        };
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

    /// Reads from a segment; bytes that were never written are zeros.
    ///
    /// # Errors
    /// `Io` where the disk fails.
    pub fn read_segment(&self, segment: u32, offset: u64, out: &mut [u8]) -> Result<(), ErrorCode> {
        let offset = match self.read_trick.take() {
            None => offset,
            Some(ReadTrick::Fails) => return Err(ErrorCode::Io),
            Some(ReadTrick::Misdirected(blocks)) => offset + blocks * BLOCK_BYTES as u64,
        };
        out.fill(0);
        let segments = self.segments.borrow();
        if let Some(bytes) = segments.get(&segment) {
            let from = (offset as usize).min(bytes.len());
            let count = out.len().min(bytes.len() - from);
            out[..count].copy_from_slice(&bytes[from..from + count]);
        }
        Ok(())
    }

    /// Loses power: drops unsynced records from some point on, and some of the unsynced segment
    /// writes, whole or in sectors. Returns the number of torn writes.
    ///
    /// `is_whole` says whether the data of a surviving record arrived; the log ends before the
    /// first record whose data did not.
    pub fn lose_power(
        &self,
        rng: &mut SimRng,
        is_whole: impl Fn(&Self, &EffectRecord) -> bool,
    ) -> u64 {
        self.note_power_loss();
        let writes = std::mem::take(&mut *self.unsynced_writes.borrow_mut());
        let mut torn = 0;
        for (segment, offset, before) in writes.iter().rev() {
            let (is_lost, is_torn) = (rng.chance(300), rng.chance(200));
            if !is_lost && !is_torn {
                continue;
            }
            torn += u64::from(!is_lost);
            let mut segments = self.segments.borrow_mut();
            let Some(bytes) = segments.get_mut(segment) else {
                continue;
            };
            for (index, sector) in before.chunks(SECTOR).enumerate() {
                if is_lost || rng.chance(500) {
                    let from = *offset as usize + index * SECTOR;
                    bytes[from..from + sector.len()].copy_from_slice(sector);
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
        torn
    }
}

impl KvRead for VirtualDisk {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        KvRead::get(&*self.keys.borrow(), key)
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        self.keys.borrow().scan(start, end, visit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: u8, value: u8) -> Vec<KvChange> {
        vec![KvChange::put(vec![key], vec![value])]
    }

    #[test]
    fn a_power_loss_takes_back_a_tail_of_unsynced_records() {
        for seed in 0..50 {
            let disk = VirtualDisk::default();
            disk.append_changes(put(1, 1));
            disk.sync();
            for value in 2..10 {
                disk.append_changes(put(1, value));
                disk.append_changes(put(value, value));
            }
            disk.lose_power(&mut SimRng::new(seed), |_disk, _record| true);
            let last = disk.get(&[1]).unwrap().unwrap()[0];
            assert!((1..10).contains(&last));
            assert_eq!(disk.get(&[last + 1]), Ok(None));
            if last > 2 {
                assert_eq!(disk.get(&[last - 1]), Ok(Some(vec![last - 1])));
            }
        }
    }
}
