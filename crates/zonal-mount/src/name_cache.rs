//! Name cache: names that the kernel may trust without asking, so that the mount can expire each
//! when it changes elsewhere.
//!
//! The kernel looks an expired name up at its next use. The directory entry itself stays, with
//! mounts on it, working directories below it and overlays above it. The kernel expires one name of
//! one directory at a time, so the mount has to know which names it has sent.
//!
//! *Invariants*
//!
//! 1. A name is in the table before the reply with it is sent.
//! 2. An event is counted ([`crate::attribute_hints`]) before the table is searched for its
//!    directory. An answer enters the table before it is compared with that count. So if an answer
//!    and an event cross, the event finds the name, or the answer is sent without a term.
//!
//! Bound: [`NAMES_MAX`]; a full table drops expired names. Where that is not enough, the kernel
//! must not cache further names.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_types::Ino;

/// Names remembered.
pub const NAMES_MAX: usize = 65_536;

/// Pause between two searches for expired names.
const ROOM: Duration = Duration::from_millis(200);

/// A name, shared by the table and the queues of expiries.
pub type NameBytes = Box<[u8]>;

#[derive(Clone, Copy)]
struct NameEntry {
    until: Instant,
    /// Time of the answer to a look-up, which the kernel may take over without the directory's
    /// lock.
    looked_up: Option<Instant>,
}

type DirectoryNames = BTreeMap<NameBytes, NameEntry>;

#[derive(Default)]
struct State {
    directories: BTreeMap<Ino, DirectoryNames>,
    names: usize,
    /// Time of the last search for expired names.
    room_made: Option<Instant>,
}

impl State {
    /// Drops expired names; false where none could be dropped. Few insertions search the whole
    /// table.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.room_made.is_some_and(|at| now < at + ROOM) {
            return false;
        }
        self.room_made = Some(now);
        self.directories.retain(|_dir, names| {
            names.retain(|_name, told| told.until > now);
            !names.is_empty()
        });
        self.names = self.directories.values().map(BTreeMap::len).sum();
        self.names < NAMES_MAX
    }

    fn insert(&mut self, dir: Ino, name: &[u8], told: NameEntry, now: Instant) -> bool {
        let names = self.directories.entry(dir).or_default();
        if let Some(before) = names.get_mut(name) {
            let until = before.until.max(told.until);
            *before = NameEntry { until, ..told };
            return true;
        }
        if self.names >= NAMES_MAX && !self.make_room(now) {
            return false;
        }
        let names = self.directories.entry(dir).or_default();
        names.insert(name.into(), told);
        self.names += 1;
        true
    }

    fn get(&self, dir: Ino, name: &[u8]) -> Option<NameEntry> {
        self.directories.get(&dir)?.get(name).copied()
    }

    fn remove(&mut self, dir: Ino, name: &[u8]) -> Option<NameEntry> {
        let names = self.directories.get_mut(&dir)?;
        let told = names.remove(name)?;
        if names.is_empty() {
            self.directories.remove(&dir);
        }
        self.names -= 1;
        Some(told)
    }
}

/// Names of one directory that the kernel may trust.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CachedNames {
    /// All names.
    pub names: Vec<NameBytes>,
    /// Names whose look-up was answered a moment ago: the kernel may take over the answer only now.
    pub fresh: Vec<NameBytes>,
}

/// Names that the kernel may trust.
#[derive(Default)]
pub struct NameCache(Mutex<State>);

impl NameCache {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names remembered now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().names
    }

    /// Notes a name before the kernel gets it; returns how long the kernel may trust it, ms.
    /// `is_look_up`: in the answer to a LOOKUP.
    #[must_use]
    pub fn note(&self, dir: Ino, name: &[u8], ms: u32, is_look_up: bool) -> u32 {
        if ms == 0 {
            return 0;
        }
        let now = Instant::now();
        let told = NameEntry {
            until: now + Duration::from_millis(ms.into()),
            looked_up: is_look_up.then_some(now),
        };
        if self.state().insert(dir, name, told, now) {
            ms
        } else {
            0
        }
    }

    /// Removes a name that this mount removed.
    pub fn removed(&self, dir: Ino, name: &[u8]) {
        self.state().remove(dir, name);
    }

    /// Copies the state of the first name to the second before a rename, and back with
    /// `is_exchange`. True where the kernel trusts either. (The first name stays until the rename
    /// has ended: an event may come before.)
    #[must_use]
    pub fn will_rename(&self, ends: [(Ino, &[u8]); 2], is_exchange: bool) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        let told = ends.map(|(dir, name)| state.get(dir, name));
        let [from, to] = ends;
        let moves = [(told[0], to), (told[1].filter(|_| is_exchange), from)];
        let mut is_believed = false;
        for (told, (dir, name)) in moves {
            if let Some(told) = told.filter(|told| told.until > now) {
                is_believed = true;
                state.insert(dir, name, told, now);
            }
        }
        is_believed
    }

    /// Takes out the names of a directory. `fresh`: time within which the answer to a look-up may
    /// be on its way into the kernel.
    #[must_use]
    pub fn take(&self, dir: Ino, fresh: Duration) -> CachedNames {
        let mut state = self.state();
        let names = state.directories.remove(&dir).unwrap_or_default();
        state.names -= names.len();
        drop(state);
        believed(names, fresh)
    }

    /// As [`Self::take`], for all directories.
    #[must_use]
    pub fn take_all(&self, fresh: Duration) -> Vec<(Ino, CachedNames)> {
        let all = std::mem::take(&mut *self.state()).directories;
        let all = all.into_iter();
        all.map(|(dir, names)| (dir, believed(names, fresh)))
            .collect()
    }
}

