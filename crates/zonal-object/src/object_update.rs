//! An update of one object before it is applied. It reads index records, changes them in memory,
//! and turns them into key-value changes and a note at the end. The target does not change until
//! then, so a failure in the middle leaves nothing behind.
//!
//! An update changes each block at most once.

use crate::chunk::{BlockState, Chunk};
use crate::ids::{BLOCK, CHUNK_BLOCKS, ObjectId, Place, TargetConfig, Truncation, push_place};
use crate::index_value::{self, ObjectHeader};
use crate::key::{self, IndexKey};
use crate::note::{BlockBytes, Note};
use crate::pending_blocks::PendingBlocks;
use std::collections::BTreeMap;
use zonal_types::limits::TRUNCATION_NUMBER_MAX;
use zonal_types::{ErrorCode, KvChange, KvRead};

#[derive(Debug)]
struct Loaded {
    chunk: Chunk,
    stored: bool,
    dirty: bool,
}

/// Changes of several objects for one record.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub changes: Vec<KvChange>,
    pub note: Note,
}

pub(crate) struct ObjectUpdate<'a> {
    kv: &'a dyn KvRead,
    config: &'a TargetConfig,
    pending: &'a PendingBlocks,
    /// Nothing of the object is pending: saves a look-up for each block.
    none_pending: bool,
    pub object: ObjectId,
    pub header: ObjectHeader,
    stored_header: Option<ObjectHeader>,
    chunks: BTreeMap<u64, Loaded>,
    note: Note,
    /// Change of the number of allocated blocks.
    pub blocks_delta: i64,
}

/// The stored header of `object`.
pub(crate) fn read_header(
    kv: &dyn KvRead,
    object: ObjectId,
) -> Result<Option<ObjectHeader>, ErrorCode> {
    let key = key::header(object);
    match kv.get(&key)? {
        Some(value) => {
            let header: ObjectHeader = index_value::decode(&key, &value)?;
            match header.is_sound() {
                true => Ok(Some(header)),
                false => Err(ErrorCode::Corrupt),
            }
        }
        None => Ok(None),
    }
}

/// The stored record of a chunk.
pub(crate) fn read_chunk(
    kv: &dyn KvRead,
    config: &TargetConfig,
    object: ObjectId,
    number: u64,
) -> Result<Option<Chunk>, ErrorCode> {
    let key = key::chunk(object, number);
    match kv.get(&key)? {
        Some(value) => Ok(Some(Chunk::decode(config, &key, &value)?)),
        None => Ok(None),
    }
}

impl<'a> ObjectUpdate<'a> {
    pub fn load(
        kv: &'a dyn KvRead,
        config: &'a TargetConfig,
        pending: &'a PendingBlocks,
        object: ObjectId,
    ) -> Result<Self, ErrorCode> {
        let stored_header = read_header(kv, object)?;
        Ok(Self {
            kv,
            config,
            pending,
            none_pending: pending.none_in(object, 0, u64::MAX),
            object,
            header: stored_header.clone().unwrap_or_default(),
            stored_header,
            chunks: BTreeMap::new(),
            note: Note::default(),
            blocks_delta: 0,
        })
    }

    pub fn exists(&self) -> bool {
        self.stored_header.is_some()
    }

    /// The object, and the highest order of its changes so far.
    pub fn ordered(&self) -> (ObjectId, u64) {
        let stored = self.stored_header.as_ref();
        (self.object, stored.map_or(0, |header| header.order))
    }

    /// Chunks loaded so far.
    pub fn loaded_chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Refuses a change by a sender that knows an older state of the file. `Ok(true)`: the object
    /// must be truncated first.
    pub fn check_truncation(&self, truncation: Truncation) -> Result<bool, ErrorCode> {
        if truncation.seq > TRUNCATION_NUMBER_MAX {
            return Err(ErrorCode::Invalid);
        }
        match &self.stored_header {
            Some(header) if header.deleting => Err(ErrorCode::Stale),
            Some(header) if header.truncate_seq > truncation.seq => {
                zonal_types::mark!(StaleTruncation);
                Err(ErrorCode::StaleTruncate)
            }
            Some(header) => Ok(header.truncate_seq < truncation.seq),
            None => Ok(false),
        }
    }

    fn loaded(&mut self, number: u64) -> Result<&mut Loaded, ErrorCode> {
        // Two look-ups, because an entry cannot be held across the fallible read.
        if !self.chunks.contains_key(&number) {
            let found = read_chunk(self.kv, self.config, self.object, number)?;
            let loaded = Loaded {
                stored: found.is_some(),
                chunk: found.unwrap_or_default(),
                dirty: false,
            };
            self.chunks.insert(number, loaded);
        }
        self.chunks.get_mut(&number).ok_or(ErrorCode::Io)
    }

    /// Stored state of a block; a pending block takes precedence over it.
    pub fn stored(&mut self, block: u64) -> Result<BlockState, ErrorCode> {
        Ok(self.loaded(block / CHUNK_BLOCKS)?.chunk.get(block))
    }

    pub fn pending_bytes(&self, block: u64) -> Option<BlockBytes> {
        let found = self.pending.get(self.object, block)?;
        Some(found.bytes.clone())
    }

    fn is_pending(&self, block: u64) -> bool {
        !self.none_pending && self.pending.get(self.object, block).is_some()
    }

