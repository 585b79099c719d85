//! Leased names: names of directories, present and absent, and whole listings, kept while the
//! directory's lease goes on. Inodes are kept without attributes, which have their own table.
//!
//! *Invariants*: an event is counted at its link before the client looks it up here. A grant is
//! checked against that count under the table's lock. So no name is kept past an event. A
//! directory's names have one lease: a grant extends all of them, unless it had ended. Own changes:
//! see `own_changes`. Bound: [`LEASED_NAMES_MAX`] names; a table that would go beyond is emptied.

use crate::cell::session::{LeaseTerm, Link};
use std::collections::BTreeMap;
use zonal_types::{FileKind, Ino, Instant, Name};
use zonal_wire::DirEntry;

/// Names kept, listed ones counted twice.
pub const LEASED_NAMES_MAX: usize = 262_144;

/// A name under a lease: its inode, where it exists.
pub(crate) type LeasedName = Option<(Ino, FileKind)>;

/// An entry of a kept listing.
#[derive(Debug, Clone)]
pub(crate) struct ListedName {
    pub(crate) name: Name,
    pub(crate) cookie: u64,
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
}

#[derive(Debug)]
struct LeasedDirectory {
    term: LeaseTerm,
    names: BTreeMap<Name, LeasedName>,
    /// The listing from its start, as far as it was read.
    listing: Vec<ListedName>,
    /// The listing has its end.
    is_complete: bool,
}

impl LeasedDirectory {
    fn len(&self) -> usize {
        self.names.len() + self.listing.len()
    }
}

/// Names under leases, by directory.
#[derive(Debug, Default)]
pub(crate) struct LeasedNames {
    directories: BTreeMap<Ino, LeasedDirectory>,
    names: usize,
}

impl LeasedNames {
    /// The directory, under a lease that goes on or begins with `term`.
    fn leased(
        &mut self,
        link: &Link,
        dir: Ino,
        term: LeaseTerm,
        now: Instant,
    ) -> &mut LeasedDirectory {
        let is_over = self
            .directories
            .get(&dir)
            .is_some_and(|known| known.term.left_ms(link, now) == 0);
        if is_over {
            self.forget(dir);
        }
        let known = self.directories.entry(dir).or_insert(LeasedDirectory {
            term,
            names: BTreeMap::new(),
            listing: Vec::new(),
            is_complete: false,
        });
        known.term = term;
        known
    }

    /// Keeps a name.
    pub(crate) fn note(
        &mut self,
        link: &Link,
        (dir, name): (Ino, &Name),
        found: LeasedName,
        term: LeaseTerm,
        now: Instant,
    ) {
        let known = self.leased(link, dir, term, now);
        let is_new = known.names.insert(name.clone(), found).is_none();
        self.names += usize::from(is_new);
        self.check_bound();
    }

    /// Keeps a page of a listing that begins behind `cookie`. `is_end`: it is the last one.
    pub(crate) fn note_page(
        &mut self,
        link: &Link,
        (dir, cookie): (Ino, u64),
        (entries, is_end): (&[DirEntry], bool),
        term: LeaseTerm,
        now: Instant,
    ) {
        let known = self.leased(link, dir, term, now);
        let before = known.len();
        if cookie == 0 {
            known.listing.clear();
            known.is_complete = false;
        }
        let last = known.listing.last().map_or(0, |listed| listed.cookie);
        if last == cookie && !known.is_complete {
            for item in entries {
                let (ino, kind) = (item.entry.ino, item.entry.kind);
                known.names.insert(item.name.clone(), Some((ino, kind)));
                known.listing.push(ListedName {
                    name: item.name.clone(),
                    cookie: item.cookie,
                    ino,
                    kind,
                });
            }
            known.is_complete = is_end;
        }
        let after = known.len();
        self.names = self.names + after - before;
        self.check_bound();
    }

    /// A name, and for how many ms it is valid. `None`: unknown.
    pub(crate) fn get(
        &self,
        link: &Link,
        dir: Ino,
        name: &Name,
        now: Instant,
    ) -> Option<(LeasedName, u32)> {
        let known = self.directories.get(&dir)?;
        let left = known.term.left_ms(link, now);
        let found = match known.names.get(name) {
            Some(found) => *found,
            None if known.is_complete => None,
            None => return None,
        };
        (left > 0).then_some((found, left))
    }

    /// At most `most` entries of a complete listing behind `cookie`, whether it ends with them, and
    /// for how many ms they are valid.
    pub(crate) fn page(
        &self,
        link: &Link,
        (dir, cookie): (Ino, u64),
        most: usize,
        now: Instant,
    ) -> Option<(&[ListedName], bool, u32)> {
        let known = self.directories.get(&dir)?;
        let left = known.term.left_ms(link, now);
        if !known.is_complete || left == 0 {
            return None;
        }
        let from = match cookie {
            0 => 0,
            _ => 1 + known.listing.iter().position(|at| at.cookie == cookie)?,
        };
        let rest = known.listing.get(from..)?;
        let page = rest.get(..most).unwrap_or(rest);
        Some((page, page.len() == rest.len(), left))
    }

