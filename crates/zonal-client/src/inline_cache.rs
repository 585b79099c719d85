//! Bytes of small files that came with their opens, each until its first read: opening and reading
//! one is one question.
//!
//! Good for as long as the open's attributes may be cached: whoever changes the file waits until
//! this client has heard of it, or for that time to pass (docs/semantics.md). Dropped by that
//! event, and by the change counter of a later answer or of a write of our own.

use std::collections::BTreeMap;
use zonal_types::{Ino, Instant};

/// Files of which bytes are kept.
pub(crate) const SMALL_MAX: usize = 256;

struct CachedBytes {
    change: u64,
    until: Instant,
    bytes: Vec<u8>,
}

/// Bytes by file.
#[derive(Default)]
pub(crate) struct InlineCache(BTreeMap<Ino, CachedBytes>);

impl InlineCache {
    /// An open of the file brought these, good until `until`.
    pub(crate) fn keep(&mut self, ino: Ino, change: u64, until: Instant, bytes: Vec<u8>) {
        // Of many that are opened and not read the first ones go.
        if self.0.len() >= SMALL_MAX {
            self.0.pop_first();
        }
        let kept = CachedBytes {
            change,
            until,
            bytes,
        };
        self.0.insert(ino, kept);
    }

    /// They are read, while the file's change counter is `change`.
    pub(crate) fn take(&mut self, ino: Ino, change: u64, now: Instant) -> Option<Vec<u8>> {
        let kept = self.0.remove(&ino)?;
        let is_good = kept.change == change && now < kept.until;
        is_good.then_some(kept.bytes)
    }

    /// The file was changed by somebody, or is locked from now on.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.0.remove(&ino);
    }

    /// All leases are over.
    pub(crate) fn forget_all(&mut self) {
        self.0.clear();
    }

    /// Files of which bytes are kept.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::default().plus_ms(ms)
    }

    #[test]
    fn they_are_read_once_unchanged_and_soon() {
        let mut small = InlineCache::default();
        let keep = |small: &mut InlineCache| small.keep(Ino(7), 3, at(1_000), vec![1]);
        keep(&mut small);
        assert_eq!(small.take(Ino(7), 3, at(999)), Some(vec![1]));
        assert_eq!(small.take(Ino(7), 3, at(999)), None, "read");
        keep(&mut small);
        assert_eq!(small.take(Ino(7), 4, at(0)), None, "changed");
        keep(&mut small);
        assert_eq!(small.take(Ino(7), 3, at(1_000)), None, "old");
        keep(&mut small);
        small.forget(Ino(7));
        assert_eq!(small.take(Ino(7), 3, at(0)), None);
        assert_eq!(small.len(), 0);
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let mut small = InlineCache::default();
        for ino in 0..1_000 {
            small.keep(Ino(ino), 0, at(1), vec![0; 4]);
        }
        assert_eq!(small.len(), SMALL_MAX);
    }
}
