//! The copy of an index: written by checkpoints, read when the index is damaged.
//!
//! A checkpoint appends one record: a *slice* (the next entries of the index before the checkpoint,
//! in key order) and the checkpoint's own changes. When slices have reached the last key, the cycle
//! is complete and the next one begins in the other file. So either one file has everything, or the
//! older one and the changes of the newer one do.
//!
//! Invariants:
//! - A record is durable before the index commits; the commit names it ([`IndexProgress::copy`]).
//! - The file of a complete cycle stays unchanged until the next cycle is complete. Exceptions:
//!   space is short, or [`WAITING_BYTES_MAX`] of changes wait behind it.
//! - No entry that fails its checksum is copied.
//!
//! Costs: a checkpoint's changes are written twice (once as a slice of the same size). One more
//! flush a checkpoint, and one of the folder a cycle. Space: at most four times the entries of the
//! index.

mod chain;
mod record;
pub(crate) mod restore;
mod walk;

pub use walk::{CopyItem, walk_copy};

use crate::files::error::DiskError;
use crate::files::{COPIES, StoreDir, StoreFile};
use crate::index::overlay::Overlay;
use crate::index::{IndexProgress, Snapshot};
use chain::Chain;
use record::{HEADER, Header};
use std::io;

/// Least bytes of a slice, where there are that many.
const SLICE_BYTES_MIN: usize = 256 << 10;
/// Most bytes of changes behind a complete copy while the next cycle waits for an unreadable entry.
pub(crate) const WAITING_BYTES_MAX: u64 = 4 << 30;
/// Bytes written at once.
const BUFFER: usize = 1 << 20;

/// The copy of one index.
#[derive(Debug)]
pub(crate) struct IndexCopy {
    dir: StoreDir,
    store: u64,
    /// State that belongs to the index's last commit; `None`: a cycle begins.
    at: Option<At>,
    /// Not below the cycle of any record that may be in the files.
    cycle: u64,
    sequence: u64,
    /// Bytes written since the last slice that could be read.
    waiting: u64,
}

/// Where the last record ends.
#[derive(Debug, Clone)]
struct At {
    cycle: u64,
    end: u64,
    /// The slices so far reach this key; `None`: the cycle is complete.
    upto: Option<Vec<u8>>,
}

/// A record that no commit of the index names yet.
#[derive(Debug)]
pub(crate) struct Written {
    at: At,
    sequence: u64,
    waiting: u64,
}

