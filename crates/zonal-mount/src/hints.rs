//! Which extended attributes an inode has, as long as the shard's call-back covers its attributes.
//!
//! `ls -l` asks two attributes of each file that nearly never exist; the answer "no" needs no round trip.
//! Bounded by [`HINTS_MAX`]; a full table is emptied.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use zonal_types::limits::xattr_flags;
use zonal_types::{Attr, Ino};

/// Inodes remembered.
pub const HINTS_MAX: usize = 65_536;

#[derive(Default)]
struct State {
    known: BTreeMap<Ino, (u8, Instant)>,
    events: u64,
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
        if state.events != mark.0 {
            return;
        }
        if state.known.len() >= HINTS_MAX {
            state.known.clear();
        }
        state.known.insert(
            attr.ino,
            (
                attr.xattrs,
                Instant::now() + Duration::from_millis(attr_ms.into()),
            ),
        );
    }

    /// Forgets inodes that changed (elsewhere or here).
    pub fn forget(&self, inodes: &[Ino]) {
        let mut state = self.state();
        state.events += 1;
        for ino in inodes {
            state.known.remove(ino);
        }
    }

    /// Forgets everything.
    pub fn forget_all(&self) {
        let mut state = self.state();
        state.events += 1;
        state.known.clear();
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
