//! One pass: every store is read, two at a time, then what lies between them is compared.

mod between;
mod known;
mod lost_keys;
mod work;

pub(crate) use known::shard_of;
pub(crate) use lost_keys::{clean_scratch, save_lost};
pub(crate) use work::{TargetWork, Work};

use crate::cell::{Cell, StoreSpec};
use crate::error::OfflineError;
use crate::facts::ShardSeen;
use crate::run::{Options, Ticker};
use crate::scan::{self, Opening, TargetSeen};
use std::collections::BTreeSet;
use std::sync::Mutex;
use zonal_disk::{ReadStore, StoreKind};
use zonal_fsck::{Finding, Place, StoreFault, What};
use zonal_types::PartitionId;
use zonal_zonemap::ZoneMap;

use known::{known_store, place_of, read_map};
use work::WORK_MAX;

/// Threads that read stores.
const THREADS: usize = 2;

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
