//! Runs: which programs, which faults, and what is checked at the end.
//!
//! A safety phase with faults, then a liveness phase without: programs must end, deletions must be pushed, and the
//! servers' own checks must hold.

use crate::checker::servers;
use crate::fault::{FaultPlan, Plant, inject};
use crate::net::NETWORK;
use crate::report::Report;
use crate::rng::Rng;
use crate::workload::cached::{KernelCache, Stage, Watched, change, lock_and_unlock, watch};
use crate::workload::durable::DurableProgram;
use crate::workload::shared::{Shared, append_some, check_log, read_baton, write_baton};
use crate::workload::tree::TreeProgram;
use crate::workload::{SimClient, create, make_dir, remove_all};
use crate::world::{Size, World};
use std::cell::RefCell;
use std::rc::Rc;
use zonal_types::{ErrorCode, Ino};

/// Simulated time after which a run must be over, ms.
const RUN_MS: u64 = 4 * 3_600_000;
/// Simulated time after which a quiet cell must have deleted what is to be deleted, ms.
const QUIET_MS: u64 = 600_000;

/// What sort of run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Chosen by the seed.
    Any,
    /// Trees compared with the exact model, and shared files; servers are killed, power stays.
    Kill,
    /// Synced data must survive; power fails.
    Power,
}

/// Options of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// What sort of run.
    pub scenario: Scenario,
    /// Steps of each program.
    pub steps: u64,
    /// Faults at all.
    pub faults: bool,
    /// A bug put in on purpose.
    pub plant: Plant,
    /// Print every message.
    pub log: bool,
}

impl Default for Options {
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
pub fn run(seed: u64, options: Options) -> Report {
    let mut rng = Rng::new(seed);
    let power = match options.scenario {
        Scenario::Any => rng.chance(300),
        Scenario::Kill => false,
        Scenario::Power => true,
    };
    let size = Size {
        zones: if rng.chance(300) { 2 } else { 1 },
        targets: rng.between(1, 4) as u32,
        clients: rng.between(1, 3),
    };
    let plan = if options.faults {
        FaultPlan::random(&mut rng, power)
    } else {
        FaultPlan::NONE
    };
    let mut report = Report {
        seed,
        trace: 0,
        messages: 0,
        operations: 0,
        faults: 0,
        simulated_ms: 0,
        broken: Vec::new(),
    };
    match World::build(size, options.plant, rng.fork(2)) {
        Ok(world) => {
            if options.log {
                world.network.trace.print();
            }
            drive(
                &world,
                size,
                plan,
                power,
                options.steps,
                &mut rng,
                &mut report,
            );
        }
        Err(code) => report
            .broken
            .push(format!("the cell cannot be built: {code}")),
    }
    report
}

fn drive(
    world: &Rc<World>,
    size: Size,
    plan: FaultPlan,
    power: bool,
    steps: u64,
    rng: &mut Rng,
    report: &mut Report,
) {
    let started = world.clock.now();
    let cast = Rc::new(Cast::default());
    let setup = prepare(world.clone(), cast.clone(), size, rng.fork(3));
    if phase(world, "set-up", setup) {
        if power {
            start_durable(world, &cast, steps, rng);
        } else {
            start_exact(world, &cast, steps, rng);
        }
        world
            .clock
            .spawn(NETWORK, inject(world.clone(), plan, rng.fork(4)));
        let limit = world.clock.now().plus_ms(RUN_MS);
        if !world
            .clock
            .run(limit, || world.running() == 0 || !world.broken().is_empty())
        {
            world.report(format!(
                "invariant 9: {} programs never ended",
                world.running()
            ));
        }
        world.heal();
        if world.broken().is_empty() {
            phase(
                world,
                "final checks",
                check_all(world.clone(), cast.clone(), rng.fork(5)),
            );
        }
        if world.broken().is_empty() {
            settle(world, power);
        }
    }
    if world.clock.is_stuck() {
        world.report("livelock: tasks wake one another for ever".to_owned());
    }
    report.trace = world.network.trace.hash();
    report.messages = world.network.messages();
    report.operations = world.operation_count();
    report.faults = world.fault_count();
    report.simulated_ms = world.clock.now().ms_since(started);
    report.broken = world.broken();
}

/// Runs one program to its end; true where nothing was wrong.
fn phase(
    world: &Rc<World>,
    name: &'static str,
    program: impl Future<Output = Result<(), String>> + 'static,
) -> bool {
    let reporter = world.clone();
    world.spawn_program(99, async move {
        if let Err(what) = program.await {
            reporter.report(format!("{name}: {what}"));
        }
    });
    let limit = world.clock.now().plus_ms(RUN_MS);
    if !world.clock.run(limit, || world.running() == 0) {
        world.report(format!("invariant 9: {name} never ended"));
    }
    world.broken().is_empty()
}

/// The clients and where they work.
#[derive(Default)]
struct Cast {
    clients: RefCell<Vec<(Rc<SimClient>, Ino)>>,
    /// Directory of shared files, and the file that is handed on.
    shared_at: std::cell::Cell<(Ino, Ino)>,
    watched_file: std::cell::Cell<Ino>,
    shared: Rc<Shared>,
    watched: Rc<Watched>,
    caches: RefCell<Vec<Rc<KernelCache>>>,
    durable: RefCell<Vec<Rc<RefCell<DurableProgram>>>>,
}

fn text(code: ErrorCode) -> String {
    code.to_string()
}

async fn prepare(world: Rc<World>, cast: Rc<Cast>, size: Size, mut rng: Rng) -> Result<(), String> {
    for index in 0..size.clients as usize {
        let client = Rc::new(world.connect(index, rng.fork(1)).await.map_err(text)?);
        let dir = make_dir(&client, Ino::ROOT, &format!("c{index}"))
            .await
            .map_err(text)?;
        if index == 0 {
            let shared = make_dir(&client, Ino::ROOT, "shared").await.map_err(text)?;
            let baton = create(&client, shared, "baton", true).await.map_err(text)?;
            client.release(baton.file.ino).await.map_err(text)?;
            cast.shared_at.set((shared, baton.file.ino));
            let watched = create(&client, shared, "watched", true)
                .await
                .map_err(text)?;
            client.release(watched.file.ino).await.map_err(text)?;
            cast.watched_file.set(watched.file.ino);
        }
        client.sync_all().await.map_err(text)?;
        let cache = Rc::new(KernelCache::default());
        world.serve_client(index, &client, &cache);
        cast.caches.borrow_mut().push(cache);
        cast.clients.borrow_mut().push((client, dir));
    }
    Ok(())
}

fn start_exact(world: &Rc<World>, cast: &Rc<Cast>, steps: u64, rng: &mut Rng) {
    let (dir, baton) = cast.shared_at.get();
    for (index, (client, top)) in cast.clients.borrow().iter().enumerate() {
        let program = TreeProgram::new(world.clone(), client.clone(), *top, rng.fork(10));
        spawn(world, index, program.run(steps));
        let shared = cast.shared.clone();
        let appends = append_some(
            world.clone(),
            client.clone(),
            index,
            dir,
            shared.clone(),
            rng.fork(11),
            steps / 3,
        );
        spawn(world, index, appends);
        if index == 0 {
            let writer = write_baton(
                world.clone(),
                client.clone(),
                baton,
                shared,
                rng.fork(12),
                steps / 3,
            );
            spawn(world, index, writer);
        } else {
            let reader = read_baton(
                world.clone(),
                client.clone(),
                baton,
                shared,
                rng.fork(13),
                steps / 3,
            );
            spawn(world, index, reader);
        }
        start_cached(world, cast, index, client, steps / 3, rng);
    }
}

fn start_cached(
    world: &Rc<World>,
    cast: &Rc<Cast>,
    index: usize,
    client: &Rc<SimClient>,
    rounds: u64,
    rng: &mut Rng,
) {
    let stage = Stage {
        world: world.clone(),
        client: client.clone(),
        cache: cast.caches.borrow()[index].clone(),
        dir: cast.shared_at.get().0,
        file: cast.watched_file.get(),
        watched: cast.watched.clone(),
    };
    if index == 0 {
        spawn(world, index, change(stage.clone(), rng.fork(14), rounds));
    } else {
        spawn(world, index, watch(stage.clone(), rng.fork(15), rounds * 3));
    }
    let locks = lock_and_unlock(stage, index as u64, rng.fork(16), rounds);
    spawn(world, index, locks);
}

fn start_durable(world: &Rc<World>, cast: &Rc<Cast>, steps: u64, rng: &mut Rng) {
    for (index, (client, top)) in cast.clients.borrow().iter().enumerate() {
        let program = DurableProgram::new(world.clone(), client.clone(), *top, rng.fork(20));
        let program = Rc::new(RefCell::new(program));
        cast.durable.borrow_mut().push(program.clone());
        world.spawn_program(index, run_durable(program, steps));
    }
}

#[expect(
    clippy::await_holding_refcell_ref,
    reason = "the program is alone with its state until it has ended"
)]
async fn run_durable(program: Rc<RefCell<DurableProgram>>, steps: u64) {
    program.borrow_mut().run(steps).await;
}

