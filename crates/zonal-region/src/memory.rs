//! Memory for payloads: a buffer of the current region, or the process's own memory.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::region::{Buffer, Hold, Region};

/// Pause between requests for a region after the kernel refused one.
const PAUSE: Duration = Duration::from_secs(10);

/// A client's source of memory for payloads: its current region. Clones share it.
#[derive(Debug, Clone)]
pub struct Regions(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    buffer_bytes: usize,
    buffers: u32,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    region: Option<Arc<Region>>,
    /// Regions made so far.
    made: u64,
    /// When the kernel refused a region.
    refused: Option<Instant>,
}

impl Regions {
    /// Regions of `buffers` buffers of `buffer_bytes`, rounded up to whole pages. The first region
    /// is created on demand.
    #[must_use]
    pub fn new(buffer_bytes: usize, buffers: u32) -> Self {
        Self(Arc::new(Shared {
            buffer_bytes: buffer_bytes.next_multiple_of(4096),
            buffers,
            present: Mutex::default(),
        }))
    }

    /// `length` bytes with arbitrary contents, aligned to a page.
    #[must_use]
    pub fn take(&self, length: usize) -> Memory {
        if let Some(memory) = self.take_shared(length) {
            return memory;
        }
        // Zeroed memory of this size comes fresh from the kernel: untouched pages cost nothing.
        Memory::own(vec![0; length])
    }

    /// As [`Self::take`], but only from a buffer of a region.
    #[must_use]
    pub fn take_shared(&self, length: usize) -> Option<Memory> {
        if length > self.0.buffer_bytes {
            return None;
        }
        let buffer = self.present()?.take()?;
        Some(Memory {
            kind: Kind::Buffer(buffer),
            length,
        })
    }

    /// Holds the memory of `bytes` for a request, where it is a part of the current region.
    #[must_use]
    pub fn hold(&self, bytes: &[u8]) -> Option<Hold> {
        let region = self.lock().region.clone()?;
        region.hold(bytes)
    }

    /// Bytes in use of the current region, and all of its bytes.
    #[must_use]
    pub fn used(&self) -> (usize, usize) {
        let region = self.lock().region.clone();
        let all = self.0.buffer_bytes * self.0.buffers as usize;
        region.map_or((0, all), |region| region.used())
    }

    /// The current region, created where there is none.
    fn present(&self) -> Option<Arc<Region>> {
        let mut present = self.lock();
        match &present.region {
            Some(region) if !region.is_retired() => return Some(Arc::clone(region)),
            _ => {}
        }
        if present.refused.is_some_and(|at| at.elapsed() < PAUSE) {
            return None;
        }
        present.made += 1;
        let made = Region::new(present.made, self.0.buffer_bytes, self.0.buffers);
        let region = made
            .inspect_err(|error| {
                tracing::warn!(%error, "no memory is shared with servers on this machine");
            })
            .ok();
        present.refused = region.is_none().then(Instant::now);
        present.region.clone_from(&region);
        region
    }

    fn lock(&self) -> MutexGuard<'_, Present> {
        // No code that can panic runs under this lock; a poisoned one is still consistent.
        self.0
            .present
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a fixed length.
#[derive(Debug)]
pub struct Memory {
    kind: Kind,
    length: usize,
}

#[derive(Debug)]
enum Kind {
    Own(Vec<u8>),
    Buffer(Buffer),
}

impl Memory {
    /// Ordinary memory of the process.
    #[must_use]
    pub fn own(bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        let kind = Kind::Own(bytes);
        Self { kind, length }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let bytes = match &self.kind {
            Kind::Own(bytes) => bytes,
            Kind::Buffer(buffer) => buffer.bytes(),
        };
        bytes.get(..self.length).unwrap_or(bytes)
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        let bytes = match &mut self.kind {
            Kind::Own(bytes) => bytes.as_mut_slice(),
            Kind::Buffer(buffer) => buffer.bytes_mut(),
        };
        let length = self.length.min(bytes.len());
        &mut bytes[..length]
    }
}

#[cfg(test)]
mod tests;
