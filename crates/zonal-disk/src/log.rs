//! The circular log: headers, placing of records, and reading after a crash.
//!
//! A position (LSN) counts bytes since formatting and never goes back. It lies in the file at `lsn
//! % capacity`. Records begin at multiples of [`ALIGN`], so that a header never straddles a sector
//! and can be rewritten atomically. They never wrap: a pad fills the rest of a lap.
//!
//! A valid header proves the following, on which replay relies:
//! - `lsn` equals the position: it is not a left-over of an earlier lap.
//! - `store` equals ours: it is not a left-over of an earlier format.
//! - `epoch` is not below the predecessor's: it is not of a time line that a crash ended. Each
//!   opening starts a new epoch, made durable in the index before the first append.
//! - `synced`: everything below it was durable when this header was written.

pub mod record;

use crate::files::disk::LogFile;
use crate::files::error::DiskError;
use crate::log::record::{Lsn, MAX_PAYLOAD};

/// Bytes of a record's header.
pub const HEADER: usize = 64;
/// Records begin at multiples of this.
pub const ALIGN: usize = 64;
/// Smallest log file, in bytes.
pub const MIN_BYTES: u64 = 1 << 20;
/// Largest log file, in bytes.
pub const MAX_BYTES: u64 = 16 << 30;

/// Bound of all positions, far from overflow, so that sums of positions need no checks.
pub(crate) const LSN_END: u64 = 1 << 62;

const MAGIC: u32 = u32::from_le_bytes(*b"ZLOG");
const VERSION: u16 = 1;
const FLAG_DROPPED: u8 = 1;
const CRC_AT: usize = HEADER - 4;
const WINDOW: usize = 1 << 20;

/// The kind of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordKind {
    /// A record with its payload.
    Record,
    /// No record: the rest of the lap is skipped.
    Pad,
}

/// The fixed part before each payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordHeader {
    /// The kind.
    pub kind: RecordKind,
    /// A replay has dropped this record, because its caller's data never arrived.
    pub dropped: bool,
    /// Position of this header.
    pub lsn: u64,
    /// Everything below this position was durable when the header was written.
    pub synced: u64,
    /// Number of the opening that wrote the record.
    pub epoch: u64,
    /// Bytes of payload.
    pub payload_len: u32,
    /// crc32c of the payload (of a pad: 0).
    pub payload_crc: u32,
    /// Tag of the store.
    pub store: u64,
}

impl RecordHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..4].copy_from_slice(&MAGIC.to_le_bytes());
        out[4] = match self.kind {
            RecordKind::Record => 1,
            RecordKind::Pad => 2,
        };
        out[5] = if self.dropped { FLAG_DROPPED } else { 0 };
        out[6..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..16].copy_from_slice(&self.lsn.to_le_bytes());
        out[16..24].copy_from_slice(&self.synced.to_le_bytes());
        out[24..32].copy_from_slice(&self.epoch.to_le_bytes());
        out[32..36].copy_from_slice(&self.payload_len.to_le_bytes());
        out[36..40].copy_from_slice(&self.payload_crc.to_le_bytes());
        out[40..48].copy_from_slice(&self.store.to_le_bytes());
        let crc = crc_fast::crc32_iscsi(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Decodes a header; `None` for bytes that this program does not write.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER] = bytes.get(..HEADER)?.try_into().ok()?;
        if u32_at(bytes, 0) != MAGIC {
            return None;
        }
        let kind = match bytes[4] {
            1 => RecordKind::Record,
            2 => RecordKind::Pad,
            _ => return None,
        };
        let header = Self {
            kind,
            dropped: bytes[5] & FLAG_DROPPED != 0,
            lsn: u64_at(bytes, 8),
            synced: u64_at(bytes, 16),
            epoch: u64_at(bytes, 24),
            payload_len: u32_at(bytes, 32),
            payload_crc: u32_at(bytes, 36),
            store: u64_at(bytes, 40),
        };
        let bounded = kind == RecordKind::Pad || header.payload_len as usize <= MAX_PAYLOAD;
        let sane = header.synced <= header.lsn && header.lsn < LSN_END;
        // Magic, version, flags, reserved bytes and checksum at once.
        (bounded && sane && header.encode() == *bytes).then_some(header)
    }
}

