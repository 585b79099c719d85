//! Directories whose listing the kernel may keep from one open to the next.
//!
//! The kernel keeps what a listing told it in pages of the directory. They are the directory's
//! present names while the lease goes on under which the listing began, and no event names the
//! directory; changes through this mount the kernel sees itself.
//!
//! *Invariant*: an event is counted at its link before it is looked for here, and a grant is
//! checked against that count under the table's lock, so that no listing is kept past an event.
//! Bound: [`LISTED_MAX`]; a full table is emptied. Per listing: one lock.

use crate::client::Client;
use crate::net::Net;
use crate::session::{Link, RequestStart, lock};
use std::collections::BTreeMap;
use zonal_types::{Ino, Instant};
use zonal_wire::DirEntry;

/// Listings remembered.
pub const LISTED_MAX: usize = 4_096;

/// A kept listing must be worth that long, ms: its entries' names and attributes end with it, and
/// would be asked for one by one.
const LEFT_MIN_MS: u64 = 1_000;

/// Until when the listing of a directory may be kept.
#[derive(Debug, Default)]
pub(crate) struct KeptListings(BTreeMap<Ino, Instant>);

impl KeptListings {
    fn note(&mut self, dir: Ino, until: Instant) {
        if self.0.len() >= LISTED_MAX && !self.0.contains_key(&dir) {
            self.0.clear();
        }
        self.0.insert(dir, until);
    }

    /// Forgets it where it may not be kept any more: who opens it next begins anew.
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

    /// Listings held.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl<N: Net> Client<N> {
    /// The first part of a listing came, and is about to be told; what came with it as well.
    pub(crate) fn note_listed(
        &self,
        link: &Link,
        asked: RequestStart,
        dir: Ino,
        entries: &[DirEntry],
    ) {
        let mut listed = lock(&self.kept_listings);
        // Under the lock: see the head. Each entry has the directory's term.
        let granted = entries.first().map_or(0, |item| item.entry.entry_ms);
        match self.cache_ms(link, asked, granted) {
            0 => listed.forget(dir),
            left => listed.note(dir, self.net.now().plus_ms(left.into())),
        }
    }

    /// How long what the kernel keeps of the last listing of `dir` is what it would be told, ms; 0:
    /// it must not keep it.
    pub fn listing_left_ms(&self, dir: Ino) -> u64 {
        lock(&self.kept_listings).left_ms(dir, self.net.now())
    }

    /// `dir` has changed in a way that the kernel does not see.
    pub fn forget_listing(&self, dir: Ino) {
        lock(&self.kept_listings).forget(dir);
    }

    /// Whether what the kernel kept of the last listing of `dir` is what it would be told now.
    /// Where not, it has to be dropped before the next listing begins.
    pub fn keeps_listing(&self, dir: Ino) -> bool {
        lock(&self.kept_listings).keeps(dir, self.net.now())
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