impl Written {
    /// The number that the commit has to name.
    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl IndexCopy {
    /// Opens the copy in the store's folder that belongs to an index at `progress`. Other records
    /// will be overwritten.
    pub(crate) fn open(dir: &StoreDir, store: u64, progress: &IndexProgress) -> Self {
        let mut copy = Self {
            dir: dir.clone(),
            store,
            at: None,
            cycle: 0,
            sequence: progress.copy,
            waiting: 0,
        };
        for number in 0..COPIES.len() {
            // An unreadable file counts as no copy; the index is sound without it.
            let Ok(Some(chain)) = Chain::read(dir.path(), number, store) else {
                continue;
            };
            if let Some(last) = chain.last() {
                copy.cycle = copy.cycle.max(last.cycle);
                copy.sequence = copy.sequence.max(last.sequence);
            }
            let ours = |(_, header): &&(u64, Header)| header.is_of(progress);
            if let Some((at, header)) = chain.records.iter().find(ours) {
                let upto = match header.whole {
                    true => None,
                    false => match chain.upto(*at, header) {
                        Ok(upto) => Some(upto),
                        Err(_unreadable) => continue,
                    },
                };
                copy.at = Some(At {
                    cycle: header.cycle,
                    end: *at + HEADER as u64 + header.body,
                    upto,
                });
            }
        }
        if let Some(at) = &copy.at {
            (copy.cycle, copy.sequence) = (at.cycle, progress.copy);
        }
        copy
    }

    /// Writes the record of a checkpoint, durably: a slice of the index before it, and the changes.
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    pub(crate) fn write(
        &self,
        before: &Snapshot,
        changes: &Overlay,
        progress: &IndexProgress,
    ) -> Result<Written, DiskError> {
        let failed = |error| DiskError::io("write the copy of the index", error);
        let (cycle, start, from) = match &self.at {
            Some(At {
                cycle,
                end,
                upto: Some(upto),
            }) => (*cycle, *end, upto.clone()),
            Some(At { cycle, .. }) => (*cycle + 1, 0, Vec::new()),
            // A gap, so that no old record is ever taken for the cycle before this one.
            None => (self.cycle + 2, 0, Vec::new()),
        };
        let name = COPIES[usize::from(cycle % 2 == 1)];
        let file = if start == 0 {
            let file = self.dir.create(name).map_err(failed)?;
            self.dir.sync_names("").map_err(failed)?;
            file
        } else {
            self.dir.open(name).map_err(failed)?
        };
        if file.file().metadata().map_err(failed)?.len() > start {
            file.set_len(start).map_err(failed)?;
        }
        let mut out = Stream::new(&file, start + HEADER as u64);
        let wanted = changes.bytes().max(SLICE_BYTES_MIN);
        let slice = copy_slice(before, from, wanted, &mut out).map_err(failed)?;
        for (key, value) in changes.iter() {
            out.entry(key, value).map_err(failed)?;
        }
        let upto = slice.upto.as_deref().unwrap_or_default();
        out.bytes(upto).map_err(failed)?;
        let (body, crc) = out.finish().map_err(failed)?;
        let header = Header {
            whole: slice.upto.is_none(),
            store: self.store,
            cycle,
            sequence: self.sequence + 1,
            applied: progress.applied,
            applied_epoch: progress.applied_epoch,
            body,
            slice: slice.entries,
            upto: u32::try_from(upto.len()).unwrap_or(u32::MAX),
            crc,
        };
        file.write_all_at(&header.encode(), start).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        let end = start + HEADER as u64 + body;
        Ok(Written {
            at: At {
                cycle,
                end,
                upto: slice.upto,
            },
            sequence: header.sequence,
            waiting: if slice.is_cut { self.waiting + body } else { 0 },
        })
    }

    /// Marks the record as committed by the index.
    pub(crate) fn accept(&mut self, written: Written) {
        assert_eq!(
            written.sequence,
            self.sequence.wrapping_add(1),
            "the copy accepts its records in order and once"
        );
        (self.cycle, self.sequence) = (written.at.cycle, written.sequence);
        self.waiting = written.waiting;
        self.at = Some(written.at);
    }

    /// Whether it has waited too long for an unreadable entry.
    pub(crate) fn has_waited_too_long(&self) -> bool {
        self.waiting > WAITING_BYTES_MAX
    }

    /// Gives its space back; the next record begins a cycle.
    pub(crate) fn give_up(&mut self) {
        self.cycle += 2;
        self.at = None;
        self.waiting = 0;
        for name in COPIES {
            // A left-over file has an earlier cycle.
            let _ = self.dir.open(name).and_then(|file| file.set_len(0));
        }
    }
}

/// The result of copying a slice.
struct Slice {
    entries: u32,
    /// The slice goes up to this key; `None`: to the last one.
    upto: Option<Vec<u8>>,
    /// An unreadable entry ended it.
    is_cut: bool,
}

/// Copies entries behind the key `from`, about `wanted` bytes of them.
fn copy_slice(
    before: &Snapshot,
    from: Vec<u8>,
    wanted: usize,
    out: &mut Stream<'_>,
) -> io::Result<Slice> {
    let mut slice = Slice {
        entries: 0,
        upto: Some(from.clone()),
        is_cut: false,
    };
    let mut start = from;
    start.push(0);
    let Ok(mut cursor) = before.behind(&start) else {
        slice.is_cut = true;
        return Ok(slice);
    };
    let mut bytes = 0;
    while bytes < wanted {
        match cursor.next() {
            Ok(Some((key, value))) => {
                out.entry(&key, Some(&value))?;
                bytes += key.len() + value.len();
                slice.entries += 1;
                slice.upto = Some(key);
            }
            Ok(None) => {
                slice.upto = None;
                break;
            }
            Err(_damage) => {
                slice.is_cut = true;
                break;
            }
        }
    }
    Ok(slice)
}

/// Buffered bytes that go to the end of a file.
struct Stream<'a> {
    file: &'a StoreFile,
    at: u64,
    buffer: Vec<u8>,
    digest: crc_fast::Digest,
    written: u64,
}

impl<'a> Stream<'a> {
    fn new(file: &'a StoreFile, at: u64) -> Self {
        Self {
            file,
            at,
            buffer: Vec::with_capacity(BUFFER),
            digest: crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi),
            written: 0,
        }
    }

    fn entry(&mut self, key: &[u8], value: Option<&[u8]>) -> io::Result<()> {
        record::put(&mut self.buffer, key, value);
        self.flush_above(BUFFER)
    }

    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.buffer.extend_from_slice(bytes);
        self.flush_above(BUFFER)
    }

    fn flush_above(&mut self, length: usize) -> io::Result<()> {
        if self.buffer.len() > length {
            self.file.write_all_at(&self.buffer, self.at)?;
            self.digest.update(&self.buffer);
            self.at += self.buffer.len() as u64;
            self.written += self.buffer.len() as u64;
            self.buffer.clear();
        }
        Ok(())
    }

    /// Number of bytes written, and their crc32c.
    fn finish(mut self) -> io::Result<(u64, u32)> {
        self.flush_above(0)?;
        // A 32-bit algorithm: the upper half is zero.
        let crc = u32::try_from(self.digest.finalize() & 0xffff_ffff).unwrap_or(0);
        Ok((self.written, crc))
    }
}
