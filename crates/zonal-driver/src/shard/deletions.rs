//! Deletions: pushes the objects of removed files to their targets until these have confirmed them.

use std::collections::{BTreeMap, BTreeSet};

use zonal_basics::BackOff;
use zonal_layout::object_of;
use zonal_meta::Deletion;
use zonal_types::{Column, DataId, Instant, TargetId};
use zonal_wire::{StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

use super::host::ShardNote;
use super::waits::Key;
use super::{ShardDriver, ShardHost, State};
use crate::joined_futures::either;

/// Layouts pushed at a time.
const LAYOUTS_AT_ONCE: usize = 512;
/// Objects in one request.
const OBJECTS_AT_ONCE: usize = 4096;

type Objects = BTreeMap<TargetId, Vec<(DataId, Column)>>;

/// The next round of work.
struct Work {
    deletions: Vec<Deletion>,
    settles: bool,
}

impl<H: ShardHost> ShardDriver<H> {
    /// Pushes deletions, and settles directories without an entry, until [`Self::stop`] or a
    /// failure of the store.
    pub async fn push_deletions(&self) {
        let mut backoff = BackOff::new(self.pace.deletions_ms);
        let mut pause = 0;
        let mut look_again = None;
        while let Some(work) = self.next_work(pause, &mut look_again).await {
            if work.settles {
                self.settle_detached().await;
            }
            if work.deletions.is_empty() {
                continue;
            }
            // A loss of power must not bring back a name whose bytes are deleted.
            if self.host.flush().await.is_err() {
                return;
            }
            let done = self.push(&work.deletions).await;
            if done.len() == work.deletions.len() {
                backoff.reset();
                pause = 0;
            } else {
                pause = backoff.next_ms();
            }
            if done.is_empty() {
                continue;
            }
            if !self.host.has_reserve() {
                if self.host.check_health().is_err() {
                    return;
                }
                // The next round pushes them again, which changes nothing at the targets.
                backoff.lengthen();
                pause = backoff.next_ms();
                continue;
            }
            let mut state = self.lock();
            let changes = state.shard.deletion_done(done);
            if self.log(&mut state, changes, Vec::new()).is_err() {
                return;
            }
        }
    }

    /// Waits for work; `None` once the driver stops. After a failure it waits for at least `pause`
    /// ms. `look_again`: when to retry deletions that could not be read.
    async fn next_work(&self, pause: u64, look_again: &mut Option<Instant>) -> Option<Work> {
        let mut not_before = self.host.now().instant.plus_ms(pause);
        while !self.is_stopping() {
            let now = self.host.now().instant;
            let (wait, wakes_at) = {
                let mut state = self.lock();
                let settles = state.detached_at.is_some_and(|at| at <= now);
                if settles {
                    state.detached_at = None;
                }
                if look_again.is_some_and(|at| at <= now) {
                    *look_again = None;
                    state.has_deletions = true;
                }
                let deletions = if state.has_deletions && now >= not_before {
                    self.take_deletions(&mut state, look_again)
                } else {
                    Vec::new()
                };
                if settles || !deletions.is_empty() {
                    return Some(Work { deletions, settles });
                }
                if let Some(at) = state.shard.next_deletion() {
                    // Inodes removed a moment ago are not deleted yet: look again when their time
                    // is over.
                    state.has_deletions = true;
                    not_before = not_before.max(at);
                }
                let retry = state.has_deletions.then_some(not_before);
                let times = [retry, *look_again, state.detached_at];
                let wakes_at = times.into_iter().flatten().min();
                (self.waits.register(Key::Deletions), wakes_at)
            };
            match wakes_at {
                None => wait.await,
                // At least 1 ms later, so that work that is not ready yet does not spin.
                Some(at) => either(wait, self.host.sleep_until(at.max(now.plus_ms(1)))).await,
            }
        }
        None
    }

    fn take_deletions(&self, state: &mut State, look_again: &mut Option<Instant>) -> Vec<Deletion> {
        let now = self.host.now().instant;
        let found = state
            .shard
            .deletions(self.host.store(), now, LAYOUTS_AT_ONCE);
        match found {
            Ok(found) => {
                state.has_deletions = !found.is_empty();
                found
            }
            Err(code) => {
                if look_again.is_none() {
                    self.host.note(ShardNote::UnreadDeletions(code));
                    *look_again = Some(now.plus_ms(self.pace.deletions_ms.1));
                }
                state.has_deletions = false;
                Vec::new()
            }
        }
    }

    /// Sends deletions to the targets; returns the keys of those that all targets confirmed.
    async fn push(&self, deletions: &[Deletion]) -> Vec<Vec<u8>> {
        let map = self.host.map();
        let mut objects = Objects::new();
        let wanted: Vec<_> = deletions
            .iter()
            .map(|deletion| objects_of(&map, deletion, &mut objects))
            .collect();
        let requests: Vec<_> = requests_for(objects).collect();
        let targets: Vec<TargetId> = requests.iter().map(|(target, _)| *target).collect();
        let replies = self.host.call_targets(requests).await;
        let failed = targets.iter().zip(&replies);
        let failed = failed.filter(|(_, reply)| **reply != Some(StorageReply::Done));
        let failed: BTreeSet<TargetId> = failed.map(|(target, _)| *target).collect();
        if !failed.is_empty() || wanted.contains(&None) {
            self.host.seek_map(map.version).await;
        }
        let is_confirmed = |targets: &Option<BTreeSet<TargetId>>| {
            targets
                .as_ref()
                .is_some_and(|targets| targets.is_disjoint(&failed))
        };
        deletions
            .iter()
            .zip(&wanted)
            .filter(|(_, targets)| is_confirmed(targets))
            .map(|(deletion, _)| deletion.key.clone())
            .collect()
    }
}

/// Adds the objects of a deletion to the lists of their targets and returns these targets. `None`
/// where the map does not know the stripe set.
fn objects_of(
    map: &ZoneMap,
    deletion: &Deletion,
    objects: &mut Objects,
) -> Option<BTreeSet<TargetId>> {
    let mut targets = BTreeSet::new();
    let mut add = |target: TargetId, object: (DataId, Column)| {
        // A target that left has nothing that anybody needs.
        if !map.is_gone_for_good(target) {
            targets.insert(target);
            objects.entry(target).or_default().push(object);
        }
    };
    for component in &deletion.layout.components {
        for place in zonal_layout::places(component) {
            let target = map.slot_of_place(component, place)?.slot.target;
            add(target, (component.data_id, object_of(component, place)));
        }
        // Targets may have something of objects that moved.
        for relocation in zonal_layout::leftovers(component) {
            let target = map.slot_of_relocation(relocation)?.target;
            add(target, (component.data_id, relocation.object));
        }
    }
    Some(targets)
}

fn requests_for(objects: Objects) -> impl Iterator<Item = (TargetId, StorageRequest)> {
    objects.into_iter().flat_map(|(target, mut objects)| {
        objects.sort_unstable();
        objects.dedup();
        let chunks = objects.chunks(OBJECTS_AT_ONCE);
        let requests = chunks.map(|objects| StorageRequest::Delete {
            target,
            objects: objects.to_vec(),
        });
        let requests: Vec<_> = requests.map(|request| (target, request)).collect();
        requests
    })
}
