//! Late reports of mounts (allocated bytes, sizes): a difference is a finding only of a file that
//! stays unchanged for a while. The same holds for copies that differ: a change comes late to some.
//!
//! The check observes these files twice, each time with a new snapshot and the present objects,
//! with a pause between. Only where inode and objects are the same both times, no report is on its
//! way any more.

use super::cross_checks::{File, object_now};
use super::shards::Shards;
use super::snapshot_keepalive::SnapshotKeepalive;
use super::{FindingList, RunningCell, RunningOptions, SnapshotSet, is_asked};
use crate::check::Ticker;
use crate::error::OfflineError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zonal_fsck::data_fact::{DataClaim, DataFact};
use zonal_fsck::objects::{self, JoinOutcome, ObjectJoin};
use zonal_fsck::{FindingKind, FindingPlace};
use zonal_meta::check::{Fact, FileDataFact, Join as ShardJoin, JoinResult as OfShard, Scan};
use zonal_meta::keys;
use zonal_object::{KnownObject, ObjectId};
use zonal_types::{Column, ErrorCode, Ino, KvRead, Relocation, RelocationState, TargetId};
use zonal_zonemap::ZoneMap;

/// Time between two reports of progress during the pause.
const NAP: Duration = Duration::from_millis(200);

/// Inode and objects of a file at one observation.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileState {
    inode: Vec<u8>,
    data: FileDataFact,
    relocations: Vec<Relocation>,
    stale: Vec<TargetId>,
    objects: Vec<(TargetId, KnownObject)>,
}

/// Result of an observation.
struct Observation<'a> {
    kept: SnapshotKeepalive<'a>,
    map: ZoneMap,
    seen: BTreeMap<Ino, FileState>,
}

/// Adds findings of unchanged files; returns the number of files that changed.
pub(super) fn tell(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    ticker: &Ticker<'_>,
    files: (&Shards, Vec<File>),
    told: &mut FindingList,
) -> Result<u64, OfflineError> {
    let (shards, mut files) = files;
    if files.is_empty() {
        return Ok(0);
    }
    // Sorted by key, each page of a snapshot is read once.
    files.sort_unstable();
    files.dedup_by_key(|(ino, _)| *ino);
    // Drops the first snapshots before the next ones are made.
    let first = look(cell, &files, ticker)?.seen;
    wait(options.quiet, ticker);
    let Observation { kept, map, seen } = look(cell, &files, ticker)?;
    let mut paths = shards.paths(&kept);
    let mut changing = 0;
    for (ino, name) in files {
        match (first.get(&ino), seen.get(&ino)) {
            (Some(before), Some(now)) if before == now => {
                for what in judge(&map, ino, now) {
                    let path = name.and_then(|(dir, cookie)| paths.path(dir, cookie));
                    told.tell(FindingPlace::Cell, path, what);
                }
            }
            // The file is gone, with its objects.
            (_, None) => {}
            _ => changing += 1,
        }
    }
    Ok(changing)
}

fn wait(quiet: Duration, ticker: &Ticker<'_>) {
    let since = Instant::now();
    while let Some(left) = quiet.checked_sub(since.elapsed()) {
        std::thread::sleep(left.min(NAP));
        ticker.tick(0, (0, 0));
        if left <= NAP {
            return;
        }
    }
}

fn judge(map: &ZoneMap, ino: Ino, seen: &FileState) -> Vec<FindingKind> {
    let mut late = Vec::new();
    let mut buffer = Vec::new();
    let mut tell = |joined| {
        if let JoinOutcome::Wrong(
            _,
            _,
            what @ (FindingKind::Allocated { .. }
            | FindingKind::BehindSize { .. }
            | FindingKind::CopiesDiffer { .. }),
        ) = joined
        {
            late.push(what);
        }
    };
    let there = |target| is_asked(map, target);
    let mut join = ObjectJoin::new(map, &there, &mut tell);
    let mut facts = vec![DataFact::expected(ino, None, &seen.data).encode(&mut buffer)];
    for relocation in seen.relocations.iter().copied() {
        let data_id = seen.data.data_id;
        let about = DataClaim::Relocated { ino, relocation };
        facts.push(DataFact { data_id, about }.encode(&mut buffer));
    }
    for target in seen.stale.iter().copied() {
        let data_id = seen.data.data_id;
        let about = DataClaim::Stale { ino, target };
        facts.push(DataFact { data_id, about }.encode(&mut buffer));
    }
    for (target, known) in &seen.objects {
        facts.push(DataFact::found(*target, known).encode(&mut buffer));
    }
    facts.sort_unstable();
    for fact in facts.iter().filter_map(DataFact::decode) {
        join.take(&fact);
    }
    join.finish();
    late
}

