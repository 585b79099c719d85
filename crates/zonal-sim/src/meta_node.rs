//! A simulated metadata process: one shard with its disk; the root shard's process is the manager, too.

mod calls;
mod house;
mod lent;
mod manager;

use crate::clock::{Group, Signal};
use crate::coverage::Fault;
use crate::disk::Disk;
use crate::net::{Answer, Network, Role, Task};
use crate::plant::Plant;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use zonal_meta::keys;
use zonal_meta::{Attempt, Caller, Flushed, Now, Outcome, Shard, ShardConfig, WaitOn};
use zonal_types::{
    Codec, Epoch, ErrorCode, Ino, Instant, KvChange, KvRead, NodeId, SessionId, ShardId,
};
use zonal_wire::{ErrorNumber, Header, MetaReply, MetaRequest, NO_SLOT, Service};
use zonal_zonemap::stored::MAP_KEY;
use zonal_zonemap::{Manager, ShardVerdict, ZoneMap};

/// The newest map that the manager has made durable, for all processes to see.
pub type MapCell = Rc<RefCell<Arc<ZoneMap>>>;

/// A metadata process.
pub struct MetaNode {
    id: ShardId,
    /// As its owner.
    epoch: Epoch,
    address: String,
    group: Group,
    network: Rc<Network>,
    disk: Rc<Disk>,
    shard: RefCell<Shard>,
    flushed: RefCell<Flushed>,
    map: MapCell,
    /// Of the root's process.
    manager: RefCell<Option<Manager>>,
    /// Raised when waiting changes should look again.
    recalls: Signal,
    /// Raised when a session has events.
    events: RefCell<BTreeMap<SessionId, Rc<Signal>>>,
    /// Requests that are being answered.
    running: Cell<u64>,
    effects: Cell<u64>,
    plant: Plant,
    /// Places that were given unchecked, by a bug.
    lent: RefCell<BTreeSet<(Ino, u64)>>,
}

/// Counts a request while it is being answered.
struct Running<'a>(&'a Cell<u64>);

impl<'a> Running<'a> {
    fn begin(count: &'a Cell<u64>) -> Self {
        count.set(count.get() + 1);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl MetaNode {
    /// Starts on what the disk has; an empty disk is formatted.
    ///
    /// # Errors
    /// A store that the shard refuses.
    pub fn start(
        address: &str,
        group: Group,
        network: &Rc<Network>,
        disk: Rc<Disk>,
        config: ShardConfig,
        map: MapCell,
        plant: Plant,
    ) -> Result<Rc<Self>, ErrorCode> {
        let mut is_empty = true;
        disk.scan(&[], &MAP_KEY, &mut |_key, _value| {
            is_empty = false;
            false
        })?;
        if is_empty {
            disk.append_changes(Shard::format(&config, network.wall(address)));
            disk.sync();
        }
        let now = network.instant(address);
        let id = config.shard;
        let cell = map.borrow().cell;
        let manager = (id == ShardId(0)).then(|| manager::load(&disk, cell));
        let manager = manager.transpose()?;
        let known = manager
            .as_ref()
            .map(|manager| Arc::clone(manager.durable()));
        let current = known.clone().unwrap_or_else(|| map.borrow().clone());
        let epoch = current.shard(id).map_or(Epoch(0), |shard| shard.epoch);
        let shard = Shard::load(config, current, disk.as_ref(), now)?;
        let node = Rc::new(Self {
            id,
            epoch,
            address: address.to_owned(),
            group,
            network: network.clone(),
            disk,
            shard: RefCell::new(shard),
            flushed: RefCell::default(),
            map,
            manager: RefCell::new(manager),
            recalls: Signal::default(),
            events: RefCell::default(),
            running: Cell::new(0),
            effects: Cell::new(0),
            plant,
            lent: RefCell::default(),
        });
        if let Some(known) = known {
            node.publish(&known)?;
        }
        network.clock.spawn(group, node.clone().keep_house());
        Ok(node)
    }

    /// What is broken in the shard.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        self.shard.borrow().check(self.disk.as_ref())
    }

    /// Sizes of what the shard has in memory, where there is any.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, u64)> {
        let mut gauges = self.shard.borrow().gauges();
        gauges.retain(|(_name, value)| *value > 0);
        gauges.push(("deletions", self.deletions_left() as u64));
        gauges
    }

