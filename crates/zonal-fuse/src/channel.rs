//! One open descriptor of /dev/fuse: reading requests, writing replies and notifications.
//!
//! A reply has to be written to the descriptor its request was read from.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::abi;
use crate::bytes::{Fixed, Put};
use crate::encode;

/// The device.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// An open descriptor of the device, bound to a mount.
#[derive(Debug)]
pub(crate) struct Channel {
    fd: OwnedFd,
}

/// Opens the device, unbound.
pub(crate) fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

impl Channel {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Another descriptor of the same mount, with a queue of its own.
    pub(crate) fn try_clone(&self) -> Result<Self, Errno> {
        let fd = open_device()?;
        clone_ioctl(fd.as_fd(), self.fd.as_fd())?;
        Ok(Self { fd })
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.fd, buffer)
    }

    /// Whether a request is waiting to be read.
    pub(crate) fn has_request(&self) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::event::poll(
            &mut fds,
            Some(&Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )
        .is_ok_and(|ready| ready > 0)
    }

    /// Sends a whole message: the kernel takes it at once or not at all.
    pub(crate) fn write(&self, message: &[u8]) -> Result<(), Errno> {
        rustix::io::write(&self.fd, message).map(drop)
    }

    /// As [`Channel::write`], gathered from pieces.
    pub(crate) fn write_vectored(&self, pieces: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::writev(&self.fd, pieces).map(drop)
    }

    /// Answers a request with an error number (0: success without contents).
    pub(crate) fn status(&self, unique: u64, error: i32) -> Result<(), Errno> {
        let mut out = Fixed::<{ abi::OUT_HEADER }>::new();
        encode::header(&mut out, 0, -error, unique);
        self.write(out.as_slice())
    }

    /// Sends a notification.
    pub(crate) fn notify(&self, code: i32, fixed: &[u8], tail: &[u8]) -> Result<(), Errno> {
        let mut out = Fixed::<64>::new();
        encode::header(&mut out, fixed.len() + tail.len(), code, 0);
        out.put(fixed);
        if tail.is_empty() {
            self.write(out.as_slice())
        } else {
            self.write_vectored(&[IoSlice::new(out.as_slice()), IoSlice::new(tail)])
        }
    }
}

#[expect(unsafe_code, reason = "an ioctl that no safe wrapper exists for")]
fn clone_ioctl(new: BorrowedFd<'_>, of: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::ioctl::{Setter, ioctl, opcode};
    use std::os::fd::AsRawFd;
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the descriptor to bind to, from the pointer.
    let setter = unsafe { Setter::<CLONE, u32>::new(of.as_raw_fd().unsigned_abs()) };
    // SAFETY: the request is well-formed and `new` is open for the whole call.
    unsafe { ioctl(new, setter) }
}
