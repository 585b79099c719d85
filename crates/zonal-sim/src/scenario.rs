//! Runs: their programs and faults, and the checks of each phase.
//!
//! | phase | what happens |
//! | --- | --- |
//! | safety | programs run with faults |
//! | liveness | no faults: all programs end within a bounded time; the cell becomes quiet |
//! | comparison | the cell is compared with the knowledge of the programs |
//! | removal | everything is removed, and nothing may be left |
//!
//! Bounds are checked in all phases.

use crate::checker::{allocated_bytes, bounds, copies, healing, names, placement, survival};
use crate::coverage::FaultKind;
use crate::fault::{self, FaultPlan};
use crate::net::NETWORK;
use crate::planted_bugs::Plant;
use crate::program_set::{ProgramSet, prepare, redundancy_words};
use crate::report::RunReport;
use crate::rng::SimRng;
use crate::storage_node::{LARGE, SMALL};
use crate::world::{CellSize, World};
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_types::Ino;

/// Longest simulated time of the safety phase, ms.
const SAFETY_MS: u64 = 600_000;
/// Simulated time after the last fault within which all programs must end, ms. It is several times
/// a dead client's session (60 s) and the longest operation that waits for it (60 s).
pub const LIVENESS_MS: u64 = 600_000;
/// Least pause between two faults where shards have replicas, ms.
const REPLICAS_EVERY_MS: u64 = 2_000;
/// Interval between two checks of bounds, ms.
const LOOK_MS: u64 = 2_000;
/// Time after which sessions of killed clients are over, ms.
const SESSIONS_END_MS: u64 = 75_000;

/// The scenario of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scenario {
    /// The seed chooses the scenario.
    Any,
    /// Trees compared with the exact model, and shared files; processes are killed, power stays.
    Kill,
    /// One file that all clients write, append to, truncate and read at the same time.
    Together,
    /// Like `Together`; also callers are killed while they wait, and clients soon give up.
    Callers,
    /// Synced data must survive losses of power.
    Power,
    /// Disks are bad or full: operations may fail, but reads never give wrong bytes.
    Media,
    /// Messages that no client should send: no process may end.
    Hostile,
    /// One log to which all clients append; they gather records where they are alone. Clients are
    /// killed, and cut off for longer than a session.
    Appends,
    /// Processes that take turns under locks, by owners that repeat, with late closes and signals;
    /// processes are killed.
    Locks,
    /// Clients that take turns under a lock, and are away for longer than a session while they hold
    /// it; processes are killed.
    Fences,
    /// The programs of `Kill` or of `Power` on a zone whose shard has three replicas.
    Replicas,
    /// A map that three replicas keep, read and edited by all clients.
    Maps,
    /// The programs of `Kill`, `Locks`, `Appends`, `Together` or `Power`, while partitions move
    /// between the two shards of a zone.
    Moves,
    /// The programs of `Kill`, `Appends` or `Locks` on files with copies.
    Copies,
    /// The programs of `Copies`, also on files with one copy, while targets are drained, and some
    /// are lost for good.
    Drains,
    /// The programs of `Drains` on files with a copy in another zone, while whole zones are away.
    Zones,
    /// One file with copies whose blocks all clients write at the same time, without locks; in some
    /// runs while targets are drained.
    Writers,
}

/// Names of the scenarios.
pub const SCENARIOS: [(&str, Scenario); 17] = [
    ("any", Scenario::Any),
    ("kill", Scenario::Kill),
    ("together", Scenario::Together),
    ("callers", Scenario::Callers),
    ("power", Scenario::Power),
    ("media", Scenario::Media),
    ("hostile", Scenario::Hostile),
    ("locks", Scenario::Locks),
    ("appends", Scenario::Appends),
    ("fences", Scenario::Fences),
    ("replicas", Scenario::Replicas),
    ("maps", Scenario::Maps),
    ("moves", Scenario::Moves),
    ("copies", Scenario::Copies),
    ("drains", Scenario::Drains),
    ("zones", Scenario::Zones),
    ("writers", Scenario::Writers),
];