    /// Sizes of what the shard has in memory, with their bounds as further entries.
    #[must_use]
    pub fn all_gauges(&self) -> Vec<(&'static str, u64)> {
        self.shard.borrow().gauges()
    }

    /// Requests that are being answered.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    /// Sessions for which somebody may wait.
    #[must_use]
    pub fn pollers(&self) -> usize {
        self.events.borrow().len()
    }

    /// Its store.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.disk
    }

    /// Deletions that are not done.
    #[must_use]
    pub fn deletions_left(&self) -> usize {
        let deletions = self.shard.borrow_mut().deletions(
            self.disk.as_ref(),
            self.now().instant,
            house::DELETIONS,
        );
        deletions.map_or(usize::MAX, |list| list.len())
    }

    fn now(&self) -> Now {
        Now {
            instant: self.network.instant(&self.address),
            wall: self.network.wall(&self.address),
        }
    }

    /// The reply to a sender that knows another owner of the shard.
    fn refusal(&self, header: &Header) -> Option<MetaReply> {
        let map = self.map.borrow();
        match map.judge_shard(self.id, self.epoch, header.epoch) {
            ShardVerdict::Current => None,
            ShardVerdict::Stale => Some(MetaReply::StaleShard {
                shard: self.id,
                node: map.shard(self.id).map_or(NodeId(0), |own| own.node),
                epoch: self.epoch,
                map_version: map.version,
            }),
            ShardVerdict::Lost => Some(failed(ErrorCode::NotOwner)),
        }
    }

    fn refresh_map(&self) {
        let map = self.map.borrow().clone();
        self.shard.borrow_mut().set_map(map);
    }

    fn handle_once(
        &self,
        caller: Caller,
        request: &MetaRequest,
        attempt: Option<Attempt>,
    ) -> Outcome {
        self.refresh_map();
        let now = self.now();
        let mut shard = self.shard.borrow_mut();
        shard.handle(self.disk.as_ref(), now, caller, request, attempt)
    }

    /// Runs one request to its reply.
    async fn run(
        self: Rc<Self>,
        mut caller: Caller,
        mut request: MetaRequest,
        deadline: Instant,
    ) -> MetaReply {
        self.plant_in(&mut caller, &mut request);
        let _running = Running::begin(&self.running);
        let clock = self.network.clock.clone();
        let own_clock = self.network.clock_of(&self.address);
        let mut outcome = if self.disk.is_full() && request.adds() {
            self.network.count(Fault::FullShard);
            self.refresh_map();
            let mut shard = self.shard.borrow_mut();
            shard.handle_full(self.disk.as_ref(), caller, None, &request)
        } else {
            self.handle_once(caller, &request, None)
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
                    let mut effect = self.planted(effect);
                    let is_of_map = !junctions.is_empty();
                    effect.extend(self.plan_junctions(junctions));
                    if !effect.is_empty() {
                        let is_durable = effect.iter().any(|change| {
                            matches!(
                                change.key.get(4),
                                Some(&keys::TAG_IDS | &keys::TAG_DATA_IDS | &keys::TAG_DETACHED)
                            )
                        });
                        self.disk.append_changes(effect);
                        if is_durable || is_of_map {
                            // As the server does: numbers before they are given, half-made directories, junctions.
                            self.disk.sync();
                        }
                    }
                    self.wake(&wake, recheck);
                    for (shard, request) in after {
                        let node = self.clone();
                        clock.spawn(self.group, async move {
                            node.ask(shard, &request).await;
                        });
                    }
                    let is_missing = self.flushed.borrow().is_missing(&request, &reply);
                    if is_missing && self.plant != Plant::ShardSyncDoesNothing {
                        self.disk.sync();
                        self.flushed.borrow_mut().note(&reply);
                    }
                    return reply;
                }
                Outcome::Wait {
                    attempt,
                    until,
                    on,
                    wake,
                    recheck,
                } => {
                    self.wake(&wake, recheck);
                    let until = own_clock.world(until).min(deadline);
                    match on {
                        WaitOn::Recalls => {
                            let seen = self.recalls.raised();
                            self.recalls.wait(&clock, seen, until).await;
                        }
                        WaitOn::Events(session) => {
                            let signal = self.signal_of(session);
                            signal.wait(&clock, signal.raised(), until).await;
                            // The map's and ours: nobody else waits.
                            if Rc::strong_count(&signal) == 2 {
                                self.events.borrow_mut().remove(&session);
                            }
                        }
                    }
                    if clock.now() >= deadline {
                        if self.plant != Plant::WaitsAreKept {
                            self.shard.borrow_mut().abandon(attempt);
                        }
                        return failed(ErrorCode::TimedOut);
                    }
                    outcome = self.handle_once(caller, &request, Some(attempt));
                }
                Outcome::Call {
                    shard: asked,
                    request: question,
                    call,
                    wake,
                } => {
                    self.wake(&wake, false);
                    let reply = self.ask(asked, &question).await;
                    let now = self.now();
                    let mut shard = self.shard.borrow_mut();
                    outcome = shard.resume(self.disk.as_ref(), now, call, reply);
                }
            }
        }
    }

    /// What bugs of shards make of a request.
    fn plant_in(&self, caller: &mut Caller, request: &mut MetaRequest) {
        if self.plant == Plant::ShardForgetsReplies {
            caller.slot = NO_SLOT;
        }
        if self.plant == Plant::ClosesNameOwners
            && let MetaRequest::ReleaseLocks { handle, number, .. } = request
        {
            (*handle, *number) = (None, u64::MAX);
        }
        if self.plant == Plant::TakeBacksNameOwners
            && let MetaRequest::CancelLock { ino, range, .. } = request
        {
            let (ino, mut range) = (*ino, *range);
            range.number = u64::MAX;
            *request = MetaRequest::Unlock { ino, range };
        }
        let MetaRequest::ReportWrite {
            truncate_seq,
            allocated_delta,
            ..
        } = request
        else {
            return;
        };
        if self.plant == Plant::CutsAreForgotten {
            *truncate_seq = u64::MAX;
        }
        if self.plant == Plant::AllocatedIsMiscounted && *allocated_delta > 0 {
            *allocated_delta += zonal_types::limits::BLOCK_BYTES as i64;
        }
    }

    /// The effect, or what the bug leaves of it.
    fn planted(&self, mut effect: Vec<KvChange>) -> Vec<KvChange> {
        if self.plant == Plant::ShardLosesChanges && effect.len() > 1 {
            self.effects.set(self.effects.get() + 1);
            if self.effects.get().is_multiple_of(40) {
                effect.remove(0);
            }
        }
        effect
    }

    fn signal_of(&self, session: SessionId) -> Rc<Signal> {
        self.events.borrow_mut().entry(session).or_default().clone()
    }

    fn wake(&self, sessions: &[SessionId], recheck: bool) {
        if recheck {
            self.recalls.raise();
        }
        for session in sessions {
            let poller = self.events.borrow().get(session).cloned();
            if let Some(poller) = poller {
                poller.raise();
            }
        }
    }
}

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}

impl Role for MetaNode {
    fn handle(self: Rc<Self>, header: Header, body: Vec<u8>, _payload: Vec<u8>) -> Task<Answer> {
        Box::pin(async move {
            let body = if header.service == Service::Manager {
                self.manage(&body).to_bytes()
            } else {
                match MetaRequest::from_bytes(&body) {
                    Ok(request) => {
                        let caller = Caller::of(&header);
                        let deadline_ms = u64::from(header.deadline_ms);
                        let deadline = self.network.clock.now().plus_ms(deadline_ms);
                        let reply = if let Some(refused) = self.refusal(&header) {
                            refused
                        } else if let MetaRequest::OpenSets { zone } = request {
                            self.open_sets(zone)
                        } else if self.plant == Plant::EndsOutliveSessions {
                            self.run_lent(caller, request, deadline).await
                        } else {
                            self.run(caller, request, deadline).await
                        };
                        reply.to_bytes()
                    }
                    Err(error) => {
                        assert!(
                            self.plant != Plant::DecoderTrusts,
                            "a request cannot be decoded: {error:?}"
                        );
                        failed(ErrorCode::Protocol).to_bytes()
                    }
                }
            };
            Answer {
                body,
                payload: Vec::new(),
            }
        })
    }
}
