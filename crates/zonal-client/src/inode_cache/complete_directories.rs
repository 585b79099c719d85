//! Complete directories: the client knows every name of a directory, so it answers look-ups of
//! absent names itself.
//!
//! A directory is complete from the moment this client makes it, while its lease continues without
//! a gap and no event names it. The kernel sends LOOKUP before each CREATE, so this halves the
//! round trips of creations.
//!
//! *Invariants*
//!
//! 1. A name is added before the request that makes it is sent, and is never removed. So a name
//!    that is reported absent is absent.
//! 2. An event is counted at its link before the client looks it up here. A grant is checked
//!    against that count under the table's lock. So no directory stays complete past an event.
//!
//! Names are kept as 64-bit hashes; two names with one hash cost a round trip. Bounds:
//! [`KNOWN_DIRECTORIES_MAX`], [`KNOWN_NAMES_MAX`]; a directory that would go beyond them is
//! forgotten.

use crate::cell::Cell;
use crate::cell::session::{Link, RequestStart};
use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{Attr, FileKind, Ino, Instant, Name};
use zonal_wire::Entry;

/// Complete directories at once.
pub const KNOWN_DIRECTORIES_MAX: usize = 4_096;
/// Names at once, in all directories (8 bytes and the tree's share each).
pub const KNOWN_NAMES_MAX: usize = 262_144;

#[derive(Debug)]
struct CompleteDirectory {
    until: Instant,
    names: BTreeSet<u64>,
}

/// Directories by inode.
#[derive(Debug, Default)]
pub(crate) struct CompleteDirectories {
    directories: BTreeMap<Ino, CompleteDirectory>,
    names: usize,
}

impl CompleteDirectories {
    /// Adds the new, empty directory `dir`, complete until `until`.
    fn begin(&mut self, dir: Ino, until: Instant, now: Instant) {
        if self.directories.len() >= KNOWN_DIRECTORIES_MAX {
            self.drop_expired(now);
        }
        if self.directories.len() < KNOWN_DIRECTORIES_MAX {
            let names = BTreeSet::new();
            self.forget(dir);
            self.directories
                .insert(dir, CompleteDirectory { until, names });
        }
    }

    /// Extends the lease to `until`, unless it had ended.
    fn extend(&mut self, dir: Ino, until: Instant, now: Instant) {
        match self.directories.get_mut(&dir) {
            Some(known) if known.until > now => known.until = known.until.max(until),
            Some(_ended) => self.forget(dir),
            None => {}
        }
    }

    /// Adds a name that may exist from now on.
    fn add(&mut self, dir: Ino, name: &Name) {
        let Some(known) = self.directories.get_mut(&dir) else {
            return;
        };
        self.names += usize::from(known.names.insert(sum(name)));
        if self.names > KNOWN_NAMES_MAX {
            self.forget(dir);
        }
    }

    /// How long the absence of a name in `dir` is certain, ms.
    fn absent_ms(&self, dir: Ino, name: &Name, now: Instant) -> Option<u32> {
        let known = self.directories.get(&dir)?;
        let left = u32::try_from(known.until.ms_since(now)).unwrap_or(u32::MAX);
        (left > 0 && !known.names.contains(&sum(name))).then_some(left)
    }

    pub(crate) fn forget(&mut self, dir: Ino) {
        if let Some(known) = self.directories.remove(&dir) {
            let names = known.names.len();
            assert!(
                names <= self.names,
                "{names} names leave, {} are counted",
                self.names
            );
            self.names -= names;
        }
        assert!(
            self.names <= KNOWN_NAMES_MAX + 1 && (self.names == 0 || !self.directories.is_empty()),
            "{} names in {} directories",
            self.names,
            self.directories.len()
        );
    }

    pub(crate) fn forget_all(&mut self) {
        *self = Self::default();
    }

