//! `zonal target remove`: removes a target from the cell that holds nothing and that no file names.
//!
//! A stripe set never changes. So a target is removed together with the sets that contain it, and
//! only if no layout names one of these sets:
//!
//! 1. Check that the target lists no object, and that no layout in any shard names one of the sets.
//!    Up to here nothing is changed.
//! 2. Give the zone a set without the target, which its new files use from then on.
//! 3. Search all shards again, each by a snapshot taken after the shard adopted that map. It shows
//!    files made in between, and later files cannot use the old sets. If one is found, new files
//!    get the target back and the command fails; with `--retire` they do not.
//! 4. Check that the target still lists no object. The map drops target and sets, and the manager
//!    notes the store as removed for good.
//!
//! If the command is killed between 2 and 4, new files do without the target; running it again
//! completes the removal.

use crate::backup::{ShardBackup, fix_all};
use crate::cell::connection::CellHandle;
use crate::console;
use crate::exit::{FAILED, Failure, REFUSED, with_causes};
use crate::transfer::{ObjectPaths, ObjectSource, RunningTarget};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use zonal_basics::byte_size;
use zonal_meta::stripe_set_references::layout_of;
use zonal_net::NetError;
use zonal_types::{Blob, Codec, ErrorCode, Ino, StripeSetId, TargetId};
use zonal_wire::{ManagerReply, ManagerRequest, StorageReply, StorageRequest};
use zonal_zonemap::{MapEdit, TargetState, ZoneMap};

/// Most files that the error names.
const SHOWN: usize = 5;
/// Time for shards to adopt a new map.
const ADOPTED_WITHIN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(100);
/// Most attempts of an edit beside moves, each of which changes the map.
const EDIT_ATTEMPTS: u32 = 10;

/// Removes a target from the cell with this map. With `retire`, new files do without it even if it
/// cannot be removed yet.
pub fn remove(
    cell: &CellHandle,
    map: &ZoneMap,
    target: TargetId,
    retire: bool,
) -> anyhow::Result<()> {
    if map.target_state(target) == Some(TargetState::Drained) {
        // The manager has seen that no file needs it.
        edit_map(cell, map, MapEdit::RemoveTarget { target })?;
        return Ok(());
    }
    let remote = RunningTarget::new(cell, map, target)?;
    let sets = sets_of(map, target);
    let is_retired = map.target(target).map(|target| target.state) == Some(TargetState::Offline);
    if !retire && !is_retired {
        refuse_objects(remote, target)?;
        refuse_files(cell, target, &named_in(cell, map, &sets)?)?;
    }
    let use_it = |map: &ZoneMap, state| edit_map(cell, map, MapEdit::UseTarget { target, state });
    let retired = use_it(map, TargetState::Offline)?;
    let checked = named_in(cell, &retired, &sets)
        .and_then(|found| refuse_files(cell, target, &found))
        .and_then(|()| refuse_objects(RunningTarget::new(cell, &retired, target)?, target));
    if let Err(error) = checked {
        let kept = match retire || is_retired {
            true => None,
            false => cell
                .map()
                .and_then(|map| use_it(&map, TargetState::Serving))
                .err(),
        };
        if let Some(failed) = &kept {
            console::note(format_args!("zonal: {}", with_causes(failed.as_ref())));
        }
        if retire || is_retired || kept.is_some() {
            console::note(format_args!(
                "zonal: new files do without target {target} from now on"
            ));
        }
        return Err(error);
    }
    // Nodes may have joined in between; only this command changes sets and targets.
    let mut last = retired;
    loop {
        match edit_map(cell, &last, MapEdit::RemoveTarget { target }) {
            Ok(_removed) => return Ok(()),
            Err(error) => {
                let now = cell.map()?;
                if now.version == last.version || sets_of(&now, target) != sets {
                    return Err(error);
                }
                last = now;
            }
        }
    }
}

/// The objects and files that use a target, for a preview.
pub struct TargetUse {
    target: TargetId,
    /// Objects and used bytes; `None`: the target does not answer.
    held: Option<(u64, u64)>,
    files: u64,
}

