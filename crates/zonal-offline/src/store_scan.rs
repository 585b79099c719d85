//! Reads one store from beginning to end: finds what is wrong in it, and collects its facts for the
//! comparison with other stores.

use crate::cell::{Geometry, StoreSpec};
use crate::check::{CheckOptions, Ticker};
use crate::error::OfflineError;
use crate::external_sort::Sorter;
use crate::resume::{Compared, WorkFolder};
use crate::segments::{Segments, TargetReplay};
use std::collections::BTreeMap;
use std::path::Path;
use zonal_basics::to_hex;
use zonal_disk::{DiskError, IndexItem, ReadStore, StoreDamage, start_marks};
use zonal_fsck::data_fact::DataFact;
use zonal_fsck::{FindingKind, StoreFault};
use zonal_meta::check::{self, Fact, Scan};
use zonal_meta::keys;
use zonal_object::ids::{BLOCK, Place};
use zonal_object::{ObjectId, Survey, SurveyItem, TargetDefect};
use zonal_types::PartitionId;
use zonal_types::TargetId;
/// Records between two ticks of the progress.
const TICK: u64 = 16_384;

/// Result of opening a store.
pub(crate) enum Opening {
    /// The store can be read. Notes of its log, where it is a target's.
    Open(Box<ReadStore>, Vec<Vec<u8>>),
    /// The store is missing, or another store is in its place.
    Fault(StoreFault),
}

/// Opens a store for reading.
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
        Ok(store) if store.is_replica() => {
            return Err(OfflineError::Replica(spec.dir.clone()));
        }
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

/// Returns the faults of an opened store's files. With `data` reads the whole copy of the index,
/// too.
pub(crate) fn faults(store: &ReadStore, data: bool) -> Vec<StoreFault> {
    let fault = |damage: &StoreDamage| match damage {
        StoreDamage::Identity(what) => StoreFault::Identity(what.clone()),
        StoreDamage::LogLost(what) => StoreFault::LogLost(what.clone()),
        StoreDamage::LogFlipped(at) => StoreFault::LogFlipped(*at),
        StoreDamage::LogTorn { .. } | StoreDamage::LogRecord(_) => {
            StoreFault::LogTorn(damage.to_string())
        }
        StoreDamage::IndexLost(what) => StoreFault::IndexLost(what.clone()),
        StoreDamage::IndexShut(what) => StoreFault::IndexShut(what.clone()),
        StoreDamage::Copy(what) => StoreFault::Copy(what.clone()),
        StoreDamage::Foreign(name) => StoreFault::Foreign(name.clone()),
    };
    let of_copy = if data { store.copy_damage() } else { None };
    store.damage().iter().chain(&of_copy).map(fault).collect()
}

/// Whether the store's record of starts is unusable, though the manager knows of a start: a server
/// would take the store for a copy.
pub(crate) fn has_lost_starts(spec: &StoreSpec) -> bool {
    let bytes = std::fs::read(spec.dir.join(start_marks::FILE_NAME)).unwrap_or_default();
    start_marks::Starts::decode(&bytes).is_none()
}

/// The fault in an item of a walk, if it is one.
fn met(found: &IndexItem<'_>) -> Option<StoreFault> {
    match found {
        IndexItem::Entry(..) => None,
        IndexItem::Mended { offset } => Some(StoreFault::Flipped(*offset)),
        IndexItem::BadPage { offset, .. } => Some(StoreFault::BadPage(*offset)),
        IndexItem::BadEntry { key } => Some(StoreFault::BadEntry(to_hex(key))),
    }
}

