//! The interface between the engine and its files, small enough for tests to insert disks that
//! crash.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

/// The log's file: fixed length, written in place. Offsets and lengths in bytes.
pub trait LogFile: Send + Sync {
    /// Length of the file; constant while it is open.
    ///
    /// # Errors
    /// When the medium fails.
    fn len(&self) -> io::Result<u64>;

    /// Whether the file has no bytes.
    ///
    /// # Errors
    /// When the medium fails.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// When the medium fails or the range passes the end.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`. A crash of the machine may lose any part of it until
    /// [`Self::sync`].
    ///
    /// # Errors
    /// When the medium fails.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Advice: this range will be written next, in parts that are not whole pages. Without it the
    /// kernel would read missing pages within the write.
    fn will_write(&self, _offset: u64, _length: u64) {}

    /// Makes all writes that were finished before the call durable.
    ///
    /// # Errors
    /// When the medium fails; bytes written since the last success may then be lost.
    fn sync(&self) -> io::Result<()>;
}

impl LogFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(buffer, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn will_write(&self, offset: u64, length: u64) {
        let length = NonZeroU64::new(length);
        // Advice only: a failure costs time.
        let _ = rustix::fs::fadvise(self, offset, length, rustix::fs::Advice::WillNeed);
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// Data besides the log that a sync of the engine makes durable in parallel (a target's segments).
pub trait DataSync: Send + Sync {
    /// Whether there is anything to flush, or another flush is in progress.
    fn dirty(&self) -> bool;

    /// Makes everything written before the call durable.
    ///
    /// # Errors
    /// When the medium fails.
    fn sync(&self) -> io::Result<()>;
}

/// A [`DataSync`] made of a closure, always assumed dirty.
pub struct SyncHook<F>(pub F);

impl<F: Fn() -> io::Result<()> + Send + Sync> DataSync for SyncHook<F> {
    fn dirty(&self) -> bool {
        true
    }

    fn sync(&self) -> io::Result<()> {
        (self.0)()
    }
}
