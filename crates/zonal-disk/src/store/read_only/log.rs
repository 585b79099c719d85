//! The log of a stopped process: finds its beginning and end, and replays its records into memory.

use super::log_bit_repair::flipped;
use super::{LogEnd, ReadStore, StoreDamage};
use crate::files::LOG;
use crate::files::disk::LogFile;
use crate::files::error::DiskError;
use crate::files::identity::Stored;
use crate::files::power_loss;
use crate::index::IndexProgress;
use crate::index::raw_index::RawIndex;
use crate::log::record::{self, Lsn};
use crate::log::{self, LogExtent, Origin, Reader, RecordHeader, RecordKind};
use crate::store::replay::Replay;
use std::fs::File;
use std::io;
use std::path::Path;

/// Most flipped bits that are corrected; a log with more has lost more than bits.
const FLIPS_MOST: usize = 8;

impl ReadStore {
    pub(super) fn read_log(&mut self, dir: &Path, replay: &mut Replay<'_>) {
        let lost = |what: String| StoreDamage::LogLost(what);
        let opened = File::open(dir.join(LOG)).and_then(|file| Ok((LogFile::len(&file)?, file)));
        let (capacity, file) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.damage.push(lost(error.to_string())),
        };
        let expected = self.stored.map_or(capacity, |stored| stored.log_bytes);
        if capacity != expected {
            let what = format!("{capacity} bytes long, not {expected}");
            self.damage.push(lost(what));
        }
        if !log::valid_capacity(expected) {
            return self.damage.push(lost(format!("{expected} bytes long")));
        }
        let mut file = Whole {
            file,
            length: capacity,
            capacity: expected,
            flips: Vec::new(),
        };
        let capacity = expected;
        let tag = self.stored.map(|stored| stored.tag());
        let origin = match (&self.index, tag) {
            (Some(index), Some(store)) => Ok(Some(origin(capacity, store, &index.progress))),
            (index, tag) => oldest_chain(&file, capacity, tag, index.as_ref()),
        };
        // As an opening for use would judge.
        let kept = power_loss::look(dir, power_loss::kernel_boot())
            .is_ok_and(|power| power.past == power_loss::UnflushedWrites::Kept);
        let replayed = origin.and_then(|origin| match origin {
            Some(origin) => {
                let origin = Origin { kept, ..origin };
                let reach = file.put_right(origin)?;
                let flips = file.flips.iter();
                self.damage
                    .extend(flips.map(|(at, _)| StoreDamage::LogFlipped(*at)));
                self.replay(&file, origin, reach, replay)
            }
            None => Ok(()),
        });
        if let Err(error) = replayed {
            self.damage.push(lost(error.to_string()));
        }
    }

    fn replay(
        &mut self,
        file: &Whole,
        origin: Origin,
        reach: (LogExtent, u64),
        replay: &mut Replay<'_>,
    ) -> Result<(), DiskError> {
        self.log = LogEnd {
            applied: origin.applied,
            end: origin.applied,
            epoch: origin.applied_epoch,
            records: 0,
        };
        // Two passes, as at an opening for use: later headers say what is synced.
        let mut reader = Reader::new(file, origin);
        let (LogExtent { end, mut synced }, last) = reach;
        let proof = reader.proof_beyond(end, last)?;
        if let Some(proof) = proof {
            self.damage.push(StoreDamage::LogTorn { end, proof });
            synced = end;
        }
        let (mut position, mut epoch) = (origin.applied, origin.applied_epoch);
        while position < end {
            let Some(found) = reader.at(position, epoch)? else {
                break;
            };
            (position, epoch) = (found.end, found.header.epoch);
            self.log.end = position;
            self.log.epoch = epoch;
            let was_durable = origin.kept || found.end <= synced;
            if !self.take(&mut reader, &found, was_durable, replay)? {
                self.damage.push(StoreDamage::LogRecord(found.end));
                break;
            }
        }
        if proof.is_some() {
            self.behind_tear(file, origin, (end, last), replay)?;
        }
        Ok(())
    }

    /// Replays one record; false where a record that must be there cannot be replayed.
    fn take(
        &mut self,
        reader: &mut Reader<'_>,
        found: &log::LogItem,
        was_durable: bool,
        replay: &mut Replay<'_>,
    ) -> Result<bool, DiskError> {
        if found.header.kind == RecordKind::Pad || found.header.dropped {
            return Ok(true);
        }
        let Some(record) = record::decode(reader.payload(&found.header)?) else {
            return Ok(false);
        };
        let is_taken = replay(&record, Lsn(found.end), was_durable);
        if is_taken {
            self.log.records += 1;
            for change in record.changes {
                self.overlay.apply(change);
            }
        }
        Ok(is_taken || !was_durable)
    }

    /// Takes the keys from records behind a tear, at this position and under this epoch; their
    /// predecessors are missing.
    fn behind_tear(
        &mut self,
        file: &Whole,
        origin: Origin,
        (tear, epoch): (u64, u64),
        replay: &mut Replay<'_>,
    ) -> Result<(), DiskError> {
        let mut headers = headers(file, origin.capacity, &mut Some(origin.store))?;
        headers.retain(|(lsn, _, of)| *lsn > tear && *of >= epoch);
        headers.sort_unstable();
        let mut reader = Reader::new(file, origin);
        let (mut behind, mut epoch, mut synced) = (tear, epoch, 0);
        let mut whole = Vec::new();
        for (lsn, ..) in headers {
            // Inside of a record: payload bytes that look like a header.
            if lsn < behind {
                continue;
            }
            if let Some(found) = reader.at(lsn, epoch)? {
                (behind, epoch) = (found.end, found.header.epoch);
                synced = synced.max(found.header.synced);
                whole.push(found);
            }
        }
        for found in whole {
            let was_durable = origin.kept || found.end <= synced;
            // The tear is reported already.
            let _ = self.take(&mut reader, &found, was_durable, replay)?;
        }
        Ok(())
    }
}

