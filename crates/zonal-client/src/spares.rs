//! Memory of long runs, used again: a fresh megabyte costs a page fault for each of its 256 pages, and what was just sent is
//! still in the processor's cache.

use crate::session::lock;
use std::sync::Mutex;

/// Room in memory that is kept: a run as a stream leaves it, and the head of the request it came with.
const ROOM_MIN: usize = 1 << 20;
const ROOM_MAX: usize = ROOM_MIN + (64 << 10);
/// Pieces of memory kept.
pub const SPARES_MAX: usize = 8;

/// Memory of about one length. Its old bytes are in it.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<Vec<u8>>>);

impl Spares {
    /// Memory with room for `bytes`.
    pub(crate) fn room(&self, bytes: usize) -> Vec<u8> {
        let kept = (bytes == ROOM_MIN).then(|| lock(&self.0).pop());
        kept.flatten().unwrap_or_else(|| Vec::with_capacity(bytes))
    }

    /// Memory of exactly `length` bytes.
    pub(crate) fn exactly(&self, length: usize) -> Option<Vec<u8>> {
        let mut kept = lock(&self.0);
        let at = kept.iter().rposition(|memory| memory.len() == length)?;
        Some(kept.swap_remove(at))
    }

    /// Gives memory back; a piece of another length, or one too many, is freed.
    pub(crate) fn put(&self, memory: Vec<u8>) {
        if !(ROOM_MIN..=ROOM_MAX).contains(&memory.capacity()) {
            return;
        }
        let mut kept = lock(&self.0);
        if kept.len() < SPARES_MAX {
            kept.push(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_the_memory_of_one_before() {
        let spares = Spares::default();
        let run = vec![7; ROOM_MIN];
        let place = run.as_ptr();
        spares.put(run);
        spares.put(Vec::with_capacity(100));
        assert!(spares.room(100).capacity() < ROOM_MIN);
        assert_eq!(spares.exactly(ROOM_MIN + 1), None);
        let again = spares.exactly(ROOM_MIN).map(|memory| memory.as_ptr());
        assert_eq!(again, Some(place));
        assert!(spares.room(ROOM_MIN).is_empty());
    }

    #[test]
    fn the_rest_is_freed() {
        let spares = Spares::default();
        for _ in 0..2 * SPARES_MAX {
            spares.put(Vec::with_capacity(ROOM_MIN));
        }
        assert_eq!(lock(&spares.0).len(), SPARES_MAX);
    }
}
