//! The replica role: a replica of a shard on this node. While it leads its group, the shard serves
//! here.
//!
//! The *supervisor* thread opens the store. It opens the shard when a reign begins, and ends it
//! with the reign. Where the replica has ended ([`ReplicaEnd`]), it opens the store anew. Beside it
//! are a thread for ticks, one for flushes, and one for the calls to each other replica
//! ([`outbox`]). None of them waits for another replica while it holds a lock.

mod disk;
mod founding;
mod group_log;
mod map_relay;
mod membership;
mod outbox;
mod request_calls;
mod requests;
mod snapshots;
mod start_checks;

use crate::clock;
use crate::manager_role::{ManagerParts, ManagerRole};
use crate::map_cache::MapCache;
use crate::meta_role::{MetaRole, MetaRoleParts};
use crate::peers::Peers;
use crate::rate_limited_log::RateLimit;
use crate::shard_log::ShardLog;
use disk::ReplicaNews;
use map_relay::MapRelay;
use outbox::{Outbox, member_on, node_of};
use snapshots::Snapshots;
use start_checks::StartChecks;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zonal_consensus::{MemberConfig, Membership, Term};
use zonal_disk::engine::EngineConfig;
use zonal_disk::{
    Checkpointer, DiskError, Engine, ReplicaStore, StoreDir, StoreIdentity, spawn_checkpointer,
};
use zonal_driver::{ReplicaDriver, ReplicaEnd};
use zonal_meta::ShardConfig;
use zonal_net::Peer;
use zonal_types::{ErrorCode, NodeId, ShardId, boot_of};
use zonal_wire::{ManagerReply, ManagerRequest, MetaReply};
use zonal_zonemap::ZoneMap;

pub use disk::ReplicaDisk;
pub(crate) use group_log::GroupLog;
pub(crate) use request_calls::{RequestCalls, leave_to_others};

/// Length of a tick, ms. A leader sends heartbeats each [`HEARTBEAT_TICKS`].
const TICK_MS: u64 = 40;
/// The same.
const TICK: Duration = Duration::from_millis(TICK_MS);
/// Ticks between two heartbeats.
const HEARTBEAT_TICKS: u32 = 4;
/// Ticks without a leader after which a member may stand, up to twice as many: 0.8 to 1.6 s. A busy
/// machine delays a thread by tenths of a second, so that shorter ones give false alarms.
const ELECTION_TICKS: u32 = 20;
/// How often the supervisor looks at the map and at its members.
const LOOK: Duration = Duration::from_millis(200);
/// How long an ended shard's requests may hold its store.
const RELEASE: Duration = Duration::from_secs(20);
/// Pause after a failure of the store.
const FAILED_PAUSE: Duration = Duration::from_secs(2);
/// Pause between two complaints of a replica that is refused.
const COMPLAINT_PAUSE: Duration = Duration::from_secs(600);
/// How long a checkpoint waits for the commit of what it holds.
const COMMIT_WAIT: Duration = Duration::from_secs(10);
/// The part of a boot number that changes where acknowledged changes may be lost. A group keeps
/// them, as long as it has a majority.
const GROUP_KEPT: u32 = 1;

/// How a replica is made.
pub(crate) struct ReplicaParts {
    /// This node.
    pub node: NodeId,
    /// The shard, with a boot number that each reign replaces.
    pub config: ShardConfig,
    /// Folder of its store.
    pub dir: StoreDir,
    /// Identity of its store.
    pub identity: StoreIdentity,
    /// Its number, drawn when it was formatted.
    pub uuid: [u8; 16],
    /// Bounds of its store.
    pub bounds: EngineConfig,
    /// The map cache.
    pub map: Arc<MapCache>,
    /// Calls to other servers.
    pub peers: Arc<Peers>,
    /// Of the root's shard: those of the manager, which serves with it.
    pub manager: Option<Arc<ManagerParts>>,
}

/// A replica of a shard.
pub struct ReplicaRole {
    parts: ReplicaParts,
    news: Arc<ReplicaNews>,
    outbox: Arc<Outbox>,
    snapshots: Snapshots,
    life: RwLock<Option<Arc<ReplicaLife>>>,
    serving: RwLock<Serving>,
    /// The generation in which the group went on without this replica, once it knows.
    superseded: OnceLock<u64>,
    relay: MapRelay,
    starts: StartChecks,
}

/// The roles that serve while this replica leads. The manager begins before the root's shard, which
/// needs a place in the map.
#[derive(Clone, Default)]
struct Serving {
    manager: Option<Arc<ManagerRole>>,
    shard: Option<Arc<MetaRole>>,
}

