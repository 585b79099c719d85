//! Scope cache: memory of a shard for clients with a scope. It holds the directories inside of a
//! path, the files reached there by a name, and the files truncated by name.
//!
//! *Invariants*:
//! 1. A directory is in `inside` only while it is at or below the path's directory: each move or
//!    removal of a directory empties the set.
//! 2. A file is in `reached` since a client of that path reached it by a name. A change of one of
//!    its names, or a move of a directory, removes it.
//! 3. All of it may be forgotten at any time.

use crate::tx::Changed;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::limits::{SCOPE_INSIDE_MAX, SCOPE_TRUNCATION_MS, SCOPE_TRUNCATIONS_MAX};
use zonal_types::{Credentials, ErrorCode, Ino, Instant, Name, Scope, SessionId};
use zonal_wire::MetaRequest;
use zonal_wire::meta::flags::{O_ACCMODE, O_RDONLY, O_TRUNC, O_WRONLY};
use zonal_wire::meta::{FileUse, LockKind, LockRange};

/// Time for which the root shard's answer about a first-level directory is trusted, ms. The root
/// shard also reports changes, where its message arrives.
const FIRST_LEVEL_MS: u64 = 2_000;

/// User and group of a root that counts as nobody.
pub(crate) const NOBODY: u32 = 65_534;

/// The part of the tree that a request may see.
#[derive(Debug, Clone, Copy)]
pub(crate) struct VisibleTree {
    /// The directory that is the client's whole view, with everything below it. `None` for a client
    /// with a path: nothing of this shard.
    pub dir: Option<Ino>,
    /// True for a client with a path.
    pub has_path: bool,
    /// The reply may be cached, where its directory is inside of the path.
    pub may_cache: bool,
}

impl Default for VisibleTree {
    fn default() -> Self {
        Self {
            dir: None,
            has_path: false,
            may_cache: true,
        }
    }
}

/// The directories of a path at one shard, from the top.
#[derive(Debug, Default)]
pub(crate) struct Resolved {
    /// Directories above the path's directory, each with the next name.
    pub above: Vec<(Ino, Name)>,
    /// The path's directory.
    pub dir: Option<Ino>,
}

impl Resolved {
    /// The next name of the path, where the inode is one of the directories above.
    pub fn next_name(&self, ino: Ino) -> Option<&Name> {
        let found = self.above.iter().find(|(above, _)| *above == ino);
        found.map(|(_, name)| name)
    }
}

/// The cache of all clients with a scope.
#[derive(Debug, Default)]
pub(crate) struct ScopeCache {
    /// First-level directories by name, from the root shard, and until when each answer is trusted.
    first_level: BTreeMap<Name, (Ino, Instant)>,
    /// {directory, the path's directory that it is at or below}.
    inside: BTreeSet<(Ino, Ino)>,
    /// {file, the path's directory below which a name led to it}.
    reached: BTreeSet<(Ino, Ino)>,
    /// Until when a session may truncate a file at its targets.
    truncations: BTreeMap<(Ino, SessionId), Instant>,
}

impl ScopeCache {
    /// Notes the root shard's answer for a name. A missing name is asked for again at once.
    pub fn note_first(&mut self, name: &Name, ino: Option<Ino>, now: Instant) {
        if self.first_level.len() >= SCOPE_INSIDE_MAX {
            self.first_level.clear();
        }
        match ino {
            Some(ino) => {
                let until = now.plus_ms(FIRST_LEVEL_MS);
                self.first_level.insert(name.clone(), (ino, until));
            }
            None => {
                self.first_level.remove(name);
            }
        }
    }

    /// Extends an earlier answer of the root shard, which does not answer now. False where there is
    /// none.
    pub fn keep_first(&mut self, name: &Name, now: Instant) -> bool {
        let known = self.first_level.get_mut(name);
        known.is_some_and(|(_, until)| {
            *until = now.plus_ms(FIRST_LEVEL_MS);
            true
        })
    }