impl Scenario {
    /// The scenario with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = SCENARIOS.iter().find(|(known, _)| *known == name);
        found.map(|(_, scenario)| *scenario)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = SCENARIOS.iter().find(|(_, scenario)| *scenario == self);
        found.map_or("any", |(name, _)| name)
    }

    /// Whether several clients write one file.
    fn is_shared(self) -> bool {
        matches!(
            self,
            Self::Together | Self::Callers | Self::Appends | Self::Writers
        )
    }

    /// Whether the clients run the program of [`crate::workload::together`].
    pub(crate) fn is_together(self) -> bool {
        matches!(self, Self::Together | Self::Callers | Self::Writers)
    }

    fn choose(self, rng: &mut SimRng) -> Self {
        let chosen = match rng.below(100) {
            0..23 => Self::Kill,
            23..27 => Self::Fences,
            27..32 => Self::Locks,
            32..40 => Self::Together,
            40..45 => Self::Callers,
            45..75 => Self::Power,
            75..93 => Self::Media,
            _ => Self::Hostile,
        };
        if self == Self::Any { chosen } else { self }
    }
}

/// Options of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunOptions {
    /// The scenario.
    pub scenario: Scenario,
    /// Steps of each program.
    pub steps: u64,
    /// Inject faults.
    pub faults: bool,
    /// The planted bug.
    pub plant: Plant,
    /// Print every message.
    pub log: bool,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            scenario: Scenario::Any,
            steps: 60,
            faults: true,
            plant: Plant::None,
            log: false,
        }
    }
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64, options: RunOptions) -> RunReport {
    let mut rng = SimRng::new(seed);
    let scenario = options.scenario.choose(&mut rng);
    let chosen = scenario;
    let meets_others = scenario.is_shared() || scenario == Scenario::Fences;
    let fewest = if meets_others { 2 } else { 1 };
    let size = CellSize {
        zones: if rng.chance(300) { 2 } else { 1 },
        shards: if rng.chance(200) { 2 } else { 1 },
        targets: rng.between(1, 4) as u32,
        clients: rng.between(fewest, 3),
        target: if scenario == Scenario::Media && rng.chance(500) {
            SMALL
        } else {
            LARGE
        },
        ..CellSize::new(1, 1, 1)
    };
    let (size, scenario) = cell_and_programs(size, scenario, &mut rng);
    let has_power = |rng: &mut SimRng| match scenario {
        Scenario::Maps => rng.chance(500),
        scenario => scenario == Scenario::Power,
    };
    let (power, media) = (has_power(&mut rng), scenario == Scenario::Media);
    let mut plan = if options.faults {
        FaultPlan::random(&mut rng, power, media)
    } else {
        FaultPlan::NONE
    };
    plan.moves = chosen == Scenario::Moves;
    plan.drains = size.drains;
    if size.replicas > 1 {
        suit_replicas(&mut plan, power);
    }
    // For programs a move is what a restart of the shard is.
    let has_faults = options.faults || plan.moves;
    let mut report = RunReport::new(seed, chosen);
    crate::coverage_marks::begin();
    match World::build(size, options.plant, plan.clocks, rng.fork(2)) {
        Ok(world) => {
            if options.log {
                world.network.trace.print();
            }
            let run = Run {
                world: world.clone(),
                scenario,
                programs: Rc::new(ProgramSet::new(scenario, has_faults, options.plant)),
                options,
                has_moves: plan.moves,
            };
            if let Err(broken) = survival::watch(|| run.drive(plan, &mut rng)) {
                world.report(broken);
            }
            report.take(&world);
            // A panic may have left a cell borrowed.
            if let Err(broken) = survival::watch(|| world.end()) {
                report.broken.push(broken);
            }
        }
        Err(code) => report
            .broken
            .push(format!("the cell cannot be built: {code}")),
    }
    report.coverage.marks = crate::coverage_marks::end();
    report
}

/// The cell of a scenario, and the scenario whose programs it has.
fn cell_and_programs(size: CellSize, scenario: Scenario, rng: &mut SimRng) -> (CellSize, Scenario) {
    match scenario {
        Scenario::Replicas => (replicated(size), kill_or_power(rng)),
        Scenario::Maps => (replicated(size), Scenario::Maps),
        Scenario::Moves => moved(size, rng),
        Scenario::Copies => copied(size, rng),
        Scenario::Drains => drained(size, rng),
        Scenario::Zones => in_two_zones(size, rng),
        Scenario::Writers => writers(size, rng),
        scenario => (size, scenario),
    }
}

/// Leaves a shard with replicas time for elections.
fn suit_replicas(plan: &mut FaultPlan, power: bool) {
    plan.group_power = power;
    // An election takes a second or two.
    plan.every_ms = plan.every_ms.max(REPLICAS_EVERY_MS.min(plan.every_ms * 4));
}

/// The scenario whose programs a run with replicas has.
fn kill_or_power(rng: &mut SimRng) -> Scenario {
    match rng.below(100) {
        0..60 => Scenario::Kill,
        _ => Scenario::Power,
    }
}

