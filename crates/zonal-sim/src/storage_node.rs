//! A simulated storage process: one target with its disk, driven by the server's driver
//! ([`zonal_driver::storage`]).
//!
//! Between plan and commit of a change, in a read and in a checkpoint, other requests may run, as
//! with threads.

mod host;
mod planted_bugs;

use crate::checker::slot_epochs::ExecutedRequests;
use crate::clock::{Group, VirtualClock};
use crate::coverage::FaultKind;
use crate::disk::VirtualDisk;
use crate::meta_node::MapCell;
use crate::meta_node::peer_calls::PeerCalls;
use crate::net::{Network, SimReply, SimServer, Task};
use crate::planted_bugs::Plant;
use crate::rng::SimRng;
use async_lock::Mutex;
use host::{Payload, SimDisk};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zonal_driver::at_once;
use zonal_driver::storage::{
    NotAdmitted, Refused, ResyncPlan, ResyncTasks, TargetDriver, TargetHost,
};
use zonal_object::key::{IndexKey, OBJECT, parse};
use zonal_object::{
    EffectRecord, ObjectId, ObjectStat, StorageTarget, TargetConfig, Truncation, replay_checks,
};
use zonal_types::limits::{BLOCK_BYTES, STORAGE_IO_BYTES_MAX};
use zonal_types::{Codec, ErrorCode, HolderNumber, KvRead, NodeId, TargetId};
use zonal_wire::{ErrorNumber, Header, ManagerReply, ManagerRequest, StorageReply, StorageRequest};

/// Size of simulated targets: 64 MiB in segments of 4 MiB, and few pending blocks, so that
/// checkpoints happen.
pub const LARGE: TargetConfig = TargetConfig {
    segment_units: 1024,
    segments: 16,
    pending_blocks_max: 256,
};

/// A target that is soon full: 2 MiB.
pub const SMALL: TargetConfig = TargetConfig {
    segment_units: 256,
    segments: 2,
    pending_blocks_max: 64,
};

/// Time between two requests for the map, ns.
const LEASE_EVERY: u64 = 1_000_000_000;

/// Everything that a target's process needs.
pub struct StorageParts {
    /// The target's id.
    pub id: TargetId,
    /// Group of the process's tasks.
    pub group: Group,
    /// The target's size.
    pub config: TargetConfig,
    /// The network.
    pub network: Rc<Network>,
    /// The manager's durable map.
    pub map: MapCell,
    /// Checks the slots by which requests are executed.
    pub executed_requests: Rc<ExecutedRequests>,
    /// The target's disk.
    pub disk: Rc<VirtualDisk>,
    /// Files have copies: the target serves under leases of the manager.
    pub has_leases: bool,
    /// The planted bug.
    pub plant: Plant,
}

/// A storage process.
pub struct StorageNode {
    driver: TargetDriver<SimDisk>,
    clock: VirtualClock,
    group: Group,
    network: Rc<Network>,
    executed_requests: Rc<ExecutedRequests>,
    plant: Plant,
}

impl StorageNode {
    /// Starts the process on its disk.
    ///
    /// # Errors
    /// The target refuses the store.
    pub fn start(parts: StorageParts, rng: SimRng) -> Result<Self, ErrorCode> {
        let StorageParts {
            id,
            group,
            config,
            network,
            map,
            executed_requests,
            disk,
            has_leases,
            plant,
        } = parts;
        let notes = disk.notes();
        let target = StorageTarget::open(config, disk.as_ref(), notes.iter().map(Vec::as_slice))?;
        let known = map.borrow().clone();
        let own = known.target(id).and_then(|own| known.node(own.node));
        let address = own.map(|node| node.address.clone()).unwrap_or_default();
        let line = PeerCalls::new(address, network.clone(), map);
        let host = SimDisk {
            clock: network.clock.clone(),
            known: Rc::new(RefCell::new(known)),
            disk,
            line,
            rng: RefCell::new(rng),
            plant,
            pauses: Cell::new(true),
            checkpointing: Mutex::new(()),
            is_due: Cell::new(false),
            lease: has_leases.then(Rc::default),
        };
        let node = Self {
            driver: TargetDriver::new(id, target, host),
            clock: network.clock.clone(),
            group,
            network,
            executed_requests,
            plant,
        };
        let resumed = node.alone(node.driver.resume())?;
        resumed.map_err(|refused| refused.code)?;
        if has_leases {
            node.keep_lease();
        }
        Ok(node)
    }

