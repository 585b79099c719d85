//! One store read from beginning to end: what is wrong in it, and its facts for what lies between stores.

use crate::cell::{Geometry, StoreSpec};
use crate::error::OfflineError;
use crate::facts::{ShardSeen, join_facts};
use crate::run::{Options, Ticker};
use crate::segments::{Segments, TargetReplay};
use crate::sort::Sorter;
use std::collections::BTreeMap;
use std::path::Path;
use zonal_disk::{DiskError, Found, ReadStore, StoreDamage, starts};
use zonal_fsck::objects::DataFact;
use zonal_fsck::{StoreFault, What};
use zonal_meta::check::{Broken, Fact, Scan};
use zonal_meta::keys;
use zonal_object::ids::BLOCK;
use zonal_object::{ObjectId, Survey, Told};
use zonal_types::{PartitionId, TargetId};

/// Key of the zone map in the manager's store.
pub(crate) const MAP_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf0];
/// Records between two ticks of the progress.
const TICK: u64 = 16_384;

/// How a store opened.
pub(crate) enum Opening {
    /// To be read; notes of its log where it is a target's.
    Open(Box<ReadStore>, Vec<Vec<u8>>),
    /// Not there, or not what belongs there.
    Fault(StoreFault),
}

/// Opens a store to be looked at.
pub(crate) fn open(spec: &StoreSpec) -> Result<Opening, OfflineError> {
    let mut replay = spec
        .geometry
        .map(|geometry| TargetReplay::new(&spec.dir, geometry.config));
    let opened = ReadStore::open(&spec.dir, &spec.identity, &mut |record, _lsn, synced| {
        replay
            .as_mut()
            .is_none_or(|replay| replay.take(record, synced))
    });
    let fault = match opened {
        Ok(store) => {
            let notes = replay.map(|replay| replay.notes).unwrap_or_default();
            return Ok(Opening::Open(Box::new(store), notes));
        }
        Err(DiskError::Locked(dir)) => return Err(OfflineError::Running(dir)),
        Err(
            error @ (DiskError::WrongCell { .. }
            | DiskError::WrongKind { .. }
            | DiskError::WrongId { .. }
            | DiskError::WrongVersion { .. }),
        ) => StoreFault::Stranger(error.to_string()),
        Err(error @ (DiskError::NotFormatted(_) | DiskError::NotOurs(_))) => {
            StoreFault::Missing(error.to_string())
        }
        Err(DiskError::Io { what, source }) if source.kind() == std::io::ErrorKind::NotFound => {
            StoreFault::Missing(format!("{what}: {source}"))
        }
        Err(source) => {
            let dir = spec.dir.clone();
            return Err(OfflineError::Store { dir, source });
        }
    };
    Ok(Opening::Fault(fault))
}

/// What is wrong with the files of an opened store.
pub(crate) fn faults(store: &ReadStore) -> Vec<StoreFault> {
    let fault = |damage: &StoreDamage| match damage {
        StoreDamage::Identity(what) => StoreFault::Identity(what.clone()),
        StoreDamage::LogLost(what) => StoreFault::LogLost(what.clone()),
        StoreDamage::LogTorn { .. } | StoreDamage::LogRecord(_) => {
            StoreFault::LogTorn(damage.to_string())
        }
        StoreDamage::IndexLost(what) => StoreFault::IndexLost(what.clone()),
        StoreDamage::IndexShut(what) => StoreFault::IndexShut(what.clone()),
        StoreDamage::Foreign(name) => StoreFault::Foreign(name.clone()),
    };
    store.damage().iter().map(fault).collect()
}

/// Whether the file with a store's starts is of no use, though the manager knows of one: the store would be taken for a copy.
pub(crate) fn has_lost_starts(spec: &StoreSpec) -> bool {
    let bytes = std::fs::read(spec.dir.join(starts::FILE_NAME)).unwrap_or_default();
    starts::Starts::decode(&bytes).is_none()
}

