//! The memory that a worker reads requests to, and the data of a WRITE in it, which may be kept
//! instead of copied.

use std::ops::Range;

use zonal_region::Memory;

use crate::abi;

const PAGE: usize = 4096;

/// In front of the data of a WRITE.
const HEAD: usize = abi::IN_HEADER + abi::WRITE_IN;

/// Where a worker reads requests to. The data of a WRITE begin on a page.
#[derive(Debug)]
pub(crate) struct Desk {
    bytes: Memory,
    /// Where requests begin.
    start: usize,
}

impl Desk {
    /// For requests of up to `length` bytes.
    pub(crate) fn new(length: usize) -> Self {
        // Zeroed memory of this size comes fresh from the kernel: untouched pages cost nothing.
        Self::within(Memory::own(vec![0; length + 2 * PAGE]))
    }

    fn within(bytes: Memory) -> Self {
        let misaligned = bytes.as_ptr().addr() % PAGE;
        let start = 2 * PAGE - misaligned - HEAD;
        Self { bytes, start }
    }

    /// Where to read to.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }

    /// A message of `count` bytes that was read.
    pub(crate) fn message(&self, count: usize) -> &[u8] {
        self.bytes
            .get(self.start..self.start + count)
            .unwrap_or_default()
    }

    /// The `size` bytes behind the head of the WRITE that was read; decoding has seen that they are
    /// there.
    pub(crate) fn data(&mut self, size: u32) -> WriteData<'_> {
        let begin = (self.start + HEAD).min(self.bytes.len());
        let end = (begin + size as usize).min(self.bytes.len());
        WriteData {
            desk: self,
            range: begin..end,
        }
    }
}

/// The data of a WRITE, in its worker's memory.
#[derive(Debug)]
pub struct WriteData<'a> {
    desk: &'a mut Desk,
    range: Range<usize>,
}

impl WriteData<'_> {
    /// The bytes; they begin on a page.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.desk.bytes.get(self.range.clone()).unwrap_or_default()
    }

    /// Length of the memory that [`Self::take`] gives and takes in exchange.
    #[must_use]
    pub fn memory_len(&self) -> usize {
        self.desk.bytes.len()
    }

    /// Keeps the bytes without a copy: the worker's memory, and where in it they are. The worker
    /// goes on with `other`, if that is as long, else with fresh memory. There is some room behind
    /// the bytes.
    #[must_use]
    pub fn take(self, other: Memory) -> (Memory, Range<usize>) {
        let length = self.desk.bytes.len();
        let next = match other.len() == length {
            true => Desk::within(other),
            false => Desk::within(Memory::own(vec![0; length])),
        };
        (std::mem::replace(self.desk, next).bytes, self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_taken_and_the_worker_goes_on_with_other_memory() {
        let mut memory = Desk::new(64 << 10);
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
    fn a_size_beyond_the_memory_is_cut() {
        let mut memory = Desk::new(4096);
        assert!(memory.data(u32::MAX).bytes().len() < 3 * PAGE);
    }
}
