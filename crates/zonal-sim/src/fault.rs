//! Injects faults during a run, within a budget under which the cell must recover by itself.
//!
//! The budget: at most [`Budget::at_once`] faults at a time, each over after [`OUTAGE_MS_MAX`],
//! [`Budget::faults`] in all; clocks drift less than the margin of terms. Every operation must
//! succeed nevertheless, since a client tries for longer than any outage. Damaged media and full
//! targets are exempt: they cause errors until the damaged bytes are written anew.

use crate::coverage::FaultKind;
use crate::disk::{ReadTrick, WriteTrick};
use crate::net::{LinkFaults, NETWORK};
use crate::rng::SimRng;
use crate::world::World;
use std::rc::Rc;

/// The longest outage, ms: several outages together are shorter than a client tries.
pub const OUTAGE_MS_MAX: u64 = 6_000;

/// Most changes of slots in a run.
const RENEWALS_MAX: u64 = 60;

/// Bounds of the faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Most faults in all.
    pub faults: u64,
    /// Most faults at a time.
    pub at_once: u64,
}

/// Kinds of faults of a run, and their rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultPlan {
    /// The budget.
    pub budget: Budget,
    /// Pause between two faults, ms; 0: no faults that come one by one.
    pub every_ms: u64,
    /// A killed server may lose unsynced data.
    pub power: bool,
    /// All replicas of a shard may lose their power at a time.
    pub group_power: bool,
    /// Disks are bad.
    pub media: bool,
    /// Partitions move between the shards of a zone.
    pub moves: bool,
    /// Targets are drained, and lost.
    pub drains: bool,
    /// Clocks have errors.
    pub clocks: bool,
    /// Faults of the network.
    pub links: LinkFaults,
}

impl FaultPlan {
    /// A plan without faults.
    pub const NONE: Self = Self {
        budget: Budget {
            faults: 0,
            at_once: 0,
        },
        every_ms: 0,
        power: false,
        group_power: false,
        media: false,
        moves: false,
        drains: false,
        clocks: false,
        links: LinkFaults::NONE,
    };

    /// Makes the plan of a seed: some plans have a bad network, some outages, most have both.
    #[must_use]
    pub fn random(rng: &mut SimRng, power: bool, media: bool) -> Self {
        let mut links = LinkFaults::NONE;
        if rng.chance(700) {
            links.loss = rng.below(30);
            links.duplicate = rng.below(100);
            links.slow = rng.below(100);
            links.late = rng.below(30);
            links.delay_max = rng.between(200_000, 5_000_000);
        }
        let every_ms = if power || media || rng.chance(800) {
            rng.between(500, 5_000)
        } else {
            0
        };
        Self {
            budget: Budget {
                faults: rng.between(5, 60),
                at_once: if rng.chance(400) { 2 } else { 1 },
            },
            every_ms,
            power,
            group_power: false,
            media,
            moves: false,
            drains: false,
            clocks: rng.chance(500),
            links,
        }
    }
}

/// Begins to inject faults. They end with the programs, with the budget, or when the world heals.
pub fn begin(world: &Rc<World>, plan: FaultPlan, rng: &mut SimRng) {
    world.network.set_faults(plan.links);
    if plan.moves {
        let orders = crate::moves::order(world.clone(), rng.fork(77));
        world.clock.spawn(NETWORK, orders);
    }
    if plan.drains {
        let orders = crate::drains::order(world.clone(), rng.fork(78));
        world.clock.spawn(NETWORK, orders);
    }
    if plan.every_ms == 0 {
        return;
    }
    for lane in 0..plan.budget.at_once {
        let faults = plan.budget.faults / plan.budget.at_once;
        let injector = Injector {
            world: world.clone(),
            plan,
            rng: rng.fork(lane),
        };
        world.clock.spawn(NETWORK, injector.run(faults));
    }
    let mut rng = rng.fork(plan.budget.at_once);
    if rng.chance(500) {
        world.clock.spawn(NETWORK, renew_slots(world.clone(), rng));
    }
}

