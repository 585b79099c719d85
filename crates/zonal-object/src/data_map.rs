//! Data map: the ranges of an object that hold data (SEEK_DATA, SEEK_HOLE).

use crate::chunk::Chunk;
use crate::ids::{BLOCK, CHUNK_BLOCKS, ObjectId, Truncation};
use crate::key::{self, IndexKey};
use crate::object_update::read_header;
use crate::target::StorageTarget;
use zonal_types::{ErrorCode, KvRead};

/// Data ranges of an object.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DataMap {
    /// (offset, length), in order, merged.
    pub ranges: Vec<(u64, u64)>,
    /// Length of the object.
    pub object_bytes: u64,
    /// The map is complete up to this offset (`u64::MAX`: all of it).
    pub known_to: u64,
}

struct Sink {
    ranges: Vec<(u64, u64)>,
    limit: usize,
    full: bool,
}

impl Sink {
    /// Adds one block; false when there is no room for another range.
    fn push(&mut self, block: u64) -> bool {
        let at = block * BLOCK;
        let room = self.ranges.len() < self.limit;
        let behind = self
            .ranges
            .last()
            .map_or(0, |(start, length)| start + length);
        assert!(
            behind <= at,
            "ranges of a data map are sorted and do not overlap"
        );
        match self.ranges.last_mut() {
            Some((start, length)) if *start + *length == at => *length += BLOCK,
            _ if room => self.ranges.push((at, BLOCK)),
            _ => self.full = true,
        }
        !self.full
    }
}

impl StorageTarget {
    /// Ranges of `offset..end` with written data, at most `limit`; allocated space without data is
    /// a hole.
    ///
    /// Costs a walk over the chunks of the range up to the limit.
    ///
    /// # Errors
    /// `Corrupt`; errors of `kv`.
    pub fn map(
        &self,
        kv: &dyn KvRead,
        object: ObjectId,
        truncation: Truncation,
        offset: u64,
        end: u64,
        limit: usize,
    ) -> Result<DataMap, ErrorCode> {
        let object_bytes = match read_header(kv, object)? {
            Some(header) if header.deleting => 0,
            Some(header) if truncation.seq > header.truncate_seq => {
                header.object_bytes.min(truncation.bytes)
            }
            Some(header) => header.object_bytes,
            None => 0,
        };
        let stop = end.min(object_bytes);
        if offset >= stop || limit == 0 {
            let known_to = if limit == 0 { offset } else { u64::MAX };
            return Ok(DataMap {
                object_bytes,
                known_to,
                ..DataMap::default()
            });
        }
        let mut sink = Sink {
            ranges: Vec::new(),
            limit,
            full: false,
        };
        self.walk(kv, object, offset / BLOCK, stop.div_ceil(BLOCK), &mut sink)?;
        let known_to = match sink.ranges.last() {
            Some((start, length)) if sink.full => start + length,
            _ if end < object_bytes => end,
            _ => u64::MAX,
        };
        let clip = |(start, length): (u64, u64)| {
            let from = start.max(offset);
            (from, (start + length).min(stop).saturating_sub(from))
        };
        Ok(DataMap {
            ranges: sink.ranges.into_iter().map(clip).collect(),
            object_bytes,
            known_to,
        })
    }

    /// Passes the data blocks of `first..behind`, stored and pending, to the sink in order.
    fn walk(
        &self,
        kv: &dyn KvRead,
        object: ObjectId,
        first: u64,
        behind: u64,
        sink: &mut Sink,
    ) -> Result<(), ErrorCode> {
        let mut pending = self.pending.range(object, first, behind).peekable();
        let mut failed = None;
        let from = key::chunk(object, first / CHUNK_BLOCKS);
        let to = key::chunk(object, (behind - 1) / CHUNK_BLOCKS + 1);
        kv.scan(&from, &to, &mut |key, value| {
            let (number, chunk) = match (key::parse(key), Chunk::decode(&self.config, key, value)) {
                (Ok(IndexKey::Chunk(_, number)), Ok(chunk)) => (number, chunk),
                (_, Err(error)) | (Err(error), _) => {
                    failed = Some(error);
                    return false;
                }
                _ => {
                    failed = Some(ErrorCode::Corrupt);
                    return false;
                }
            };
            let start = number.saturating_mul(CHUNK_BLOCKS);
            while let Some(block) = pending.next_if(|block| *block < start) {
                if !sink.push(block) {
                    return false;
                }
            }
            for block in start.max(first)..(start + CHUNK_BLOCKS).min(behind) {
                let is_pending = pending.next_if_eq(&block).is_some();
                let is_written = chunk.written() >> (block - start) & 1 == 1;
                if (is_pending || is_written) && !sink.push(block) {
                    return false;
                }
            }
            true
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
        for block in pending {
            if sink.full || !sink.push(block) {
                break;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "ranges of a data map are sorted and do not overlap")]
    fn a_block_that_comes_twice_is_refused() {
        let mut sink = Sink {
            ranges: Vec::new(),
            limit: 8,
            full: false,
        };
        sink.push(3);
        sink.push(3);
    }
}
