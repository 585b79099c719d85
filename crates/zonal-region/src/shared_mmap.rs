//! A shared mapping of a file: the only module with pointers.
//!
//! *Invariants*:
//!
//! 1. `base..base + length` is mapped, readable and writable, from [`Map::new`] to the drop.
//! 2. The file cannot become shorter: its seal was set or checked before. So no access ends in
//!    SIGBUS where the kernel has a page for it.
//!
//! Other processes may change the bytes at any time, and a hostile client can name one part twice.
//! So a slice here does not keep all the promises of a Rust slice. The code only copies it,
//! computes checksums and passes it to system calls, for which any bytes will do.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A mapping of a whole file.
#[derive(Debug)]
pub(crate) struct Map {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: it is an address range of the process; buffers and holds decide which thread may access
// which part of it when.
#[expect(unsafe_code, reason = "a raw pointer is not Send by itself")]
unsafe impl Send for Map {}
// SAFETY: as above.
#[expect(unsafe_code, reason = "a raw pointer is not Sync by itself")]
unsafe impl Sync for Map {}

impl Map {
    /// Maps the first `length` bytes of `file`, which is at least as long and cannot shrink.
    pub(crate) fn new(file: impl AsFd, length: usize) -> Result<Self, Errno> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at a place that the kernel chooses replaces nothing.
        #[expect(unsafe_code, reason = "no safe wrapper exists for mmap")]
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        }?;
        let base = NonNull::new(base.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { base, length })
    }

    /// Bytes mapped.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Offset of `bytes` within the mapping, if all of them lie there.
    pub(crate) fn offset_of(&self, bytes: &[u8]) -> Option<usize> {
        let offset = bytes.as_ptr().addr().checked_sub(self.base.addr().get())?;
        let end = offset.checked_add(bytes.len())?;
        (end <= self.length).then_some(offset)
    }

    /// A part, for reading, clipped to the mapping. The caller ensures that nobody in this process
    /// writes there meanwhile.
    pub(crate) fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        let (at, length) = self.part(offset, length);
        // SAFETY: `part` lies within the mapping, which outlives `self`.
        #[expect(unsafe_code, reason = "a slice of mapped memory")]
        unsafe {
            std::slice::from_raw_parts(at, length)
        }
    }

    /// A part, for writing, clipped to the mapping. The caller ensures that nobody else in this
    /// process accesses it meanwhile.
    #[expect(
        clippy::mut_from_ref,
        reason = "parts are apart, and each has one owner"
    )]
    pub(crate) fn bytes_mut(&self, offset: usize, length: usize) -> &mut [u8] {
        let (at, length) = self.part(offset, length);
        // SAFETY: as in `bytes`.
        #[expect(unsafe_code, reason = "a slice of mapped memory")]
        unsafe {
            std::slice::from_raw_parts_mut(at, length)
        }
    }

    fn part(&self, offset: usize, length: usize) -> (*mut u8, usize) {
        let offset = offset.min(self.length);
        let length = length.min(self.length - offset);
        (self.base.as_ptr().wrapping_add(offset), length)
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: this is exactly the range that `new` mapped, and no slice of it is left, because
        // slices borrow from `self`.
        #[expect(unsafe_code, reason = "no safe wrapper exists for munmap")]
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}
