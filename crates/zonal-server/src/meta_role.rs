//! A shard on its store: drives the core [`Shard`].
//!
//! The shard's mutex is held from deciding to logging, so that records are in the order of decisions. Waits and calls
//! to other shards happen outside of it. The effect of a request is in the log before its reply is sent.
//!
//! Wake-ups: one condition for those that wait for recalls, one a session for its event poll, one for each of the three
//! background threads (`meta_background`); all belong to the one mutex, so that no wake-up is lost.
//! Lock order: `MetaRole::state`, then `Manager::newest`, then the engine's own.

mod failed;
mod log;
mod requests;

use crate::clock;
use crate::manager_role::Manager;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::trouble::Trouble;
use failed::Failed;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use zonal_disk::Engine;
use zonal_disk::Room;
use zonal_meta::{Flushed, Now, Shard, ShardConfig};
use zonal_types::{Epoch, ErrorCode, Instant, MapVersion, SessionId, ShardId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{MetaReply, SessionEntry};

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
    hash_bits: u32,
    pub(crate) engine: Arc<Engine>,
    manager: Option<Arc<Manager>>,
    pub(crate) map: Arc<MapCache>,
    pub(crate) peers: Arc<Peers>,
    state: Mutex<State>,
    recalls: Condvar,
    pub(crate) housekeeping: Condvar,
    pub(crate) pushing: Condvar,
    pub(crate) fencing: Condvar,
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
        let hash_bits = config.hash_bits;
        let shard = Shard::load(config, known, &*engine, clock::instant())?;
        Ok(Self {
            id,
            epoch,
            hash_bits,
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
            fencing: Condvar::new(),
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
        self.fencing.notify_all();
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
    pub(crate) fn mind_deadline(&self, state: &State) {
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
}

pub(crate) fn wait_timeout<'a>(
    condition: &Condvar,
    state: MutexGuard<'a, State>,
    left: Duration,
) -> MutexGuard<'a, State> {
    let waited = condition.wait_timeout(state, left);
    waited.unwrap_or_else(PoisonError::into_inner).0
}
