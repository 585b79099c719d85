//! Every invariant of a shard's store (DESIGN 4: 2 and 8), looked at key by key. For tests, the simulator and fsck; reads
//! the whole store.

use crate::dentry::{Dentry, name_cookie};
use crate::inode::{FLAG_DETACHED, FLAG_ORPHAN, Inode};
use crate::keys;
use crate::op::xattr::flag_of;
use crate::shard::Shard;
use crate::tx::OrphanRecord;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{Codec, FileKind, Ino, KvRead, Layout};

#[derive(Default)]
struct Found {
    inodes: BTreeMap<Ino, Inode>,
    /// Directory, entry.
    entries: Vec<(Ino, u64, Dentry)>,
    xattrs: BTreeMap<Ino, u8>,
    orphans: BTreeMap<Ino, OrphanRecord>,
    deletions: BTreeSet<Ino>,
    detached: BTreeSet<Ino>,
    broken: Vec<String>,
}

impl Shard {
    /// Every broken invariant, in words.
    #[must_use]
    pub fn check(&self, kv: &dyn KvRead) -> Vec<String> {
        let mut found = Found::default();
        for partition in &self.partitions {
            let (start, end) = keys::tag_range(partition.0, 0);
            let (_, end) = (end, (partition.0 + 1).to_be_bytes().to_vec());
            let scanned = kv.scan(&start, &end, &mut |key, value| {
                found.take(key, value);
                true
            });
            if let Err(code) = scanned {
                found
                    .broken
                    .push(format!("partition {partition} cannot be read: {code}"));
            }
        }
        self.check_entries(&mut found);
        self.check_inodes(&mut found);
        self.check_memory(&mut found);
        found.broken
    }

    fn check_entries(&self, found: &mut Found) {
        let mut broken = Vec::new();
        let mut chains: BTreeSet<(Ino, u64)> = BTreeSet::new();
        for (dir, cookie, dentry) in &found.entries {
            if cookie & 0xff == 0 {
                chains.insert((*dir, *cookie));
            }
            if !found.inodes.get(dir).is_some_and(Inode::is_dir) {
                broken.push(format!(
                    "entry {} is in {dir}, which is no directory",
                    dentry.name
                ));
            }
            if dentry.is_mark() {
                continue;
            }
            let first = cookie & !0xff;
            if name_cookie(dentry.name.as_bytes(), self.config.hash_bits) != first || first == 0 {
                broken.push(format!(
                    "entry {} of {dir} is in the wrong place",
                    dentry.name
                ));
            }
            if !chains.contains(&(*dir, first)) {
                broken.push(format!("entry {} of {dir} has no first place", dentry.name));
            }
            let is_ours = self
                .partitions
                .binary_search(&dentry.ino.partition())
                .is_ok();
            match found.inodes.get(&dentry.ino) {
                None if is_ours => {
                    broken.push(format!("entry {} of {dir} leads to nothing", dentry.name));
                }
                Some(inode) if inode.kind != dentry.kind => {
                    broken.push(format!(
                        "entry {} of {dir} has another type than its inode",
                        dentry.name
                    ));
                }
                Some(inode) if inode.is_dir() && inode.parent != *dir => {
                    broken.push(format!(
                        "directory {} is not in {}",
                        dentry.ino, inode.parent
                    ));
                }
                _ => {}
            }
        }
        found.broken.extend(broken);
    }

