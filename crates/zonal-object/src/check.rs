//! Checks every invariant of a target's store. One implementation serves tests, the simulator and
//! fsck. It reads a store in key order and needs no target that opens. Memory: two bits a unit, and
//! the pending blocks.

use crate::chunk::{BlockState, Chunk};
use crate::content_digest::ContentDigest;
use crate::edit::BLOCKS_END;
use crate::ids::{BLOCK, CHUNK_BLOCKS, ObjectId, Place, TargetConfig};
use crate::index_value::{self, ObjectHeader, TargetRecord};
use crate::key::{self, IndexKey};
use crate::note::{BlockBytes, Note};
use crate::target::StorageTarget;
use crate::unit_bitmap::UnitBitmap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zonal_basics::Hex;
use zonal_types::limits::BLOCK_BYTES;
use zonal_types::{ErrorCode, KvRead, codec_of};

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetDefect {
    /// The store could not be read.
    #[error("the index cannot be read: {0}")]
    Unreadable(ErrorCode),
    /// A key that no target writes, or a value that cannot be decoded.
    #[error("key {} or its value is damaged", Hex(.key))]
    Key {
        /// The key.
        key: Vec<u8>,
    },
    /// A note of the log cannot be decoded or does not fit the store.
    #[error("the allocations of the log do not fit the stored ones")]
    Note,
    /// The store's segment size differs from the target's configuration.
    #[error("segments have {found} units, not {expected}")]
    Geometry {
        /// Units of a segment in the store.
        found: u32,
        /// Units of a segment in the configuration.
        expected: u32,
    },
    /// Two records refer to one unit.
    #[error("unit {} of segment {} is referred to twice, also by block {block} of object {object}", .place.unit, .place.segment)]
    Twice {
        /// The unit.
        place: Place,
        /// The object whose record came second.
        object: ObjectId,
        /// Its block.
        block: u64,
    },
    /// A record refers to a unit outside of the target.
    #[error("block {block} of object {object} lies in segment {}, which is outside of the target", .place.segment)]
    Outside {
        /// The unit.
        place: Place,
        /// The object.
        object: ObjectId,
        /// Its block.
        block: u64,
    },
    /// Records refer to units that the allocator holds as free.
    #[error("{0} units are in use and not marked")]
    NotMarked(u64),
    /// The allocator holds units as used that no record refers to.
    #[error("{0} units are marked and not in use")]
    Leaked(u64),
    /// A chunk or pending block without a header.
    #[error("object {0} has no header")]
    NoHeader(ObjectId),
    /// A header's block count is wrong.
    #[error("object {object} counts {counted} blocks and has {found}")]
    Blocks {
        /// The object.
        object: ObjectId,
        /// The header's count.
        counted: u64,
        /// Blocks that exist.
        found: u64,
    },
    /// The number of objects is wrong.
    #[error("{counted} objects are counted, {found} exist")]
    Objects {
        /// The counter.
        counted: u64,
        /// Objects that exist.
        found: u64,
    },
    /// A tombstone of a live object: the next start would delete it.
    #[error("object {0} exists and has a tombstone")]
    Tombstone(ObjectId),
    /// An object whose deletion has begun, without the tombstone that makes a restart finish it.
    #[error("object {0} is half deleted and has no tombstone")]
    HalfDeleted(ObjectId),
}

codec_of!(TargetDefect {
    1 = Unreadable(code),
    2 = Key { key },
    3 = Note,
    4 = Geometry { found, expected },
    5 = Twice { place, object, block },
    6 = Outside { place, object, block },
    7 = NotMarked(units),
    8 = Leaked(units),
    9 = NoHeader(object),
    10 = Blocks { object, counted, found },
    11 = Objects { counted, found },
    12 = Tombstone(object),
    13 = HalfDeleted(object),
});

/// An object that a survey found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownObject {
    /// The object.
    pub object: ObjectId,
    /// Its length.
    pub bytes: u64,
    /// Blocks that are allocated, pending or lost.
    pub blocks: u64,
    /// Lost blocks among them.
    pub lost: u64,
    /// Number of the last truncation applied.
    pub truncate_seq: u64,
    /// Whether its deletion has begun.
    pub deleting: bool,
    /// The highest order of its changes; 0 where it has none.
    pub order: u64,
    /// Digest of its contents, which objects with equal bytes share; `None` where it is not known.
    pub digest: Option<u64>,
}