/// The kernel looks expired names up anyway, except one whose answer it has not yet taken over.
fn believed(names: DirectoryNames, fresh: Duration) -> CachedNames {
    let now = Instant::now();
    let mut believed = CachedNames::default();
    for (name, told) in names {
        let is_fresh = told.looked_up.is_some_and(|at| now < at + fresh);
        if is_fresh {
            believed.fresh.push(name.clone());
        }
        if is_fresh || told.until + fresh > now {
            believed.names.push(name);
        }
    }
    believed
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Duration = Duration::from_millis(1);

    fn names_of(names: &NameCache, dir: u64) -> Vec<Vec<u8>> {
        let taken = names.take(Ino(dir), FRESH).names;
        taken.into_iter().map(<[u8]>::into_vec).collect()
    }

    #[test]
    fn only_names_that_the_kernel_may_trust_are_taken() {
        let names = NameCache::default();
        assert_eq!(names.note(Ino(5), b"a", 60_000, false), 60_000);
        assert_eq!(names.note(Ino(5), b"b", 60_000, true), 60_000);
        assert_eq!(names.note(Ino(5), b"c", 0, true), 0);
        assert_eq!(names.note(Ino(6), b"a", 60_000, true), 60_000);
        names.removed(Ino(5), b"a");
        names.removed(Ino(5), b"never there");
        assert_eq!(names.len(), 2);
        assert_eq!(names_of(&names, 5), [b"b"]);
        assert_eq!(names_of(&names, 5), Vec::<Vec<u8>>::new());
        assert_eq!(names.len(), 1);
        let all = names.take_all(Duration::from_secs(60));
        assert_eq!((all.len(), names.len()), (1, 0));
        assert_eq!(all[0].1.fresh, all[0].1.names);
    }

    #[test]
    fn a_renamed_name_is_trusted_under_its_new_name() {
        let names = NameCache::default();
        let rename = |from: (u64, &[u8]), to: (u64, &[u8]), is_exchange| {
            names.will_rename([(Ino(from.0), from.1), (Ino(to.0), to.1)], is_exchange)
        };
        assert_eq!(names.note(Ino(5), b"a", 60_000, false), 60_000);
        assert!(!rename((7, b"unknown"), (6, b"d"), false));
        assert!(rename((5, b"a"), (6, b"c"), false));
        assert_eq!(names_of(&names, 5), [b"a"], "as long as it is under way");
        assert_eq!(names_of(&names, 6), [b"c"]);
        assert_eq!(names.note(Ino(5), b"a", 60_000, false), 60_000);
        assert!(!rename((6, b"b"), (5, b"a"), false), "it is replaced");
        assert!(rename((6, b"b"), (5, b"a"), true));
        assert_eq!(names_of(&names, 6), [b"b"]);
    }

    #[test]
    fn the_kernel_may_not_trust_names_beyond_a_full_table() {
        let names = NameCache::default();
        for number in 0..NAMES_MAX as u64 {
            let name = number.to_le_bytes();
            assert_eq!(names.note(Ino(number % 7), &name, 60_000, false), 60_000);
        }
        assert_eq!(names.note(Ino(1), b"one more", 60_000, false), 0);
        assert_eq!(
            names.note(Ino(0), &0_u64.to_le_bytes(), 60_000, false),
            60_000,
            "known"
        );
        std::thread::sleep(ROOM);
        let long_ago = Instant::now();
        for told in names
            .state()
            .directories
            .values_mut()
            .flat_map(BTreeMap::values_mut)
        {
            told.until = long_ago;
        }
        assert_eq!(names.note(Ino(1), b"one more", 60_000, false), 60_000);
        assert_eq!(names.len(), 1);
    }
}
