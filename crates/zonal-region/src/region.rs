//! One region of a client: a sealed memfd, mapped and divided into buffers, with a count of the
//! users of each.
//!
//! Invariants: those of the crate; a buffer's count is its owner and its holds. *Lock order*:
//! `Region::buffers`, alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};
use rustix::io::Errno;

use crate::shared_mmap::Map;

/// Most free buffers that keep their memory. A fresh buffer costs a page fault for each page, and
/// the last used memory is still in the processor's cache.
pub const WARM_MAX: usize = 16;

#[derive(Debug)]
struct Buffers {
    /// Number of users of each buffer.
    counts: Vec<u32>,
    /// Free buffers with memory, the last used one at the end.
    warm: Vec<u32>,
    /// Free buffers without memory.
    cold: Vec<u32>,
}

/// A region.
#[derive(Debug)]
pub struct Region {
    /// Identifies the region within the process.
    number: u64,
    file: OwnedFd,
    map: Map,
    buffer_bytes: usize,
    buffers: Mutex<Buffers>,
    is_retired: AtomicBool,
}

impl Region {
    /// A new region of `buffers` buffers; each is a whole number of pages.
    pub(crate) fn new(number: u64, buffer_bytes: usize, buffers: u32) -> Result<Arc<Self>, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("zonal-region", flags)?;
        let length = buffer_bytes * buffers as usize;
        ftruncate(&file, length as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let map = Map::new(&file, length)?;
        Ok(Arc::new(Self {
            number,
            file,
            map,
            buffer_bytes,
            buffers: Mutex::new(Buffers {
                counts: vec![0; buffers as usize],
                warm: Vec::new(),
                cold: (0..buffers).rev().collect(),
            }),
            is_retired: AtomicBool::new(false),
        }))
    }

    /// Identifies the region within the process; never 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether the region accepts no new payloads.
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.is_retired.load(Ordering::SeqCst)
    }

    fn buffers(&self) -> MutexGuard<'_, Buffers> {
        // No code that can panic runs under this lock; a poisoned one is still consistent.
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A free buffer.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Buffer> {
        if self.is_retired() {
            return None;
        }
        let (index, is_cold) = {
            let mut buffers = self.buffers();
            let warm = buffers.warm.pop();
            (warm.or_else(|| buffers.cold.pop())?, warm.is_none())
        };
        // Allocates its memory now, or fails: where the kernel does not overcommit memory, the
        // first access could be SIGBUS.
        let at = u64::from(index) * self.buffer_bytes as u64;
        let (keep, length) = (FallocateFlags::empty(), self.buffer_bytes as u64);
        if is_cold && fallocate(&self.file, keep, at, length).is_err() {
            self.buffers().cold.push(index);
            return None;
        }
        *self.buffers().counts.get_mut(index as usize)? = 1;
        Some(Buffer {
            region: Arc::clone(self),
            index,
        })
    }

    /// Holds the buffer that contains all of `bytes`.
    pub(crate) fn hold(self: &Arc<Self>, bytes: &[u8]) -> Option<Hold> {
        let offset = self.map.offset_of(bytes)?;
        let index = offset / self.buffer_bytes;
        let fits = offset % self.buffer_bytes + bytes.len() <= self.buffer_bytes;
        if !fits || bytes.is_empty() || self.is_retired() {
            return None;
        }
        let number = u32::try_from(index).ok()?;
        let length = u32::try_from(bytes.len()).ok()?;
        let mut buffers = self.buffers();
        *buffers.counts.get_mut(index)? += 1;
        drop(buffers);
        Some(Hold {
            region: Arc::clone(self),
            index: number,
            offset: offset as u64,
            length,
            is_over: false,
        })
    }

    /// Bytes of the buffers in use, and of all buffers.
    pub(crate) fn used(&self) -> (usize, usize) {
        let buffers = self.buffers();
        let all = buffers.counts.len();
        let free = buffers.warm.len() + buffers.cold.len();
        ((all - free) * self.buffer_bytes, all * self.buffer_bytes)
    }

    /// Removes one user.
    fn let_go(&self, index: u32) {
        let mut buffers = self.buffers();
        let Some(count) = buffers.counts.get_mut(index as usize) else {
            return;
        };
        *count = count.saturating_sub(1);
        if *count > 0 {
            return;
        }
        if buffers.warm.len() < WARM_MAX && !self.is_retired() {
            buffers.warm.push(index);
            return;
        }
        drop(buffers);
        self.cool(index);
    }

    /// Gives back the memory of a free buffer, which is neither in a list nor counted.
    fn cool(&self, index: u32) {
        let at = u64::from(index) * self.buffer_bytes as u64;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Where the kernel refuses, the memory stays in use.
        let _ = fallocate(&self.file, punch, at, self.buffer_bytes as u64);
        self.buffers().cold.push(index);
    }

    /// Retires the region: it accepts no new payloads, and free buffers give their memory back. A
    /// server may keep the rest mapped for long.
    fn retire(&self) {
        self.is_retired.store(true, Ordering::SeqCst);
        let warm = std::mem::take(&mut self.buffers().warm);
        warm.into_iter().for_each(|index| self.cool(index));
    }
}

impl AsFd for Region {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A buffer and its owner.
#[derive(Debug)]
pub(crate) struct Buffer {
    region: Arc<Region>,
    index: u32,
}

impl Buffer {
    pub(crate) fn bytes(&self) -> &[u8] {
        let region = &*self.region;
        let at = self.index as usize * region.buffer_bytes;
        region.map.bytes(at, region.buffer_bytes)
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let region = &*self.region;
        let at = self.index as usize * region.buffer_bytes;
        region.map.bytes_mut(at, region.buffer_bytes)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.region.let_go(self.index);
    }
}

/// A hold: a server may use a part of a buffer. Dropping it without [`Self::release`] keeps the
/// buffer for ever and retires the region.
#[derive(Debug)]
#[must_use = "a hold that is dropped retires its region"]
pub struct Hold {
    region: Arc<Region>,
    index: u32,
    offset: u64,
    length: u32,
    is_over: bool,
}

impl Hold {
    /// Offset of the part in the region, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub fn length(&self) -> u32 {
        self.length
    }

    /// The region.
    #[must_use]
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Ends the hold: the server is done with the part.
    pub fn release(mut self) {
        self.is_over = true;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_over {
            self.region.let_go(self.index);
        } else {
            self.region.retire();
        }
    }
}
