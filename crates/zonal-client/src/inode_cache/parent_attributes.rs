//! Parent attributes: the state of a directory after this client's last change in it. The kernel
//! asks for a directory's attributes after each creation or removal, before it looks up the next
//! name there. The reply to the change contains them.
//!
//! *Invariants*
//!
//! 1. An event is counted at its link before the client looks it up here. A grant is checked
//!    against that count under the table's lock. So no entry is kept past an event.
//! 2. A reply is not kept if another request of this client, which may have changed the directory,
//!    ended after the reply's request was sent.
//! 3. Of two changes of entries the later one stays, whichever reply comes first. An entry without
//!    a lease also stays, as the least version to accept.
//!
//! Bound: [`FRESH_MAX`]; a full table is emptied. Per change: one lock; per hit: one lock instead
//! of a round trip.

use crate::cell::Cell;
use crate::cell::session::{Link, RequestStart};
use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use zonal_types::{Attr, ErrorCode, FileKind, Ino, Instant};
use zonal_wire::{DirAfter, MetaReply, MetaRequest};

/// Directories remembered.
pub const FRESH_MAX: usize = 4_096;

/// Attributes and their expiry, by directory.
#[derive(Debug, Default)]
pub(crate) struct ParentAttributes {
    directories: BTreeMap<Ino, (Attr, Instant)>,
    /// Changes whose replies do not contain the directory's state.
    others: u64,
}

impl ParentAttributes {
    fn note(&mut self, attr: &Attr, until: Instant) {
        if self.directories.len() >= FRESH_MAX && !self.directories.contains_key(&attr.ino) {
            self.forget_all();
        }
        let kept = self.directories.entry(attr.ino).or_insert((*attr, until));
        if kept.0.change < attr.change {
            *kept = (*attr, until);
        }
        assert!(
            kept.0.change >= attr.change,
            "the later of two changes is lost"
        );
        assert!(
            self.directories.len() <= FRESH_MAX,
            "{} directories are kept",
            self.directories.len()
        );
    }

    fn get(&self, ino: Ino, now: Instant) -> Option<(Attr, u32)> {
        let (attr, until) = self.directories.get(&ino)?;
        let left = u32::try_from(until.ms_since(now)).unwrap_or(u32::MAX);
        (left > 0).then_some((*attr, left))
    }

    /// Forgets a directory that changed in an unknown way. Replies in flight are not kept either.
    pub(crate) fn forget(&mut self, ino: Ino) {
        self.others += 1;
        self.directories.remove(&ino);
    }

    /// Forgets a directory that an event names. The event count of their link decides about replies
    /// in flight.
    pub(crate) fn drop_named(&mut self, ino: Ino) {
        self.directories.remove(&ino);
    }

    pub(crate) fn forget_all(&mut self) {
        self.others += 1;
        self.directories.clear();
    }

    /// Directories in the table.
    pub(crate) fn len(&self) -> usize {
        self.directories.len()
    }
}

/// Directories whose attributes a request changes.
enum ChangeScope {
    /// The entries of this directory: the reply contains its new attributes.
    Entries(Ino),
    /// This inode, which may be a directory.
    Inode(Ino),
    /// Directories that the request does not name.
    Some,
}

/// A request that is about to be sent.
pub(crate) struct PendingChange {
    what: ChangeScope,
    asked: RequestStart,
    others: u64,
}

fn what(request: &MetaRequest) -> Option<ChangeScope> {
    match request {
        MetaRequest::SetAttr { ino, .. }
        | MetaRequest::SetXattr { ino, .. }
        | MetaRequest::RemoveXattr { ino, .. }
        | MetaRequest::SetPolicy { dir: ino, .. } => Some(ChangeScope::Inode(*ino)),
        MetaRequest::Rename { .. } => Some(ChangeScope::Some),
        _ => request.changes_entries_of().map(ChangeScope::Entries),
    }
}

/// Whether no directory has changed: the request was refused, it opened an existing file, or it was
/// not about a directory. (The attributes in a reply to a removal or a rename belong to the inode
/// that lost its name.)
fn is_nothing_changed(what: &ChangeScope, reply: &Result<MetaReply, ErrorCode>) -> bool {
    match reply {
        Ok(MetaReply::OpenedSmall { .. }) => true,
        Ok(MetaReply::Attr { attr, .. }) => {
            matches!(what, ChangeScope::Inode(_)) && attr.kind != FileKind::Directory
        }
        Ok(_) => false,
        Err(code) => matches!(
            code,
            ErrorCode::Exists | ErrorCode::NotFound | ErrorCode::NotEmpty | ErrorCode::Access
        ),
    }
}

