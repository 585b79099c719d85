//! One pass: reads every store, two at a time, then compares the stores with one another.

mod cross_checks;
mod index_copies;
mod lost_keys;
mod repair_list;
mod store_reader;
mod store_registry;

pub(crate) use lost_keys::{clean_scratch, expect_lost, save_lost};
pub(crate) use repair_list::{RepairList, TargetRepairs};
pub(crate) use store_registry::shard_of;

use crate::cell::CellStores;
use crate::check::{CheckOptions, Ticker};
use crate::error::OfflineError;
use crate::facts::ShardContents;
use crate::resume::{CheckStart, Fingerprints, WorkFolder, of_store};
use crate::store_scan::{self, Opening, TargetContents};
use std::collections::{BTreeMap, BTreeSet};
use zonal_disk::{ReadStore, StoreKind};
use zonal_fsck::objects::is_drained;
use zonal_fsck::{Finding, FindingKind, FindingPlace, StoreFault};
use zonal_types::PartitionId;
use zonal_zonemap::ZoneMap;
use zonal_zonemap::junctions::JunctionListing;

use store_registry::{known_store, place_of, read_map};

/// Result of a pass.
#[derive(Debug, Default)]
pub(crate) struct PassResult {
    pub work: RepairList,
    pub counting: u64,
    pub notes: u64,
    pub inodes: u64,
    pub objects: u64,
    /// Stores that an interrupted check had read.
    pub kept: u64,
}

enum Part {
    Shard(Box<ReadStore>, Box<ShardContents>, Vec<PartitionId>),
    Target(TargetContents),
    Nothing,
}

struct Pass<'a, 't> {
    cell: &'a CellStores,
    ticker: &'a Ticker<'t>,
    seen: PassResult,
}

impl Pass<'_, '_> {
    fn tell(
        &mut self,
        place: FindingPlace,
        at: Option<usize>,
        path: Option<String>,
        what: FindingKind,
    ) {
        self.seen.work.note(at, &what);
        let finding = Finding { place, what, path };
        if finding.counts() {
            self.seen.counting += 1;
        } else {
            self.seen.notes += 1;
        }
        self.ticker.finding(&finding);
    }

    /// Reports the faults of a store. True where its index is first rebuilt from its copy.
    /// `unread`: why the map in a manager's store cannot be read.
    fn judge_store(
        &mut self,
        (at, place): (usize, FindingPlace),
        faults: Vec<StoreFault>,
        unread: Option<String>,
    ) -> Result<bool, OfflineError> {
        let spec = &self.cell.stores[at];
        let mut faults = faults.into_iter().map(FindingKind::Store).collect();
        let uuid = self.seen.work.uuid(spec);
        let is_from_copy = index_copies::prefer(spec, uuid, &mut faults)?
            || index_copies::prefer_unread(spec, uuid, unread, &mut faults)?;
        if self.seen.work.known.contains_key(&spec.dir) && store_scan::has_lost_starts(spec) {
            faults.push(FindingKind::Store(StoreFault::Starts));
        }
        for fault in faults {
            self.tell(place, Some(at), None, fault);
        }
        Ok(is_from_copy)
    }

    /// Reports the findings in a store's contents. True as for [`Self::judge_store`].
    fn judge_part(
        &mut self,
        (at, place): (usize, FindingPlace),
        folder: &WorkFolder,
    ) -> Result<bool, OfflineError> {
        let spec = &self.cell.stores[at];
        let mut told = Vec::new();
        folder.told(&store_scan::scratch_name(spec), &mut |what| told.push(what))?;
        let is_from_copy = index_copies::prefer(spec, self.seen.work.uuid(spec), &mut told)?;
        for what in told {
            self.tell(place, Some(at), None, what);
        }
        Ok(is_from_copy)
    }
}

/// Opens the work folder, with the state of an interrupted check of the same stores. The stores are
/// open, so no process changes them.
fn work_folder(
    cell: &CellStores,
    options: &CheckOptions,
    ticker: &Ticker<'_>,
    openings: &[Option<Opening>],
) -> Result<(WorkFolder, u64), OfflineError> {
    let stores = cell.stores.iter().zip(openings);
    let prints = stores
        .filter_map(|(spec, opening)| Some(of_store(spec, opening.as_ref()?)))
        .collect();
    let prints = Fingerprints::new(options.data, prints);
    let names: BTreeMap<_, _> = cell
        .stores
        .iter()
        .map(|spec| (store_scan::scratch_name(spec), spec.geometry.is_some()))
        .collect();
    let (folder, begin) = WorkFolder::open(&options.scratch, options.fresh, &prints, &names)?;
    ticker.begins(&begin);
    ticker.step()?;
    let read = match begin {
        CheckStart::GoesOn { read, .. } => read,
        CheckStart::New | CheckStart::Anew(_) => 0,
    };
    Ok((folder, read))
}

