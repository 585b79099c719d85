//! Tells targets of clients that are fenced, until each has acknowledged it. The thread sleeps where there is nothing to tell.

use crate::clock;
use crate::meta_role::{MetaRole, wait_timeout};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;
use zonal_types::{Fence, TargetId};
use zonal_wire::{StorageReply, StorageRequest};

/// Pause after a round in which a target did not acknowledge, at first and at most.
const BACKOFF_MS: (u64, u64) = (500, 5_000);
/// Targets that are asked at a time.
const AT_ONCE: usize = 32;

type Fences = BTreeMap<TargetId, Vec<Fence>>;

pub(crate) fn push(role: &MetaRole) {
    let mut backoff = 0;
    while let Some(fences) = next_work(role, backoff) {
        let before: usize = fences.values().map(Vec::len).sum();
        let fences: Vec<_> = fences.into_iter().collect();
        let mut acknowledged = 0;
        for some in fences.chunks(AT_ONCE) {
            acknowledged += push_some(role, some);
        }
        backoff = match acknowledged == before {
            true => 0,
            false => (backoff * 2).clamp(BACKOFF_MS.0, BACKOFF_MS.1),
        };
        if acknowledged < before {
            role.map.refresh();
        }
    }
}

/// Sleeps until there is something to tell, after a failure for `backoff` ms at least; `None` at the end.
fn next_work(role: &MetaRole, backoff: u64) -> Option<Fences> {
    let not_before = clock::instant().plus_ms(backoff);
    let mut state = role.lock();
    while !role.is_stopping() {
        let fences = state.shard.fences();
        if fences.is_empty() {
            let waited = role.fencing.wait(state);
            state = waited.unwrap_or_else(PoisonError::into_inner);
        } else if clock::instant() >= not_before {
            return Some(fences);
        } else {
            let left = clock::until(not_before).max(Duration::from_millis(1));
            state = wait_timeout(&role.fencing, state, left);
        }
    }
    None
}

/// Tells some targets at the same time: how many fences were acknowledged. One that does not answer keeps nobody else waiting.
fn push_some(role: &MetaRole, fences: &[(TargetId, Vec<Fence>)]) -> usize {
    std::thread::scope(|scope| {
        let tell = |(target, fences): &(TargetId, Vec<Fence>)| {
            let is_told = push_to(role, *target, fences);
            if is_told {
                note(role, *target, fences)
            } else {
                0
            }
        };
        let told = fences.iter().map(|of| {
            let thread = std::thread::Builder::new().name("fence".into());
            thread.spawn_scoped(scope, move || tell(of)).ok()
        });
        let told: Vec<_> = told.collect();
        let counts = told.into_iter().flatten().map(|thread| thread.join());
        counts.map(|count| count.unwrap_or(0)).sum()
    })
}

fn push_to(role: &MetaRole, target: TargetId, fences: &[Fence]) -> bool {
    let map = role.map.current();
    let Some(node) = map.target(target).map(|target| target.node) else {
        // Taken out of the cell: it serves nobody.
        return true;
    };
    let request = StorageRequest::Fence {
        target,
        fences: fences.to_vec(),
    };
    match role.peers.storage(&role.map, node, &request) {
        Ok(StorageReply::Done) => true,
        Ok(other) => {
            tracing::warn!(target_id = target.0, reply = ?other, "a fence is refused");
            false
        }
        Err(error) => {
            tracing::warn!(target_id = target.0, %error, "a fence waits");
            false
        }
    }
}

/// The target has acknowledged: sessions that waited for it may end.
fn note(role: &MetaRole, target: TargetId, fences: &[Fence]) -> usize {
    if role.engine.wait_for_room().is_err() && !role.log_has_reserve() {
        return 0;
    }
    let mut state = role.lock();
    let changes = state.shard.fenced(target, fences);
    if role.log(&mut state, changes, Vec::new()).is_err() {
        return 0;
    }
    role.mind_deadline(&state);
    fences.len()
}
