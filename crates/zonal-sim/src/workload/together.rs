//! Clients that write, append to, truncate and read one file at the same time, in rounds.
//!
//! In a round each client makes some steps. Then all clients flush, close, and read the file: all
//! must find the same contents, which the checker then knows exactly.

use super::{SimClient, create, open, read_all, who};
use crate::checker::together::{FileHistory, FileRead, MARK, Number, UNIT};
use crate::coverage::FaultKind;
use crate::fault::OUTAGE_MS_MAX;
use crate::net::SimNet;
use crate::rng::SimRng;
use crate::world::World;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use zonal_client::transport::ShellMemory;
use zonal_client::{Client, ClientCall, ClientOptions, File, Net as _, Run};
use zonal_types::{ClientId, ErrorCode, Ino, ZoneId};
use zonal_wire::meta::flags;

/// Steps of each client in a round.
const STEPS: u64 = 7;
/// Approximate length of the file, bytes.
const LENGTH: u64 = 300_000;
/// Deadline of a client that soon gives up, ms.
const IMPATIENT_MS: u64 = 1_500;
/// How long requests that were given up may still be executed, ms: even by a server that stands
/// still.
const SETTLE_MS: u64 = 3 * OUTAGE_MS_MAX;
/// Most attempts of a client to flush before all read; each lasts for as long as a client tries.
const FLUSHES: u64 = 60;

type Outcome = Result<(), String>;

fn text(code: ErrorCode) -> String {
    code.to_string()
}

/// Shared state of the programs of one world.
#[derive(Default)]
pub struct SharedHistory {
    history: RefCell<FileHistory>,
    /// Contents that the first reader found at the end of a round.
    found: RefCell<Option<Vec<u8>>>,
    waiting: Cell<usize>,
    meetings: Cell<u64>,
    kills: Cell<u64>,
    /// A client gave up in this round.
    gave_up: Cell<bool>,
    /// Some clients give up now and then. An append that was given up delays those behind it for
    /// longer than their clients try.
    some_give_up: Cell<bool>,
}

/// The operations of a client, and their faults.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClientFaults {
    /// The client soon gives up.
    pub is_impatient: bool,
    /// Callers of the client are killed now and then while they wait.
    pub is_killed: bool,
    /// All write the same blocks. The client appends and truncates nothing: what is given up of an
    /// append may be left at some copies only.
    pub shares_blocks: bool,
}

impl ClientFaults {
    fn may_fail(self) -> bool {
        self.is_impatient || self.is_killed
    }
}

/// One client.
pub struct ConcurrentClient {
    /// The world.
    pub world: Rc<World>,
    /// The client.
    pub client: Rc<SimClient>,
    /// The client's index, from 0.
    pub index: usize,
    /// Number of clients.
    pub clients: usize,
    /// The file.
    pub file: Ino,
    /// Shared state.
    pub together: Rc<SharedHistory>,
    /// Its random numbers.
    pub rng: SimRng,
    fate: ClientFaults,
    open: Option<Arc<File<SimNet>>>,
}

/// Makes the file, with small stripe units. `layout`: the rest of its layout.
///
/// # Errors
/// An error of the cell.
pub async fn make(client: &SimClient, dir: Ino, layout: &str) -> Result<Ino, ErrorCode> {
    let layout = format!("unit={UNIT} {layout}");
    client
        .begin()
        .setxattr(&who(), dir, b"zonal.layout", layout.as_bytes(), 0)
        .await?;
    let made = create(client, dir, "several", true).await?;
    client.begin().release(made.file.ino).await?;
    Ok(made.file.ino)
}

/// Connects a client that soon gives up: the outcomes of its operations are often unknown.
///
/// # Errors
/// The cell does not answer.
pub async fn impatient(
    world: &World,
    index: usize,
    mut rng: SimRng,
) -> Result<SimClient, ErrorCode> {
    let zone = ZoneId(1 + (index as u16 % world.size().zones.max(1)));
    let mut options = ClientOptions::new(&world.address_of(0), zone, ClientId(rng.bits() | 1));
    let name = world.client_name(index);
    options.name.clone_from(&name);
    (options.attempt_ms, options.deadline_ms) = (IMPATIENT_MS / 3, IMPATIENT_MS);
    let net = SimNet::new(world.network.clone(), &name, rng);
    Client::connect(net, options).await
}

/// Long bytes come in memory that targets take them from, as the kernel's do.
fn lent(client: &SimClient, bytes: &[u8]) -> Option<Box<dyn ShellMemory>> {
    let mut memory = client.net().memory(bytes.len())?;
    memory.copy_from_slice(bytes);
    Some(memory)
}

