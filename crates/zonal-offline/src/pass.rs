//! One pass: every store is read, two at a time, then what lies between them is compared.

use crate::cell::{Cell, StoreSpec};
use crate::error::OfflineError;
use crate::paths::{Paths, Through};
use crate::run::{Options, Ticker};
use crate::scan::{self, Opening, ShardSeen, TargetSeen};
use crate::sort::Sorter;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use zonal_disk::mend::LostKeys;
use zonal_disk::starts::Mark;
use zonal_disk::{ReadStore, StoreKind};
use zonal_fsck::junctions::{self, Mismatch};
use zonal_fsck::objects::{self, DataFact, Join, Joined, Lonely, Owner};
use zonal_fsck::ranges::Ranges;
use zonal_fsck::{Finding, Place, StoreFault, What};
use zonal_layout::stripe;
use zonal_meta::check::Broken as MetaBroken;
use zonal_object::ids::BLOCK;
use zonal_object::{Broken as ObjectBroken, ObjectId};
use zonal_types::{Codec, Column, DataId, Ino, KvRead, PartitionId, ShardId, TargetId};
use zonal_zonemap::ZoneMap;

/// Most repairs that one pass gathers; what is beyond is found by the next.
const WORK_MAX: usize = 1 << 19;
/// Threads that read stores.
const THREADS: usize = 2;

/// What a target is to do about its blocks.
#[derive(Debug, Default)]
pub(crate) struct TargetWork {
    pub broken: Vec<ObjectBroken>,
    /// Blocks to be marked as lost.
    pub lose: Vec<(ObjectId, u64)>,
    /// Objects to be removed.
    pub remove: Vec<ObjectId>,
    /// Objects of which something is missing that was there, with the bytes that they should have.
    pub missing: Vec<(ObjectId, u64)>,
    /// Segments that are cut.
    pub segments: BTreeSet<u32>,
}

impl TargetWork {
    fn is_empty(&self) -> bool {
        self.broken.is_empty()
            && self.lose.is_empty()
            && self.remove.is_empty()
            && self.missing.is_empty()
            && self.segments.is_empty()
    }
}

/// A correction of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Correction {
    pub size: Option<u64>,
    pub allocated: Option<u64>,
    pub truncate_seq: Option<u64>,
}

/// What repairs are to do. Stores are named by their place in [`Cell::stores`].
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub map: Option<ZoneMap>,
    pub files: BTreeMap<usize, Vec<StoreFault>>,
    pub shards: BTreeMap<usize, Vec<MetaBroken>>,
    pub targets: BTreeMap<usize, TargetWork>,
    pub lonely: Vec<(DataId, Vec<Lonely>)>,
    pub corrections: BTreeMap<Ino, Correction>,
    pub junctions: Vec<Mismatch>,
    /// Names of first-level directories.
    pub root: BTreeMap<Ino, String>,
    /// What the manager knows of stores, by their folders.
    pub known: BTreeMap<PathBuf, KnownStore>,
    count: usize,
}

impl Work {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.shards.is_empty()
            && self.targets.values().all(TargetWork::is_empty)
            && self.lonely.is_empty()
            && self.corrections.is_empty()
            && self.junctions.is_empty()
    }

    fn has_room(&mut self) -> bool {
        self.count += 1;
        self.count <= WORK_MAX
    }

    /// Notes what a repair can do about a finding.
    fn note(&mut self, at: Option<usize>, what: &What) {
        if !self.has_room() {
            return;
        }
        match (at, what) {
            (Some(at), What::Store(StoreFault::Segment(segment))) => {
                self.targets
                    .entry(at)
                    .or_default()
                    .segments
                    .insert(*segment);
            }
            (
                Some(_),
                What::Store(
                    StoreFault::Missing(_) | StoreFault::Stranger(_) | StoreFault::Foreign(_),
                ),
            ) => {}
            (Some(at), What::Store(fault)) => {
                self.files.entry(at).or_default().push(fault.clone());
            }
            (Some(at), What::Shard(broken)) => {
                self.shards.entry(at).or_default().push(broken.clone());
            }
            (Some(_), What::Target(ObjectBroken::Geometry { .. })) => {}
            (Some(at), What::Target(broken)) => {
                self.targets
                    .entry(at)
                    .or_default()
                    .broken
                    .push(broken.clone());
            }
            (
                Some(at),
                What::Misplaced {
                    object,
                    is_copy: true,
                    ..
                },
            ) => {
                self.targets.entry(at).or_default().remove.push(*object);
            }
            (_, What::Shrinks { ino, found, .. }) => {
                self.corrections.entry(*ino).or_default().truncate_seq = Some(*found);
            }
            (_, What::BehindSize { ino, end, .. }) => {
                self.corrections.entry(*ino).or_default().size = Some(*end);
            }
            (_, What::Allocated { ino, found, .. }) => {
                self.corrections.entry(*ino).or_default().allocated = Some(*found);
            }
            (_, What::Junction(mismatch)) => self.junctions.push(mismatch.clone()),
            _ => {}
        }
    }
}

