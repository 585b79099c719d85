//! Clients of the cell and the programs that run on them.

use super::World;
use crate::clock::Group;
use crate::net::{NETWORK, SimNet};
use crate::planted_bugs::Plant;
use crate::rng::SimRng;
use crate::workload::kernel_cache::KernelCache;
use std::rc::Rc;
use zonal_client::{Client, ClientCall, ClientOptions, RequeuedLock};
use zonal_types::{ClientId, ErrorCode, NodeId, ShardId, ZoneId};
use zonal_wire::Event;

/// Idle time after which a client ends a session, ms: longer than any term.
const LEAVE_IDLE_MS: u64 = 7_000;
/// How long leases are renewed after their last use, ms.
const KEEP_LEASES_MS: u64 = 12_000;
/// First group of clients; groups of servers rise from 1 with each start.
const CLIENT_GROUPS: Group = 1 << 40;

/// Operations that may be given up and have a caller that is killed, of 1000.
const CALLERS_KILLED: u64 = 150;

/// Longest times from an operation's begin until its caller is killed, ns: while the request is
/// sent, answered, or sent again.
const KILLED_WITHIN: [u64; 4] = [300_000, 3_000_000, 30_000_000, 2_000_000_000];

/// How long one attempt of a client waits, ms.
const ATTEMPT_MS: u64 = 1_000;

/// How long a client tries, ms: longer than any outage.
pub const DEADLINE_MS: u64 = 60_000;

impl World {
    /// Connects a client in zone 1 or, for odd indices, in the next zone.
    ///
    /// # Errors
    /// The cell does not answer.
    pub async fn connect(&self, index: usize, rng: SimRng) -> Result<Client<SimNet>, ErrorCode> {
        self.connect_with(index, rng, |_options| {}).await
    }

    /// As [`Self::connect`], with other options.
    ///
    /// # Errors
    /// The cell does not answer.
    pub async fn connect_with(
        &self,
        index: usize,
        mut rng: SimRng,
        change: impl FnOnce(&mut ClientOptions),
    ) -> Result<Client<SimNet>, ErrorCode> {
        let zone = ZoneId(1 + (index as u16 % self.size.zones.max(1)));
        let name = self.client_name(index);
        // Random, like a mount's id: the successor of a killed client has another id.
        let number = rng.bits() | 1;
        let mut options = ClientOptions::new(&self.address_of(0), zone, ClientId(number));
        options.name.clone_from(&name);
        options.attempt_ms = ATTEMPT_MS;
        options.deadline_ms = DEADLINE_MS;
        options.leave_idle_ms = LEAVE_IDLE_MS;
        options.keep_leases_ms = KEEP_LEASES_MS;
        options.node = self.node_of_client(index);
        change(&mut options);
        let deadline = self.clock.now().plus_ms(DEADLINE_MS);
        loop {
            let net = SimNet::new(self.network.clone(), &name, rng.clone());
            match Client::connect(net, options.clone()).await {
                Err(_passing) if self.clock.now() < deadline => {
                    self.clock.sleep(100_000_000).await;
                }
                other => return other,
            }
        }
    }

    /// The node that the clients' machines are, with a target, by turns.
    fn node_of_client(&self, index: usize) -> NodeId {
        let map = self.map.borrow();
        let turn = index.checked_rem(map.targets.len());
        let target = turn.and_then(|turn| map.targets.get(turn));
        target.map_or(NodeId(0), |target| target.node)
    }

