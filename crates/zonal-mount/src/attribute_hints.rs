//! Inodes whose attributes the kernel may cache under the shard's call-backs, and which extended
//! attributes they have.
//!
//! `ls -l` asks two attributes of each file that nearly never exist; the answer "no" needs no round
//! trip. And after a shard's restart the table says what the kernel has to drop.
//!
//! The kernel takes what a look-up answered over after the reply. Of an inode that it knew before,
//! it leaves attributes alone that are older than an invalidation; one that is new to it takes
//! them, and an invalidation that came just before found nothing. So the table knows which inodes
//! are new ([`NEW`]) and in which directory they were found: with an event about one of them its
//! attributes are dropped once more when the kernel has given up that directory's lock
//! ([`crate::expiries`]).
//!
//! Bounded by [`HINTS_MAX`]; a full table loses what nobody may cache any more. Where that is not
//! enough, the kernel is told to cache nothing of the next ones: so the table is always complete,
//! and a shard that is started again has to wait for no term.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_types::limits::xattr_flags;
use zonal_types::{Attr, Ino};

/// Inodes remembered.
pub const HINTS_MAX: usize = 65_536;

/// The kernel has taken an answer over within this time.
const NEW: Duration = Duration::from_secs(1);

/// Pause before room is made again.
const ROOM: Duration = Duration::from_millis(200);

/// Inodes of events that are remembered for answers under way.
const RECENT_MAX: usize = 256;

/// Flags of an inode of which it is not known what it has: it may have everything.
const ANY: u8 = u8::MAX;

struct HintEntry {
    flags: u8,
    until: Instant,
    /// When it was told to a kernel that perhaps did not know it, and the directory in which it was
    /// found.
    new_at: Option<(Instant, Ino)>,
    /// The kernel has forgotten it since.
    is_forgotten: bool,
}

#[derive(Default)]
struct State {
    known: BTreeMap<Ino, HintEntry>,
    /// Inodes that events named, and the last of them.
    events: u64,
    recent: VecDeque<Ino>,
    /// When room was made last.
    room_made: Option<Instant>,
}

impl State {
    /// For how long the kernel may cache it, ms.
    fn insert(&mut self, ino: Ino, flags: u8, ms: u32, found_in: Option<Ino>) -> u32 {
        let now = Instant::now();
        let before = self.known.get(&ino);
        let is_full = before.is_none() && self.known.len() >= HINTS_MAX;
        let new_at = match before {
            Some(before) if !before.is_forgotten => before.new_at,
            _ => found_in.map(|dir| (now, dir)),
        };
        if is_full && !self.make_room(now) {
            return 0;
        }
        let known = HintEntry {
            flags,
            until: now + Duration::from_millis(ms.into()),
            new_at,
            is_forgotten: false,
        };
        self.known.insert(ino, known);
        ms
    }

    /// False where there is none. Few insertions look at all of the table.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.room_made.is_some_and(|at| now < at + ROOM) {
            return false;
        }
        self.room_made = Some(now);
        self.known.retain(|_, known| known.until + NEW > now);
        self.known.len() < HINTS_MAX
    }

    /// An event named these.
    fn note_event(&mut self, inodes: &[Ino]) {
        self.events += inodes.len() as u64;
        self.recent.extend(inodes);
        let too_many = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..too_many);
    }

    /// Whether an event since then may have named the inode.
    fn is_named_since(&self, mark: EventMark, ino: Ino) -> bool {
        let count = usize::try_from(self.events - mark.0).unwrap_or(usize::MAX);
        count > self.recent.len() || self.recent.iter().rev().take(count).any(|of| *of == ino)
    }
}

/// Kinds of extended attributes by inode.
#[derive(Default)]
pub struct AttributeHints(Mutex<State>);

/// A point in the order of events: what was asked before it is not remembered after it.
#[derive(Clone, Copy)]
pub struct EventMark(u64);

