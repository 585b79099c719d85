//! Link: the state of this client at one shard: its session, slots, closes in flight, messages
//! after a restart, and the replica to ask.
//!
//! *Invariants*: a slot has one request in flight. A repeated request keeps its slot and sequence.
//! An abandoned slot goes on with the next sequence, because the shard refuses older ones that
//! arrive late.
//!
//! Lock order: `opening` (async) before `state`; `state` is never held across an await.

use super::idle_sessions::LinkUsage;
use super::lease_renewal::LeaseRenewal;
use crate::cell::unsynced_changes::UnsyncedChanges;
use crate::transport::mutex::lock;
use crate::transport::retry::is_unsure;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use zonal_types::limits::SESSION_SLOTS_MAX;
use zonal_types::{Epoch, ErrorCode, Incarnation, Ino, SessionId, ShardId};
use zonal_wire::AppendPlace;
use zonal_zonemap::KnownLeader;

/// The state of this client at one shard.
pub struct Link {
    pub(crate) shard: ShardId,
    /// Which replica of the shard is asked, where it has several.
    pub(crate) leader: KnownLeader,
    /// Name of these replicas together, which are one server for silences.
    pub(crate) group: String,
    pub(crate) used: LinkUsage,
    pub(crate) renewal: LeaseRenewal,
    pub(crate) opening: async_lock::Mutex<()>,
    slots: async_lock::Semaphore,
    pub(crate) state: Mutex<LinkState>,
    /// Incarnation of the session that the shard has; 0: none yet.
    opened: AtomicU32,
    /// The same, once the shard has listed what was lost with the earlier session. Requests to
    /// targets carry this one.
    acknowledged: AtomicU32,
    /// Events received. A reply is not cached where an event came since its request.
    pub(crate) events: AtomicU64,
    /// Appends whose bytes are on their way to reserved places.
    pub(crate) appending: Mutex<Vec<AppendInFlight>>,
    /// How often this session lost places.
    places_lost: AtomicU64,
    /// Files whose lent ends the shard has recalled.
    wanted_ends: Mutex<BTreeSet<Ino>>,
    /// Appends that their callers abandoned.
    pub(crate) given_up: Mutex<super::abandoned_appends::AbandonedAppends>,
    /// Held while they are reported to the shard.
    pub(crate) giving_up: async_lock::Mutex<()>,
    /// Changes that are not durable yet.
    pub(crate) changes: Mutex<UnsyncedChanges>,
    /// Held while an open ends and its close is queued, and while opens are counted for a report.
    /// Locked before the files' locks.
    telling: Mutex<()>,
}

/// An append in flight: its file and place.
pub(crate) type AppendInFlight = (Ino, AppendPlace);

#[derive(Default)]
pub(crate) struct LinkState {
    pub(crate) session: SessionId,
    /// The last open session in which something may be held; 0: nothing that is held was got there.
    pub(crate) held_in: SessionId,
    /// The session is open, and the shard knows what is held.
    pub(crate) is_open: bool,
    pub(crate) boot: u64,
    /// This boot has not heard what is held: the next poll reports it.
    pub(crate) is_untold: bool,
    /// Boot in the last poll for events.
    polled: u64,
    /// Part of the newest boot that changes where unflushed changes may be lost.
    pub(crate) kept: u32,
    pub(crate) epoch: Epoch,
    pub(crate) sequences: Vec<u32>,
    free: Vec<u32>,
    pub(crate) acked: u64,
    pub(crate) listening: bool,
    closes: Vec<Ino>,
    /// Closes in flight, and unanswered ones.
    closing: Vec<Ino>,
    /// An unanswered request with closes. It keeps its slot, because the shard may have executed
    /// it.
    late_closes: Option<CloseRequest>,
    /// How often the shard was told what is held.
    tellings: u64,
    /// A request with closes is in flight. Other closes wait, so that at most one request is
    /// unanswered.
    is_closing: bool,
}

/// A request with closes.
pub(crate) struct CloseRequest {
    pub(crate) inos: Vec<Ino>,
    pub(crate) place: SlotPlace,
    /// `LinkState::tellings` when it was sent.
    tellings: u64,
}

/// A slot, and the session of its last request.
pub(crate) struct SlotPlace {
    pub(crate) index: u32,
    /// The next attempt takes a new sequence.
    is_new: bool,
    sent_in: SessionId,
}

impl LinkState {
    /// Sequence of a slot's next attempt. A new session's slots start afresh; in a resumed one the
    /// request may have been executed before.
    pub(crate) fn next_sequence(&mut self, place: &mut SlotPlace) -> u32 {
        if self.session == SessionId(0) {
            // It was lost just now. The shard refuses this attempt, and it does not count: where
            // the session is resumed, an earlier one may have been executed.
            return self.sequences[place.index as usize];
        }
        let is_new = place.is_new || place.sent_in != self.session;
        place.is_new = false;
        place.sent_in = self.session;
        let sequence = &mut self.sequences[place.index as usize];
        // 0 follows the largest: shards compare by distance.
        *sequence = sequence.wrapping_add(u32::from(is_new));
        *sequence
    }

