//! Memory of long runs, used again: a fresh megabyte costs a page fault for each of its 256 pages, and what was just sent is
//! still in the processor's cache.

use crate::session::lock;
use std::sync::Mutex;

/// Bytes of a buffer that is kept: a run as a stream leaves it.
const SPARE_BYTES: usize = 1 << 20;
/// Buffers kept.
pub const SPARES_MAX: usize = 8;

/// Empty buffers of one length.
#[derive(Debug, Default)]
pub(crate) struct Spares(Mutex<Vec<Vec<u8>>>);

impl Spares {
    /// An empty buffer with room for `bytes`.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        let kept = (bytes == SPARE_BYTES).then(|| lock(&self.0).pop());
        kept.flatten().unwrap_or_else(|| Vec::with_capacity(bytes))
    }

    /// Gives a buffer back; one of another length, or too many, is freed.
    pub(crate) fn put(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() != SPARE_BYTES {
            return;
        }
        buffer.clear();
        let mut kept = lock(&self.0);
        if kept.len() < SPARES_MAX {
            kept.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_takes_the_memory_of_one_before() {
        let spares = Spares::default();
        let mut run = spares.take(SPARE_BYTES);
        run.extend_from_slice(&[7; 100]);
        let place = run.as_ptr();
        spares.put(run);
        spares.put(Vec::with_capacity(100));
        assert!(spares.take(100).capacity() < SPARE_BYTES);
        let again = spares.take(SPARE_BYTES);
        assert_eq!((again.as_ptr(), again.len()), (place, 0));
        let other = spares.take(SPARE_BYTES);
        assert_ne!(other.as_ptr(), place);
    }

    #[test]
    fn the_rest_is_freed() {
        let spares = Spares::default();
        for _ in 0..2 * SPARES_MAX {
            spares.put(Vec::with_capacity(SPARE_BYTES));
        }
        assert_eq!(lock(&spares.0).len(), SPARES_MAX);
    }
}
