//! A shard on its store: drives the core [`Shard`].
//!
//! The shard's mutex is held from deciding to logging, so that records are in the order of decisions. Waits and calls
//! to other shards happen outside of it. The effect of a request is in the log before its reply is sent.
//!
//! Wake-ups: one condition for those that wait for recalls, one a session for its event poll, one for each of the two
//! background threads (`meta_background`); all belong to the one mutex, so that no wake-up is lost.
//! Lock order: `MetaRole::state`, then `Manager::newest`, then the engine's own.

mod failed;
mod log;

use crate::clock;
use crate::manager_role::Manager;
use crate::map_cache::MapCache;
use crate::peers::{PeerError, Peers};
use crate::trouble::Trouble;
use failed::Failed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_disk::Engine;
use zonal_disk::Room;
use zonal_meta::{Attempt, Caller, Flushed, Now, Outcome, PendingCall, Shard, ShardConfig, WaitOn};
use zonal_types::{Epoch, ErrorCode, Instant, MapVersion, SessionId, ShardId, ZoneId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, MetaReply, MetaRequest, SessionEntry};

/// How long after its making a directory is looked at that has no entry yet.
const DETACHED_CHECK_MS: u64 = 65_000;

pub(crate) struct State {
    pub shard: Shard,
    map_version: MapVersion,
    sessions: BTreeMap<SessionId, Arc<Condvar>>,
    /// When the housekeeping thread wakes by itself; `None`: not at all.
    pub sleeps_until: Option<Instant>,
    flushed: Flushed,
    /// There may be layouts to delete.
    pub has_deletions: bool,
    /// When to look for directories without an entry.
    pub detached_at: Option<Instant>,
}

/// The shard of a node.
pub struct MetaRole {
    id: ShardId,
    epoch: Epoch,
    pub(crate) engine: Arc<Engine>,
    manager: Option<Arc<Manager>>,
    pub(crate) map: Arc<MapCache>,
    pub(crate) peers: Arc<Peers>,
    state: Mutex<State>,
    recalls: Condvar,
    pub(crate) housekeeping: Condvar,
    pub(crate) pushing: Condvar,
    failed: AtomicBool,
    stopping: AtomicBool,
    pub(crate) trouble: Trouble,
    store_failed: Failed,
}

/// The time, for the core.
pub(crate) fn now() -> Now {
    Now {
        instant: clock::instant(),
        wall: clock::wall(),
    }
}

fn failure(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}

/// What [`MetaRole::open`] needs.
pub struct Parts {
    /// Which shard.
    pub config: ShardConfig,
    /// Its store.
    pub engine: Arc<Engine>,
    /// The manager beside it (the root shard's only).
    pub manager: Option<Arc<Manager>>,
    /// The map.
    pub map: Arc<MapCache>,
    /// Other servers.
    pub peers: Arc<Peers>,
}