fn look<'a>(
    cell: &'a dyn RunningCell,
    files: &[File],
    ticker: &Ticker<'_>,
) -> Result<Observation<'a>, OfflineError> {
    let SnapshotSet { map, snapshots } = cell.fix()?;
    let kept = SnapshotKeepalive::new(snapshots);
    let mut found = BTreeMap::new();
    for (ino, _) in files {
        let shard = map.shard_of(ino.partition()).map(|shard| shard.id);
        let Some(store) = shard.and_then(|shard| kept.of(shard)) else {
            continue;
        };
        kept.tick_now();
        ticker.tick(1, (0, 0));
        let gone = |_code: ErrorCode| OfflineError::SnapshotGone(store.shard());
        if let Some(seen) = state_of(store, *ino).map_err(gone)? {
            found.insert(*ino, seen);
        }
    }
    for (ino, seen) in &mut found {
        let owner = DataFact::expected(*ino, None, &seen.data).owner();
        let Some(owner) = owner else {
            continue;
        };
        let relocations = seen.relocations.clone();
        let component = objects::component_of(seen.data.data_id, &owner, relocations);
        let counted = component.relocations.iter();
        let counted = counted.filter(|of| of.state == RelocationState::Dropped);
        let counted = counted.map(|of| (of.object, map.slot_of_relocation(of)));
        let counted = counted.map(|(object, slot)| (object, slot.map(|slot| slot.target)));
        let own = zonal_layout::objects(&component);
        let own = own.map(|object| (object, objects::target_of(&map, &component, object.0)));
        for (Column(column), target) in own.chain(counted) {
            if let Some(target) = target.filter(|target| is_asked(&map, *target)) {
                let object = ObjectId {
                    data_id: component.data_id,
                    column: Column(column),
                };
                let known = object_now(cell, target, object)?;
                seen.objects.extend(known.map(|known| (target, known)));
            }
        }
        kept.tick_now();
        ticker.tick(1, (0, 0));
    }
    let seen = found;
    Ok(Observation { kept, map, seen })
}

/// Reads an inode's bytes, with the length of the bytes beside it, and the values that a check of
/// its objects needs. Uses the code that judges whole shards.
fn state_of(store: &dyn KvRead, ino: Ino) -> Result<Option<FileState>, ErrorCode> {
    let Some(inode) = store.get(&keys::inode(ino))? else {
        return Ok(None);
    };
    let inline = store.get(&keys::inline(ino))?;
    let mut facts = Vec::new();
    let mut buffer = Vec::new();
    let mut emit = |fact: Fact| facts.push(fact.encode(&mut buffer));
    // The check of the whole shard reported these already.
    let mut wrong = |_broken| {};
    let mut scan = Scan::new(zonal_meta::ShardConfig::HASH_BITS, &mut emit, &mut wrong);
    scan.take(&keys::inode(ino), &inode);
    if let Some(bytes) = &inline {
        scan.take(&keys::inline(ino), bytes);
    }
    scan.finish();
    facts.sort_unstable();
    let (mut data, mut relocated, mut stale) = (None, Vec::new(), Vec::new());
    let is_ours = |_ino| true;
    let mut hear = |joined| match joined {
        OfShard::Known(known) => data = known.data,
        OfShard::Relocated(_, data_id, relocation) => relocated.push((data_id, relocation)),
        OfShard::Stale(_, data_id, target) => stale.push((data_id, target)),
        _ => {}
    };
    let mut join = ShardJoin::new(&is_ours, &mut hear);
    for fact in facts.iter().filter_map(Fact::decode) {
        join.take(&fact);
    }
    join.finish();
    let mut inode = inode;
    inode.extend_from_slice(&(inline.unwrap_or_default().len() as u64).to_le_bytes());
    Ok(data.map(|data: FileDataFact| {
        relocated.retain(|(data_id, _)| *data_id == data.data_id);
        stale.retain(|(data_id, _)| *data_id == data.data_id);
        FileState {
            inode,
            data,
            relocations: relocated.into_iter().map(|(_, of)| of).collect(),
            stale: stale.into_iter().map(|(_, target)| target).collect(),
            objects: Vec::new(),
        }
    }))
}