impl SharedHistory {
    /// Waits until all clients are here.
    async fn meet(&self, world: &World, clients: usize) {
        let meeting = self.meetings.get();
        self.waiting.set(self.waiting.get() + 1);
        if self.waiting.get() == clients {
            self.waiting.set(0);
            self.meetings.set(meeting + 1);
        }
        while self.meetings.get() == meeting && world.broken().is_empty() {
            world.clock.sleep(2_000_000).await;
        }
    }

    /// Checks the file at the end of a run.
    ///
    /// # Errors
    /// An operation failed, or the contents changed.
    pub async fn check(&self, client: &SimClient, file: Ino) -> Outcome {
        let (content, look) = read(client, file, usize::MAX, &self.history).await?;
        self.history.borrow_mut().seen(look, &content, true)
    }
}

async fn read(
    client: &SimClient,
    file: Ino,
    index: usize,
    history: &RefCell<FileHistory>,
) -> Result<(Vec<u8>, FileRead), String> {
    let look = history.borrow_mut().look(index);
    let opened = open(client, file).await.map_err(text)?;
    // The client's earlier writes were flushed.
    history.borrow_mut().flushed(index);
    let content = read_all(client, &opened.file).await;
    client.begin().release(file).await.map_err(text)?;
    Ok((content.map_err(text)?, look))
}

impl ConcurrentClient {
    /// A client that has nothing open.
    #[must_use]
    pub fn new(
        world: Rc<World>,
        client: Rc<SimClient>,
        (index, clients): (usize, usize),
        file: Ino,
        together: Rc<SharedHistory>,
        rng: SimRng,
    ) -> Self {
        Self {
            world,
            client,
            index,
            clients,
            file,
            together,
            rng,
            fate: ClientFaults::default(),
            open: None,
        }
    }

    /// Runs `rounds` rounds.
    ///
    /// # Errors
    /// An operation failed, or a read found forbidden contents.
    pub async fn play(mut self, rounds: u64, fate: ClientFaults) -> Outcome {
        let patient = self.client.clone();
        self.fate = fate;
        if fate.may_fail() {
            self.together.some_give_up.set(true);
        }
        if fate.is_impatient {
            let mut made = impatient(&self.world, self.index, self.rng.fork(1)).await;
            while made.is_err() && self.world.broken().is_empty() {
                self.world.clock.sleep(500_000_000).await;
                made = impatient(&self.world, self.index, self.rng.fork(1)).await;
            }
            let client = Rc::new(made.map_err(text)?);
            self.world.serve_client(self.index, &client, &Rc::default());
            self.client = client;
        }
        for _ in 0..rounds {
            let pause = [0, 3_000_000, 40_000_000, 900_000_000][self.rng.below(4) as usize];
            for _ in 0..STEPS {
                self.step().await?;
                self.world.count_operation();
                self.world.clock.sleep(self.rng.below(pause)).await;
            }
            self.end_round(&patient).await?;
        }
        Ok(())
    }

