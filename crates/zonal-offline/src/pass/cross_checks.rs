//! Compares stores with one another: junctions with the root, inodes with objects, damaged blocks
//! with the files that own them.

use super::lost_keys::load_lost;
use super::store_registry::shard_of;
use super::{Part, Pass};
use crate::cell::CellStores;
use crate::error::OfflineError;
use crate::external_sort::Sorter;
use crate::paths::{PathShard, Paths};
use crate::store_scan::TargetContents;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use zonal_disk::repair::LostKeys;
use zonal_fsck::data_fact::{DataClaim, DataFact, DataOwner};
use zonal_fsck::junctions::{self, FirstLevel, RootEntry};
use zonal_fsck::objects::{self, JoinOutcome, ObjectJoin};
use zonal_fsck::ranges::Ranges;
use zonal_fsck::{FindingKind, FindingPlace};
use zonal_layout::stripe;
use zonal_object::ObjectId;
use zonal_object::ids::BLOCK;
use zonal_types::{Column, Component, DataId, Ino, Relocation, ShardId, TargetId};
use zonal_zonemap::ZoneMap;

impl Pass<'_, '_> {
    /// Compares the stores of the cell.
    pub(super) fn between(
        &mut self,
        map: &ZoneMap,
        parts: Vec<(usize, Part)>,
        is_there: &BTreeSet<usize>,
        scratch: &Path,
    ) -> Result<(), OfflineError> {
        let (mut sorters, mut shards, mut targets) = (Vec::new(), Vec::new(), BTreeMap::new());
        for (at, part) in parts {
            match part {
                Part::Shard(store, mut seen, partitions) => {
                    self.seen.inodes += seen.inodes;
                    let empty = Sorter::new(scratch, "none");
                    sorters.push(std::mem::replace(&mut seen.data, empty));
                    shards.push((at, store, seen, partitions));
                }
                Part::Target(mut seen) => {
                    self.seen.objects += seen.objects;
                    let empty = Sorter::new(scratch, "none");
                    sorters.push(std::mem::replace(&mut seen.data, empty));
                    targets.insert(at, seen);
                }
                Part::Nothing => {}
            }
        }
        let (mut entries, mut first_level) = (Vec::new(), Vec::new());
        for (_, _, seen, _) in &shards {
            entries.extend(seen.root_entries.iter().cloned());
            first_level.extend(seen.first_level.iter().copied());
        }
        let read: BTreeSet<ShardId> = shards
            .iter()
            .filter_map(|(at, ..)| shard_of(self.cell.stores.get(*at)?, map))
            .collect();
        // A shard with damaged files may have lost the entries that this check needs.
        let damaged = &self.seen.work.files;
        let untouched: BTreeSet<ShardId> = shards
            .iter()
            .filter(|(at, ..)| !damaged.contains_key(at))
            .filter_map(|(at, ..)| shard_of(self.cell.stores.get(*at)?, map))
            .collect();
        self.compare_junctions(map, &untouched, &entries, &first_level);
        let root: BTreeMap<Ino, String> = entries
            .into_iter()
            .map(|entry| (entry.ino, entry.name))
            .collect();
        self.seen.work.root.clone_from(&root);
        let through = shards.iter().map(|(_, store, seen, partitions)| PathShard {
            partitions,
            store: store.as_ref(),
            tree: &seen.tree,
        });
        let mut paths = Paths::new(through.collect(), root);
        let all_shards = map.shards.iter().all(|shard| read.contains(&shard.id));
        self.objects(
            map,
            sorters,
            &targets,
            &mut paths,
            (is_there, all_shards, scratch),
        )?;
        Ok(())
    }

    /// Compares junctions with the root's entries, and with the first-level directories of the
    /// shards whose files are `untouched` by damage.
    fn compare_junctions(
        &mut self,
        map: &ZoneMap,
        untouched: &BTreeSet<ShardId>,
        entries: &[RootEntry],
        first_level: &[FirstLevel],
    ) {
        let has_root = untouched.contains(&ShardId(0));
        let is_known = |ino: Ino| {
            map.shard_of(ino.partition())
                .is_some_and(|shard| untouched.contains(&shard.id))
        };
        let listed = &self.seen.work.listed;
        let mismatches = junctions::compare(map, listed, entries, first_level, &is_known);
        for mismatch in mismatches.into_iter().filter(|_| has_root) {
            self.tell(
                FindingPlace::Cell,
                None,
                None,
                FindingKind::Junction(mismatch),
            );
        }
    }

    fn store_of(&self, target: TargetId) -> Option<usize> {
        let mut stores = self.cell.stores.iter();
        stores.position(|spec| {
            spec.geometry
                .is_some_and(|geometry| geometry.target == target)
        })
    }

