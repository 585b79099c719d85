//! Repairs of the files of stores, and of disagreements between stores.

use crate::cell::{CellStores, StoreSpec};
use crate::check::{CheckOptions, Step};
use crate::error::OfflineError;
use crate::pass::{self, RepairList, shard_of};
use crate::repair_shard::{Open, failed, lost_found, lost_found_name};
use crate::repair_target::anchor;
use crate::segments::TargetReplay;
use crate::store_scan::{self, Opening};
use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_disk::repair::{StoreRepair, drop_copy, mend as mend_files, restore_index};
use zonal_disk::{StoreDir, StoreKind, start_marks};
use zonal_fsck::StoreFault;
use zonal_fsck::junctions::{self, Mismatch};
use zonal_fsck::objects::{self, UnownedObject};
use zonal_meta::MetaShard;
use zonal_meta::inode::Inode;
use zonal_meta::repair::AdoptedFile;
use zonal_object::TargetConfig;
use zonal_object::ids::BLOCK;
use zonal_object::key::{IndexKey, parse};
use zonal_types::{Codec, Column, DataId, ErrorCode, Ino, KvChange, Name, ShardId};
use zonal_zonemap::junctions::ListedJunction;
use zonal_zonemap::{Junction, ZoneMap};

/// Keys of junctions changed in one record.
const CHANGES_AT_ONCE: usize = 1024;

