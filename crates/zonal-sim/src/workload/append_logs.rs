//! Clients that append numbered records to one log. A client gathers records where it is alone, and
//! sends each append where it is not. Clients are killed, cut off for longer than a session, and
//! read the records of others.

use super::{SimClient, create, open, read_all};
use crate::checker::append_log;
use crate::checker::records::RecordLedger;
use crate::coverage::FaultKind;
use crate::fault::OUTAGE_MS_MAX;
use crate::net::{NETWORK, SimNet};
use crate::planted_bugs::Plant;
use crate::rng::SimRng;
use crate::world::{RunningProgram, World};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use zonal_client::File;
use zonal_client::ReportedFailures;
use zonal_types::{ErrorCode, Ino};

/// Lives of one client.
const LIVES: u64 = 3;
/// Length of a life that ends with a kill, ms.
const LIFE_MS: (u64, u64) = (500, 40_000);
/// How long a client is cut off, ms: longer than a session lasts.
const CUT_MS: (u64, u64) = (61_000, 80_000);
/// Clients that are cut off, of 1000.
const CUT_OFF: u64 = 500;
/// Records of an append that is sent at once.
const LONG: u64 = 1_100;

type Outcome = Result<(), String>;

/// Shared state of the clients of one world.
#[derive(Default)]
pub struct AppendLogs {
    file: Cell<Ino>,
    records: RefCell<RecordLedger>,
    /// Number of each client's next record.
    next: RefCell<Vec<u64>>,
    told: Cell<u64>,
}

/// One client, as long as it lives.
struct Writer {
    world: Rc<World>,
    logs: Rc<AppendLogs>,
    client: Rc<SimClient>,
    index: usize,
    rng: SimRng,
    may_fail: bool,
    repeats: bool,
    open: Option<(Arc<File<SimNet>>, ReportedFailures)>,
}

fn text(code: ErrorCode) -> String {
    code.to_string()
}

fn is_late(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::TimedOut | ErrorCode::Unreachable | ErrorCode::NotReady | ErrorCode::Overloaded
    )
}

impl AppendLogs {
    /// Makes the log and closes it.
    ///
    /// # Errors
    /// An error of the cell.
    pub async fn make(
        &self,
        client: &SimClient,
        dir: Ino,
        redundancy: &str,
    ) -> Result<(), ErrorCode> {
        let layout = format!("unit=65536 {redundancy}");
        let who = super::who();
        client
            .begin()
            .setxattr(&who, dir, b"zonal.layout", layout.as_bytes(), 0)
            .await?;
        let file = create(client, dir, "records", true).await?.file;
        client.begin().release(file.ino).await?;
        self.file.set(file.ino);
        Ok(())
    }

    /// How often a client was told of a loss.
    #[must_use]
    pub fn told(&self) -> u64 {
        self.told.get()
    }

    fn take_numbers(&self, index: usize, count: u64) -> std::ops::Range<u64> {
        let mut next = self.next.borrow_mut();
        if next.len() <= index {
            next.resize(index + 1, 0);
        }
        let from = next[index];
        next[index] += count;
        from..from + count
    }

    /// Checks the log at the end of a run.
    ///
    /// # Errors
    /// An operation failed, or something is wrong with the log.
    pub async fn check(&self, client: &SimClient, may_give_up: bool) -> Outcome {
        let must = self.records.borrow().must();
        let opened = open(client, self.file.get()).await.map_err(text)?;
        let content = read_all(client, &opened.file).await.map_err(text)?;
        client
            .begin()
            .release(opened.file.ino)
            .await
            .map_err(text)?;
        let broken = self
            .records
            .borrow_mut()
            .check(&content, &must, may_give_up);
        if broken.is_empty() {
            Ok(())
        } else {
            Err(broken.join("; "))
        }
    }
}