    /// Whether the block has a place or is pending.
    pub fn is_allocated(&mut self, block: u64) -> Result<bool, ErrorCode> {
        Ok(self.is_pending(block) || self.stored(block)? != BlockState::Hole)
    }

    /// Sets the stored state of a block as its newest: frees its old place and drops pending
    /// contents.
    pub fn set(&mut self, block: u64, state: BlockState) -> Result<(), ErrorCode> {
        let was_pending = self.is_pending(block);
        let loaded = self.loaded(block / CHUNK_BLOCKS)?;
        let old = loaded.chunk.set(block, state);
        loaded.dirty |= old != state;
        let was_allocated = was_pending || old != BlockState::Hole;
        if old.place() != state.place() {
            if let Some(place) = old.place() {
                push_place(&mut self.note.freed, place);
            }
            if let Some(place) = state.place() {
                push_place(&mut self.note.taken, place);
            }
        }
        if was_pending {
            self.note.remove(self.object, block);
        }
        self.blocks_delta += i64::from(state != BlockState::Hole) - i64::from(was_allocated);
        Ok(())
    }

    /// Sets a block as written at a new place.
    pub fn set_written(&mut self, block: u64, place: Place, crc: u32) -> Result<(), ErrorCode> {
        self.set(block, BlockState::Written(place, crc))
    }

    /// Gives a block new contents through the log.
    pub fn put_pending(&mut self, block: u64, bytes: BlockBytes) -> Result<(), ErrorCode> {
        self.blocks_delta += i64::from(!self.is_allocated(block)?);
        self.note.put.push((self.object, block, bytes));
        Ok(())
    }

    /// Makes `first..end` holes, changing at most `limit` stored chunks. Returns the block behind
    /// the last one done: `end` when all is done.
    pub fn clear(&mut self, first: u64, end: u64, limit: usize) -> Result<u64, ErrorCode> {
        if first >= end {
            return Ok(end);
        }
        let mut found = Vec::new();
        let mut stop = None;
        let mut failed = None;
        let from = key::chunk(self.object, first / CHUNK_BLOCKS);
        let to = key::chunk(self.object, (end - 1) / CHUNK_BLOCKS + 1);
        self.kv.scan(&from, &to, &mut |key, value| {
            let Ok(IndexKey::Chunk(_, number)) = key::parse(key) else {
                failed = Some(ErrorCode::Corrupt);
                return false;
            };
            if found.len() >= limit {
                stop = Some(number.saturating_mul(CHUNK_BLOCKS));
                return false;
            }
            match Chunk::decode(self.config, key, value) {
                Ok(chunk) => found.push((number, chunk)),
                Err(error) => failed = Some(error),
            }
            failed.is_none()
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        let done = stop.unwrap_or(end).clamp(first, end);
        for (number, chunk) in found {
            let start = number * CHUNK_BLOCKS;
            let loaded = Loaded {
                chunk,
                stored: true,
                dirty: false,
            };
            self.chunks.entry(number).or_insert(loaded);
            for block in first.max(start)..end.min(start + CHUNK_BLOCKS) {
                if self.stored(block)? != BlockState::Hole {
                    self.set(block, BlockState::Hole)?;
                }
            }
        }
        // Pending blocks without a place. The note has the blocks cleared above already.
        let pending: Vec<u64> = self.pending.range(self.object, first, done).collect();
        for block in pending {
            let seen = self
                .note
                .removed
                .iter()
                .any(|(_, (from, to))| (*from..*to).contains(&block));
            if !seen {
                self.note.remove(self.object, block);
                self.blocks_delta -= 1;
            }
        }
        Ok(done)
    }

    /// Raises the length of the object to at least `end`.
    pub fn grow(&mut self, end: u64) {
        self.header.object_bytes = self.header.object_bytes.max(end);
    }

    /// Change of allocated bytes.
    pub fn allocated_delta(&self) -> i64 {
        self.blocks_delta.saturating_mul(BLOCK.cast_signed())
    }

    /// Writes the changes into `batch`.
    pub fn finish(mut self, batch: &mut Batch) {
        let key = key::header(self.object);
        self.header.blocks = self.header.blocks.saturating_add_signed(self.blocks_delta);
        if self.stored_header.as_ref() != Some(&self.header) {
            let value = index_value::encode(&key, &self.header);
            batch.changes.push(KvChange::put(key, value));
            batch.note.objects += i64::from(self.stored_header.is_none());
        }
        self.finish_chunks(batch);
    }

    /// Writes the changes into `batch`, with the object's header removed.
    pub fn finish_removed(self, batch: &mut Batch) {
        if self.exists() {
            batch
                .changes
                .push(KvChange::remove(key::header(self.object)));
            batch.note.objects -= 1;
        }
        self.finish_chunks(batch);
    }

    fn finish_chunks(self, batch: &mut Batch) {
        for (number, mut loaded) in self.chunks {
            if !loaded.dirty {
                continue;
            }
            let key = key::chunk(self.object, number);
            if !loaded.chunk.is_empty() {
                loaded.chunk.version += 1;
                let value = loaded.chunk.encode(&key);
                batch.changes.push(KvChange::put(key, value));
            } else if loaded.stored {
                batch.changes.push(KvChange::remove(key));
            }
        }
        let note = &mut batch.note;
        note.taken.extend(self.note.taken);
        note.freed.extend(self.note.freed);
        note.removed.extend(self.note.removed);
        note.put.extend(self.note.put);
    }
}