    /// Asks the manager for the map again and again, and to put the target back where it is out.
    fn keep_lease(&self) {
        let host = self.driver.host();
        let (line, lease, clock) = (host.line.clone(), host.lease.clone(), self.clock.clone());
        let (target, heard) = (self.driver.id(), host.known.clone());
        self.clock.spawn(self.group, async move {
            loop {
                let map = line.map.borrow().clone();
                let Some(own) = map.target(target) else {
                    return;
                };
                let sent = line.now().instant;
                let ask = ManagerRequest::GetMap { have: map.version };
                let answer = line.ask_manager_as(own.node, &ask).await;
                if answer.is_ok_and(|answer| !matches!(answer, ManagerReply::Failed { .. })) {
                    heard.replace(line.map.borrow().clone());
                    if let Some(lease) = &lease {
                        lease.set(Some(sent));
                    }
                    if heard.borrow().is_out(target) {
                        let back = ManagerRequest::PutBack { target };
                        // The next round asks again.
                        line.ask_manager_as(own.node, &back).await.ok();
                    }
                }
                clock.sleep(LEASE_EVERY).await;
            }
        });
    }

    /// Fills stale copies again and again, where files have copies.
    pub fn keep_resync(self: &Rc<Self>) {
        if self.driver.host().lease.is_none() {
            return;
        }
        let node = self.clone();
        self.clock.spawn(self.group, async move {
            let mut plan = ResyncPlan::default();
            loop {
                node.clock.sleep(LEASE_EVERY).await;
                let host = node.driver.host();
                if !host.has_lease() {
                    continue;
                }
                let (map, now) = (host.map(), host.line.now().instant);
                let mut unfenced = 0;
                let target = node.driver.id();
                for shard in plan.shards(&map, target, now) {
                    let Ok(round) = node.driver.resync(shard, &ResyncTasks).await else {
                        continue;
                    };
                    unfenced += round.unfenced;
                    if round.left == 0 {
                        plan.done(shard);
                    }
                }
                let own = map.target(target).map_or(NodeId(0), |own| own.node);
                if unfenced > 0 {
                    let known = map.version;
                    let fence = ManagerRequest::RenewEpochs { target, known };
                    // The next round asks again.
                    host.line.ask_manager_as(own, &fence).await.ok();
                }
            }
        });
    }

    /// Runs a future to its end while no other task runs.
    fn alone<T>(&self, future: impl Future<Output = T>) -> Result<T, ErrorCode> {
        let pauses = self.driver.host().pauses.replace(false);
        let done = at_once(future);
        self.driver.host().pauses.set(pauses);
        done.map_err(|_waits| ErrorCode::NotReady)
    }

    /// Whether all blocks that a record wrote to segments are there.
    #[must_use]
    pub fn is_whole(config: &TargetConfig, disk: &VirtualDisk, record: &EffectRecord) -> bool {
        let Ok(checks) = replay_checks(config, record) else {
            return false;
        };
        checks.iter().all(|check| {
            let mut block = vec![0; BLOCK_BYTES];
            let read = disk.read_segment(check.place.segment, check.place.offset(), &mut block);
            read.is_ok() && zonal_wire::frame::crc32c(&block) == check.crc
        })
    }

    /// The target's id.
    #[must_use]
    pub fn id(&self) -> TargetId {
        self.driver.id()
    }

    /// The target's disk.
    #[must_use]
    pub fn disk(&self) -> &VirtualDisk {
        &self.driver.host().disk
    }

    /// Tells the process of the newest map.
    pub fn hear_of_map(&self) {
        self.driver.host().hear_of_map();
    }

    /// Bytes free, and bytes of pending blocks with their bound.
    #[must_use]
    pub fn space(&self) -> (u64, (u64, u64)) {
        let target = self.driver.lock();
        (target.statfs().free, target.pending_bytes())
    }

    /// Units that plans hold.
    #[must_use]
    pub fn units_in_flight(&self) -> u64 {
        self.driver.lock().units_in_flight()
    }

