//! A simulated process with a replica of a shard: the driver of a group's member on a simulated
//! disk. While it leads, the shard serves in this process ([`MetaNode`]).
//!
//! The supervisor opens the disk, and opens it anew when the replica has ended. Beside it are tasks
//! for ticks, flushes, checkpoints, and the calls to each other replica.

mod map_reign;
mod member_host;
mod peer_queues;
mod planted_bugs;
mod reign_log;
mod requests;
mod snapshots;

use crate::checker::group_history::GroupHistory;
use crate::checker::reply_deadlines::ReplyDeadlines;
use crate::clock::{ChangeSignal, Group};
use crate::member_disk::MemberDisk;
use crate::meta_node::{MapCell, MetaNode, MetaParts};
use crate::net::Network;
use crate::planted_bugs::Plant;
use crate::rng::SimRng;
use map_reign::MapReign;
use member_host::MemberHost;
use peer_queues::PeerQueues;
use reign_log::ReplicaLife;
use snapshots::LentSnapshot;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zonal_consensus::{MemberConfig, MemberRole, ReplicaId, Term};
use zonal_driver::replica::{MemberStep, next_step};
use zonal_driver::{ReplicaDriver, ReplicaEnd};
use zonal_meta::ShardConfig;
use zonal_types::{ErrorCode, Instant, NodeId, ShardId, ZoneId, boot_of};

pub use map_reign::GROUP_MAP;
pub use reign_log::ReignLog;

/// Length of a tick, ms.
const TICK_MS: u64 = 40;
/// Ticks between two heartbeats.
const HEARTBEAT_TICKS: u32 = 4;
/// Ticks without a leader after which a member may stand.
const ELECTION_TICKS: u32 = 20;
/// How often the supervisor looks at the map, ms.
const LOOK_MS: u64 = 200;
/// Longest time for which an ended shard's requests hold its store, ms.
const RELEASE_MS: u64 = 20_000;
/// Pause after a failure, ms.
const FAILED_MS: u64 = 500;
/// Deadline of a call to another replica, ms.
const CALL_MS: u32 = 1_000;
/// Pause after a call that failed, ms.
const CALL_PAUSE_MS: u64 = 20;
/// Entries that a checkpoint may keep in the log.
const KEPT_MAX: u64 = 200;
/// The upper half of the boot numbers of all reigns.
const GROUP_KEPT: u32 = 1;

/// Everything that a process with a replica needs.
pub struct ReplicaParts {
    /// Its node.
    pub node: NodeId,
    /// Network address of the process.
    pub address: String,
    /// Group of the process's tasks.
    pub group: Group,
    /// The shard and its zone.
    pub shard: (ShardId, ZoneId),
    /// The network.
    pub network: Rc<Network>,
    /// The replica's disk.
    pub disk: Rc<MemberDisk>,
    /// The manager's durable map.
    pub map: MapCell,
    /// Checks the group's log.
    pub history: Rc<GroupHistory>,
    /// Checks how soon the process replies.
    pub reply_deadlines: Rc<ReplyDeadlines>,
    /// The planted bug.
    pub plant: Plant,
    /// Lengths of file beginnings that reigns keep, in turn.
    pub inline_bytes: [u32; 3],
}

/// A process with a replica of a shard.
pub struct ReplicaNode {
    parts: ReplicaParts,
    rng: RefCell<SimRng>,
    life: RefCell<Option<Rc<ReplicaLife>>>,
    serving: RefCell<Option<(Term, Rc<MetaNode>)>>,
    /// The manager of the group's map, while this replica leads.
    manager: RefCell<Option<Rc<MapReign>>>,
    lent: RefCell<Option<LentSnapshot>>,
    snapshots: Cell<u64>,
}

/// The replica on a node.
fn member_on(node: NodeId) -> ReplicaId {
    ReplicaId(node.0.into())
}

/// The node of a replica.
fn node_of(member: ReplicaId) -> NodeId {
    NodeId(member.0 as u32)
}

impl ReplicaNode {
    /// Starts the process.
    #[must_use]
    pub fn start(parts: ReplicaParts, rng: SimRng) -> Rc<Self> {
        let node = Rc::new(Self {
            parts,
            rng: RefCell::new(rng),
            life: RefCell::default(),
            serving: RefCell::default(),
            manager: RefCell::default(),
            lent: RefCell::default(),
            snapshots: Cell::new(0),
        });
        node.spawn(node.clone().supervise());
        node
    }

    fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.parts.network.clock.spawn(self.parts.group, task);
    }

    /// The shard, while this replica leads.
    #[must_use]
    pub fn serving(&self) -> Option<Rc<MetaNode>> {
        let serving = self.serving.borrow();
        let (term, node) = serving.as_ref()?;
        let leads = self.life()?.driver.reign() == Some(*term);
        leads.then(|| node.clone())
    }

    fn life(&self) -> Option<Rc<ReplicaLife>> {
        self.life.borrow().clone()
    }

    fn own(&self) -> ReplicaId {
        member_on(self.parts.node)
    }

    /// Sleeps by the clock of the process.
    async fn sleep(&self, ms: u64) {
        let network = &self.parts.network;
        let until = self.local_after(ms);
        network.clock.sleep_until(until).await;
    }

    /// The true time at which the process's clock has gone on by `ms`.
    fn local_after(&self, ms: u64) -> Instant {
        let network = &self.parts.network;
        let own = network.clock_of(&self.parts.address);
        own.world(own.local(network.clock.now()).plus_ms(ms))
    }

    async fn supervise(self: Rc<Self>) {
        loop {
            match self.clone().live().await {
                Some(ReplicaEnd::Behind(offer)) => {
                    if self.install(node_of(offer.from)).await.is_err() {
                        self.sleep(CALL_PAUSE_MS).await;
                    }
                }
                Some(ReplicaEnd::Failed(_) | ReplicaEnd::Superseded(_)) | None => {
                    self.sleep(FAILED_MS).await;
                }
                Some(ReplicaEnd::Replaced) => {}
            }
        }
    }

    /// Works with an open disk until the replica ends. `None`: it cannot be opened.
    async fn live(self: Rc<Self>) -> Option<ReplicaEnd> {
        let parts = &self.parts;
        let disk = &parts.disk;
        disk.open();
        let may_have_lost = disk.may_have_lost();
        parts.history.begins(self.own(), may_have_lost);
        let config = MemberConfig {
            group: parts.shard.0.0.into(),
            own: self.own(),
            generation: u64::from(!disk.is_empty()),
            life: disk.openings(),
            seed: self.rng.borrow_mut().bits(),
            election_ticks: ELECTION_TICKS,
            heartbeat_ticks: HEARTBEAT_TICKS,
            may_have_lost: may_have_lost && parts.plant != Plant::LossesAreUntold,
        };
        let host = MemberHost {
            own: self.own(),
            disk: disk.clone(),
            queues: Rc::new(PeerQueues::default()),
            flush_wanted: ChangeSignal::default(),
            changed: ChangeSignal::default(),
            history: parts.history.clone(),
            plant: parts.plant,
            network: parts.network.clone(),
            address: parts.address.clone(),
            opened: parts.network.instant(&parts.address),
        };
        let driver = match ReplicaDriver::open(config, host) {
            Ok(driver) => driver,
            Err(error) => {
                parts
                    .history
                    .complain(self.own(), &format!("does not start: {error}"));
                return None;
            }
        };
        let life = Rc::new(ReplicaLife::new(driver));
        *self.life.borrow_mut() = Some(life.clone());
        self.spawn(self.clone().run_ticks(life.clone()));
        self.spawn(self.clone().run_flushes(life.clone()));
        self.spawn(self.clone().run_checkpoints(life.clone()));
        for node in self
            .replicas()
            .into_iter()
            .filter(|node| *node != parts.node)
        {
            self.spawn(self.clone().run_calls(life.clone(), node));
        }
        let end = self.serve_reigns(&life).await;
        *self.life.borrow_mut() = None;
        *self.lent.borrow_mut() = None;
        Some(end)
    }

    /// The nodes that shall have a replica.
    fn replicas(&self) -> Vec<NodeId> {
        let map = self.parts.map.borrow();
        let shard = map.shard(self.parts.shard.0);
        shard
            .map(|shard| shard.replicas.clone())
            .unwrap_or_default()
    }

    async fn run_ticks(self: Rc<Self>, life: Rc<ReplicaLife>) {
        while life.driver.end().is_none() {
            self.sleep(TICK_MS).await;
            life.tick();
        }
    }

    async fn run_flushes(self: Rc<Self>, life: Rc<ReplicaLife>) {
        let clock = &self.parts.network.clock;
        let wanted = &life.host().flush_wanted;
        let mut seen = 0;
        while life.driver.end().is_none() {
            let until = clock.now().plus_ms(LOOK_MS);
            wanted.wait(clock, seen, until).await;
            seen = wanted.raised();
            let Some(order) = life.driver.take_flush() else {
                continue;
            };
            let written = self.parts.disk.unflushed();
            let nanos = {
                let mut rng = self.rng.borrow_mut();
                let longest = if rng.chance(50) {
                    80_000_000
                } else {
                    3_000_000
                };
                rng.between(50_000, longest)
            };
            clock.sleep(nanos).await;
            if life.driver.end().is_some() {
                return;
            }
            if self.parts.plant != Plant::FlushesAreForgotten {
                self.parts.disk.flush(written);
            }
            life.driver.flushed(order);
            life.look();
        }
    }

    async fn run_checkpoints(self: Rc<Self>, life: Rc<ReplicaLife>) {
        while life.driver.end().is_none() {
            let (ms, keeps) = {
                let mut rng = self.rng.borrow_mut();
                (rng.between(300, 8_000), rng.below(KEPT_MAX))
            };
            self.sleep(ms).await;
            let is_committed =
                || self.parts.disk.applied_place().0 <= life.driver.status().committed;
            while life.driver.end().is_none() && !is_committed() {
                self.sleep(2).await;
            }
            if life.driver.end().is_none() {
                self.parts.disk.checkpoint(keeps);
            }
        }
    }

    /// Opens the shard for each reign, until the replica ends.
    async fn serve_reigns(self: &Rc<Self>, life: &Rc<ReplicaLife>) -> ReplicaEnd {
        let clock = &self.parts.network.clock;
        let changed = &life.host().changed;
        let mut looked = clock.now();
        loop {
            let seen = changed.raised();
            if let Some(end) = life.driver.end() {
                self.end_reign().await;
                return end;
            }
            let reign = life.driver.reign();
            let served = self.serving.borrow().as_ref().map(|(term, _)| *term);
            if served.is_some() && served != reign {
                self.end_reign().await;
            } else if let (Some(term), None) = (reign, served) {
                self.begin_reign(life, term);
            }
            if clock.now().ms_since(looked) >= LOOK_MS {
                looked = clock.now();
                self.look_at_members(life);
            }
            changed.wait(clock, seen, self.local_after(LOOK_MS)).await;
        }
    }

    fn begin_reign(self: &Rc<Self>, life: &Rc<ReplicaLife>, term: Term) {
        let parts = &self.parts;
        let (shard, zone) = parts.shard;
        let mut config = ShardConfig::new(shard, zone, boot_of(GROUP_KEPT, term.0 as u32));
        config.inline_bytes = parts.inline_bytes[term.0 as usize % parts.inline_bytes.len()];
        let log = ReignLog::new(life.clone(), term);
        let state = parts.disk.state().clone();
        match MapReign::open(state, log.clone(), parts.plant) {
            Ok(manager) => *self.manager.borrow_mut() = Some(Rc::new(manager)),
            Err(code) => {
                let what = format!("has no map: {code}");
                parts.history.complain(self.own(), &what);
            }
        }
        let of_reign = MetaParts {
            address: parts.address.clone(),
            group: parts.group,
            network: parts.network.clone(),
            disk: parts.disk.state().clone(),
            map: parts.map.clone(),
            reply_deadlines: parts.reply_deadlines.clone(),
            plant: parts.plant,
            log: Some(log),
        };
        match MetaNode::start(of_reign, config) {
            Ok(node) => *self.serving.borrow_mut() = Some((term, node)),
            Err(ErrorCode::NotOwner) => {}
            Err(code) => parts
                .history
                .complain(self.own(), &format!("cannot serve: {code}")),
        }
    }

    /// Ends the shard, and waits until nothing uses it.
    async fn end_reign(&self) {
        *self.manager.borrow_mut() = None;
        let ended = self.serving.borrow_mut().take();
        let Some((_term, node)) = ended else {
            return;
        };
        node.stop();
        let until = self.parts.network.clock.now().plus_ms(RELEASE_MS);
        while Rc::strong_count(&node) > 1 && self.parts.network.clock.now() < until {
            self.sleep(1).await;
        }
    }

    fn look_at_members(&self, life: &ReplicaLife) {
        let status = life.driver.status();
        if status.role != MemberRole::Leads {
            return;
        }
        let wanted: Vec<ReplicaId> = self.replicas().into_iter().map(member_on).collect();
        match next_step(&wanted, self.own(), &status) {
            Some(MemberStep::Change(change)) => {
                // Refused while another change is under way.
                let _changed = life.driver.change_members(&change);
            }
            Some(MemberStep::HandOver(to)) => life.driver.hand_over(to),
            None => {}
        }
        life.look();
    }
}