impl TargetUse {
    /// Asks the target and all shards; nothing is changed.
    pub fn of(cell: &CellHandle, map: &ZoneMap, target: TargetId) -> anyhow::Result<Self> {
        let remote = RunningTarget::new(cell, map, target)?;
        let held = match remote.must(&StorageRequest::StatFs { target }, &[]) {
            Ok(StorageReply::StatFs {
                total,
                free,
                objects,
            }) => Some((objects, total.saturating_sub(free))),
            Ok(other) => {
                let text = format!("target {target} answers {}", other.name());
                return Err(Failure::new(FAILED, text).into());
            }
            Err(error) if is_away(&error) => None,
            Err(error) => return Err(error),
        };
        let (files, _) = named_in(cell, map, &sets_of(map, target))?;
        Ok(Self {
            target,
            held,
            files,
        })
    }

    /// Describes the removal of the target; `rate` in bytes a second.
    pub fn lines(&self, rate: u64) -> Vec<String> {
        let target = self.target;
        let mut lines = vec![match self.held {
            Some((0, _)) => format!("target {target} holds no object: nothing moves"),
            Some((objects, bytes)) => format!(
                "target {target} holds {objects} objects, {} used: to move, {} s at {} a second",
                byte_size::rounded(bytes),
                bytes.div_ceil(rate),
                byte_size::rounded(rate)
            ),
            None => format!("target {target} does not answer: its objects are given up"),
        }];
        let has_objects = self.held.is_some_and(|(objects, _)| objects > 0);
        if self.files > 0 || has_objects {
            lines.push(format!(
                "it would be refused: {} files are laid out over stripe sets with target {target}",
                self.files
            ));
        }
        lines
    }
}

/// Sets with a slot that has, or had, the target.
fn sets_of(map: &ZoneMap, target: TargetId) -> BTreeSet<StripeSetId> {
    let sets = map.sets.iter().filter(|set| {
        let mut slots = set.slots.iter();
        slots.any(|slot| slot.target == target || slot.previous == Some(target))
    });
    sets.map(|set| set.id).collect()
}

/// Changes the map, where it is still as it is known here. A newer map in which only partitions
/// differ, as moves change them, is taken in its place.
pub fn edit_map(cell: &CellHandle, map: &ZoneMap, edit: MapEdit) -> anyhow::Result<ZoneMap> {
    edit_map_at_once(cell, map, &[edit])
}

/// As [`edit_map`], all edits or none.
pub fn edit_map_at_once(
    cell: &CellHandle,
    map: &ZoneMap,
    edits: &[MapEdit],
) -> anyhow::Result<ZoneMap> {
    edit_map_as_planned(cell, map, edits)?.map_err(|refusal| outdated(&refusal))
}

/// As [`edit_map_at_once`]; the inner error is the refusal of a plan that is outdated.
pub fn edit_map_as_planned(
    cell: &CellHandle,
    map: &ZoneMap,
    edits: &[MapEdit],
) -> anyhow::Result<Result<ZoneMap, String>> {
    let edits = Blob(edits.to_vec().to_bytes());
    let mut expected = map.version;
    for _attempt in 0..EDIT_ATTEMPTS {
        let request = ManagerRequest::Edit {
            expected,
            edits: edits.clone(),
        };
        let refusal = match cell.ask_manager(&request)? {
            // The map of this version or a newer one.
            ManagerReply::At { .. } => return Ok(Ok(cell.map()?)),
            ManagerReply::Failed { code, detail } if code.0 == ErrorCode::StaleEpoch => detail,
            ManagerReply::Failed { detail, .. } => {
                let text = format!("the manager refuses: {detail}");
                return Err(Failure::new(REFUSED, text).into());
            }
            other => {
                let text = format!("the manager answers {other:?}");
                return Err(Failure::new(FAILED, text).into());
            }
        };
        let now = cell.map()?;
        if !is_same_cell(map, &now) {
            return Ok(Err(refusal));
        }
        expected = now.version;
    }
    Ok(Err("the map changes all the time".to_owned()))
}