/// What a pass came to.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub work: Work,
    pub counting: u64,
    pub notes: u64,
    pub inodes: u64,
    pub objects: u64,
}

enum Part {
    Shard(Box<ReadStore>, Box<ShardSeen>, Vec<PartitionId>),
    Target(TargetSeen),
    Nothing,
}

struct Pass<'a, 't> {
    cell: &'a Cell,
    ticker: &'a Ticker<'t>,
    seen: Seen,
}

impl Pass<'_, '_> {
    fn tell(&mut self, place: Place, at: Option<usize>, path: Option<String>, what: What) {
        self.seen.work.note(at, &what);
        let finding = Finding { place, what, path };
        if finding.counts() {
            self.seen.counting += 1;
        } else {
            self.seen.notes += 1;
        }
        self.ticker.finding(&finding);
    }
}

/// Makes a pass.
pub(crate) fn run(
    cell: &Cell,
    options: &Options,
    ticker: &Ticker<'_>,
) -> Result<Seen, OfflineError> {
    let mut pass = Pass {
        cell,
        ticker,
        seen: Seen::default(),
    };
    let mut openings = Vec::new();
    for spec in &cell.stores {
        openings.push(Some(scan::open(spec)?));
    }
    let manager = cell
        .stores
        .iter()
        .position(|spec| spec.identity.kind == StoreKind::Manager);
    let manager = manager.ok_or(OfflineError::NoManager)?;
    let map = match openings.get(manager) {
        Some(Some(Opening::Open(store, _))) => read_map(store),
        _ => Err("the manager's store is missing".into()),
    };
    let map = match map {
        Ok(map) => Some(map),
        Err(what) => {
            pass.tell(Place::Cell, None, None, What::MapLost(what));
            None
        }
    };
    if let Some(Some(Opening::Open(store, _))) = openings.get(manager) {
        for spec in &cell.stores {
            if let Some(known) = known_store(store, spec) {
                pass.seen.work.known.insert(spec.dir.clone(), known);
            }
        }
    }
    let places: Vec<Place> = cell
        .stores
        .iter()
        .map(|spec| place_of(spec, map.as_ref()))
        .collect();
    let mut is_there = BTreeSet::new();
    let mut jobs = Vec::new();
    for (at, opening) in openings.iter_mut().enumerate() {
        let place = places[at];
        match opening.take() {
            Some(Opening::Open(store, notes)) => {
                for fault in scan::faults(&store) {
                    pass.tell(place, Some(at), None, What::Store(fault));
                }
                let spec = &cell.stores[at];
                if pass.seen.work.known.contains_key(&spec.dir) && scan::has_lost_starts(spec) {
                    pass.tell(place, Some(at), None, What::Store(StoreFault::Starts));
                }
                is_there.insert(at);
                jobs.push((at, store, notes));
            }
            Some(Opening::Fault(fault)) => {
                pass.tell(place, Some(at), None, What::Store(fault));
            }
            None => {}
        }
    }
    let Some(map) = map else {
        return Ok(pass.seen);
    };
    let (parts, told) = read_all(cell, &map, options, ticker, jobs)?;
    for (at, what) in told {
        pass.tell(places[at], Some(at), None, what);
    }
    pass.between(&map, parts, &is_there, &options.scratch)?;
    pass.seen.work.map = Some(map);
    Ok(pass.seen)
}

/// The zone map in a manager's store.
pub(crate) fn read_map(store: &ReadStore) -> Result<ZoneMap, String> {
    let bytes = store
        .get(&scan::MAP_KEY)
        .map_err(|code| code.to_string())?
        .ok_or("it is not there")?;
    let map = ZoneMap::from_bytes(&bytes).map_err(|error| error.to_string())?;
    match map.check().first() {
        Some(broken) => Err(broken.clone()),
        None => Ok(map),
    }
}