/// A finding of a survey.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SurveyItem {
    /// A broken invariant.
    Broken(TargetDefect),
    /// An object, with or without a header.
    Object(KnownObject),
    /// A written block that is not pending: object, block, place, and recorded crc32c.
    Block(ObjectId, u64, Place, u32),
    /// Lost blocks of an object: from the first to the one behind the last.
    Lost(ObjectId, u64, u64),
}

#[derive(Debug)]
struct Current {
    object: ObjectId,
    header: Option<ObjectHeader>,
    blocks: u64,
    lost: u64,
    end: u64,
    lost_run: Option<(u64, u64)>,
    digest: ContentDigest,
    /// Pending blocks of it that no chunk has listed so far.
    pending: BTreeSet<u64>,
}

/// A survey of a target's store, fed in key order.
#[derive(Debug)]
pub struct Survey {
    config: TargetConfig,
    notes: Option<Vec<Vec<u8>>>,
    /// Units that the allocator holds as used.
    pub marked: UnitBitmap,
    /// Units that records refer to.
    pub used: UnitBitmap,
    /// Pending blocks of the store and the log.
    pending: BTreeMap<(ObjectId, u64), Option<BlockBytes>>,
    /// Objects with pending blocks that have not been visited.
    pending_left: BTreeSet<ObjectId>,
    tombstones: BTreeSet<ObjectId>,
    counted: u64,
    /// Objects with a header.
    pub objects: u64,
    current: Option<Current>,
}

impl Survey {
    /// A survey of a store; `notes` are those of its log, in order.
    #[must_use]
    pub fn new(config: TargetConfig, notes: Vec<Vec<u8>>) -> Self {
        Self {
            config,
            notes: Some(notes),
            marked: UnitBitmap::default(),
            used: UnitBitmap::default(),
            pending: BTreeMap::new(),
            pending_left: BTreeSet::new(),
            tombstones: BTreeSet::new(),
            counted: 0,
            objects: 0,
            current: None,
        }
    }

    /// Pending blocks as of the end of the log.
    pub(crate) fn pending(&self) -> impl Iterator<Item = (ObjectId, u64, &BlockBytes)> {
        self.pending
            .iter()
            .filter_map(|((object, block), bytes)| Some((*object, *block, bytes.as_ref()?)))
    }

    /// Takes the next key. Keys that are not a target's are skipped.
    pub fn take(&mut self, key: &[u8], value: &[u8], tell: &mut dyn FnMut(SurveyItem)) {
        if key.first().is_some_and(|space| *space >= key::OTHERS) {
            return;
        }
        if key.first().is_some_and(|space| *space >= key::OBJECT) {
            self.apply_notes(tell);
        }
        if self.decode(key, value, tell).is_err() {
            if let Some(current) = &mut self.current {
                current.digest.make_unknown();
            }
            tell(SurveyItem::Broken(TargetDefect::Key { key: key.to_vec() }));
        }
    }

    /// Ends the survey after the last key.
    pub fn finish(&mut self, tell: &mut dyn FnMut(SurveyItem)) {
        self.apply_notes(tell);
        self.leave(tell);
        for object in std::mem::take(&mut self.pending_left) {
            self.enter(object, None);
            self.leave(tell);
        }
        let (unmarked, leaked) = (
            self.used.beyond(&self.marked),
            self.marked.beyond(&self.used),
        );
        if unmarked > 0 {
            tell(SurveyItem::Broken(TargetDefect::NotMarked(unmarked)));
        }
        if leaked > 0 {
            tell(SurveyItem::Broken(TargetDefect::Leaked(leaked)));
        }
        if self.counted != self.objects {
            let (counted, found) = (self.counted, self.objects);
            tell(SurveyItem::Broken(TargetDefect::Objects { counted, found }));
        }
    }

    fn apply_notes(&mut self, tell: &mut dyn FnMut(SurveyItem)) {
        let Some(notes) = self.notes.take() else {
            return;
        };
        let mut fits = true;
        for bytes in notes {
            let Ok(note) = Note::decode(&bytes) else {
                fits = false;
                continue;
            };
            let bound = u64::from(self.config.segment_units);
            let is_inside = |extent: &&crate::ids::Extent| {
                u64::from(extent.unit) + u64::from(extent.count) <= bound
            };
            for extent in note.taken.iter().filter(is_inside) {
                self.marked.set(extent, true);
            }
            for extent in note.freed.iter().filter(is_inside) {
                self.marked.set(extent, false);
            }
            for (object, (first, end)) in note.removed {
                let range = (object, first)..(object, end.max(first));
                let gone: Vec<_> = self.pending.range(range).map(|(at, _)| *at).collect();
                for at in gone {
                    self.pending.remove(&at);
                }
            }
            for (object, block, bytes) in note.put {
                self.pending.insert((object, block), Some(bytes));
            }
            self.counted = self.counted.saturating_add_signed(note.objects);
        }
        self.pending_left = self.pending.keys().map(|(object, _)| *object).collect();
        if !fits {
            tell(SurveyItem::Broken(TargetDefect::Note));
        }
    }

