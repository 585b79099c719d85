//! Page validity: which version of a file the kernel's pages show. It decides whether an open may
//! keep the pages.
//!
//! Bound: [`SEEN_MAX`]; the oldest entries are forgotten first, and the next open of a forgotten
//! file drops its pages.

use std::collections::BTreeMap;
use zonal_basics::BoundedMap;
use zonal_types::Ino;

/// Files remembered.
pub const SEEN_MAX: usize = 65_536;

/// Change counters that the kernel's pages show, by inode.
#[derive(Debug)]
pub struct PageVersions {
    changes: BoundedMap<Ino, u64>,
    clock: u64,
    /// Time of the last own change, by file.
    own: BTreeMap<Ino, u64>,
    /// Time at which pages of any file were last doubted.
    doubted: u64,
}

impl Default for PageVersions {
    fn default() -> Self {
        Self {
            changes: BoundedMap::new(SEEN_MAX),
            clock: 0,
            own: BTreeMap::new(),
            doubted: 0,
        }
    }
}

/// A time of the table's own clock, taken before a request to the shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageInstant(u64);

/// The version that the kernel's pages of a file will show once it has dropped the old ones. It is
/// noted only then, so that concurrent requests do not take the pages for newer than they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingPageVersion {
    change: u64,
    asked: PageInstant,
}

impl PendingPageVersion {
    /// The version in an answer to a request of that time.
    #[must_use]
    pub fn new(change: u64, asked: PageInstant) -> Self {
        Self { change, asked }
    }
}

impl PageVersions {
    /// The present time.
    #[must_use]
    pub fn now(&self) -> PageInstant {
        PageInstant(self.clock)
    }

    /// True where the pages of `ino` show `change` (of an answer to a request at `asked`), or own
    /// later changes.
    #[must_use]
    pub fn shows(&self, ino: Ino, change: u64, asked: PageInstant) -> bool {
        self.assert_past(asked);
        let known = self.changes.get(&ino).copied();
        let is_own = || self.own.get(&ino).is_some_and(|told| *told > asked.0);
        known.is_some_and(|known| known == change || (known > change && is_own()))
    }

    /// Notes that the kernel has dropped older pages of `ino`.
    pub fn dropped(&mut self, ino: Ino, changed: PendingPageVersion) {
        self.note(ino, changed.change, changed.asked);
    }

    /// Notes that the pages of `ino` show `change`, of an answer to a request at `asked`. True
    /// where they already showed it, or own later changes.
    pub fn note(&mut self, ino: Ino, change: u64, asked: PageInstant) -> bool {
        self.assert_past(asked);
        if asked.0 < self.doubted {
            return false;
        }
        self.clock += 1;
        let is_own = self.own.get(&ino).is_some_and(|told| *told > asked.0);
        if is_own
            && let Some(known) = self.changes.get(&ino)
            && *known > change
        {
            return true;
        }
        let did_show = self.changes.get(&ino) == Some(&change);
        if let Some((oldest, _change)) = self.changes.insert(ino, change) {
            self.own.remove(&oldest);
        }
        self.assert_counts();
        did_show
    }

    /// Notes an own change that led to `change`: the version follows where no other client's change
    /// came between.
    pub fn own_change(&mut self, ino: Ino, change: u64) {
        if let Some(known) = self.changes.get_mut(&ino) {
            if known.checked_add(1) == Some(change) {
                *known = change;
                self.clock += 1;
                self.own.insert(ino, self.clock);
            } else if *known != change {
                // The version is equal where an open heard of the change before this call.
                self.forget(ino);
            }
        }
    }

    /// True where the pages of `ino` may show another version than `change`.
    #[must_use]
    pub fn differs(&self, ino: Ino, change: u64) -> bool {
        self.changes.get(&ino) != Some(&change)
    }

