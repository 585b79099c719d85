//! The programs of a run: the clients, their directories and files, and the program of each client.

use crate::net::NETWORK;
use crate::planted_bugs::Plant;
use crate::rng::SimRng;
use crate::scenario::Scenario;
use crate::workload::append_logs::{self, AppendLogs};
use crate::workload::bad_media::{MediaProgram, write_anew};
use crate::workload::fences::{Fences, Turn};
use crate::workload::first_level_directories::{change_roots, churn_roots};
use crate::workload::hostile_messages::{send_odd, use_garbled};
use crate::workload::kernel_cache::{
    CacheProgram, KernelCache, WatchedState, change, lock_and_unlock, watch,
};
use crate::workload::killed_client::KilledClient;
use crate::workload::lock_turns::{Kernel, LockTurns, PROCESSES};
use crate::workload::map_edits::MapProgram;
use crate::workload::private_tree::TreeProgram;
use crate::workload::shared_files::{SharedFiles, append_some, check_log, read_baton, write_baton};
use crate::workload::synced_versions::DurableProgram;
use crate::workload::together::{self, ClientFaults, ConcurrentClient, SharedHistory};
use crate::workload::{SimClient, create, make_dir, remove_all, set_placement};
use crate::world::{RunningProgram, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zonal_types::{ErrorCode, Ino, Placement};

/// Lives of the client that is killed.
const LIVES: u64 = 4;

/// Clients that soon give up in runs in which several write one file, of 1000.
const IMPATIENT: u64 = 200;

/// The clients of a run with their files.
pub struct ProgramSet {
    scenario: Scenario,
    /// The run has faults.
    faults: bool,
    plant: Plant,
    clients: RefCell<Vec<(Rc<SimClient>, Ino)>>,
    /// The directory of shared files, and the file that is handed on.
    shared_at: Cell<(Ino, Ino)>,
    watched_file: Cell<Ino>,
    mortal_dir: Cell<Ino>,
    /// The file that all clients write at the same time.
    several: Cell<Ino>,
    together: Rc<SharedHistory>,
    turns: Rc<LockTurns>,
    fences: Rc<Fences>,
    logs: Rc<AppendLogs>,
    shared: Rc<SharedFiles>,
    watched: Rc<WatchedState>,
    caches: RefCell<Vec<Rc<KernelCache>>>,
    durable: RefCell<Vec<Rc<RefCell<DurableProgram>>>>,
    media: RefCell<Vec<Rc<RefCell<MediaProgram>>>>,
    mortal: RefCell<Option<Rc<KilledClient>>>,
}

type Outcome = Result<(), String>;

fn text(code: ErrorCode) -> String {
    code.to_string()
}

/// Connects the clients and makes the shared files, durably.
///
/// # Errors
/// An operation failed, though there are no faults yet.
pub async fn prepare(world: Rc<World>, programs: Rc<ProgramSet>, mut rng: SimRng) -> Outcome {
    let redundancy = redundancy_words(world.size().copies, world.size().also_zone);
    for index in 0..world.client_count() as usize {
        let client = Rc::new(world.connect(index, rng.fork(1)).await.map_err(text)?);
        let dir = make_dir(&client, Ino::ROOT, &format!("c{index}"))
            .await
            .map_err(text)?;
        let placement = random_placement(&mut rng, &world);
        set_placement(&client, dir, placement, &redundancy)
            .await
            .map_err(text)?;
        if index == 0 {
            let shared = make_dir(&client, Ino::ROOT, "shared").await.map_err(text)?;
            let placement = random_placement(&mut rng, &world);
            set_placement(&client, shared, placement, &redundancy)
                .await
                .map_err(text)?;
            let baton = create(&client, shared, "baton", true).await.map_err(text)?;
            client.begin().release(baton.file.ino).await.map_err(text)?;
            let mortal = make_dir(&client, Ino::ROOT, "mortal").await.map_err(text)?;
            if world.size().has_copies() {
                set_placement(&client, mortal, Placement::Zone, &redundancy)
                    .await
                    .map_err(text)?;
            }
            programs.mortal_dir.set(mortal);
            programs.shared_at.set((shared, baton.file.ino));
            let watched = create(&client, shared, "watched", true)
                .await
                .map_err(text)?;
            client
                .begin()
                .release(watched.file.ino)
                .await
                .map_err(text)?;
            programs.watched_file.set(watched.file.ino);
            if programs.scenario == Scenario::Locks {
                let made = programs.turns.make(&client, shared).await;
                made.map_err(text)?;
            }
            if programs.scenario == Scenario::Fences {
                programs.fences.make(&client, shared).await.map_err(text)?;
            }
            if programs.scenario == Scenario::Appends {
                let made = programs.logs.make(&client, shared, &redundancy).await;
                made.map_err(text)?;
            }
            if programs.scenario.is_together() {
                let targets = world.size().targets;
                let layout = format!("count={targets} {redundancy}");
                let several = together::make(&client, dir, &layout).await;
                programs.several.set(several.map_err(text)?);
            }
        }
        client.begin().sync_all().await.map_err(text)?;
        let cache = Rc::new(KernelCache::default());
        world.serve_client(index, &client, &cache);
        programs.caches.borrow_mut().push(cache);
        programs.clients.borrow_mut().push((client, dir));
    }
    Ok(())
}

/// The words for a number of copies in a layout, and for one more in another zone.
pub(crate) fn redundancy_words(copies: u16, also_zone: bool) -> String {
    let copies = match copies {
        1 => "none".to_owned(),
        copies => format!("copies:{copies}"),
    };
    let zone = if also_zone { "any" } else { "none" };
    format!("redundancy={copies} also_zone={zone}")
}

/// Half of the directories keep their zone's targets.
fn random_placement(rng: &mut SimRng, world: &World) -> Placement {
    match rng.fork(60).below(4) {
        // A file over all zones has no other one.
        0 if world.size().also_zone => Placement::Zone,
        0 => Placement::Cell,
        1 => Placement::Node,
        _ => Placement::Zone,
    }
}

impl ProgramSet {
    /// A client of the set.
    #[must_use]
    pub fn client(&self, index: usize) -> Option<Rc<SimClient>> {
        let clients = self.clients.borrow();
        clients.get(index).map(|(client, _dir)| client.clone())
    }

    /// A set without clients.
    #[must_use]
    pub fn new(scenario: Scenario, faults: bool, plant: Plant) -> Self {
        Self {
            scenario,
            faults,
            plant,
            clients: RefCell::default(),
            shared_at: Cell::default(),
            watched_file: Cell::default(),
            mortal_dir: Cell::default(),
            several: Cell::default(),
            together: Rc::default(),
            turns: Rc::default(),
            fences: Rc::default(),
            logs: Rc::default(),
            shared: Rc::default(),
            watched: Rc::default(),
            caches: RefCell::default(),
            durable: RefCell::default(),
            media: RefCell::default(),
            mortal: RefCell::default(),
        }
    }

    /// Whether one client is killed now and then.
    #[must_use]
    pub fn has_mortal(&self) -> bool {
        self.mortal.borrow().is_some()
    }

    /// Calls `visit` for each client that is not killed.
    pub fn each_client(&self, visit: impl Fn(&SimClient)) {
        let clients = self.clients.borrow();
        clients.iter().for_each(|(client, _dir)| visit(client));
    }

    /// Starts all programs. Where there are faults, a further client may run, which is killed.
    pub fn start(self: &Rc<Self>, world: &Rc<World>, steps: u64, rng: &mut SimRng) {
        let clients = self.clients.borrow().clone();
        let wants_mortal = matches!(self.scenario, Scenario::Kill | Scenario::Power);
        if self.faults && wants_mortal && rng.chance(600) {
            self.start_mortal(world, steps, rng);
        }
        for (index, (client, top)) in clients.iter().enumerate() {
            match self.scenario {
                Scenario::Power => {
                    let program =
                        DurableProgram::new(world.clone(), client.clone(), *top, rng.fork(20));
                    let program = Rc::new(RefCell::new(program));
                    self.durable.borrow_mut().push(program.clone());
                    world.spawn_program(index, run_durable(program, steps));
                    let (w, c) = (world.clone(), client.clone());
                    world.spawn_program(index, churn_roots(w, c, index, rng.fork(18), steps / 3));
                }
                Scenario::Media => {
                    let program =
                        MediaProgram::new(world.clone(), client.clone(), *top, rng.fork(21));
                    let program = Rc::new(RefCell::new(program));
                    self.media.borrow_mut().push(program.clone());
                    spawn(world, index, run_media(program, steps));
                }
                Scenario::Together | Scenario::Callers | Scenario::Writers => {
                    let (which, several) = ((index, clients.len()), self.several.get());
                    let (w, c) = (world.clone(), client.clone());
                    let together = self.together.clone();
                    let own = rng.fork(22);
                    let part = ConcurrentClient::new(w, c, which, several, together, own);
                    let fate = ClientFaults {
                        is_impatient: self.faults && rng.chance(IMPATIENT),
                        is_killed: self.faults && self.scenario == Scenario::Callers,
                        shares_blocks: self.scenario == Scenario::Writers,
                    };
                    spawn(world, index, part.play(steps / 6, fate));
                }
                Scenario::Hostile => self.start_hostile(world, index, client, *top, steps, rng),
                Scenario::Appends => {
                    let how = (self.faults, self.plant);
                    let (own, all) = (rng.fork(23), self.logs.clone());
                    let lives = append_logs::live(
                        RunningProgram::begin(world.clone()),
                        world.clone(),
                        all,
                        index,
                        own,
                        steps,
                        how,
                    );
                    world.clock.spawn(NETWORK, lives);
                }
                Scenario::Maps => {
                    spawn(world, index, map_program(world, index, rng).run(steps));
                }
                Scenario::Locks => self.start_turns(world, index, client, steps, rng),
                Scenario::Fences => {
                    let (own, all) = (rng.fork(51), self.fences.clone());
                    let turn = Turn::new(world.clone(), client.clone(), index, all, own);
                    spawn(world, index, turn.take_all(steps / 12, self.faults));
                }
                _exact => {
                    self.start_exact(world, index, client, *top, steps, rng);
                }
            }
        }
    }

    fn start_mortal(&self, world: &Rc<World>, steps: u64, rng: &mut SimRng) {
        let power = self.scenario == Scenario::Power;
        let index = world.client_count() as usize;
        let legacy = KilledClient::new(world.clone(), self.mortal_dir.get(), index, power);
        *self.mortal.borrow_mut() = Some(legacy.clone());
        let lives = legacy.live(LIVES, steps, rng.fork(30));
        world.clock.spawn(NETWORK, lives);
    }

    fn start_turns(
        &self,
        world: &Rc<World>,
        index: usize,
        client: &Rc<SimClient>,
        steps: u64,
        rng: &mut SimRng,
    ) {
        let cache = self.caches.borrow()[index].clone();
        let of_client = (client.clone(), cache, index);
        let kernel = Kernel::new(world.clone(), of_client, self.turns.clone());
        for at in 0..3 {
            for _ in 0..PROCESSES {
                let process = kernel.clone().process(at, rng.fork(50), steps / 4);
                spawn(world, index, process);
            }
        }
    }

    fn start_hostile(
        &self,
        world: &Rc<World>,
        index: usize,
        client: &Rc<SimClient>,
        top: Ino,
        steps: u64,
        rng: &mut SimRng,
    ) {
        let name = world.client_name(index);
        world.network.garble(&name);
        let garbled = use_garbled(world.clone(), client.clone(), top, rng.fork(40), steps / 6);
        world.spawn_program(index, garbled);
        let file = self.watched_file.get();
        let odd = send_odd(world.clone(), name, file, rng.fork(41), steps * 5);
        world.spawn_program(index, odd);
    }

    fn start_exact(
        &self,
        world: &Rc<World>,
        index: usize,
        client: &Rc<SimClient>,
        top: Ino,
        steps: u64,
        rng: &mut SimRng,
    ) {
        let (dir, baton) = self.shared_at.get();
        let some = steps / 3;
        let both = || (world.clone(), client.clone());
        let (w, c) = both();
        spawn(
            world,
            index,
            TreeProgram::new(w, c, top, rng.fork(10)).run(steps),
        );
        let (w, c) = both();
        let shared = self.shared.clone();
        let appends = append_some(w, c, index, dir, shared.clone(), rng.fork(11), some);
        spawn(world, index, appends);
        let (w, c) = both();
        if index == 0 {
            let writer = write_baton(w, c, baton, shared, rng.fork(12), some);
            spawn(world, index, writer);
        } else {
            let reader = read_baton(w, c, baton, shared, rng.fork(13), some);
            spawn(world, index, reader);
        }
        let (w, c) = both();
        spawn(world, index, change_roots(w, c, index, rng.fork(17), some));
        let stage = CacheProgram {
            world: world.clone(),
            client: client.clone(),
            cache: self.caches.borrow()[index].clone(),
            dir,
            file: self.watched_file.get(),
            watched: self.watched.clone(),
            name: world.client_name(index),
        };
        if index == 0 {
            spawn(world, index, change(stage.clone(), rng.fork(14), some));
        } else {
            spawn(world, index, watch(stage.clone(), rng.fork(15), some * 3));
        }
        let locks = lock_and_unlock(stage, index as u64, rng.fork(16), some);
        spawn(world, index, locks);
    }

    /// Compares the cell with the knowledge of the programs, by a client with empty caches.
    ///
    /// # Errors
    /// The first difference.
    #[expect(
        clippy::await_holding_refcell_ref,
        reason = "all programs have ended, so nobody else borrows"
    )]
    pub async fn compare(self: Rc<Self>, world: Rc<World>, mut rng: SimRng) -> Outcome {
        let client = world.connect(90, rng.fork(1)).await.map_err(text)?;
        if self.scenario == Scenario::Kill {
            check_log(&client, self.shared_at.get().0, &self.shared, self.faults).await?;
        }
        if self.scenario == Scenario::Maps {
            map_program(&world, 90, &mut rng).read().await?;
        }
        if self.scenario == Scenario::Locks {
            self.turns.check(&client).await?;
        }
        if self.scenario == Scenario::Fences {
            self.fences.check(&client).await?;
        }
        if self.scenario == Scenario::Appends {
            self.logs.check(&client, self.faults).await?;
        }
        if self.scenario.is_together() {
            self.together.check(&client, self.several.get()).await?;
        }
        for program in self.durable.borrow().iter() {
            program.borrow().check(&client).await?;
        }
        for program in self.media.borrow().iter() {
            program.borrow().check(&client).await?;
        }
        let mortal = self.mortal.borrow().clone();
        if let Some(legacy) = mortal {
            legacy.check(&client).await?;
        }
        client.begin().close().await.map_err(text)
    }

    /// Removes everything that the programs made, then checks that there is room for something new.
    ///
    /// # Errors
    /// An operation failed.
    pub async fn remove(self: Rc<Self>, world: Rc<World>, mut rng: SimRng) -> Outcome {
        let client = world.connect(91, rng.fork(1)).await.map_err(text)?;
        let mut tops: Vec<Ino> = self.clients.borrow().iter().map(|(_, dir)| *dir).collect();
        tops.extend([self.shared_at.get().0, self.mortal_dir.get()]);
        for top in &tops {
            remove_all(&client, *top).await.map_err(text)?;
        }
        if self.scenario == Scenario::Media {
            // Objects of removed files are deleted soon after.
            world.clock.sleep(10_000_000_000).await;
            write_anew(&client, self.mortal_dir.get()).await?;
        }
        client.begin().close().await.map_err(text)
    }
}

fn map_program(world: &Rc<World>, index: usize, rng: &mut SimRng) -> MapProgram {
    MapProgram::new(world.clone(), index, rng.fork(61))
}

fn spawn(world: &Rc<World>, index: usize, program: impl Future<Output = Outcome> + 'static) {
    let reporter = world.clone();
    world.spawn_program(index, async move {
        if let Err(what) = program.await {
            reporter.report(format!("client {index}: {what}"));
        }
    });
}

#[expect(
    clippy::await_holding_refcell_ref,
    reason = "the program is alone with its state until it has ended"
)]
async fn run_durable(program: Rc<RefCell<DurableProgram>>, steps: u64) {
    program.borrow_mut().run(steps).await;
}

#[expect(
    clippy::await_holding_refcell_ref,
    reason = "the program is alone with its state until it has ended"
)]
async fn run_media(program: Rc<RefCell<MediaProgram>>, steps: u64) -> Outcome {
    program.borrow_mut().run(steps).await
}
