//! A simulated metadata process: the driver of one shard on a simulated disk. The root shard's
//! process is the manager, too.
//!
//! The driver is the server's ([`zonal_driver::shard`]). Its host is simulated ([`host`]), and bugs
//! are planted beside it.

mod drains;
mod host;
mod lent_ends;
mod manager;
pub(crate) mod peer_calls;
mod planted_bugs;
mod root_names;

use crate::checker::reply_deadlines::ReplyDeadlines;
use crate::clock::Group;
use crate::coverage::FaultKind;
use crate::disk::VirtualDisk;
use crate::net::{Network, SimReply, SimServer, Task};
use crate::planted_bugs::Plant;
use crate::replica_node::ReignLog;
use host::SimulatedHost;
use peer_calls::PeerCalls;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use zonal_driver::{ShardDriver, ShardPace, ShardParts};
use zonal_meta::{RootMirror, ShardConfig};
use zonal_types::{Codec, ErrorCode, Ino, KvRead, MapVersion, SessionId, ShardId};
use zonal_wire::{ErrorNumber, Header, MetaReply, MetaRequest, Service};
use zonal_zonemap::map_records::MAP_KEY;
use zonal_zonemap::{EditError, Manager, MapEdit, Shard, ZoneMap};

/// The newest map that the manager has made durable. All processes read it here.
pub type MapCell = Rc<RefCell<Arc<ZoneMap>>>;

/// Most deletions counted by [`MetaNode::deletions_left`].
const DELETIONS: usize = 64;

/// Everything that a metadata process needs.
pub struct MetaParts {
    /// Network address of the process.
    pub address: String,
    /// Group of the process's tasks.
    pub group: Group,
    /// The network.
    pub network: Rc<Network>,
    /// The shard's store.
    pub disk: Rc<VirtualDisk>,
    /// The manager's durable map.
    pub map: MapCell,
    /// Checks how soon the process replies.
    pub reply_deadlines: Rc<ReplyDeadlines>,
    /// The planted bug.
    pub plant: Plant,
    /// The log of the shard's group, where the process has a replica that leads.
    pub log: Option<ReignLog>,
}

/// A metadata process.
pub struct MetaNode {
    driver: ShardDriver<SimulatedHost>,
    /// Requests that are being served.
    running: Cell<u64>,
    reply_deadlines: Rc<ReplyDeadlines>,
    plant: Plant,
    /// Places of appends that a planted bug gave without a check.
    lent: RefCell<BTreeSet<(Ino, u64)>>,
    /// Requests that were given up and that a planted bug keeps.
    kept: RefCell<Vec<Task<MetaReply>>>,
    /// The root, where a test wants it to be mirrored.
    mirror: RefCell<RootMirror>,
}

/// Counts a request while it is being served.
struct RunningRequest<'a>(&'a Cell<u64>);

impl<'a> RunningRequest<'a> {
    fn begin(count: &'a Cell<u64>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl MetaNode {
    /// Starts the process on its disk; formats an empty disk.
    ///
    /// # Errors
    /// The shard refuses the store.
    pub fn start(parts: MetaParts, config: ShardConfig) -> Result<Rc<Self>, ErrorCode> {
        let MetaParts {
            address,
            group,
            network,
            disk,
            map,
            reply_deadlines,
            plant,
            log,
        } = parts;
        let mut is_new = true;
        disk.scan(&[], &MAP_KEY, &mut |_key, _value| {
            is_new = false;
            false
        })?;
        let clock = network.clock.clone();
        let cell = map.borrow().cell;
        let is_root = config.shard == ShardId(0);
        let manager = is_root.then(|| manager::load(&disk, cell)).transpose()?;
        let known = manager
            .as_ref()
            .map(|known: &Manager| Arc::clone(known.durable()));
        let peers = PeerCalls::new(address, network, map);
        let host = SimulatedHost {
            leases: RefCell::default(),
            began: peers.now().instant,
            peers,
            group,
            disk,
            plant,
            log,
            effects: Cell::new(0),
            appended: Rc::default(),
            manager: RefCell::new(manager),
        };
        if let Some(known) = known {
            host.publish_map(&known)?;
        }
        let node = Rc::new(Self {
            driver: ShardDriver::open(ShardParts {
                config,
                host,
                is_new,
                pace: ShardPace::SERVER,
            })?,
            running: Cell::default(),
            reply_deadlines,
            plant,
            lent: RefCell::default(),
            kept: RefCell::default(),
            mirror: RefCell::default(),
        });
        let own = std::array::from_fn(|_task| node.clone());
        let [house, deletions, fences, loads, departures]: [Rc<Self>; 5] = own;
        clock.spawn(group, async move { house.driver.run_housekeeping().await });
        clock.spawn(group, async move { fences.driver.push_fences().await });
        if node.driver.identity().0 != ShardId(0) {
            clock.spawn(group, async move { loads.driver.report_loads().await });
            clock.spawn(group, async move { departures.driver.run_moves().await });
        }
        if plant != Plant::DeletionsAreLost {
            clock.spawn(
                group,
                async move { deletions.driver.push_deletions().await },
            );
        }
        Ok(node)
    }

    fn host(&self) -> &SimulatedHost {
        self.driver.host()
    }

    /// Ends all waits and background tasks.
    pub fn stop(&self) {
        self.driver.stop();
    }

    /// Changes the map durably, where this process is the manager.
    ///
    /// # Errors
    /// The manager refuses an edit.
    pub fn edit(&self, edits: &[MapEdit]) -> Result<(), EditError> {
        self.host().edit(edits)
    }

    /// Loads the map from the disk again, as after a restore from a backup.
    ///
    /// # Errors
    /// The disk has no valid map.
    pub fn read_map_again(&self) -> Result<(), ErrorCode> {
        self.host().read_map_again()
    }

    /// Inconsistencies of the shard.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        self.driver.with_shard(|shard| shard.check(self.disk()))
    }