    fn drop_expired(&mut self, now: Instant) {
        self.directories.retain(|_dir, known| known.until > now);
        self.names = self
            .directories
            .values()
            .map(|known| known.names.len())
            .sum();
    }

    /// Number of directories and of names.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.directories.len(), self.names)
    }
}

/// FNV-1a, 64 bits.
fn sum(name: &Name) -> u64 {
    let bytes = name.as_bytes().iter();
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl InodeCache {
    /// How long the absence of `name` in `dir` is certain, ms; `None`: the shard must be asked.
    pub(crate) fn known_absent<N: Net>(
        &self,
        cell: &Cell<N>,
        dir: Ino,
        name: &Name,
    ) -> Option<u32> {
        lock(&self.complete_directories).absent_ms(dir, name, cell.net.now())
    }

    /// Notes a name before the request that may make it.
    pub(crate) fn will_have(&self, dir: Ino, name: &Name) {
        lock(&self.complete_directories).add(dir, name);
    }

    /// Adds a directory that this client made, under the reply's lease.
    pub(crate) fn note_made<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        asked: RequestStart,
        attr: &Attr,
        granted_ms: u32,
    ) {
        if attr.kind != FileKind::Directory {
            return;
        }
        let mut known = lock(&self.complete_directories);
        let now = cell.net.now();
        // Under the lock: invariant 2.
        let left = cell.cache_ms(link, asked, granted_ms);
        if left > 0 {
            known.begin(attr.ino, now.plus_ms(left.into()), now);
        }
    }

    /// Extends the lease on `dir` by a reply.
    pub(crate) fn note_renewed<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        asked: RequestStart,
        dir: Ino,
        entry: &Entry,
    ) {
        let mut known = lock(&self.complete_directories);
        let now = cell.net.now();
        let left = cell.cache_ms(link, asked, entry.entry_ms);
        if left > 0 {
            known.extend(dir, now.plus_ms(left.into()), now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn at(ms: u64) -> Instant {
        Instant(0).plus_ms(ms)
    }

    #[test]
    fn only_names_that_were_never_made_are_absent() {
        let mut known = CompleteDirectories::default();
        assert_eq!(known.absent_ms(Ino(5), &name("a"), at(0)), None);
        known.begin(Ino(5), at(100), at(0));
        assert_eq!(known.absent_ms(Ino(5), &name("a"), at(40)), Some(60));
        known.add(Ino(5), &name("a"));
        assert_eq!(known.absent_ms(Ino(5), &name("a"), at(40)), None);
        assert_eq!(known.absent_ms(Ino(5), &name("b"), at(40)), Some(60));
        known.forget(Ino(5));
        assert_eq!(known.absent_ms(Ino(5), &name("b"), at(40)), None);
        assert_eq!(known.len(), (0, 0));
    }

    #[test]
    fn a_lease_that_had_a_gap_is_not_renewed() {
        let mut known = CompleteDirectories::default();
        known.begin(Ino(5), at(100), at(0));
        known.extend(Ino(5), at(150), at(90));
        assert_eq!(known.absent_ms(Ino(5), &name("a"), at(140)), Some(10));
        known.extend(Ino(5), at(300), at(150));
        assert_eq!(known.absent_ms(Ino(5), &name("a"), at(160)), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let mut known = CompleteDirectories::default();
        for ino in 0..KNOWN_DIRECTORIES_MAX as u64 + 9 {
            known.begin(Ino(ino), at(100), at(0));
        }
        assert_eq!(known.len().0, KNOWN_DIRECTORIES_MAX);
        for number in 0..=KNOWN_NAMES_MAX {
            known.add(Ino(7), &name(&number.to_string()));
        }
        assert_eq!(
            known.len(),
            (KNOWN_DIRECTORIES_MAX - 1, 0),
            "the largest is forgotten"
        );
        known.begin(Ino(7), at(100), at(0));
        known.begin(Ino(u64::MAX), at(300), at(200));
        assert_eq!(known.len(), (1, 0), "what ended makes room");
    }
}
