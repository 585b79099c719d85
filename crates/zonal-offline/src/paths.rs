//! Finds the path of an inode, by the names in the stores.

use std::collections::BTreeMap;
use zonal_fsck::directory_tree::DirectoryTree;
use zonal_meta::repair::entry_name;
use zonal_types::{Ino, KvRead, PartitionId};

/// Names in the deepest path that is written out.
const DEPTH_MAX: u32 = 4096;

/// A shard whose directories a path leads through.
pub(crate) struct PathShard<'a> {
    pub partitions: &'a [PartitionId],
    pub store: &'a dyn KvRead,
    pub tree: &'a DirectoryTree,
}

/// Finds paths, and remembers the path of the last directory.
pub(crate) struct Paths<'a> {
    pub shards: Vec<PathShard<'a>>,
    /// Names of first-level directories.
    pub root: BTreeMap<Ino, String>,
    last: Option<(Ino, Option<String>)>,
}

impl<'a> Paths<'a> {
    pub fn new(shards: Vec<PathShard<'a>>, root: BTreeMap<Ino, String>) -> Self {
        Self {
            shards,
            root,
            last: None,
        }
    }

    fn shard(&self, ino: Ino) -> Option<&PathShard<'a>> {
        let mut shards = self.shards.iter();
        shards.find(|shard| shard.partitions.binary_search(&ino.partition()).is_ok())
    }

    fn name(&self, dir: Ino, cookie: u64) -> Option<String> {
        let name = entry_name(self.shard(dir)?.store, dir, cookie).ok()??;
        Some(name.to_string())
    }

    fn directory(&self, dir: Ino) -> Option<String> {
        let mut parts = Vec::new();
        let mut at = dir;
        for _ in 0..DEPTH_MAX {
            if at == Ino::ROOT {
                break;
            }
            if let Some(name) = self.root.get(&at) {
                parts.push(name.clone());
                break;
            }
            let entry = self.shard(at)?.tree.get(at)?;
            parts.push(self.name(entry.dir, entry.cookie)?);
            at = entry.dir;
        }
        parts.reverse();
        Some(parts.iter().map(|part| format!("/{part}")).collect())
    }

    /// The path of an entry.
    pub fn path(&mut self, dir: Ino, cookie: u64) -> Option<String> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != dir) {
            self.last = Some((dir, self.directory(dir)));
        }
        let above = self.last.as_ref().and_then(|(_, path)| path.clone())?;
        Some(format!("{above}/{}", self.name(dir, cookie)?))
    }
}