    fn free_slot(&mut self, index: u32) {
        let slots = self.sequences.len();
        assert!(
            (index as usize) < slots && self.free.len() < slots,
            "slot {index} of {slots} is freed, {} are free",
            self.free.len()
        );
        self.free.push(index);
    }
}

impl Link {
    pub(crate) fn new(shard: ShardId) -> Self {
        let slots = SESSION_SLOTS_MAX;
        Self {
            shard,
            leader: KnownLeader::default(),
            group: format!("shard {shard}"),
            used: LinkUsage::default(),
            renewal: LeaseRenewal::default(),
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

    /// Incarnation of the session that the shard has.
    pub(crate) fn opened(&self) -> Incarnation {
        Incarnation(self.opened.load(Ordering::SeqCst))
    }

    /// Notes a session of this incarnation, before the shard knows what is held.
    pub(crate) fn open_as(&self, incarnation: Incarnation) {
        self.opened.store(incarnation.0, Ordering::SeqCst);
    }

    /// Incarnation that the shard has acknowledged, and targets may know.
    pub(crate) fn acknowledged(&self) -> Incarnation {
        Incarnation(self.acknowledged.load(Ordering::SeqCst))
    }

    /// Notes that the shard has acknowledged this incarnation, and that the losses of the earlier
    /// one are known.
    pub(crate) fn acknowledge(&self, incarnation: Incarnation) {
        self.open_as(incarnation);
        self.acknowledged.store(incarnation.0, Ordering::SeqCst);
    }

    /// While the guard lives, opens are not counted.
    pub(crate) fn ending_open(&self) -> MutexGuard<'_, ()> {
        lock(&self.telling)
    }

    /// Counts an event, before the kernel hears of it.
    pub(crate) fn count_event(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
    }

    /// Queues a close of `ino`; returns the number of queued closes.
    pub(crate) fn queue_close(&self, ino: Ino) -> usize {
        let mut state = lock(&self.state);
        state.closes.push(ino);
        state.closes.len()
    }

    /// Closes that the shard has not executed.
    pub(crate) fn closes(&self) -> usize {
        let state = lock(&self.state);
        state.closes.len() + state.closing.len()
    }

    /// Takes the request with closes to send: the unanswered one, or one with all queued closes.
    /// Until [`Self::closes_ended`] they count as open, and no other call gets any. `None` also
    /// where no slot is free: they wait.
    pub(crate) async fn take_closes<'a>(
        &'a self,
        slot: impl Future<Output = Result<Slot<'a>, ErrorCode>>,
    ) -> Option<CloseRequest> {
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
        let slot = slot.await;
        let mut state = lock(&self.state);
        let Ok(slot) = slot else {
            state.is_closing = false;
            return None;
        };
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

    /// Notes the outcome of a request with closes: executed, unanswered, or certainly not executed.
    /// The latter are queued again.
    pub(crate) fn closes_ended(&self, closes: CloseRequest, outcome: Result<(), ErrorCode>) {
        let mut state = lock(&self.state);
        assert!(state.is_closing, "a request with closes ended twice");
        state.is_closing = false;
        let is_waiting = outcome == Err(ErrorCode::NotReady);
        // The shard may have restarted after it executed them, and was then told that they are
        // open. It gets them again in their slot.
        let is_told_open = outcome.is_ok() && state.tellings != closes.tellings;
        if is_told_open || (!is_waiting && outcome.is_err_and(is_unsure)) {
            state.late_closes = Some(closes);
            return;
        }
        for ino in &closes.inos {
            let at = state.closing.iter().position(|known| known == ino);
            assert!(
                at.is_some(),
                "a close of {ino} ended that was not in flight"
            );
            if let Some(at) = at {
                state.closing.swap_remove(at);
            }
        }
        if is_waiting {
            state.closes.extend(closes.inos);
        }
        drop(state);
        self.free_slot(&closes.place);
    }

    /// Frees a kept slot.
    pub(crate) fn free_slot(&self, place: &SlotPlace) {
        lock(&self.state).free_slot(place.index);
        self.slots.add_permits(1);
    }

    pub(crate) async fn take_slot(&self) -> Slot<'_> {
        let permit = self.slots.acquire().await;
        // There are as many permits as slots, so one is free.
        let index = lock(&self.state).free.pop();
        assert!(index.is_some(), "there is a permit and no free slot");
        let index = index.unwrap_or(0);
        Slot {
            link: self,
            index,
            permit: Some(permit),
        }
    }

    /// Opens whose closes the shard has not executed, for a report that counts them as open.
    pub(crate) fn tell_ending(&self) -> Vec<Ino> {
        let mut state = lock(&self.state);
        state.tellings += 1;
        state.closes.iter().chain(&state.closing).copied().collect()
    }

    /// Boot in the last poll, and its last acknowledged event.
    pub(crate) fn polled(&self) -> (u64, u64) {
        let state = lock(&self.state);
        (state.polled, state.acked)
    }

    pub(crate) fn ack(&self, seq: u64) {
        let mut state = lock(&self.state);
        state.acked = state.acked.max(seq);
    }