/// Reads a shard's store: every key as a fact. Reports what is wrong with a key by itself. Also
/// returns the number of records.
pub(crate) fn shard(
    store: &ReadStore,
    names: (&Path, &str),
    partitions: &[PartitionId],
    ticker: &Ticker<'_>,
    tell: &mut dyn FnMut(FindingKind),
) -> Result<(Sorter, u64), OfflineError> {
    let (scratch, name) = names;
    let mut facts = Sorter::new(scratch, &format!("{name}.facts"));
    let mut failed = None;
    let mut buffer = Vec::new();
    let mut broken = Vec::new();
    let mut records = 0;
    {
        let mut emit = |fact: Fact| {
            if failed.is_none() {
                failed = facts.push(fact.encode(&mut buffer)).err();
            }
        };
        let mut wrong = |found: check::Broken| broken.push(found);
        let mut scan = Scan::new(zonal_meta::ShardConfig::HASH_BITS, &mut emit, &mut wrong);
        // Notes that cannot be read are found below.
        let under_way = zonal_meta::partitions_under_way(store, partitions);
        scan.pass_over(under_way.unwrap_or_default());
        store.walk(&[], None, &mut |found| {
            if let IndexItem::Entry(key, value) = found {
                // The keys of the manager follow the shard's keys.
                if !(key.starts_with(&[0xff; 4]) && key.get(4) >= Some(&keys::TAG_END)) {
                    scan.take(key, value);
                }
                records += 1;
                if records % TICK == 0 {
                    ticker.tick(TICK, store.pages());
                }
            } else if let Some(fault) = met(&found) {
                tell(FindingKind::Store(fault));
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
        .for_each(|found| tell(FindingKind::Shard(found)));
    Ok((facts, records))
}

/// Contents of a target's store that are compared with other stores.
pub(crate) struct TargetContents {
    pub data: Sorter,
    pub objects: u64,
    /// Blocks that fail their checksum.
    pub damaged: Vec<(ObjectId, u64)>,
    /// Runs of blocks that are known to be lost.
    pub lost: Vec<(ObjectId, u64, u64)>,
}

/// Blocks of one kind that are kept, to be reported by file.
const BLOCKS_MAX: usize = 1 << 18;

/// Receives a target's records.
struct Listener<'a, 't> {
    geometry: Geometry,
    options: &'a CheckOptions,
    folder: &'a WorkFolder,
    name: &'a str,
    ticker: &'a Ticker<'t>,
    segments: Segments,
    lengths: BTreeMap<u32, u64>,
    sorter: Sorter,
    buffer: Vec<u8>,
    wrong: Vec<TargetDefect>,
    lost: Vec<(ObjectId, u64, u64)>,
    /// Number of blocks seen so far.
    blocks: u64,
    /// Saved progress at the beginning; the whole progress in the end.
    compared: Compared,
    failed: Option<OfflineError>,
}

impl Listener<'_, '_> {
    fn hear(&mut self, told: SurveyItem) {
        if self.failed.is_some() {
            return;
        }
        match told {
            SurveyItem::Broken(broken) => self.wrong.push(broken),
            SurveyItem::Object(known) => {
                let fact = DataFact::found(self.geometry.target, &known);
                self.failed = self.sorter.push(fact.encode(&mut self.buffer)).err();
            }
            SurveyItem::Block(object, block, place, crc) => {
                self.failed = self.compare((object, block), place, crc).err();
            }
            SurveyItem::Lost(object, first, end) => {
                if self.lost.len() < BLOCKS_MAX {
                    self.lost.push((object, first, end));
                }
            }
        }
    }

    fn compare(
        &mut self,
        block: (ObjectId, u64),
        place: Place,
        crc: u32,
    ) -> Result<(), OfflineError> {
        let path = self.segments.path(place.segment);
        let length = *self.lengths.entry(place.segment).or_insert_with(|| {
            let found = std::fs::metadata(path);
            found.map_or(0, |found| found.len())
        });
        self.blocks += 1;
        if self.blocks <= self.compared.blocks {
            // The interrupted check compared this block.
            return Ok(());
        }
        self.compared.blocks = self.blocks;
        let is_bad = place.offset() + BLOCK > length
            || (self.options.data
                && self
                    .segments
                    .block(place.segment, place.offset())
                    .is_none_or(|(_, found)| found != crc));
        if is_bad && self.compared.damaged.len() < BLOCKS_MAX {
            self.compared.damaged.push(block);
        }
        if self.options.data && self.blocks.is_multiple_of(self.options.keep_every) {
            self.folder.keep_compared(self.name, &self.compared)?;
            self.ticker.step()?;
        }
        Ok(())
    }
}

/// Reads a target's store; with [`CheckOptions::data`] also compares every block that was not
/// compared yet. Also returns the number of records.
pub(crate) fn target(
    store: &ReadStore,
    of: (&StoreSpec, Geometry, Vec<Vec<u8>>),
    kept: (&WorkFolder, &str, Compared),
    options: &CheckOptions,
    ticker: &Ticker<'_>,
    tell: &mut dyn FnMut(FindingKind),
) -> Result<(TargetContents, u64), OfflineError> {
    let (spec, geometry, notes) = of;
    let (folder, name, compared) = kept;
    let mut survey = Survey::new(geometry.config, notes);
    let mut listener = Listener {
        geometry,
        options,
        folder,
        name,
        ticker,
        segments: Segments::new(&spec.dir),
        lengths: BTreeMap::new(),
        sorter: Sorter::new(folder.dir(), &format!("{name}.data")),
        buffer: Vec::new(),
        wrong: Vec::new(),
        lost: Vec::new(),
        blocks: 0,
        compared,
        failed: None,
    };
    let (mut records, mut faults) = (0, Vec::new());
    store.walk(&[], None, &mut |found| {
        if let IndexItem::Entry(key, value) = found {
            survey.take(key, value, &mut |told| listener.hear(told));
            records += 1;
            if records % TICK == 0 {
                ticker.tick(TICK, store.pages());
            }
        } else if let Some(fault) = met(&found) {
            faults.push(fault);
        }
        listener.failed.is_none()
    });
    survey.finish(&mut |told| listener.hear(told));
    ticker.tick(records % TICK, store.pages());
    if let Some(error) = listener.failed {
        return Err(error);
    }
    for (segment, length) in listener.lengths {
        if length != geometry.segment_bytes {
            faults.push(StoreFault::Segment(segment));
        }
    }
    faults
        .into_iter()
        .for_each(|fault| tell(FindingKind::Store(fault)));
    listener
        .wrong
        .into_iter()
        .for_each(|broken| tell(FindingKind::Target(broken)));
    let seen = TargetContents {
        data: listener.sorter,
        objects: survey.objects,
        damaged: listener.compared.damaged,
        lost: listener.lost,
    };
    Ok((seen, records))
}

/// Prefix of a store's files in the scratch folder.
pub(crate) fn scratch_name(spec: &StoreSpec) -> String {
    let target = spec.geometry.map(|geometry| geometry.target);
    match target {
        Some(TargetId(id)) => format!("target-{id}"),
        None => format!("{}-{}", spec.identity.kind, spec.identity.id),
    }
}

/// Whether the store has keys of the shard itself: a store that was formatted and never used has
/// none.
pub(crate) fn is_formatted(store: &ReadStore) -> bool {
    let mut some = false;
    let end = [0xff, 0xff, 0xff, 0xff, keys::TAG_END];
    store.walk(&[], Some(&end), &mut |_found| {
        some = true;
        false
    });
    some
}
