//! All shards' snapshots, read one after the other: each judged by itself, and what it says to the
//! rest of the cell.

use super::kept::{Kept, OfShard};
use super::{RunningOptions, Told};
use crate::error::OfflineError;
use crate::facts::{ShardSeen, join_facts};
use crate::paths::{Paths, Through};
use crate::run::Ticker;
use crate::sort::Sorter;
use std::collections::BTreeMap;
use zonal_fsck::{Place, What, junctions};
use zonal_meta::check::{Broken, Fact, Scan};
use zonal_meta::keys;
use zonal_types::{Blob, Ino, PartitionId, ShardId};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::junctions::{JunctionListing, ListedJunction};

/// What all shards say.
pub(super) struct Shards {
    /// Facts for what lies between shards and targets.
    pub data: Vec<Sorter>,
    pub inodes: u64,
    seen: Vec<(ShardId, Vec<PartitionId>, ShardSeen)>,
    /// Junctions beside the root.
    listed: Vec<ListedJunction>,
}

fn place_of(shard: ShardId) -> Place {
    if shard == ShardId(0) {
        Place::Manager
    } else {
        Place::Shard(shard)
    }
}

impl Shards {
    pub fn read(
        kept: &Kept<'_>,
        map: &ZoneMap,
        options: &RunningOptions,
        ticker: &Ticker<'_>,
        told: &mut Told,
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
            let facts = read_facts(snapshot, kept, names, ticker, (&mut listing, &mut tell))?;
            let names = (options.scratch.as_path(), name.as_str());
            let mut seen = join_facts(snapshot, facts, &partitions, names, &mut tell)?;
            // One shard's facts at a time are in memory.
            seen.data.settle()?;
            let empty = Sorter::new(&options.scratch, "none");
            shards.data.push(std::mem::replace(&mut seen.data, empty));
            shards.inodes += seen.inodes;
            shards.seen.push((shard, partitions, seen));
        }
        shards.listed = listing.finish();
        Ok(shards)
    }

    /// First-level directories against the root and the map.
    pub fn junctions(&self, map: &ZoneMap, told: &mut Told) {
        let (mut entries, mut first_level) = (Vec::new(), Vec::new());
        for (_, _, seen) in &self.seen {
            entries.extend(seen.root_entries.iter().cloned());
            first_level.extend(seen.first_level.iter().copied());
        }
        let is_known = |ino: Ino| map.shard_of(ino.partition()).is_some();
        for mismatch in junctions::compare(map, &self.listed, &entries, &first_level, &is_known) {
            told.tell(Place::Cell, None, What::Junction(mismatch));
        }
    }

    pub fn paths<'a>(&'a self, kept: &'a Kept<'a>) -> Paths<'a> {
        let mut root = BTreeMap::new();
        let mut through = Vec::new();
        for (shard, partitions, seen) in &self.seen {
            for entry in &seen.root_entries {
                root.insert(entry.ino, entry.name.clone());
            }
            if let Some(store) = kept.of(*shard) {
                through.push(Through {
                    partitions,
                    store,
                    tree: &seen.tree,
                });
            }
        }
        Paths::new(through, root)
    }
}

/// Every key of a snapshot as a fact; what is wrong with one by itself is told.
fn read_facts(
    snapshot: &OfShard<'_>,
    kept: &Kept<'_>,
    names: (&RunningOptions, &str),
    ticker: &Ticker<'_>,
    (listing, tell): (&mut JunctionListing, &mut dyn FnMut(What)),
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
    let mut wrong = |found: Broken| tell(What::Shard(found));
    let mut scan = Scan::new(zonal_meta::ShardConfig::HASH_BITS, &mut emit, &mut wrong);
    let mut after = Blob::default();
    loop {
        let (entries, end) = snapshot.page(&after.0)?;
        for (key, value) in &entries {
            // Behind the shard's keys are those of the manager.
            let is_manager = key.0.starts_with(&[0xff; 4]) && key.0.get(4) >= Some(&keys::TAG_END);
            if is_manager {
                listing.take(&key.0, &value.0);
            } else {
                scan.take(&key.0, &value.0);
            }
        }
        ticker.tick(entries.len() as u64, (0, 0));
        kept.remind_now();
        match entries.into_iter().next_back() {
            Some((key, _)) if !end => after = key,
            _ => break,
        }
    }
    scan.finish();
    failed.map_or(Ok(facts), Err)
}
