//! Repairs of a target's store: through its own engine, by checkpoints (records of its log would
//! need notes).

use crate::cell::{CellStores, Geometry, StoreSpec};
use crate::error::OfflineError;
use crate::pass::{RepairList, TargetRepairs};
use crate::repair_shard::failed;
use crate::segments::{Segments, TargetReplay};
use crate::store_scan::{self, Opening};
use std::collections::BTreeSet;
use zonal_disk::{Engine, ReadStore, StoreKind};
use zonal_meta::inode::Inode;
use zonal_object::{ObjectId, Survey, SurveyItem, TargetDefect, repair};
use zonal_types::{Codec, Column, ErrorCode, Ino, KvChange, KvRead};

/// Changes in one checkpoint.
const BATCH: usize = 4096;

struct Open<'a> {
    spec: &'a StoreSpec,
    geometry: Geometry,
    engine: Engine,
    batch: Vec<KvChange>,
    changes: u64,
}

impl Open<'_> {
    fn take(&mut self, changes: Vec<KvChange>) -> Result<(), OfflineError> {
        self.changes += changes.len() as u64;
        // The next repair sees the changes at once.
        self.engine.apply_unlogged(changes.clone());
        self.batch.extend(changes);
        if self.batch.len() >= BATCH {
            self.checkpoint()?;
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), OfflineError> {
        self.batch.clear();
        let made = self.engine.checkpoint(&mut || Ok(()));
        made.map_err(|source| failed(self.spec, source))
    }

    fn contents(&self, code: ErrorCode) -> OfflineError {
        OfflineError::Contents {
            dir: self.spec.dir.clone(),
            code,
        }
    }
}

/// Passes all keys and values to a function, sorted by key.
type Walk<'a> = dyn FnMut(&mut dyn FnMut(&[u8], &[u8])) + 'a;

/// Surveys a store; returns the survey and its findings.
fn survey(
    geometry: &Geometry,
    notes: Vec<Vec<u8>>,
    walk: &mut Walk<'_>,
) -> (Survey, Vec<TargetDefect>) {
    let mut survey = Survey::new(geometry.config, notes);
    let mut broken = Vec::new();
    let mut hear = |told| {
        if let SurveyItem::Broken(found) = told {
            broken.push(found);
        }
    };
    walk(&mut |key, value| survey.take(key, value, &mut hear));
    survey.finish(&mut hear);
    (survey, broken)
}

fn survey_store(
    geometry: &Geometry,
    store: &ReadStore,
    notes: Vec<Vec<u8>>,
) -> (Survey, Vec<TargetDefect>) {
    survey(geometry, notes, &mut |take| {
        store.walk(&[], None, &mut |found| {
            if let zonal_disk::IndexItem::Entry(key, value) = found {
                take(key, value);
            }
            true
        });
    })
}

/// The changes of the index that only the target's log has.
pub(crate) fn anchor(geometry: &Geometry, store: &ReadStore, notes: Vec<Vec<u8>>) -> Vec<KvChange> {
    let (survey, _) = survey_store(geometry, store, notes);
    repair::anchor(&geometry.config, store, &survey)
}

/// Facts of inodes about objects, as far as the stores of their shards can be read.
struct Inodes {
    shards: Vec<ReadStore>,
}

impl Inodes {
    fn open(cell: &CellStores) -> Result<Self, OfflineError> {
        let mut shards = Vec::new();
        for spec in &cell.stores {
            if spec.identity.kind != StoreKind::Target
                && let Opening::Open(store, _) = store_scan::open(spec)?
            {
                shards.push(*store);
            }
        }
        Ok(Self { shards })
    }

    /// The last truncation of an object's file, and the length that the object should have.
    fn expect(&self, object: ObjectId) -> Option<(u64, u64)> {
        let get = |key: &[u8]| {
            let mut shards = self.shards.iter();
            shards.find_map(|store| store.get(key).ok().flatten())
        };
        let ino = get(&zonal_meta::keys::data(object.data_id))?;
        let ino = Ino::from_bytes(&ino).ok()?;
        let inode = Inode::decode(ino, &get(&zonal_meta::keys::inode(ino))?).ok()?;
        let mut components = inode.layout.components.iter();
        let component = components.find(|component| component.data_id == object.data_id)?;
        let Column(column) = object.column;
        (column < zonal_layout::object_count(component)).then(|| {
            let bytes = zonal_layout::stripe::object_bytes(component, inode.size, object.column);
            (inode.truncate_seq, bytes)
        })
    }
}

