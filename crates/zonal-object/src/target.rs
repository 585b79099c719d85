//! The state of a target between requests, and its start.
//!
//! Invariants, checked by `StorageTarget::check`:
//!
//! 1. Every place in the index is in exactly one record and live in the allocator; nothing else is
//!    live.
//! 2. A pending block's object has a header.
//! 3. A header counts exactly the blocks that have a place or are pending.
//! 4. All bytes of a block behind the object's length are zeros.
//! 5. A block that a record refers to is never written again.

use crate::attempts::Attempts;
use crate::change_orders::ChangeOrders;
use crate::fences::Fences;
use crate::ids::{BLOCK, ObjectId, TargetConfig, Truncation};
use crate::index_value::{self, TargetRecord};
use crate::key::{self, IndexKey};
use crate::note::{BlockBytes, EffectRecord, Note};
use crate::object_update::{Batch, ObjectUpdate, read_header};
use crate::pending_blocks::PendingBlocks;
use crate::recent_deletes::RecentDeletes;
use crate::space::Space;
use crate::unreported_truncations::UnreportedTruncations;
use std::collections::BTreeSet;
use std::sync::Arc;
use zonal_types::limits::BLOCK_BYTES;
use zonal_types::{ErrorCode, KvChange, KvRead};

/// A storage target without its I/O. See the crate's documentation for how a shell drives it.
#[derive(Debug)]
pub struct StorageTarget {
    pub(crate) config: TargetConfig,
    pub(crate) space: Space,
    pub(crate) pending: PendingBlocks,
    /// Pending blocks in the store, from the last checkpoints.
    stored_pending: BTreeSet<(ObjectId, u64)>,
    pub(crate) deleting: BTreeSet<ObjectId>,
    pub(crate) recent_deletes: RecentDeletes,
    pub(crate) attempts: Attempts,
    pub(crate) orders: ChangeOrders,
    pub(crate) fences: Fences,
    pub(crate) unreported_truncations: UnreportedTruncations,
    objects: u64,
    /// Blocks that planned writes will make pending.
    pub(crate) promised: u64,
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeOutcome {
    /// Change of allocated bytes, including earlier truncations that no reply has reported so far.
    pub allocated_delta: i64,
    /// Length of the object after the change.
    pub object_bytes: u64,
}

/// The reply to `stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ObjectStat {
    /// One past the last byte written.
    pub object_bytes: u64,
    /// Allocated bytes.
    pub allocated: u64,
    /// Number of the last truncation applied.
    pub truncate_seq: u64,
}

/// Capacity of a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TargetSpace {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that can still be written.
    pub free: u64,
    /// Number of objects.
    pub objects: u64,
}

