//! Events of shards: one thread a shard polls them and has the kernel drop what is old *before* it acknowledges. Pages that the kernel keeps
//! locked are dropped beside it: it waits for them for a moment only. Names are expired beside it, too: how long it waits for that is said in [`crate::expiries`].

use crate::block::block_on;
use crate::fs::ZonalFs;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use zonal_client::{POLL_WAIT_MS, QueuedAgain};
use zonal_types::{Ino, ShardId};
use zonal_wire::Event;

/// Pause after a shard did not answer a poll.
const POLL_PAUSE: Duration = Duration::from_millis(200);

/// Starts a thread for each shard that has none; one that cannot be made is tried again with the next map.
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

/// The thread ends with the process: its poll may be under way for as long as a shard holds one.
pub(super) fn start_watch(fs: &Arc<ZonalFs>, shard: ShardId) -> std::io::Result<()> {
    let fs = fs.clone();
    std::thread::Builder::new()
        .name(format!("events-{shard}"))
        .spawn(move || watch(&fs, shard))
        .map(drop)
}

/// Polls one shard's events for as long as the process lives.
fn watch(fs: &ZonalFs, shard: ShardId) {
    let link = fs.client.link_to(shard);
    let mut are_locks_queued = true;
    while !fs.signal.is_ended() {
        let wait_ms = if are_locks_queued { POLL_WAIT_MS } else { 0 };
        match block_on(fs.client.poll_events(&link, wait_ms)) {
            Ok(polled) => {
                let dirs = polled.events.iter().map(|event| carry_out(fs, event));
                let dirs: Vec<Ino> = dirs.collect::<Vec<_>>().concat();
                // All were begun; the next poll acknowledges them together.
                if !fs.settle(&dirs) {
                    tracing::debug!("names could not be expired before their leases were over");
                }
                if polled.restarted || !are_locks_queued {
                    are_locks_queued = queue_locks_again(fs, shard);
                }
            }
            Err(_told_already) => std::thread::sleep(POLL_PAUSE),
        }
    }
}

/// Queues again the locks that a restarted shard has forgotten; false where it did not answer.
fn queue_locks_again(fs: &ZonalFs, shard: ShardId) -> bool {
    let (over, are_all_queued) = block_on(fs.client.queue_locks_again(shard));
    for queued in over {
        match queued {
            QueuedAgain::Granted { ino, waiter } => fs.lock_was_granted(ino, waiter),
            QueuedAgain::Refused { waiter, code } => fs.lock_was_refused(waiter, code),
        }
    }
    are_all_queued
}

/// Returns the directories for which the acknowledgement waits.
fn carry_out(fs: &ZonalFs, event: &Event) -> Vec<Ino> {
    let dirs = fs.drop_named(event);
    match event {
        Event::Invalidate { .. } => fs.listings.carried_out(event),
        Event::LockGranted { ino, waiter } => fs.lock_was_granted(*ino, *waiter),
        Event::EndRecalled { .. } => fs.signal.return_ends(),
        // Of a lease that nobody took; what the core does by itself.
        Event::RecallLease { .. } | Event::FileCut { .. } => {}
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