impl AttributeHints {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inodes remembered now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.state().known.len()
    }

    /// To be taken before the request whose answer will be noted.
    #[must_use]
    pub fn mark(&self) -> EventMark {
        EventMark(self.state().events)
    }

    /// Remembers what an answer said, for as long as it may be cached: that, ms.
    #[must_use]
    pub fn note(&self, mark: EventMark, attr: &Attr, attr_ms: u32) -> u32 {
        self.note_answer(mark, attr, attr_ms, None)
    }

    /// The same of an answer that may tell the kernel of an inode for the first time: under the
    /// lock of that directory.
    #[must_use]
    pub fn note_new(&self, mark: EventMark, dir: Ino, attr: &Attr, attr_ms: u32) -> u32 {
        self.note_answer(mark, attr, attr_ms, Some(dir))
    }

    fn note_answer(
        &self,
        mark: EventMark,
        attr: &Attr,
        attr_ms: u32,
        found_in: Option<Ino>,
    ) -> u32 {
        if attr_ms == 0 {
            return 0;
        }
        let mut state = self.state();
        if state.is_named_since(mark, attr.ino) {
            state.insert(attr.ino, ANY, attr_ms, found_in);
            return 0;
        }
        state.insert(attr.ino, attr.xattrs, attr_ms, found_in)
    }

    /// The kernel knows the inode no more.
    pub fn kernel_forgot(&self, ino: Ino) {
        if let Some(known) = self.state().known.get_mut(&ino) {
            known.is_forgotten = true;
        }
    }

    /// Remembers that the kernel may cache an inode's attributes for so long: that, ms.
    #[must_use]
    pub fn note_term(&self, ino: Ino, attr_ms: u32) -> u32 {
        match attr_ms {
            0 => 0,
            ms => self.state().insert(ino, ANY, ms, None),
        }
    }

    /// Whether an event since then may have named the inode.
    #[must_use]
    pub fn is_named_since(&self, mark: EventMark, ino: Ino) -> bool {
        self.state().is_named_since(mark, ino)
    }

    /// Forgets what inodes have that changed (elsewhere or here). Returns those that are so new to
    /// the kernel that it may take over later what it was told, with the directories in which they
    /// were found.
    pub fn forget(&self, inodes: &[Ino]) -> Vec<(Ino, Ino)> {
        let mut state = self.state();
        state.note_event(inodes);
        let mut new = Vec::new();
        for ino in inodes {
            if let Some(known) = state.known.get_mut(ino) {
                known.flags = ANY;
                let found = known.new_at.filter(|(at, _dir)| at.elapsed() < NEW);
                new.extend(found.map(|(_at, dir)| (*ino, dir)));
            }
        }
        new
    }

    /// Forgets what all inodes have. Returns those whose attributes the kernel may cache.
    pub fn forget_all(&self) -> Vec<Ino> {
        let mut state = self.state();
        state.events += 1;
        state.recent.clear();
        let now = Instant::now();
        for known in state.known.values_mut() {
            known.flags = ANY;
        }
        let cached = state.known.iter().filter(|(_, known)| known.until > now);
        cached.map(|(ino, _)| *ino).collect()
    }

    /// True where it is known that the inode has no attribute of this name.
    #[must_use]
    pub fn is_absent(&self, ino: Ino, name: &[u8]) -> bool {
        let Some(kind) = kind_of(name) else {
            return false;
        };
        let state = self.state();
        state
            .known
            .get(&ino)
            .is_some_and(|known| known.flags & kind == 0 && Instant::now() < known.until)
    }
}

fn kind_of(name: &[u8]) -> Option<u8> {
    Some(match name {
        b"system.posix_acl_access" => xattr_flags::ACL_ACCESS,
        b"system.posix_acl_default" => xattr_flags::ACL_DEFAULT,
        xattr_flags::CAPABILITY_NAME => xattr_flags::CAPABILITY,
        name if name.starts_with(b"user.") => xattr_flags::USER,
        name if name.starts_with(b"trusted.") => xattr_flags::TRUSTED,
        name if name.starts_with(b"security.") => xattr_flags::SECURITY,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_may_cache_is_told_as_long_as_it_may() {
        let hints = AttributeHints::default();
        assert_eq!(hints.note_term(Ino(5), 60_000), 60_000);
        assert_eq!(hints.note_term(Ino(6), 0), 0);
        assert_eq!(hints.forget_all(), [Ino(5)]);
        // Forgetting what an inode has does not make the kernel forget its attributes.
        hints.forget(&[Ino(5)]);
        assert_eq!(hints.forget_all(), [Ino(5)]);
        assert!(!hints.is_absent(Ino(5), b"user.a"));
    }

    #[test]
    fn a_full_table_loses_what_nobody_may_cache_any_more() {
        let hints = AttributeHints::default();
        let long_ago = Instant::now().checked_sub(NEW * 2).unwrap();
        for ino in 0..HINTS_MAX as u64 {
            assert_eq!(hints.note_term(Ino(ino), 60_000), 60_000);
        }
        for (ino, known) in &mut hints.state().known {
            if ino.0 >= 100 {
                known.until = long_ago;
            }
        }
        assert_eq!(hints.note_term(Ino(u64::MAX), 60_000), 60_000);
        assert_eq!(hints.len(), 101);
        assert_eq!(hints.forget_all().len(), 101);
    }

    #[test]
    fn of_what_a_full_table_does_not_take_the_kernel_caches_nothing() {
        let hints = AttributeHints::default();
        for ino in 0..HINTS_MAX as u64 {
            assert_eq!(hints.note_term(Ino(ino), 60_000), 60_000);
        }
        for ino in 0..3 {
            assert_eq!(hints.note_term(Ino(u64::MAX - ino), 60_000), 0);
            assert_eq!(hints.note_term(Ino(ino), 60_000), 60_000, "known");
        }
        assert_eq!(hints.forget_all().len(), HINTS_MAX);
    }
}