    /// Begins an operation whose caller may be killed while it waits; the client goes on.
    pub fn mortal_call<'a>(
        &self,
        client: &'a Client<SimNet>,
        rng: &mut SimRng,
    ) -> ClientCall<'a, SimNet> {
        let call = client.begin();
        if self.faults_wanted() && rng.chance(CALLERS_KILLED) {
            let last = *rng.pick(&KILLED_WITHIN).unwrap_or(&1);
            let after = rng.below(last);
            let (given_up, clock) = (call.context().cancellation().clone(), self.clock.clone());
            self.clock.spawn(NETWORK, async move {
                clock.sleep(after).await;
                given_up.cancel();
            });
        }
        call
    }

    /// Runs a mount's background work for a client: a poll for events at each shard, and
    /// housekeeping.
    pub fn serve_client(&self, index: usize, client: &Rc<Client<SimNet>>, cache: &Rc<KernelCache>) {
        let group = CLIENT_GROUPS + index as u64;
        let shards: Vec<ShardId> = self
            .map
            .borrow()
            .shards
            .iter()
            .map(|shard| shard.id)
            .collect();
        let is_deaf = self.plant == Plant::EventsAreIgnored;
        for shard in shards {
            let (client, clock) = (client.clone(), self.clock.clone());
            let cache = cache.clone();
            self.clock.spawn(group, async move {
                // Requests that wait may have moved here with their subtree.
                let mut are_locks_queued = false;
                loop {
                    let link = client.link_to(shard);
                    let wait_ms = if are_locks_queued {
                        client.background().poll_wait_ms(&link)
                    } else {
                        0
                    };
                    match client.background().poll_events(&link, wait_ms).await {
                        Ok(_polled) if is_deaf => {}
                        Ok(polled) if polled.is_quiet() && are_locks_queued => {
                            if client.background().leave_idle(&link).await {
                                while !link.is_open() {
                                    clock.sleep(50_000_000).await;
                                }
                            }
                        }
                        Ok(polled) => {
                            cache.take(&polled);
                            let events = &polled.events;
                            if events
                                .iter()
                                .any(|e| matches!(e, Event::EndRecalled { .. }))
                            {
                                let returning = client.clone();
                                clock.spawn(group, async move {
                                    returning.background().return_ends().await;
                                });
                            }
                            if polled.restarted || !are_locks_queued {
                                let over;
                                (over, are_locks_queued) =
                                    client.background().queue_locks_again(shard).await;
                                for queued in over {
                                    if let RequeuedLock::Granted { waiter, .. } = queued {
                                        cache.grant(waiter);
                                    }
                                }
                            }
                        }
                        Err(_passing) => clock.sleep(100_000_000).await,
                    }
                }
            });
        }
        let (client, clock) = (client.clone(), self.clock.clone());
        self.clock.spawn(group, async move {
            loop {
                clock.sleep(1_000_000_000).await;
                client.background().keep_house().await;
            }
        });
    }

    /// Adds a program; the run ends when all programs have ended.
    pub fn spawn_program(
        self: &Rc<Self>,
        client: usize,
        program: impl Future<Output = ()> + 'static,
    ) {
        let running = RunningProgram::begin(self.clone());
        self.clock.spawn(CLIENT_GROUPS + client as u64, async move {
            program.await;
            drop(running);
        });
    }

    /// Runs a task of a client, which ends when the client is killed. The run does not wait for it.
    pub fn spawn_for_client(&self, index: usize, task: impl Future<Output = ()> + 'static) {
        self.clock.spawn(CLIENT_GROUPS + index as u64, task);
    }

    /// Number of programs that have not ended.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running.get()
    }

    /// Pauses a client's process, or resumes it.
    pub fn pause_client(&self, index: usize, is_paused: bool) {
        self.pause_group(CLIENT_GROUPS + index as u64, is_paused);
    }

    /// Kills a client's process with its programs.
    pub fn kill_client(&self, index: usize) {
        let name = self.client_name(index);
        self.network
            .trace
            .say(self.clock.now(), &|| format!("kill {name}"));
        self.network.died(&name);
        self.clock.kill(CLIENT_GROUPS + index as u64);
    }

    /// Number of clients.
    #[must_use]
    pub fn client_count(&self) -> u64 {
        self.size.clients
    }

    /// Name of a client.
    #[must_use]
    pub fn client_name(&self, index: usize) -> String {
        format!("client{index}")
    }
}

/// Counts a program until it ends or is killed.
pub struct RunningProgram(Rc<World>);

impl RunningProgram {
    /// Counts one more program.
    #[must_use]
    pub fn begin(world: Rc<World>) -> Self {
        world.running.set(world.running.get() + 1);
        Self(world)
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        self.0.running.set(self.0.running.get() - 1);
    }
}
