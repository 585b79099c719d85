//! Recent removals: inodes that stay accessible by number for a moment after their removal.
//!
//! A client resolves a name and then opens the inode: two requests, between which another client
//! may have replaced the file. POSIX does not know this gap. So a removed inode stays in memory for
//! [`RECENT_MS`]. Its attributes can be read, and an open brings a file back as an orphan of the
//! session that opens it. Its objects are not deleted before.
//!
//! *Invariants*: bounded by [`RECENT_MAX`] (the oldest go first). An inode that was handed to the
//! deletions is not here any more, so no file comes back whose bytes may be gone. *Volatile*: a
//! restart of the shard forgets all of them.

use crate::inode::Inode;
use std::collections::{BTreeMap, VecDeque};
use zonal_types::{Ino, Instant};

/// Time for which a removed inode can be brought back, ms.
pub const RECENT_MS: u64 = 1_000;
/// Removed inodes kept.
pub const RECENT_MAX: usize = 1_024;
/// Inodes with more bytes of extended attributes and contents are not kept.
pub const RECENT_BYTES_MAX: usize = 8_192;

/// A removed inode with its extended attributes, as they were stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemovedInode {
    pub inode: Inode,
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Its inline bytes.
    pub inline: Vec<u8>,
}

/// The recently removed inodes.
#[derive(Debug, Default)]
pub(crate) struct RecentRemovals {
    removed: BTreeMap<Ino, (RemovedInode, Instant)>,
    order: VecDeque<(Instant, Ino)>,
}

impl RecentRemovals {
    /// Keeps an inode for [`RECENT_MS`] from `now` on.
    pub fn keep(&mut self, removed: RemovedInode, now: Instant) {
        let bytes: usize = removed
            .xattrs
            .iter()
            .map(|(key, value)| key.len() + value.len())
            .sum();
        if bytes + removed.inline.len() > RECENT_BYTES_MAX {
            return;
        }
        let until = now.plus_ms(RECENT_MS);
        self.order.push_back((until, removed.inode.ino));
        self.removed.insert(removed.inode.ino, (removed, until));
        while self.order.len() > RECENT_MAX {
            self.drop_oldest();
        }
        assert!(
            self.removed.len() <= self.order.len(),
            "{} removed inodes are kept, {} will be dropped",
            self.removed.len(),
            self.order.len()
        );
    }

    /// The kept state of an inode.
    pub fn get(&self, ino: Ino) -> Option<&RemovedInode> {
        self.removed.get(&ino).map(|(removed, _until)| removed)
    }

    /// Forgets an inode that was brought back.
    pub fn forget(&mut self, ino: Ino) {
        self.removed.remove(&ino);
    }

    /// Drops inodes whose time is over.
    pub fn sweep(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.drop_oldest();
        }
    }

    /// Time at which the next inode is dropped.
    pub fn next_end(&self) -> Option<Instant> {
        self.order.front().map(|(until, _ino)| *until)
    }

    pub fn len(&self) -> usize {
        self.removed.len()
    }

    fn drop_oldest(&mut self) {
        let Some((until, ino)) = self.order.pop_front() else {
            return;
        };
        // It may have been brought back and removed again since.
        if self.removed.get(&ino).is_some_and(|kept| kept.1 == until) {
            self.removed.remove(&ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{FileKind, Timestamp, ZoneId};

    fn removed(ino: u64) -> RemovedInode {
        let wall = Timestamp::default();
        let inode = Inode::new(Ino(ino), FileKind::File, Ino::ROOT, ZoneId(1), wall);
        let xattrs = Vec::new();
        let inline = Vec::new();
        RemovedInode {
            inode,
            xattrs,
            inline,
        }
    }

    #[test]
    fn removed_inodes_are_kept_for_a_limited_time_and_number() {
        let mut recent = RecentRemovals::default();
        recent.keep(removed(5), Instant(0));
        recent.forget(Ino(5));
        recent.keep(removed(5), Instant(0).plus_ms(10));
        recent.sweep(Instant(0).plus_ms(RECENT_MS));
        assert!(recent.get(Ino(5)).is_some());
        recent.sweep(Instant(0).plus_ms(RECENT_MS + 10));
        assert!(recent.get(Ino(5)).is_none() && recent.next_end().is_none());
        for ino in 0..RECENT_MAX as u64 + 10 {
            recent.keep(removed(ino), Instant(0));
        }
        assert_eq!((recent.len(), recent.order.len()), (RECENT_MAX, RECENT_MAX));
        assert!(recent.get(Ino(9)).is_none() && recent.get(Ino(10)).is_some());
        let mut large = removed(7);
        large.xattrs.push((vec![0; 10], vec![0; RECENT_BYTES_MAX]));
        recent.keep(large, Instant(0));
        assert!(recent.get(Ino(7)).is_none());
    }

    #[test]
    #[should_panic(expected = "removed inodes are kept")]
    fn every_kept_inode_is_dropped_some_time() {
        let mut recent = RecentRemovals::default();
        recent.keep(removed(5), Instant(0));
        recent.order.clear();
        recent.keep(removed(6), Instant(0));
    }
}
