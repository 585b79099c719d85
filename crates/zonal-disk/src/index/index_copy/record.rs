//! A record of the copy: a header, entries, and the last key of its slice.
//!
//! docs/on-disk-format.md, section "Copy of the index", has the same table.

use crate::index::IndexProgress;
use crate::log::{ALIGN, LSN_END};

/// Bytes of a header.
pub(crate) const HEADER: usize = 72;
/// Bytes before each key.
const ENTRY: usize = 8;
/// In place of a value's length: the key was removed.
const REMOVED: u32 = u32::MAX;
/// Longest key or value that is accepted.
const LENGTH_MAX: u32 = 64 << 20;

const MAGIC: u32 = u32::from_le_bytes(*b"ZCPY");
const VERSION: u16 = 1;
const FLAG_WHOLE: u16 = 1;
const CRC_AT: usize = HEADER - 4;

/// The fixed part before entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// The slice of this record ends the cycle.
    pub whole: bool,
    /// Tag of the store.
    pub store: u64,
    /// Number of the cycle; all records of one file have the same.
    pub cycle: u64,
    /// Number of the record, one more than that of the record before.
    pub sequence: u64,
    /// The log's end at the checkpoint.
    pub applied: u64,
    /// Epoch of the checkpoint.
    pub applied_epoch: u64,
    /// Bytes behind the header.
    pub body: u64,
    /// Number of entries that belong to the slice; the others are changes.
    pub slice: u32,
    /// Bytes of the key at the body's end.
    pub upto: u32,
    /// crc32c of the body.
    pub crc: u32,
}

impl Header {
    /// The header's bytes.
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4..6].copy_from_slice(&VERSION.to_le_bytes());
        let flags = if self.whole { FLAG_WHOLE } else { 0 };
        out[6..8].copy_from_slice(&flags.to_le_bytes());
        let words = [
            self.store,
            self.cycle,
            self.sequence,
            self.applied,
            self.applied_epoch,
            self.body,
        ];
        for (step, word) in words.iter().enumerate() {
            out[8 + 8 * step..16 + 8 * step].copy_from_slice(&word.to_le_bytes());
        }
        for (step, half) in [self.slice, self.upto, self.crc].iter().enumerate() {
            out[56 + 4 * step..60 + 4 * step].copy_from_slice(&half.to_le_bytes());
        }
        let crc = crc_fast::crc32_iscsi(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a header; `None` for bytes that this program does not write.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let header = Self {
            whole: u16::from(bytes[6] & 1) == FLAG_WHOLE,
            store: word(8)?,
            cycle: word(16)?,
            sequence: word(24)?,
            applied: word(32)?,
            applied_epoch: word(40)?,
            body: word(48)?,
            slice: half(56)?,
            upto: half(60)?,
            crc: half(64)?,
        };
        let is_sane = header.applied < LSN_END
            && header.applied.is_multiple_of(ALIGN as u64)
            && header.sequence < 1 << 62
            && header.cycle < 1 << 62
            && header.applied_epoch < 1 << 62
            && header.body < 1 << 62
            && u64::from(header.upto) <= header.body
            && header.upto <= LENGTH_MAX;
        // Magic, version, flags and checksum at once.
        (is_sane && header.encode() == *bytes).then_some(header)
    }

    /// Whether this record ends with the state of an index at `progress`.
    pub(crate) fn is_of(&self, progress: &IndexProgress) -> bool {
        self.sequence == progress.copy
            && self.applied == progress.applied
            && self.applied_epoch == progress.applied_epoch
    }
}

/// Appends an entry to `out`; no value means a removal.
pub(crate) fn put(out: &mut Vec<u8>, key: &[u8], value: Option<&[u8]>) {
    let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(LENGTH_MAX + 1);
    out.extend_from_slice(&length(key).to_le_bytes());
    out.extend_from_slice(&value.map_or(REMOVED, length).to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value.unwrap_or_default());
}

/// The lengths of an entry's key and value.
pub(crate) fn lengths(head: [u8; ENTRY]) -> Option<(usize, Option<usize>)> {
    let [a, b, c, d, e, f, g, h] = head;
    let (key, value) = (
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    );
    if key > LENGTH_MAX || (value > LENGTH_MAX && value != REMOVED) {
        return None;
    }
    Some((key as usize, (value != REMOVED).then_some(value as usize)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        Header {
            whole: true,
            store: 7,
            cycle: 3,
            sequence: 19,
            applied: 4096,
            applied_epoch: 5,
            body: 1000,
            slice: 4,
            upto: 20,
            crc: 0xdead_beef,
        }
    }

    #[test]
    fn a_header_decodes_back_and_every_flipped_bit_is_damage() {
        let bytes = sample().encode();
        assert_eq!(Header::decode(&bytes), Some(sample()));
        for bit in 0..HEADER * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), None, "bit {bit}");
        }
    }

    #[test]
    fn a_header_beyond_bounds_is_none() {
        let sound = sample();
        for bad in [
            Header {
                upto: 1001,
                ..sound
            },
            Header {
                applied: 4097,
                ..sound
            },
            Header {
                applied: LSN_END,
                ..sound
            },
            Header {
                body: 1 << 62,
                ..sound
            },
            Header {
                cycle: u64::MAX,
                ..sound
            },
            Header {
                sequence: u64::MAX,
                ..sound
            },
            Header {
                applied_epoch: u64::MAX,
                ..sound
            },
        ] {
            assert_eq!(Header::decode(&bad.encode()), None, "{bad:?}");
        }
    }

    #[test]
    fn lengths_of_entries_decode_back() {
        for value in [None, Some(b"".as_slice()), Some(b"value")] {
            let mut out = Vec::new();
            put(&mut out, b"key", value);
            let head = out[..ENTRY].try_into().ok();
            assert_eq!(head.and_then(lengths), Some((3, value.map(<[u8]>::len))));
        }
        assert_eq!(lengths([0xff; ENTRY]), None);
        assert_eq!(lengths([1, 0, 0, 0, 0, 0, 0, 0x70]), None);
    }
}
