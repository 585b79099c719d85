//! State of a client's locks: held locks, waiting requests, unsettled requests and pending
//! messages.
//!
//! One mutex guards all, so that a grant, a signal and a restart of the shard have some order. A
//! request is held, waits, or is pending withdrawal, and never two of these.
//!
//! *Numbers*: each request has a number that rises and is never used again by this client. A
//! request is *settled* when its caller has its final result, or when the shard has withdrawn it.

use super::lock_table::{LockTable, Owner, owner_of};
use super::releases::PendingRelease;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::Ino;
use zonal_wire::{LockKind, LockRange};

/// A request that may be queued at a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingRequest {
    pub(crate) ino: Ino,
    pub(crate) range: LockRange,
    /// The shard has queued the request and answered it, so a restarted shard needs a new request.
    pub(crate) is_queued: bool,
}

/// All locks of a client.
#[derive(Debug, Default)]
pub(crate) struct LockState {
    /// Held locks, which a restarted shard is told. A lock whose release is in flight is not among
    /// them: the shard may have released it already and granted it to another.
    pub(crate) held: LockTable,
    /// Waiting requests by waiter. A grant moves its range into `held` before its caller acts on
    /// it. So a restarted shard hears of it, whatever became of the reply.
    pub(crate) waiting: BTreeMap<u64, WaitingRequest>,
    /// Waiters of requests that are being requeued, and whether they were withdrawn meanwhile.
    pub(crate) queued_again: BTreeMap<u64, bool>,
    /// Messages for a shard that did not answer, oldest first.
    pub(crate) late: Vec<PendingRelease>,
    unsettled: BTreeMap<(Ino, Owner), BTreeSet<u64>>,
    last_number: u64,
}

impl LockState {
    /// Inodes with locks, requests or pending messages; some come twice.
    pub(crate) fn inos(&self) -> impl Iterator<Item = Ino> {
        let waiting = self.waiting.values().map(|waiting| waiting.ino);
        let late = self.late.iter().map(PendingRelease::ino);
        let unsettled = self.unsettled.keys().map(|(ino, _owner)| *ino);
        self.held.inos().chain(waiting).chain(late).chain(unsettled)
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Begins a request, before it is sent. Returns the number below which the owner's requests are
    /// settled.
    pub(crate) fn begin(&mut self, ino: Ino, range: LockRange, waiter: Option<u64>) -> u64 {
        let owner = owner_of(&range);
        // Sent again, because an earlier boot of the shard gave the answer.
        self.held.forget(ino, owner, range.number);
        if range.whole_file && range.kind == LockKind::Exclusive {
            // A shared flock ends where its conversion begins, as at the shard: another client may
            // hold a lock by the time of a restart.
            let is_shared = |held: &LockRange| held.kind == LockKind::Shared;
            self.held.give_up(ino, owner, (0, u64::MAX), is_shared);
        }
        if let Some(waiter) = waiter {
            let is_queued = false;
            let waiting = WaitingRequest {
                ino,
                range,
                is_queued,
            };
            self.waiting.insert(waiter, waiting);
        }
        let unsettled = self.unsettled.entry((ino, owner)).or_default();
        unsettled.insert(range.number);
        unsettled.first().copied().unwrap_or(range.number)
    }

    /// Marks a request as settled: it will not be withdrawn any more.
    pub(crate) fn settle(&mut self, ino: Ino, range: &LockRange) {
        let key = (ino, owner_of(range));
        if let Some(unsettled) = self.unsettled.get_mut(&key) {
            unsettled.remove(&range.number);
            if unsettled.is_empty() {
                self.unsettled.remove(&key);
            }
        }
    }

    /// Notes a grant in the reply to a request.
    pub(crate) fn granted(&mut self, ino: Ino, range: LockRange, waiter: Option<u64>) {
        if let Some(waiter) = waiter {
            self.waiting.remove(&waiter);
        }
        self.held.hold(ino, range);
    }

    /// Notes the grant of a queued request.
    pub(crate) fn grant(&mut self, waiter: u64) -> Option<WaitingRequest> {
        let granted = self.waiting.remove(&waiter)?;
        self.held.hold(granted.ino, granted.range);
        Some(granted)
    }

    /// Undoes a grant of an earlier boot of the shard: the request waits again.
    pub(crate) fn ungrant(&mut self, waiter: u64, granted: WaitingRequest) {
        let WaitingRequest { ino, range, .. } = granted;
        self.held.forget(ino, owner_of(&range), range.number);
        let is_queued = true;
        self.waiting.insert(
            waiter,
            WaitingRequest {
                is_queued,
                ..granted
            },
        );
    }

    /// Withdraws a request: it neither waits nor is held.
    pub(crate) fn withdraw(&mut self, ino: Ino, range: &LockRange, waiter: Option<u64>) {
        if let Some(waiter) = waiter {
            self.waiting.remove(&waiter);
            if let Some(is_taken_back) = self.queued_again.get_mut(&waiter) {
                *is_taken_back = true;
            }
        }
        self.held.forget(ino, owner_of(range), range.number);
    }
}
