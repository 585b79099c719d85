//! One open descriptor of /dev/fuse: reads requests, writes replies and notifications.
//!
//! A reply must be written to the descriptor that its request was read from.

use std::io::IoSlice;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::thread::UnshareFlags;

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

    /// Another descriptor of the same mount, with a read queue of its own.
    pub(crate) fn try_clone(&self) -> Result<Self, Errno> {
        let fd = open_device()?;
        clone_ioctl(fd.as_fd(), self.fd.as_fd())?;
        Ok(Self { fd })
    }

    /// A descriptor of the same mount for this thread alone, in a descriptor table of its own
    /// without any other descriptor of the mount. While the thread is in a call on it, killing the
    /// process still closes all other descriptors. Falls back to this descriptor where that fails.
    pub(crate) fn alone(self: &Arc<Self>) -> Arc<Self> {
        // Needs Linux 5.9.
        if close_range(u32::MAX, u32::MAX).is_err() || unshare_files().is_err() {
            return self.clone();
        }
        let own = self.try_clone().map_or_else(|_| self.clone(), Arc::new);
        let kept = own.fd.as_raw_fd().unsigned_abs();
        // Keep the standard streams; the table is this thread's own, and the range exists.
        let _ = close_range(FIRST, kept.saturating_sub(1));
        let _ = close_range(kept.saturating_add(1), u32::MAX);
        own
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::read(&self.fd, buffer)
    }

    /// True where a request is waiting to be read.
    pub(crate) fn has_request(&self) -> bool {
        !self.ready().is_empty()
    }

    /// True where the mount is gone: it was unmounted or aborted.
    pub(crate) fn is_ended(&self) -> bool {
        self.ready().contains(PollFlags::ERR)
    }

    fn ready(&self) -> PollFlags {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match rustix::event::poll(&mut fds, Some(&at_once)) {
            Ok(ready) if ready > 0 => fds[0].revents(),
            _none => PollFlags::empty(),
        }
    }

    /// Sends a whole message: the kernel takes all of it or none.
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

/// The first descriptor after the standard streams.
const FIRST: u32 = 3;

#[expect(unsafe_code, reason = "the safe wrapper is deprecated")]
fn unshare_files() -> Result<(), Errno> {
    // SAFETY: the calling thread uses no descriptor of another thread afterwards: see
    // `Notifier::alone`.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES) }
}

/// Closes the descriptors `first` to `last` in the table of this thread.
#[expect(unsafe_code, reason = "no safe wrapper exists for close_range")]
fn close_range(first: u32, last: u32) -> Result<(), Errno> {
    if first > last {
        return Ok(());
    }
    // SAFETY: the call takes three numbers. The table is this thread's alone, or the range has no
    // descriptor.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

#[expect(unsafe_code, reason = "an ioctl that no safe wrapper exists for")]
fn clone_ioctl(new: BorrowedFd<'_>, of: BorrowedFd<'_>) -> Result<(), Errno> {
    use rustix::ioctl::{Setter, ioctl, opcode};
    const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
    // SAFETY: FUSE_DEV_IOC_CLONE reads one u32, the descriptor to bind to, from the pointer.
    let setter = unsafe { Setter::<CLONE, u32>::new(of.as_raw_fd().unsigned_abs()) };
    // SAFETY: the request is well-formed and `new` is open for the whole call.
    unsafe { ioctl(new, setter) }
}
