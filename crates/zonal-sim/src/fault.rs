//! What goes wrong during a run: kills, power losses, cuts, a bad network; and bugs put in on purpose.

use crate::net::LinkFaults;
use crate::rng::Rng;
use crate::world::World;
use std::rc::Rc;

/// A bug put in on purpose, to show that the checkers find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plant {
    /// None.
    #[default]
    None,
    /// Targets ignore truncations, so that cut bytes come back.
    TargetIgnoresTruncation,
    /// Shards execute repeated requests again.
    ShardForgetsReplies,
    /// Targets say that they synced and do not.
    SyncDoesNothing,
    /// Targets never delete.
    DeletionsAreLost,
    /// Clients acknowledge events without acting on them.
    EventsAreIgnored,
}

/// What may go wrong, and how often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultPlan {
    /// Pause between two faults, ms; 0: no kills, losses of power and cuts.
    pub every_ms: u64,
    /// Servers may lose unsynced data with a kill.
    pub power: bool,
    /// The network while there are faults.
    pub links: LinkFaults,
}

impl FaultPlan {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        every_ms: 0,
        power: false,
        links: LinkFaults::NONE,
    };

    /// A plan for a seed: some have a bad network, some kills, most both.
    #[must_use]
    pub fn random(rng: &mut Rng, power: bool) -> Self {
        let mut links = LinkFaults::NONE;
        if rng.chance(700) {
            links.loss = rng.below(30);
            links.duplicate = rng.below(100);
            links.slow = rng.below(100);
            links.delay_max = rng.between(200_000, 5_000_000);
        }
        let every_ms = if power || rng.chance(800) {
            rng.between(500, 5_000)
        } else {
            0
        };
        Self {
            every_ms,
            power,
            links,
        }
    }
}

/// Injects faults until the world's programs have ended or are told to stop.
pub async fn inject(world: Rc<World>, plan: FaultPlan, mut rng: Rng) {
    world.network.set_faults(plan.links);
    while plan.every_ms > 0 && world.faults_wanted() {
        let pause = rng.between(plan.every_ms / 2, plan.every_ms * 2);
        world.clock.sleep(pause * 1_000_000).await;
        if !world.faults_wanted() {
            break;
        }
        let servers = world.server_count();
        let victim = rng.below(servers as u64) as usize;
        world.count_fault();
        if rng.chance(300) {
            let client = world.client_name(rng.below(world.client_count()) as usize);
            let address = world.address_of(victim);
            world.network.cut(&client, &address, true);
            world.clock.sleep(rng.between(10, 3_000) * 1_000_000).await;
            world.network.cut(&client, &address, false);
        } else {
            world.kill(victim);
            if plan.power && rng.chance(700) {
                world.lose_power(victim, &mut rng);
            }
            world.clock.sleep(rng.between(1, 3_000) * 1_000_000).await;
            world.start(victim);
        }
    }
}