/// Key of the manager's records of stores; kind and number follow. The value: uuid, number and tag of the last start.
const STORES_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf1];

/// A store as the manager saw it at its last start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownStore {
    pub uuid: [u8; 16],
    pub mark: Mark,
}

fn known_store(manager: &ReadStore, spec: &StoreSpec) -> Option<KnownStore> {
    let kind = match spec.identity.kind {
        StoreKind::Shard => 1,
        StoreKind::Target => 2,
        StoreKind::Manager => return None,
    };
    let mut key = STORES_KEY.to_vec();
    key.push(kind);
    key.extend_from_slice(&spec.identity.id.to_be_bytes());
    let value = manager.get(&key).ok().flatten()?;
    let (uuid, (number, tag)) = <([u8; 16], (u64, u64))>::from_bytes(&value).ok()?;
    let mark = Mark { number, tag };
    Some(KnownStore { uuid, mark })
}

/// The shard of a store.
pub(crate) fn shard_of(spec: &StoreSpec, map: &ZoneMap) -> Option<ShardId> {
    let is_root = spec.identity.kind == StoreKind::Manager;
    let mut shards = map.shards.iter();
    shards
        .find(|shard| shard.node == spec.node && (shard.id == ShardId(0)) == is_root)
        .map(|shard| shard.id)
}

fn place_of(spec: &StoreSpec, map: Option<&ZoneMap>) -> Place {
    match (spec.identity.kind, spec.geometry) {
        (_, Some(geometry)) => Place::Target(geometry.target),
        (StoreKind::Manager, _) => Place::Manager,
        _ => {
            let shard = map.and_then(|map| shard_of(spec, map));
            Place::Shard(shard.unwrap_or(ShardId(spec.node.0)))
        }
    }
}

type Job = (usize, Box<ReadStore>, Vec<Vec<u8>>);
type Told = Vec<(usize, What)>;

/// Reads all stores, [`THREADS`] at a time.
fn read_all(
    cell: &Cell,
    map: &ZoneMap,
    options: &Options,
    ticker: &Ticker<'_>,
    jobs: Vec<Job>,
) -> Result<(Vec<(usize, Part)>, Told), OfflineError> {
    let jobs = Mutex::new(jobs);
    let work = || -> Result<(Vec<(usize, Part)>, Told), OfflineError> {
        let (mut parts, mut told) = (Vec::new(), Vec::new());
        loop {
            let job = {
                let mut jobs = jobs.lock().map_err(|_| OfflineError::Panicked)?;
                jobs.pop()
            };
            let Some((at, store, notes)) = job else {
                return Ok((parts, told));
            };
            let Some(spec) = cell.stores.get(at) else {
                continue;
            };
            let part = read_one(spec, map, options, ticker, (store, notes), &mut |what| {
                if told.len() < WORK_MAX {
                    told.push((at, what));
                }
            })?;
            parts.push((at, part));
        }
    };
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| OfflineError::Panicked)?)
            .collect::<Result<Vec<_>, _>>()
    })?;
    let (mut parts, mut told) = (Vec::new(), Vec::new());
    for (some, more) in results {
        parts.extend(some);
        told.extend(more);
    }
    // The same order whichever thread was faster.
    parts.sort_by_key(|(at, _)| *at);
    told.sort_by_key(|(at, _)| *at);
    Ok((parts, told))
}

fn read_one(
    spec: &StoreSpec,
    map: &ZoneMap,
    options: &Options,
    ticker: &Ticker<'_>,
    opened: (Box<ReadStore>, Vec<Vec<u8>>),
    tell: &mut dyn FnMut(What),
) -> Result<Part, OfflineError> {
    let (store, notes) = opened;
    let name = scan::scratch_name(spec);
    let names = (options.scratch.as_path(), name.as_str());
    if let Some(geometry) = &spec.geometry {
        let seen = scan::target(
            &store,
            notes,
            (spec, geometry),
            names,
            options,
            ticker,
            tell,
        )?;
        return Ok(Part::Target(seen));
    }
    let Some(shard) = shard_of(spec, map) else {
        // A node that was formatted and has not joined yet.
        return Ok(Part::Nothing);
    };
    if !scan::is_formatted(&store) && scan::faults(&store).is_empty() {
        return Ok(Part::Nothing);
    }
    let partitions = map.partitions_of(shard);
    let seen = scan::shard(&store, &partitions, names, ticker, tell)?;
    Ok(Part::Shard(store, Box::new(seen), partitions))
}

