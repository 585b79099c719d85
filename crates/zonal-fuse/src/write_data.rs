//! The buffer that a worker reads requests into, and the data of a WRITE in it, which may be kept
//! without a copy.

use std::ops::Range;

use zonal_region::Memory;

use crate::abi;

const PAGE: usize = 4096;

/// Bytes in front of the data of a WRITE.
const HEAD: usize = abi::IN_HEADER + abi::WRITE_IN;

/// A worker's buffer for requests. The data of a WRITE begin on a page.
#[derive(Debug)]
pub(crate) struct RequestBuffer {
    bytes: Memory,
    /// Offset of a request's first byte.
    start: usize,
}

impl RequestBuffer {
    /// A buffer for requests of up to `length` bytes.
    pub(crate) fn new(length: usize) -> Self {
        // Zeroed memory of this size comes fresh from the kernel: untouched pages cost nothing.
        Self::within(Memory::own(vec![0; length + 2 * PAGE]))
    }

    fn within(bytes: Memory) -> Self {
        let misaligned = bytes.as_ptr().addr() % PAGE;
        let start = 2 * PAGE - misaligned - HEAD;
        Self { bytes, start }
    }

    /// The part to read into.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }

    /// The message of `count` bytes that was read.
    pub(crate) fn message(&self, count: usize) -> &[u8] {
        self.bytes
            .get(self.start..self.start + count)
            .unwrap_or_default()
    }

    /// The `size` bytes behind the header of the WRITE that was read; decoding has checked that
    /// they are there.
    pub(crate) fn data(&mut self, size: u32) -> WriteData<'_> {
        let begin = (self.start + HEAD).min(self.bytes.len());
        let end = (begin + size as usize).min(self.bytes.len());
        WriteData {
            buffer: self,
            range: begin..end,
        }
    }
}

/// The data of a WRITE, in its worker's memory.
#[derive(Debug)]
pub struct WriteData<'a> {
    buffer: &'a mut RequestBuffer,
    range: Range<usize>,
}

impl WriteData<'_> {
    /// The bytes; they begin on a page.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.buffer
            .bytes
            .get(self.range.clone())
            .unwrap_or_default()
    }

    /// Length of the memory that [`Self::take`] exchanges.
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.buffer.bytes.len()
    }

    /// Keeps the bytes without a copy: returns the worker's memory and their range in it. The
    /// worker goes on with `other`, if that is as long, else with fresh memory. Some spare room
    /// follows the bytes.
    #[must_use]
    pub fn take(self, other: Memory) -> (Memory, Range<usize>) {
        let length = self.buffer.bytes.len();
        let next = match other.len() == length {
            true => RequestBuffer::within(other),
            false => RequestBuffer::within(Memory::own(vec![0; length])),
        };
        (std::mem::replace(self.buffer, next).bytes, self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_data_is_taken_and_the_worker_gets_other_memory() {
        let mut memory = RequestBuffer::new(64 << 10);
        for round in 1..4_u8 {
            let message = vec![round; HEAD + 5000];
            memory.room()[..message.len()].copy_from_slice(&message);
            assert_eq!(memory.message(message.len()), message);
            let data = memory.data(5000);
            assert_eq!(data.bytes(), [round; 5000]);
            assert_eq!(data.bytes().as_ptr().addr() % PAGE, 0);
            let place = data.bytes().as_ptr();
            let length = data.memory_len();
            let other = Memory::own(vec![9; length - usize::from(round == 2)]);
            let (taken, range) = data.take(other);
            assert_eq!(taken.get(range.clone()), Some(&[round; 5000][..]));
            assert_eq!(taken[range].as_ptr(), place);
            assert!(memory.room().len() >= 64 << 10);
        }
    }

    #[test]
    fn a_size_beyond_the_memory_is_bounded() {
        let mut memory = RequestBuffer::new(4096);
        assert!(memory.data(u32::MAX).bytes().len() < 3 * PAGE);
    }
}