    fn check_inodes(&self, found: &mut Found) {
        let mut links: BTreeMap<Ino, u32> = BTreeMap::new();
        let mut counts: BTreeMap<Ino, (u64, u32)> = BTreeMap::new();
        for (dir, _, dentry) in found.entries.iter().filter(|entry| !entry.2.is_mark()) {
            *links.entry(dentry.ino).or_default() += 1;
            let count = counts.entry(*dir).or_default();
            count.0 += 1;
            count.1 += u32::from(dentry.kind == FileKind::Directory);
        }
        let mut broken = Vec::new();
        for (ino, inode) in &found.inodes {
            let names = links.get(ino).copied().unwrap_or(0);
            let (entries, subdirectories) = counts.get(ino).copied().unwrap_or_default();
            if inode.is_dir() {
                let is_first_level = inode.parent == Ino::ROOT;
                if names != 1 && !(is_first_level && names == 0) {
                    broken.push(format!(
                        "directory {ino} has {names} entries that lead to it"
                    ));
                }
                if inode.size != entries || inode.nlink != 2 + subdirectories {
                    broken.push(format!(
                        "directory {ino} counts {} entries and {} links, has {entries} and {subdirectories} directories",
                        inode.size, inode.nlink
                    ));
                }
            } else if inode.nlink != names {
                broken.push(format!(
                    "inode {ino} has {} links, {names} names",
                    inode.nlink
                ));
            }
            let is_orphan = found.orphans.contains_key(ino);
            if (inode.nlink == 0) != is_orphan || inode.has(FLAG_ORPHAN) != is_orphan {
                broken.push(format!(
                    "inode {ino} with {} links: orphan {is_orphan}",
                    inode.nlink
                ));
            }
            if inode.has(FLAG_DETACHED) != found.detached.contains(ino) {
                broken.push(format!("directory {ino} is half detached"));
            }
            if found.deletions.contains(ino) {
                broken.push(format!(
                    "the objects of living inode {ino} are to be deleted"
                ));
            }
            let flags = found.xattrs.get(ino).copied().unwrap_or(0);
            if flags & !inode.xattrs != 0 {
                broken.push(format!("inode {ino} does not know all its attributes"));
            }
        }
        let homeless = found.xattrs.keys().chain(found.orphans.keys());
        for ino in homeless.filter(|ino| !found.inodes.contains_key(ino)) {
            broken.push(format!("something is left of inode {ino}"));
        }
        found.broken.extend(broken);
    }

    fn check_memory(&self, found: &mut Found) {
        for (ino, record) in &found.orphans {
            let stored: BTreeSet<_> = record.sessions.iter().copied().collect();
            if self.opens.orphans.get(ino) != Some(&stored) {
                found.broken.push(format!("orphan {ino} differs in memory"));
            }
        }
        let missed = found.deletions.iter();
        for ino in missed.filter(|ino| !self.deletions.may_have(**ino)) {
            found.broken.push(format!(
                "nobody looks for the objects of removed inode {ino}"
            ));
        }
        if self.opens.orphans.len() != found.orphans.len() {
            found
                .broken
                .push("memory has orphans that the store has not".to_owned());
        }
        let bounds = [
            ("sessions", self.sessions.len(), self.config.sessions_max),
            // Reclaiming may stop short of it, opening never passes it.
            ("opens", self.opens.len(), self.config.opens_max),
        ];
        for (what, count, limit) in bounds {
            if count > limit {
                found
                    .broken
                    .push(format!("{count} {what}, at most {limit} allowed"));
            }
        }
        found.broken.extend(self.locks.check());
    }
}

impl Found {
    fn take(&mut self, key: &[u8], value: &[u8]) {
        if self.decode(key, value).is_none() {
            self.broken
                .push(format!("key {key:02x?} or its value is damaged"));
        }
    }

    fn decode(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let tag = *key.get(4)?;
        if tag == keys::TAG_IDS {
            return Some(());
        }
        let ino = keys::ino_of(key)?;
        match tag {
            keys::TAG_INODE => {
                self.inodes.insert(ino, Inode::decode(ino, value).ok()?);
            }
            keys::TAG_DENTRY => {
                let dentry = Dentry::decode(value).ok()?;
                self.entries.push((ino, keys::dentry_cookie(key)?, dentry));
            }
            keys::TAG_XATTR => {
                *self.xattrs.entry(ino).or_default() |= flag_of(key.get(keys::XATTR_NAME_AT..)?);
            }
            keys::TAG_ORPHAN => {
                self.orphans
                    .insert(ino, OrphanRecord::from_bytes(value).ok()?);
            }
            keys::TAG_DELETION => {
                Layout::from_bytes(value).ok()?;
                self.deletions.insert(ino);
            }
            keys::TAG_DETACHED => {
                self.detached.insert(ino);
            }
            _ => return None,
        }
        Some(())
    }
}
