//! A client that is killed and comes back as another client. It changes a directory of its own;
//! operations without an answer stay unknown. Where power may fail, unsynced changes may be lost.
//!
//! Its files hold versions. A reader finds nothing older than the closed version (where power may
//! fail: the synced one) and nothing that was never written. It never finds another file's bytes.

use super::{SimClient, create, list, make_dir, name, open, read_all, who};
use crate::checker::oracle::{DirectoryState, DirectoryStep, Oracle};
use crate::checker::versions;
use crate::coverage::FaultKind;
use crate::fault::OUTAGE_MS_MAX;
use crate::rng::SimRng;
use crate::world::{RunningProgram, World};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_types::{ErrorCode, Ino};

/// Names in the directory.
const NAMES: u64 = 5;
/// Number of possible states after which the client syncs the directory.
const CHOICES_MAX: usize = 40;
/// Length of a life, ms.
const LIFE_MS: (u64, u64) = (500, 20_000);

/// State that survives the client.
pub struct KilledClient {
    world: Rc<World>,
    /// The directory.
    pub dir: Ino,
    index: usize,
    /// Power may fail.
    power: bool,
    oracle: RefCell<Oracle>,
    /// Versions of files, by the inode number in their bytes.
    files: RefCell<BTreeMap<Ino, ExpectedFile>>,
    next: std::cell::Cell<u64>,
}

/// Possible contents of a file.
#[derive(Debug, Clone, Copy, Default)]
struct ExpectedFile {
    /// The oldest possible version.
    low: u64,
    /// The newest written version.
    high: u64,
    /// Least length of the file.
    bytes: usize,
    /// Length of the longest version.
    longest: usize,
    /// Length of the beginning that has version `low` or a newer one.
    low_bytes: usize,
}

type Outcome = Result<(), String>;

fn name_of(rng: &mut SimRng) -> String {
    format!("m{}", rng.below(NAMES))
}

fn text(code: ErrorCode) -> String {
    code.to_string()
}

impl KilledClient {
    /// State for the client `index`, in an empty directory that is durable.
    #[must_use]
    pub fn new(world: Rc<World>, dir: Ino, index: usize, power: bool) -> Rc<Self> {
        Rc::new(Self {
            world,
            dir,
            index,
            power,
            oracle: RefCell::new(Oracle::new(power)),
            files: RefCell::default(),
            next: std::cell::Cell::new(1),
        })
    }

    /// Runs `lives` lives one after the other, with at most `steps` steps each; the last one is not
    /// killed.
    pub async fn live(self: Rc<Self>, lives: u64, steps: u64, mut rng: SimRng) {
        for life in 1..=lives {
            let running = RunningProgram::begin(self.world.clone());
            let ended = Rc::new(std::cell::Cell::new(false));
            let (legacy, own, end) = (self.clone(), rng.fork(life), ended.clone());
            let program = async move {
                if let Err(what) = legacy.one_life(steps, own).await {
                    let index = legacy.index;
                    legacy.world.report(format!("client {index}: {what}"));
                }
                end.set(true);
            };
            self.world.spawn_program(self.index, program);
            let until = self.world.clock.now();
            let until = until.plus_ms(rng.between(LIFE_MS.0, LIFE_MS.1));
            let is_last = life == lives;
            while !ended.get() && (is_last || self.world.clock.now() < until) {
                self.world.clock.sleep(50_000_000).await;
            }
            if !ended.get() {
                self.world.network.count(FaultKind::ClientCrash);
            }
            self.world.kill_client(self.index);
            // Messages that were on their way when the client died may still be executed, even by a
            // server that stands still.
            let pause = rng.between(OUTAGE_MS_MAX + 2_000, 3 * OUTAGE_MS_MAX);
            self.world.clock.sleep(pause * 1_000_000).await;
            drop(running);
        }
    }

    async fn one_life(&self, steps: u64, mut rng: SimRng) -> Outcome {
        let connected = self.world.connect(self.index, rng.fork(1)).await;
        let client = Rc::new(connected.map_err(text)?);
        self.world.serve_client(self.index, &client, &Rc::default());
        self.look(&client).await?;
        for _ in 0..steps {
            self.step(&client, &mut rng).await?;
            self.world.count_operation();
            self.world.clock.sleep(rng.below(100_000_000)).await;
        }
        client
            .begin()
            .sync_all()
            .await
            .or_else(|code| self.forgive(code))?;
        self.look(&client).await
    }

