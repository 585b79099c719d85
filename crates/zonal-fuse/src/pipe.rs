//! Answering a READ from a pipe: data that came by a socket go to the kernel without being copied through this process.
//!
//! The pipe holds the reply's header and then, spliced in by the owner, references to the pages that the socket received; the
//! kernel copies from those to the page cache once. Compared with a buffer this saves a copy and the look-up of each of its pages.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};

use crate::abi;
use crate::bytes::Fixed;
use crate::channel::Channel;
use crate::encode;

/// Room of the pipe: 256 references, the most that a process without CAP_SYS_RESOURCE may have by default. One refers to up to 32 KiB
/// of what a socket received, so that a read of 1 MiB fits, but where memory is in small pieces.
const PIPE_BYTES: usize = 1 << 20;

/// A pipe for one reply at a time.
#[derive(Debug)]
pub struct ReplyPipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Bytes that the pipe holds when it is filled as announced.
    bytes: usize,
}

impl ReplyPipe {
    /// A new pipe.
    ///
    /// # Errors
    /// EPERM where /proc/sys/fs/pipe-max-size is below 1 MiB or the user has too many pipes, EMFILE.
    pub fn new() -> Result<Self, Errno> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        fcntl_setpipe_size(&write, PIPE_BYTES)?;
        let bytes = 0;
        Ok(Self { read, write, bytes })
    }

    /// Puts the header of a reply with `bytes` bytes of data in; they must follow. The pipe has to be empty.
    ///
    /// # Errors
    /// Any; the pipe is not to be used again.
    pub fn begin(&mut self, unique: u64, bytes: usize) -> Result<(), Errno> {
        let mut head = Fixed::<{ abi::OUT_HEADER }>::new();
        encode::header(&mut head, bytes, 0, unique);
        self.bytes = head.as_slice().len() + bytes;
        rustix::io::write(&self.write, head.as_slice()).map(drop)
    }

    /// Where the data go in.
    #[must_use]
    pub fn entrance(&self) -> BorrowedFd<'_> {
        self.write.as_fd()
    }

    /// Gives all of it to the kernel: at once or not at all.
    pub(crate) fn send(&self, channel: &Channel) -> Result<(), Errno> {
        let device = channel.as_fd();
        splice(
            &self.read,
            None,
            device,
            None,
            self.bytes,
            SpliceFlags::empty(),
        )
        .map(drop)
    }
}
