//! Run: the bytes of a dirty range, as a part of a piece of memory that may have room behind it.
//!
//! A long write comes with its memory: a worker's buffer that begins with the head of the request.
//! So nothing is copied between the kernel and the transport. A short write is copied to the end of
//! the run it continues. Bytes outside of the part are initialised, may be overwritten, and are
//! never read.

use std::fmt::Debug;
use std::ops::{Deref, DerefMut, Range};

/// Memory of a fixed length from the shell; its transport may send from it without a copy.
pub trait ShellMemory: DerefMut<Target = [u8]> + Debug + Send + Sync {}

impl<T: DerefMut<Target = [u8]> + Debug + Send + Sync> ShellMemory for T {}

#[derive(Debug)]
enum Memory {
    Own(Vec<u8>),
    Shell(Box<dyn ShellMemory>),
}

impl Default for Memory {
    fn default() -> Self {
        Self::Own(Vec::new())
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shell(bytes) => bytes,
        }
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shell(bytes) => bytes,
        }
    }
}

/// Bytes of a run.
#[derive(Debug, Default)]
pub struct Run {
    memory: Memory,
    from: usize,
    to: usize,
}

impl Run {
    /// The part `range` of `memory`, limited to its length.
    #[must_use]
    pub fn new(memory: Box<dyn ShellMemory>, range: Range<usize>) -> Self {
        let to = range.end.min(memory.len());
        let from = range.start.min(to);
        let memory = Memory::Shell(memory);
        let run = Self { memory, from, to };
        run.assert_within();
        run
    }

    /// An empty run with room for `bytes`.
    #[must_use]
    pub fn with_room(bytes: usize) -> Self {
        let memory = Memory::Own(Vec::with_capacity(bytes));
        let (from, to) = (0, 0);
        Self { memory, from, to }
    }

    /// Whether `bytes` more bytes fit without a move.
    #[must_use]
    pub fn has_room(&self, bytes: usize) -> bool {
        let room = match &self.memory {
            Memory::Own(own) => own.capacity(),
            Memory::Shell(brought) => brought.len(),
        };
        room - self.to >= bytes
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        let fit = bytes.len().min(self.memory.len() - self.to);
        let (here, behind) = bytes.split_at(fit);
        self.memory[self.to..self.to + fit].copy_from_slice(here);
        if !behind.is_empty() {
            // The memory has to grow.
            let mut own = match std::mem::take(&mut self.memory) {
                Memory::Own(own) => own,
                Memory::Shell(brought) => brought.to_vec(),
            };
            own.extend_from_slice(behind);
            self.memory = Memory::Own(own);
        }
        self.to += bytes.len();
        self.assert_within();
    }

    fn assert_within(&self) {
        let length = self.memory.len();
        assert!(
            self.from <= self.to && self.to <= length,
            "a run {}..{} leaves its memory of {length} bytes",
            self.from,
            self.to
        );
    }

    /// Overwrites bytes from `at` on, within the run.
    pub fn put(&mut self, at: usize, bytes: &[u8]) {
        let at = self.from + at;
        self.memory[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Removes the first `length` bytes.
    pub fn skip(&mut self, length: usize) {
        self.from = self.to.min(self.from + length);
    }

    /// Keeps at most the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.to = self.to.min(self.from + length);
    }

    /// Splits at `at`; returns a copy of the rest.
    #[must_use]
    pub fn split_off(&mut self, at: usize) -> Self {
        let behind = Self::from(&self[at..]);
        self.truncate(at);
        behind
    }

    /// Splits at `at`; returns a copy of the front.
    #[must_use]
    pub fn split_front(&mut self, at: usize) -> Self {
        let front = Self::from(&self[..at]);
        self.skip(at);
        front
    }
}

impl From<&[u8]> for Run {
    fn from(bytes: &[u8]) -> Self {
        let memory = Memory::Own(bytes.to_vec());
        let (from, to) = (0, bytes.len());
        Self { memory, from, to }
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
    fn a_run_grows_within_and_beyond_its_memory_and_splits_at_both_ends() {
        let mut run = Run::new(Box::new(vec![7; 10]), 2..6);
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
        // The removed bytes are room again.
        run.extend(&[3; 2]);
        run.put(4, &[4; 2]);
        assert_eq!(&run[..], [1, 1, 1, 1, 4, 4, 3]);
        assert_eq!(Run::new(Box::new(vec![0; 3]), 1..9).len(), 2);
        let mut run = Run::with_room(100);
        run.extend(&[]);
        assert!(run.is_empty());
        run.extend(&[5; 4]);
        assert_eq!(&run[..], [5; 4]);
    }
}