/// The failure of a plan that is outdated.
pub fn outdated(detail: &str) -> anyhow::Error {
    Failure::new(REFUSED, format!("the manager refuses: {detail}"))
        .hint("run the command again: it plans by the newest map")
        .into()
}

/// Whether two maps have the same zones, nodes, targets, stripe sets and shards.
fn is_same_cell(one: &ZoneMap, other: &ZoneMap) -> bool {
    one.nodes == other.nodes
        && one.targets == other.targets
        && one.sets == other.sets
        && one.shards == other.shards
        && one.zones == other.zones
}

/// Fails if the target holds objects. An unreachable target cannot be asked; then the search of the
/// layouts has to suffice.
fn refuse_objects(mut remote: RunningTarget<'_>, target: TargetId) -> anyhow::Result<()> {
    let listed = match remote.list(None) {
        Ok((listed, _)) => listed,
        Err(error) if is_away(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    match listed.first() {
        None => Ok(()),
        Some(first) => {
            let text = format!(
                "target {target} holds objects, the first is {}.{}",
                first.data_id, first.column
            );
            let hint = format!("`zonal target ls --target {target} --paths` names their files");
            Err(Failure::new(REFUSED, text).hint(hint).into())
        }
    }
}

fn is_away(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let net = cause.downcast_ref::<NetError>();
        net.is_some_and(|net| net.is_retryable() || matches!(net, NetError::WrongNode { .. }))
    })
}

/// Files, and files being removed, whose layout names one of the sets: their number and the first
/// ones. Each shard uses `map` or a newer one.
fn named_in(
    cell: &CellHandle,
    map: &ZoneMap,
    sets: &BTreeSet<StripeSetId>,
) -> anyhow::Result<(u64, Vec<Ino>)> {
    let end = Instant::now() + ADOPTED_WITHIN;
    let snapshots = loop {
        let (_, snapshots) = fix_all(cell)?;
        let is_late = |snapshot: &&ShardBackup<'_>| snapshot.start.map_version < map.version;
        let Some(late) = snapshots.iter().find(is_late) else {
            break snapshots;
        };
        if Instant::now() >= end {
            let text = format!("shard {} does not take the zone map over", late.start.shard);
            return Err(Failure::new(FAILED, text).into());
        }
        drop(snapshots);
        std::thread::sleep(PAUSE);
    };
    let (mut count, mut first) = (0, Vec::new());
    for snapshot in &snapshots {
        let mut after = Blob(Vec::new());
        loop {
            let (entries, is_end) = snapshot.read(&after)?;
            for (key, value) in &entries {
                let shard = snapshot.start.shard;
                let layout = layout_of(&key.0, &value.0);
                let layout = layout.map_err(|code| {
                    anyhow::anyhow!("an entry of shard {shard} cannot be understood: {code}")
                })?;
                if let Some((ino, layout)) = layout
                    && layout
                        .components
                        .iter()
                        .any(|part| sets.contains(&part.set))
                {
                    count += 1;
                    first.extend((first.len() < SHOWN).then_some(ino));
                }
            }
            match entries.into_iter().next_back() {
                Some((last, _)) if !is_end => after = last,
                _ => break,
            }
        }
    }
    Ok((count, first))
}

fn refuse_files(
    cell: &CellHandle,
    target: TargetId,
    (count, first): &(u64, Vec<Ino>),
) -> anyhow::Result<()> {
    if *count == 0 {
        return Ok(());
    }
    let mut paths = Vec::new();
    if let Ok(mut names) = ObjectPaths::new(cell) {
        let found = first.iter().map(|ino| names.path_of(*ino));
        paths.extend(found.flatten());
        // Best effort: an unclosed session ends by itself.
        let _ = names.close();
    }
    let named = if paths.is_empty() {
        String::new()
    } else {
        format!(
            ": {}{}",
            paths.join(", "),
            if *count > paths.len() as u64 {
                ", ..."
            } else {
                ""
            }
        )
    };
    let text = format!(
        "{count} files are laid out over stripe sets with target {target}, with bytes on it or not{named}"
    );
    Err(Failure::new(REFUSED, text)
        .hint("with --retire new files do without the target: then copy these files, remove the originals, and run this again")
        .into())
}