    /// Whether no plan holds units and no checkpoint is running.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let turn = self.driver.host().checkpointing.try_lock();
        turn.is_some() && self.units_in_flight() == 0
    }

    /// Makes every later request run without a pause, so that it takes no time.
    pub fn never_pause(&self) {
        self.driver.host().pauses.set(false);
    }

    /// Moves pending blocks to segments and makes everything durable, while no other task runs.
    ///
    /// # Errors
    /// `NotReady` where a checkpoint is running.
    pub fn checkpoint(&self) -> Result<(), ErrorCode> {
        self.alone(self.driver.checkpoint())?
    }

    /// The first inconsistency of the target's store.
    #[must_use]
    pub fn check(&self) -> Option<String> {
        let broken = self.driver.lock().check(self.disk()).err()?;
        Some(format!("target {}: {broken:?}", self.id()))
    }

    /// All objects, with their sizes.
    #[must_use]
    pub fn objects(&self) -> Vec<(ObjectId, ObjectStat)> {
        let mut ids = Vec::new();
        let space = [OBJECT]..[OBJECT + 1];
        let scanned = self
            .disk()
            .scan(&space.start, &space.end, &mut |key, _value| {
                if let Ok(IndexKey::Header(object)) = parse(key) {
                    ids.push(object);
                }
                true
            });
        let target = self.driver.lock();
        let stat_of = |object| {
            let stat = target.stat(self.disk(), object).unwrap_or_default();
            (object, stat)
        };
        scanned.map_or(Vec::new(), |()| ids.into_iter().map(stat_of).collect())
    }

    /// The bytes of an object; `None` where they are damaged.
    #[must_use]
    pub fn contents(&self, object: ObjectId) -> Option<Vec<u8>> {
        let (disk, target) = (self.disk(), self.driver.lock());
        let known = target.stat(disk, object).ok()?;
        let truncation = Truncation::default();
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < known.object_bytes {
            let offset = bytes.len() as u64;
            let plan = target.plan_read(disk, object, truncation, offset, STORAGE_IO_BYTES_MAX);
            let plan = plan.ok()?;
            let mut buffer = vec![0; plan.buffer_len()];
            for read in plan.reads() {
                let part = &mut buffer[read.buffer];
                disk.read_segment(read.segment, read.offset, part).ok()?;
            }
            let range = plan.finish(&mut buffer).ok()?;
            bytes.extend_from_slice(&buffer[range]);
        }
        Some(bytes)
    }

    /// Number of objects.
    #[must_use]
    pub fn object_count(&self) -> u64 {
        self.driver.lock().statfs().objects
    }

    /// Serves a request; puts the payload into `reply`.
    async fn answer(
        &self,
        mut header: Header,
        mut request: StorageRequest,
        payload: &[u8],
        reply: &mut Payload,
    ) -> Result<StorageReply, Refused> {
        if self.plant == Plant::FencesAreForgotten
            && matches!(request, StorageRequest::Fence { .. })
        {
            return Ok(StorageReply::Done);
        }
        let admitted = self.driver.admit(&header, &request).await;
        match admitted {
            Err(refused) if !self.is_let_in(&header, &refused) => match refused {
                NotAdmitted::Stale(newer) => return Ok(newer),
                NotAdmitted::Refused(refused) => return Err(refused),
            },
            _ => {}
        }
        if let Some(object) = request.object() {
            let known = self.driver.host().known.borrow();
            self.executed_requests
                .note(&known, self.id(), &header, object);
        }
        self.plant_in(&mut header, &mut request);
        let from = (&header, HolderNumber::default());
        let answer = self.driver.answer(from, &request, payload, reply).await;
        match answer {
            Err(refused)
                if refused.code == ErrorCode::Corrupt
                    && self.plant == Plant::ReadsAreUnverified =>
            {
                self.unverified(&request, reply).ok_or(refused)
            }
            answer => answer,
        }
    }

    /// Begins a checkpoint that is due, beside requests.
    fn begin_due_checkpoint(self: &Rc<Self>) {
        if self.driver.host().is_due.take() {
            let node = self.clone();
            self.clock.spawn(self.group, async move {
                // Where it fails, the next change asks for it again.
                let _ = node.driver.checkpoint().await;
            });
        }
    }
}

impl SimServer for StorageNode {
    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, payload: Vec<u8>) -> Task<SimReply> {
        Box::pin(async move {
            let mut reply = Payload::default();
            let answer = match StorageRequest::from_bytes(&body) {
                Ok(request) => self.answer(header, request, &payload, &mut reply).await,
                Err(error) => {
                    assert!(
                        self.plant != Plant::DecoderTrusts,
                        "a request cannot be decoded: {error:?}"
                    );
                    Err(ErrorCode::Protocol.into())
                }
            };
            self.begin_due_checkpoint();
            let message = answer.unwrap_or_else(|refused| {
                if refused.code == ErrorCode::NoSpace {
                    self.network.count(FaultKind::FullDisk);
                }
                StorageReply::Failed {
                    code: ErrorNumber(refused.code),
                    detail: refused.detail,
                }
            });
            SimReply {
                body: message.to_bytes(),
                payload: reply.0,
            }
        })
    }
}