/// The fault that a walk met, if it is one.
fn met(found: &Found<'_>) -> Option<StoreFault> {
    match found {
        Found::Entry(..) => None,
        Found::Mended { offset } => Some(StoreFault::Flipped(*offset)),
        Found::BadPage { offset, .. } => Some(StoreFault::BadPage(*offset)),
        Found::BadEntry { key } => Some(StoreFault::BadEntry(hex(key))),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads a shard's store.
pub(crate) fn shard(
    store: &ReadStore,
    partitions: &[PartitionId],
    names: (&Path, &str),
    ticker: &Ticker<'_>,
    tell: &mut dyn FnMut(What),
) -> Result<ShardSeen, OfflineError> {
    let facts = read_facts(store, names, ticker, tell)?;
    join_facts(store, facts, partitions, names, tell)
}

/// Every key as a fact; what is wrong with one by itself is told.
fn read_facts(
    store: &ReadStore,
    names: (&Path, &str),
    ticker: &Ticker<'_>,
    tell: &mut dyn FnMut(What),
) -> Result<Sorter, OfflineError> {
    let (scratch, name) = names;
    let mut facts = Sorter::new(scratch, &format!("{name}.facts"));
    let mut failed = None;
    let mut buffer = Vec::new();
    let mut broken = Vec::new();
    {
        let mut emit = |fact: Fact| {
            if failed.is_none() {
                failed = facts.push(fact.encode(&mut buffer)).err();
            }
        };
        let mut wrong = |found: Broken| broken.push(found);
        let mut scan = Scan::new(zonal_meta::ShardConfig::HASH_BITS, &mut emit, &mut wrong);
        let mut records = 0;
        store.walk(&[], None, &mut |found| {
            if let Found::Entry(key, value) = found {
                // Behind the shard's keys are those of the manager.
                if !(key.starts_with(&[0xff; 4]) && key.get(4) >= Some(&keys::TAG_END)) {
                    scan.take(key, value);
                }
                records += 1;
                if records % TICK == 0 {
                    ticker.tick(TICK, store.pages());
                }
            } else if let Some(fault) = met(&found) {
                tell(What::Store(fault));
            }
            true
        });
        scan.finish();
        ticker.tick(records % TICK, store.pages());
    }
    if let Some(error) = failed {
        return Err(error);
    }
    broken
        .into_iter()
        .for_each(|found| tell(What::Shard(found)));
    Ok(facts)
}

/// What a target's store says to the rest of the cell.
pub(crate) struct TargetSeen {
    pub data: Sorter,
    pub objects: u64,
    /// Blocks that fail their checksum.
    pub damaged: Vec<(ObjectId, u64)>,
    /// Runs of blocks that are known to be lost.
    pub lost: Vec<(ObjectId, u64, u64)>,
}

/// Blocks of one kind that are kept to be told by name.
const BLOCKS_MAX: usize = 1 << 18;

/// Reads a target's store; with [`Options::data`] every block, too.
pub(crate) fn target(
    store: &ReadStore,
    notes: Vec<Vec<u8>>,
    spec: (&StoreSpec, &Geometry),
    names: (&Path, &str),
    options: &Options,
    ticker: &Ticker<'_>,
    tell: &mut dyn FnMut(What),
) -> Result<TargetSeen, OfflineError> {
    let (StoreSpec { dir, .. }, geometry) = spec;
    let (scratch, name) = names;
    let mut survey = Survey::new(geometry.config, notes);
    let mut sorter = Sorter::new(scratch, &format!("{name}.data"));
    let mut segments = Segments::new(dir);
    let mut lengths: BTreeMap<u32, u64> = BTreeMap::new();
    let mut damaged = Vec::new();
    let mut lost = Vec::new();
    let mut failed = None;
    let mut buffer = Vec::new();
    let mut wrong = Vec::new();
    let (mut records, mut faults) = (0, Vec::new());
    {
        let mut hear = |told| match told {
            Told::Broken(broken) => wrong.push(broken),
            Told::Object(known) => {
                let fact = DataFact::found(geometry.target, &known);
                if failed.is_none() {
                    failed = sorter.push(fact.encode(&mut buffer)).err();
                }
            }
            Told::Block(object, block, place, crc) => {
                let length = *lengths.entry(place.segment).or_insert_with(|| {
                    let found = std::fs::metadata(segments.path(place.segment));
                    found.map_or(0, |found| found.len())
                });
                let is_bad = place.offset() + BLOCK > length
                    || (options.data
                        && segments
                            .block(place.segment, place.offset())
                            .is_none_or(|(_, found)| found != crc));
                if is_bad && damaged.len() < BLOCKS_MAX {
                    damaged.push((object, block));
                }
            }
            Told::Lost(object, first, end) => {
                if lost.len() < BLOCKS_MAX {
                    lost.push((object, first, end));
                }
            }
        };
        store.walk(&[], None, &mut |found| {
            if let Found::Entry(key, value) = found {
                survey.take(key, value, &mut hear);
                records += 1;
                if records % TICK == 0 {
                    ticker.tick(TICK, store.pages());
                }
            } else if let Some(fault) = met(&found) {
                faults.push(fault);
            }
            true
        });
        survey.finish(&mut hear);
        ticker.tick(records % TICK, store.pages());
    }
    if let Some(error) = failed {
        return Err(error);
    }
    for (segment, length) in lengths {
        if length != geometry.segment_bytes {
            faults.push(StoreFault::Segment(segment));
        }
    }
    faults
        .into_iter()
        .for_each(|fault| tell(What::Store(fault)));
    wrong
        .into_iter()
        .for_each(|broken| tell(What::Target(broken)));
    Ok(TargetSeen {
        data: sorter,
        objects: survey.objects,
        damaged,
        lost,
    })
}

/// The name of a store's files in the scratch folder.
pub(crate) fn scratch_name(spec: &StoreSpec) -> String {
    let target = spec.geometry.map(|geometry| geometry.target);
    match target {
        Some(TargetId(id)) => format!("target-{id}"),
        None => format!("{}-{}", spec.identity.kind, spec.identity.id),
    }
}

/// Whether keys of the shard's own are there: a store that was formatted and never used has none.
pub(crate) fn is_formatted(store: &ReadStore) -> bool {
    let mut some = false;
    let end = [0xff, 0xff, 0xff, 0xff, keys::TAG_END];
    store.walk(&[], Some(&end), &mut |_found| {
        some = true;
        false
    });
    some
}