fn spawn(
    world: &Rc<World>,
    index: usize,
    program: impl Future<Output = Result<(), String>> + 'static,
) {
    let reporter = world.clone();
    world.spawn_program(index, async move {
        if let Err(what) = program.await {
            reporter.report(format!("client {index}: {what}"));
        }
    });
}

#[expect(
    clippy::await_holding_refcell_ref,
    reason = "all programs have ended, so nobody else borrows"
)]
async fn check_all(world: Rc<World>, cast: Rc<Cast>, mut rng: Rng) -> Result<(), String> {
    let client = world.connect(90, rng.fork(1)).await.map_err(text)?;
    let durable = cast.durable.borrow();
    if durable.is_empty() {
        check_log(&client, cast.shared_at.get().0, &cast.shared).await?;
        let (shared, _) = cast.shared_at.get();
        return remove_all(&client, shared).await.map_err(text);
    }
    for program in durable.iter() {
        program.borrow().check(&client).await?;
    }
    for program in durable.iter() {
        program.borrow().remove(&client).await;
    }
    Ok(())
}

/// Waits until the cell is quiet, then asks the servers what is broken.
fn settle(world: &Rc<World>, power: bool) {
    let limit = world.clock.now().plus_ms(QUIET_MS);
    loop {
        let next = world.clock.now().plus_ms(5_000);
        let ticker = world.clock.sleep_until(next);
        world.clock.spawn(NETWORK, ticker);
        world.clock.run(next, || false);
        if servers::is_clean(world) || world.clock.now() >= limit || world.clock.is_stuck() {
            break;
        }
    }
    servers::check_cores(world);
    // Objects of files whose making was lost with the power have no owner until there is a scrub.
    if !power && !servers::is_clean(world) {
        world.report(format!(
            "invariant 9: objects are left after everything was deleted: {}",
            servers::left(world)
        ));
    }
}