    /// True where the root shard need not be asked for a name now.
    pub fn knows_first(&self, name: &Name, now: Instant) -> bool {
        let known = self.first_level.get(name);
        known.is_some_and(|(_, until)| *until > now)
    }

    /// The first-level directory of a name.
    pub fn first(&self, name: &Name) -> Option<Ino> {
        self.first_level.get(name).map(|(ino, _)| *ino)
    }

    /// Forgets first-level directories: the root shard made, renamed or removed one.
    pub fn first_level_changed(&mut self) {
        self.first_level.clear();
    }

    pub fn is_inside(&self, dir: Ino, top: Ino) -> bool {
        dir == top || self.inside.contains(&(dir, top))
    }

    pub fn note_inside(&mut self, dirs: &[Ino], top: Ino) {
        if self.inside.len() + dirs.len() > SCOPE_INSIDE_MAX {
            self.inside.clear();
        }
        let room = SCOPE_INSIDE_MAX;
        self.inside
            .extend(dirs.iter().take(room).map(|dir| (*dir, top)));
    }

    pub fn was_reached(&self, file: Ino, top: Ino) -> bool {
        self.reached.contains(&(file, top))
    }

    pub fn note_reached(&mut self, file: Ino, top: Ino) {
        if self.reached.len() >= SCOPE_INSIDE_MAX {
            self.reached.clear();
        }
        self.reached.insert((file, top));
    }

    /// Notes the inodes that a request changes; `entries`: it also changes entries of directories.
    pub fn note_changes(&mut self, changed: &[Changed], entries: bool) {
        for change in changed {
            let Changed { before, now } = change;
            if before.is_dir() {
                let parent = now.as_ref().map(|now| now.parent);
                if parent != Some(before.parent) {
                    self.inside.clear();
                    // A name below it leads elsewhere now.
                    self.reached.clear();
                }
            } else if entries && !self.reached.is_empty() {
                let of = (before.ino, Ino(0))..=(before.ino, Ino(u64::MAX));
                let tops: Vec<_> = self.reached.range(of).copied().collect();
                for reached in tops {
                    self.reached.remove(&reached);
                }
            }
        }
    }

    /// Notes that the session has truncated a file by its name, and goes on at its targets.
    pub fn note_truncation(&mut self, ino: Ino, session: SessionId, now: Instant) {
        self.truncations.retain(|_, until| *until > now);
        if self.truncations.len() >= SCOPE_TRUNCATIONS_MAX {
            let oldest = self.truncations.iter().min_by_key(|(_, until)| **until);
            if let Some(key) = oldest.map(|(key, _)| *key) {
                self.truncations.remove(&key);
            }
        }
        self.truncations
            .insert((ino, session), now.plus_ms(SCOPE_TRUNCATION_MS));
    }

    pub fn may_truncate(&self, ino: Ino, session: SessionId, now: Instant) -> bool {
        let until = self.truncations.get(&(ino, session));
        until.is_some_and(|until| *until > now)
    }
}

/// The user that a client's request counts for, where that differs from its credentials.
///
/// # Errors
/// `Access` where the client may not act for that user.
pub(crate) fn acting_user(
    scope: &Scope,
    who: &Credentials,
) -> Result<Option<Credentials>, ErrorCode> {
    if scope.squashes_root && who.uid == 0 {
        return Ok(Some(Credentials {
            uid: NOBODY,
            gid: NOBODY,
            groups: Vec::new(),
        }));
    }
    if !scope.covers_uid(who.uid) {
        return Err(ErrorCode::Access);
    }
    if !scope.squashes_root || (who.gid != 0 && !who.groups.contains(&0)) {
        return Ok(None);
    }
    let mut who = who.clone();
    if who.gid == 0 {
        who.gid = NOBODY;
    }
    who.groups.retain(|group| *group != 0);
    Ok(Some(who))
}

/// True where an open with these flags may change the file.
pub(crate) fn opens_for_writing(open_flags: u32) -> bool {
    open_flags & O_ACCMODE != O_RDONLY || open_flags & O_TRUNC != 0
}

