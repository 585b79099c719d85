//! Direct reads of segments, past the page cache, for a scrub: cached pages say nothing about the
//! medium.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::OFlags;

use crate::files::error::DiskError;
use crate::segments::{PREFIX, Segments};

impl Segments {
    /// Fills `buffer` from `offset` of `segment`. Reads from the medium where the file system
    /// allows it: offset, length and address of the buffer are then multiples of 4096. Otherwise
    /// reads through the page cache.
    ///
    /// # Errors
    /// As [`Segments::read_at`].
    pub fn read_medium(
        &self,
        segment: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        self.check_range(segment, offset, buffer.len())?;
        let path = self.dir.join(format!("{PREFIX}{segment:08}"));
        let read = open_direct(&path).and_then(|file| file.read_exact_at(buffer, offset));
        match read {
            Ok(()) => Ok(()),
            Err(error) if is_refused(&error) => self.read_at(segment, offset, buffer),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(DiskError::Range(
                format!("segment {segment} does not exist"),
            )),
            Err(error) => Err(DiskError::io(format!("read segment {segment}"), error)),
        }
    }
}

fn open_direct(path: &std::path::Path) -> io::Result<File> {
    let flags = i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0);
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Whether the file system has no direct I/O or requires another alignment.
fn is_refused(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}
