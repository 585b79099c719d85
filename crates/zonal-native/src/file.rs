//! Open files: positions, appends, and reports of failures.
//!
//! 1. As on a mount, each handle gets the loss of accepted bytes at its next write, at its close,
//!    and once at its next fsync.
//! 2. Reads and writes by offset may run concurrently; those by position run one by one.
//! 3. A file dropped without a close reports its failures only to the log.

mod locks;

pub use locks::{Lock, LockKind, Wait};

use crate::block_on::block_on;
use crate::error::Error;
use crate::native::{Call, Inner};
use crate::open::OpenOptions;
use crate::transport::RealNet;
use crate::user::User;
use locks::Owners;
use std::io::SeekFrom;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zonal_client::{ReportedFailures, Reserve};
use zonal_types::limits::{FILE_BYTES_MAX, PAYLOAD_BYTES_MAX, REGION_PAYLOAD_MIN};
use zonal_types::{Attr, ErrorCode, Ino};

/// Bytes that each step of a write hands to the client, as many as in a kernel's request.
const WRITE_STEP: usize = 1 << 20;

/// Content at an offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whence {
    /// Bytes that were written.
    Data,
    /// A hole, or the end.
    Hole,
}

/// An open file. Threads that share it share its position.
pub struct OpenFile {
    inner: Arc<Inner>,
    user: User,
    options: OpenOptions,
    file: Arc<zonal_client::File<RealNet>>,
    /// Never reused.
    handle: u64,
    position: Mutex<u64>,
    told: Mutex<ReportedFailures>,
    is_touch_due: AtomicBool,
    owners: Owners,
    is_closed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl OpenFile {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        user: &User,
        options: OpenOptions,
        file: Arc<zonal_client::File<RealNet>>,
        is_touch_due: bool,
    ) -> Self {
        let told = Mutex::new(file.told());
        Self {
            inner: inner.clone(),
            user: user.clone(),
            options,
            file,
            handle: inner.number(),
            position: Mutex::new(0),
            told,
            is_touch_due: AtomicBool::new(is_touch_due),
            owners: Owners::default(),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The inode number, never used for another file.
    #[must_use]
    pub fn ino(&self) -> Ino {
        self.file.ino
    }

    /// Number of the file's first bytes that its shard keeps.
    pub(crate) fn inline_bytes(&self) -> u64 {
        self.file.inline_bytes()
    }

    fn begin_read(&self) -> Result<Call<'_>, Error> {
        let call = self.inner.begin()?;
        match self.options.may_read() {
            true => Ok(call),
            false => Err(Error::NotOpenFor),
        }
    }

    fn begin_write(&self) -> Result<Call<'_>, Error> {
        let call = self.inner.begin()?;
        match self.options.may_write() {
            true => Ok(call),
            false => Err(Error::NotOpenFor),
        }
    }

    /// Reads at an offset. Fewer bytes than requested: the file ends there.
    ///
    /// # Errors
    /// EIO for damaged bytes; a server that does not answer.
    pub fn pread(&self, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        let call = self.begin_read()?;
        self.read_at(&call, offset, out)
    }

    fn read_at(&self, call: &Call<'_>, offset: u64, out: &mut [u8]) -> Result<usize, Error> {
        if self.is_touch_due.swap(false, Ordering::Relaxed) {
            call.touch(self.file.ino);
            self.inner.signal.wake();
        }
        let mut done = 0;
        for part in out.chunks_mut(PAYLOAD_BYTES_MAX) {
            let at = offset.saturating_add(done as u64);
            let read = call.read(&self.file, at, part);
            let bytes = match block_on(read) {
                Ok(bytes) => bytes,
                // The bytes read before are the answer.
                Err(_) if done > 0 => break,
                Err(code) => return Err(code.into()),
            };
            done += bytes;
            if bytes < part.len() {
                break;
            }
        }
        if call.has_traffic_to_report() {
            self.inner.signal.wake();
        }
        Ok(done)
    }

    /// Reads at the position and moves it. Returns 0 at the end.
    ///
    /// # Errors
    /// As [`Self::pread`].
    pub fn read(&self, out: &mut [u8]) -> Result<usize, Error> {
        let call = self.begin_read()?;
        let mut position = lock(&self.position);
        let bytes = self.read_at(&call, *position, out)?;
        *position += bytes as u64;
        Ok(bytes)
    }

    /// Writes all bytes at an offset. A file opened to append is written at its end, whatever the
    /// offset (as pwrite(2)).
    ///
    /// # Errors
    /// EFBIG, ENOSPC, EIO; a loss of an earlier write by any handle here; a server that does not
    /// answer. A part may have been written.
    pub fn pwrite(&self, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let call = self.begin_write()?;
        self.write_at(&call, offset, bytes).map(drop)
    }

    /// Writes all bytes at the position and moves it. A file opened to append is written at its
    /// end.
    ///
    /// # Errors
    /// As [`Self::pwrite`].
    pub fn write(&self, bytes: &[u8]) -> Result<(), Error> {
        let call = self.begin_write()?;
        let mut position = lock(&self.position);
        *position = self.write_at(&call, *position, bytes)?;
        Ok(())
    }

    /// Writes; returns the offset behind the last byte.
    fn write_at(&self, call: &Call<'_>, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        let file = &*self.file;
        let kills = self.take_privileges(call)?;
        file.tell_writer(&mut lock(&self.told))?;
        let mut end = offset;
        let written = bytes.chunks(WRITE_STEP).try_for_each(|part| {
            end = if self.options.appends() {
                let is_gathered = part.len() < REGION_PAYLOAD_MIN && !self.options.is_synced();
                let at = match is_gathered {
                    true => block_on(call.append_gathered(file, part, kills))?,
                    false => block_on(call.append(file, part, kills))?,
                };
                at + part.len() as u64
            } else {
                block_on(call.write(file, end, part, kills))?;
                end + part.len() as u64
            };
            Ok::<(), ErrorCode>(())
        });
        self.inner.signal.wake();
        written?;
        if self.options.is_synced() {
            self.make_durable(call)?;
        }
        Ok(end)
    }