/// True where an open with these flags may read the file; the kernel reads files that it executes.
pub(crate) fn opens_for_reading(open_flags: u32) -> bool {
    open_flags & O_ACCMODE != O_WRONLY
}

/// True where a read-only client may send this request.
pub(crate) fn is_for_readers(request: &MetaRequest) -> bool {
    match request {
        MetaRequest::Open { open_flags, .. } => !opens_for_writing(*open_flags),
        MetaRequest::Close { .. } | MetaRequest::Touch { .. } => true,
        // These requests change nothing yet, but hold up appends of others.
        MetaRequest::LendEnd { .. }
        | MetaRequest::AppendAt { .. }
        | MetaRequest::ReclaimAppends { .. } => false,
        MetaRequest::Lock { range, .. } => reader_may_lock(range),
        _ => !request.is_mutation(),
    }
}

/// True where a read-only client may take this lock. A write lock of fcntl needs a file open for
/// writing; LOCK_EX of flock does not.
pub(crate) fn reader_may_lock(range: &LockRange) -> bool {
    range.whole_file || range.kind == LockKind::Shared
}

/// The file that must be open, and for which use, for a request that names it by number.
pub(crate) fn needs_open(request: &MetaRequest) -> Option<(Ino, FileUse)> {
    match request {
        MetaRequest::ReadInline { ino } => Some((*ino, FileUse::Read)),
        MetaRequest::Lock { ino, .. } => Some((*ino, FileUse::Look)),
        MetaRequest::Truncate {
            ino,
            by_handle: true,
            ..
        }
        | MetaRequest::ConfirmTruncate { ino, .. }
        | MetaRequest::ReportWrite { ino, .. }
        | MetaRequest::AppendBegin { ino, .. }
        | MetaRequest::AppendEnd { ino, .. }
        | MetaRequest::LendEnd { ino }
        | MetaRequest::AppendAt { ino, .. }
        | MetaRequest::DisownBehind { ino, .. }
        | MetaRequest::TakePrivileges { ino, .. } => Some((*ino, FileUse::Write)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(uid: u32, gid: u32, groups: &[u32]) -> Credentials {
        Credentials {
            uid,
            gid,
            groups: groups.to_vec(),
        }
    }

    #[test]
    fn a_squashed_root_is_nobody_and_no_group_is_roots() {
        let scope = Scope {
            squashes_root: true,
            uids: Some((1000, 1999)),
            ..Scope::default()
        };
        let nobody = Some(who(NOBODY, NOBODY, &[]));
        assert_eq!(acting_user(&scope, &who(0, 0, &[0, 7])), Ok(nobody));
        assert_eq!(acting_user(&scope, &who(1000, 7, &[8])), Ok(None));
        let without = Some(who(1999, NOBODY, &[8]));
        assert_eq!(acting_user(&scope, &who(1999, 0, &[8, 0])), Ok(without));
        for uid in [1, 999, 2000, NOBODY, u32::MAX] {
            let refused = Err(ErrorCode::Access);
            assert_eq!(acting_user(&scope, &who(uid, 7, &[])), refused, "{uid}");
        }
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut scopes = ScopeCache::default();
        let (top, now) = (Ino(1), Instant(0));
        for number in 0..40_000 {
            scopes.note_inside(&[Ino(number), Ino(number + 1)], top);
            scopes.note_reached(Ino(number), top);
            scopes.note_truncation(Ino(number), SessionId(1), now.plus_ms(number));
            assert!(scopes.is_inside(Ino(number), top));
            assert!(scopes.was_reached(Ino(number), top));
            assert!(scopes.may_truncate(Ino(number), SessionId(1), now.plus_ms(number)));
        }
        assert!(scopes.inside.len() <= SCOPE_INSIDE_MAX);
        assert!(scopes.reached.len() <= SCOPE_INSIDE_MAX);
        assert!(scopes.truncations.len() <= SCOPE_TRUNCATIONS_MAX);
        let later = now.plus_ms(40_000 + SCOPE_TRUNCATION_MS);
        assert!(!scopes.may_truncate(Ino(39_999), SessionId(1), later));
    }
}