/// Runs clients with the same index one after the other; all but the last are killed. Also cuts
/// them off.
pub async fn live(
    _running: RunningProgram,
    world: Rc<World>,
    logs: Rc<AppendLogs>,
    index: usize,
    mut rng: SimRng,
    steps: u64,
    (faults, plant): (bool, Plant),
) {
    if faults && rng.chance(CUT_OFF) {
        let cutter = cut_off(world.clone(), index, rng.fork(7));
        world.clock.spawn(NETWORK, cutter);
    }
    let lives = if faults { rng.between(1, LIVES) } else { 1 };
    for life in 1..=lives {
        let ended = Rc::new(Cell::new(false));
        let (own, end) = (rng.fork(life), ended.clone());
        let (reporter, logs_of) = (world.clone(), logs.clone());
        let program = async move {
            let lived = one_life(&reporter, logs_of, index, own, steps, (faults, plant)).await;
            if let Err(what) = lived {
                reporter.report(format!("client {index}: {what}"));
            }
            end.set(true);
        };
        world.spawn_program(index, program);
        let until = world.clock.now();
        let until = until.plus_ms(rng.between(LIFE_MS.0, LIFE_MS.1));
        let is_last = life == lives;
        while !ended.get() && (is_last || world.clock.now() < until) {
            world.clock.sleep(50_000_000).await;
        }
        if is_last {
            return;
        }
        if !ended.get() {
            world.network.count(FaultKind::ClientCrash);
            logs.records.borrow_mut().may_be_lost(index);
        }
        world.kill_client(index);
        let pause = rng.between(10, 3 * OUTAGE_MS_MAX);
        world.clock.sleep(pause * 1_000_000).await;
    }
}

/// Cuts a client off from its shard, perhaps one way first, so that requests are executed and their
/// replies are lost.
async fn cut_off(world: Rc<World>, index: usize, mut rng: SimRng) {
    let shard = world.address_of(1);
    let name = world.client_name(index);
    for _ in 0..rng.between(1, 2) {
        let pause = rng.between(200, 20_000);
        world.clock.sleep(pause * 1_000_000).await;
        if !world.faults_wanted() {
            return;
        }
        if rng.chance(700) {
            world.network.count(FaultKind::CutOneWay);
            world.network.cut_way(&shard, &name, true);
            let pause = rng.between(1, 6_000);
            world.clock.sleep(pause * 1_000_000).await;
        }
        world.network.count(FaultKind::CutClient);
        world.network.cut(&shard, &name, true);
        let last = rng.between(CUT_MS.0, CUT_MS.1);
        world.clock.sleep(last * 1_000_000).await;
        world.network.cut(&shard, &name, false);
    }
}

async fn one_life(
    world: &Rc<World>,
    logs: Rc<AppendLogs>,
    index: usize,
    mut rng: SimRng,
    steps: u64,
    (may_fail, plant): (bool, Plant),
) -> Outcome {
    let client = loop {
        match world.connect(index, rng.fork(1)).await {
            Ok(client) => break Rc::new(client),
            Err(code) if may_fail && is_late(code) => {}
            Err(code) => return Err(text(code)),
        }
    };
    world.serve_client(index, &client, &Rc::default());
    let mut writer = Writer {
        world: world.clone(),
        logs,
        client,
        index,
        rng,
        may_fail,
        repeats: plant == Plant::LostAppendsAreRepeated,
        open: None,
    };
    // Most clients are alone for a while.
    let pause = writer.rng.below(30_000_000_000);
    world.clock.sleep(pause).await;
    for _ in 0..steps {
        writer.step().await?;
        world.count_operation();
        let pause = [1_000_000, 30_000_000, 1_500_000_000][writer.rng.below(3) as usize];
        world.clock.sleep(writer.rng.below(pause)).await;
    }
    writer.close().await
}

impl Writer {
    /// Judges the outcome of an operation. An error reports a loss, or comes late.
    async fn heard(&mut self, doing: &str, done: Result<(), ErrorCode>) -> Outcome {
        match done {
            Ok(()) => Ok(()),
            Err(ErrorCode::Io) if self.may_fail => {
                self.logs.told.set(self.logs.told.get() + 1);
                let lost = self.logs.records.borrow().unacknowledged(self.index);
                self.logs.records.borrow_mut().may_be_lost(self.index);
                if self.repeats {
                    self.append_again(lost).await;
                }
                Ok(())
            }
            Err(code) if self.may_fail && is_late(code) => Ok(()),
            Err(code) => Err(format!("{doing}: {code}")),
        }
    }

