//! One pass: every store is read, two at a time, then what lies between them is compared.

mod between;
mod copies;
mod known;
mod lost_keys;
mod read;
mod work;

pub(crate) use known::shard_of;
pub(crate) use lost_keys::{clean_scratch, expect_lost, save_lost};
pub(crate) use work::{TargetWork, Work};

use crate::cell::Cell;
use crate::error::OfflineError;
use crate::facts::ShardSeen;
use crate::resume::{Begin, Prints, WorkFolder, of_store};
use crate::run::{Options, Ticker};
use crate::scan::{self, Opening, TargetSeen};
use std::collections::{BTreeMap, BTreeSet};
use zonal_disk::{ReadStore, StoreKind};
use zonal_fsck::{Finding, Place, StoreFault, What};
use zonal_types::PartitionId;
use zonal_zonemap::ZoneMap;
use zonal_zonemap::junctions::JunctionListing;

use known::{known_store, place_of, read_map};

/// What a pass came to.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub work: Work,
    pub counting: u64,
    pub notes: u64,
    pub inodes: u64,
    pub objects: u64,
    /// Stores that an interrupted check had read.
    pub kept: u64,
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

/// Takes the folder of what an earlier check of the same stores had come to. Stores are open, so
/// nobody changes them.
fn work_folder(
    cell: &Cell,
    options: &Options,
    ticker: &Ticker<'_>,
    openings: &[Option<Opening>],
) -> Result<(WorkFolder, u64), OfflineError> {
    let stores = cell.stores.iter().zip(openings);
    let prints = stores
        .filter_map(|(spec, opening)| Some(of_store(spec, opening.as_ref()?)))
        .collect();
    let prints = Prints::new(options.data, prints);
    let names: BTreeMap<_, _> = cell
        .stores
        .iter()
        .map(|spec| (scan::scratch_name(spec), spec.geometry.is_some()))
        .collect();
    let (folder, begin) = WorkFolder::open(&options.scratch, options.fresh, &prints, &names)?;
    ticker.begins(&begin);
    ticker.step()?;
    let read = match begin {
        Begin::GoesOn { read, .. } => read,
        Begin::New | Begin::Anew(_) => 0,
    };
    Ok((folder, read))
}

/// The map of a manager's store, what is listed beside it, and the stores that it knows. In the
/// second place why the map or the list cannot be read: the copy of the index may have them.
fn read_manager(
    cell: &Cell,
    store: &ReadStore,
    seen: &mut Seen,
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

/// Makes a pass. What it has come to stays in the folder until that is removed.
pub(crate) fn run(
    cell: &Cell,
    options: &Options,
    ticker: &Ticker<'_>,
) -> Result<(Seen, WorkFolder), OfflineError> {
    let mut pass = Pass {
        cell,
        ticker,
        seen: Seen::default(),
    };
    let manager = cell
        .stores
        .iter()
        .position(|spec| spec.identity.kind == StoreKind::Manager);
    let manager = manager.ok_or(OfflineError::NoManager)?;
    let mut openings = Vec::new();
    for spec in &cell.stores {
        openings.push(Some(scan::open(spec)?));
    }
    let (folder, kept) = work_folder(cell, options, ticker, &openings)?;
    pass.seen.kept = kept;
    let (map, mut unread) = match openings.get(manager) {
        Some(Some(Opening::Open(store, _))) => read_manager(cell, store, &mut pass.seen),
        _ => (Err("the manager's store is missing".into()), None),
    };
    let places: Vec<Place> = cell
        .stores
        .iter()
        .map(|spec| place_of(spec, map.as_ref().ok()))
        .collect();
    let mut is_there = BTreeSet::new();
    // Stores whose index is to be made anew from its copy first.
    let mut from_copy = BTreeSet::new();
    let mut jobs = Vec::new();
    for (at, opening) in openings.iter_mut().enumerate() {
        let place = places[at];
        match opening.take() {
            Some(Opening::Open(store, notes)) => {
                let spec = &cell.stores[at];
                let mut faults = scan::faults(&store, options.data)
                    .into_iter()
                    .map(What::Store)
                    .collect();
                let uuid = pass.seen.work.uuid(spec);
                let unread = unread.take_if(|_| at == manager);
                if copies::prefer(spec, uuid, &mut faults)?
                    || copies::prefer_unread(spec, uuid, unread, &mut faults)?
                {
                    from_copy.insert(at);
                }
                for fault in faults {
                    pass.tell(place, Some(at), None, fault);
                }
                if pass.seen.work.known.contains_key(&spec.dir) && scan::has_lost_starts(spec) {
                    pass.tell(place, Some(at), None, What::Store(StoreFault::Starts));
                }
                is_there.insert(at);
                if !from_copy.contains(&at) {
                    jobs.push((at, store, notes));
                }
            }
            Some(Opening::Fault(fault)) => {
                pass.tell(place, Some(at), None, What::Store(fault));
            }
            None => {}
        }
    }
    let map = match map {
        Ok(map) => map,
        Err(what) => {
            if !from_copy.contains(&manager) {
                pass.tell(Place::Cell, None, None, What::MapLost(what));
            }
            return Ok((pass.seen, folder));
        }
    };
    let parts = read::all(cell, &map, options, ticker, (jobs, &folder))?;
    for (at, part) in &parts {
        if !matches!(part, Part::Nothing) {
            let spec = &cell.stores[*at];
            let mut told = Vec::new();
            folder.told(&scan::scratch_name(spec), &mut |what| told.push(what))?;
            if copies::prefer(spec, pass.seen.work.uuid(spec), &mut told)? {
                from_copy.insert(*at);
            }
            for what in told {
                pass.tell(places[*at], Some(*at), None, what);
            }
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