/// Repairs the findings within and about a target's store.
pub(crate) fn run(
    cell: &CellStores,
    at: usize,
    wanted: &TargetRepairs,
    work: &RepairList,
) -> Result<u64, OfflineError> {
    let Some(spec) = cell.stores.get(at) else {
        return Ok(0);
    };
    let Some(geometry) = spec.geometry else {
        return Ok(0);
    };
    let is_idle = wanted.broken.is_empty() && wanted.lose.is_empty();
    if is_idle
        && wanted.remove.is_empty()
        && wanted.missing.is_empty()
        && wanted.segments.is_empty()
    {
        return Ok(0);
    }
    let inodes = Inodes::open(cell)?;
    let first = match store_scan::open(spec)? {
        Opening::Open(store, notes) => anchor(&geometry, &store, notes),
        Opening::Fault(_) => return Ok(0),
    };
    mend_segments(spec, &geometry, wanted)?;
    let mut replay = TargetReplay::new(&spec.dir, geometry.config);
    let engine = Engine::open(
        &spec.dir,
        &spec.identity,
        spec.config,
        &mut |record, _lsn, synced| replay.take(record, synced),
    );
    let mut open = Open {
        spec,
        geometry,
        engine: engine.map_err(|source| failed(spec, source))?,
        batch: Vec::new(),
        changes: 0,
    };
    open.engine.apply_unlogged(first);
    open.checkpoint()?;
    let expect = |object| inodes.expect(object);
    apply(&mut open, wanted, &expect)?;
    let _ = work;
    // First the headers, which count what the repairs above left, then the allocation.
    let (_, broken) = survey_engine(&open)?;
    for found in &broken {
        let changes = repair::repair(&geometry.config, &open.engine, found, &expect);
        open.take(changes.unwrap_or_default())?;
    }
    let (survey, _) = survey_engine(&open)?;
    let last = repair::allocation(&geometry.config, &survey);
    open.changes += 1;
    open.engine.apply_unlogged(last);
    open.checkpoint()?;
    Ok(open.changes)
}

fn survey_engine(open: &Open<'_>) -> Result<(Survey, Vec<TargetDefect>), OfflineError> {
    let mut result = Ok(());
    let surveyed = survey(&open.geometry, Vec::new(), &mut |take| {
        result = open.engine.scan(&[], &[0x80], &mut |key, value| {
            take(key, value);
            true
        });
    });
    result.map_err(|code| open.contents(code))?;
    Ok(surveyed)
}

fn apply(
    open: &mut Open<'_>,
    wanted: &TargetRepairs,
    expect: &repair::Expect<'_>,
) -> Result<(), OfflineError> {
    let config = open.geometry.config;
    let mut twice = BTreeSet::new();
    for found in &wanted.broken {
        if let TargetDefect::Twice { place, .. } = found {
            twice.insert(*place);
            continue;
        }
        // This pass or the next one repairs whatever is in the way of a repair.
        let changes = repair::repair(&config, &open.engine, found, expect);
        open.take(changes.unwrap_or_default())?;
    }
    let claims = repair::claims(&config, &open.engine, &twice);
    let claims = claims.map_err(|code| open.contents(code))?;
    let mut segments = Segments::new(&open.spec.dir);
    for group in claims.chunk_by(|one, other| one.place == other.place) {
        let Some(place) = group.first().map(|claim| claim.place) else {
            continue;
        };
        let block = segments.block(place.segment, place.offset());
        let contents = block.as_ref().map(|(bytes, crc)| (bytes.as_slice(), *crc));
        let changes = repair::settle(&config, &open.engine, group, contents);
        open.take(changes.unwrap_or_default())?;
    }
    for (object, block) in &wanted.lose {
        let changes = repair::lose(&config, &open.engine, *object, *block, block + 1);
        open.take(changes.unwrap_or_default())?;
    }
    for (object, bytes) in &wanted.missing {
        let seq = expect(*object).map_or(0, |(seq, _)| seq);
        let changes = repair::lose_missing(&config, &open.engine, *object, *bytes, seq);
        open.take(changes.unwrap_or_default())?;
    }
    for object in &wanted.remove {
        let changes = repair::remove(&open.engine, *object);
        open.take(changes.map_err(|code| open.contents(code))?)?;
    }
    Ok(())
}

/// Extends segments that are too short to their length. The bytes that were cut off are lost, block
/// by block.
fn mend_segments(
    spec: &StoreSpec,
    geometry: &Geometry,
    wanted: &TargetRepairs,
) -> Result<(), OfflineError> {
    let segments = Segments::new(&spec.dir);
    for segment in &wanted.segments {
        let path = segments.path(*segment);
        let opened = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path);
        let mended = opened.and_then(|file| {
            file.set_len(geometry.segment_bytes)?;
            file.sync_all()
        });
        mended.map_err(|source| OfflineError::Scratch { dir: path, source })?;
    }
    Ok(())
}