    /// Files remembered now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// True where no file is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Marks the pages of `ino` as possibly older than assumed. Earlier requests prove nothing
    /// about them any more. The same then holds for other files, whose pages are dropped once more.
    pub fn doubt(&mut self, ino: Ino) {
        self.forget(ino);
        self.clock += 1;
        self.doubted = self.clock;
    }

    /// Forgets the version that the pages show.
    pub fn forget(&mut self, ino: Ino) {
        self.changes.remove(&ino);
        self.own.remove(&ino);
        self.assert_counts();
    }

    fn assert_past(&self, asked: PageInstant) {
        assert!(
            asked.0 <= self.clock,
            "a request of {} comes after {}",
            asked.0,
            self.clock
        );
    }

    fn assert_counts(&self) {
        let (files, own) = (self.changes.len(), self.own.len());
        assert!(own <= files, "{files} files, {own} changed here");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(seen: &mut PageVersions, ino: Ino, change: u64) -> bool {
        seen.note(ino, change, seen.now())
    }

    #[test]
    fn pages_are_valid_only_after_own_changes() {
        let mut seen = PageVersions::default();
        assert!(!note(&mut seen, Ino(5), 10));
        assert!(note(&mut seen, Ino(5), 10));
        seen.own_change(Ino(5), 11);
        assert!(note(&mut seen, Ino(5), 11));
        seen.own_change(Ino(5), 13);
        assert!(!note(&mut seen, Ino(5), 13));
        // A shard may send any number.
        note(&mut seen, Ino(5), u64::MAX);
        seen.own_change(Ino(5), 0);
        assert!(!note(&mut seen, Ino(5), 0));
    }

    #[test]
    fn an_answer_from_before_an_own_change_does_not_invalidate_pages() {
        let mut seen = PageVersions::default();
        note(&mut seen, Ino(5), 10);
        let before = seen.now();
        seen.own_change(Ino(5), 11);
        assert!(seen.note(Ino(5), 10, before));
        assert!(note(&mut seen, Ino(5), 11));
        assert!(!note(&mut seen, Ino(5), 10), "it went back");
        // An open heard of the own change before this client noted it.
        assert!(!note(&mut seen, Ino(5), 11));
        seen.own_change(Ino(5), 11);
        assert!(note(&mut seen, Ino(5), 11));
    }

    #[test]
    #[should_panic(expected = "comes after")]
    fn a_request_of_the_future_is_noticed() {
        PageVersions::default().note(Ino(5), 10, PageInstant(1));
    }

    #[test]
    fn unknown_pages_count_as_old() {
        let mut seen = PageVersions::default();
        assert!(seen.differs(Ino(5), 10));
        note(&mut seen, Ino(5), 10);
        assert!(!seen.differs(Ino(5), 10));
        // Another mount's change came between: its event is on its way, and the pages are not yet
        // dropped.
        seen.own_change(Ino(5), 12);
        assert!(seen.differs(Ino(5), 12));
        note(&mut seen, Ino(5), 12);
        seen.forget(Ino(5));
        assert!(seen.differs(Ino(5), 12));
    }

    #[test]
    fn a_drop_requested_before_a_doubt_does_not_validate_pages() {
        let mut seen = PageVersions::default();
        note(&mut seen, Ino(5), 10);
        let before = seen.now();
        seen.doubt(Ino(5));
        seen.dropped(Ino(5), PendingPageVersion::new(11, before));
        seen.own_change(Ino(5), 12);
        assert!(seen.differs(Ino(5), 12));
        let after = seen.now();
        seen.dropped(Ino(5), PendingPageVersion::new(12, after));
        assert!(!seen.differs(Ino(5), 12));
    }

    #[test]
    fn the_table_of_page_versions_is_bounded() {
        let mut seen = PageVersions::default();
        for ino in 0..SEEN_MAX as u64 + 10 {
            note(&mut seen, Ino(ino), 1);
        }
        assert_eq!(seen.changes.len(), SEEN_MAX);
    }
}