/// A reign of this replica.
struct Reign {
    term: Term,
    threads: Vec<JoinHandle<()>>,
}

/// A replica between an opening of its store and the next.
struct ReplicaLife {
    driver: Arc<ReplicaDriver<ReplicaDisk>>,
    store: Arc<ReplicaStore>,
}

/// An open store.
pub(crate) struct OpenReplica {
    store: Arc<ReplicaStore>,
    checkpointer: Checkpointer,
    life: Arc<RwLock<Option<std::sync::Weak<ReplicaDriver<ReplicaDisk>>>>>,
}

/// How the store of a replica is opened first.
pub(crate) enum FirstOpening {
    /// It is open.
    Open(Box<OpenReplica>),
    /// Untouched, and its group's first member where none of the others has a group.
    Founds {
        /// Their addresses.
        others: Vec<SocketAddr>,
    },
}

impl ReplicaRole {
    /// A replica that is not started yet.
    pub(crate) fn new(parts: ReplicaParts) -> Arc<Self> {
        let (peers, map) = (Arc::clone(&parts.peers), Arc::clone(&parts.map));
        Arc::new(Self {
            outbox: Outbox::new(parts.config.shard, peers, map),
            news: Arc::default(),
            snapshots: Snapshots::default(),
            life: RwLock::default(),
            serving: RwLock::default(),
            superseded: OnceLock::new(),
            relay: MapRelay::default(),
            starts: StartChecks::default(),
            parts,
        })
    }

    /// Opens the store. `founds`: it is the first of its group, and its contents are the group's.
    ///
    /// # Errors
    /// The store cannot be opened.
    pub(crate) fn open_store(&self, founds: bool) -> Result<OpenReplica, DiskError> {
        let ReplicaParts {
            dir,
            identity,
            bounds,
            node,
            ..
        } = &self.parts;
        let mut found = Vec::new();
        let engine = Engine::open_in(dir, identity, *bounds, &mut |record, end, _| {
            if record.changes.is_empty() {
                found.push((record.note.clone(), end));
            }
            true
        })?;
        if founds && ReplicaStore::is_untouched(&engine, dir)? {
            let members = Membership::of_voters([member_on(*node)]);
            ReplicaStore::begin(&engine, members)?;
        }
        let engine = Arc::new(engine);
        let store = Arc::new(ReplicaStore::over(Arc::clone(&engine), dir.clone(), found)?);
        let life = Arc::new(RwLock::new(None));
        let job = checkpoint_job(&store, Arc::clone(&life));
        let failed = RateLimit::default();
        let report = Box::new(move |error| {
            if failed.is_due() {
                tracing::error!(%error, "a checkpoint of a replica failed");
            }
        });
        let checkpointer = spawn_checkpointer(&engine, job, report)?;
        Ok(OpenReplica {
            store,
            checkpointer,
            life,
        })
    }

    /// True where the store was never a member's.
    ///
    /// # Errors
    /// The store cannot be opened.
    pub(crate) fn is_untouched(&self) -> Result<bool, DiskError> {
        let ReplicaParts {
            dir,
            identity,
            bounds,
            ..
        } = &self.parts;
        let engine = Engine::open_in(dir, identity, *bounds, &mut |_, _, _| true)?;
        ReplicaStore::is_untouched(&engine, dir)
    }