fn u32_at(bytes: &[u8; HEADER], at: usize) -> u32 {
    let mut field = [0; 4];
    field.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(field)
}

fn u64_at(bytes: &[u8; HEADER], at: usize) -> u64 {
    let mut field = [0; 8];
    field.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(field)
}

/// Bytes in the log of a record with `payload_len` bytes of payload.
#[must_use]
pub fn record_size(payload_len: usize) -> usize {
    (HEADER + payload_len).next_multiple_of(ALIGN)
}

/// Most payload bytes of a record in a log of `capacity` bytes: four records always fit.
#[must_use]
pub fn payload_limit(capacity: u64) -> usize {
    let quarter = usize::try_from(capacity / 4).unwrap_or(usize::MAX);
    quarter.saturating_sub(HEADER + ALIGN).min(MAX_PAYLOAD)
}

/// Where the next record of `size` bytes goes: bytes of padding before it, and its position.
#[must_use]
pub fn place(head: u64, size: usize, capacity: u64) -> (u64, u64) {
    let rest = capacity - head % capacity;
    let (pad, position) = if size as u64 > rest {
        (rest, head + rest)
    } else {
        (0, head)
    };
    assert!(
        position % capacity + size as u64 <= capacity,
        "a record of the log never wraps"
    );
    (pad, position)
}

/// Whether `bytes` is a usable length of a log.
#[must_use]
pub fn valid_capacity(bytes: u64) -> bool {
    (MIN_BYTES..=MAX_BYTES).contains(&bytes) && bytes.is_multiple_of(4096)
}

/// State that an opening knows before it reads the log.
#[derive(Debug, Clone, Copy)]
pub struct Origin {
    /// Length of the log file.
    pub capacity: u64,
    /// Tag of the store.
    pub store: u64,
    /// The index holds everything below this position.
    pub applied: u64,
    /// Epoch of the checkpoint that applied it: later records are not older.
    pub applied_epoch: u64,
    /// Highest epoch that may have written records.
    pub epoch: u64,
    /// The kernel has kept all writes, flushed or not.
    pub kept: bool,
}

/// A record or pad of the log.
pub(crate) struct LogItem {
    pub header: RecordHeader,
    /// Where the next header is.
    pub end: u64,
}

/// The end of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogExtent {
    /// Where the next record goes.
    pub end: u64,
    /// Everything below this position is known to have been durable.
    pub synced: u64,
}