/// Repairs the files of a store.
pub(crate) fn mend(
    spec: &StoreSpec,
    faults: &[StoreFault],
    work: &RepairList,
    (options, step): (&CheckOptions, &mut Step<'_>),
) -> Result<u64, OfflineError> {
    let of_map = spec.geometry.and_then(|geometry| {
        let target = work.map.as_ref()?.target(geometry.target)?;
        Some(target.uuid)
    });
    let known = work.known.get(&spec.dir);
    let uuid = known.map(|known| known.uuid).or(of_map);
    let is_from_copy = |fault: &StoreFault| matches!(fault, StoreFault::FromCopy(_));
    if faults.iter().any(is_from_copy)
        && restore_index(&spec.dir, &spec.identity, uuid, &spec.config)
            .map_err(|source| failed(spec, source))?
    {
        // The next pass sees whatever else is wrong with the store.
        return Ok(1);
    }
    if let [StoreFault::Copy(_)] = faults {
        drop_copy(&spec.dir).map_err(|source| failed(spec, source))?;
        return Ok(1);
    }
    let extra = match (store_scan::open(spec)?, &spec.geometry) {
        (Opening::Open(store, notes), Some(geometry)) => anchor(geometry, &store, notes),
        (Opening::Open(..), None) => Vec::new(),
        (Opening::Fault(_), _) => return Ok(0),
    };
    if faults.contains(&StoreFault::Starts)
        && let Some(known) = known
    {
        start_marks::taken(&StoreDir::plain(&spec.dir), known.mark)
            .map_err(|source| failed(spec, source))?;
        if faults.len() == 1 {
            return Ok(1);
        }
    }
    let config = spec.geometry.map(|geometry| geometry.config);
    let is_newer = |key: &[u8], old: &[u8], new: &[u8]| {
        let config = config.as_ref();
        version_of(config, key, new) > version_of(config, key, old)
    };
    let how = StoreRepair {
        identity: spec.identity,
        config: spec.config,
        uuid,
        extra,
        is_newer: &is_newer,
    };
    let forgotten = |source| OfflineError::Scratch {
        dir: options.scratch.clone(),
        source,
    };
    if let Some(geometry) = spec.geometry {
        pass::expect_lost(&options.scratch, geometry.target).map_err(forgotten)?;
    }
    let mut replay = spec
        .geometry
        .map(|geometry| TargetReplay::new(&spec.dir, geometry.config));
    let mut lost = mend_files(&spec.dir, &how, &mut |record, _lsn, synced| {
        replay
            .as_mut()
            .is_none_or(|replay| replay.take(record, synced))
    })
    .map_err(|source| failed(spec, source))?;
    step()?;
    let is_of_log =
        |fault: &StoreFault| matches!(fault, StoreFault::LogLost(_) | StoreFault::LogTorn(_));
    if faults.iter().any(is_of_log) {
        // The lost part of the log may have been about any object.
        lost.push((Vec::new(), None));
    }
    if let Some(geometry) = spec.geometry {
        pass::save_lost(&options.scratch, geometry.target, lost).map_err(forgotten)?;
    }
    Ok(1)
}

/// The version of a record: a chunk's in a target's store (`config`), an inode's in a shard's; else
/// 0.
fn version_of(config: Option<&TargetConfig>, key: &[u8], value: &[u8]) -> u64 {
    match (config, parse(key)) {
        (Some(config), Ok(IndexKey::Chunk(..))) => {
            let chunk = zonal_object::chunk::Chunk::decode(config, key, value);
            chunk.map_or(0, |chunk| chunk.version)
        }
        (None, _) => Inode::from_bytes(value).map_or(0, |inode| inode.change),
        _ => 0,
    }
}

/// Repairs disagreements between stores.
pub(crate) fn run(
    cell: &CellStores,
    work: &RepairList,
    options: &CheckOptions,
) -> Result<u64, OfflineError> {
    let Some(map) = &work.map else {
        return Ok(0);
    };
    let shared = Arc::new(map.clone());
    let mut changes = 0;
    for spec in &cell.stores {
        if spec.identity.kind == StoreKind::Target {
            continue;
        }
        let Some(shard) = shard_of(spec, map) else {
            continue;
        };
        let owns = |ino: Ino| {
            map.shard_of(ino.partition())
                .is_some_and(|owner| owner.id == shard)
        };
        let corrections: Vec<_> = work
            .corrections
            .iter()
            .filter(|(ino, _)| owns(**ino))
            .collect();
        let unowned: Vec<_> = work
            .unowned
            .iter()
            .filter(|(data_id, objects)| adopter(map, *data_id, objects) == Some(shard))
            .collect();
        let refilled: Vec<_> = work
            .refilled
            .iter()
            .filter(|((ino, _), _)| owns(*ino))
            .collect();
        let is_manager = spec.identity.kind == StoreKind::Manager;
        let junctions = if is_manager {
            work.junctions.as_slice()
        } else {
            &[]
        };
        let is_idle = corrections.is_empty() && refilled.is_empty();
        if is_idle && unowned.is_empty() && junctions.is_empty() {
            continue;
        }
        let Some(mut open) = Open::new(spec, map, options)? else {
            continue;
        };
        let contents = |code| OfflineError::Contents {
            dir: spec.dir.clone(),
            code,
        };
        let core = open.shard(&shared)?;
        for (ino, wanted) in corrections {
            let effect = core.correct(
                &open.engine,
                open.now,
                *ino,
                (wanted.size, wanted.allocated, wanted.truncate_seq),
            );
            open.append(effect.map_err(contents)?)?;
        }
        refill_copies(&mut open, &core, refilled)?;
        let home = lost_found(&open, work);
        let found = unowned
            .into_iter()
            .filter_map(|(data_id, objects)| file_of(map, *data_id, objects));
        adopt_files((spec, &mut open), &core, home, found)?;
        settle_junctions(&mut open, &core, junctions, &work.listed)?;
        changes += open.close()?;
    }
    Ok(changes)
}

/// A file, and its objects that are filled again, with their blocks.
type RefilledFile<'a> = (&'a (Ino, DataId), &'a Vec<(Column, u64)>);

/// Notes copies as missing. Those that a layout has no room for, or that are needed, are left.
fn refill_copies(
    open: &mut Open<'_>,
    core: &MetaShard,
    refilled: Vec<RefilledFile<'_>>,
) -> Result<(), OfflineError> {
    for (file, copies) in refilled {
        match core.refill_copies(&open.engine, open.now, *file, copies) {
            Ok(effect) => open.append(effect)?,
            Err(ErrorCode::Io | ErrorCode::NoSpace | ErrorCode::NotReady) => {}
            Err(code) => {
                let dir = open.spec.dir.clone();
                return Err(OfflineError::Contents { dir, code });
            }
        }
    }
    Ok(())
}

/// Makes files of bytes without inodes, in `home` or in a new lost+found.
fn adopt_files(
    (spec, open): (&StoreSpec, &mut Open<'_>),
    core: &MetaShard,
    mut home: Option<Ino>,
    found: impl Iterator<Item = AdoptedFile>,
) -> Result<(), OfflineError> {
    let contents = |code| OfflineError::Contents {
        dir: spec.dir.clone(),
        code,
    };
    for file in found {
        let dir = match home {
            Some(dir) => dir,
            None => {
                let made = core.make_lost_found(&open.engine, open.now);
                let (ino, effect) = made.map_err(contents)?;
                open.append(effect)?;
                *home.insert(ino)
            }
        };
        let effect = core.adopt(&open.engine, open.now, dir, &file);
        open.append(effect.map_err(contents)?)?;
    }
    Ok(())
}

/// The shard that makes a file of bytes without an inode: the shard that gave the data id, where a
/// layout can be guessed.
fn adopter(map: &ZoneMap, data_id: DataId, objects: &[UnownedObject]) -> Option<ShardId> {
    objects::guess_layout(map, data_id, objects)?;
    let owner = map.shard_of(data_id.partition());
    owner.filter(|_| data_id.is_valid()).map(|shard| shard.id)
}

fn file_of(map: &ZoneMap, data_id: DataId, objects: &[UnownedObject]) -> Option<AdoptedFile> {
    let (layout, size) = objects::guess_layout(map, data_id, objects)?;
    let columns = layout
        .components
        .first()
        .map_or(1, |component| component.count);
    let guess = if columns > 1 { "-unit-guessed" } else { "" };
    let text = format!("data-{}-{}{guess}", data_id.partition(), data_id.sequence());
    Some(AdoptedFile {
        data_id,
        name: Name::new(text.as_bytes()).ok()?,
        layout,
        size,
        allocated: objects
            .iter()
            .map(|object| object.blocks.saturating_mul(BLOCK))
            .sum(),
        truncate_seq: objects
            .iter()
            .map(|object| object.truncate_seq)
            .max()
            .unwrap_or(0),
    })
}

/// Makes the root, the junctions and the first-level directories agree: entries one by one, then
/// the junctions. After an interruption the next pass finds the rest.
fn settle_junctions(
    open: &mut Open<'_>,
    core: &MetaShard,
    mismatches: &[Mismatch],
    listed: &[ListedJunction],
) -> Result<(), OfflineError> {
    let contents = |dir: &std::path::Path, code| OfflineError::Contents {
        dir: dir.to_owned(),
        code,
    };
    if mismatches.is_empty() {
        return Ok(());
    }
    let whole = listed.iter().filter(|of| of.is_whole);
    let whole = whole.map(|of| (of.junction.ino, of.junction.clone()));
    let mut wanted: BTreeMap<Ino, Junction> = whole.collect();
    let mut taken: BTreeMap<String, u32> = BTreeMap::new();
    for mismatch in mismatches {
        junctions::settle(&mut wanted, mismatch);
        let mut changes: Vec<KvChange> = Vec::new();
        match mismatch {
            Mismatch::NoDirectory { cookie, ino, .. } => {
                let broken = zonal_meta::check::Broken::LeadsNowhere {
                    dir: Ino::ROOT,
                    cookie: *cookie,
                    ino: *ino,
                };
                let removed = core.repair(&open.engine, open.now, None, &|_dir| false, &broken);
                changes = removed.map_err(|code| contents(&open.spec.dir, code))?;
            }
            Mismatch::NoEntry { ino, zone } => {
                let base = lost_found_name(*zone);
                let mut added = None;
                for _ in 0..1024 {
                    let turn = taken.entry(base.clone()).or_insert(0);
                    let text = match *turn {
                        0 => base.clone(),
                        turn => format!("{base}.{turn}"),
                    };
                    *turn += 1;
                    let Ok(name) = Name::new(text.as_bytes()) else {
                        break;
                    };
                    if let Ok(effect) = core.add_first_level(&open.engine, open.now, &name, *ino) {
                        added = Some((text, effect));
                        break;
                    }
                }
                if let Some((name, effect)) = added {
                    changes = effect;
                    let (ino, zone) = (*ino, *zone);
                    let mismatch = Mismatch::Map { name, ino, zone };
                    junctions::settle(&mut wanted, &mismatch);
                }
            }
            Mismatch::Map { .. } | Mismatch::Extra { .. } => {}
        }
        open.append(changes)?;
    }
    let wanted: Vec<Junction> = wanted.into_values().collect();
    let anew = zonal_zonemap::junctions::anew(&open.engine, &wanted);
    let anew = anew.map_err(|code| contents(&open.spec.dir, code))?;
    for some in anew.chunks(CHANGES_AT_ONCE) {
        open.append(some.to_vec())?;
    }
    Ok(())
}
