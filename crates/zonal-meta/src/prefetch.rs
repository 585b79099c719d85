//! Prefetch: reads the first keys of a request before it has the shard to itself.
//!
//! A shard runs one request at a time. A read that misses the store's cache takes as long as the
//! disk, and all other requests would wait meanwhile. So where reads have missed lately, the server
//! calls [`prefetch`] first, without the shard. Many threads then read the disk in parallel, and
//! the request finds its pages in the cache. Nothing is decided here: the request meets a read
//! error again, and reports it.
//!
//! Cost: as many look-ups as the request makes itself, at most [`READDIR_ENTRIES_MAX`] and one.

use crate::acl::ACCESS_NAME;
use crate::dentry::{Dentry, name_cookie};
use crate::inode::Inode;
use crate::keys;
use zonal_types::limits::READDIR_ENTRIES_MAX;
use zonal_types::{Ino, KvRead, Name};
use zonal_wire::MetaRequest;

/// Reads the keys that `request` is about to read. `hash_bits` is the shard's.
pub fn prefetch(kv: &dyn KvRead, hash_bits: u32, request: &MetaRequest) {
    let reader = Reader { kv, hash_bits };
    match request {
        MetaRequest::Lookup { parent, name, .. }
        | MetaRequest::Create { parent, name, .. }
        | MetaRequest::Mkdir { parent, name, .. }
        | MetaRequest::Unlink { parent, name, .. }
        | MetaRequest::Rmdir { parent, name, .. } => reader.name(*parent, name),
        MetaRequest::Rename {
            parent,
            name,
            new_parent,
            new_name,
            ..
        } => {
            reader.name(*parent, name);
            reader.name(*new_parent, new_name);
        }
        MetaRequest::Link {
            ino, parent, name, ..
        } => {
            reader.inode(*ino);
            reader.name(*parent, name);
        }
        MetaRequest::Open { ino, .. } => {
            if let Some(inode) = reader.inode(*ino) {
                reader.inode(inode.parent);
                reader.key(&keys::inline(*ino));
            }
        }
        MetaRequest::ReadInline { ino } => reader.inode_with(*ino, &keys::inline(*ino)),
        MetaRequest::GetXattr { ino, name, .. } => {
            reader.inode_with(*ino, &keys::xattr(*ino, &name.0));
        }
        MetaRequest::ReadDir {
            dir,
            cookie,
            entries,
            plus,
            ..
        } => {
            reader.inode(*dir);
            reader.entries(*dir, *cookie, *entries, *plus);
        }
        MetaRequest::ReadDirs { dirs, entries, .. } => {
            if let Some(first) = dirs.first() {
                reader.inode(*first);
                reader.entries(*first, 0, *entries, true);
            }
        }
        MetaRequest::Touch { reads } => reads.iter().for_each(|(ino, _time)| {
            reader.inode(*ino);
        }),
        MetaRequest::FileOf { data_id }
        | MetaRequest::CopiesOf { data_id }
        | MetaRequest::HasOpen { data_id, .. } => {
            reader.key(&keys::data(*data_id));
        }
        MetaRequest::GetAttr { ino, .. }
        | MetaRequest::Access { ino, .. }
        | MetaRequest::Readlink { ino }
        | MetaRequest::ListXattr { ino, .. }
        | MetaRequest::SetAttr { ino, .. }
        | MetaRequest::Truncate { ino, .. }
        | MetaRequest::ReportWrite { ino, .. }
        | MetaRequest::MarkStale { ino, .. }
        | MetaRequest::SetXattr { ino, .. }
        | MetaRequest::RemoveXattr { ino, .. }
        | MetaRequest::Parent { ino } => drop(reader.inode(*ino)),
        _ => {}
    }
}

struct Reader<'a> {
    kv: &'a dyn KvRead,
    hash_bits: u32,
}