/// Gives slots new epochs, beside all other faults: servers and clients with an old map learn of it
/// and go on.
async fn renew_slots(world: Rc<World>, mut rng: SimRng) {
    for _ in 0..RENEWALS_MAX {
        let pause = rng.between(100, 20_000);
        world.clock.sleep(pause * 1_000_000).await;
        if !world.faults_wanted() {
            break;
        }
        world.renew_slots(&mut rng);
    }
}

struct Injector {
    world: Rc<World>,
    plan: FaultPlan,
    rng: SimRng,
}

impl Injector {
    async fn run(mut self, faults: u64) {
        let every = self.plan.every_ms;
        for _ in 0..faults {
            let pause = self.rng.between(every / 2, every * 2);
            self.world.clock.sleep(pause * 1_000_000).await;
            if !self.world.faults_wanted() {
                break;
            }
            if self.plan.media && self.rng.chance(100) {
                self.fill_shard().await;
            } else if self.plan.media && self.rng.chance(600) {
                self.spoil_disk();
            } else {
                self.outage().await;
            }
        }
    }

    fn count(&self, fault: FaultKind) {
        self.world.network.count(fault);
    }

    fn server(&mut self) -> usize {
        self.rng.below(self.world.server_count() as u64) as usize
    }

    fn client(&mut self) -> usize {
        self.rng.below(self.world.client_count()) as usize
    }

    async fn last(&mut self) {
        let longest = if self.rng.chance(200) {
            OUTAGE_MS_MAX
        } else {
            OUTAGE_MS_MAX / 2
        };
        let ms = self.rng.between(1, longest);
        self.world.clock.sleep(ms * 1_000_000).await;
    }

    /// Whether a killed server may lose its power. A replica may where the run allows it of all, or
    /// where the others have everything.
    fn may_lose_power(&self, victim: usize) -> bool {
        let world = &self.world;
        if !world.replica_indices().contains(&victim) {
            return self.plan.power;
        }
        let may_be_lost = self.plan.group_power || world.is_strong_without(victim);
        world.is_group_grown() && may_be_lost
    }

    /// A fault of one of the replicas, of more kinds than those of other servers.
    async fn replica_outage(&mut self, replicas: &[usize]) {
        let world = self.world.clone();
        let Some(victim) = self.rng.pick(replicas).copied() else {
            return;
        };
        let address = world.address_of(victim);
        let other = self.rng.pick(replicas).copied().unwrap_or(victim);
        let other = world.address_of(other);
        match self.rng.below(100) {
            0..45 => {
                self.count(FaultKind::Kill);
                world.kill(victim);
                if self.may_lose_power(victim) && self.rng.chance(400) {
                    world.lose_power(victim, &mut self.rng);
                }
                self.last().await;
                world.start(victim);
            }
            45..60 => {
                self.count(FaultKind::CutServers);
                world.network.cut(&address, &other, true);
                self.last().await;
                world.network.cut(&address, &other, false);
            }
            60..75 => {
                self.count(FaultKind::CutOneWay);
                world.network.cut_way(&address, &other, true);
                self.last().await;
                world.network.cut_way(&address, &other, false);
            }
            75..85 => {
                self.count(FaultKind::Isolated);
                world.network.isolate(&address, true);
                self.last().await;
                world.network.isolate(&address, false);
            }
            _ => {
                self.count(FaultKind::PauseServer);
                world.pause(victim, true);
                self.last().await;
                world.pause(victim, false);
            }
        }
    }

