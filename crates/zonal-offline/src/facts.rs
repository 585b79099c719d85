//! Joins the facts of a shard's keys: finds inconsistencies within the shard, and collects its
//! facts for the comparison with other stores.

use crate::error::OfflineError;
use crate::external_sort::Sorter;
use std::path::Path;
use zonal_fsck::FindingKind;
use zonal_fsck::data_fact::{DataClaim, DataFact};
use zonal_fsck::directory_tree::{Directory, DirectoryTree};
use zonal_fsck::junctions::{FirstLevel, RootEntry};
use zonal_meta::check::{Broken, Fact, InodeSummary, Join, JoinResult, NamingEntry};
use zonal_types::{FileKind, Ino, KvRead, PartitionId};

/// Contents of a shard's store that are compared with other stores.
pub(crate) struct ShardContents {
    pub data: Sorter,
    pub tree: DirectoryTree,
    pub first_level: Vec<FirstLevel>,
    pub root_entries: Vec<RootEntry>,
    pub inodes: u64,
}

impl ShardContents {
    /// Adds a directory to the tree, or to the first-level directories.
    fn take_directory(&mut self, known: &InodeSummary) {
        if let Some(named) = known.name {
            self.tree.push(Directory {
                ino: known.ino,
                dir: named.dir,
                cookie: named.cookie,
            });
        } else if known.parent == Ino::ROOT && known.ino != Ino::ROOT {
            self.first_level.push(FirstLevel {
                ino: known.ino,
                is_detached: known.is_detached,
            });
        }
    }
}

/// The root's entry of another shard's inode, with its name where it can be read.
fn root_entry(store: &dyn KvRead, ino: Ino, named: &NamingEntry) -> RootEntry {
    let name = zonal_meta::repair::entry_name(store, named.dir, named.cookie);
    let name = name.ok().flatten();
    RootEntry {
        ino,
        name: name.map(|name| name.to_string()).unwrap_or_default(),
        cookie: named.cookie,
    }
}

/// The statement about a data id that a result of the join is, beside those of inodes.
fn claim_of(joined: &JoinResult) -> Option<DataFact> {
    let (data_id, about) = match *joined {
        JoinResult::Deleted(data_id) => (data_id, DataClaim::Deleted),
        JoinResult::Relocated(ino, data_id, relocation) => {
            (data_id, DataClaim::Relocated { ino, relocation })
        }
        JoinResult::Stale(ino, data_id, target) => (data_id, DataClaim::Stale { ino, target }),
        _ => return None,
    };
    Some(DataFact { data_id, about })
}

/// Compares the facts of a shard with one another.
pub(crate) fn join_facts(
    store: &dyn KvRead,
    facts: Sorter,
    partitions: &[PartitionId],
    names: (&Path, &str),
    tell: &mut dyn FnMut(FindingKind),
) -> Result<ShardContents, OfflineError> {
    let (scratch, name) = names;
    let mut buffer = Vec::new();
    let mut seen = ShardContents {
        data: Sorter::new(scratch, &format!("{name}.data")),
        tree: DirectoryTree::default(),
        first_level: Vec::new(),
        root_entries: Vec::new(),
        inodes: 0,
    };
    let is_ours = |ino: Ino| partitions.binary_search(&ino.partition()).is_ok();
    let mut failed = None;
    let mut take = |joined| match joined {
        JoinResult::Broken(found) => tell(FindingKind::Shard(found)),
        JoinResult::Deleted(_) | JoinResult::Relocated(..) | JoinResult::Stale(..) => {
            let fact = claim_of(&joined);
            let pushed = fact.map(|fact| seen.data.push(fact.encode(&mut buffer)));
            if let Some(Err(error)) = pushed {
                failed = Some(error);
            }
        }
        JoinResult::Elsewhere(ino, named) if named.dir == Ino::ROOT => {
            seen.root_entries.push(root_entry(store, ino, &named));
        }
        JoinResult::Elsewhere(ino, NamingEntry { dir, cookie, .. }) => {
            // Only entries of the root lead to other shards.
            tell(FindingKind::Shard(Broken::LeadsNowhere {
                dir,
                cookie,
                ino,
            }));
        }
        JoinResult::Known(known) => {
            seen.inodes += 1;
            if known.kind == FileKind::Directory {
                seen.take_directory(&known);
            }
            if let Some(data) = &known.data {
                let name = known.name.map(|named| (named.dir, named.cookie));
                let fact = DataFact::expected(known.ino, name, data);
                if let Err(error) = seen.data.push(fact.encode(&mut buffer)) {
                    failed = Some(error);
                }
            }
        }
    };
    let mut join = Join::new(&is_ours, &mut take);
    Sorter::merge(vec![facts], &mut |bytes| {
        if let Some(fact) = Fact::decode(bytes) {
            join.take(&fact);
        }
        Ok(())
    })?;
    join.finish();
    for cut in seen.tree.cycles() {
        let Directory { ino, dir, cookie } = cut;
        tell(FindingKind::Shard(Broken::Cycle { dir, cookie, ino }));
    }
    failed.map_or(Ok(seen), Err)
}
