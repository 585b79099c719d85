//! Attribute hints: inodes whose attributes the kernel may cache under the shard's leases, and
//! which extended attributes they have.
//!
//! `ls -l` asks for two extended attributes of each file that almost never exist; the mount answers
//! "none" without a round trip. After a restart of a shard the table lists what the kernel has to
//! drop.
//!
//! The kernel takes over the answer to a look-up after the reply.
//!
//! | the inode is | an invalidation just before |
//! | --- | --- |
//! | known to the kernel | the kernel ignores attributes older than the invalidation |
//! | new to the kernel | found nothing, and the kernel takes the old attributes |
//!
//! So the table marks inodes as new ([`NEW`]), with the directory in which they were found. After
//! an event about a new inode, its attributes are dropped once more, when the kernel has released
//! that directory's lock ([`crate::expiries`]).
//!
//! Bound: [`HINTS_MAX`]; a full table drops expired entries. Where that is not enough, the kernel
//! must not cache further inodes. So the table is always complete, and a restarted shard need not
//! wait for leases to expire.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_types::limits::xattr_flags;
use zonal_types::{Attr, Ino};

/// Inodes remembered.
pub const HINTS_MAX: usize = 65_536;

/// Time within which the kernel has taken over an answer.
const NEW: Duration = Duration::from_secs(1);

/// Pause between two searches for expired entries.
const ROOM: Duration = Duration::from_millis(200);

/// Inodes of recent events, remembered for answers in flight.
const RECENT_MAX: usize = 256;

/// Flags of an inode with unknown extended attributes.
const ANY: u8 = u8::MAX;

struct HintEntry {
    flags: u8,
    until: Instant,
    /// When a kernel that may not have known the inode was told of it, and the directory in which
    /// it was found.
    new_at: Option<(Instant, Ino)>,
    /// The kernel has forgotten the inode since.
    is_forgotten: bool,
}

#[derive(Default)]
struct State {
    known: BTreeMap<Ino, HintEntry>,
    /// Number of inodes that events named, and the last of them.
    events: u64,
    recent: VecDeque<Ino>,
    /// Time of the last search for expired entries.
    room_made: Option<Instant>,
}

impl State {
    /// Inserts an entry; returns how long the kernel may cache it, ms.
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

    /// Drops expired entries; false where none could be dropped. Few insertions search the whole
    /// table.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.room_made.is_some_and(|at| now < at + ROOM) {
            return false;
        }
        self.room_made = Some(now);
        self.known.retain(|_, known| known.until + NEW > now);
        self.known.len() < HINTS_MAX
    }

    /// Notes inodes that an event named.
    fn note_event(&mut self, inodes: &[Ino]) {
        self.events += inodes.len() as u64;
        self.recent.extend(inodes);
        let too_many = self.recent.len().saturating_sub(RECENT_MAX);
        self.recent.drain(..too_many);
    }

    /// Whether an event since `mark` may have named the inode.
    fn is_named_since(&self, mark: EventMark, ino: Ino) -> bool {
        let count = usize::try_from(self.events - mark.0).unwrap_or(usize::MAX);
        count > self.recent.len() || self.recent.iter().rev().take(count).any(|of| *of == ino)
    }
}

/// Kinds of extended attributes by inode.
#[derive(Default)]
pub struct AttributeHints(Mutex<State>);

/// A point in the order of events: answers to requests from before it are not remembered after an
/// event.
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

    /// Take the mark before the request whose answer will be noted.
    #[must_use]
    pub fn mark(&self) -> EventMark {
        EventMark(self.state().events)
    }

    /// Remembers an answer's attributes; returns how long the kernel may cache them, ms.
    #[must_use]
    pub fn note(&self, mark: EventMark, attr: &Attr, attr_ms: u32) -> u32 {
        self.note_answer(mark, attr, attr_ms, None)
    }

    /// As [`Self::note`], for an answer that may tell the kernel of an inode for the first time,
    /// under the lock of `dir`.
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
        let mut state = self.state();
        if attr_ms == 0 {
            // No lease covers it now: an earlier answer is void.
            if let Some(known) = state.known.get_mut(&attr.ino) {
                known.flags = ANY;
            }
            return 0;
        }
        if state.is_named_since(mark, attr.ino) {
            state.insert(attr.ino, ANY, attr_ms, found_in);
            return 0;
        }
        state.insert(attr.ino, attr.xattrs, attr_ms, found_in)
    }

    /// Notes that the kernel has forgotten the inode.
    pub fn kernel_forgot(&self, ino: Ino) {
        if let Some(known) = self.state().known.get_mut(&ino) {
            known.is_forgotten = true;
        }
    }

    /// Remembers that the kernel may cache an inode's attributes; returns for how long, ms.
    #[must_use]
    pub fn note_term(&self, ino: Ino, attr_ms: u32) -> u32 {
        match attr_ms {
            0 => 0,
            ms => self.state().insert(ino, ANY, ms, None),
        }
    }

    /// Whether an event since `mark` may have named the inode.
    #[must_use]
    pub fn is_named_since(&self, mark: EventMark, ino: Ino) -> bool {
        self.state().is_named_since(mark, ino)
    }

    /// Forgets the extended attributes of changed inodes. Returns those so new to the kernel that
    /// it may take over an old answer later, with the directories in which they were found.
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

    /// Forgets the extended attributes of all inodes. Returns the inodes whose attributes the
    /// kernel may cache.
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

    /// True where the inode certainly has no attribute of this name.
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
    fn inodes_are_listed_while_the_kernel_may_cache_them() {
        let hints = AttributeHints::default();
        assert_eq!(hints.note_term(Ino(5), 60_000), 60_000);
        assert_eq!(hints.note_term(Ino(6), 0), 0);
        assert_eq!(hints.forget_all(), [Ino(5)]);
        // Forgetting extended attributes does not make the kernel forget the inode's attributes.
        hints.forget(&[Ino(5)]);
        assert_eq!(hints.forget_all(), [Ino(5)]);
        assert!(!hints.is_absent(Ino(5), b"user.a"));
    }

    #[test]
    fn an_answer_without_a_lease_voids_an_earlier_one() {
        let hints = AttributeHints::default();
        let time = zonal_types::Timestamp::default();
        let attr = Attr {
            ino: Ino(5),
            kind: zonal_types::FileKind::File,
            mode: 0o644,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
            change: 1,
            xattrs: 0,
        };
        assert_eq!(hints.note(hints.mark(), &attr, 60_000), 60_000);
        assert!(hints.is_absent(Ino(5), b"user.a"));
        assert_eq!(hints.note(hints.mark(), &attr, 0), 0);
        assert!(!hints.is_absent(Ino(5), b"user.a"));
    }

    #[test]
    fn a_full_table_drops_expired_inodes() {
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
    fn the_kernel_may_not_cache_inodes_beyond_a_full_table() {
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