    /// Where power fails, operations may fail.
    fn forgive(&self, code: ErrorCode) -> Outcome {
        if self.power { Ok(()) } else { Err(text(code)) }
    }

    /// Lists the directory, which must be in a state that the oracle allows.
    ///
    /// # Errors
    /// The state differs.
    pub async fn look(&self, client: &SimClient) -> Outcome {
        let losses = self.world.power_losses();
        let listed = list(client, self.dir, 3).await.map_err(text)?;
        if losses != self.world.power_losses() {
            // A loss of power may come between two parts of a listing.
            self.oracle.borrow_mut().lost();
            return Ok(());
        }
        let found: BTreeMap<String, Ino> = listed.into_iter().collect();
        self.oracle.borrow_mut().seen(&found)
    }

    async fn step(&self, client: &SimClient, rng: &mut SimRng) -> Outcome {
        if self.oracle.borrow().choices() > CHOICES_MAX {
            self.sync(client).await?;
            self.look(client).await?;
        }
        let (one, two) = (name_of(rng), name_of(rng));
        match rng.below(100) {
            0..45 => self.write(client, &one, rng).await,
            45..55 => self.unlink(client, &one).await,
            55..65 => self.rename(client, &one, &two).await,
            65..75 => self.make_and_sync(client, rng).await,
            75..90 => self.read(client, &one).await,
            _ => self.look(client).await,
        }
    }

    /// Runs an operation that applies `step` to the directory. `at` receives the inode number in
    /// its answer.
    async fn change(
        &self,
        client: &SimClient,
        doing: &str,
        step: DirectoryStep<'_>,
        operation: impl Future<Output = Result<Option<Ino>, ErrorCode>>,
        at: &str,
    ) -> Result<Option<Ino>, String> {
        let before = self.oracle.borrow_mut().begun(step);
        match operation.await {
            Ok(ino) => {
                let known = |state: &DirectoryState| {
                    let mut next = step(state)?;
                    if let Some(ino) = ino {
                        let is_other = next.get(at).copied().flatten().is_some_and(|it| it != ino);
                        if is_other {
                            return None;
                        }
                        next.insert(at.to_owned(), Some(ino));
                    }
                    Some(next)
                };
                let done = self.oracle.borrow_mut().done(&before, &known);
                done.map_err(|what| format!("{doing}: {what}"))?;
                Ok(ino)
            }
            Err(code) => {
                let could_fail = code == ErrorCode::NotFound
                    && self.oracle.borrow().may(|state| step(state).is_none());
                if !could_fail {
                    self.forgive(code)
                        .map_err(|what| format!("{doing}: {what}"))?;
                }
                self.oracle.borrow_mut().lost();
                self.look(client).await?;
                Ok(None)
            }
        }
    }

    async fn write(&self, client: &SimClient, at: &str, rng: &mut SimRng) -> Outcome {
        let step = |state: &DirectoryState| {
            let mut next = state.clone();
            next.entry(at.to_owned()).or_insert(None);
            Some(next)
        };
        let kept = RefCell::new(None);
        let make = async {
            let opened = create(client, self.dir, at, false).await?;
            let ino = opened.file.ino;
            *kept.borrow_mut() = Some(opened);
            Ok(Some(ino))
        };
        let doing = format!("create {at}");
        self.change(client, &doing, &step, make, at).await?;
        let Some(opened) = kept.into_inner() else {
            return Ok(());
        };
        let ino = opened.file.ino;
        let version = self.next.get();
        self.next.set(version + 1);
        let bytes = [504, 5_000, 70_000, 1_100_000][rng.below(4) as usize];
        {
            let mut files = self.files.borrow_mut();
            let known = files.entry(ino).or_default();
            known.high = version;
            known.longest = known.longest.max(bytes);
        }
        let content = versions::content(ino, version, bytes);
        let mut outcome = client.begin().write(&opened.file, 0, &content, false).await;
        let synced = rng.chance(400);
        if outcome.is_ok() && synced {
            outcome = client.begin().fsync(&opened.file).await;
        }
        let released = client.begin().release(ino).await;
        match outcome.and(released) {
            Ok(()) if synced || !self.power => {
                let mut files = self.files.borrow_mut();
                if let Some(known) = files.get_mut(&ino) {
                    known.bytes = known.bytes.max(bytes);
                    if known.longest <= bytes {
                        known.low = version;
                        known.low_bytes = bytes;
                    }
                }
                Ok(())
            }
            Ok(()) => Ok(()),
            Err(code) => self.forgive(code),
        }
    }

