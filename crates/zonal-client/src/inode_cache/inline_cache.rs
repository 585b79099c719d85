//! Inline cache: bytes of small files that came with an open, each kept until its first read.
//! Opening and reading a small file takes one request.
//!
//! An entry is valid as long as the open's attributes may be cached. A client that changes the file
//! waits until this client has acknowledged the event, or for that time to pass
//! (docs/semantics.md). That event removes the entry; so does a different change counter, of a
//! later answer or an own write.

use crate::cell::Cell;
use crate::cell::session::{Link, RequestStart};
use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use zonal_types::{Ino, Instant};

/// Files whose bytes are kept.
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
    /// Keeps the bytes that came with an open, valid until `until`.
    pub(crate) fn keep(&mut self, ino: Ino, change: u64, until: Instant, bytes: Vec<u8>) {
        // Entries that are never read make room first.
        if self.0.len() >= SMALL_MAX {
            self.0.pop_first();
        }
        let kept = CachedBytes {
            change,
            until,
            bytes,
        };
        self.0.insert(ino, kept);
        assert!(self.0.len() <= SMALL_MAX, "{} files are kept", self.0.len());
    }

    /// Takes the bytes for a read, while the file's change counter is `change`.
    pub(crate) fn take(&mut self, ino: Ino, change: u64, now: Instant) -> Option<Vec<u8>> {
        let kept = self.0.remove(&ino)?;
        let is_good = kept.change == change && now < kept.until;
        is_good.then_some(kept.bytes)
    }

    /// Removes the entry of a file that was changed, or is locked from now on.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.0.remove(&ino);
    }

    /// Removes all entries: all leases have ended.
    pub(crate) fn forget_all(&mut self) {
        self.0.clear();
    }

    /// Files whose bytes are kept.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl InodeCache {
    /// Keeps the bytes that came with an open, for the version `(change, until)`, under its lease.
    pub(crate) fn keep_bytes<N: Net>(
        &self,
        cell: &Cell<N>,
        (link, asked, granted_ms): (&Link, RequestStart, u32),
        ino: Ino,
        (change, until): (u64, Instant),
        bytes: Vec<u8>,
    ) {
        // Readers must not use the bytes before it is certain that no event came meanwhile, which
        // would have found no entry to remove.
        let mut small = lock(&self.inline_cache);
        small.keep(ino, change, until, bytes);
        if cell.cache_ms(link, asked, granted_ms) == 0 {
            small.forget(ino);
        }
    }

    /// Takes the bytes for a read, while the file's change counter is `change`.
    pub(crate) fn take_bytes<N: Net>(
        &self,
        cell: &Cell<N>,
        ino: Ino,
        change: u64,
    ) -> Option<Vec<u8>> {
        lock(&self.inline_cache).take(ino, change, cell.net.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::default().plus_ms(ms)
    }

    #[test]
    fn bytes_are_read_once_unchanged_and_before_they_expire() {
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
    fn the_inline_cache_is_bounded() {
        let mut small = InlineCache::default();
        for ino in 0..1_000 {
            small.keep(Ino(ino), 0, at(1), vec![0; 4]);
        }
        assert_eq!(small.len(), SMALL_MAX);
    }
}