/// The cell of a run with replicas.
fn replicated(size: CellSize) -> CellSize {
    CellSize {
        zones: 1,
        shards: 1,
        replicas: 3,
        ..size
    }
}

/// The cell of a run with moves, and the scenario whose programs it has.
fn moved(size: CellSize, rng: &mut SimRng) -> (CellSize, Scenario) {
    let size = CellSize {
        shards: 2,
        clients: size.clients.max(2),
        ..size
    };
    let scenario = match rng.below(100) {
        0..30 => Scenario::Kill,
        30..55 => Scenario::Locks,
        55..70 => Scenario::Appends,
        70..85 => Scenario::Together,
        _ => Scenario::Power,
    };
    (size, scenario)
}

/// The cell of a run with copies, and the scenario whose programs it has.
fn copied(size: CellSize, rng: &mut SimRng) -> (CellSize, Scenario) {
    let targets = rng.between(2, 5) as u32;
    let size = CellSize {
        targets,
        copies: if targets > 2 && rng.chance(300) { 3 } else { 2 },
        ..size
    };
    let scenario = match rng.below(100) {
        0..60 => Scenario::Kill,
        60..80 => Scenario::Locks,
        _ => Scenario::Appends,
    };
    (size, scenario)
}

/// The cell of a run with drains, and the scenario whose programs it has.
fn drained(size: CellSize, rng: &mut SimRng) -> (CellSize, Scenario) {
    let (size, scenario) = copied(size, rng);
    let size = CellSize {
        targets: size.targets.max(3) + 2,
        copies: if rng.chance(400) { 1 } else { size.copies },
        drains: true,
        ..size
    };
    (size, scenario)
}

/// The cell of a run with copies in another zone, and the scenario whose programs it has.
fn in_two_zones(size: CellSize, rng: &mut SimRng) -> (CellSize, Scenario) {
    let (size, scenario) = copied(size, rng);
    let size = CellSize {
        zones: if rng.chance(300) { 3 } else { 2 },
        copies: if rng.chance(600) { 1 } else { 2 },
        also_zone: true,
        drains: true,
        ..size
    };
    (size, scenario)
}

/// The cell of a run in which all clients write the same blocks.
fn writers(size: CellSize, rng: &mut SimRng) -> (CellSize, Scenario) {
    let of = if rng.chance(300) { drained } else { copied };
    let (size, _programs) = of(size, rng);
    (size, Scenario::Writers)
}

struct Run {
    world: Rc<World>,
    scenario: Scenario,
    programs: Rc<ProgramSet>,
    options: RunOptions,
    /// Partitions move while programs run.
    has_moves: bool,
}

impl Run {
    fn is_good(&self) -> bool {
        self.world.broken().is_empty()
    }

    fn drive(&self, plan: FaultPlan, rng: &mut SimRng) {
        let world = &self.world;
        let free = world
            .storage_nodes()
            .first()
            .map_or(0, |node| node.space().0);
        let setup = prepare(world.clone(), self.programs.clone(), rng.fork(3));
        if !self.phase("set-up", setup) {
            return;
        }
        self.programs.start(world, self.options.steps, rng);
        world
            .clock
            .spawn(NETWORK, look(world.clone(), self.programs.clone()));
        fault::begin(world, plan, &mut rng.fork(4));
        if plan.drains && rng.chance(500) {
            let changes = change_copies(world.clone(), self.programs.clone(), rng.fork(7));
            world.clock.spawn(NETWORK, changes);
        }
        if plan.drains && rng.chance(600) {
            let commands = crate::restripes::order(world.clone(), rng.fork(8));
            world.clock.spawn(NETWORK, commands);
        }
        let over = || world.running() == 0 || !self.is_good();
        let safety = world.clock.now().plus_ms(SAFETY_MS);
        world.clock.run(safety, over);
        world.heal();
        let liveness = world.clock.now().plus_ms(LIVENESS_MS);
        if !world.clock.run(liveness, over) {
            world.report(format!(
                "invariant 9: {} programs did not end within {LIVENESS_MS} ms after the last fault",
                world.running()
            ));
        }
        if self.is_good() {
            self.compare(rng);
        }
        if self.is_good() && self.scenario != Scenario::Hostile {
            self.remove(rng, free);
        }
        if world.clock.is_stuck() {
            world.report("invariant 9: tasks wake one another for ever");
        }
    }