/// A log's file that may be cut short: missing bytes read as zeroes. Flipped bits read as
/// corrected.
struct Whole {
    file: File,
    length: u64,
    capacity: u64,
    /// Byte of the file, and mask of the bit in it.
    flips: Vec<(u64, u8)>,
}

impl Whole {
    /// Corrects the flipped bit where the log seems to end, and repeats. Returns the end of the log
    /// after that.
    fn put_right(&mut self, origin: Origin) -> Result<(LogExtent, u64), DiskError> {
        loop {
            let (extent, epoch) = Reader::new(self, origin).reach()?;
            match flipped(self, origin, extent.end, epoch)? {
                Some(flip) if self.flips.len() < FLIPS_MOST => self.flips.push(flip),
                _ => return Ok((extent, epoch)),
            }
        }
    }
}

impl LogFile for Whole {
    fn len(&self) -> io::Result<u64> {
        Ok(self.capacity)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let there = self.length.saturating_sub(offset).min(buffer.len() as u64);
        let (there, missing) = buffer.split_at_mut(usize::try_from(there).unwrap_or(0));
        missing.fill(0);
        LogFile::read_at(&self.file, offset, there)?;
        for (at, mask) in &self.flips {
            let byte = at
                .checked_sub(offset)
                .and_then(|at| usize::try_from(at).ok());
            if let Some(byte) = byte.and_then(|byte| buffer.get_mut(byte)) {
                *byte ^= mask;
            }
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::PermissionDenied.into())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

fn origin(capacity: u64, store: u64, progress: &IndexProgress) -> Origin {
    Origin {
        capacity,
        store,
        applied: progress.applied,
        applied_epoch: progress.applied_epoch,
        epoch: progress.epoch,
        kept: false,
    }
}

/// Position, end and epoch of each record, in file order. Without a tag: the records of the store
/// whose header comes first.
fn headers(
    file: &Whole,
    capacity: u64,
    tag: &mut Option<u64>,
) -> Result<Vec<(u64, u64, u64)>, DiskError> {
    let mut found = Vec::new();
    let mut window = vec![0; 1 << 20];
    let mut at = 0;
    while at < capacity {
        let length = usize::try_from(capacity - at).unwrap_or(usize::MAX);
        let window = &mut window[..length.min(1 << 20)];
        file.read_at(at, window)
            .map_err(|error| DiskError::io("read the log", error))?;
        for (step, bytes) in window.chunks_exact(log::ALIGN).enumerate() {
            let position = at + (step * log::ALIGN) as u64;
            if let Some(header) = RecordHeader::decode(bytes)
                && header.lsn % capacity == position
                && *tag.get_or_insert(header.store) == header.store
            {
                let size = log::record_size(header.payload_len as usize) as u64;
                found.push((header.lsn, header.lsn + size, header.epoch));
            }
        }
        at += window.len() as u64;
    }
    Ok(found)
}

/// The newest epoch in the log of the store in `dir`, if no record is missing between an index at
/// `progress` and the log's end. A lost log has no answer.
pub(crate) fn goes_on(
    dir: &Path,
    stored: &Stored,
    progress: &IndexProgress,
) -> Result<Option<u64>, DiskError> {
    let length = std::fs::metadata(dir.join(LOG)).map_or(0, |found| found.len());
    let capacity = stored.log_bytes;
    if length != capacity || !log::valid_capacity(capacity) {
        return Ok(Some(progress.applied_epoch));
    }
    let file = File::open(dir.join(LOG)).map_err(|error| DiskError::io("log", error))?;
    let file = Whole {
        file,
        length,
        capacity,
        flips: Vec::new(),
    };
    let epochs = headers(&file, capacity, &mut Some(stored.tag()))?;
    let newest = epochs.iter().map(|(_, _, epoch)| *epoch).max();
    let epoch = newest.unwrap_or(0).max(progress.applied_epoch);
    let of = origin(
        capacity,
        stored.tag(),
        &IndexProgress { epoch, ..*progress },
    );
    let mut reader = Reader::new(&file, of);
    let (extent, last) = reader.reach()?;
    let proof = reader.proof_beyond(extent.end, last)?;
    Ok(proof.is_none().then_some(epoch))
}

/// The beginning of the log without an index: the contiguous records up to the newest. Without an
/// identity: of the store whose header comes first.
fn oldest_chain(
    file: &Whole,
    capacity: u64,
    tag: Option<u64>,
    index: Option<&RawIndex>,
) -> Result<Option<Origin>, DiskError> {
    let mut tag = tag;
    let mut found = headers(file, capacity, &mut tag)?;
    let Some(store) = tag else {
        return Ok(None);
    };
    if let Some(index) = index {
        return Ok(Some(origin(capacity, store, &index.progress)));
    }
    found.sort_unstable();
    let mut chain: Option<(u64, u64, u64)> = None;
    let mut newest = 0;
    for (lsn, end, epoch) in found {
        newest = newest.max(epoch);
        chain = match chain {
            Some((first, behind, of)) if behind == lsn && epoch >= of => Some((first, end, epoch)),
            // Inside of a record: payload bytes that look like a header.
            Some((first, behind, of)) if lsn < behind => Some((first, behind, of)),
            _ => Some((lsn, end, epoch)),
        };
    }
    Ok(chain.map(|(first, ..)| Origin {
        capacity,
        store,
        applied: first,
        applied_epoch: 0,
        epoch: newest,
        kept: false,
    }))
}
