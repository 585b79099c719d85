//! Events of shards: one thread per shard polls them. The listener carries them out *before* the
//! thread acknowledges.

use super::{Listener, Watch, lock};
use crate::block_on::block_on;
use crate::transport::RealNet;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use zonal_client::{Cancellation, ClientCall, Link, RequeuedLock};
use zonal_types::{Ino, ShardId};
use zonal_wire::Event;

/// Pause after an unanswered poll.
const POLL_PAUSE: Duration = Duration::from_millis(200);

/// Starts a thread for each shard without one; a failed start is repeated with the next session.
pub(super) fn watch_new(
    watched: &mut BTreeSet<ShardId>,
    shards: impl Iterator<Item = ShardId>,
    mut start: impl FnMut(ShardId) -> std::io::Result<()>,
) {
    for shard in shards {
        if watched.contains(&shard) {
            continue;
        }
        match start(shard) {
            Ok(()) => drop(watched.insert(shard)),
            Err(error) => tracing::error!(%shard, %error, "no thread for the events of a shard"),
        }
    }
}

/// Starts the thread of a shard. A mount's threads end with the process, because a shard may hold a
/// poll for long. See [`super::Background::end_watches`].
pub(super) fn start_watch<L: Listener>(
    listener: &Arc<L>,
    shard: ShardId,
) -> std::io::Result<Watch> {
    let (listener, cancellation) = (listener.clone(), Cancellation::default());
    let given_up = cancellation.clone();
    let thread = std::thread::Builder::new()
        .name(format!("events-{shard}"))
        .spawn(move || watch(&*listener, shard, &given_up))?;
    Ok(Watch {
        cancellation,
        thread,
    })
}

/// Polls one shard's events while it has a session.
fn watch(listener: &impl Listener, shard: ShardId, given_up: &Cancellation) {
    let link = listener.client().link_to(shard);
    // Requests that wait may have moved here with their subtree.
    let mut are_locks_queued = false;
    while !listener.signal().are_watches_ended() {
        let call = listener.client().background_until(given_up);
        let wait_ms = match are_locks_queued {
            true => call.poll_wait_ms(&link),
            false => 0,
        };
        match block_on(call.poll_events(&link, wait_ms)) {
            Ok(polled) if polled.is_quiet() && are_locks_queued => {
                if block_on(call.leave_idle(&link)) && end_watch(listener, &link, shard) {
                    return;
                }
            }
            Ok(polled) => {
                let dirs = polled
                    .events
                    .iter()
                    .map(|event| carry_out(listener, &call, event));
                let dirs: Vec<Ino> = dirs.collect::<Vec<_>>().concat();
                // All events have begun; the next poll acknowledges them together.
                if !listener.settle(&dirs) {
                    tracing::debug!("names were not expired before their leases ended");
                }
                if polled.restarted || !are_locks_queued {
                    are_locks_queued = queue_locks_again(listener, &call, shard);
                }
            }
            Err(_told_already) if listener.signal().are_watches_ended() => {}
            Err(_told_already) => std::thread::sleep(POLL_PAUSE),
        }
    }
}

/// Ends the watch of a shard, unless its session was opened again meanwhile. The next opening
/// starts another watch.
fn end_watch(listener: &impl Listener, link: &Link, shard: ShardId) -> bool {
    let mut watched = lock(&listener.signal().watched);
    let is_over = !link.is_open();
    if is_over {
        watched.remove(&shard);
    }
    is_over
}

/// Requeues locks that a restarted shard has forgotten; false where it did not answer.
fn queue_locks_again(
    listener: &impl Listener,
    call: &ClientCall<'_, RealNet>,
    shard: ShardId,
) -> bool {
    let (over, are_all_queued) = block_on(call.queue_locks_again(shard));
    for queued in over {
        match queued {
            RequeuedLock::Granted { ino, waiter } => listener.lock_was_granted(call, ino, waiter),
            RequeuedLock::Refused { waiter, code } => listener.lock_was_refused(waiter, code),
        }
    }
    are_all_queued
}

/// Carries out an event. Returns the directories for which the acknowledgement waits.
fn carry_out(listener: &impl Listener, call: &ClientCall<'_, RealNet>, event: &Event) -> Vec<Ino> {
    let dirs = listener.carry_out(event);
    match event {
        Event::LockGranted { ino, waiter } => listener.lock_was_granted(call, *ino, *waiter),
        Event::EndRecalled { .. } => listener.signal().return_ends(),
        // Carried out by the listener; of a lease that this client never holds; carried out by the
        // core.
        Event::Invalidate { .. } | Event::RecallLease { .. } | Event::FileTruncated { .. } => {}
    }
    dirs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_joins_later_is_watched_once() {
        let mut watched = BTreeSet::new();
        let mut started = Vec::new();
        let mut fails = true;
        for shards in 1..4 {
            watch_new(&mut watched, (0..shards).map(ShardId), |shard| {
                if shard.0 == 1 && std::mem::take(&mut fails) {
                    return Err(std::io::ErrorKind::OutOfMemory.into());
                }
                started.push(shard.0);
                Ok(())
            });
        }
        assert_eq!(started, [0, 1, 2]);
    }
}