impl Reader<'_> {
    fn key(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.kv.get(key).ok().flatten()
    }

    /// Reads an inode and a key beside it.
    fn inode_with(&self, ino: Ino, key: &[u8]) {
        self.inode(ino);
        self.key(key);
    }

    /// Reads an inode, and the ACL that decides its permissions.
    fn inode(&self, ino: Ino) -> Option<Inode> {
        let inode = Inode::decode(ino, &self.key(&keys::inode(ino))?).ok()?;
        if inode.has_acl() {
            self.key(&keys::xattr(ino, ACCESS_NAME));
        }
        Some(inode)
    }

    /// Reads a name, its directory and its inode. Among names with the same hash: the first.
    fn name(&self, dir: Ino, name: &Name) {
        self.inode(dir);
        let cookie = name_cookie(name.as_bytes(), self.hash_bits);
        let value = self.key(&keys::dentry(dir, cookie));
        if let Some(Ok(dentry)) = value.map(|value| Dentry::decode(&value))
            && dentry.name == *name
        {
            self.inode(dentry.ino);
        }
    }

    fn entries(&self, dir: Ino, cookie: u64, entries: u32, with_inodes: bool) {
        let limit = (entries as usize).clamp(1, READDIR_ENTRIES_MAX);
        let mut found = Vec::new();
        let (_, stop) = keys::dentries(dir);
        let start = keys::dentry(dir, cookie.saturating_add(1));
        let scanned = self.kv.scan(&start, &stop, &mut |_key, value| {
            found.extend(Dentry::decode(value).ok().map(|dentry| dentry.ino));
            found.len() < limit
        });
        if scanned.is_ok() && with_inodes {
            for ino in found {
                self.key(&keys::inode(ino));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::collections::{BTreeMap, BTreeSet};
    use zonal_types::{Codec, Credentials, ErrorCode, FileKind, Timestamp, ZoneId};

    #[derive(Default)]
    struct Watched {
        kv: BTreeMap<Vec<u8>, Vec<u8>>,
        read: RefCell<BTreeSet<Vec<u8>>>,
    }

    impl KvRead for Watched {
        fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
            self.read.borrow_mut().insert(key.to_vec());
            Ok(self.kv.get(key).cloned())
        }

        fn scan(
            &self,
            start: &[u8],
            end: &[u8],
            visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
        ) -> Result<(), ErrorCode> {
            self.kv.scan(start, end, visit)
        }
    }

    #[test]
    fn a_name_its_directory_and_its_inode_are_read() {
        let bits = crate::ShardConfig::HASH_BITS;
        let mut store = Watched::default();
        let (dir, file) = (Ino(0x1_0000_0001), Ino(0x1_0000_0002));
        let name = Name::new(b"f").unwrap();
        for (ino, kind) in [(dir, FileKind::Directory), (file, FileKind::File)] {
            let inode = Inode::new(ino, kind, dir, ZoneId(1), Timestamp::default());
            store.kv.insert(keys::inode(ino), inode.to_bytes());
        }
        let dentry = Dentry {
            ino: file,
            kind: FileKind::File,
            chained: false,
            name: name.clone(),
        };
        let place = keys::dentry(dir, name_cookie(b"f", bits));
        store.kv.insert(place.clone(), dentry.to_bytes());
        let lookup = MetaRequest::Lookup {
            who: Credentials::root(),
            parent: dir,
            name,
        };
        prefetch(&store, bits, &lookup);
        let wanted = BTreeSet::from([keys::inode(dir), keys::inode(file), place]);
        assert_eq!(store.read.take(), wanted);
        let list = MetaRequest::ReadDir {
            who: Credentials::root(),
            dir,
            cookie: 0,
            entries: 100,
            plus: true,
        };
        prefetch(&store, bits, &list);
        let wanted = BTreeSet::from([keys::inode(dir), keys::inode(file)]);
        assert_eq!(store.read.take(), wanted);
    }
}
