//! Sessions at shards: opening, exactly-once slots, retries, reclaim, what may be cached.
//!
//! Invariants: a slot has one request under way; a repeated request repeats its slot and sequence; a slot that was given
//! up goes on with the next sequence (the shard refuses older ones that arrive late). Lock order: `opening` (async)
//! before `state`; `state` is never held across an await.

use crate::changes::{Changes, touched};
use crate::client::Client;
use crate::net::{Message, Net, NetFailure, wait_for};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::limits::SESSION_SLOTS_MAX;
use zonal_types::{Codec, Epoch, ErrorCode, Ino, Instant, SessionId, ShardId, kept_of};
use zonal_wire::{Entry, Header, MetaReply, MetaRequest, NO_SLOT, Service};

/// Pause before a request is repeated, at first and at most.
const RETRY_MS: (u64, u64) = (20, 500);

/// What this client has at one shard.
pub struct Link {
    shard: ShardId,
    opening: async_lock::Mutex<()>,
    slots: async_lock::Semaphore,
    state: Mutex<LinkState>,
    /// Events seen; a reply that was asked for before the latest one is not cached.
    events: AtomicU64,
    /// Appends whose bytes are on their way to places that the shard reserved: file, offset, length.
    appending: Mutex<Vec<Appending>>,
    /// Changes that are not durable yet.
    pub(crate) changes: Mutex<Changes>,
    /// Held while an open ends and its close is queued, and while what is open is counted to be told. Before the files' locks.
    telling: Mutex<()>,
}

/// An append under way: file, and where it writes how much.
pub(crate) type Appending = (Ino, (u64, u32));

#[derive(Default)]
struct LinkState {
    session: SessionId,
    /// It was opened, and told what is held.
    is_open: bool,
    boot: u64,
    /// What is held could not be told to this boot: the next poll tells it.
    is_untold: bool,
    /// The boot that the last poll for events heard of.
    polled: u64,
    /// The part of the newest boot heard of that differs where unflushed changes may be gone.
    kept: u32,
    epoch: Epoch,
    sequences: Vec<u32>,
    free: Vec<u32>,
    acked: u64,
    listening: bool,
    closes: Vec<Ino>,
    /// Those that are on their way, and those that are late.
    closing: Vec<Ino>,
    /// A request with closes that was not answered. It keeps its slot: the shard may have executed it.
    late_closes: Option<Closes>,
    /// Closes are being sent: what else is to be closed waits, so that no more than one such request is late.
    is_closing: bool,
}

/// A request with closes.
pub(crate) struct Closes {
    pub(crate) inos: Vec<Ino>,
    place: SlotPlace,
}

/// A slot, and where its request was sent last.
struct SlotPlace {
    index: u32,
    /// The next attempt takes a new sequence.
    is_new: bool,
    sent_in: SessionId,
}

impl LinkState {
    /// The sequence of a slot's next attempt. A new session's slots start afresh; in one that was resumed the request may have been
    /// executed before.
    fn next_sequence(&mut self, place: &mut SlotPlace) -> u32 {
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
            opening: async_lock::Mutex::new(()),
            slots: async_lock::Semaphore::new(slots as usize),
            state: Mutex::new(LinkState {
                sequences: vec![0; slots as usize],
                free: (0..slots).rev().collect(),
                ..LinkState::default()
            }),
            events: AtomicU64::new(0),
            appending: Mutex::default(),
            changes: Mutex::default(),
            telling: Mutex::new(()),
        }
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

    /// The request with closes to be sent: the late one, or one with all that wait. Until [`Self::closes_ended`] they count as open, and
    /// nobody else gets any.
    pub(crate) async fn take_closes(&self) -> Option<Closes> {
        {
            let mut state = lock(&self.state);
            if state.is_closing || (state.closes.is_empty() && state.late_closes.is_none()) {
                return None;
            }
            state.is_closing = true;
            if let Some(late) = state.late_closes.take() {
                return Some(late);
            }
        }
        let slot = self.take_slot().await;
        let mut state = lock(&self.state);
        let inos = std::mem::take(&mut state.closes);
        state.closing.extend(&inos);
        drop(state);
        Some(Closes {
            inos,
            place: slot.keep(),
        })
    }