/// Reads a log through a window of 1 MiB.
pub(crate) struct Reader<'a> {
    file: &'a dyn LogFile,
    origin: Origin,
    window: Vec<u8>,
    window_at: u64,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(file: &'a dyn LogFile, origin: Origin) -> Self {
        Self {
            file,
            origin,
            window: Vec::new(),
            window_at: 0,
        }
    }

    /// `len` bytes at file offset `at`; the caller has checked that they lie in the file.
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8], DiskError> {
        let inside =
            at >= self.window_at && at + len as u64 <= self.window_at + self.window.len() as u64;
        if !inside {
            let left = usize::try_from(self.origin.capacity - at).unwrap_or(usize::MAX);
            self.window.clear();
            self.window.resize(len.max(WINDOW.min(left)), 0);
            self.window_at = at;
            if let Err(error) = self.file.read_at(at, &mut self.window) {
                self.window.clear();
                return Err(DiskError::io("read the log", error));
            }
        }
        let start = usize::try_from(at - self.window_at).unwrap_or(usize::MAX);
        let found = self.window.get(start..start.saturating_add(len));
        found.ok_or_else(|| DiskError::Corrupt("log: read outside of the file".into()))
    }

    /// The valid record or pad at `position`; `None` where the log ends.
    pub(crate) fn at(
        &mut self,
        position: u64,
        min_epoch: u64,
    ) -> Result<Option<LogItem>, DiskError> {
        let capacity = self.origin.capacity;
        let offset = position % capacity;
        let rest = capacity - offset;
        let Some(header) = RecordHeader::decode(self.bytes(offset, HEADER)?) else {
            return Ok(None);
        };
        let ours = header.lsn == position
            && header.store == self.origin.store
            && (min_epoch..=self.origin.epoch).contains(&header.epoch);
        let size = (HEADER as u64 + u64::from(header.payload_len)).next_multiple_of(ALIGN as u64);
        if !ours || size > rest || position + size > self.origin.applied + capacity {
            return Ok(None);
        }
        match header.kind {
            RecordKind::Pad if size != rest => return Ok(None),
            RecordKind::Pad => {}
            RecordKind::Record => {
                let payload = self.payload(&header)?;
                if crc_fast::crc32_iscsi(payload) != header.payload_crc {
                    return Ok(None);
                }
            }
        }
        Ok(Some(LogItem {
            header,
            end: position + size,
        }))
    }

    /// The payload after a header that was found valid.
    pub(crate) fn payload(&mut self, header: &RecordHeader) -> Result<&[u8], DiskError> {
        let offset = header.lsn % self.origin.capacity + HEADER as u64;
        self.bytes(offset, header.payload_len as usize)
    }

    /// How far the records are contiguous, and the epoch of the last one.
    pub(crate) fn reach(&mut self) -> Result<(LogExtent, u64), DiskError> {
        let mut extent = LogExtent {
            end: self.origin.applied,
            synced: self.origin.applied,
        };
        let mut epoch = self.origin.applied_epoch;
        while let Some(found) = self.at(extent.end, epoch)? {
            extent.end = found.end;
            extent.synced = extent.synced.max(found.header.synced);
            epoch = found.header.epoch;
        }
        Ok((extent, epoch))
    }

    /// Finds the end of the log and how much of it was durable.
    ///
    /// # Errors
    /// `Corrupt` where records are missing that were once durable: ignoring that would lose
    /// acknowledged records.
    pub(crate) fn extent(&mut self) -> Result<LogExtent, DiskError> {
        let (extent, epoch) = self.reach()?;
        match self.proof_beyond(extent.end, epoch)? {
            Some(lsn) => Err(DiskError::Corrupt(format!(
                "log: no valid record at {}, but one at {lsn} proves it was there",
                extent.end
            ))),
            None => Ok(extent),
        }
    }

    /// Searches beyond the end for a header that proves that more was once durable; returns its
    /// position.
    pub(crate) fn proof_beyond(&mut self, end: u64, epoch: u64) -> Result<Option<u64>, DiskError> {
        let mut position = end;
        while position < self.origin.applied + self.origin.capacity {
            let offset = position % self.origin.capacity;
            if let Some(header) = RecordHeader::decode(self.bytes(offset, HEADER)?)
                && header.store == self.origin.store
                && header.lsn % self.origin.capacity == offset
            {
                let later_lap = header.lsn > position;
                let later_epoch = header.epoch > self.origin.epoch;
                let here = header.lsn == position;
                let claims = here && header.epoch >= epoch && header.synced > end;
                // Appends are in order: a later record proves that the one before it was written
                // whole.
                let follows =
                    self.origin.kept && here && position > end && header.epoch == self.origin.epoch;
                if later_lap || later_epoch || claims || follows {
                    return Ok(Some(header.lsn));
                }
            }
            position += ALIGN as u64;
        }
        Ok(None)
    }
}

/// Marks the record under `header` as dropped, in place; durable with the next sync.
pub(crate) fn mark_dropped(
    file: &dyn LogFile,
    header: &RecordHeader,
    capacity: u64,
) -> Result<(), DiskError> {
    let marked = RecordHeader {
        dropped: true,
        ..*header
    };
    file.write_at(header.lsn % capacity, &marked.encode())
        .map_err(|error| DiskError::io("write the log", error))
}

impl LogExtent {
    /// The end, as the position that names the last record.
    #[must_use]
    pub fn last(&self) -> Lsn {
        Lsn(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a record of the log never wraps")]
    fn a_record_longer_than_the_log_is_refused() {
        let _ = place(64, 8192, 4096);
    }

    #[test]
    fn a_header_far_beyond_any_log_is_none() {
        let header = |lsn| RecordHeader {
            kind: RecordKind::Record,
            dropped: false,
            lsn,
            synced: 0,
            epoch: 1,
            payload_len: 100,
            payload_crc: 0,
            store: 7,
        };
        let known = header(LSN_END - 1);
        assert_eq!(RecordHeader::decode(&known.encode()), Some(known));
        for lsn in [LSN_END, u64::MAX - 63, u64::MAX] {
            assert_eq!(RecordHeader::decode(&header(lsn).encode()), None);
        }
    }
}
