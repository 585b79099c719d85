//! What a client has at one shard: its session, the session's slots, its closes on their way, what
//! is told after a restart.
//!
//! Invariants: a slot has one request under way; a repeated request repeats its slot and sequence;
//! a slot that was given up goes on with the next sequence (the shard refuses older ones that
//! arrive late). Lock order: `opening` (async) before `state`; `state` is never held across an
//! await.

use super::idle_sessions::LinkUsage;
use super::request::is_unsure;
use crate::unsynced_changes::UnsyncedChanges;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::limits::SESSION_SLOTS_MAX;
use zonal_types::{Epoch, ErrorCode, Incarnation, Ino, SessionId, ShardId};
use zonal_wire::AppendPlace;

/// What this client has at one shard.
pub struct Link {
    pub(crate) shard: ShardId,
    pub(super) used: LinkUsage,
    pub(super) opening: async_lock::Mutex<()>,
    slots: async_lock::Semaphore,
    pub(super) state: Mutex<LinkState>,
    /// The incarnation of ours that the shard has in its session; 0: there was none yet.
    opened: AtomicU32,
    /// The same, once the shard has said what of ours was lost with the session before: what goes
    /// to targets has this one.
    acknowledged: AtomicU32,
    /// Events seen; a reply that was asked for before the latest one is not cached.
    pub(super) events: AtomicU64,
    /// Appends whose bytes are on their way to places that the shard reserved.
    pub(super) appending: Mutex<Vec<AppendInFlight>>,
    /// How often places were lost that were this session's.
    places_lost: AtomicU64,
    /// Files whose ends, lent to this client, others want.
    wanted_ends: Mutex<BTreeSet<Ino>>,
    /// Appends that their callers gave up.
    pub(super) given_up: Mutex<super::abandoned_appends::AbandonedAppends>,
    /// Held while the shard is told of them.
    pub(super) giving_up: async_lock::Mutex<()>,
    /// Changes that are not durable yet.
    pub(crate) changes: Mutex<UnsyncedChanges>,
    /// Held while an open ends and its close is queued, and while what is open is counted to be
    /// told. Before the files' locks.
    telling: Mutex<()>,
}

/// An append under way: file, and where it writes how much.
pub(crate) type AppendInFlight = (Ino, AppendPlace);

#[derive(Default)]
pub(super) struct LinkState {
    pub(super) session: SessionId,
    /// The last one that was open: what is held was got in it.
    pub(super) held_in: SessionId,
    /// It was opened, and told what is held.
    pub(super) is_open: bool,
    pub(super) boot: u64,
    /// What is held could not be told to this boot: the next poll tells it.
    pub(super) is_untold: bool,
    /// The boot that the last poll for events heard of.
    polled: u64,
    /// The part of the newest boot heard of that differs where unflushed changes may be gone.
    pub(super) kept: u32,
    pub(super) epoch: Epoch,
    pub(super) sequences: Vec<u32>,
    free: Vec<u32>,
    pub(super) acked: u64,
    pub(super) listening: bool,
    closes: Vec<Ino>,
    /// Those that are on their way, and those that are late.
    closing: Vec<Ino>,
    /// A request with closes that was not answered. It keeps its slot: the shard may have executed
    /// it.
    late_closes: Option<CloseRequest>,
    /// How often a shard was told what is held.
    tellings: u64,
    /// Closes are being sent: what else is to be closed waits, so that no more than one such
    /// request is late.
    is_closing: bool,
}

/// A request with closes.
pub(crate) struct CloseRequest {
    pub(crate) inos: Vec<Ino>,
    pub(super) place: SlotPlace,
    /// How often the shard had been told what is held when they were sent.
    tellings: u64,
}

/// A slot, and where its request was sent last.
pub(crate) struct SlotPlace {
    pub(super) index: u32,
    /// The next attempt takes a new sequence.
    is_new: bool,
    sent_in: SessionId,
}

impl LinkState {
    /// The sequence of a slot's next attempt. A new session's slots start afresh; in one that was
    /// resumed the request may have been executed before.
    pub(super) fn next_sequence(&mut self, place: &mut SlotPlace) -> u32 {
        let is_new = place.is_new || place.sent_in != self.session;
        place.is_new = false;
        place.sent_in = self.session;
        let sequence = &mut self.sequences[place.index as usize];
        // 0 follows the largest: shards compare by distance.
        *sequence = sequence.wrapping_add(u32::from(is_new));
        *sequence
    }
}

