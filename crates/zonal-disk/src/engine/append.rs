//! Appends records to an engine's log, and waits for space there.
//!
//! Cost: the record is encoded and its checksum computed outside of the lock, into a pooled buffer.
//! One `pwrite`, two when a lap ends.

use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

use zonal_types::KvChange;

use super::held_records::RecordPlace;
use super::{Engine, Tail};
use crate::files::error::DiskError;
use crate::files::group_commit::lock;
use crate::log::record::{self, Lsn, Record};
use crate::log::{self, HEADER, RecordHeader, RecordKind};

/// Buffers kept for encoding, and the size of the largest that is kept.
const POOL: usize = 8;
const POOLED_BYTES: usize = 256 << 10;
/// How often, and half of how far ahead, the log is brought into the page cache before it is
/// written. A write to part of a page that is not cached waits for the disk.
const AHEAD_BYTES: u64 = 256 << 10;

/// The part of the log that a record may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRoom {
    /// All but the reserve.
    Normal,
    /// Also the reserve (an eighth of the log): for records that free space.
    Reserve,
}

impl Engine {
    /// Writes a record and applies its changes; [`Self::append_with`] saves copying them.
    ///
    /// # Errors
    /// As [`Self::append_with`].
    pub fn append(&self, record: &Record) -> Result<Lsn, DiskError> {
        self.append_with(record.changes.clone(), &record.note, LogRoom::Normal)
    }

    /// Writes a record and applies its changes, in one step for all readers and other appends. The
    /// record then survives a kill of the process; for power loss call [`Self::sync`] with the
    /// returned position.
    ///
    /// Without space it waits for a checkpoint, where a checkpointer runs. A caller must not hold a
    /// lock that its checkpoint job needs: it calls [`Self::wait_for_room`] before it takes the
    /// lock.
    ///
    /// # Errors
    /// `LogFull` where no checkpoint frees space, `TooBig`, `Failed` after an earlier failure,
    /// `Io`.
    pub fn append_with(
        &self,
        changes: Vec<KvChange>,
        note: &[u8],
        room: LogRoom,
    ) -> Result<Lsn, DiskError> {
        let place = self.append_record(changes, note, room, false)?;
        Ok(place.end)
    }

    /// Writes a record; holds it where its changes are to be applied later.
    pub(super) fn append_record(
        &self,
        changes: Vec<KvChange>,
        note: &[u8],
        room: LogRoom,
        is_held: bool,
    ) -> Result<RecordPlace, DiskError> {
        let limit = log::payload_limit(self.capacity);
        let size = record::encoded_size(&changes, note);
        if size > limit {
            return Err(DiskError::TooBig { size, limit });
        }
        let mut buffer = self.take_buffer();
        buffer.resize(HEADER, 0);
        record::encode(&mut buffer, &changes, note)?;
        assert_eq!(
            buffer.len(),
            HEADER + size,
            "the encoded size of a record is known before it is encoded"
        );
        let payload_crc = crc_fast::crc32_iscsi(&buffer[HEADER..]);
        let payload_len = u32::try_from(size).unwrap_or(u32::MAX);
        buffer.resize(log::record_size(size), 0);

        let guard = lock(&self.append_lock);
        let total = buffer.len();
        let fits = |tail: &Tail| self.fits(tail, total, room);
        let mut guard = self.wait_until(guard, fits)?;
        let (pad, position) = self.place_record(&guard, buffer.len());
        let header = |kind, lsn, payload_len, payload_crc| RecordHeader {
            kind,
            dropped: false,
            lsn,
            synced: self.group.synced(),
            epoch: self.epoch,
            payload_len,
            payload_crc,
            store: self.store,
        };
        if pad > 0 {
            let filler = u32::try_from(pad - HEADER as u64).unwrap_or(u32::MAX);
            let filler = header(RecordKind::Pad, guard.head, filler, 0).encode();
            self.write_log(guard.head, &filler)?;
        }
        let head = header(RecordKind::Record, position, payload_len, payload_crc).encode();
        buffer[..HEADER].copy_from_slice(&head);
        self.write_log(position, &buffer)?;
        guard.head = position + buffer.len() as u64;
        self.apply(changes);
        self.written.store(guard.head, Ordering::Release);
        let place = RecordPlace {
            start: Lsn(position),
            end: Lsn(guard.head),
            epoch: self.epoch,
        };
        if is_held && guard.held_from.is_none() {
            guard.held_from = Some(place);
        }
        let due = self.is_due(&guard);
        drop(guard);
        self.appends.fetch_add(1, Ordering::Relaxed);
        self.give_buffer(buffer);
        if due {
            self.signal.request();
        }
        Ok(place)
    }

