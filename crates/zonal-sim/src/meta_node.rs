//! A simulated metadata process: the driver of one shard on a simulated disk; the root shard's
//! process is the manager, too.
//!
//! The driver is the server's ([`zonal_driver::shard`]); what is simulated is below it ([`host`]),
//! and bugs are planted beside it.

mod host;
mod lent;
pub(crate) mod line;
mod manager;
mod planted;

use crate::checker::promptness::Promptness;
use crate::clock::Group;
use crate::coverage::Fault;
use crate::disk::Disk;
use crate::net::{Answer, Network, Role, Task};
use crate::plant::Plant;
use host::SimulatedHost;
use line::Line;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use zonal_driver::{Pace, ShardDriver, ShardParts};
use zonal_meta::ShardConfig;
use zonal_types::{Codec, ErrorCode, Ino, KvRead, ShardId};
use zonal_wire::{ErrorNumber, Header, MetaReply, MetaRequest, Service};
use zonal_zonemap::map_records::MAP_KEY;
use zonal_zonemap::{EditError, MapEdit, ZoneMap};

/// The newest map that the manager has made durable, for all processes to see.
pub type MapCell = Rc<RefCell<Arc<ZoneMap>>>;

/// Deletions looked at to tell whether any are left.
const DELETIONS: usize = 64;

/// What a metadata process needs.
pub struct MetaParts {
    /// Where it is.
    pub address: String,
    /// Its tasks.
    pub group: Group,
    /// What connects it.
    pub network: Rc<Network>,
    /// Its store.
    pub disk: Rc<Disk>,
    /// The map as the manager has it.
    pub map: MapCell,
    /// Who watches how soon it replies.
    pub promptness: Rc<Promptness>,
    /// A bug.
    pub plant: Plant,
}

/// A metadata process.
pub struct MetaNode {
    driver: ShardDriver<SimulatedHost>,
    /// Requests that are being answered.
    running: Cell<u64>,
    promptness: Rc<Promptness>,
    plant: Plant,
    /// Places that were given unchecked, by a bug.
    lent: RefCell<BTreeSet<(Ino, u64)>>,
    /// Requests that were given up and are kept, by a bug.
    kept: RefCell<Vec<Task<MetaReply>>>,
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
    pub fn start(parts: MetaParts, config: ShardConfig) -> Result<Rc<Self>, ErrorCode> {
        let MetaParts {
            address,
            group,
            network,
            disk,
            map,
            promptness,
            plant,
        } = parts;
        let mut is_new = true;
        disk.scan(&[], &MAP_KEY, &mut |_key, _value| {
            is_new = false;
            false
        })?;
        let clock = network.clock.clone();
        let cell = map.borrow().cell;
        let manager = (config.shard == ShardId(0)).then(|| manager::load(&disk, cell));
        let manager = manager.transpose()?;
        let known = manager
            .as_ref()
            .map(|manager| Arc::clone(manager.durable()));
        let host = SimulatedHost {
            line: Line {
                address,
                network,
                map,
            },
            group,
            disk,
            plant,
            effects: Cell::new(0),
            appended: Cell::new(0),
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
                pace: Pace::SERVER,
            })?,
            running: Cell::new(0),
            promptness,
            plant,
            lent: RefCell::default(),
            kept: RefCell::default(),
        });
        let own = [node.clone(), node.clone(), node.clone()];
        let [house, deletions, fences] = own;
        clock.spawn(group, async move { house.driver.keep_house().await });
        clock.spawn(group, async move { fences.driver.push_fences().await });
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

    /// Changes the map, durably, where this process keeps it.
    ///
    /// # Errors
    /// Where an edit is refused.
    pub fn edit(&self, edits: &[MapEdit]) -> Result<(), EditError> {
        self.host().edit(edits)
    }

    /// The disk has another map, as after a backup was restored.
    ///
    /// # Errors
    /// A map that is none.
    pub fn read_map_again(&self) -> Result<(), ErrorCode> {
        self.host().read_map_again()
    }

    /// What is broken in the shard.
    #[must_use]
    pub fn check(&self) -> Vec<String> {
        self.driver.with_shard(|shard| shard.check(self.disk()))
    }

    /// Sizes of what the shard has in memory, where there is any.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, u64)> {
        let mut gauges = self.all_gauges();
        gauges.retain(|(_name, value)| *value > 0);
        gauges.push(("deletions", self.deletions_left() as u64));
        gauges
    }

    /// Sizes of what the shard has in memory, with their bounds as further entries.
    #[must_use]
    pub fn all_gauges(&self) -> Vec<(&'static str, u64)> {
        self.driver.with_shard(|shard| shard.gauges())
    }

    /// Whether a client has not told since its start what it holds.
    #[must_use]
    pub fn has_silent_sessions(&self) -> bool {
        self.driver.with_shard(|shard| shard.has_silent_sessions())
    }

    /// Requests that are being answered.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    /// Requests and tasks that wait.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.driver.waiting() as u64
    }

    /// Its store.
    #[must_use]
    pub fn disk(&self) -> &Disk {
        &self.host().disk
    }

    /// Deletions that are not done.
    #[must_use]
    pub fn deletions_left(&self) -> usize {
        let now = self.host().line.now().instant;
        let deletions = self
            .driver
            .with_shard(|shard| shard.deletions(self.disk(), now, DELETIONS));
        deletions.map_or(usize::MAX, |list| list.len())
    }

    /// Runs one request to its reply.
    async fn run(self: Rc<Self>, mut header: Header, mut request: MetaRequest) -> MetaReply {
        let asked = self
            .promptness
            .asked(&self.host().line.network.clock, &header);
        planted::change(self.plant, &mut header, &mut request);
        let _running = Running::begin(&self.running);
        if self.disk().is_full() && request.adds() {
            self.host().line.network.count(Fault::FullShard);
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
        let watched = asked.watch(&mut task, appended);
        let reply = if self.plant == Plant::WaitsAreKept {
            let clock = &self.host().line.network.clock;
            planted::by_deadline(watched, clock, deadline_ms).await
        } else {
            Some(watched.await)
        };
        let Some(reply) = reply else {
            self.kept.borrow_mut().push(task);
            return failed(ErrorCode::TimedOut);
        };
        asked.answered(name);
        reply
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
                self.host().manage(&body).to_bytes()
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
            Answer {
                body,
                payload: Vec::new(),
            }
        })
    }
}
