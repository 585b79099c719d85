//! Driver of a metadata shard.
//!
//! The shard's mutex is held from decision to log append, so records are in the order of the
//! decisions. Waits, flushes and calls to other servers happen outside of it. The effect of a
//! request is in the log before its reply leaves.
//!
//! *Lock order*: `ShardDriver::state`, then the host's locks, then [`waits`].

mod arrivals;
mod deletions;
mod departures;
mod detached_directories;
mod fences;
mod host;
mod housekeeping;
mod load_reports;
mod requests;
mod waits;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use zonal_meta::{DurableTruncations, JunctionChange, MetaShard, ShardConfig, WaitOn};
use zonal_types::{Epoch, ErrorCode, Instant, KvChange, MapVersion, PartitionId, ShardId};
use zonal_zonemap::ZoneMap;

use departures::{CopyProgress, MoveProgress};
pub use host::{Durability, ShardHost, ShardNote};
use waits::{Key, Waits};

/// Intervals of the shard's background work.
#[derive(Debug, Clone, Copy)]
pub struct ShardPace {
    /// Least time between two runs of housekeeping, ms.
    pub tick_ms: u64,
    /// Age at which a directory that has no entry yet is looked at, ms.
    pub detached_ms: u64,
    /// First and longest back-off after a target did not take a deletion, ms.
    pub deletions_ms: (u64, u64),
    /// First and longest back-off after a move did not go on, ms.
    pub moves_ms: (u64, u64),
    /// First and longest back-off after a target did not take a fence, ms.
    pub fences_ms: (u64, u64),
    /// Time between two load reports, ms.
    pub load_ms: u64,
}

impl ShardPace {
    /// The intervals of a server.
    pub const SERVER: Self = Self {
        tick_ms: 20,
        detached_ms: 65_000,
        deletions_ms: (500, 60_000),
        moves_ms: (50, 5_000),
        fences_ms: (500, 5_000),
        load_ms: 2_000,
    };
}

/// The parts of which a driver is made.
pub struct ShardParts<H> {
    /// The shard's identity and bounds.
    pub config: ShardConfig,
    /// The host that it runs on.
    pub host: H,
    /// The store is empty and becomes this shard's first.
    pub is_new: bool,
    /// Intervals of its background work.
    pub pace: ShardPace,
}

/// A shard with the volatile state beside it.
struct State {
    shard: MetaShard,
    map_version: MapVersion,
    flushed: DurableTruncations,
    /// Deadline at which housekeeping wakes by itself; `None`: it has none.
    sleeps_until: Option<Instant>,
    /// True where there may be layouts to delete.
    has_deletions: bool,
    /// When to look for directories without an entry next.
    detached_at: Option<Instant>,
    /// Requests since the start.
    requests: u64,
    /// The partition that is being copied to another shard.
    copy: Option<CopyProgress>,
    /// The newest move from here, for people.
    progress: MoveProgress,
    /// Partitions have come or gone, and the shard has not begun a new life yet.
    needs_life: bool,
}

/// A shard on its host.
pub struct ShardDriver<H> {
    host: H,
    id: ShardId,
    epoch: Epoch,
    pace: ShardPace,
    state: Mutex<State>,
    waits: Waits,
    is_stopping: AtomicBool,
}

impl<H: ShardHost> ShardDriver<H> {
    /// Loads the shard from its store.
    ///
    /// # Errors
    /// The store cannot be read, is damaged, or belongs to another shard. `NotReady` where the host
    /// knows an older map than one by which the shard has given or got partitions.
    pub fn open(parts: ShardParts<H>) -> Result<Self, ErrorCode> {
        let ShardParts {
            config,
            host,
            is_new,
            pace,
        } = parts;
        let now = host.now();
        if is_new {
            let changes = MetaShard::format(&config, now.wall);
            host.append(changes, Vec::new(), Durability::AtOnce)?;
        }
        let id = config.shard;
        let map = host.map();
        let epoch = map.shard(id).map_or(Epoch(0), |shard| shard.epoch);
        let map_version = map.version;
        if map_version < zonal_meta::ownership_version(host.store())? {
            return Err(ErrorCode::NotReady);
        }
        let counts = zonal_meta::missing_counts(host.store(), &map.partitions_of(id))?;
        if !counts.is_empty() {
            host.append(counts, Vec::new(), Durability::Later)?;
        }
        let shard = MetaShard::load(config, Arc::clone(&map), host.store(), now.instant)?;
        let driver = Self {
            host,
            id,
            epoch,
            pace,
            state: Mutex::new(State {
                shard,
                map_version,
                flushed: DurableTruncations::default(),
                sleeps_until: None,
                has_deletions: true,
                detached_at: Some(now.instant.plus_ms(pace.detached_ms)),
                requests: 0,
                copy: None,
                progress: MoveProgress::default(),
                needs_life: false,
            }),
            waits: Waits::default(),
            is_stopping: AtomicBool::new(false),
        };
        let mut state = driver.lock();
        driver.adopt_moves(&mut state, &map)?;
        if state.needs_life {
            driver.begin_life(&mut state)?;
        }
        drop(state);
        Ok(driver)
    }

