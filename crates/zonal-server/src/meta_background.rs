//! What a shard does by itself: housekeeping at its deadlines, deletion of objects at the targets, directories whose
//! entry is not settled; `meta_fences` has the third thread. They sleep until there is something to do; an idle shard wakes nobody.

use crate::clock;
use crate::meta_role::{MetaRole, State, now, wait_timeout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use zonal_meta::Deletion;
use zonal_types::{Column, DataId, Instant, ShardId, TargetId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

/// Least time between two runs of housekeeping.
const TICK_MS: u64 = 20;
/// The same after a failure.
/// Layouts pushed at a time.
const PUSH_LAYOUTS: usize = 512;
/// Objects in one request.
const PUSH_OBJECTS: usize = 4096;
/// First and longest pause after a target that does not answer.
const BACKOFF_MS: (u64, u64) = (500, 60_000);

/// Starts the three threads.
///
/// # Errors
/// Where the system refuses a thread.
pub(crate) fn start(role: &Arc<MetaRole>) -> std::io::Result<[JoinHandle<()>; 3]> {
    let spawn = |name: &str, run: fn(&MetaRole)| {
        let role = Arc::clone(role);
        std::thread::Builder::new()
            .name(name.into())
            .spawn(move || run(&role))
    };
    Ok([
        spawn("housekeeping", housekeep)?,
        spawn("deletions", push)?,
        spawn("fences", crate::meta_fences::push)?,
    ])
}

fn housekeep(role: &MetaRole) {
    let mut earliest = Instant::default();
    let mut state = role.lock();
    while !role.is_stopping() {
        let due = state.shard.poll_deadline().map(|due| due.max(earliest));
        state.sleeps_until = due;
        match due {
            None => {
                let waited = role.housekeeping.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
            Some(due) if due > clock::instant() => {
                state = wait_timeout(&role.housekeeping, state, clock::until(due));
            }
            Some(_) => {
                let ticked = state.shard.tick(&*role.engine, now());
                if let Some(code) = ticked.unread {
                    tracing::error!(%code, "a session has ended, and a removed file that it had open cannot be read: it keeps its space. \
                        Hint: zonal fsck --repair, in the stopped cell");
                }
                if role.log(&mut state, ticked.effect, Vec::new()).is_err() {
                    return;
                }
                role.wake(&state, &ticked.wake, ticked.recheck);
                earliest = clock::instant().plus_ms(TICK_MS);
            }
        }
    }
}

fn push(role: &MetaRole) {
    let mut backoff = 0;
    let mut look_again = None;
    loop {
        let Some((deletions, settle)) = next_work(role, backoff, &mut look_again) else {
            return;
        };
        if settle {
            settle_detached(role);
        }
        if deletions.is_empty() {
            continue;
        }
        // A loss of power must not bring a name back whose bytes are gone.
        if role.sync().is_err() {
            return;
        }
        let (done, complete) = push_deletions(role, &deletions);
        backoff = if complete {
            0
        } else {
            (backoff * 2).clamp(BACKOFF_MS.0, BACKOFF_MS.1)
        };
        if done.is_empty() {
            continue;
        }
        if role.engine.wait_for_room().is_err() {
            if role.engine.failed() {
                return;
            }
            if !role.log_has_reserve() {
                // They are pushed again, which changes nothing at the targets.
                backoff = BACKOFF_MS.1;
                continue;
            }
        }
        let mut state = role.lock();
        let changes = state.shard.deletion_done(done);
        if role.log(&mut state, changes, Vec::new()).is_err() {
            return;
        }
    }
}

/// Sleeps until there is something; `None` at the end. After a failure (`backoff` ms) it sleeps that long first.
/// `look_again`: when to try what could not be read.
fn next_work(
    role: &MetaRole,
    backoff: u64,
    look_again: &mut Option<Instant>,
) -> Option<(Vec<Deletion>, bool)> {
    let mut not_before = clock::instant().plus_ms(backoff);
    let mut state = role.lock();
    while !role.is_stopping() {
        let now = clock::instant();
        let settle = state.detached_at.is_some_and(|at| at <= now);
        if settle {
            state.detached_at = None;
        }
        if look_again.is_some_and(|at| at <= now) {
            *look_again = None;
            state.has_deletions = true;
        }
        let deletions = if state.has_deletions && now >= not_before {
            take_deletions(role, &mut state, look_again)
        } else {
            Vec::new()
        };
        if settle || !deletions.is_empty() {
            return Some((deletions, settle));
        }
        if let Some(at) = state.shard.next_deletion() {
            // What was removed a moment ago waits; it is looked for when that is over.
            state.has_deletions = true;
            not_before = not_before.max(at);
        }
        let retry = state.has_deletions.then_some(not_before);
        let times = [retry, *look_again, state.detached_at];
        state = match times.into_iter().flatten().min() {
            None => {
                let waited = role.pushing.wait(state);
                waited.unwrap_or_else(PoisonError::into_inner)
            }
            Some(at) => {
                let left = clock::until(at).max(Duration::from_millis(1));
                wait_timeout(&role.pushing, state, left)
            }
        };
    }
    None
}

fn take_deletions(
    role: &MetaRole,
    state: &mut MutexGuard<'_, State>,
    look_again: &mut Option<Instant>,
) -> Vec<Deletion> {
    match state
        .shard
        .deletions(&*role.engine, clock::instant(), PUSH_LAYOUTS)
    {
        Ok(found) => {
            state.has_deletions = !found.is_empty();
            found
        }
        Err(code) => {
            if look_again.is_none() {
                tracing::error!(%code, "deletions cannot be read");
                *look_again = Some(clock::instant().plus_ms(BACKOFF_MS.1));
            }
            state.has_deletions = false;
            Vec::new()
        }
    }
}

type Objects = BTreeMap<TargetId, Vec<(DataId, Column)>>;

/// Every target that may hold a part of the layout, with its objects; `None` where the map does not know the set.
fn objects_of(
    map: &ZoneMap,
    deletion: &Deletion,
    objects: &mut Objects,
) -> Option<BTreeSet<TargetId>> {
    let mut targets = BTreeSet::new();
    for component in &deletion.layout.components {
        let slots = &map.set(component.set)?.slots;
        for column in 0..component.count {
            let index =
                (usize::from(component.start_column.0) + usize::from(column)) % slots.len().max(1);
            let target = slots.get(index)?.target;
            targets.insert(target);
            let object = (component.data_id, Column(column));
            objects.entry(target).or_default().push(object);
        }
    }
    Some(targets)
}

/// Sends deletions to the targets; gives the keys of those that all their targets confirmed.
fn push_deletions(role: &MetaRole, deletions: &[Deletion]) -> (Vec<Vec<u8>>, bool) {
    let map = role.map.current();
    let mut objects = Objects::new();
    let wanted: Vec<_> = deletions
        .iter()
        .map(|deletion| objects_of(&map, deletion, &mut objects))
        .collect();
    let mut failed = BTreeSet::new();
    for (target, objects) in objects {
        if !push_to(role, &map, target, &objects) {
            failed.insert(target);
        }
    }
    if !failed.is_empty() || wanted.contains(&None) {
        role.map.refresh();
    }
    let done: Vec<Vec<u8>> = deletions
        .iter()
        .zip(&wanted)
        .filter(|(_, targets)| {
            targets
                .as_ref()
                .is_some_and(|targets| targets.is_disjoint(&failed))
        })
        .map(|(deletion, _)| deletion.key.clone())
        .collect();
    let complete = done.len() == deletions.len();
    (done, complete)
}

fn push_to(role: &MetaRole, map: &ZoneMap, target: TargetId, objects: &[(DataId, Column)]) -> bool {
    let Some(node) = map.target(target).map(|target| target.node) else {
        return false;
    };
    objects.chunks(PUSH_OBJECTS).all(|objects| {
        let request = StorageRequest::Delete {
            target,
            objects: objects.to_vec(),
        };
        match role.peers.storage(&role.map, node, &request) {
            Ok(StorageReply::Done) => true,
            Ok(other) => {
                tracing::warn!(target_id = target.0, reply = ?other, "a deletion is refused");
                false
            }
            Err(error) => {
                tracing::warn!(target_id = target.0, %error, "a deletion waits");
                false
            }
        }
    })
}

/// Directories that a crash left between the two steps of making or removing them.
fn settle_detached(role: &MetaRole) {
    let found = {
        let state = role.lock();
        state.shard.detached(&*role.engine, now(), PUSH_LAYOUTS)
    };
    let Ok(found) = found else {
        tracing::error!("directories without an entry cannot be read");
        return;
    };
    for directory in found {
        let ino = directory.ino;
        let request = match role
            .peers
            .shard(&role.map, ShardId(0), &MetaRequest::HasEntry { ino })
        {
            Ok(MetaReply::Yes { yes }) => MetaRequest::SettleDir {
                ino,
                since: directory.since,
                has_entry: yes,
            },
            other => {
                tracing::warn!(%ino, answer = ?other.map_err(|error| error.to_string()), "not settled");
                role.lock().detached_at = Some(clock::instant().plus_ms(BACKOFF_MS.1));
                continue;
            }
        };
        let reply = role.own_request(&request);
        tracing::info!(%ino, request = request.name(), reply = ?reply, "a directory is settled");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::map_cache::MapCache;
    use crate::meta_role::Parts;
    use crate::peers::Peers;
    use zonal_disk::Room;
    use zonal_disk::StoreKind;
    use zonal_meta::{ShardConfig, keys};
    use zonal_net::{Pool, PoolConfig, Role};
    use zonal_testkit::Scratch;
    use zonal_types::{CellId, Codec, Ino, KvChange, Layout, NodeId, ZoneId};
    use zonal_zonemap::MapEdit;

    const CELL: CellId = CellId([7; 16]);

    pub(crate) fn shard(dir: &std::path::Path) -> MetaRole {
        let join = MapEdit::Join {
            node: NodeId(2),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: "127.0.0.1:1".into(),
            shard: Some(ShardId(1)),
            targets: Vec::new(),
        };
        let map = Arc::new(MapCache::here(CELL));
        let edited = ZoneMap::new(CELL).edited(&[join]).unwrap();
        map.publish(Arc::new(edited.unwrap()));
        let own = zonal_net::Identity::new(CELL, Role::Server, NodeId(2), None);
        let pool = Arc::new(Pool::new(own, PoolConfig::default()));
        let parts = Parts {
            config: ShardConfig::new(ShardId(1), ZoneId(1), 1),
            engine: crate::manager_tests::engine(dir, StoreKind::Shard),
            manager: None,
            map,
            peers: Arc::new(Peers::new(pool, CELL)),
        };
        MetaRole::open(parts, true).unwrap()
    }

    #[test]
    fn what_could_not_be_read_is_tried_again_without_another_removal() {
        let scratch = Scratch::new("deletions");
        let role = shard(&scratch);
        let partition = role.map.current().partitions_of(ShardId(1))[0];
        let key = keys::deletion(Ino::new(partition, 5));
        let put = |value: Vec<u8>| {
            let changes = vec![KvChange::put(key.clone(), value)];
            role.engine.append_with(changes, &[], Room::Normal).unwrap();
        };
        put(vec![0xff]);
        let mut look_again = None;
        assert!(take_deletions(&role, &mut role.lock(), &mut look_again).is_empty());
        assert!(look_again.is_some_and(|at| at > clock::instant()));
        put(Layout::default().to_bytes());
        look_again = Some(clock::instant());
        let found = next_work(&role, 0, &mut look_again);
        assert_eq!(found.map(|(found, _settle)| found.len()), Some(1));
        assert_eq!(look_again, None);
    }
}