    /// Forgets a name that this client changes, and the listing with it.
    pub(crate) fn forget_name(&mut self, dir: Ino, name: &Name) {
        if let Some(known) = self.directories.get_mut(&dir) {
            let before = known.len();
            known.names.remove(name);
            known.listing.clear();
            known.is_complete = false;
            let after = known.len();
            self.names = self.names + after - before;
        }
    }

    pub(crate) fn forget(&mut self, dir: Ino) {
        if let Some(known) = self.directories.remove(&dir) {
            let names = known.len();
            assert!(
                names <= self.names,
                "{names} names leave, {} are counted",
                self.names
            );
            self.names -= names;
        }
    }

    pub(crate) fn forget_all(&mut self) {
        *self = Self::default();
    }

    /// Numbers of directories and of names.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.directories.len(), self.names)
    }

    fn check_bound(&mut self) {
        if self.names > LEASED_NAMES_MAX {
            self.forget_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::ShardId;
    use zonal_wire::Entry;

    const DIR: Ino = Ino(5);
    const FILE: LeasedName = Some((Ino(9), FileKind::File));

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    fn at(ms: u64) -> Instant {
        Instant(0).plus_ms(ms)
    }

    struct Table {
        names: LeasedNames,
        link: Link,
    }

    impl Table {
        fn new() -> Self {
            let (names, link) = (LeasedNames::default(), Link::new(ShardId(1)));
            Self { names, link }
        }

        fn note(&mut self, text: &str, found: LeasedName, ms: u64, now: u64) {
            let term = LeaseTerm::new(&self.link, at(ms));
            let of = (DIR, &name(text));
            self.names.note(&self.link, of, found, term, at(now));
        }

        fn page(&mut self, cookie: u64, names: &[(&str, u64)], is_end: bool) {
            let entries: Vec<DirEntry> = names
                .iter()
                .map(|(text, cookie)| DirEntry {
                    name: name(text),
                    cookie: *cookie,
                    entry: Entry {
                        ino: Ino(9),
                        kind: FileKind::File,
                        attr: None,
                        entry_ms: 0,
                        attr_ms: 0,
                    },
                })
                .collect();
            let term = LeaseTerm::new(&self.link, at(100));
            let page = (&*entries, is_end);
            let of = (DIR, cookie);
            self.names.note_page(&self.link, of, page, term, at(0));
        }

        fn get(&self, text: &str, now: u64) -> Option<(LeasedName, u32)> {
            self.names.get(&self.link, DIR, &name(text), at(now))
        }

        fn listed(&self, cookie: u64, most: usize) -> Option<(Vec<u64>, bool)> {
            let page = self.names.page(&self.link, (DIR, cookie), most, at(0))?;
            let cookies = page.0.iter().map(|item| item.cookie).collect();
            Some((cookies, page.1))
        }
    }

    #[test]
    fn names_are_valid_while_the_lease_of_the_directory_goes_on() {
        let mut table = Table::new();
        table.note("a", FILE, 100, 0);
        table.note("b", None, 150, 50);
        assert_eq!(table.get("a", 120), Some((FILE, 30)), "extended by b's");
        assert_eq!(table.get("b", 120), Some((None, 30)));
        assert_eq!(table.get("c", 120), None);
        assert_eq!(table.get("a", 150), None);
        table.note("c", FILE, 300, 200);
        assert_eq!(table.get("a", 210), None, "the lease had a gap");
        assert_eq!(table.names.len(), (1, 1));
    }

    #[test]
    fn a_complete_listing_is_told_in_pages_and_knows_absent_names() {
        let mut table = Table::new();
        table.page(0, &[("a", 3), ("b", 5)], false);
        assert_eq!(table.listed(0, 9), None);
        assert_eq!(table.get("c", 0), None);
        table.page(4, &[("x", 7)], true);
        assert_eq!(table.listed(0, 9), None, "a page that does not follow");
        table.page(5, &[("d", 8)], true);
        assert_eq!(table.listed(0, 2), Some((vec![3, 5], false)));
        assert_eq!(table.listed(5, 2), Some((vec![8], true)));
        assert_eq!(table.listed(8, 2), Some((vec![], true)));
        assert_eq!(table.listed(6, 2), None);
        assert_eq!(table.get("c", 0), Some((None, 100)));
        assert_eq!(table.get("d", 0), Some((FILE, 100)));
        table.names.forget_name(DIR, &name("a"));
        assert_eq!(table.listed(0, 9), None);
        assert_eq!((table.get("a", 0), table.get("c", 0)), (None, None));
        assert_eq!(table.get("b", 0), Some((FILE, 100)));
        assert_eq!(table.names.len(), (1, 2));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut table = Table::new();
        for number in 0..=LEASED_NAMES_MAX {
            table.note(&number.to_string(), FILE, 100, 0);
        }
        assert_eq!(table.names.len(), (0, 0));
    }
}