    /// Starts the supervisor, which opens the store once the others are known where it is not open.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub(crate) fn start(self: &Arc<Self>, store: FirstOpening) -> std::io::Result<JoinHandle<()>> {
        let role = Arc::clone(self);
        let thread = std::thread::Builder::new().name("replica".into());
        thread.spawn(move || role.supervise(store))
    }

    /// The shard, while this replica leads.
    pub fn serving(&self) -> Option<Arc<MetaRole>> {
        let serving = self.serving.read().unwrap_or_else(PoisonError::into_inner);
        serving.shard.clone()
    }

    /// The manager, while this replica of the root's shard leads.
    pub(crate) fn manager(&self) -> Option<Arc<ManagerRole>> {
        let serving = self.serving.read().unwrap_or_else(PoisonError::into_inner);
        serving.manager.clone()
    }

    /// The answer to a request for the manager while this replica does not lead.
    pub(crate) fn answer_for_manager(&self, peer: &Peer, request: &ManagerRequest) -> ManagerReply {
        self.relay.answer(&self.parts.map, peer, request)
    }

    /// The parts of the manager, of a replica of the root's shard.
    pub(crate) fn manager_parts(&self) -> Option<&Arc<ManagerParts>> {
        self.parts.manager.as_ref()
    }

    fn serve(&self, serving: Serving) {
        *self.serving.write().unwrap_or_else(PoisonError::into_inner) = serving;
    }

    /// True while this is the shard that serves, and its reign goes on.
    pub(crate) fn serves(&self, role: &Arc<MetaRole>) -> bool {
        let leads = || {
            self.life()
                .is_some_and(|life| life.driver.reign().is_some())
        };
        self.serving()
            .is_some_and(|serving| Arc::ptr_eq(&serving, role))
            && leads()
    }

    /// The thread of a request begins to make calls to other replicas.
    pub(crate) fn begin_calls(&self) -> RequestCalls {
        RequestCalls::begin(&self.outbox)
    }

    /// The shard of the replica.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.parts.config.shard
    }

    /// The reply to requests that another replica has to answer.
    pub(crate) fn not_leader(&self) -> MetaReply {
        let leader = self.life().and_then(|life| life.driver.leader());
        MetaReply::NotLeader {
            leader: leader.map_or(NodeId(0), node_of),
        }
    }

    /// True while it works with its store.
    pub(crate) fn is_healthy(&self) -> bool {
        self.life().is_some()
    }

    /// Ends the replica; a leader first hands over.
    pub(crate) fn stop(&self) {
        if let Some(life) = self.life() {
            membership::hand_over(&life.driver, self.parts.node);
        }
        self.news.stop();
        if let Some(shard) = self.serving() {
            shard.stop();
        }
    }

    fn life(&self) -> Option<Arc<ReplicaLife>> {
        let life = self.life.read().unwrap_or_else(PoisonError::into_inner);
        life.clone()
    }

    fn supervise(self: &Arc<Self>, first: FirstOpening) {
        let (mut next, mut founds) = match first {
            FirstOpening::Open(store) => (Some(*store), false),
            FirstOpening::Founds { others } => (None, founding::is_first(self, &others)),
        };
        while !self.news.is_stopping() && self.superseded_in().is_none() {
            let opened = match next.take() {
                Some(open) => Ok(open),
                None => self.open_store(std::mem::take(&mut founds)),
            };
            let ended = opened.and_then(|open| self.live(open));
            if let Err(error) = ended {
                tracing::error!(%error, shard = self.shard().0, "a replica starts again");
                self.news.sleep(FAILED_PAUSE);
            }
        }
        self.outbox.stop();
        self.complain_until_stopped();
    }

    /// The generation in which the group went on without this replica.
    fn superseded_in(&self) -> Option<u64> {
        self.superseded.get().copied()
    }

    /// Says again and again that this replica's store must not be used, until the role stops.
    fn complain_until_stopped(&self) {
        let Some(generation) = self.superseded_in() else {
            return;
        };
        while !self.news.is_stopping() {
            tracing::error!(
                shard = self.shard().0,
                generation,
                dir = %self.parts.dir.path().display(),
                "this replica is refused: its group went on without it after `zonal shard recover`. \
                 Hint: take the node out with `zonal shard remove`, and start an empty store \
                 under a new node number"
            );
            self.news.sleep(COMPLAINT_PAUSE);
        }
    }

    fn member_config(&self, store: &ReplicaStore) -> MemberConfig {
        MemberConfig {
            group: self.shard().0.into(),
            own: member_on(self.parts.node),
            generation: store.generation(),
            life: store.life(),
            seed: clock::boot_number(),
            election_ticks: ELECTION_TICKS,
            heartbeat_ticks: HEARTBEAT_TICKS,
            may_have_lost: store.may_have_lost(),
        }
    }

    /// Works with an open store until the replica ends, and closes it.
    fn live(self: &Arc<Self>, open: OpenReplica) -> Result<(), DiskError> {
        let OpenReplica {
            store,
            checkpointer,
            life: place,
        } = open;
        self.remember_map(&store);
        let news = Arc::new(ReplicaNews::default());
        let host = self.host(&store, &news);
        let config = self.member_config(&store);
        let opened = ReplicaDriver::open(config, host);
        let driver =
            Arc::new(opened.map_err(|error| DiskError::Corrupt(format!("a replica: {error}")))?);
        *place.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::downgrade(&driver));
        let life = Arc::new(ReplicaLife {
            driver: Arc::clone(&driver),
            store: Arc::clone(&store),
        });
        self.set_life(Some(Arc::clone(&life)));
        let to = Arc::downgrade(&life);
        let role = Arc::downgrade(self);
        self.outbox.deliver_to(Some(Box::new(move |from, messages| {
            if let (Some(life), Some(role)) = (to.upgrade(), role.upgrade())
                && role.is_newest_image(&life.store, from, messages)
            {
                requests::take_in(&life.driver, from, messages);
            }
        })));
        let end = std::thread::scope(|scope| {
            let (driver, news) = (&*driver, &*news);
            scope.spawn(move || {
                while driver.end().is_none() {
                    news.sleep(TICK);
                    driver.tick();
                    self.outbox.look();
                }
            });
            scope.spawn(|| flush_as_ordered(driver, &store, news));
            let end = self.serve_reigns(&life, news);
            driver.stop();
            news.stop();
            end
        });
        self.outbox.deliver_to(None);
        self.set_life(None);
        self.snapshots.clear();
        drop((life, driver, checkpointer));
        match end {
            Some(ReplicaEnd::Behind(offer)) => {
                snapshots::install(&self.parts, &store, node_of(offer.from))?;
            }
            Some(ReplicaEnd::Superseded(generation)) => {
                self.superseded.get_or_init(|| generation);
            }
            Some(ReplicaEnd::Failed(code)) if !self.news.is_stopping() => {
                tracing::error!(%code, shard = self.shard().0, "a replica has failed");
                self.news.sleep(FAILED_PAUSE);
            }
            Some(ReplicaEnd::Replaced | ReplicaEnd::Failed(_)) | None => {}
        }
        let engine = Arc::clone(store.engine());
        drop(store);
        await_release(&engine)
    }

    fn host(&self, store: &Arc<ReplicaStore>, news: &Arc<ReplicaNews>) -> ReplicaDisk {
        let own = member_on(self.parts.node);
        self.outbox.set_members(own, &store.applied().members);
        ReplicaDisk {
            own,
            store: Arc::clone(store),
            outbox: Arc::clone(&self.outbox),
            news: Arc::clone(news),
            opened: clock::instant(),
        }
    }

    /// Of the root's shard: finds the others by the map that it last knew.
    fn remember_map(&self, store: &ReplicaStore) {
        if self.parts.manager.is_some()
            && let Ok(Some(map)) = ZoneMap::load(&**store.engine())
        {
            self.parts.map.remember(map);
        }
    }

    fn set_life(&self, life: Option<Arc<ReplicaLife>>) {
        *self.life.write().unwrap_or_else(PoisonError::into_inner) = life;
    }

    /// Opens the shard for each reign, until the replica ends or the role stops.
    fn serve_reigns(&self, life: &Arc<ReplicaLife>, news: &ReplicaNews) -> Option<ReplicaEnd> {
        let driver = &life.driver;
        let mut reigns: Option<Reign> = None;
        let mut looked = Instant::now();
        let end = loop {
            let end = driver.end();
            if end.is_some() || self.news.is_stopping() {
                break end;
            }
            let reign = driver.reign();
            if let Some(Reign { term, .. }) = &reigns
                && reign != Some(*term)
            {
                self.end_reign(reigns.take());
            }
            if let Some(term) = reign
                && self.serving().is_none()
            {
                let threads = Vec::new();
                let reign = reigns.get_or_insert(Reign { term, threads });
                match self.begin_reign(life, term) {
                    Ok(threads) => reign.threads = threads,
                    // The first manager has not joined its own cell yet.
                    Err(ErrorCode::NotReady) => news.sleep(TICK),
                    Err(code) => {
                        tracing::warn!(%code, shard = self.shard().0, "the shard cannot be opened");
                        news.sleep(TICK);
                    }
                }
            }
            if looked.elapsed() >= LOOK {
                looked = Instant::now();
                self.snapshots.expire();
                membership::look(&self.parts, driver);
            }
            news.next_change(LOOK);
        };
        self.end_reign(reigns);
        end
    }

    /// Opens the shard, with the manager where it is the root's; returns its threads. `NotReady`:
    /// the manager serves, and the map does not have the shard yet.
    fn begin_reign(
        &self,
        life: &Arc<ReplicaLife>,
        reign: Term,
    ) -> Result<Vec<JoinHandle<()>>, ErrorCode> {
        let engine = life.store.engine();
        let mut serving = Serving {
            manager: self.manager(),
            shard: None,
        };
        // The manager and the root's shard write one log.
        let log = match &serving.manager {
            Some(manager) => manager.log().clone(),
            None => {
                let group = GroupLog::new(Arc::clone(&life.driver), reign);
                ShardLog::of_group(Arc::clone(engine), group)
            }
        };
        let mut config = self.parts.config.clone();
        if let Some(parts) = &self.parts.manager {
            let manager = match serving.manager.take() {
                Some(manager) => manager,
                None => {
                    let manager = begin_managing(log.clone(), parts)?;
                    self.serve(Serving {
                        manager: Some(Arc::clone(&manager)),
                        shard: None,
                    });
                    manager
                }
            };
            let map = self.parts.map.current();
            config.zone = map.shard(config.shard).ok_or(ErrorCode::NotReady)?.zone;
            serving.manager = Some(manager);
        }
        config.boot = boot_of(GROUP_KEPT, crate::server::low_half(clock::boot_number()));
        let is_new = crate::server::is_without_shard(engine)?;
        let parts = MetaRoleParts {
            config,
            log,
            manager: serving.manager.clone(),
            map: Arc::clone(&self.parts.map),
            peers: Arc::clone(&self.parts.peers),
        };
        let role = Arc::new(MetaRole::open(parts, is_new)?);
        let threads = role.start().map_err(|_refused| ErrorCode::NoMemory)?;
        tracing::info!(
            shard = self.shard().0,
            term = reign.0,
            "this replica leads its shard"
        );
        serving.shard = Some(role);
        self.serve(serving);
        Ok(threads)
    }

    fn end_reign(&self, reign: Option<Reign>) {
        let Some(Reign { term, threads }) = reign else {
            return;
        };
        let shard = self.serving();
        self.serve(Serving::default());
        if let Some(role) = shard {
            role.stop();
        }
        for thread in threads {
            // The hook has logged a panic already.
            let _ = thread.join();
        }
        tracing::info!(
            shard = self.shard().0,
            term = term.0,
            "this replica's reign is over"
        );
    }
}

