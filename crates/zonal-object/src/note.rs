//! The note of a log record: space taken and freed, pending blocks; it goes beside the key-value
//! changes.
//!
//! The same code applies a note when it is made and when the log is replayed. So a restarted target
//! has the allocator and the pending blocks that it had.

use crate::chunk::{BlockState, Chunk};
use crate::ids::{Extent, ObjectId, Place, TargetConfig};
use crate::key::{self, IndexKey};
use std::sync::Arc;
use zonal_types::limits::BLOCK_BYTES;
use zonal_types::{Codec, CodecError, ErrorCode, KvChange, Reader};

const VERSION: u8 = 1;

/// A record for the log: key-value changes and a note, appended as a whole or not at all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EffectRecord {
    /// Changes of the index.
    pub changes: Vec<KvChange>,
    /// Encoded note, for [`crate::StorageTarget::open`] when the log is replayed.
    pub note: Vec<u8>,
}

/// Contents of one block.
pub(crate) type BlockBytes = Arc<[u8; BLOCK_BYTES]>;

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Note {
    /// Units that index records refer to from now on.
    pub taken: Vec<Extent>,
    /// Units that no index record refers to any more.
    pub freed: Vec<Extent>,
    /// Pending blocks that are removed: object, first block, block behind the last.
    pub removed: Vec<(ObjectId, (u64, u64))>,
    /// Pending blocks that are added or replaced.
    pub put: Vec<(ObjectId, u64, BlockBytes)>,
    /// Objects created minus objects deleted.
    pub objects: i64,
}

impl Note {
    pub fn remove(&mut self, object: ObjectId, block: u64) {
        if let Some((last, (_, end))) = self.removed.last_mut()
            && *last == object
            && *end == block
        {
            *end += 1;
            return;
        }
        self.removed.push((object, (block, block + 1)));
    }

    pub fn encode(&self) -> Vec<u8> {
        let bytes = 64 + self.put.len() * (BLOCK_BYTES + 18) + self.removed.len() * 26;
        let mut out = Vec::with_capacity(bytes + (self.taken.len() + self.freed.len()) * 12);
        out.push(VERSION);
        self.taken.put(&mut out);
        self.freed.put(&mut out);
        self.removed.put(&mut out);
        self.objects.put(&mut out);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a record has fewer blocks than a frame has bytes"
        )]
        let blocks = self.put.len() as u32;
        blocks.put(&mut out);
        for (object, block, bytes) in &self.put {
            object.put(&mut out);
            block.put(&mut out);
            out.extend_from_slice(bytes.as_slice());
        }
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<Self, ErrorCode> {
        Self::decode_body(bytes).map_err(|_error| ErrorCode::Corrupt)
    }

    fn decode_body(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut from = Reader::new(bytes);
        if u8::get(&mut from)? != VERSION {
            return Err(CodecError::BadValue);
        }
        let mut note = Self {
            taken: Vec::get(&mut from)?,
            freed: Vec::get(&mut from)?,
            removed: Vec::get(&mut from)?,
            objects: i64::get(&mut from)?,
            put: Vec::new(),
        };
        for _ in 0..u32::get(&mut from)? {
            let object = ObjectId::get(&mut from)?;
            let block = u64::get(&mut from)?;
            note.put
                .push((object, block, Arc::new(Codec::get(&mut from)?)));
        }
        if from.left() > 0 {
            return Err(CodecError::Trailing);
        }
        Ok(note)
    }
}

/// A block that a record wrote into a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCheck {
    /// Where it lies.
    pub place: Place,
    /// Its recorded crc32c.
    pub crc: u32,
}

/// The blocks that `record` wrote to segments.
///
/// After a power loss the shell verifies the blocks of each record that was not known to be synced,
/// in log order. From the first record with a mismatch on it drops all records, because later ones
/// build on the index values of earlier ones.
///
/// # Errors
/// `Corrupt` where the record is not a target's.
pub fn replay_checks(
    config: &TargetConfig,
    record: &EffectRecord,
) -> Result<Vec<BlockCheck>, ErrorCode> {
    let mut taken = Note::decode(&record.note)?.taken;
    taken.sort_unstable();
    let is_new = |place: Place| {
        let behind = taken
            .partition_point(|extent| (extent.segment, extent.unit) <= (place.segment, place.unit));
        behind
            .checked_sub(1)
            .and_then(|at| taken.get(at))
            .is_some_and(|extent| {
                extent.segment == place.segment && place.unit - extent.unit < extent.count
            })
    };
    let mut out = Vec::new();
    for change in &record.changes {
        let (IndexKey::Chunk(..), Some(value)) = (key::parse(&change.key)?, &change.value) else {
            continue;
        };
        let chunk = Chunk::decode(config, &change.key, value)?;
        for (block, place) in chunk.placed().filter(|(_, place)| is_new(*place)) {
            if let BlockState::Written(_, crc) = chunk.get(block) {
                out.push(BlockCheck { place, crc });
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_decode_back_and_damage_is_refused() {
        let object = ObjectId::default();
        let mut note = Note {
            taken: vec![Extent {
                segment: 1,
                unit: 2,
                count: 3,
            }],
            objects: -2,
            ..Note::default()
        };
        note.remove(object, 4);
        note.remove(object, 5);
        note.put.push((object, 9, Arc::new([7; BLOCK_BYTES])));
        assert_eq!(note.removed, vec![(object, (4, 6))]);
        let bytes = note.encode();
        assert_eq!(Note::decode(&bytes), Ok(note));
        for end in (0..bytes.len()).step_by(7) {
            assert_eq!(Note::decode(&bytes[..end]), Err(ErrorCode::Corrupt));
        }
    }
}