    fn decode(
        &mut self,
        key: &[u8],
        value: &[u8],
        tell: &mut dyn FnMut(SurveyItem),
    ) -> Result<(), ErrorCode> {
        match key::parse(key)? {
            IndexKey::Target => {
                let record: TargetRecord = index_value::decode(key, value)?;
                let expected = self.config.segment_units;
                if record.segment_units != expected {
                    let found = record.segment_units;
                    tell(SurveyItem::Broken(TargetDefect::Geometry {
                        found,
                        expected,
                    }));
                }
                self.counted = record.objects;
            }
            IndexKey::Segment(number) => {
                let body = index_value::open(key, value)?;
                let words = body
                    .chunks_exact(8)
                    .filter_map(|bytes| bytes.try_into().ok());
                let words: Vec<u64> = words.map(u64::from_le_bytes).collect();
                let expected = (self.config.segment_units as usize).div_ceil(64);
                if words.len() != expected || body.len() != expected * 8 {
                    return Err(ErrorCode::Corrupt);
                }
                self.marked.load(number, words);
            }
            IndexKey::Tombstone(object) => {
                index_value::open(key, value)?;
                self.tombstones.insert(object);
            }
            IndexKey::Fence(..) => {
                index_value::open(key, value)?;
            }
            IndexKey::Pending(object, block) if block < BLOCKS_END => {
                let bytes = index_value::open(key, value)?;
                let bytes: [u8; BLOCK_BYTES] =
                    bytes.try_into().map_err(|_error| ErrorCode::Corrupt)?;
                self.pending.insert((object, block), Some(Arc::new(bytes)));
            }
            IndexKey::Header(object) => {
                self.leave(tell);
                let header: ObjectHeader = index_value::decode(key, value)?;
                if !header.is_sound() {
                    return Err(ErrorCode::Corrupt);
                }
                self.enter(object, Some(header));
            }
            IndexKey::Chunk(object, number) => {
                if self.current.as_ref().is_none_or(|now| now.object != object) {
                    self.leave(tell);
                    self.enter(object, None);
                }
                let chunk = Chunk::decode(&self.config, key, value)?;
                let first = number.checked_mul(CHUNK_BLOCKS);
                let first = first.filter(|first| *first < BLOCKS_END);
                self.chunk(object, first.ok_or(ErrorCode::Corrupt)?, &chunk, tell);
            }
            IndexKey::Pending(..) => return Err(ErrorCode::Corrupt),
        }
        Ok(())
    }

    fn chunk(
        &mut self,
        object: ObjectId,
        first: u64,
        chunk: &Chunk,
        tell: &mut dyn FnMut(SurveyItem),
    ) {
        let Some(current) = &mut self.current else {
            return;
        };
        for (step, state) in chunk.blocks() {
            let block = first + step;
            let is_pending = current.pending.remove(&block);
            current.blocks += 1;
            current.end = block + 1;
            if !is_pending {
                current.digest.add_state(block, state);
            }
            if let Some(place) = state.place() {
                if place.segment >= self.config.segments && !self.marked.has(place) {
                    tell(SurveyItem::Broken(TargetDefect::Outside {
                        place,
                        object,
                        block,
                    }));
                } else if !self.used.insert(place) {
                    tell(SurveyItem::Broken(TargetDefect::Twice {
                        place,
                        object,
                        block,
                    }));
                }
            }
            match state {
                BlockState::Written(place, crc) if !is_pending => {
                    tell(SurveyItem::Block(object, block, place, crc));
                }
                BlockState::Lost if !is_pending => {
                    current.lost += 1;
                    current.lost_run = match current.lost_run {
                        Some((from, end)) if end == block => Some((from, block + 1)),
                        other => {
                            if let Some((from, end)) = other {
                                tell(SurveyItem::Lost(object, from, end));
                            }
                            Some((block, block + 1))
                        }
                    };
                }
                _ => {}
            }
        }
    }