    async fn outage(&mut self) {
        let world = self.world.clone();
        let replicas = world.replica_indices();
        if !replicas.is_empty() && self.rng.chance(700) {
            return self.replica_outage(&replicas).await;
        }
        let victim = self.server();
        // A second failure before the rebuild has ended may be one too many.
        let is_storage = world.storage_indices().contains(&victim);
        if world.is_at_risk() && is_storage {
            return;
        }
        if is_storage {
            world.count_storage_fault(1);
        }
        self.outage_of(victim).await;
        if is_storage {
            world.count_storage_fault(-1);
        }
    }

    async fn outage_of(&mut self, victim: usize) {
        let world = self.world.clone();
        match self.rng.below(100) {
            0..50 => {
                self.count(FaultKind::Kill);
                world.kill(victim);
                if self.may_lose_power(victim) && self.rng.chance(700) {
                    world.lose_power(victim, &mut self.rng);
                }
                self.last().await;
                world.start(victim);
            }
            50..62 => {
                self.count(FaultKind::CutClient);
                let (client, server) = (world.client_name(self.client()), world.address_of(victim));
                world.network.cut(&client, &server, true);
                self.last().await;
                world.network.cut(&client, &server, false);
            }
            62..70 => {
                self.count(FaultKind::CutServers);
                let (one, other) = (world.address_of(victim), world.address_of(self.server()));
                world.network.cut(&one, &other, true);
                self.last().await;
                world.network.cut(&one, &other, false);
            }
            70..76 => {
                self.count(FaultKind::CutOneWay);
                let mut ends = [world.client_name(self.client()), world.address_of(victim)];
                if self.rng.chance(500) {
                    ends.reverse();
                }
                world.network.cut_way(&ends[0], &ends[1], true);
                self.last().await;
                world.network.cut_way(&ends[0], &ends[1], false);
            }
            76..82 => {
                self.count(FaultKind::Isolated);
                let server = world.address_of(victim);
                world.network.isolate(&server, true);
                self.last().await;
                world.network.isolate(&server, false);
            }
            82..90 => {
                self.count(FaultKind::PauseServer);
                world.pause(victim, true);
                self.last().await;
                world.pause(victim, false);
            }
            90..95 => {
                self.count(FaultKind::PauseClient);
                let client = self.client();
                world.pause_client(client, true);
                self.last().await;
                world.pause_client(client, false);
            }
            _ => {
                self.count(FaultKind::CalendarJump);
                let clock = world.network.clock_of(&world.address_of(victim));
                clock.jump(&mut self.rng);
            }
        }
    }

    /// Fills a shard's disk for a while, also over a kill and a start of its server.
    async fn fill_shard(&mut self) {
        let world = self.world.clone();
        let storage = world.storage_indices();
        let shards = (0..world.server_count()).filter(|index| !storage.contains(index));
        let shards: Vec<_> = shards.collect();
        let Some(index) = self.rng.pick(&shards).copied() else {
            return;
        };
        for is_full in [true, false] {
            if let Some(disk) = world.disk_of(index) {
                disk.set_full(is_full);
            }
            if is_full {
                self.last().await;
            }
        }
    }

    fn spoil_disk(&mut self) {
        let world = self.world.clone();
        let Some(index) = self.rng.pick(&world.storage_indices()).copied() else {
            return;
        };
        let Some(disk) = world.disk_of(index) else {
            return;
        };
        let further = self.rng.between(1, 40);
        match self.rng.below(5) {
            0 => {
                if disk.flip_bit(&mut self.rng) {
                    self.count(FaultKind::FlippedBit);
                }
            }
            1 => {
                self.count(FaultKind::LostWrite);
                disk.trick_write(WriteTrick::Lost);
            }
            2 => {
                self.count(FaultKind::MisdirectedWrite);
                disk.trick_write(WriteTrick::Misdirected(further));
            }
            3 => {
                self.count(FaultKind::MisdirectedRead);
                disk.trick_read(ReadTrick::Misdirected(further));
            }
            _ => {
                self.count(FaultKind::ReadError);
                disk.trick_read(ReadTrick::Fails);
            }
        }
    }
}