    async fn unlink(&self, client: &SimClient, at: &str) -> Outcome {
        let step = |state: &DirectoryState| {
            let mut next = state.clone();
            next.remove(at).map(|_| next)
        };
        let checked = name(at).map_err(text)?;
        let operation = async {
            let gone = client.begin().unlink(&who(), self.dir, checked).await;
            gone.map(|()| None)
        };
        self.change(client, &format!("unlink {at}"), &step, operation, at)
            .await?;
        Ok(())
    }

    async fn rename(&self, client: &SimClient, from: &str, to: &str) -> Outcome {
        let step = |state: &DirectoryState| {
            let mut next = state.clone();
            let moved = next.remove(from)?;
            next.insert(to.to_owned(), moved);
            Some(next)
        };
        let (old, new) = (name(from).map_err(text)?, name(to).map_err(text)?);
        let operation = async {
            let (old, new) = ((self.dir, old), (self.dir, new));
            client
                .begin()
                .rename(&who(), old, new, 0)
                .await
                .map(|()| None)
        };
        let doing = format!("rename {from} to {to}");
        self.change(client, &doing, &step, operation, to).await?;
        Ok(())
    }

    /// Makes or removes a directory, then calls fsync for the directory above: nothing of this may
    /// be lost from then on.
    async fn make_and_sync(&self, client: &SimClient, rng: &mut SimRng) -> Outcome {
        let at = format!("d{}", rng.below(2));
        if self.oracle.borrow().newest().contains_key(&at) {
            let step = |state: &DirectoryState| {
                let mut next = state.clone();
                next.remove(&at).map(|_| next)
            };
            let checked = name(&at).map_err(text)?;
            let operation = async {
                let gone = client.begin().rmdir(&who(), self.dir, checked).await;
                gone.map(|()| None)
            };
            let doing = format!("rmdir {at}");
            self.change(client, &doing, &step, operation, &at).await?;
        } else {
            let step = |state: &DirectoryState| {
                let mut next = state.clone();
                next.entry(at.clone()).or_insert(None);
                Some(next)
            };
            let operation = async { make_dir(client, self.dir, &at).await.map(Some) };
            let doing = format!("mkdir {at}");
            self.change(client, &doing, &step, operation, &at).await?;
        }
        self.world.clock.sleep(rng.below(400_000_000)).await;
        self.sync(client).await
    }

    async fn sync(&self, client: &SimClient) -> Outcome {
        match client.begin().sync_directory(self.dir).await {
            Ok(()) => {
                self.oracle.borrow_mut().synced();
                Ok(())
            }
            Err(code) => {
                self.forgive(code)?;
                self.oracle.borrow_mut().lost();
                self.look(client).await
            }
        }
    }

    async fn read(&self, client: &SimClient, at: &str) -> Outcome {
        let newest = self.oracle.borrow().newest();
        let Some(Some(ino)) = newest.get(at).copied() else {
            return Ok(());
        };
        let opened = match open(client, ino).await {
            Ok(opened) => opened,
            Err(code) => return self.forgive(code),
        };
        let seen = read_all(client, &opened.file).await;
        client
            .begin()
            .release(ino)
            .await
            .or_else(|code| self.forgive(code))?;
        let seen = match seen {
            Ok(seen) => seen,
            Err(code) => return self.forgive(code),
        };
        self.judge(at, ino, &seen)
    }

    fn judge(&self, at: &str, ino: Ino, seen: &[u8]) -> Outcome {
        let known = self.files.borrow().get(&ino).copied().unwrap_or_default();
        // A loss of power may take the size back to the synced one, and never below it.
        if seen.len() < known.bytes {
            return Err(format!(
                "invariant 3: {at} has {} bytes, {} were there",
                seen.len(),
                known.bytes
            ));
        }
        match versions::check(ino, seen, (known.low, known.low_bytes), known.high) {
            Some(broken) => Err(format!("{at}: {broken}")),
            None => Ok(()),
        }
    }

    /// Checks everything by a client with empty caches.
    ///
    /// # Errors
    /// The first difference.
    pub async fn check(&self, client: &SimClient) -> Outcome {
        self.look(client).await?;
        let newest = self.oracle.borrow().newest();
        for (at, ino) in newest {
            let Some(ino) = ino.filter(|_| at.starts_with('m')) else {
                continue;
            };
            let opened = open(client, ino).await.map_err(text)?;
            let seen = read_all(client, &opened.file).await.map_err(text)?;
            self.judge(&at, ino, &seen)?;
            client.begin().release(ino).await.map_err(text)?;
        }
        Ok(())
    }
}