    /// Clears set-id bits and capabilities before a write by a user who may not keep them. True
    /// where there may be some.
    fn take_privileges(&self, call: &Call<'_>) -> Result<bool, ErrorCode> {
        if self.user.is_root() || call.has_no_privileges(&self.file) {
            return Ok(false);
        }
        block_on(call.take_privileges(self.user.credentials(), &self.file))
    }

    /// Moves the position.
    ///
    /// # Errors
    /// EINVAL before the start, or past the largest offset.
    pub fn seek(&self, to: SeekFrom) -> Result<u64, Error> {
        let call = self.inner.begin()?;
        let mut position = lock(&self.position);
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (*position, by),
            SeekFrom::End(by) => (self.attr(&call)?.size, by),
        };
        let at = from.checked_add_signed(by);
        let at = at.filter(|at| *at <= FILE_BYTES_MAX);
        *position = at.ok_or(ErrorCode::Invalid)?;
        Ok(*position)
    }

    /// Finds the next data or hole from an offset on (SEEK_DATA, SEEK_HOLE); the position stays.
    ///
    /// # Errors
    /// ENXIO past the end, or where no data follows.
    pub fn find(&self, from: u64, what: Whence) -> Result<u64, Error> {
        let call = self.inner.begin()?;
        let seek = call.seek(&self.file, from, what == Whence::Data);
        Ok(block_on(seek)?)
    }

    /// Truncates the file, or extends it by a hole.
    ///
    /// # Errors
    /// EFBIG; a server that does not answer.
    pub fn truncate(&self, size: u64) -> Result<(), Error> {
        let call = self.begin_write()?;
        let (who, ino) = (self.user.credentials(), self.file.ino);
        let kills = !self.user.is_root();
        let truncated = call.truncate(who, ino, size, true, kills);
        let truncated = block_on(truncated);
        self.inner.signal.wake();
        truncated?;
        Ok(())
    }

    /// Makes a range a hole; the size stays.
    ///
    /// # Errors
    /// A server that does not answer.
    pub fn punch(&self, offset: u64, length: u64) -> Result<(), Error> {
        let call = self.begin_write()?;
        let punched = call.reserve(&self.file, offset, length, Reserve::Punch, true);
        let punched = block_on(punched);
        // Its report to the shard may have failed.
        self.inner.signal.wake();
        Ok(punched?)
    }

    fn attr(&self, call: &Call<'_>) -> Result<Attr, ErrorCode> {
        let attr = block_on(call.getattr(self.file.ino));
        attr.map(|(attr, _ms)| attr)
    }

    /// The file's attributes, also after its name is gone.
    ///
    /// # Errors
    /// A server that does not answer.
    pub fn stat(&self) -> Result<Attr, Error> {
        let call = self.inner.begin()?;
        Ok(self.attr(&call)?)
    }

    /// Sends all written bytes without waiting for disks: others who open the file see them.
    ///
    /// # Errors
    /// As [`Self::close`], which reports them again.
    pub fn flush(&self) -> Result<(), Error> {
        let call = self.inner.begin()?;
        Ok(self.flush_told(&call)?)
    }

    /// Makes bytes and size durable. Reports losses since this handle's last report, once.
    ///
    /// # Errors
    /// ENOSPC, EIO; a server that does not answer.
    pub fn fsync(&self) -> Result<(), Error> {
        let call = self.inner.begin()?;
        Ok(self.make_durable(&call)?)
    }

    /// Flushes. A failure may be reported again: only the end of the handle counts as its close.
    fn flush_told(&self, call: &Call<'_>) -> Result<(), ErrorCode> {
        let mut told = *lock(&self.told);
        block_on(call.flush_open(&self.file, &mut told))
    }

    fn make_durable(&self, call: &Call<'_>) -> Result<(), ErrorCode> {
        let mut told = *lock(&self.told);
        let done = block_on(call.fsync_open(&self.file, &mut told));
        let mut known = lock(&self.told);
        *known = told.with(*known);
        done
    }

    /// Sends all written bytes, releases this handle's locks, and ends it. The bytes then survive a
    /// kill of servers, but not a loss of power: see [`Self::fsync`].
    ///
    /// # Errors
    /// Losses since this handle's last report; the file is closed all the same.
    pub fn close(self) -> Result<(), Error> {
        self.end()
    }

    fn end(&self) -> Result<(), Error> {
        if self.is_closed.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        let call = self.inner.begin()?;
        let flushed = match self.options.may_write() {
            true => self.flush_told(&call),
            false => Ok(()),
        };
        let unlocked = self.release_locks(&call);
        let released = block_on(call.release(self.file.ino));
        self.inner.signal.wake();
        Ok(flushed.and(unlocked).and(released)?)
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        match self.end() {
            Ok(()) | Err(Error::Forked | Error::Closed) => {}
            Err(error) => {
                tracing::warn!(ino = %self.file.ino, %error, "the end of an open file failed");
            }
        }
    }
}

impl std::io::Read for &OpenFile {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        Ok(OpenFile::read(self, out)?)
    }
}

impl std::io::Write for &OpenFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        OpenFile::write(self, bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(OpenFile::flush(self)?)
    }
}