/// Reads the map of a manager's store, the junctions beside it, and its records of stores.
///
/// The second value is the reason why the map or the junctions cannot be read: the copy of the
/// index may have them.
fn read_manager(
    cell: &CellStores,
    store: &ReadStore,
    seen: &mut PassResult,
) -> (Result<ZoneMap, String>, Option<String>) {
    let map = read_map(store);
    let listed = JunctionListing::read(store).map_err(|code| code.to_string());
    let unread = map.as_ref().err().or(listed.as_ref().err()).cloned();
    seen.work.listed = listed.unwrap_or_default();
    for spec in &cell.stores {
        if let Some(known) = known_store(store, spec) {
            seen.work.known.insert(spec.dir.clone(), known);
        }
    }
    (map, unread)
}

/// Drops the stores of drained targets. They may be gone, and nobody reads them.
fn forget_drained(map: Option<&ZoneMap>, cell: &CellStores, openings: &mut [Option<Opening>]) {
    let Some(map) = map else {
        return;
    };
    for (spec, opening) in cell.stores.iter().zip(openings) {
        let target = spec.geometry.map(|geometry| geometry.target);
        if target.is_some_and(|target| is_drained(map, target)) {
            *opening = None;
        }
    }
}

/// The index of the manager's store.
fn manager_of(cell: &CellStores) -> Result<usize, OfflineError> {
    let mut stores = cell.stores.iter();
    let manager = stores.position(|spec| spec.identity.kind == StoreKind::Manager);
    manager.ok_or(OfflineError::NoManager)
}

/// Makes a pass. Its saved state stays in the work folder until the folder is removed.
pub(crate) fn run(
    cell: &CellStores,
    options: &CheckOptions,
    ticker: &Ticker<'_>,
) -> Result<(PassResult, WorkFolder), OfflineError> {
    let mut pass = Pass {
        cell,
        ticker,
        seen: PassResult::default(),
    };
    let manager = manager_of(cell)?;
    let mut openings = Vec::new();
    for spec in &cell.stores {
        openings.push(Some(store_scan::open(spec)?));
    }
    let (folder, kept) = work_folder(cell, options, ticker, &openings)?;
    pass.seen.kept = kept;
    let (map, mut unread) = match openings.get(manager) {
        Some(Some(Opening::Open(store, _))) => read_manager(cell, store, &mut pass.seen),
        _ => (Err("the manager's store is missing".into()), None),
    };
    let known = map.as_ref().ok();
    forget_drained(known, cell, &mut openings);
    let places = cell.stores.iter().map(|spec| place_of(spec, known));
    let places: Vec<FindingPlace> = places.collect();
    let mut is_there = BTreeSet::new();
    // Stores whose index is first rebuilt from its copy.
    let mut from_copy = BTreeSet::new();
    let mut jobs = Vec::new();
    for (at, opening) in openings.iter_mut().enumerate() {
        let place = places[at];
        match opening.take() {
            Some(Opening::Open(store, notes)) => {
                let unread = unread.take_if(|_| at == manager);
                let faults = store_scan::faults(&store, options.data);
                is_there.insert(at);
                if pass.judge_store((at, place), faults, unread)? {
                    from_copy.insert(at);
                } else {
                    jobs.push((at, store, notes));
                }
            }
            Some(Opening::Fault(fault)) => {
                pass.tell(place, Some(at), None, FindingKind::Store(fault));
            }
            None => {}
        }
    }
    let map = match map {
        Ok(map) => map,
        Err(what) => {
            if !from_copy.contains(&manager) {
                pass.tell(FindingPlace::Cell, None, None, FindingKind::MapLost(what));
            }
            return Ok((pass.seen, folder));
        }
    };
    let parts = store_reader::all(cell, &map, options, ticker, (jobs, &folder))?;
    for (at, part) in &parts {
        if !matches!(part, Part::Nothing) && pass.judge_part((*at, places[*at]), &folder)? {
            from_copy.insert(*at);
        }
    }
    ticker.step()?;
    if !from_copy.is_empty() {
        pass.seen.work.map = Some(map);
        return Ok((pass.seen, folder));
    }
    pass.between(&map, parts, &is_there, &options.scratch)?;
    pass.seen.work.map = Some(map);
    ticker.step()?;
    Ok((pass.seen, folder))
}
