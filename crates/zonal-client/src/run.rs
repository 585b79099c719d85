//! The bytes of one run: a part of a piece of memory that may have room behind it.
//!
//! A long write comes with its memory (a worker's buffer, whose first bytes are the request's head), so that nothing is copied
//! between the kernel and the socket; a short one is copied to the end of the run it continues. The memory is used again
//! ([`crate::spares`]), so what lies outside of the part stays initialised and is overwritten, never shown.

use std::ops::{Deref, Range};

/// Bytes of a run.
#[derive(Debug, Default)]
pub struct Run {
    memory: Vec<u8>,
    from: usize,
    to: usize,
}

impl Run {
    /// The part `range` of `memory`; cut to what is there.
    #[must_use]
    pub fn new(memory: Vec<u8>, range: Range<usize>) -> Self {
        let to = range.end.min(memory.len());
        let from = range.start.min(to);
        Self { memory, from, to }
    }

    /// Nothing yet, with all of `memory` as room.
    #[must_use]
    pub fn within(memory: Vec<u8>) -> Self {
        Self::new(memory, 0..0)
    }

    /// Adds bytes at the end.
    pub fn extend(&mut self, bytes: &[u8]) {
        let fit = bytes.len().min(self.memory.len() - self.to);
        let (here, behind) = bytes.split_at(fit);
        self.memory[self.to..self.to + fit].copy_from_slice(here);
        self.memory.extend_from_slice(behind);
        self.to += bytes.len();
    }

    /// Writes over what is there from `at` on; both within the run.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        let at = self.from + at;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Keeps the first `length` bytes at most.
    pub fn truncate(&mut self, length: usize) {
        self.to = self.to.min(self.from + length);
    }

    /// Cuts at `at`: what follows, copied.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let behind = Self::from(&self[at..]);
        self.truncate(at);
        behind
    }

    /// Cuts at `at`: what comes before, copied.
    #[must_use]
    pub fn split_front(&mut self, at: usize) -> Self {
        let front = Self::from(&self[..at]);
        self.from += at;
        front
    }

    /// The memory, to be used again.
    #[must_use]
    pub fn into_memory(self) -> Vec<u8> {
        self.memory
    }
}

impl From<&[u8]> for Run {
    fn from(bytes: &[u8]) -> Self {
        Self::new(bytes.to_vec(), 0..bytes.len())
    }
}

impl Deref for Run {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.from..self.to]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_within_its_memory_and_beyond_and_is_cut_at_both_ends() {
        let mut run = Run::new(vec![7; 10], 2..6);
        let place = run.as_ptr();
        run.extend(&[1; 4]);
        assert_eq!(
            (run.as_ptr(), &run[..]),
            (place, &[7, 7, 7, 7, 1, 1, 1, 1][..])
        );
        run.extend(&[2; 3]);
        assert_eq!(&run[8..], [2; 3]);
        assert_eq!(&run.split_off(9)[..], [2; 2]);
        assert_eq!(&run.split_front(4)[..], [7; 4]);
        assert_eq!(&run[..], [1, 1, 1, 1, 2]);
        // What was cut off is room again.
        run.extend(&[3; 2]);
        run.put(4, &[4; 2]);
        assert_eq!(&run[..], [1, 1, 1, 1, 4, 4, 3]);
        assert_eq!(Run::new(vec![0; 3], 1..9).len(), 2);
        assert_eq!(&Run::within(run.into_memory())[..], []);
    }
}