    /// Their request has ended with `outcome`: they are executed, or late, or not executed for certain and wait again.
    pub(crate) fn closes_ended(&self, closes: Closes, outcome: Result<(), ErrorCode>) {
        let mut state = lock(&self.state);
        state.is_closing = false;
        let is_waiting = outcome == Err(ErrorCode::NotReady);
        if !is_waiting && outcome.is_err_and(is_unsure) {
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
        state.free.push(closes.place.index);
        drop(state);
        self.slots.add_permits(1);
    }

    async fn take_slot(&self) -> Slot<'_> {
        let permit = self.slots.acquire().await;
        // There are as many permits as slots, so one is free.
        let index = lock(&self.state).free.pop().unwrap_or(0);
        Slot {
            link: self,
            index,
            permit: Some(permit),
        }
    }

    /// Opens that have ended here and not yet at the shard.
    fn ending(&self) -> Vec<Ino> {
        let state = lock(&self.state);
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
    pub(crate) fn begin_append(&self, append: Appending) {
        lock(&self.appending).push(append);
    }

    /// They are written, and the shard knows, or has forgotten it.
    pub(crate) fn end_append(&self, append: Appending) {
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
    fn kept(&self) -> u32 {
        lock(&self.state).kept
    }

    pub(crate) fn boot(&self) -> u64 {
        lock(&self.state).boot
    }

    /// True where a session was opened.
    pub(crate) fn is_open(&self) -> bool {
        lock(&self.state).is_open
    }
}

/// A slot in use; given back when dropped.
struct Slot<'a> {
    link: &'a Link,
    index: u32,
    permit: Option<async_lock::SemaphoreGuard<'a>>,
}

impl Slot<'_> {
    /// The slot stays taken.
    fn keep(mut self) -> SlotPlace {
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
    fn new(index: u32) -> Self {
        Self {
            index,
            is_new: true,
            sent_in: SessionId(0),
        }
    }
}

/// When a request was sent, to tell how long its reply may be cached.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    at: Instant,
    events: u64,
    listening: bool,
}

impl<N: Net> Client<N> {
    /// Notes the time before a request whose reply may be cached.
    pub(crate) fn asking(&self, link: &Link) -> Asked {
        Asked {
            at: self.net.now(),
            events: link.events.load(Ordering::SeqCst),
            listening: lock(&link.state).listening,
        }
    }

    /// What is left of the time that a shard granted.
    pub(crate) fn cache_ms(&self, link: &Link, asked: Asked, granted_ms: u32) -> u32 {
        if !asked.listening
            || !self.options.cache
            || link.events.load(Ordering::SeqCst) != asked.events
        {
            return 0;
        }
        let passed = u32::try_from(self.net.now().ms_since(asked.at)).unwrap_or(u32::MAX);
        granted_ms.saturating_sub(passed)
    }

    pub(crate) fn cut_entry(&self, link: &Link, asked: Asked, entry: &mut Entry) {
        entry.entry_ms = self.cache_ms(link, asked, entry.entry_ms);
        entry.attr_ms = self.cache_ms(link, asked, entry.attr_ms);
    }

    /// The link to the shard that owns an inode; one that joined since we took the map is looked for in a newer one.
    pub(crate) async fn reach(&self, ino: Ino) -> Result<std::sync::Arc<Link>, ErrorCode> {
        if self.map().shard_of(ino.partition()).is_none() && self.map_is_old() {
            self.try_refresh_map().await?;
        }
        self.link_of(ino)
    }

