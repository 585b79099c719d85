//! Reads the snapshots of all shards one after the other: judges each shard by itself, and collects
//! its facts for the comparison with other stores.

use super::snapshot_keepalive::{SnapshotKeepalive, SnapshotStore};
use super::{FindingList, RunningOptions};
use crate::check::Ticker;
use crate::error::OfflineError;
use crate::external_sort::Sorter;
use crate::facts::{ShardContents, join_facts};
use crate::paths::{PathShard, Paths};
use std::collections::BTreeMap;
use zonal_fsck::{FindingKind, FindingPlace, junctions};
use zonal_meta::check::{Broken, Fact, Scan};
use zonal_meta::keys;
use zonal_types::{Blob, Ino, PartitionId, ShardId};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::junctions::{JunctionListing, ListedJunction};

/// Contents of all shards that are compared with other stores.
pub(super) struct Shards {
    /// Facts for the comparison with targets.
    pub data: Vec<Sorter>,
    pub inodes: u64,
    seen: Vec<(ShardId, Vec<PartitionId>, ShardContents)>,
    /// Junctions beside the root.
    listed: Vec<ListedJunction>,
}

fn place_of(shard: ShardId) -> FindingPlace {
    if shard == ShardId(0) {
        FindingPlace::Manager
    } else {
        FindingPlace::Shard(shard)
    }
}

impl Shards {
    pub fn read(
        kept: &SnapshotKeepalive<'_>,
        map: &ZoneMap,
        options: &RunningOptions,
        ticker: &Ticker<'_>,
        told: &mut FindingList,
    ) -> Result<Self, OfflineError> {
        let mut shards = Self {
            data: Vec::new(),
            inodes: 0,
            seen: Vec::new(),
            listed: Vec::new(),
        };
        let mut listing = JunctionListing::default();
        for snapshot in kept.shards() {
            let shard = snapshot.shard();
            let partitions = map.partitions_of(shard);
            let name = format!("running.shard-{shard}");
            let place = place_of(shard);
            let mut tell = |what| told.tell(place, None, what);
            let names = (options, name.as_str());
            let facts = read_facts(
                snapshot,
                (kept, &partitions),
                names,
                ticker,
                (&mut listing, &mut tell),
            )?;
            let names = (options.scratch.as_path(), name.as_str());
            let mut seen = join_facts(snapshot, facts, &partitions, names, &mut tell)?;
            // Only one shard's facts at a time are in memory.
            seen.data.settle()?;
            let empty = Sorter::new(&options.scratch, "none");
            shards.data.push(std::mem::replace(&mut seen.data, empty));
            shards.inodes += seen.inodes;
            shards.seen.push((shard, partitions, seen));
        }
        shards.listed = listing.finish();
        Ok(shards)
    }

    /// Compares first-level directories with the root and the map.
    pub fn junctions(&self, map: &ZoneMap, told: &mut FindingList) {
        let (mut entries, mut first_level) = (Vec::new(), Vec::new());
        for (_, _, seen) in &self.seen {
            entries.extend(seen.root_entries.iter().cloned());
            first_level.extend(seen.first_level.iter().copied());
        }
        let is_known = |ino: Ino| map.shard_of(ino.partition()).is_some();
        for mismatch in junctions::compare(map, &self.listed, &entries, &first_level, &is_known) {
            told.tell(FindingPlace::Cell, None, FindingKind::Junction(mismatch));
        }
    }

    pub fn paths<'a>(&'a self, kept: &'a SnapshotKeepalive<'a>) -> Paths<'a> {
        let mut root = BTreeMap::new();
        let mut through = Vec::new();
        for (shard, partitions, seen) in &self.seen {
            for entry in &seen.root_entries {
                root.insert(entry.ino, entry.name.clone());
            }
            if let Some(store) = kept.of(*shard) {
                through.push(PathShard {
                    partitions,
                    store,
                    tree: &seen.tree,
                });
            }
        }
        Paths::new(through, root)
    }
}

/// Reads every key of a snapshot as a fact; reports what is wrong with a key by itself.
fn read_facts(
    snapshot: &SnapshotStore<'_>,
    (kept, partitions): (&SnapshotKeepalive<'_>, &[PartitionId]),
    names: (&RunningOptions, &str),
    ticker: &Ticker<'_>,
    (listing, tell): (&mut JunctionListing, &mut dyn FnMut(FindingKind)),
) -> Result<Sorter, OfflineError> {
    let (options, name) = names;
    let mut facts = Sorter::new(&options.scratch, &format!("{name}.facts"));
    let mut failed = None;
    let mut buffer = Vec::new();
    let mut emit = |fact: Fact| {
        if failed.is_none() {
            failed = facts.push(fact.encode(&mut buffer)).err();
        }
    };
    let mut wrong = |found: Broken| tell(FindingKind::Shard(found));
    let mut scan = Scan::new(zonal_meta::ShardConfig::HASH_BITS, &mut emit, &mut wrong);
    // Notes that cannot be read are found below.
    let under_way = zonal_meta::partitions_under_way(snapshot, partitions);
    scan.pass_over(under_way.unwrap_or_default());
    let mut after = Blob::default();
    loop {
        let (entries, end) = snapshot.page(&after.0)?;
        for (key, value) in &entries {
            // The keys of the manager follow the shard's keys.
            let is_manager = key.0.starts_with(&[0xff; 4]) && key.0.get(4) >= Some(&keys::TAG_END);
            if is_manager {
                listing.take(&key.0, &value.0);
            } else {
                scan.take(&key.0, &value.0);
            }
        }
        ticker.tick(entries.len() as u64, (0, 0));
        kept.tick_now();
        match entries.into_iter().next_back() {
            Some((key, _)) if !end => after = key,
            _ => break,
        }
    }
    scan.finish();
    failed.map_or(Ok(facts), Err)
}