    fn history(&self) -> std::cell::RefMut<'_, FileHistory> {
        self.together.history.borrow_mut()
    }

    /// Allows an operation to fail where `may_fail`.
    fn forgive(&self, doing: &str, code: ErrorCode, may_fail: bool) -> Outcome {
        let is_late = matches!(
            code,
            ErrorCode::TimedOut
                | ErrorCode::Unreachable
                | ErrorCode::NotReady
                | ErrorCode::Overloaded
                | ErrorCode::Interrupted
        );
        if may_fail && is_late {
            self.together.gave_up.set(true);
            return Ok(());
        }
        Err(format!("{doing}: {code}"))
    }

    /// Begins an operation of this client.
    fn call<'a>(&mut self, client: &'a SimClient) -> ClientCall<'a, SimNet> {
        match self.fate.is_killed {
            true => self.world.mortal_call(client, &mut self.rng),
            false => client.begin(),
        }
    }

    async fn step(&mut self) -> Outcome {
        if self.fate.shares_blocks {
            return self.write_or_read().await;
        }
        let (doing, done) = match self.rng.below(100) {
            0..28 => ("write", self.write().await),
            28..32 => ("scattered writes", self.scatter().await),
            32..46 => ("append", self.append().await),
            46..62 => ("truncate", self.truncate().await),
            62..72 => ("flush", self.flush().await),
            72..80 => ("close", self.close().await),
            80..83 => ("open to truncate", self.open_and_truncate().await),
            83..90 => return self.read_on().await,
            _ => return self.read().await,
        };
        let may_fail =
            self.fate.may_fail() || (doing == "append" && self.together.some_give_up.get());
        done.or_else(|code| self.forgive(doing, code, may_fail))
    }

    /// A step of a client that only writes and reads.
    async fn write_or_read(&mut self) -> Outcome {
        let (doing, done) = match self.rng.below(100) {
            0..45 => ("write", self.write().await),
            45..55 => ("scattered writes", self.scatter().await),
            55..75 => ("flush", self.flush().await),
            75..85 => ("close", self.close().await),
            85..92 => return self.read_on().await,
            _ => return self.read().await,
        };
        done.or_else(|code| self.forgive(doing, code, self.fate.may_fail()))
    }

    async fn opened(&mut self) -> Result<Arc<File<SimNet>>, ErrorCode> {
        if let Some(file) = &self.open {
            return Ok(file.clone());
        }
        let opened = open(&self.client, self.file).await?;
        self.history().flushed(self.index);
        self.open = Some(opened.file.clone());
        Ok(opened.file)
    }

    fn place(&mut self) -> u64 {
        let near = self.rng.below(33);
        if self.fate.shares_blocks {
            return self.block() + [0, 0, near][self.rng.below(3) as usize];
        }
        match self.rng.below(10) {
            0..2 => 0,
            2 => 4_096 - 16 + near,
            3..5 => (1 + self.rng.below(4)) * UNIT - 16 + near,
            _ => self.rng.below(LENGTH),
        }
    }

    /// One of few blocks, in two stripe units.
    fn block(&mut self) -> u64 {
        let unit = self.rng.between(1, 2) * UNIT;
        unit + self.rng.below(4) * 4_096
    }

    fn length(&mut self) -> usize {
        if self.fate.shares_blocks {
            let most = [4_096, 4_096, 80, 12_000, 80_000][self.rng.below(5) as usize];
            return if self.rng.chance(400) {
                4_096
            } else {
                self.rng.between(1, most) as usize
            };
        }
        let most = [80, 5_000, 70_000, 200_000][self.rng.below(4) as usize];
        let most = if self.rng.chance(15) { 1_300_000 } else { most };
        self.rng.between(1, most) as usize
    }

    async fn write(&mut self) -> Result<(), ErrorCode> {
        let file = self.opened().await?;
        let (at, length) = (self.place(), self.length());
        let number = self.history().write(self.index, at, length);
        let bytes = self.history().bytes(number);
        let client = self.client.clone();
        let call = self.call(&client);
        let memory = self.fate.is_killed.then(|| lent(&client, &bytes)).flatten();
        let done = match memory {
            Some(memory) => {
                let run = Run::new(memory, 0..bytes.len());
                call.write_run(&file, at, run, false).await
            }
            None => call.write(&file, at, &bytes, false).await,
        };
        self.take(number, done)
    }

    /// Short writes with gaps between them, which leave in one request.
    async fn scatter(&mut self) -> Result<(), ErrorCode> {
        let file = self.opened().await?;
        let (mut at, gap) = (
            self.place(),
            [10, 300, 5_000, 40_000][self.rng.below(4) as usize],
        );
        for _ in 0..self.rng.between(2, 24) {
            let length = self.rng.between(1, 300) as usize;
            let number = self.history().write(self.index, at, length);
            let bytes = self.history().bytes(number);
            let client = self.client.clone();
            let call = self.call(&client);
            let done = call.write(&file, at, &bytes, false).await;
            self.take(number, done)?;
            at += length as u64 + self.rng.between(1, gap);
        }
        Ok(())
    }

    /// Records the outcome of an operation. One that succeeds lasts on, until a flush.
    fn take(&self, number: Number, done: Result<(), ErrorCode>) -> Result<(), ErrorCode> {
        if done.is_err() {
            self.history().is_unknown(number);
        }
        done
    }

    async fn append(&mut self) -> Result<(), ErrorCode> {
        let file = self.opened().await?;
        // Long enough for one whole mark, wherever the bytes are found.
        let length = 2 * MARK + self.length();
        let number = self.history().append(self.index, length);
        let bytes = self.history().bytes(number);
        let client = self.client.clone();
        let call = self.call(&client);
        let memory = self.fate.is_killed.then(|| lent(&client, &bytes)).flatten();
        let done = match memory {
            // Another use may take the memory when this call is over.
            Some(memory) => call.append(&file, &memory, false).await,
            None => call.append(&file, &bytes, false).await,
        };
        if let Ok(at) = done {
            self.history().done(number, Some(at));
            self.history().flushed(self.index);
        }
        self.take(number, done.map(drop))
    }

    async fn truncate(&mut self) -> Result<(), ErrorCode> {
        if self.rng.chance(400) {
            self.close().await?;
        }
        let size = match self.rng.below(10) {
            0..3 => 0,
            3 => LENGTH + self.place(),
            _ => self.place(),
        };
        let number = self.history().truncate(self.index, size);
        let client = self.client.clone();
        let call = self.call(&client);
        let done = call.truncate(&who(), self.file, size, true, false).await;
        if done.is_ok() {
            self.history().done(number, None);
            self.history().flushed(self.index);
        }
        self.take(number, done.map(drop))
    }

    async fn open_and_truncate(&mut self) -> Result<(), ErrorCode> {
        self.close().await?;
        let number = self.history().truncate(self.index, 0);
        let how = flags::O_RDWR | flags::O_TRUNC;
        let client = self.client.clone();
        let call = self.call(&client);
        let done = call.open(&who(), self.file, how).await;
        if let Ok(opened) = &done {
            self.open = Some(opened.file.clone());
            self.history().done(number, None);
        }
        self.take(number, done.map(drop))
    }

    async fn flush(&mut self) -> Result<(), ErrorCode> {
        let file = self.opened().await?;
        let client = self.client.clone();
        let call = self.call(&client);
        if self.rng.chance(500) {
            call.fsync(&file).await?;
        } else {
            call.flush(&file).await?;
        }
        self.history().flushed(self.index);
        Ok(())
    }

    async fn close(&mut self) -> Result<(), ErrorCode> {
        if self.open.take().is_some() {
            self.client.begin().release(self.file).await?;
            self.history().flushed(self.index);
        }
        Ok(())
    }

    /// Opens, reads and closes the file.
    async fn read(&self) -> Outcome {
        match read(&self.client, self.file, self.index, &self.together.history).await {
            Ok((content, look)) => {
                self.may_be_loose();
                self.history().seen(look, &content, true)
            }
            Err(_late) if self.fate.is_impatient => Ok(()),
            Err(what) => Err(format!("read: {what}")),
        }
    }

    /// Reads by an open file, whose size may be old, but whose bytes may not.
    async fn read_on(&mut self) -> Outcome {
        let Some(file) = self.open.clone() else {
            return Ok(());
        };
        let look = self.history().look(self.index);
        match read_all(&self.client, &file).await {
            Ok(content) => {
                self.may_be_loose();
                self.history().seen(look, &content, false)
            }
            Err(code) => self.forgive("read", code, self.fate.is_impatient),
        }
    }

    /// Where servers were killed or clients gave up, appends may have left bytes.
    fn may_be_loose(&self) {
        let kills = self.world.network.coverage().of(FaultKind::Kill);
        if kills != self.together.kills.get() || self.together.gave_up.get() {
            self.history().may_have_strays();
        }
    }

    /// Ends a round: all clients close the file and read it.
    async fn end_round(&mut self, patient: &SimClient) -> Outcome {
        let mut tries = 0;
        while let Err(code) = self.close_all().await {
            self.forgive("close", code, self.fate.may_fail())?;
            tries += 1;
            if tries > FLUSHES {
                return Err(format!("gathered writes cannot be flushed: {code}"));
            }
            self.world.clock.sleep(500_000_000).await;
        }
        let together = self.together.clone();
        together.meet(&self.world, self.clients).await;
        if together.gave_up.get() {
            self.world.clock.sleep(SETTLE_MS * 1_000_000).await;
        }
        let first = read(patient, self.file, self.index, &together.history).await;
        let (content, look) = first.map_err(|what| format!("read: {what}"))?;
        let size = patient
            .begin()
            .getattr(self.file)
            .await
            .map_err(text)?
            .0
            .size;
        if size != content.len() as u64 {
            return Err(format!("{} bytes of {size} are read", content.len()));
        }
        self.may_be_loose();
        self.history().seen(look, &content, true)?;
        self.history().settled(look, &content)?;
        let before = together.found.borrow().clone();
        if let Some(other) = before {
            let differs = other.iter().zip(&content).position(|(one, two)| one != two);
            if other != content {
                let (one, two) = (other.len(), content.len());
                return Err(format!(
                    "invariant 4: of {one} bytes and {two}, byte {differs:?} differs for two clients"
                ));
            }
        } else {
            *together.found.borrow_mut() = Some(content);
        }
        together.meet(&self.world, self.clients).await;
        if let Some(content) = together.found.take() {
            self.history().begin_with(content);
            together.gave_up.set(false);
            together
                .kills
                .set(self.world.network.coverage().of(FaultKind::Kill));
        }
        together.meet(&self.world, self.clients).await;
        Ok(())
    }

    /// Flushes all remaining writes, with an open file or without, and closes.
    async fn close_all(&mut self) -> Result<(), ErrorCode> {
        let file = self.opened().await?;
        self.client.begin().fsync(&file).await?;
        self.history().flushed(self.index);
        self.close().await
    }
}