    /// As [`Self::reach`], by the map that we have.
    pub(crate) fn link_of(&self, ino: Ino) -> Result<std::sync::Arc<Link>, ErrorCode> {
        let shard = self.map().shard_of(ino.partition()).map(|shard| shard.id);
        Ok(self.link(shard.ok_or(ErrorCode::Stale)?))
    }

    /// The link to a shard.
    pub(crate) fn link(&self, shard: ShardId) -> std::sync::Arc<Link> {
        let mut links = lock(&self.links);
        links
            .entry(shard)
            .or_insert_with(|| std::sync::Arc::new(Link::new(shard)))
            .clone()
    }

    /// All links in use.
    pub(crate) fn all_links(&self) -> Vec<std::sync::Arc<Link>> {
        lock(&self.links).values().cloned().collect()
    }

    /// Sends a request until it is answered, for as long as the deadline allows. `Failed` replies become errors.
    pub(crate) async fn meta(
        &self,
        link: &Link,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        let slot = if request.is_mutation() {
            Some(link.take_slot().await)
        } else {
            None
        };
        let mut place = slot.as_ref().map(|slot| SlotPlace::new(slot.index));
        self.meta_at(link, request, place.as_mut()).await
    }

    /// Sends closes, in the slot that they keep.
    pub(crate) async fn close_inos(
        &self,
        link: &Link,
        closes: &mut Closes,
    ) -> Result<(), ErrorCode> {
        let inos = closes.inos.clone();
        let request = MetaRequest::Close { inos };
        let place = Some(&mut closes.place);
        self.meta_at(link, &request, place).await.map(|_done| ())
    }

    async fn meta_at(
        &self,
        link: &Link,
        request: &MetaRequest,
        mut place: Option<&mut SlotPlace>,
    ) -> Result<MetaReply, ErrorCode> {
        let deadline = self.deadline();
        let body = request.to_bytes();
        let trace = self.next_trace();
        let mut pause = RETRY_MS.0;
        let touched = touched(request);
        loop {
            self.open_session(link, deadline).await?;
            let mut header = self.header(Service::Meta, trace);
            {
                let mut state = lock(&link.state);
                header.session = state.session;
                header.epoch = state.epoch;
                header.slot = NO_SLOT;
                if let Some(place) = &mut place {
                    header.slot = place.index;
                    header.sequence = state.next_sequence(place);
                }
            }
            let kept = link.kept();
            let wait = if let MetaRequest::PollEvents { wait_ms, .. } = request {
                u64::from(*wait_ms)
            } else {
                0
            };
            let failed = match self.send(link, header, &body, request.name(), wait).await {
                Ok(MetaReply::Failed { code }) => code.0,
                Ok(reply) => {
                    if touched[0].is_some() {
                        lock(&link.changes).note(touched, kept);
                    }
                    return Ok(reply);
                }
                Err(code) => code,
            };
            match failed {
                ErrorCode::UnknownSession => {
                    zonal_types::mark!(SessionLost);
                    self.lose_session(link, header.session);
                }
                ErrorCode::NotOwner | ErrorCode::StaleEpoch => self.try_refresh_map().await?,
                // It waits to be told what is open, perhaps by this very thread.
                ErrorCode::NotReady if matches!(request, MetaRequest::Close { .. }) => {
                    return Err(failed);
                }
                ErrorCode::Unreachable
                | ErrorCode::TimedOut
                | ErrorCode::NotReady
                | ErrorCode::Overloaded => {}
                other => return Err(other),
            }
            if self.net.now() >= deadline {
                return Err(failed);
            }
            self.net.sleep(pause).await;
            pause = (pause * 2).min(RETRY_MS.1);
        }
    }