    /// The host that the shard runs on.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The shard's id and epoch.
    pub fn identity(&self) -> (ShardId, Epoch) {
        (self.id, self.epoch)
    }

    /// Runs `look` on the shard under its mutex.
    pub fn with_shard<T>(&self, look: impl FnOnce(&mut MetaShard) -> T) -> T {
        look(&mut self.lock().shard)
    }

    /// Number of requests and background tasks that wait.
    pub fn waiting(&self) -> usize {
        self.waits.len()
    }

    /// Ends all waits and the shard's background tasks.
    pub fn stop(&self) {
        let state = self.lock();
        self.is_stopping.store(true, Ordering::Release);
        drop(state);
        self.waits.wake_all();
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Logs an effect. The caller publishes a returned map outside of the mutex.
    fn log(
        &self,
        state: &mut State,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
    ) -> Result<Option<Arc<ZoneMap>>, ErrorCode> {
        if effect.is_empty() && junctions.is_empty() {
            return Ok(None);
        }
        use zonal_meta::keys::{
            TAG_DATA_IDS, TAG_DELETION, TAG_DEPARTURE, TAG_DETACHED, TAG_FENCE, TAG_IDS,
        };
        let (deletes, fences) = (puts(&effect, TAG_DELETION), puts(&effect, TAG_FENCE));
        // Records with these tags are flushed at once; that costs few flushes in a thousand
        // creates. A number that was given must not be given again after a loss of power. A zone
        // shard's half of a first-level directory is durable before the root shard learns of it.
        // How far a move is decides who serves.
        let at_once = [TAG_IDS, TAG_DATA_IDS, TAG_DETACHED, TAG_DEPARTURE];
        let durability = match at_once.iter().any(|tag| puts(&effect, *tag)) {
            true => Durability::AtOnce,
            false => Durability::Later,
        };
        assert!(
            !effect.iter().any(|change| is_frozen(&state.shard, change)),
            "a change of a partition whose copy is complete"
        );
        if let Some(copy) = &mut state.copy {
            copy.note(&effect);
        }
        let map = self.host.append(effect, junctions, durability)?;
        if let Some(map) = &map {
            state.map_version = map.version;
            state.shard.set_map(Arc::clone(map));
        }
        if deletes && !state.has_deletions {
            state.has_deletions = true;
            self.waits.wake(Key::Deletions);
        }
        if fences {
            self.waits.wake(Key::Fences);
        }
        Ok(map)
    }

    fn wake(&self, of: &[WaitOn], recheck: bool) {
        for on in of {
            self.waits.wake(Key::Request(*on));
        }
        if recheck {
            self.waits.wake_but_events();
        }
    }

    /// Wakes housekeeping where the shard has an earlier deadline than the one it sleeps until.
    fn wake_for_deadline(&self, state: &State) {
        let is_earlier = match (state.shard.poll_deadline(), state.sleeps_until) {
            (Some(deadline), Some(planned)) => deadline < planned,
            (Some(_), None) => true,
            (None, _) => false,
        };
        if is_earlier {
            self.waits.wake(Key::Housekeeping);
        }
    }

    /// Adopts the newest map that this process knows.
    fn adopt_map(&self, state: &mut State) {
        let map = self.host.map();
        if map.version > state.map_version && self.adopt_moves(state, &map).is_ok() {
            state.map_version = map.version;
            state.shard.set_map(map);
        }
        if state.needs_life {
            // Where the store cannot be read, each request finds that out by itself.
            self.begin_life(state).ok();
        }
    }

    /// Fetches the manager's map, adopts it and returns its version. Without an answer the version
    /// known here is returned.
    pub async fn adopt_newest_map(&self) -> MapVersion {
        self.host.seek_map(self.host.map().version).await;
        let mut state = self.lock();
        self.adopt_map(&mut state);
        state.map_version
    }
}

/// True where the change is of a partition about which the shard decides no more.
fn is_frozen(shard: &MetaShard, change: &KvChange) -> bool {
    let partition = change.key.first_chunk::<4>();
    partition.is_some_and(|of| shard.is_frozen(PartitionId(u32::from_be_bytes(*of))))
}

/// True where the effect sets a key with this tag, the key's fifth byte ([`zonal_meta::keys`]).
fn puts(effect: &[KvChange], tag: u8) -> bool {
    effect
        .iter()
        .any(|change| change.value.is_some() && change.key.get(4) == Some(&tag))
}