impl StorageTarget {
    /// Opens a target: loads its stored state from `kv`, then applies the notes of the log's
    /// records in order. The notes are those behind the last checkpoint; `kv` may show their
    /// changes already. A new store is empty.
    ///
    /// # Errors
    /// `Invalid` where the store's segment size differs; `Corrupt`; errors of `kv`.
    pub fn open<'a>(
        config: TargetConfig,
        kv: &dyn KvRead,
        notes: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, ErrorCode> {
        if config.segment_units == 0 || config.segments == 0 {
            return Err(ErrorCode::Invalid);
        }
        let mut target = Self {
            config,
            space: Space::new(&config),
            pending: PendingBlocks::default(),
            stored_pending: BTreeSet::new(),
            deleting: BTreeSet::new(),
            recent_deletes: RecentDeletes::default(),
            attempts: Attempts::default(),
            orders: ChangeOrders::default(),
            fences: Fences::default(),
            unreported_truncations: UnreportedTruncations::default(),
            objects: 0,
            promised: 0,
        };
        let mut failed = None;
        kv.scan(&[0], &[key::OBJECT], &mut |key, value| {
            failed = target.load(key, value).err();
            failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        for note in notes {
            target.apply_note(&Note::decode(note)?)?;
        }
        Ok(target)
    }

    fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), ErrorCode> {
        match key::parse(key)? {
            IndexKey::Target => {
                let record: TargetRecord = index_value::decode(key, value)?;
                if record.segment_units != self.config.segment_units {
                    return Err(ErrorCode::Invalid);
                }
                self.objects = record.objects;
            }
            IndexKey::Segment(number) => self.space.load(number, key, value)?,
            IndexKey::Tombstone(object) => {
                self.deleting.insert(object);
            }
            IndexKey::Pending(object, block) => {
                let bytes = index_value::open(key, value)?;
                let bytes: [u8; BLOCK_BYTES] =
                    bytes.try_into().map_err(|_error| ErrorCode::Corrupt)?;
                self.stored_pending.insert((object, block));
                self.pending.put(object, block, Arc::new(bytes));
            }
            IndexKey::Fence(client, holder) => {
                let record = index_value::decode(key, value)?;
                self.fences.load((client, holder), record);
            }
            IndexKey::Header(_) | IndexKey::Chunk(..) => return Err(ErrorCode::Corrupt),
        }
        Ok(())
    }

    /// Applies a note, both when it is made and when the log is replayed.
    fn apply_note(&mut self, note: &Note) -> Result<(), ErrorCode> {
        // Checks all of it first: a damaged index must not leave half of a note applied.
        for (extents, live) in [(&note.taken, false), (&note.freed, true)] {
            for extent in extents {
                if !self.space.all_are(extent, live)? {
                    return Err(ErrorCode::Corrupt);
                }
            }
        }
        for extent in &note.taken {
            self.space.adopt(extent)?;
        }
        for extent in &note.freed {
            self.space.free_later(extent)?;
        }
        for (object, (first, end)) in &note.removed {
            self.pending.remove(*object, *first, *end);
        }
        for (object, block, bytes) in &note.put {
            self.pending.put(*object, *block, bytes.clone());
        }
        self.objects = self.objects.saturating_add_signed(note.objects);
        Ok(())
    }

    /// Applies a batch to the target's state and returns the record to append.
    pub(crate) fn apply(&mut self, batch: Batch) -> Result<EffectRecord, ErrorCode> {
        assert!(
            batch.changes.iter().all(|change| key::is_own(&change.key)),
            "an effect of a target changes only the target's keys"
        );
        self.apply_note(&batch.note)?;
        Ok(EffectRecord {
            note: batch.note.encode(),
            changes: batch.changes,
        })
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &TargetConfig {
        &self.config
    }

    /// Length and allocation of an object; zeros for one that does not exist. One look-up.
    ///
    /// # Errors
    /// `Corrupt`; errors of `kv`.
    pub fn stat(&self, kv: &dyn KvRead, object: ObjectId) -> Result<ObjectStat, ErrorCode> {
        let header = read_header(kv, object)?.filter(|header| !header.deleting);
        Ok(
            header.map_or_else(ObjectStat::default, |header| ObjectStat {
                object_bytes: header.object_bytes,
                allocated: header.blocks.saturating_mul(BLOCK),
                truncate_seq: header.truncate_seq,
            }),
        )
    }

    /// The highest order of a change of an object.
    ///
    /// # Errors
    /// `Corrupt`; errors of `kv`.
    pub fn order_of(&self, kv: &dyn KvRead, object: ObjectId) -> Result<u64, ErrorCode> {
        Ok(read_header(kv, object)?.map_or(0, |header| header.order))
    }

    /// Capacity; bytes that the next checkpoint frees count as free.
    #[must_use]
    pub fn statfs(&self) -> TargetSpace {
        let units =
            (self.available() + self.space.waiting()).saturating_sub(self.config.reserve_units());
        TargetSpace {
            total: self.config.units() * BLOCK,
            free: units * BLOCK,
            objects: self.objects,
        }
    }

    /// Units that are neither taken nor promised to pending blocks, present and planned.
    pub(crate) fn available(&self) -> u64 {
        let promised = self.pending.len() as u64 + self.promised;
        self.space.free().saturating_sub(promised)
    }

    /// Bytes that the next checkpoint frees: after `NoSpace` a checkpoint is worth the wait where
    /// this is not 0.
    #[must_use]
    pub fn reclaimable(&self) -> u64 {
        self.space.waiting() * BLOCK
    }

    /// The first segment that cannot be created for now, where the disk has less space than the
    /// configuration.
    #[must_use]
    pub fn usable_segments(&self) -> Option<u32> {
        self.space.usable()
    }

    /// Limits allocation to the segments before `first`, because the shell could not create
    /// `first`. `None`: it can again.
    pub fn limit_segments(&mut self, first: Option<u32>) {
        self.space.set_usable(first);
    }

    /// Bytes of pending blocks in memory, and their bound.
    #[must_use]
    pub fn pending_bytes(&self) -> (u64, u64) {
        let bound = self.config.pending_blocks_max as u64 * BLOCK;
        (self.pending.len() as u64 * BLOCK, bound)
    }

    /// Whether a checkpoint should begin: half of the pending blocks' bound is reached, or it would
    /// free more than is free now.
    #[must_use]
    pub fn wants_checkpoint(&self) -> bool {
        self.pending.len() * 2 >= self.config.pending_blocks_max
            || self.space.waiting() > self.available()
    }

    /// Units held by plans that are neither committed nor aborted.
    #[must_use]
    pub fn units_in_flight(&self) -> u64 {
        self.space.in_flight() + self.promised
    }

    /// Objects whose deletion has begun and not ended; a restart repeats it.
    #[must_use]
    pub fn unfinished_deletes(&self) -> Vec<ObjectId> {
        self.deleting.iter().copied().collect()
    }

    /// The target's part of a checkpoint: allocation bitmaps, counters, and the pending blocks
    /// (whose records the log forgets). The caller applies it to the store without a record, in the
    /// critical section in which the engine freezes its overlay.
    ///
    /// Call [`Self::checkpoint_done`] when that checkpoint is durable. If it fails, nothing need be
    /// done: the next freeze covers it.
    pub fn freeze(&mut self) -> Vec<KvChange> {
        let mut changes = Vec::new();
        self.space.freeze(&mut changes);
        let key = key::target();
        let record = TargetRecord {
            segment_units: self.config.segment_units,
            objects: self.objects,
            epoch: 0,
        };
        let value = index_value::encode(&key, &record);
        changes.push(KvChange::put(key, value));
        let now: BTreeSet<_> = self.pending.iter().map(|(at, _)| *at).collect();
        for (object, block) in self.stored_pending.difference(&now) {
            changes.push(KvChange::remove(key::pending(*object, *block)));
        }
        for ((object, block), found) in self.pending.iter() {
            let key = key::pending(*object, *block);
            let value =
                index_value::seal(&key, |out| out.extend_from_slice(found.bytes.as_slice()));
            changes.push(KvChange::put(key, value));
        }
        self.stored_pending = now;
        changes
    }

    /// The checkpoint of the last [`Self::freeze`] is durable: units freed before it may be reused.
    pub fn checkpoint_done(&mut self) {
        self.space.checkpoint_done();
    }

    /// Refuses a change by a sender that knows an older state of the file, also of a deleted
    /// object. `Ok(true)`: the object must be truncated first.
    pub(crate) fn check_truncation(
        &self,
        update: &ObjectUpdate<'_>,
        truncation: Truncation,
    ) -> Result<bool, ErrorCode> {
        if !update.exists() && self.recent_deletes.has(update.object) {
            zonal_types::mark!(WriteAfterDelete);
            return Err(ErrorCode::Stale);
        }
        update.check_truncation(truncation)
    }

    /// A block's pending bytes.
    pub(crate) fn pending_block(&self, object: ObjectId, block: u64) -> Option<&BlockBytes> {
        self.pending.get(object, block).map(|found| &found.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    #[should_panic(expected = "an effect of a target changes only the target's keys")]
    fn an_effect_on_keys_of_others_is_refused() {
        let config = TargetConfig {
            segment_units: 100,
            segments: 2,
            pending_blocks_max: 8,
        };
        let mut target = StorageTarget::open(config, &BTreeMap::new(), []).unwrap();
        let change = KvChange::put(vec![key::OTHERS], Vec::new());
        let _ = target.apply(Batch {
            changes: vec![change],
            note: Note::default(),
        });
    }
}