/// Locks a mutex whose holder cannot have panicked half-way through a change that matters.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link {
    pub(crate) fn new(shard: ShardId) -> Self {
        let slots = SESSION_SLOTS_MAX;
        Self {
            shard,
            used: LinkUsage::default(),
            opening: async_lock::Mutex::new(()),
            slots: async_lock::Semaphore::new(slots as usize),
            state: Mutex::new(LinkState {
                sequences: vec![0; slots as usize],
                free: (0..slots).rev().collect(),
                ..LinkState::default()
            }),
            opened: AtomicU32::new(0),
            acknowledged: AtomicU32::new(0),
            events: AtomicU64::new(0),
            appending: Mutex::default(),
            places_lost: AtomicU64::new(0),
            wanted_ends: Mutex::default(),
            given_up: Mutex::default(),
            giving_up: async_lock::Mutex::new(()),
            changes: Mutex::default(),
            telling: Mutex::new(()),
        }
    }

    /// The incarnation of the session that the shard has.
    pub(crate) fn opened(&self) -> Incarnation {
        Incarnation(self.opened.load(Ordering::SeqCst))
    }

    /// The shard has a session of this incarnation, and has not heard yet what we hold.
    pub(super) fn open_as(&self, incarnation: Incarnation) {
        self.opened.store(incarnation.0, Ordering::SeqCst);
    }

    /// The incarnation that the shard knows us by, and targets may.
    pub(crate) fn acknowledged(&self) -> Incarnation {
        Incarnation(self.acknowledged.load(Ordering::SeqCst))
    }

    /// The shard has a session of this incarnation, and what was lost with the one before is known.
    pub(super) fn acknowledge(&self, incarnation: Incarnation) {
        self.open_as(incarnation);
        self.acknowledged.store(incarnation.0, Ordering::SeqCst);
    }

    /// As long as the guard lives opens are not counted.
    pub(crate) fn ending_open(&self) -> MutexGuard<'_, ()> {
        lock(&self.telling)
    }

    /// Counts an event (before the kernel is told of it).
    pub(crate) fn count_event(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
    }

    /// Remembers that the session has one open less of `ino`; tells how many wait to be sent.
    pub(crate) fn queue_close(&self, ino: Ino) -> usize {
        let mut state = lock(&self.state);
        state.closes.push(ino);
        state.closes.len()
    }

    /// Closes that the shard has not taken.
    pub(crate) fn closes(&self) -> usize {
        let state = lock(&self.state);
        state.closes.len() + state.closing.len()
    }

    /// The request with closes to be sent: the late one, or one with all that wait. Until
    /// [`Self::closes_ended`] they count as open, and nobody else gets any.
    pub(crate) async fn take_closes(&self) -> Option<CloseRequest> {
        {
            let mut state = lock(&self.state);
            if state.is_closing || (state.closes.is_empty() && state.late_closes.is_none()) {
                return None;
            }
            state.is_closing = true;
            if let Some(mut late) = state.late_closes.take() {
                late.tellings = state.tellings;
                return Some(late);
            }
        }
        let slot = self.take_slot().await;
        let mut state = lock(&self.state);
        let inos = std::mem::take(&mut state.closes);
        state.closing.extend(&inos);
        let tellings = state.tellings;
        drop(state);
        Some(CloseRequest {
            inos,
            place: slot.keep(),
            tellings,
        })
    }

    /// Their request has ended with `outcome`: they are executed, or late, or not executed for
    /// certain and wait again.
    pub(crate) fn closes_ended(&self, closes: CloseRequest, outcome: Result<(), ErrorCode>) {
        let mut state = lock(&self.state);
        state.is_closing = false;
        let is_waiting = outcome == Err(ErrorCode::NotReady);
        // Executed by a shard that has restarted since, perhaps: the new one was told that they are
        // open. It hears of them again, in their slot, and closes them.
        let is_told_open = outcome.is_ok() && state.tellings != closes.tellings;
        if is_told_open || (!is_waiting && outcome.is_err_and(is_unsure)) {
            state.late_closes = Some(closes);
            return;
        }
        for ino in &closes.inos {
            if let Some(at) = state.closing.iter().position(|known| known == ino) {
                state.closing.swap_remove(at);
            }
        }
        if is_waiting {
            state.closes.extend(closes.inos);
        }
        drop(state);
        self.free_slot(&closes.place);
    }

    /// A slot that was kept is free again.
    pub(crate) fn free_slot(&self, place: &SlotPlace) {
        lock(&self.state).free.push(place.index);
        self.slots.add_permits(1);
    }

    pub(crate) async fn take_slot(&self) -> Slot<'_> {
        let permit = self.slots.acquire().await;
        // There are as many permits as slots, so one is free.
        let index = lock(&self.state).free.pop().unwrap_or(0);
        Slot {
            link: self,
            index,
            permit: Some(permit),
        }
    }

    /// Opens that have ended here and not yet at the shard, which is about to be told of them as
    /// open.
    pub(super) fn tell_ending(&self) -> Vec<Ino> {
        let mut state = lock(&self.state);
        state.tellings += 1;
        state.closes.iter().chain(&state.closing).copied().collect()
    }

    /// The boot that the last poll heard of, and the last event of it that was carried out.
    pub(crate) fn polled(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.polled, state.acked)
    }

    pub(crate) fn ack(&self, seq: u64) {
        let mut state = lock(&self.state);
        state.acked = state.acked.max(seq);
    }

    /// Whether events arrive: without them nothing may be cached.
    pub(crate) fn set_listening(&self, listening: bool) {
        lock(&self.state).listening = listening;
    }

    /// An append's bytes begin to be written: a restarted shard is told of its place.
    pub(crate) fn begin_append(&self, append: AppendInFlight) {
        lock(&self.appending).push(append);
    }

    /// Whether its place is this session's.
    pub(crate) fn is_appending(&self, append: AppendInFlight) -> bool {
        lock(&self.appending).contains(&append)
    }

    /// All places were another session's.
    pub(super) fn forget_appends(&self) {
        lock(&self.appending).clear();
        self.places_lost.fetch_add(1, Ordering::SeqCst);
    }

    /// A restarted shard has given its place to others, perhaps.
    pub(super) fn lose_append(&self, append: AppendInFlight) {
        self.end_append(append);
        self.places_lost.fetch_add(1, Ordering::SeqCst);
    }

    /// Differs where some place is not this session's any more.
    pub(crate) fn places_lost(&self) -> u64 {
        self.places_lost.load(Ordering::SeqCst)
    }

    /// Others want the end of a file.
    pub(crate) fn want_end(&self, ino: Ino) {
        lock(&self.wanted_ends).insert(ino);
    }

    /// Files whose ends others want.
    pub(crate) fn wanted_ends(&self) -> BTreeSet<Ino> {
        lock(&self.wanted_ends).clone()
    }

    /// It was given back.
    pub(crate) fn end_returned(&self, ino: Ino) {
        lock(&self.wanted_ends).remove(&ino);
    }

    /// They are written, and the shard knows, or has forgotten it.
    pub(crate) fn end_append(&self, append: AppendInFlight) {
        let mut appending = lock(&self.appending);
        if let Some(at) = appending.iter().position(|known| *known == append) {
            appending.swap_remove(at);
        }
    }

    /// A poll for events heard of this boot; true where the one before heard of another.
    pub(crate) fn note_polled(&self, boot: u64) -> bool {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.polled, boot);
        if before != boot {
            state.acked = 0;
        }
        before != 0 && before != boot
    }

    /// The life of the shard, as far as unflushed changes go.
    pub(super) fn kept(&self) -> u32 {
        lock(&self.state).kept
    }

    pub(crate) fn boot(&self) -> u64 {
        lock(&self.state).boot
    }

    /// The life of the shard as heard of last, and of the session: what was granted in another one
    /// is void.
    pub(crate) fn life(&self) -> (u64, SessionId) {
        let state = lock(&self.state);
        (state.boot, state.session)
    }

    /// Whether the shard has heard all that it is to hear: closes, appends, ends that others want.
    pub(super) fn has_nothing_to_tell(&self) -> bool {
        let is_told = !lock(&self.state).is_untold;
        is_told
            && self.closes() == 0
            && self.given_up() == 0
            && lock(&self.appending).is_empty()
            && lock(&self.wanted_ends).is_empty()
    }

    /// True where a session was opened.
    #[must_use]
    pub fn is_open(&self) -> bool {
        lock(&self.state).is_open
    }
}