    fn objects(
        &mut self,
        map: &ZoneMap,
        sorters: Vec<Sorter>,
        targets: &BTreeMap<usize, TargetContents>,
        paths: &mut Paths<'_>,
        known: (&BTreeSet<usize>, bool, &Path),
    ) -> Result<(), OfflineError> {
        let (is_there, all_shards, scratch) = known;
        let mut blocks = Blocks::new(self.cell, targets);
        let lost_keys: BTreeMap<TargetId, Vec<LostKeys>> = map
            .targets
            .iter()
            .map(|target| (target.id, load_lost(scratch, target.id)))
            .filter(|(_, lost)| !lost.is_empty())
            .collect();
        let cell = self.cell;
        let there = |target: TargetId| {
            let at = cell.stores.iter().position(|spec| {
                spec.geometry
                    .is_some_and(|geometry| geometry.target == target)
            });
            at.is_some_and(|at| is_there.contains(&at))
        };
        // The findings of one data id are handled before the next data id, so few are in memory.
        let told = RefCell::new(Vec::new());
        let mut tell = |joined: JoinOutcome| told.borrow_mut().push(joined);
        let mut join = ObjectJoin::new(map, &there, &mut tell);
        let mut all = Vec::new();
        Sorter::merge(sorters, &mut |bytes| {
            if let Some(fact) = DataFact::decode(bytes) {
                join.take(&fact);
                blocks.take(&fact, map, &mut all);
            }
            for joined in told.take() {
                self.joined(map, joined, &lost_keys, paths, all_shards);
            }
            Ok(())
        })?;
        join.finish();
        blocks.end_file(map, &mut all);
        for joined in told.take() {
            self.joined(map, joined, &lost_keys, paths, all_shards);
        }
        for (target, owner, ranges, is_damage) in all {
            let path = owner.name.and_then(|(dir, cookie)| paths.path(dir, cookie));
            let ino = owner.ino;
            let what = if is_damage {
                FindingKind::Damaged {
                    ino,
                    target,
                    ranges,
                }
            } else {
                FindingKind::KnownLost {
                    ino,
                    target,
                    ranges,
                }
            };
            let at = self.store_of(target);
            self.tell(FindingPlace::Target(target), at, path, what);
        }
        for (at, seen) in targets {
            let work = self.seen.work.targets.entry(*at).or_default();
            work.lose.extend(seen.damaged.iter().copied());
        }
        Ok(())
    }

    fn joined(
        &mut self,
        map: &ZoneMap,
        joined: JoinOutcome,
        lost_keys: &BTreeMap<TargetId, Vec<LostKeys>>,
        paths: &mut Paths<'_>,
        all_shards: bool,
    ) {
        match joined {
            JoinOutcome::Wrong(target, owner, what) => {
                if self.has_damaged_copies(&what) {
                    return;
                }
                let path = owner.name.and_then(|(dir, cookie)| paths.path(dir, cookie));
                let place = target.map_or(FindingPlace::Cell, FindingPlace::Target);
                let at = target.and_then(|target| self.store_of(target));
                self.tell(place, at, path, what);
            }
            // Where a shard is missing, it may have the inode.
            JoinOutcome::Unowned(..) if !all_shards => {}
            JoinOutcome::Unowned(data_id, unowned) => {
                let what = FindingKind::NoInode {
                    data_id,
                    objects: u32::try_from(unowned.len()).unwrap_or(u32::MAX),
                    bytes: unowned.iter().map(|object| object.bytes).sum(),
                };
                self.tell(FindingPlace::Cell, None, None, what);
                if self.seen.work.has_room() {
                    self.seen.work.unowned.push((data_id, unowned));
                }
            }
            JoinOutcome::Short(component, owner, _missing) => {
                self.short(map, &component, &owner, lost_keys, paths);
            }
        }
    }

    /// True for a difference of copies on a target whose files are damaged. Once these are
    /// repaired, the next pass tells what is left of it.
    fn has_damaged_copies(&self, what: &FindingKind) -> bool {
        let FindingKind::CopiesDiffer { right, wrong, .. } = what else {
            return false;
        };
        let mut copies = right.iter().chain(wrong);
        copies.any(|copy| {
            let at = self.store_of(copy.target);
            at.is_some_and(|at| self.seen.work.files.contains_key(&at))
        })
    }

