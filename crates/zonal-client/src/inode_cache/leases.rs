//! Leases on names and attributes: replies of shards are kept, and requests answered, while the
//! session's leases go on.
//!
//! | request | answered from |
//! | --- | --- |
//! | attributes of an inode | `leased_attributes` |
//! | a name | `leased_names`, with the inode's attributes |
//! | a page of a listing | a complete listing, with the attributes of its entries |
//!
//! A hit costs two locks and no message. See docs/rfcs/2026-11-26-leases-of-sessions.md.

use crate::cell::Cell;
use crate::cell::session::{LeaseTerm, Link, RequestStart};
use crate::inode_cache::InodeCache;
use crate::inode_cache::own_changes::OwnChanges;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use std::sync::MutexGuard;
use zonal_types::{Attr, Ino, Name};
use zonal_wire::meta::Listing;
use zonal_wire::{DirEntry, Entry};

/// A request whose reply may be kept.
#[derive(Clone, Copy)]
pub(crate) struct LeaseRequest {
    asked: RequestStart,
    /// Own changes that had ended.
    changes: u64,
}

/// A look-up that leases answer.
pub(crate) enum LeasedLookup {
    /// The name exists.
    Found(Entry),
    /// It does not; valid for this many ms.
    Absent(u32),
}

impl InodeCache {
    /// Call it before a request whose reply may be kept is sent.
    pub(crate) fn lease_request<N: Net>(&self, cell: &Cell<N>, link: &Link) -> LeaseRequest {
        let asked = cell.asking(link);
        let changes = self.own_changes().ended();
        LeaseRequest { asked, changes }
    }

    /// The term of a grant, where the reply may be kept. Call it under the lock of the part.
    fn term<N: Net>(
        cell: &Cell<N>,
        (link, request): (&Link, LeaseRequest),
        granted_ms: u32,
        inodes: &[Ino],
        changes: &OwnChanges,
    ) -> Option<LeaseTerm> {
        let now = cell.net.now();
        let left = cell.cache_ms(link, request.asked, granted_ms);
        let is_kept = |ino: &Ino| changes.allows(*ino, request.changes, now);
        (left > 0 && inodes.iter().all(is_kept))
            .then(|| LeaseTerm::new(link, now.plus_ms(left.into())))
    }

    /// Keeps attributes from a reply. `parent`: the directory that was asked; 0: none.
    pub(crate) fn keep_attr<N: Net>(
        &self,
        cell: &Cell<N>,
        of: (&Link, LeaseRequest),
        parent: Ino,
        attr: &Attr,
        granted_ms: u32,
    ) {
        let mut attributes = lock(&self.leased_attributes);
        let changes = self.own_changes();
        if let Some(term) = Self::term(cell, of, granted_ms, &[attr.ino], &changes) {
            attributes.note(parent, attr, term);
        }
    }

    /// Keeps the reply to a look-up.
    pub(crate) fn keep_name<N: Net>(
        &self,
        cell: &Cell<N>,
        of: (&Link, LeaseRequest),
        (dir, name): (Ino, &Name),
        (entry, granted_ms): (Option<&Entry>, u32),
    ) {
        {
            let mut names = lock(&self.leased_names);
            let changes = self.own_changes();
            if let Some(term) = Self::term(cell, of, granted_ms, &[dir], &changes) {
                let found = entry.map(|entry| (entry.ino, entry.kind));
                names.note(of.0, (dir, name), found, term, cell.net.now());
            }
        }
        if let Some(entry) = entry
            && let Some(attr) = &entry.attr
        {
            self.keep_attr(cell, of, dir, attr, entry.attr_ms);
        }
    }

    /// Keeps a page of a listing from behind `cookie`.
    pub(crate) fn keep_page<N: Net>(
        &self,
        cell: &Cell<N>,
        of: (&Link, LeaseRequest),
        (dir, cookie): (Ino, u64),
        (entries, is_end): (&[DirEntry], bool),
    ) {
        let Some(first) = entries.first() else {
            // An empty directory has no entry with a term; it is asked for again.
            return;
        };
        {
            let mut names = lock(&self.leased_names);
            let changes = self.own_changes();
            let granted_ms = first.entry.entry_ms;
            if let Some(term) = Self::term(cell, of, granted_ms, &[dir], &changes) {
                let page = (entries, is_end);
                names.note_page(of.0, (dir, cookie), page, term, cell.net.now());
            }
        }
        for item in entries {
            if let Some(attr) = &item.entry.attr {
                self.keep_attr(cell, of, dir, attr, item.entry.attr_ms);
            }
        }
    }

    /// Attributes under a lease, and for how many ms they are valid.
    pub(crate) fn leased_attr<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        ino: Ino,
    ) -> Option<(Attr, u32)> {
        let now = cell.net.now();
        let found = lock(&self.leased_attributes).get(link, ino, now)?;
        link.used.touch(now);
        Some(found)
    }

    /// A name under a lease, with the attributes of its inode.
    pub(crate) fn leased_name<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        dir: Ino,
        name: &Name,
    ) -> Option<LeasedLookup> {
        let now = cell.net.now();
        let (found, entry_ms) = lock(&self.leased_names).get(link, dir, name, now)?;
        let Some((ino, kind)) = found else {
            link.used.touch(now);
            return Some(LeasedLookup::Absent(entry_ms));
        };
        let (attr, attr_ms) = self.leased_attr(cell, &*cell.link_of(ino).ok()?, ino)?;
        link.used.touch(now);
        Some(LeasedLookup::Found(Entry {
            ino,
            kind,
            attr: Some(attr),
            entry_ms,
            attr_ms,
        }))
    }

    /// A page of a listing under a lease, with attributes.
    pub(crate) fn leased_page<N: Net>(
        &self,
        cell: &Cell<N>,
        link: &Link,
        (dir, cookie): (Ino, u64),
        most: u32,
    ) -> Option<Listing> {
        let now = cell.net.now();
        let names = lock(&self.leased_names);
        let (page, end, term_ms) = names.page(link, (dir, cookie), most as usize, now)?;
        let attributes = lock(&self.leased_attributes);
        let mut entries = Vec::with_capacity(page.len());
        for item in page {
            let at = cell.link_of(item.ino).ok()?;
            let (attr, attr_ms) = attributes.get(&at, item.ino, now)?;
            entries.push(DirEntry {
                name: item.name.clone(),
                cookie: item.cookie,
                entry: Entry {
                    ino: item.ino,
                    kind: item.kind,
                    attr: Some(attr),
                    entry_ms: term_ms,
                    attr_ms,
                },
            });
        }
        link.used.touch(now);
        Some(Listing {
            dir,
            entries,
            end,
            term_ms,
        })
    }

    /// Forgets names and attributes under leases, of all shards: their leases have a gap.
    pub(crate) fn forget_leased(&self) {
        lock(&self.leased_names).forget_all();
        lock(&self.leased_attributes).forget_all();
    }

    /// Whether names or attributes are kept under leases.
    pub(crate) fn has_leased(&self) -> bool {
        lock(&self.leased_names).len().0 > 0 || lock(&self.leased_attributes).len() > 0
    }

    /// Own changes. Locked last of all parts.
    pub(super) fn own_changes(&self) -> MutexGuard<'_, OwnChanges> {
        lock(&self.own_changes)
    }
}