impl MetaRole {
    /// Loads the shard; an empty store becomes this shard's first.
    ///
    /// # Errors
    /// Where the store cannot be read, is damaged, or is another shard's.
    pub fn open(parts: Parts, is_new: bool) -> Result<Self, ErrorCode> {
        let Parts {
            config,
            engine,
            manager,
            map,
            peers,
        } = parts;
        if is_new {
            let changes = Shard::format(&config, clock::wall());
            engine.append_with(changes, &[], Room::Normal)?;
            engine.sync_all()?;
        }
        let id = config.shard;
        let known = map.current();
        let epoch = known.shard(id).map_or(Epoch(0), |shard| shard.epoch);
        let map_version = known.version;
        let shard = Shard::load(config, known, &*engine, clock::instant())?;
        Ok(Self {
            id,
            epoch,
            engine,
            manager,
            map,
            peers,
            state: Mutex::new(State {
                flushed: Flushed::default(),
                shard,
                map_version,
                sessions: BTreeMap::new(),
                sleeps_until: None,
                has_deletions: true,
                detached_at: Some(clock::instant().plus_ms(DETACHED_CHECK_MS)),
            }),
            recalls: Condvar::new(),
            housekeeping: Condvar::new(),
            pushing: Condvar::new(),
            failed: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            trouble: Trouble::default(),
            store_failed: Failed::default(),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Sessions behind `after`; true: nothing follows.
    pub(crate) fn sessions(&self, after: SessionId, limit: u32) -> (Vec<SessionEntry>, bool) {
        self.lock().shard.sessions(after, limit, now().instant)
    }

    /// Which shard it is, and its epoch.
    pub(crate) fn identity(&self) -> (ShardId, Epoch) {
        (self.id, self.epoch)
    }

    /// Whether it serves.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        !self.failed.load(Ordering::Acquire) && !self.engine.failed()
    }

    /// Figures for people.
    #[must_use]
    pub fn gauges(&self) -> Vec<(String, u64)> {
        let own = self.lock().shard.gauges();
        let stats = self.engine.stats();
        let overlay = self.engine.overlay_memory();
        let named = |name: &str| format!("shard_{name}{{shard=\"{}\"}}", self.id);
        let mut gauges: Vec<(String, u64)> = own
            .into_iter()
            .map(|(name, value)| (named(name), value))
            .collect();
        gauges.extend([
            (named("log_used_bytes"), stats.log_used),
            (named("log_used_bytes_max"), stats.log_capacity),
            (named("overlay_bytes"), overlay.0),
            (named("overlay_bytes_max"), overlay.1),
            (
                named("index_cache_bytes_max"),
                self.engine.index_cache_bytes(),
            ),
            (named("checkpoints_total"), stats.checkpoints),
            (named("flushes_total"), stats.flushes),
            (named("index_damaged_blocks_total"), stats.damaged_blocks),
            (named("full"), u64::from(self.is_full())),
            (named("healthy"), u64::from(self.is_healthy())),
        ]);
        let failed = self.store_failed.gauges();
        gauges.extend(failed.map(|(name, value)| (named(name), value)));
        gauges
    }

    /// Ends waits and background threads.
    pub fn stop(&self) {
        let state = self.lock();
        self.stopping.store(true, Ordering::Release);
        for session in state.sessions.values() {
            session.notify_all();
        }
        drop(state);
        self.recalls.notify_all();
        self.housekeeping.notify_all();
        self.pushing.notify_all();
    }

    pub(crate) fn wake(&self, state: &State, sessions: &[SessionId], recheck: bool) {
        for session in sessions {
            if let Some(poller) = state.sessions.get(session) {
                poller.notify_all();
            }
        }
        if recheck {
            self.recalls.notify_all();
        }
    }

    /// The housekeeping thread sleeps until the deadline that it saw last: tells it of an earlier one.
    fn mind_deadline(&self, state: &State) {
        let deadline = state.shard.poll_deadline();
        let is_earlier = match (deadline, state.sleeps_until) {
            (Some(deadline), Some(planned)) => deadline < planned,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if is_earlier {
            self.housekeeping.notify_all();
        }
    }

    fn take_map(&self, state: &mut State, hint: MapVersion) {
        let map = self.map.current();
        if map.version > state.map_version {
            state.map_version = map.version;
            state.shard.set_map(map);
        }
        if hint > state.map_version {
            tracing::debug!(
                hint = hint.0,
                "a sender names a map that the manager does not give"
            );
        }
    }

    /// Answers a request, when it can be answered.
    pub fn handle(&self, header: &Header, request: &MetaRequest) -> MetaReply {
        let mut reply = self.answer(header, request).unwrap_or_else(failure);
        if let MetaReply::StatFs { names_left, .. } = &mut reply {
            *names_left = self.names_left();
        }
        if let MetaReply::Failed { code } = &reply {
            self.note_failure(request, code.0);
        }
        reply
    }

    fn answer(&self, header: &Header, request: &MetaRequest) -> Result<MetaReply, ErrorCode> {
        if !self.is_healthy() {
            return Err(ErrorCode::Io);
        }
        if header.epoch != Epoch(0) && header.epoch < self.epoch {
            return self.stale();
        }
        if matches!(request, MetaRequest::Sync) {
            self.sync()?;
            let boot = self.lock().shard.boot();
            return Ok(MetaReply::Synced { boot });
        }
        if matches!(request, MetaRequest::StatFs) && header.session == SessionId(0) {
            // A tool without a session.
            let gauges = self.lock().shard.gauges();
            let found = gauges.iter().find(|(name, _)| *name == "inodes");
            let inodes = found.map_or(0, |(_, value)| *value);
            return Ok(MetaReply::StatFs {
                inodes,
                names_left: u64::MAX,
            });
        }
        self.map.at_least(header.map_version);
        let has_room = match self.check_room(request) {
            Ok(()) => true,
            Err(ErrorCode::NoSpace) => false,
            Err(code) => return Err(code),
        };
        let caller = Caller {
            session: header.session,
            slot: header.slot,
            sequence: header.sequence,
        };
        let mut state = self.lock();
        self.take_map(&mut state, header.map_version);
        if matches!(request, MetaRequest::MakeDetachedDir { .. }) && state.detached_at.is_none() {
            state.detached_at = Some(clock::instant().plus_ms(DETACHED_CHECK_MS));
            self.pushing.notify_all();
        }
        let (shard, kv) = (&mut state.shard, &*self.engine);
        let mut outcome = if has_room {
            shard.handle(kv, now(), caller, request, None)
        } else {
            shard.handle_full(kv, caller, request)
        };
        loop {
            match outcome {
                Outcome::Reply {
                    reply,
                    effect,
                    junctions,
                    wake,
                    recheck,
                    after,
                } => {
                    let map = self.log(&mut state, effect, junctions)?;
                    self.wake(&state, &wake, recheck);
                    self.mind_deadline(&state);
                    let is_missing = state.flushed.is_missing(request, &reply);
                    drop(state);
                    self.settle(map)?;
                    self.make_calls(after);
                    if is_missing {
                        self.sync()?;
                        self.lock().flushed.note(&reply);
                    }
                    return Ok(reply);
                }
                Outcome::Wait {
                    attempt,
                    until,
                    on,
                    wake,
                    recheck,
                } => {
                    self.wake(&state, &wake, recheck);
                    self.mind_deadline(&state);
                    state = self.wait(state, attempt, until, on)?;
                    outcome =
                        state
                            .shard
                            .handle(&*self.engine, now(), caller, request, Some(attempt));
                }
                Outcome::Call {
                    zone,
                    request: question,
                    call,
                    wake,
                } => {
                    self.wake(&state, &wake, false);
                    drop(state);
                    let (resumed, next) = self.ask(zone, &question, call);
                    state = resumed;
                    outcome = next;
                }
            }
        }
    }

    /// What a sender with an older epoch must know.
    fn stale(&self) -> Result<MetaReply, ErrorCode> {
        let map = self.map.current();
        let own = map.shard(self.id).ok_or(ErrorCode::StaleEpoch)?;
        Ok(MetaReply::StaleShard {
            shard: self.id,
            node: own.node,
            epoch: self.epoch,
            map_version: map.version,
        })
    }

    fn ask(
        &self,
        zone: ZoneId,
        question: &MetaRequest,
        call: PendingCall,
    ) -> (MutexGuard<'_, State>, Outcome) {
        let reply = self.call_zone(zone, question).unwrap_or_else(|error| {
            tracing::warn!(%error, zone = zone.0, operation = question.name(), "a shard does not help");
            failure(error.code())
        });
        let mut state = self.lock();
        let outcome = state.shard.resume(&*self.engine, now(), call, reply);
        (state, outcome)
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        attempt: Attempt,
        until: Instant,
        on: WaitOn,
    ) -> Result<MutexGuard<'a, State>, ErrorCode> {
        if self.is_stopping() {
            state.shard.abandon(attempt);
            return Err(ErrorCode::NotReady);
        }
        let left = clock::until(until);
        match on {
            WaitOn::Recalls => Ok(wait_timeout(&self.recalls, state, left)),
            WaitOn::Events(session) => {
                let poller = Arc::clone(state.sessions.entry(session).or_default());
                let mut state = wait_timeout(&poller, state, left);
                // The map's and ours: nobody else waits.
                if Arc::strong_count(&poller) == 2 {
                    state.sessions.remove(&session);
                }
                Ok(state)
            }
        }
    }

    /// Sends what nobody waits for; what fails is settled by housekeeping later.
    pub(crate) fn make_calls(&self, calls: Vec<(ZoneId, MetaRequest)>) {
        for (zone, request) in calls {
            if let Err(error) = self.call_zone(zone, &request) {
                tracing::warn!(%error, zone = zone.0, operation = request.name(), "left to housekeeping");
            }
        }
    }

    fn call_zone(&self, zone: ZoneId, request: &MetaRequest) -> Result<MetaReply, PeerError> {
        let node = self
            .map
            .current()
            .shard_of_zone(zone)
            .map(|shard| shard.node);
        let node = node.ok_or_else(|| PeerError::Unknown {
            what: format!("metadata of zone {zone}"),
        })?;
        self.peers.shard(&self.map, node, request)
    }

    /// A request that this process makes of its own shard.
    pub(crate) fn own_request(&self, request: &MetaRequest) -> MetaReply {
        let header = Header::request(zonal_wire::Service::Meta, self.map.current().cell);
        self.handle(&header, request)
    }
}

pub(crate) fn wait_timeout<'a>(
    condition: &Condvar,
    state: MutexGuard<'a, State>,
    left: Duration,
) -> MutexGuard<'a, State> {
    let waited = condition.wait_timeout(state, left);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
