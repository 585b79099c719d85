//! Own changes under own leases: the inodes and names that a request changes. The cache forgets
//! them before the request is sent, and again when it was answered.
//!
//! A request that removes or replaces a name changes an inode that it does not tell. Its number is
//! known where the name is leased, and no event came meanwhile. Else the attributes of all inodes
//! that may have names in the directory are forgotten.

use crate::cell::Cell;
use crate::cell::session::Link;
use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::is_unsure;
use std::sync::atomic::Ordering;
use zonal_types::{ErrorCode, Ino, Name};
use zonal_wire::meta::flags;
use zonal_wire::{MetaReply, MetaRequest};

/// A name that a request changes.
#[derive(Debug)]
struct ChangedName {
    dir: Ino,
    name: Name,
    /// The inode that the name leads to changes as well.
    has_inode: bool,
}

/// Inodes and names that a request changes.
#[derive(Debug, Default)]
struct ChangedInodes {
    inodes: Vec<Ino>,
    names: Vec<ChangedName>,
    /// Directories with a name that leads to an unknown changed inode.
    unknown: Vec<Ino>,
}

impl ChangedInodes {
    fn of_inodes(inodes: impl IntoIterator<Item = Ino>) -> Self {
        Self {
            inodes: inodes.into_iter().collect(),
            ..Self::default()
        }
    }

    fn of_names(names: &[(Ino, &Name)], has_inode: bool) -> Self {
        let names = names.iter().map(|(dir, name)| ChangedName {
            dir: *dir,
            name: (*name).clone(),
            has_inode,
        });
        Self {
            names: names.collect(),
            ..Self::default()
        }
    }

    /// `None` where the request changes nothing that a lease covers.
    fn of(request: &MetaRequest) -> Option<Self> {
        Some(match request {
            MetaRequest::Create {
                parent,
                name,
                open_flags,
                exclusive,
                ..
            } => {
                let cuts = !exclusive && open_flags & flags::O_TRUNC != 0;
                Self::of_names(&[(*parent, name)], cuts)
            }
            MetaRequest::Mkdir { parent, name, .. } => Self::of_names(&[(*parent, name)], false),
            MetaRequest::Unlink { parent, name, .. } | MetaRequest::Rmdir { parent, name, .. } => {
                Self::of_names(&[(*parent, name)], true)
            }
            MetaRequest::Link {
                ino, parent, name, ..
            } => Self {
                inodes: vec![*ino],
                ..Self::of_names(&[(*parent, name)], false)
            },
            MetaRequest::Rename {
                parent,
                name,
                new_parent,
                new_name,
                ..
            } => Self::of_names(&[(*parent, name), (*new_parent, new_name)], true),
            MetaRequest::Open {
                ino, open_flags, ..
            } if open_flags & flags::O_TRUNC != 0 => Self::of_inodes([*ino]),
            MetaRequest::SetAttr { ino, .. }
            | MetaRequest::Truncate { ino, .. }
            | MetaRequest::ConfirmTruncate { ino, .. }
            | MetaRequest::ReportWrite { ino, .. }
            | MetaRequest::AppendEnd { ino, .. }
            | MetaRequest::SetXattr { ino, .. }
            | MetaRequest::RemoveXattr { ino, .. }
            | MetaRequest::SetPolicy { dir: ino, .. }
            | MetaRequest::DisownBehind { ino, .. }
            | MetaRequest::TakePrivileges { ino, .. } => Self::of_inodes([*ino]),
            MetaRequest::ReturnEnds { inos } => Self::of_inodes(inos.iter().copied()),
            MetaRequest::GiveUpAppends { appends } => {
                Self::of_inodes(appends.iter().map(|(ino, _offset)| *ino))
            }
            MetaRequest::Touch { reads } => Self::of_inodes(reads.iter().map(|(ino, _)| *ino)),
            _ => return None,
        })
    }
}

/// A change of this client in flight: nothing that it changes is kept meanwhile.
pub(crate) struct LeasedChange<'a, N: Net> {
    cell: &'a Cell<N>,
    cache: &'a InodeCache,
    link: &'a Link,
    /// Events of the link at its start.
    events: u64,
    changed: ChangedInodes,
    is_sure: bool,
}