    /// Notes whether events arrive: without them nothing may be cached.
    pub(crate) fn set_listening(&self, listening: bool) {
        lock(&self.state).listening = listening;
    }

    /// Notes an append before its bytes are written: a restarted shard is told of its place.
    pub(crate) fn begin_append(&self, append: AppendInFlight) {
        lock(&self.appending).push(append);
    }

    /// Whether the place belongs to this session.
    pub(crate) fn is_appending(&self, append: AppendInFlight) -> bool {
        lock(&self.appending).contains(&append)
    }

    /// Drops all places, which belonged to another session.
    pub(crate) fn forget_appends(&self) {
        lock(&self.appending).clear();
        self.places_lost.fetch_add(1, Ordering::SeqCst);
    }

    /// Drops a place that a restarted shard may have assigned to others.
    pub(crate) fn lose_append(&self, append: AppendInFlight) {
        self.end_append(append);
        self.places_lost.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes where a place does not belong to this session any more.
    pub(crate) fn places_lost(&self) -> u64 {
        self.places_lost.load(Ordering::SeqCst)
    }

    /// Notes a recall of a file's end.
    pub(crate) fn want_end(&self, ino: Ino) {
        lock(&self.wanted_ends).insert(ino);
    }

    /// Files whose ends were recalled.
    pub(crate) fn wanted_ends(&self) -> BTreeSet<Ino> {
        lock(&self.wanted_ends).clone()
    }

    /// Notes that an end was returned.
    pub(crate) fn end_returned(&self, ino: Ino) {
        lock(&self.wanted_ends).remove(&ino);
    }

    /// Ends an append whose bytes are written, after the shard knows or has forgotten it.
    pub(crate) fn end_append(&self, append: AppendInFlight) {
        let mut appending = lock(&self.appending);
        if let Some(at) = appending.iter().position(|known| *known == append) {
            appending.swap_remove(at);
        }
    }

    /// Notes the boot in a poll's reply; true where the shard has restarted since the last poll.
    pub(crate) fn note_polled(&self, boot: u64) -> bool {
        let mut state = lock(&self.state);
        let before = std::mem::replace(&mut state.polled, boot);
        if before != boot {
            state.acked = 0;
        }
        before != 0 && before != boot
    }

    /// Part of the shard's boot that changes where unflushed changes may be lost.
    pub(crate) fn kept(&self) -> u32 {
        lock(&self.state).kept
    }

    pub(crate) fn boot(&self) -> u64 {
        lock(&self.state).boot
    }

    /// The shard's boot and the session: a grant of another pair is void.
    pub(crate) fn life(&self) -> (u64, SessionId) {
        let state = lock(&self.state);
        (state.boot, state.session)
    }

    /// Whether the shard has got every message: closes, appends, recalled ends.
    pub(crate) fn has_nothing_to_tell(&self) -> bool {
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

/// A slot in use; dropping it frees the slot.
pub(crate) struct Slot<'a> {
    link: &'a Link,
    pub(crate) index: u32,
    permit: Option<async_lock::SemaphoreGuard<'a>>,
}

impl Slot<'_> {
    /// Keeps the slot beyond the guard.
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
            lock(&self.link.state).free_slot(self.index);
        }
    }
}

impl SlotPlace {
    pub(crate) fn new(index: u32) -> Self {
        Self {
            index,
            is_new: true,
            sent_in: SessionId(0),
        }
    }

    pub(crate) fn was_sent(&self) -> bool {
        !self.is_new
    }

    /// Whether it was sent in this session.
    pub(crate) fn was_sent_in(&self, session: SessionId) -> bool {
        !self.is_new && self.sent_in == session
    }
}

/// Links by shard.
pub(crate) type Links = Mutex<BTreeMap<ShardId, std::sync::Arc<Link>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "is freed")]
    fn a_slot_is_not_freed_twice() {
        Link::new(ShardId(1)).free_slot(&SlotPlace::new(3));
    }

    #[test]
    #[should_panic(expected = "ended twice")]
    fn a_request_with_closes_does_not_end_twice() {
        let closes = CloseRequest {
            inos: Vec::new(),
            place: SlotPlace::new(3),
            tellings: 0,
        };
        Link::new(ShardId(1)).closes_ended(closes, Ok(()));
    }

    #[test]
    fn the_largest_sequence_is_followed_by_0() {
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

    /// A late refusal of another request had closed the session that was resumed just then. The
    /// attempt without a session took a number, and so did the next one: the request was executed
    /// twice.
    #[test]
    fn an_attempt_without_a_session_takes_no_number() {
        let link = Link::new(ShardId(1));
        let mut state = lock(&link.state);
        let mut place = SlotPlace::new(3);
        state.session = SessionId(2);
        let first = state.next_sequence(&mut place);
        state.session = SessionId(0);
        state.next_sequence(&mut place);
        state.session = SessionId(2);
        assert_eq!(state.next_sequence(&mut place), first, "repeated");
        state.session = SessionId(4);
        assert_eq!(state.next_sequence(&mut place), first + 1);
    }
}