    /// One attempt. A shard whose epoch is newer tells it, for the next attempt.
    async fn send(
        &self,
        link: &Link,
        header: Header,
        body: &[u8],
        doing: &str,
        wait_ms: u64,
    ) -> Result<MetaReply, ErrorCode> {
        let shard = link.shard;
        let map = self.map();
        let known = map.shard(shard).and_then(|shard| map.node(shard.node));
        let Some(node) = known else {
            return Err(ErrorCode::NotOwner);
        };
        let mut header = header;
        header.deadline_ms = u32::try_from(self.attempt_ms() + wait_ms).unwrap_or(u32::MAX);
        let pending = self.net.start(
            &node.address,
            &Message {
                header,
                body,
                payload: &[],
            },
        );
        match self.net.finish(pending, None).await {
            Ok(reply) => {
                self.note_map_version(reply.header.map_version);
                match MetaReply::from_bytes(&reply.body).map_err(|_error| ErrorCode::Protocol)? {
                    MetaReply::StaleShard {
                        epoch, map_version, ..
                    } => {
                        self.note_map_version(map_version);
                        let mut state = lock(&link.state);
                        state.epoch = state.epoch.max(epoch);
                        Err(ErrorCode::StaleEpoch)
                    }
                    reply => Ok(reply),
                }
            }
            Err(failure) => {
                self.net.complain(
                    &format!("shard {shard} at {}", node.address),
                    doing,
                    failure,
                );
                Err(failure_code(failure))
            }
        }
    }

    fn lose_session(&self, link: &Link, session: SessionId) {
        lock(&self.known).forget_all();
        let mut state = lock(&link.state);
        if state.session == session {
            state.session = SessionId(0);
            state.is_open = false;
            state.listening = false;
        }
    }

    /// Opens the session where there is none.
    async fn open_session(&self, link: &Link, deadline: Instant) -> Result<(), ErrorCode> {
        if link.is_open() {
            return Ok(());
        }
        let _guard = wait_for(&self.net, &link.opening).await?;
        let mut pause = RETRY_MS.0;
        let mut is_old = false;
        while !link.is_open() {
            match self.open_once(link, &mut is_old).await {
                Ok(()) => break,
                Err(ErrorCode::NotOwner | ErrorCode::StaleEpoch) => self.try_refresh_map().await?,
                Err(code) if !is_passing(code) => return Err(code),
                Err(_passing) => {}
            }
            if self.net.now() >= deadline {
                return Err(ErrorCode::Unreachable);
            }
            self.net.sleep(pause).await;
            pause = (pause * 2).min(RETRY_MS.1);
        }
        Ok(())
    }

    /// Opens the session and tells what is held: only then it counts as open. `is_old`: an earlier attempt resumed it.
    async fn open_once(&self, link: &Link, is_old: &mut bool) -> Result<(), ErrorCode> {
        let request = MetaRequest::OpenSession {
            client: self.options.client,
            zone: self.options.zone,
            name: self.options.name.clone(),
        };
        let header = self.header(Service::Meta, self.next_trace());
        match self
            .send(link, header, &request.to_bytes(), request.name(), 0)
            .await
        {
            Ok(MetaReply::Session {
                session,
                boot,
                epoch,
                resumed,
                ..
            }) => {
                let mut state = lock(&link.state);
                state.session = session;
                state.epoch = epoch;
                state.boot = boot;
                state.is_untold = false;
                state.kept = kept_of(boot);
                state.acked = 0;
                *is_old |= resumed;
                if !resumed {
                    state.sequences.fill(0);
                }
            }
            Ok(MetaReply::Failed { code }) => return Err(code.0),
            Ok(_other) => return Err(ErrorCode::Protocol),
            Err(code) => return Err(code),
        }
        match self.reclaim(link, *is_old).await {
            // A lock that is lost is no reason not to go on.
            Ok(()) | Err(ErrorCode::UnknownLease) => {
                lock(&link.state).is_open = true;
                Ok(())
            }
            Err(ErrorCode::UnknownSession) => Err(ErrorCode::NotReady),
            Err(code) => Err(code),
        }
    }