impl InodeCache {
    /// Hold the guard while the request is in flight; `None` where it changes nothing that a lease
    /// covers.
    pub(crate) fn leased_change<'a, N: Net>(
        &'a self,
        cell: &'a Cell<N>,
        link: &'a Link,
        request: &MetaRequest,
    ) -> Option<LeasedChange<'a, N>> {
        let mut changed = ChangedInodes::of(request)?;
        let events = link.events.load(Ordering::SeqCst);
        self.find_inodes(cell, link, &mut changed);
        self.own_changes().begin(&changed.inodes);
        self.forget_changed(&changed);
        Some(LeasedChange {
            cell,
            cache: self,
            link,
            events,
            changed,
            is_sure: false,
        })
    }

    /// Adds directories of changed names, and the inodes that the names lead to.
    fn find_inodes<N: Net>(&self, cell: &Cell<N>, link: &Link, changed: &mut ChangedInodes) {
        let now = cell.net.now();
        let names = lock(&self.leased_names);
        for ChangedName {
            dir,
            name,
            has_inode,
        } in &changed.names
        {
            changed.inodes.push(*dir);
            match names.get(link, *dir, name, now) {
                Some((found, _left)) if *has_inode => {
                    changed.inodes.extend(found.map(|(ino, _kind)| ino));
                }
                None if *has_inode => changed.unknown.push(*dir),
                _ => {}
            }
        }
    }

    fn forget_changed(&self, changed: &ChangedInodes) {
        {
            let mut names = lock(&self.leased_names);
            for ChangedName { dir, name, .. } in &changed.names {
                names.forget_name(*dir, name);
            }
        }
        let mut attributes = lock(&self.leased_attributes);
        for ino in &changed.inodes {
            attributes.forget(*ino);
        }
        for dir in &changed.unknown {
            attributes.forget_children(*dir);
        }
    }
}

impl<N: Net> LeasedChange<'_, N> {
    /// Ends the change, which was answered or abandoned.
    pub(crate) fn end(mut self, reply: &Result<MetaReply, ErrorCode>) {
        self.is_sure = !reply.as_ref().is_err_and(|code| is_unsure(*code));
    }
}

impl<N: Net> Drop for LeasedChange<'_, N> {
    fn drop(&mut self) {
        if self.link.events.load(Ordering::SeqCst) != self.events {
            // The names may have led elsewhere when the change was executed.
            let names = self.changed.names.iter().filter(|name| name.has_inode);
            self.changed.unknown = names.map(|name| name.dir).collect();
        }
        {
            let mut changes = self.cache.own_changes();
            let is_known = self.changed.unknown.is_empty();
            match (self.is_sure, is_known) {
                (true, _) => changes.end(&self.changed.inodes),
                (false, true) => changes.doubt(&self.changed.inodes, self.cell.net.now()),
                (false, false) => {
                    changes.doubt(&self.changed.inodes, self.cell.net.now());
                    changes.doubt_all(self.cell.net.now());
                }
            }
            if !is_known {
                changes.end_of_all();
            }
        }
        self.cache.forget_changed(&self.changed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::Credentials;

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).unwrap()
    }

    /// Inodes; directories of names, and whether the inode of the name changes.
    type Changes = (Vec<u64>, Vec<(u64, bool)>);

    fn changed(request: &MetaRequest) -> Option<Changes> {
        let changed = ChangedInodes::of(request)?;
        let inodes = changed.inodes.iter().map(|ino| ino.0).collect();
        let names = changed.names.iter();
        let names = names.map(|name| (name.dir.0, name.has_inode)).collect();
        Some((inodes, names))
    }

    #[test]
    fn a_request_tells_what_it_changes() {
        let who = Credentials::root();
        let (parent, ino) = (Ino(5), Ino(9));
        let unlink = MetaRequest::Unlink {
            who: who.clone(),
            parent,
            name: name("a"),
        };
        assert_eq!(changed(&unlink), Some((vec![], vec![(5, true)])));
        let link = MetaRequest::Link {
            who: who.clone(),
            ino,
            parent,
            name: name("a"),
        };
        assert_eq!(changed(&link), Some((vec![9], vec![(5, false)])));
        let open = |open_flags| MetaRequest::Open {
            who: who.clone(),
            ino,
            open_flags,
        };
        assert_eq!(changed(&open(flags::O_RDONLY)), None);
        assert_eq!(changed(&open(flags::O_TRUNC)), Some((vec![9], vec![])));
        assert_eq!(changed(&MetaRequest::Close { inos: vec![ino] }), None);
        assert_eq!(changed(&MetaRequest::GetAttr { ino, data: false }), None);
    }
}
