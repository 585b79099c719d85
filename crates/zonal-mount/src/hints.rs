//! Inodes whose attributes the kernel may cache under the shard's call-backs, and which extended attributes they have.
//!
//! `ls -l` asks two attributes of each file that nearly never exist; the answer "no" needs no round trip. And after a
//! shard's restart the table says what the kernel has to drop.
//!
//! Bounded by [`HINTS_MAX`]; a full table is emptied, and remembers until when it is not complete.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_types::limits::xattr_flags;
use zonal_types::{Attr, Ino};

/// Inodes remembered.
pub const HINTS_MAX: usize = 65_536;

/// Flags of an inode of which it is not known what it has: it may have everything.
const ANY: u8 = u8::MAX;

#[derive(Default)]
struct State {
    known: BTreeMap<Ino, (u8, Instant)>,
    events: u64,
    /// Until then the kernel may cache inodes that are not in the table.
    incomplete_until: Option<Instant>,
}

impl State {
    fn insert(&mut self, ino: Ino, flags: u8, ms: u32) {
        let until = Instant::now() + Duration::from_millis(ms.into());
        if self.known.len() >= HINTS_MAX {
            let last = self.known.values().map(|(_, until)| *until).max();
            self.incomplete_until = last.max(self.incomplete_until);
            self.known.clear();
        }
        self.known.insert(ino, (flags, until));
    }
}

/// Kinds of extended attributes by inode.
#[derive(Default)]
pub struct Hints(Mutex<State>);

/// A point in the order of events: what was asked before it is not remembered after it.
#[derive(Clone, Copy)]
pub struct Mark(u64);

impl Hints {
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
    pub fn mark(&self) -> Mark {
        Mark(self.state().events)
    }

    /// Remembers what an answer said, for as long as it may be cached.
    pub fn note(&self, mark: Mark, attr: &Attr, attr_ms: u32) {
        if attr_ms == 0 {
            return;
        }
        let mut state = self.state();
        let flags = if state.events == mark.0 {
            attr.xattrs
        } else {
            ANY
        };
        state.insert(attr.ino, flags, attr_ms);
    }

    /// Remembers that the kernel may cache an inode's attributes for so long.
    pub fn note_term(&self, ino: Ino, attr_ms: u32) {
        if attr_ms > 0 {
            self.state().insert(ino, ANY, attr_ms);
        }
    }

    /// Forgets what inodes have that changed (elsewhere or here).
    pub fn forget(&self, inodes: &[Ino]) {
        let mut state = self.state();
        state.events += 1;
        for ino in inodes {
            if let Some((flags, _until)) = state.known.get_mut(ino) {
                *flags = ANY;
            }
        }
    }

    /// Forgets what all inodes have. Returns those whose attributes the kernel may cache; `None` where not all are known.
    pub fn forget_all(&self) -> Option<Vec<Ino>> {
        let mut state = self.state();
        state.events += 1;
        let now = Instant::now();
        for (flags, _until) in state.known.values_mut() {
            *flags = ANY;
        }
        if state.incomplete_until.is_some_and(|until| until > now) {
            return None;
        }
        let cached = state.known.iter().filter(|(_, (_, until))| *until > now);
        Some(cached.map(|(ino, _)| *ino).collect())
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
            .is_some_and(|(flags, until)| flags & kind == 0 && Instant::now() < *until)
    }
}

fn kind_of(name: &[u8]) -> Option<u8> {
    Some(match name {
        b"system.posix_acl_access" => xattr_flags::ACL_ACCESS,
        b"system.posix_acl_default" => xattr_flags::ACL_DEFAULT,
        b"security.capability" => xattr_flags::CAPABILITY,
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
        let hints = Hints::default();
        hints.note_term(Ino(5), 60_000);
        hints.note_term(Ino(6), 0);
        assert_eq!(hints.forget_all(), Some(vec![Ino(5)]));
        // Forgetting what an inode has does not make the kernel forget its attributes.
        hints.forget(&[Ino(5)]);
        assert_eq!(hints.forget_all(), Some(vec![Ino(5)]));
        assert!(!hints.is_absent(Ino(5), b"user.a"));
    }

    #[test]
    fn a_table_that_was_emptied_knows_that_it_is_not_complete() {
        let hints = Hints::default();
        for ino in 0..=HINTS_MAX as u64 {
            hints.note_term(Ino(ino), 60_000);
        }
        assert_eq!(hints.len(), 1);
        assert_eq!(hints.forget_all(), None);
    }
}
