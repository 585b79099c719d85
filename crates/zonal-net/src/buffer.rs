//! Payload buffers: page-aligned, reused by each request of a connection, zeroed only when they
//! grow.
//!
//! *Invariants*:
//! 1. The visible part starts at a multiple of 4096, as files opened with O_DIRECT need.
//! 2. At most `PAYLOAD_BYTES_MAX` bytes are visible.
//! 3. After [`AlignedBuf::set_len`] the visible part may hold bytes of an earlier request of the
//!    same connection; the caller fills it.

use zonal_types::limits::PAYLOAD_BYTES_MAX;

const PAGE: usize = 4096;
/// Smallest allocation. A buffer doubles from here, so it settles after few requests.
const SMALLEST: usize = 64 * 1024;

/// A page-aligned byte buffer that keeps its memory.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    storage: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// An empty buffer without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of visible bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True where no byte is visible.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The visible bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.storage
            .get(self.start..self.start + self.len)
            .unwrap_or_default()
    }

    /// The visible bytes, mutable.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.storage
            .get_mut(self.start..self.start + self.len)
            .unwrap_or_default()
    }

    /// Makes `len` bytes visible (at most `PAYLOAD_BYTES_MAX`); their contents are unspecified.
    /// Growing past the allocation drops the old contents.
    pub fn set_len(&mut self, len: usize) {
        let len = len.min(PAYLOAD_BYTES_MAX);
        if self.storage.len() < self.start + len || self.storage.is_empty() {
            self.grow(len);
        }
        self.len = len;
    }

    /// Frees the memory.
    pub fn free(&mut self) {
        *self = Self::default();
    }

    fn grow(&mut self, len: usize) {
        if len == 0 {
            return;
        }
        let room = len.next_power_of_two().max(SMALLEST);
        self.storage = Vec::new();
        self.storage = vec![0; room + PAGE];
        // `align_offset` may refuse in theory; an unaligned buffer is still correct.
        self.start = match self.storage.as_ptr().align_offset(PAGE) {
            offset if offset < PAGE => offset,
            _ => 0,
        };
    }
}

impl std::ops::Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl std::ops::DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_and_keep_their_memory() {
        let mut buffer = AlignedBuf::new();
        assert!(buffer.as_slice().is_empty());
        buffer.set_len(0);
        for len in [1, 4096, 65_536, 100_000, PAYLOAD_BYTES_MAX, 5] {
            buffer.set_len(len);
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_slice().as_ptr().align_offset(PAGE), 0);
            buffer.fill(7);
        }
        let pointer = buffer.as_slice().as_ptr();
        buffer.set_len(PAYLOAD_BYTES_MAX);
        assert_eq!(buffer.as_slice().as_ptr(), pointer);
        buffer.set_len(usize::MAX);
        assert_eq!(buffer.len(), PAYLOAD_BYTES_MAX);
        buffer.free();
        assert!(buffer.is_empty());
    }
}