    /// The planted bug: nobody knows whether the records are there.
    async fn append_again(&mut self, lost: Vec<u64>) {
        let Some((file, _told)) = self.open.clone() else {
            return;
        };
        for number in lost {
            let record = append_log::record(self.index, number);
            self.client.begin().append(&file, &record, false).await.ok();
        }
    }

    async fn opened(&mut self) -> Result<Arc<File<SimNet>>, ErrorCode> {
        if let Some((file, _told)) = &self.open {
            return Ok(file.clone());
        }
        let opened = open(&self.client, self.logs.file.get()).await?;
        self.open = Some((opened.file.clone(), opened.file.told()));
        Ok(opened.file)
    }

    async fn step(&mut self) -> Outcome {
        let file = match self.opened().await {
            Ok(file) => file,
            Err(code) => return self.heard("open", Err(code)).await,
        };
        match self.rng.below(100) {
            0..75 => {
                let count = self.rng.between(1, 4);
                self.append(&file, count, true).await
            }
            75..77 => self.append(&file, LONG, true).await,
            77..80 => self.append(&file, 1, false).await,
            80..88 => self.sync(&file).await,
            88..92 => self.close().await,
            92..95 => {
                self.world.clock.sleep(6_000_000_000).await;
                Ok(())
            }
            _ => self.read().await,
        }
    }

    async fn append(&mut self, file: &Arc<File<SimNet>>, count: u64, gathers: bool) -> Outcome {
        if let Some((file, told)) = &mut self.open
            && let Err(code) = file.tell_writer(told)
        {
            return self.heard("append", Err(code)).await;
        }
        let (index, logs) = (self.index, self.logs.clone());
        let numbers = logs.take_numbers(index, count);
        let record = |number| append_log::record(index, number);
        let bytes: Vec<u8> = numbers.clone().flat_map(record).collect();
        logs.records.borrow_mut().begin(index, numbers.clone());
        let appended = if gathers {
            self.client
                .begin()
                .append_gathered(file, &bytes, false)
                .await
        } else {
            self.client.begin().append(file, &bytes, false).await
        };
        match appended {
            Ok(at) => logs.records.borrow_mut().taken(index, numbers, at),
            Err(code) => {
                logs.records.borrow_mut().unknown(index, numbers);
                self.heard("append", Err(code)).await
            }
        }
    }

    async fn sync(&mut self, file: &Arc<File<SimNet>>) -> Outcome {
        let Some((_file, told)) = &mut self.open else {
            return Ok(());
        };
        let done = self.client.begin().fsync_open(file, told).await;
        if done.is_ok() {
            self.logs.records.borrow_mut().acknowledged(self.index)?;
        }
        self.heard("fsync", done).await
    }

    /// Closes the log; all records must be kept, or their loss reported.
    async fn close(&mut self) -> Outcome {
        let Some((file, mut told)) = self.open.clone() else {
            return Ok(());
        };
        loop {
            let done = self.client.begin().flush_open(&file, &mut told).await;
            match done {
                Err(code) if self.may_fail && is_late(code) => {
                    self.world.clock.sleep(500_000_000).await;
                }
                Ok(()) => {
                    self.logs.records.borrow_mut().acknowledged(self.index)?;
                    break;
                }
                Err(code) => {
                    self.heard("close", Err(code)).await?;
                    break;
                }
            }
        }
        self.open = None;
        let released = self.client.begin().release(file.ino).await;
        self.heard("release", released).await
    }

    /// Reads all of the log by a new open: records that were acknowledged before are there.
    async fn read(&mut self) -> Outcome {
        let ino = self.logs.file.get();
        let must = self.logs.records.borrow().must();
        let read = async {
            let opened = open(&self.client, ino).await?;
            let content = read_all(&self.client, &opened.file).await;
            self.client.begin().release(ino).await.and(content)
        };
        match read.await {
            Ok(content) => {
                let mut records = self.logs.records.borrow_mut();
                let broken = records.check(&content, &must, self.may_fail);
                if broken.is_empty() {
                    Ok(())
                } else {
                    Err(broken.join("; "))
                }
            }
            Err(code) => self.heard("read", Err(code)).await,
        }
    }
}
