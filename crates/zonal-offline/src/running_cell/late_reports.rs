//! What mounts report late (allocated bytes, sizes): told of files that stay as they are for a
//! while.
//!
//! Two looks, each at a fresh snapshot and the objects as they are, with a pause between: only
//! where inode and objects are the same in both, a difference between them is not on its way any
//! more.

use super::cross_checks::{File, object_now};
use super::shards::Shards;
use super::snapshot_keepalive::Kept;
use super::{RunningCell, RunningOptions, SnapshotSet, Told};
use crate::check::Ticker;
use crate::error::OfflineError;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use zonal_fsck::data_fact::DataFact;
use zonal_fsck::objects::{self, JoinOutcome, ObjectJoin};
use zonal_fsck::{FindingKind, FindingPlace};
use zonal_meta::check::{Data, Fact, Join as ShardJoin, Joined as OfShard, Scan};
use zonal_meta::keys;
use zonal_object::{KnownObject, ObjectId};
use zonal_types::{Column, ErrorCode, Ino, KvRead, TargetId};
use zonal_zonemap::ZoneMap;

/// Between two reports of progress while nothing is done.
const NAP: Duration = Duration::from_millis(200);

/// A file at one look.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    inode: Vec<u8>,
    data: Data,
    objects: Vec<(TargetId, KnownObject)>,
}

/// What a look came to.
struct Look<'a> {
    kept: Kept<'a>,
    map: ZoneMap,
    seen: BTreeMap<Ino, Seen>,
}

/// Tells what stays; gives the number of files that change.
pub(super) fn tell(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    ticker: &Ticker<'_>,
    files: (&Shards, Vec<File>),
    told: &mut Told,
) -> Result<u64, OfflineError> {
    let (shards, mut files) = files;
    if files.is_empty() {
        return Ok(0);
    }
    // In the order of keys: each page of a snapshot is read once.
    files.sort_unstable();
    files.dedup_by_key(|(ino, _)| *ino);
    // Its snapshots are gone before the next ones are fixed.
    let first = look(cell, &files, ticker)?.seen;
    wait(options.quiet, ticker);
    let Look { kept, map, seen } = look(cell, &files, ticker)?;
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
            // Gone, with all that it had.
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

fn judge(map: &ZoneMap, ino: Ino, seen: &Seen) -> Vec<FindingKind> {
    let mut late = Vec::new();
    let mut buffer = Vec::new();
    let mut tell = |joined| {
        if let JoinOutcome::Wrong(
            _,
            _,
            what @ (FindingKind::Allocated { .. } | FindingKind::BehindSize { .. }),
        ) = joined
        {
            late.push(what);
        }
    };
    let there = |_target| true;
    let mut join = ObjectJoin::new(map, &there, &mut tell);
    let mut facts = vec![DataFact::expected(ino, None, &seen.data).encode(&mut buffer)];
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
) -> Result<Look<'a>, OfflineError> {
    let SnapshotSet { map, snapshots } = cell.fix()?;
    let kept = Kept::new(snapshots);
    let mut found = BTreeMap::new();
    for (ino, _) in files {
        let shard = map.shard_of(ino.partition()).map(|shard| shard.id);
        let Some(store) = shard.and_then(|shard| kept.of(shard)) else {
            continue;
        };
        kept.remind_now();
        ticker.tick(1, (0, 0));
        let gone = |_code: ErrorCode| OfflineError::SnapshotGone(store.shard());
        if let Some((inode, data)) = data_of(store, *ino).map_err(gone)? {
            let objects = Vec::new();
            let seen = Seen {
                inode,
                data,
                objects,
            };
            found.insert(*ino, seen);
        }
    }
    for (ino, seen) in &mut found {
        let owner = DataFact::expected(*ino, None, &seen.data).owner();
        let Some((owner, set)) = owner.zip(map.set(seen.data.set)) else {
            continue;
        };
        let component = objects::component_of(seen.data.data_id, &owner);
        for column in 0..component.count {
            if let Some(target) = objects::target_of(set, &component, column) {
                let object = ObjectId {
                    data_id: component.data_id,
                    column: Column(column),
                };
                let known = object_now(cell, target, object)?;
                seen.objects.extend(known.map(|known| (target, known)));
            }
        }
        kept.remind_now();
        ticker.tick(1, (0, 0));
    }
    let seen = found;
    Ok(Look { kept, map, seen })
}

/// An inode's bytes (with the length of what is stored beside it), and what a check of its objects
/// needs; by the code that judges whole shards.
fn data_of(store: &dyn KvRead, ino: Ino) -> Result<Option<(Vec<u8>, Data)>, ErrorCode> {
    let Some(inode) = store.get(&keys::inode(ino))? else {
        return Ok(None);
    };
    let inline = store.get(&keys::inline(ino))?;
    let mut facts = Vec::new();
    let mut buffer = Vec::new();
    let mut emit = |fact: Fact| facts.push(fact.encode(&mut buffer));
    // Told when the whole shard was judged.
    let mut wrong = |_broken| {};
    let mut scan = Scan::new(zonal_meta::ShardConfig::HASH_BITS, &mut emit, &mut wrong);
    scan.take(&keys::inode(ino), &inode);
    if let Some(bytes) = &inline {
        scan.take(&keys::inline(ino), bytes);
    }
    scan.finish();
    facts.sort_unstable();
    let mut data = None;
    let is_ours = |_ino| true;
    let mut hear = |joined| {
        if let OfShard::Known(known) = joined {
            data = known.data;
        }
    };
    let mut join = ShardJoin::new(&is_ours, &mut hear);
    for fact in facts.iter().filter_map(Fact::decode) {
        join.take(&fact);
    }
    join.finish();
    let mut seen = inode;
    seen.extend_from_slice(&(inline.unwrap_or_default().len() as u64).to_le_bytes());
    Ok(data.map(|data| (seen, data)))
}