    /// A file has fewer blocks than its inode counts. Where a target lost a part of its index, the
    /// missing blocks were there.
    fn short(
        &mut self,
        map: &ZoneMap,
        component: &Component,
        owner: &DataOwner,
        lost_keys: &BTreeMap<TargetId, Vec<LostKeys>>,
        paths: &mut Paths<'_>,
    ) {
        let data_id = component.data_id;
        for Column(column) in stripe::objects(component) {
            let target = objects::target_of(map, component, column);
            let Some((target, lost)) = target.and_then(|id| Some((id, lost_keys.get(&id)?))) else {
                continue;
            };
            let column = Column(column);
            let bytes = stripe::object_bytes(component, owner.size, column);
            let object = ObjectId { data_id, column };
            let ranges = [
                zonal_object::key::object_range(object),
                zonal_object::key::pending_range(object),
            ];
            let touches = lost.iter().any(|(above, upto)| {
                ranges.iter().any(|(first, last)| {
                    above.as_slice() < last.as_slice()
                        && upto.as_ref().is_none_or(|upto| upto >= first)
                })
            });
            let (true, true, Some(at)) = (touches, bytes > 0, self.store_of(target)) else {
                continue;
            };
            let work = self.seen.work.targets.entry(at).or_default();
            work.missing.push((object, bytes));
            let unit = u64::from(component.unit);
            let ranges = Ranges::of_column(
                owner.inline..owner.size,
                unit,
                u64::from(component.count),
                u64::from(column.0 % component.count.max(1)),
            );
            let ino = owner.ino;
            let path = owner.name.and_then(|(dir, cookie)| paths.path(dir, cookie));
            let what = FindingKind::Damaged {
                ino,
                target,
                ranges,
            };
            self.tell(FindingPlace::Target(target), Some(at), path, what);
        }
    }
}

/// Damaged and lost blocks of all targets, sorted by object, matched with the files that own them.
struct Blocks {
    runs: BTreeMap<(DataId, Column, TargetId), Vec<Run>>,
    /// The data id of the facts that arrive now.
    data_id: DataId,
    owners: Vec<DataOwner>,
    relocations: Vec<(Ino, Relocation)>,
}

/// First block, block behind the last, and whether the blocks are damaged (not known to be lost).
type Run = (u64, u64, bool);

type OfFile = (TargetId, DataOwner, Ranges, bool);

impl Blocks {
    fn new(cell: &CellStores, targets: &BTreeMap<usize, TargetContents>) -> Self {
        let mut runs: BTreeMap<_, Vec<Run>> = BTreeMap::new();
        for (at, seen) in targets {
            let geometry = cell.stores.get(*at).and_then(|spec| spec.geometry);
            let Some(target) = geometry.map(|geometry| geometry.target) else {
                continue;
            };
            let damaged = seen
                .damaged
                .iter()
                .map(|(id, block)| (id, *block, block + 1, true));
            let lost = seen
                .lost
                .iter()
                .map(|(id, first, end)| (id, *first, *end, false));
            for (id, first, end, is_damage) in damaged.chain(lost) {
                runs.entry((id.data_id, id.column, target))
                    .or_default()
                    .push((first, end, is_damage));
            }
        }
        Self {
            runs,
            data_id: DataId(0),
            owners: Vec::new(),
            relocations: Vec::new(),
        }
    }

    /// Takes the next fact. Facts arrive sorted.
    fn take(&mut self, fact: &DataFact, map: &ZoneMap, out: &mut Vec<OfFile>) {
        if self.runs.is_empty() {
            return;
        }
        if fact.data_id != self.data_id {
            self.end_file(map, out);
            self.data_id = fact.data_id;
        }
        self.owners.extend(fact.owner());
        if let DataClaim::Relocated { ino, relocation } = fact.about {
            self.relocations.push((ino, relocation));
        }
    }

    /// Reports the blocks of the data id, with the files that own them.
    fn end_file(&mut self, map: &ZoneMap, out: &mut Vec<OfFile>) {
        let relocations = std::mem::take(&mut self.relocations);
        for owner in std::mem::take(&mut self.owners) {
            if map.set(owner.component.0).is_none() {
                continue;
            }
            let own = relocations.iter().filter(|(ino, _)| *ino == owner.ino);
            let own = own.map(|(_, relocation)| *relocation).collect();
            let component = objects::component_of(self.data_id, &owner, own);
            self.of_file(map, &component, &owner, out);
        }
    }

    fn of_file(
        &self,
        map: &ZoneMap,
        component: &Component,
        owner: &DataOwner,
        out: &mut Vec<OfFile>,
    ) {
        let from = (component.data_id, Column(0), TargetId(0));
        let to = (component.data_id, Column(u16::MAX), TargetId(u32::MAX));
        for ((_, column, target), runs) in self.runs.range(from..=to) {
            let is_main = objects::target_of(map, component, column.0) == Some(*target)
                && !objects::is_missing(component, *column);
            // Nobody reads what is still filled, or what an object left behind.
            if !is_main && objects::may_be_left(map, component, *column, *target) {
                continue;
            }
            for is_damage in [true, false] {
                let mut ranges = Ranges::default();
                for (first, end, _) in runs.iter().filter(|run| run.2 == is_damage) {
                    for block in *first..*end {
                        let offset = stripe::file_offset_of(component, *column, block * BLOCK);
                        ranges.push(offset, BLOCK.min(owner.size.saturating_sub(offset)));
                    }
                }
                if ranges.bytes > 0 {
                    out.push((*target, *owner, ranges, is_damage));
                }
            }
        }
    }
}