    /// Compares a quiet cell with the knowledge of its clients.
    fn compare(&self, rng: &mut SimRng) {
        let world = &self.world;
        if self.scenario.is_shared() {
            // Files that a client opened without learning of it stay open until its session ends.
            (0..world.client_count() as usize).for_each(|index| world.kill_client(index));
        }
        healing::wait(world, SESSIONS_END_MS);
        healing::end_moves(world);
        healing::end_drains(world);
        self.phase(
            "final checks",
            self.programs.clone().compare(world.clone(), rng.fork(5)),
        );
        if !self.is_good() {
            return;
        }
        healing::settle(world);
        healing::check_replicas(world);
        names::check(world);
        bounds::check_servers(world);
        for what in world.complaints() {
            world.report(what);
        }
        if self.scenario != Scenario::Hostile {
            let power = matches!(self.scenario, Scenario::Power | Scenario::Maps);
            let media = self.scenario == Scenario::Media;
            // Bytes that an append left when it was given up.
            let is_shared = self.scenario.is_shared();
            let may_be_longer = power || media || is_shared || self.programs.has_mortal();
            placement::check(world, power, may_be_longer);
            // Some copies may have bytes that a killed or fenced client had sent.
            let is_known = !is_shared || self.scenario == Scenario::Writers;
            if !power && !media && is_known && !self.programs.has_mortal() {
                copies::check(world);
            }
            if !self.options.faults && !self.has_moves {
                allocated_bytes::check(world);
            }
        }
    }

    /// Removes all files and checks that nothing is left of them.
    fn remove(&self, rng: &mut SimRng, free: u64) {
        let world = &self.world;
        self.phase(
            "removal",
            self.programs.clone().remove(world.clone(), rng.fork(6)),
        );
        if !self.is_good() {
            return;
        }
        healing::settle(world);
        names::check(world);
        if !matches!(self.scenario, Scenario::Power | Scenario::Maps) {
            healing::check_empty(world, free);
        }
    }

    /// Runs one program to its end; returns whether nothing was wrong.
    fn phase(
        &self,
        name: &'static str,
        program: impl Future<Output = Result<(), String>> + 'static,
    ) -> bool {
        let reporter = self.world.clone();
        self.world.spawn_program(99, async move {
            if let Err(what) = program.await {
                reporter.report(format!("{name}: {what}"));
            }
        });
        let limit = self.world.clock.now().plus_ms(LIVENESS_MS);
        if !self.world.clock.run(limit, || self.world.running() == 0) {
            self.world
                .report(format!("invariant 9: {name} never ended"));
        }
        self.is_good()
    }
}

/// Gives files more copies, and fewer again, while programs use them. Never fewer than they had at
/// first: a target may be lost.
async fn change_copies(world: Rc<World>, programs: Rc<ProgramSet>, mut rng: SimRng) {
    let (least, most) = (world.size().copies, world.size().copies_max());
    let mut given: BTreeMap<Ino, u16> = BTreeMap::new();
    if least == most {
        return;
    }
    loop {
        world.clock.sleep(rng.between(200, 6_000) * 1_000_000).await;
        if !world.faults_wanted() {
            return;
        }
        let files = placement::files(&world);
        let client = programs.client(rng.below(world.client_count()) as usize);
        let (Some(ino), Some(client)) = (rng.pick(&files).copied(), client) else {
            continue;
        };
        // Half of the files that have more get fewer.
        let raised: Vec<Ino> = given
            .iter()
            .filter(|(_, copies)| **copies > least)
            .map(|(ino, _)| *ino)
            .collect();
        let lowered = rng.pick(&raised).copied().filter(|_| rng.chance(500));
        let (ino, copies) = match lowered {
            Some(ino) => (ino, rng.between(least.into(), u64::from(most) - 1)),
            None => (ino, rng.between(u64::from(least) + 1, most.into())),
        };
        let copies = u16::try_from(copies).unwrap_or(least);
        let value = redundancy_words(copies, world.size().also_zone);
        let who = crate::workload::who();
        let call = client.begin();
        let done = call.setxattr(&who, ino, b"zonal.layout", value.as_bytes(), 0);
        // The file may be removed, or its objects move.
        if done.await.is_ok() {
            let before = given.insert(ino, copies).unwrap_or(least);
            if copies > before {
                world.network.count(FaultKind::CopiesAdded);
            }
            if copies < before {
                world.network.count(FaultKind::CopiesLowered);
            }
        }
    }
}

/// Checks bounds while programs run.
async fn look(world: Rc<World>, programs: Rc<ProgramSet>) {
    while world.running() > 0 && world.broken().is_empty() {
        bounds::check_servers(&world);
        for what in world.complaints() {
            world.report(what);
        }
        programs.each_client(|client| bounds::check_client(&world, client));
        world.clock.sleep(LOOK_MS * 1_000_000).await;
    }
}