impl Pass<'_, '_> {
    /// What lies between stores.
    fn between(
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
        // A shard whose files are damaged may have lost what is looked for here.
        let damaged = &self.seen.work.files;
        let is_damaged = |at: &usize| damaged.contains_key(at);
        let untouched: BTreeSet<ShardId> = shards
            .iter()
            .filter(|(at, ..)| !is_damaged(at))
            .filter_map(|(at, ..)| shard_of(self.cell.stores.get(*at)?, map))
            .collect();
        let has_root = untouched.contains(&ShardId(0));
        let is_known = |ino: Ino| {
            map.shard_of(ino.partition())
                .is_some_and(|shard| untouched.contains(&shard.id))
        };
        let mismatches = junctions::compare(map, &entries, &first_level, &is_known);
        for mismatch in mismatches.into_iter().filter(|_| has_root) {
            self.tell(Place::Cell, None, None, What::Junction(mismatch));
        }
        let root: BTreeMap<Ino, String> = entries
            .into_iter()
            .map(|entry| (entry.ino, entry.name))
            .collect();
        self.seen.work.root.clone_from(&root);
        let through = shards.iter().map(|(_, store, seen, partitions)| Through {
            partitions,
            store,
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
        targets: &BTreeMap<usize, TargetSeen>,
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
        // What is told of one data id is dealt with before the next: nothing is gathered.
        let told = RefCell::new(Vec::new());
        let mut tell = |joined: Joined| told.borrow_mut().push(joined);
        let mut join = Join::new(map, &there, &mut tell);
        let mut all = Vec::new();
        Sorter::merge(sorters, &mut |bytes| {
            if let Some(fact) = DataFact::decode(bytes) {
                join.take(&fact);
                blocks.owner(&fact, map, &mut all);
            }
            for joined in told.take() {
                self.joined(map, joined, &lost_keys, paths, all_shards);
            }
            Ok(())
        })?;
        join.finish();
        for joined in told.take() {
            self.joined(map, joined, &lost_keys, paths, all_shards);
        }
        for (target, owner, ranges, is_damage) in all {
            let path = owner.name.and_then(|(dir, cookie)| paths.path(dir, cookie));
            let ino = owner.ino;
            let what = if is_damage {
                What::Damaged {
                    ino,
                    target,
                    ranges,
                }
            } else {
                What::KnownLost {
                    ino,
                    target,
                    ranges,
                }
            };
            let at = self.store_of(target);
            self.tell(Place::Target(target), at, path, what);
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
        joined: Joined,
        lost_keys: &BTreeMap<TargetId, Vec<LostKeys>>,
        paths: &mut Paths<'_>,
        all_shards: bool,
    ) {
        match joined {
            Joined::Wrong(target, owner, what) => {
                let path = owner.name.and_then(|(dir, cookie)| paths.path(dir, cookie));
                let place = target.map_or(Place::Cell, Place::Target);
                let at = target.and_then(|target| self.store_of(target));
                self.tell(place, at, path, what);
            }
            // Without all shards, the inode may be in the one that is not there.
            Joined::Lonely(..) if !all_shards => {}
            Joined::Lonely(data_id, lonely) => {
                let what = What::NoInode {
                    data_id,
                    objects: u32::try_from(lonely.len()).unwrap_or(u32::MAX),
                    bytes: lonely.iter().map(|object| object.bytes).sum(),
                };
                self.tell(Place::Cell, None, None, what);
                if self.seen.work.has_room() {
                    self.seen.work.lonely.push((data_id, lonely));
                }
            }
            Joined::Short(data_id, owner, _missing) => {
                self.short(map, data_id, &owner, lost_keys, paths);
            }
        }
    }

    /// A file has fewer blocks than its inode counts: where a target lost a part of its index, they were there.
    fn short(
        &mut self,
        map: &ZoneMap,
        data_id: DataId,
        owner: &Owner,
        lost_keys: &BTreeMap<TargetId, Vec<LostKeys>>,
        paths: &mut Paths<'_>,
    ) {
        let component = objects::component_of(data_id, owner);
        let Some(set) = map.set(component.set) else {
            return;
        };
        for column in 0..component.count {
            let target = objects::target_of(set, &component, column);
            let Some((target, lost)) = target.and_then(|id| Some((id, lost_keys.get(&id)?))) else {
                continue;
            };
            let column = Column(column);
            let bytes = stripe::object_bytes(&component, owner.size, column);
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
                owner.size,
                unit,
                u64::from(component.count),
                u64::from(column.0),
            );
            let ino = owner.ino;
            let path = owner.name.and_then(|(dir, cookie)| paths.path(dir, cookie));
            let what = What::Damaged {
                ino,
                target,
                ranges,
            };
            self.tell(Place::Target(target), Some(at), path, what);
        }
    }
}

/// Damaged and lost blocks of all targets, in the order of objects: met by the files that they belong to.
struct Blocks {
    runs: BTreeMap<(DataId, Column, TargetId), Vec<Run>>,
}

/// First block, block behind the last, whether it is damage.
type Run = (u64, u64, bool);

type OfFile = (TargetId, Owner, Ranges, bool);

impl Blocks {
    fn new(cell: &Cell, targets: &BTreeMap<usize, TargetSeen>) -> Self {
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
        Self { runs }
    }

    fn owner(&mut self, fact: &DataFact, map: &ZoneMap, out: &mut Vec<OfFile>) {
        let objects::About::Expected {
            ino,
            dir,
            cookie,
            set,
            start_column,
            count,
            unit,
            size,
            inline,
            ..
        } = fact.about
        else {
            return;
        };
        if self.runs.is_empty() || map.set(set).is_none() {
            return;
        }
        let owner = Owner {
            ino,
            name: (dir != Ino(0)).then_some((dir, cookie)),
            component: (set, start_column, count, unit),
            size,
            inline: u64::from(inline) * BLOCK,
        };
        let component = objects::component_of(fact.data_id, &owner);
        let from = (fact.data_id, Column(0), TargetId(0));
        let to = (fact.data_id, Column(u16::MAX), TargetId(u32::MAX));
        for ((_, column, target), runs) in self.runs.range(from..=to) {
            for is_damage in [true, false] {
                let mut ranges = Ranges::default();
                for (first, end, _) in runs.iter().filter(|run| run.2 == is_damage) {
                    for block in *first..*end {
                        let offset = stripe::file_offset_of(&component, *column, block * BLOCK);
                        ranges.push(offset, BLOCK.min(size.saturating_sub(offset)));
                    }
                }
                if ranges.bytes > 0 {
                    out.push((*target, owner, ranges, is_damage));
                }
            }
        }
    }
}

fn lost_file(scratch: &Path, target: TargetId) -> PathBuf {
    scratch.join(format!("lost-keys.{target}"))
}

/// Keys that a mending of a target's index could not save, from the check that mended it on.
fn load_lost(scratch: &Path, target: TargetId) -> Vec<LostKeys> {
    let bytes = std::fs::read(lost_file(scratch, target)).unwrap_or_default();
    type Stored = Vec<(zonal_types::Blob, Option<zonal_types::Blob>)>;
    let stored = Stored::from_bytes(&bytes).unwrap_or_default();
    stored
        .into_iter()
        .map(|(above, upto)| (above.0, upto.map(|upto| upto.0)))
        .collect()
}

/// Adds to what [`load_lost`] gives.
pub(crate) fn save_lost(
    scratch: &Path,
    target: TargetId,
    more: Vec<LostKeys>,
) -> std::io::Result<()> {
    let mut lost = load_lost(scratch, target);
    lost.extend(more);
    let stored: Vec<_> = lost
        .into_iter()
        .map(|(above, upto)| (zonal_types::Blob(above), upto.map(zonal_types::Blob)))
        .collect();
    std::fs::write(lost_file(scratch, target), stored.to_bytes())
}

/// Takes the scratch folder away; `with_lost`: also what must not be forgotten before the cell is clean.
pub(crate) fn clean_scratch(scratch: &Path, with_lost: bool) {
    let Ok(entries) = std::fs::read_dir(scratch) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if with_lost || !name.to_string_lossy().starts_with("lost-keys.") {
            // Best effort: a left-over costs space and nothing else.
            let _ = std::fs::remove_file(entry.path());
        }
    }
    let _ = std::fs::remove_dir(scratch);
}