/// Opens the manager of a reign.
fn begin_managing(log: ShardLog, parts: &Arc<ManagerParts>) -> Result<Arc<ManagerRole>, ErrorCode> {
    let manager = ManagerRole::open(log, Arc::clone(parts));
    let manager = manager.and_then(|manager| {
        manager.set_width(parts.set_width)?;
        Ok(manager)
    });
    match manager {
        Ok(manager) => Ok(Arc::new(manager)),
        Err(error) => {
            tracing::warn!(%error, "the manager cannot be opened");
            Err(error.code())
        }
    }
}

/// Flushes the log as the replica orders, until the thread is to end.
fn flush_as_ordered(driver: &ReplicaDriver<ReplicaDisk>, store: &ReplicaStore, news: &ReplicaNews) {
    while news.next_flush() {
        let Some(order) = driver.take_flush() else {
            continue;
        };
        // Entries that a snapshot has replaced, or that are in the index, are durable.
        let flushed = match store.end_of(order.index) {
            Some(end) => store.engine().sync(end),
            None => Ok(()),
        };
        match flushed {
            Ok(()) => driver.flushed(order),
            Err(error) => {
                tracing::error!(%error, "a replica cannot flush its log");
                driver.fail(error.code());
            }
        }
    }
}

/// A checkpoint that waits until everything in it is committed: the index cannot take it back.
fn checkpoint_job(
    store: &Arc<ReplicaStore>,
    life: Arc<RwLock<Option<std::sync::Weak<ReplicaDriver<ReplicaDisk>>>>>,
) -> zonal_disk::engine::checkpoint::CheckpointJob {
    let store = Arc::downgrade(store);
    Box::new(move |engine| {
        let checkpoint = engine.begin_checkpoint();
        let Some(applied) = store.upgrade().map(|store| store.applied_entry().0) else {
            return Ok(());
        };
        checkpoint.commit(&mut || {
            let until = Instant::now() + COMMIT_WAIT;
            loop {
                let driver = life.read().unwrap_or_else(PoisonError::into_inner).clone();
                let driver = driver.and_then(|driver| driver.upgrade());
                let driver = driver.ok_or(DiskError::Failed)?;
                if driver.end().is_some() {
                    return Err(DiskError::Failed);
                }
                if driver.status().committed >= applied {
                    return Ok(());
                }
                drop(driver);
                if Instant::now() >= until {
                    let source = std::io::ErrorKind::TimedOut.into();
                    let what = "wait for the commit of what a checkpoint holds".into();
                    return Err(DiskError::Io { what, source });
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    })
}

/// Waits until nothing else uses the store.
fn await_release(engine: &Arc<Engine>) -> Result<(), DiskError> {
    let until = Instant::now() + RELEASE;
    while Arc::strong_count(engine) > 1 {
        if Instant::now() >= until {
            return Err(DiskError::Config(
                "requests of an ended reign hold the store".into(),
            ));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
