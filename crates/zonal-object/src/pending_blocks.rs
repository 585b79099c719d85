//! Pending blocks: their newest contents are in the log and in memory, not yet in a segment.
//!
//! Each has a generation, so that a checkpoint that copied a block can tell whether it was
//! superseded.

use crate::ids::ObjectId;
use crate::note::BlockBytes;
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Debug, Clone)]
pub(crate) struct PendingBlock {
    pub bytes: BlockBytes,
    pub generation: u64,
}

#[derive(Debug, Default)]
pub(crate) struct PendingBlocks {
    blocks: BTreeMap<(ObjectId, u64), PendingBlock>,
    generation: u64,
}

impl PendingBlocks {
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn get(&self, object: ObjectId, block: u64) -> Option<&PendingBlock> {
        self.blocks.get(&(object, block))
    }

    pub fn put(&mut self, object: ObjectId, block: u64, bytes: BlockBytes) {
        self.generation += 1;
        let entry = PendingBlock {
            bytes,
            generation: self.generation,
        };
        self.blocks.insert((object, block), entry);
    }

    /// Removes `first..end` of `object`.
    pub fn remove(&mut self, object: ObjectId, first: u64, end: u64) {
        if end == first.saturating_add(1) {
            self.blocks.remove(&(object, first));
            return;
        }
        let doomed: Vec<u64> = self.range(object, first, end).collect();
        for block in doomed {
            self.blocks.remove(&(object, block));
        }
    }

    /// Blocks of `object` in `first..end`, in order.
    pub fn range(&self, object: ObjectId, first: u64, end: u64) -> impl Iterator<Item = u64> + '_ {
        let end = end.max(first);
        self.blocks
            .range((
                Bound::Included((object, first)),
                Bound::Excluded((object, end)),
            ))
            .map(|((_, block), _)| *block)
    }

    /// True where `object` has none in `first..end`.
    pub fn none_in(&self, object: ObjectId, first: u64, end: u64) -> bool {
        self.range(object, first, end).next().is_none()
    }

    /// All blocks, in order of objects and blocks.
    pub fn iter(&self) -> impl Iterator<Item = (&(ObjectId, u64), &PendingBlock)> {
        self.blocks.iter()
    }
}
