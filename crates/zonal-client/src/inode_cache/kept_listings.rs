//! Kept listings: directories whose listing the kernel may keep from one open to the next.
//!
//! The kernel keeps a listing in pages of the directory. The pages are valid while the lease under
//! which the listing began continues and no event names the directory. The kernel itself sees
//! changes through this mount.
//!
//! *Invariant*: an event is counted at its link before the client looks it up here. A grant is
//! checked against that count under the table's lock. So no listing is kept past an event.
//!
//! Bound: [`LISTED_MAX`]; a full table is emptied. Per listing: one lock.

use crate::cell::Cell;
use crate::cell::session::{Link, RequestStart};
use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use zonal_types::{Ino, Instant};
use zonal_wire::DirEntry;

/// Kept listings at once.
pub const LISTED_MAX: usize = 4_096;

/// Least remaining time of a kept listing, ms. Its entries' names and attributes expire with it,
/// and the kernel would look each up alone.
const LEFT_MIN_MS: u64 = 1_000;

/// Expiry of the kept listing, by directory.
#[derive(Debug, Default)]
pub(crate) struct KeptListings(BTreeMap<Ino, Instant>);

impl KeptListings {
    fn note(&mut self, dir: Ino, until: Instant) {
        if self.0.len() >= LISTED_MAX && !self.0.contains_key(&dir) {
            self.0.clear();
        }
        self.0.insert(dir, until);
        assert!(
            self.0.len() <= LISTED_MAX,
            "{} listings are kept",
            self.0.len()
        );
    }

    /// Whether the listing may be kept. Where not, it is forgotten, and the next open begins a new
    /// one.
    fn keeps(&mut self, dir: Ino, now: Instant) -> bool {
        let keeps = self.left_ms(dir, now) >= LEFT_MIN_MS;
        if !keeps {
            self.forget(dir);
        }
        keeps
    }

    pub(crate) fn forget(&mut self, dir: Ino) {
        self.0.remove(&dir);
    }

    fn left_ms(&self, dir: Ino, now: Instant) -> u64 {
        self.0.get(&dir).map_or(0, |until| until.ms_since(now))
    }

    pub(crate) fn forget_all(&mut self) {
        self.0.clear();
    }

    /// Number of kept listings.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl InodeCache {
    /// Notes the first page of a listing, before the kernel gets it.
    pub(crate) fn note_listed<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        asked: RequestStart,
        dir: Ino,
        entries: &[DirEntry],
    ) {
        let mut listed = lock(&self.kept_listings);
        // Under the lock: the head's invariant. Each entry has the directory's term.
        let granted = entries.first().map_or(0, |item| item.entry.entry_ms);
        match cell.cache_ms(link, asked, granted) {
            0 => listed.forget(dir),
            left => listed.note(dir, cell.net.now().plus_ms(left.into())),
        }
    }

    /// How long the kernel's copy of the last listing of `dir` stays valid, ms; 0: it must not be
    /// kept.
    pub(crate) fn listing_left_ms(&self, dir: Ino, now: Instant) -> u64 {
        lock(&self.kept_listings).left_ms(dir, now)
    }

    /// Whether the kernel's copy of the last listing of `dir` is still valid. Where not, it has to
    /// be dropped before the next listing begins.
    pub(crate) fn keeps_listing(&self, dir: Ino, now: Instant) -> bool {
        lock(&self.kept_listings).keeps(dir, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant(0).plus_ms(ms)
    }

    #[test]
    fn a_listing_is_kept_while_its_term_has_some_time_left() {
        let mut listed = KeptListings::default();
        assert!(!listed.keeps(Ino(5), at(0)));
        listed.note(Ino(5), at(5_000));
        assert!(listed.keeps(Ino(5), at(4_000)));
        assert!(!listed.keeps(Ino(5), at(4_001)));
        assert!(!listed.keeps(Ino(5), at(0)), "it was begun anew since");
    }

    #[test]
    fn the_table_is_bounded() {
        let mut listed = KeptListings::default();
        for ino in 0..=LISTED_MAX as u64 {
            listed.note(Ino(ino), at(5_000));
        }
        assert_eq!(listed.len(), 1);
    }
}