    /// Sizes of the shard's tables in memory, without empty ones.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, u64)> {
        let mut gauges = self.all_gauges();
        gauges.retain(|(_name, value)| *value > 0);
        gauges.push(("deletions", self.deletions_left() as u64));
        gauges
    }

    /// Sizes of the shard's tables in memory, with their bounds as further entries.
    #[must_use]
    pub fn all_gauges(&self) -> Vec<(&'static str, u64)> {
        self.driver.with_shard(|shard| shard.gauges())
    }

    /// Whether a client has not reclaimed its locks and opens since the shard's start.
    #[must_use]
    pub fn has_silent_sessions(&self) -> bool {
        self.driver.with_shard(|shard| shard.has_silent_sessions())
    }

    /// Number of requests that are being served.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    /// Number of waiting requests and tasks.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.driver.waiting() as u64
    }

    /// The shard's disk.
    #[must_use]
    pub fn disk(&self) -> &VirtualDisk {
        &self.host().disk
    }

    /// The shard.
    #[must_use]
    pub fn shard(&self) -> ShardId {
        self.driver.identity().0
    }

    /// Partitions that are leaving the shard, or coming.
    #[must_use]
    pub fn moves(&self) -> usize {
        self.driver.with_shard(|shard| shard.moves())
    }

    /// These moves, in words.
    #[must_use]
    pub fn moves_in_words(&self) -> String {
        self.driver.with_shard(|shard| shard.moves_in_words())
    }

    /// Answers a command.
    pub async fn order(&self, header: &Header, request: &MetaRequest) -> MetaReply {
        self.driver.serve(header, None, request).await
    }

    /// Number of deletions that are not done.
    #[must_use]
    pub fn deletions_left(&self) -> usize {
        let now = self.host().peers.now().instant;
        let deletions = self
            .driver
            .with_shard(|shard| shard.deletions(self.disk(), now, DELETIONS));
        deletions.map_or(usize::MAX, |list| list.len())
    }

    /// Runs one request until its reply.
    async fn run(self: Rc<Self>, mut header: Header, mut request: MetaRequest) -> MetaReply {
        let asked = self
            .reply_deadlines
            .asked(&self.host().peers.network.clock, &header);
        if let Some(reply) = self.mirrored(&request) {
            asked.answered(request.name());
            return reply;
        }
        planted_bugs::change(self.plant, &mut header, &mut request);
        let unmarked = planted_bugs::forget_mark(self.plant, &mut header, &mut request);
        let is_client = header.session != SessionId(0);
        let _running = RunningRequest::begin(&self.running);
        if self.disk().is_full() && request.adds() {
            self.host().peers.network.count(FaultKind::FullShard);
        }
        let node = self.clone();
        let deadline_ms = std::mem::take(&mut header.deadline_ms);
        if self.plant != Plant::WaitsAreKept && self.plant != Plant::DeadlinesAreIgnored {
            header.deadline_ms = deadline_ms;
        }
        let name = request.name();
        let mut task: Task<MetaReply> =
            Box::pin(async move { node.driver.serve(&header, None, &request).await });
        let appended = &self.host().appended;
        if let Some(log) = self.host().log.clone() {
            task = log.watch(task, name, appended.clone());
        }
        let watched = asked.watch(&mut task, appended);
        let reply = if self.plant == Plant::WaitsAreKept {
            let clock = &self.host().peers.network.clock;
            planted_bugs::by_deadline(watched, clock, deadline_ms).await
        } else {
            Some(watched.await)
        };
        let reply = reply.map(|reply| planted_bugs::pretend_mark(reply, unmarked));
        let reply = reply.map(|reply| match is_client {
            true => planted_bugs::hide_relocations(self.plant, reply),
            false => reply,
        });
        let Some(reply) = reply else {
            self.kept.borrow_mut().push(task);
            return failed(ErrorCode::TimedOut);
        };
        // A group commits when a majority answers, whatever the deadline of a request or call.
        let is_replicated = |shard: &Shard| shard.is_replicated();
        let map = self.host().peers.map.borrow().clone();
        if !map.shards.iter().any(is_replicated) {
            asked.answered(name);
        }
        reply
    }
}

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}

impl SimServer for MetaNode {
    fn map_version(&self) -> MapVersion {
        self.host().peers.map.borrow().version
    }

    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, _payload: Vec<u8>) -> Task<SimReply> {
        Box::pin(async move {
            let body = if header.service == Service::Manager {
                self.host().manage(&header, &body).to_bytes()
            } else {
                match MetaRequest::from_bytes(&body) {
                    Ok(request) if self.plant == Plant::EndsOutliveSessions => {
                        self.run_lent(header, request).await.to_bytes()
                    }
                    Ok(request) => self.run(header, request).await.to_bytes(),
                    Err(error) => {
                        assert!(
                            self.plant != Plant::DecoderTrusts,
                            "a request cannot be decoded: {error:?}"
                        );
                        failed(ErrorCode::Protocol).to_bytes()
                    }
                }
            };
            SimReply {
                body,
                payload: Vec::new(),
            }
        })
    }
}
