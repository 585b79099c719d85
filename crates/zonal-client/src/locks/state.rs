//! What a client knows of its locks: what is held, what waits, which requests are not over, and
//! what a shard must still hear.
//!
//! One mutex for all, so that a grant, a signal and a restart of the shard meet in some order: a
//! request is held, waits, or is to be taken back, and never two of these.
//!
//! *Numbers*: each request has a number that grows and is never used again by this client. A
//! request is *settled* when its caller has heard of it for good, or when it has been taken back at
//! the shard.

use super::lock_table::{LockTable, Owner, owner_of};
use super::retries::PendingRelease;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::Ino;
use zonal_wire::{LockKind, LockRange};

/// A request that may be queued at a shard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitingRequest {
    pub(super) ino: Ino,
    pub(super) range: LockRange,
    /// The shard said that it is queued: the request itself is over, so a restarted shard must be
    /// asked anew.
    pub(super) is_queued: bool,
}

/// All locks of a client.
#[derive(Debug, Default)]
pub(crate) struct LockState {
    /// A restarted shard is told of them. One whose release is under way is not among them, as the
    /// shard may have released it already, and given it to another.
    pub(crate) held: LockTable,
    /// By waiter. A grant moves its range to what is held before anybody acts on it: a shard that
    /// restarts then hears of it, whatever became of the reply to the request.
    pub(super) waiting: BTreeMap<u64, WaitingRequest>,
    /// Waiters that a restarted shard is being asked for again, and whether they were taken back
    /// meanwhile.
    pub(super) queued_again: BTreeMap<u64, bool>,
    /// What is remembered for a shard that did not answer, oldest first.
    pub(super) late: Vec<PendingRelease>,
    unsettled: BTreeMap<(Ino, Owner), BTreeSet<u64>>,
    last_number: u64,
}

impl LockState {
    /// Inodes with locks, requests for them, or what a shard must hear of them; some twice.
    pub(crate) fn inos(&self) -> impl Iterator<Item = Ino> {
        let waiting = self.waiting.values().map(|waiting| waiting.ino);
        let late = self.late.iter().map(PendingRelease::ino);
        let unsettled = self.unsettled.keys().map(|(ino, _owner)| *ino);
        self.held.inos().chain(waiting).chain(late).chain(unsettled)
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// A request is about to be sent. Returns the number below which those of its owner are
    /// settled.
    pub(super) fn begin(&mut self, ino: Ino, range: LockRange, waiter: Option<u64>) -> u64 {
        let owner = owner_of(&range);
        // Sent again: the answer was that of a former life of the shard.
        self.held.forget(ino, owner, range.number);
        if range.whole_file && range.kind == LockKind::Exclusive {
            // A shared flock ends where its conversion begins, as the shard does it: another may
            // hold one by the time of a restart.
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

    /// Nobody will take the request back any more.
    pub(super) fn settle(&mut self, ino: Ino, range: &LockRange) {
        let key = (ino, owner_of(range));
        if let Some(unsettled) = self.unsettled.get_mut(&key) {
            unsettled.remove(&range.number);
            if unsettled.is_empty() {
                self.unsettled.remove(&key);
            }
        }
    }

    /// The shard granted a request at once.
    pub(super) fn granted(&mut self, ino: Ino, range: LockRange, waiter: Option<u64>) {
        if let Some(waiter) = waiter {
            self.waiting.remove(&waiter);
        }
        self.held.hold(ino, range);
    }

    /// The shard granted a queued request.
    pub(crate) fn grant(&mut self, waiter: u64) -> Option<WaitingRequest> {
        let granted = self.waiting.remove(&waiter)?;
        self.held.hold(granted.ino, granted.range);
        Some(granted)
    }

    /// It was a former life of the shard that did: it waits again.
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

    /// The request waits no more, and is not held.
    pub(super) fn withdraw(&mut self, ino: Ino, range: &LockRange, waiter: Option<u64>) {
        if let Some(waiter) = waiter {
            self.waiting.remove(&waiter);
            if let Some(is_taken_back) = self.queued_again.get_mut(&waiter) {
                *is_taken_back = true;
            }
        }
        self.held.forget(ino, owner_of(range), range.number);
    }
}