    fn enter(&mut self, object: ObjectId, header: Option<ObjectHeader>) {
        self.pending_left.remove(&object);
        let pending = self.pending.range((object, 0)..=(object, u64::MAX));
        let mut digest = ContentDigest::default();
        if header.is_none() {
            digest.make_unknown();
        }
        for ((_, block), bytes) in pending.clone() {
            match bytes {
                Some(bytes) => digest.add_pending(*block, bytes),
                None => digest.make_unknown(),
            }
        }
        self.current = Some(Current {
            object,
            header,
            blocks: 0,
            lost: 0,
            end: 0,
            lost_run: None,
            digest,
            pending: pending.map(|((_, block), _)| *block).collect(),
        });
    }

    fn leave(&mut self, tell: &mut dyn FnMut(SurveyItem)) {
        let Some(current) = self.current.take() else {
            return;
        };
        let object = current.object;
        if let Some((from, end)) = current.lost_run {
            tell(SurveyItem::Lost(object, from, end));
        }
        let blocks = current.blocks + current.pending.len() as u64;
        let end = current
            .pending
            .last()
            .map_or(0, |block| block.saturating_add(1));
        let header = current.header.clone().unwrap_or_else(|| ObjectHeader {
            object_bytes: current.end.max(end).saturating_mul(BLOCK),
            blocks,
            ..ObjectHeader::default()
        });
        if current.header.is_none() {
            tell(SurveyItem::Broken(TargetDefect::NoHeader(object)));
        } else {
            self.objects += 1;
        }
        if header.blocks != blocks {
            tell(SurveyItem::Broken(TargetDefect::Blocks {
                object,
                counted: header.blocks,
                found: blocks,
            }));
        }
        match (self.tombstones.contains(&object), header.deleting) {
            (true, false) => tell(SurveyItem::Broken(TargetDefect::Tombstone(object))),
            (false, true) => tell(SurveyItem::Broken(TargetDefect::HalfDeleted(object))),
            _ => {}
        }
        tell(SurveyItem::Object(KnownObject {
            object,
            bytes: header.object_bytes,
            blocks,
            lost: current.lost,
            truncate_seq: header.truncate_seq,
            deleting: header.deleting,
            order: header.order,
            digest: current.digest.value(),
        }));
    }
}

impl StorageTarget {
    /// Checks invariants 1 to 3 of [`crate::target`], and the number of objects.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self, kv: &dyn KvRead) -> Result<(), TargetDefect> {
        let mut survey = Survey::new(self.config, Vec::new());
        for (segment, words) in self.space.live_words() {
            survey.marked.load(segment, words.to_vec());
        }
        survey.pending = self.pending.iter().map(|(at, _)| (*at, None)).collect();
        survey.tombstones.clone_from(&self.deleting);
        survey.counted = self.statfs().objects;
        let mut first = None;
        let mut tell = |told| {
            if let SurveyItem::Broken(broken) = told {
                first.get_or_insert(broken);
            }
        };
        kv.scan(&[key::OBJECT], &[key::OBJECT + 1], &mut |key, value| {
            survey.take(key, value, &mut tell);
            true
        })
        .map_err(TargetDefect::Unreadable)?;
        survey.finish(&mut tell);
        first.map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_behind_the_largest_file_are_damage() {
        let config = TargetConfig {
            segment_units: 100,
            segments: 2,
            pending_blocks_max: 8,
        };
        let object = ObjectId::default();
        let mut hole = Chunk::default();
        hole.set(63, BlockState::Lost);
        let mut survey = Survey::new(config, Vec::new());
        let mut broken = Vec::new();
        let mut tell = |told| {
            if let SurveyItem::Broken(TargetDefect::Key { key }) = told {
                broken.push(key);
            }
        };
        let mut bad = Vec::new();
        for (number, is_bad) in [
            (0, false),
            (u64::MAX / CHUNK_BLOCKS, true),
            (u64::MAX, true),
        ] {
            let (pending, chunk) = (key::pending(object, number), key::chunk(object, number));
            let block = index_value::seal(&pending, |out| out.extend_from_slice(&[0; BLOCK_BYTES]));
            survey.take(&pending, &block, &mut tell);
            survey.take(&chunk, &hole.encode(&chunk), &mut tell);
            if is_bad {
                bad.extend([pending, chunk]);
            }
        }
        survey.finish(&mut tell);
        assert_eq!(broken, bad);
        let none = BTreeMap::new();
        for key in bad {
            let broken = TargetDefect::Key { key: key.clone() };
            let changes = crate::repair::repair(&config, &none, &broken, &|_object| None);
            assert_eq!(changes, Ok(vec![zonal_types::KvChange::remove(key)]));
        }
    }
}