/// A slot in use; given back when dropped.
pub(crate) struct Slot<'a> {
    link: &'a Link,
    pub(super) index: u32,
    permit: Option<async_lock::SemaphoreGuard<'a>>,
}

impl Slot<'_> {
    /// The slot stays taken.
    pub(crate) fn keep(mut self) -> SlotPlace {
        if let Some(permit) = self.permit.take() {
            permit.forget();
        }
        SlotPlace::new(self.index)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if self.permit.is_some() {
            lock(&self.link.state).free.push(self.index);
        }
    }
}

impl SlotPlace {
    pub(super) fn new(index: u32) -> Self {
        Self {
            index,
            is_new: true,
            sent_in: SessionId(0),
        }
    }

    pub(crate) fn was_sent(&self) -> bool {
        !self.is_new
    }

    /// Whether it was sent, and in this session.
    pub(super) fn was_sent_in(&self, session: SessionId) -> bool {
        !self.is_new && self.sent_in == session
    }
}

/// Links by shard.
pub(crate) type Links = Mutex<BTreeMap<ShardId, std::sync::Arc<Link>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_the_largest_sequence_comes_0() {
        let link = Link::new(ShardId(1));
        let mut state = lock(&link.state);
        state.session = SessionId(5);
        state.sequences[3] = u32::MAX - 1;
        let mut place = SlotPlace::new(3);
        assert_eq!(state.next_sequence(&mut place), u32::MAX);
        assert_eq!(state.next_sequence(&mut place), u32::MAX, "repeated");
        assert_eq!(state.next_sequence(&mut SlotPlace::new(3)), 0);
        assert_eq!(state.next_sequence(&mut SlotPlace::new(3)), 1);
    }
}
