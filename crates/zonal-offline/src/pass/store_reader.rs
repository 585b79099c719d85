//! Reads all stores, two at a time, and saves the results.

use super::Part;
use super::repair_list::WORK_MAX;
use super::store_registry::shard_of;
use crate::cell::{CellStores, Geometry, StoreSpec};
use crate::check::{CheckOptions, Ticker};
use crate::error::OfflineError;
use crate::facts::join_facts;
use crate::resume::{Compared, Facts, SavedPart, WorkFolder};
use crate::store_scan;
use std::sync::Mutex;
use zonal_disk::ReadStore;
use zonal_fsck::FindingKind;
use zonal_types::PartitionId;
use zonal_zonemap::ZoneMap;

/// Threads that read stores.
const THREADS: usize = 2;

/// A store's place in the cell, the store, and the notes of its log where it is a target's.
pub(super) type Job = (usize, Box<ReadStore>, Vec<Vec<u8>>);

/// Context of a thread that reads stores.
struct ReaderContext<'a, 't> {
    map: &'a ZoneMap,
    options: &'a CheckOptions,
    ticker: &'a Ticker<'t>,
    folder: &'a WorkFolder,
}

/// Reads all stores on [`THREADS`] threads. The findings of each are in the work folder.
pub(super) fn all(
    cell: &CellStores,
    map: &ZoneMap,
    options: &CheckOptions,
    ticker: &Ticker<'_>,
    stores: (Vec<Job>, &WorkFolder),
) -> Result<Vec<(usize, Part)>, OfflineError> {
    let (jobs, folder) = stores;
    let jobs = Mutex::new(jobs);
    let with = ReaderContext {
        map,
        options,
        ticker,
        folder,
    };
    let work = || -> Result<Vec<(usize, Part)>, OfflineError> {
        let mut parts = Vec::new();
        loop {
            let job = {
                let mut jobs = jobs.lock().map_err(|_| OfflineError::Panicked)?;
                jobs.pop()
            };
            let Some((at, store, notes)) = job else {
                return Ok(parts);
            };
            if let Some(spec) = cell.stores.get(at) {
                parts.push((at, with.one(spec, store, notes)?));
            }
        }
    };
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| OfflineError::Panicked)?)
            .collect::<Result<Vec<_>, _>>()
    })?;
    let mut parts: Vec<_> = results.into_iter().flatten().collect();
    // The same order whichever thread was faster.
    parts.sort_by_key(|(at, _)| *at);
    Ok(parts)
}

impl ReaderContext<'_, '_> {
    fn one(
        &self,
        spec: &StoreSpec,
        store: Box<ReadStore>,
        notes: Vec<Vec<u8>>,
    ) -> Result<Part, OfflineError> {
        if let Some(geometry) = spec.geometry {
            return self.target(&store, (spec, geometry, notes));
        }
        let Some(shard) = shard_of(spec, self.map) else {
            // The node was formatted and has not joined yet.
            return Ok(Part::Nothing);
        };
        if !store_scan::is_formatted(&store) && store_scan::faults(&store, false).is_empty() {
            return Ok(Part::Nothing);
        }
        let partitions = self.map.partitions_of(shard);
        let name = store_scan::scratch_name(spec);
        let mut facts = match self.folder.take(&name) {
            Some(SavedPart::Shard(seen, records)) => {
                self.ticker.kept(records);
                return Ok(Part::Shard(store, seen, partitions));
            }
            Some(SavedPart::Facts(facts)) => {
                self.ticker.kept(facts.records);
                facts
            }
            _ => self.facts(&store, &name, &partitions)?,
        };
        let names = (self.folder.dir(), name.as_str());
        let mut told = std::mem::take(&mut facts.told);
        let again = facts.facts.again()?;
        let mut seen = join_facts(store.as_ref(), again, &partitions, names, &mut |what| {
            keep(&mut told, what);
        })?;
        facts.told = told;
        self.folder.keep_shard(&name, &mut seen, facts)?;
        self.ticker.step()?;
        Ok(Part::Shard(store, Box::new(seen), partitions))
    }

    fn facts(
        &self,
        store: &ReadStore,
        name: &str,
        partitions: &[PartitionId],
    ) -> Result<Facts, OfflineError> {
        let mut told = Vec::new();
        let names = (self.folder.dir(), name);
        let mut tell = |what| keep(&mut told, what);
        let (facts, records) = store_scan::shard(store, names, partitions, self.ticker, &mut tell)?;
        let mut facts = Facts {
            facts,
            told,
            records,
        };
        self.folder.keep_facts(name, &mut facts)?;
        self.ticker.step()?;
        Ok(facts)
    }

    fn target(
        &self,
        store: &ReadStore,
        of: (&StoreSpec, Geometry, Vec<Vec<u8>>),
    ) -> Result<Part, OfflineError> {
        let name = store_scan::scratch_name(of.0);
        let compared = match self.folder.take(&name) {
            Some(SavedPart::Target(seen, records)) => {
                self.ticker.kept(records);
                return Ok(Part::Target(seen));
            }
            Some(SavedPart::Compared(compared)) => compared,
            _ => Compared::default(),
        };
        let mut told = Vec::new();
        let mut tell = |what| keep(&mut told, what);
        let kept = (self.folder, name.as_str(), compared);
        let (mut seen, records) =
            store_scan::target(store, of, kept, self.options, self.ticker, &mut tell)?;
        self.folder.keep_target(&name, &mut seen, &told, records)?;
        self.ticker.step()?;
        Ok(Part::Target(seen))
    }
}

/// Adds a finding of a store; the next pass finds those beyond the bound.
fn keep(told: &mut Vec<FindingKind>, what: FindingKind) {
    if told.len() < WORK_MAX {
        told.push(what);
    }
}
