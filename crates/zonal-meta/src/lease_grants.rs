//! Lease grants: the leases that a change must recall, and the cache terms that a reply may carry.

use crate::leases::{LeaseChange, Leases};
use crate::tx::{Finished, Tx};
use std::collections::BTreeMap;
use zonal_types::{Attr, FileKind, Ino, Instant, SessionId};
use zonal_wire::meta::Entry;
use zonal_wire::{MetaReply, MetaRequest};

/// The lease changes of a finished request. For changes of access times alone nothing waits: see
/// [`accessed`].
pub(crate) fn changes(finished: &Finished) -> Vec<LeaseChange> {
    let mut by_directory: BTreeMap<Ino, LeaseChange> = BTreeMap::new();
    let mut touch = |directory: Ino, entries: bool, child: Option<Ino>, data: bool| {
        let change = by_directory.entry(directory).or_insert(LeaseChange {
            directory,
            entries: false,
            children: Vec::new(),
            data: false,
        });
        change.entries |= entries;
        change.children.extend(child);
        change.data |= data;
    };
    for directory in &finished.directories {
        touch(*directory, true, None, false);
    }
    for changed in &finished.inodes {
        let before = changed.before.attr();
        let after = changed.now.as_ref().map(crate::inode::Inode::attr);
        if after.is_some_and(|after| is_same(&before, &after)) {
            continue;
        }
        if before.kind == FileKind::Directory {
            touch(before.ino, true, None, false);
        } else if before.nlink == 1 && changed.before.parent != Ino(0) {
            let data =
                after.is_some_and(|after| after.mtime != before.mtime || after.size != before.size);
            touch(changed.before.parent, false, Some(before.ino), data);
        }
    }
    by_directory.into_values().collect()
}

/// Inodes of which only the access time has changed, by the directory whose leases cover them.
pub(crate) fn accessed(finished: &Finished) -> BTreeMap<Ino, Vec<Ino>> {
    let mut by_directory: BTreeMap<Ino, Vec<Ino>> = BTreeMap::new();
    for changed in &finished.inodes {
        let before = changed.before.attr();
        let after = changed.now.as_ref().map(crate::inode::Inode::attr);
        if after.is_some_and(|after| is_same(&before, &after) && before.atime != after.atime) {
            let directory = match before.kind {
                FileKind::Directory => before.ino,
                _ => changed.before.parent,
            };
            by_directory.entry(directory).or_default().push(before.ino);
        }
    }
    by_directory
}

fn is_same(before: &Attr, after: &Attr) -> bool {
    let atime = before.atime;
    *before == Attr { atime, ..*after }
}

/// Replaces the marks that the operation left in the reply by granted terms, in ms.
pub(crate) fn grant(
    reply: &mut MetaReply,
    lease: Option<Ino>,
    leases: &mut Leases,
    session: SessionId,
    now: Instant,
) {
    let mut granter = Granter {
        leases,
        session,
        now,
        lease,
        granted: None,
    };
    match reply {
        MetaReply::Entry { entry }
        | MetaReply::Opened { entry, .. }
        | MetaReply::OpenedSmall { entry, .. } => granter.entry(entry),
        MetaReply::NoEntry { entry_ms } => granter.directory(entry_ms),
        MetaReply::Attr { attr, attr_ms, .. } => granter.attr(attr, attr_ms),
        MetaReply::Dir { entries, .. } => {
            for entry in entries {
                granter.entry(&mut entry.entry);
            }
        }
        MetaReply::Dirs { listings } => {
            for listing in listings {
                (granter.lease, granter.granted) = (Some(listing.dir), None);
                granter.directory(&mut listing.term_ms);
                for entry in &mut listing.entries {
                    granter.entry(&mut entry.entry);
                }
            }
        }
        _ => {}
    }
}

/// Attributes of the directory whose entries the request changes, after the change. The kernel asks
/// for them after each change; so the client need not send a request.
pub(crate) fn directory_after(tx: &mut Tx<'_>, request: &MetaRequest) -> Option<Attr> {
    let dir = request.changes_entries_of()?;
    let dir = tx.is_ours(dir).then(|| tx.inode(dir).ok())??;
    // The root shard removes a first-level directory; nothing is recalled here.
    (dir.parent != Ino::ROOT).then(|| dir.attr())
}

/// Removes all terms from a reply that is kept for repeats: a repeat must not promise anything.
/// Removes a file's bytes too; the client asks for them.
pub(crate) fn without_times(reply: &MetaReply) -> MetaReply {
    let mut reply = match reply {
        MetaReply::OpenedSmall { entry, data, .. } => MetaReply::Opened {
            entry: entry.clone(),
            data: data.clone(),
            push: false,
        },
        other => other.clone(),
    };
    match &mut reply {
        MetaReply::Entry { entry } | MetaReply::Opened { entry, .. } => {
            entry.entry_ms = 0;
            entry.attr_ms = 0;
        }
        MetaReply::NoEntry { entry_ms } => *entry_ms = 0,
        MetaReply::Attr { attr_ms, .. } => *attr_ms = 0,
        _ => {}
    }
    reply
}

struct Granter<'a> {
    leases: &'a mut Leases,
    session: SessionId,
    now: Instant,
    lease: Option<Ino>,
    granted: Option<u32>,
}

impl Granter<'_> {
    fn directory(&mut self, ms: &mut u32) {
        if *ms == 0 {
            return;
        }
        let (leases, session, now) = (&mut *self.leases, self.session, self.now);
        let granted = match (self.granted, self.lease) {
            (Some(granted), _) => granted,
            (None, Some(directory)) if directory != Ino(0) => leases.grant(directory, session, now),
            _ => 0,
        };
        self.granted = Some(granted);
        *ms = granted;
    }

    /// A directory's own lease covers its attributes; the parent's lease covers those of other
    /// inodes.
    fn attr(&mut self, attr: &Attr, ms: &mut u32) {
        if *ms != 0 && attr.kind == FileKind::Directory {
            *ms = self.leases.grant(attr.ino, self.session, self.now);
        } else {
            self.directory(ms);
        }
    }

    fn entry(&mut self, entry: &mut Entry) {
        self.directory(&mut entry.entry_ms);
        match &entry.attr {
            Some(attr) => self.attr(attr, &mut entry.attr_ms),
            None => entry.attr_ms = 0,
        }
    }
}