    /// Tells a new or restarted session what this client still holds there.
    ///
    /// `always`: also that it holds nothing. A restarted shard keeps what an old session had open until it hears that.
    ///
    /// A restarted shard has forgotten reservations, and gives places away again once it has heard this: places that appends are being
    /// written to come first.
    async fn reclaim(&self, link: &Link, always: bool) -> Result<(), ErrorCode> {
        let appends = lock(&link.appending).clone();
        for append in appends {
            let appends = vec![append];
            match self
                .tell_held(link, MetaRequest::ReclaimAppends { appends })
                .await
            {
                Ok(()) => {}
                // The place is gone, and must not be claimed again; its append learns by itself.
                Err(ErrorCode::UnknownLease) => link.end_append(append),
                Err(code) => return Err(code),
            }
        }
        let opens = {
            let _counting = link.ending_open();
            let mut opens = self.opens_at(link.shard);
            // Their closes will be executed after this.
            opens.extend(link.ending());
            opens
        };
        let locks = self.locks_at(link.shard);
        if !always && opens.is_empty() && locks.is_empty() {
            return Ok(());
        }
        zonal_types::mark!(Reclaimed);
        self.tell_held(link, MetaRequest::Reclaim { opens, locks })
            .await
    }

    async fn tell_held(&self, link: &Link, request: MetaRequest) -> Result<(), ErrorCode> {
        let mut header = self.header(Service::Meta, self.next_trace());
        {
            let state = lock(&link.state);
            header.session = state.session;
            header.epoch = state.epoch;
        }
        let failed = match self
            .send(link, header, &request.to_bytes(), request.name(), 0)
            .await
        {
            Ok(MetaReply::Failed { code }) => code.0,
            Ok(_done) => return Ok(()),
            Err(code) => code,
        };
        if failed != ErrorCode::UnknownLease {
            lock(&link.state).is_untold = true;
        }
        Err(failed)
    }

    /// The shard came back after a restart: what it forgot is told again.
    pub(crate) async fn note_boot(&self, link: &Link, boot: u64) -> Result<(), ErrorCode> {
        let changed = {
            let mut state = lock(&link.state);
            let changed = state.boot != boot || state.is_untold;
            state.boot = boot;
            state.is_untold = false;
            state.kept = kept_of(boot);
            changed
        };
        if changed {
            self.reclaim(link, true).await?;
        }
        Ok(())
    }

    /// Until when a request that begins now is repeated.
    pub(crate) fn deadline(&self) -> Instant {
        let own = self.net.now().plus_ms(self.options.deadline_ms);
        self.net.operation_ends().map_or(own, |end| own.min(end))
    }

    /// How long an attempt waits: not beyond the end of the operation.
    fn attempt_ms(&self) -> u64 {
        let left = |end: Instant| end.ms_since(self.net.now()).max(1);
        let left = self.net.operation_ends().map_or(u64::MAX, left);
        self.options.attempt_ms.min(left)
    }

    /// Header fields that every request of this client has.
    pub(crate) fn header(&self, service: Service, trace: zonal_types::TraceId) -> Header {
        let map = self.map();
        let mut header = Header::request(service, map.cell);
        header.map_version = map.version;
        header.trace = trace;
        header.deadline_ms = u32::try_from(self.attempt_ms()).unwrap_or(u32::MAX);
        header
    }
}

/// True where trying again may help.
pub(crate) fn is_passing(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::NotReady | ErrorCode::Overloaded
    )
}

/// True where a request may have been executed, or may be when it is sent again.
fn is_unsure(code: ErrorCode) -> bool {
    is_passing(code)
        || matches!(
            code,
            ErrorCode::Interrupted | ErrorCode::StaleEpoch | ErrorCode::NotOwner
        )
}

/// The code of a request without a reply.
#[must_use]
pub fn failure_code(failure: NetFailure) -> ErrorCode {
    match failure {
        NetFailure::Unreachable => ErrorCode::Unreachable,
        NetFailure::TimedOut => ErrorCode::TimedOut,
        NetFailure::Refused(code) => code,
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