    /// Waits while the log is three quarters full or the overlay is well over its bound, where a
    /// checkpointer runs. Called without any lock that its job needs, it keeps appends from
    /// waiting.
    ///
    /// # Errors
    /// `LogFull` where no checkpoint frees space in time, `Failed` after an earlier failure.
    pub fn wait_for_room(&self) -> Result<(), DiskError> {
        let guard = lock(&self.append_lock);
        let calm = |tail: &Tail| {
            let overlay = self.overlay_bytes(tail);
            !self.signal.attended()
                || (tail.head - tail.tail < self.capacity / 4 * 3
                    && overlay <= self.config.overlay_bytes.saturating_mul(2))
        };
        self.wait_until(guard, calm).map(drop)
    }

    pub(super) fn is_due(&self, tail: &Tail) -> bool {
        let active = self.active_bytes.load(Ordering::Relaxed);
        tail.head - tail.tail >= self.capacity / 2
            || active >= self.config.overlay_bytes
            || self.index_space.is_due(active)
    }

    /// Memory of both overlays.
    pub(crate) fn overlay_bytes(&self, tail: &Tail) -> usize {
        self.active_bytes.load(Ordering::Relaxed) + tail.frozen_bytes
    }

    /// Bytes of padding before the next record of `size` bytes, and its position.
    pub(super) fn place_record(&self, tail: &Tail, size: usize) -> (u64, u64) {
        let (pad, position) = log::place(tail.head, size, self.capacity);
        assert!(
            position >= tail.head && position + size as u64 <= tail.tail + self.capacity,
            "a record never overwrites the part of the log in use"
        );
        (pad, position)
    }

    fn fits(&self, tail: &Tail, size: usize, room: LogRoom) -> bool {
        let (_, position) = log::place(tail.head, size, self.capacity);
        let usable = match room {
            LogRoom::Normal => self.capacity / 8 * 7,
            LogRoom::Reserve => self.capacity,
        };
        let overlay = self.overlay_bytes(tail);
        let bound = self.config.overlay_bytes.saturating_mul(4);
        let memory = overlay <= bound || room == LogRoom::Reserve || !self.signal.attended();
        position + size as u64 <= tail.tail + usable && memory
    }

    /// Waits for checkpoints until `ready` holds.
    pub(crate) fn wait_until<'a>(
        &self,
        mut guard: MutexGuard<'a, Tail>,
        ready: impl Fn(&Tail) -> bool,
    ) -> Result<MutexGuard<'a, Tail>, DiskError> {
        let mut deadline = None;
        let attempts = guard.attempts;
        loop {
            if self.failed() {
                return Err(DiskError::Failed);
            }
            if ready(&guard) {
                return Ok(guard);
            }
            let now = Instant::now();
            let deadline = *deadline.get_or_insert(now + self.config.room_wait);
            // One attempt may have begun before this call; a failed one after it is the answer.
            let answered = guard.attempts > attempts + 1 && guard.attempt_failed;
            if answered || now >= deadline || !self.signal.attended() {
                return Err(DiskError::LogFull);
            }
            self.signal.request();
            let left = deadline - now;
            let waited = self.room.wait_timeout(guard, left);
            guard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn write_log(&self, position: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let offset = position % self.capacity;
        let end = position + bytes.len() as u64;
        if end + AHEAD_BYTES / 2 > self.announced.load(Ordering::Relaxed) {
            let length = (end - position + AHEAD_BYTES).min(self.capacity - offset);
            self.log.will_write(offset, length);
            self.announced.store(position + length, Ordering::Relaxed);
        }
        let written = self.log.write_at(offset, bytes);
        written.map_err(|error| {
            // The file is pre-written: a failure here is the medium's, not a lack of space.
            self.group
                .fail(format!("the log cannot be written: {error}"));
            self.room.notify_all();
            DiskError::Io {
                what: "write the log".into(),
                source: error,
            }
        })
    }

    fn take_buffer(&self) -> Vec<u8> {
        lock(&self.pool).pop().unwrap_or_default()
    }

    fn give_buffer(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if buffer.capacity() <= POOLED_BYTES {
            let mut pool = lock(&self.pool);
            if pool.len() < POOL {
                pool.push(buffer);
            }
        }
    }
}
