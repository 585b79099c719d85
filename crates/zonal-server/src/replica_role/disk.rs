//! The host of a replica in a server: its store, the messages that wait to be sent, and the news
//! for its threads.

use super::TICK_MS;
use super::outbox::Outbox;
use crate::clock;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_consensus::{LogEntry, LogIndex, Membership, PeerMessage, ReplicaId, Term, Vote};
use zonal_disk::{DiskError, ReplicaStore, record};
use zonal_driver::ReplicaHost;
use zonal_types::limits::PAYLOAD_BYTES_MAX;
use zonal_types::{ErrorCode, KvChange};

/// Most bytes of an effect: with its envelope it travels in one payload.
const EFFECT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX / 4 * 3;

/// News for the threads of a replica.
#[derive(Default)]
pub(super) struct ReplicaNews {
    state: Mutex<NewsState>,
    changed: Condvar,
}

#[derive(Default)]
struct NewsState {
    flush: bool,
    change: bool,
    stop: bool,
}

impl ReplicaNews {
    fn state(&self) -> MutexGuard<'_, NewsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, change: impl FnOnce(&mut NewsState)) {
        change(&mut self.state());
        self.changed.notify_all();
    }

    /// Ends all waits, now and later.
    pub(super) fn stop(&self) {
        self.set(|state| state.stop = true);
    }

    /// Whether the threads are to end.
    pub(super) fn is_stopping(&self) -> bool {
        self.state().stop
    }

    /// Waits for the request of a flush; false where the thread is to end.
    pub(super) fn next_flush(&self) -> bool {
        let idle = |state: &mut NewsState| !state.flush && !state.stop;
        let woken = self.changed.wait_while(self.state(), idle);
        let mut state = woken.unwrap_or_else(PoisonError::into_inner);
        state.flush = false;
        !state.stop
    }

    /// Waits for a change of the replica, at most this long.
    pub(super) fn next_change(&self, at_most: Duration) {
        let idle = |state: &mut NewsState| !state.change && !state.stop;
        let waited = self.changed.wait_timeout_while(self.state(), at_most, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        state.change = false;
    }

    /// Sleeps this long, or until the threads are to end.
    pub(super) fn sleep(&self, time: Duration) {
        let idle = |state: &mut NewsState| !state.stop;
        drop(self.changed.wait_timeout_while(self.state(), time, idle));
    }
}

/// The store of a replica, with its messages.
pub struct ReplicaDisk {
    pub(super) own: ReplicaId,
    pub(super) store: Arc<ReplicaStore>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) news: Arc<ReplicaNews>,
    /// The time of its opening.
    pub(super) opened: zonal_types::Instant,
}

/// Logs a failure of the store, and names it for replies.
#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: DiskError) -> ErrorCode {
    tracing::error!(%error, "the store of a replica fails");
    error.code()
}

impl ReplicaHost for ReplicaDisk {
    type Log = Arc<ReplicaStore>;

    fn log(&self) -> Arc<ReplicaStore> {
        Arc::clone(&self.store)
    }

    fn ticks(&self) -> u64 {
        clock::instant().ms_since(self.opened) / TICK_MS
    }

    fn vote(&self) -> Vote {
        self.store.vote()
    }

    fn applied(&self) -> (LogIndex, Term) {
        self.store.applied_entry()
    }

    fn save_vote(&self, vote: Vote) -> Result<(), ErrorCode> {
        self.store.save_vote(vote).map_err(failed)
    }

    fn append(&self, entries: &[LogEntry]) -> Result<(), ErrorCode> {
        self.store.append(entries).map_err(failed)
    }

    fn apply(&self, entry: &LogEntry, changes: Vec<KvChange>) {
        self.store.apply(entry, changes);
    }

    fn note_members(&self, since: LogIndex, members: Membership) -> Result<(), ErrorCode> {
        tracing::info!(voters = ?members.voters, learners = ?members.learners, "members of a group");
        self.outbox.set_members(self.own, &members);
        self.store.note_members(since, members).map_err(failed)
    }

    fn encode(&self, effect: &[KvChange]) -> Result<Vec<u8>, ErrorCode> {
        let mut bytes = Vec::with_capacity(record::encoded_size(effect, &[]));
        record::encode(&mut bytes, effect, &[]).map_err(failed)?;
        if bytes.len() > EFFECT_BYTES_MAX {
            tracing::error!(bytes = bytes.len(), "an effect is too large for a group");
            return Err(ErrorCode::NoSpace);
        }
        Ok(bytes)
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<KvChange>, ErrorCode> {
        let record = record::decode(bytes);
        Ok(record.ok_or(ErrorCode::Corrupt)?.changes)
    }

    fn send(&self, messages: Vec<PeerMessage>) {
        self.outbox.add(messages);
    }

    fn request_flush(&self) {
        self.news.set(|state| state.flush = true);
    }

    fn end_quarantine(&self) -> Result<(), ErrorCode> {
        self.store.note_loss(false).map_err(failed)
    }

    fn note_change(&self) {
        self.news.set(|state| state.change = true);
    }
}