impl InodeCache {
    /// Call it before a request is sent; `None` where the request changes no directory.
    pub(crate) fn changing<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        request: &MetaRequest,
    ) -> Option<PendingChange> {
        let what = what(request)?;
        let others = lock(&self.parent_attributes).others;
        let asked = cell.asking(link);
        Some(PendingChange {
            what,
            asked,
            others,
        })
    }

    /// Call it with the reply to the request, or with its error.
    pub(crate) fn changed<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        changing: &PendingChange,
        reply: Result<MetaReply, ErrorCode>,
    ) -> Result<MetaReply, ErrorCode> {
        let (reply, dir) = match reply {
            Ok(reply) => {
                let (reply, dir) = reply.split_directory();
                (Ok(reply), dir)
            }
            Err(code) => (Err(code), None),
        };
        let mut fresh = lock(&self.parent_attributes);
        match (&changing.what, dir) {
            (ChangeScope::Entries(ino), Some(DirAfter { attr, attr_ms })) if attr.ino == *ino => {
                let now = cell.net.now();
                // Under the lock: invariant 1.
                let left = cell.cache_ms(link, changing.asked, attr_ms);
                let is_certain = fresh.others == changing.others;
                let left = if is_certain { left } else { 0 };
                fresh.note(&attr, now.plus_ms(left.into()));
            }
            _ if is_nothing_changed(&changing.what, &reply) => {}
            (ChangeScope::Entries(ino) | ChangeScope::Inode(ino), _) => {
                fresh.forget(*ino);
                if reply.is_err() {
                    // The shard may have executed it, and the kernel does not know.
                    self.forget_listing(*ino);
                }
            }
            (ChangeScope::Some, _) => fresh.forget_all(),
        }
        reply
    }

    /// Attributes of a directory, and how long they may be cached, ms.
    pub(crate) fn fresh<N: Net>(&self, cell: &Cell<N>, ino: Ino) -> Option<(Attr, u32)> {
        lock(&self.parent_attributes).get(ino, cell.net.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode_cache::sample_attributes::directory as attr;

    fn at(ms: u64) -> Instant {
        Instant(0).plus_ms(ms)
    }

    #[test]
    fn the_later_of_two_changes_stays_while_it_may() {
        let mut fresh = ParentAttributes::default();
        fresh.note(&attr(5, 8), at(100));
        fresh.note(&attr(5, 7), at(200));
        assert_eq!(fresh.get(Ino(5), at(40)), Some((attr(5, 8), 60)));
        assert_eq!(fresh.get(Ino(5), at(100)), None);
        fresh.note(&attr(5, 9), at(200));
        assert_eq!(fresh.get(Ino(5), at(100)), Some((attr(5, 9), 100)));
        fresh.note(&attr(5, 11), at(100));
        fresh.note(&attr(5, 10), at(200));
        assert_eq!(fresh.get(Ino(5), at(100)), None, "there is a later one");
        fresh.forget(Ino(5));
        assert_eq!(fresh.get(Ino(5), at(100)), None);
    }

    #[test]
    fn attributes_of_a_removed_inode_are_not_its_directorys() {
        let attr = Attr {
            kind: FileKind::Symlink,
            ..attr(7, 1)
        };
        let reply = Ok(MetaReply::Attr {
            attr,
            data: None,
            attr_ms: 0,
        });
        assert!(is_nothing_changed(&ChangeScope::Inode(Ino(7)), &reply));
        assert!(!is_nothing_changed(&ChangeScope::Entries(Ino(5)), &reply));
        assert!(!is_nothing_changed(&ChangeScope::Some, &reply));
        let refused = Err(ErrorCode::Exists);
        assert!(is_nothing_changed(&ChangeScope::Entries(Ino(5)), &refused));
        let unsure = Err(ErrorCode::TimedOut);
        assert!(!is_nothing_changed(&ChangeScope::Entries(Ino(5)), &unsure));
    }

    #[test]
    fn the_table_is_bounded() {
        let mut fresh = ParentAttributes::default();
        for ino in 0..=FRESH_MAX as u64 {
            fresh.note(&attr(ino, 1), at(100));
        }
        assert_eq!(fresh.len(), 1);
    }
}
