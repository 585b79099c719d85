//! Processes that take turns under an exclusive lock, named like a mount's kernel names them.
//! Owners' names repeat, closes are reported late, and signals come at any moment. Each process
//! adds 1 to the number in the file while it holds the lock.
//!
//! A flock belongs to its open file. The owner of an fcntl lock is a process, that of an OFD lock
//! an open file. Both names are used again as soon as the program has ended or closed, whatever the
//! shard has learned by then.

use super::kernel_cache::KernelCache;
use super::{SimClient, create, open};
use crate::checker::cache_coherence::LockExclusion;
use crate::rng::SimRng;
use crate::world::World;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use zonal_client::{File, LockOutcome};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{LockKind, LockRange};

/// Processes of each client on each file.
pub const PROCESSES: u64 = 2;
/// Files, one for each kind of lock.
const FILES: usize = 3;
/// Signals, of 1000 looks at a request that waits.
const SIGNALS: u64 = 60;
/// How often a process looks whether its lock was granted, ns.
const LOOK: u64 = 2_000_000;
/// Longest time from a close until its report to the shard, ns.
const CLOSE_LATE: u64 = 300_000_000;

type Outcome = Result<(), String>;

/// Shared state of the processes of all clients.
#[derive(Default)]
pub struct LockTurns {
    files: RefCell<Vec<Ino>>,
    holders: [LockExclusion; FILES],
    numbers: [Cell<u64>; FILES],
    /// Files on which counting has ended ([`Kernel::is_lost`]).
    lost: [Cell<bool>; FILES],
    turns: Cell<u64>,
}

/// The kernel of one client: free names of owners, and names in use.
pub struct Kernel {
    world: Rc<World>,
    client: Rc<SimClient>,
    cache: Rc<KernelCache>,
    index: usize,
    turns: Rc<LockTurns>,
    /// Names that are free; the one freed last is used next.
    free: RefCell<Vec<u64>>,
    handles: Cell<u64>,
    waiters: Cell<u64>,
}

/// The kind of lock that a process uses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Flock,
    Fcntl,
    Ofd,
}

const KINDS: [Kind; FILES] = [Kind::Flock, Kind::Fcntl, Kind::Ofd];

fn text(code: ErrorCode) -> String {
    code.to_string()
}

impl LockTurns {
    /// Makes the files and closes them.
    ///
    /// # Errors
    /// An error of the cell.
    pub async fn make(&self, client: &SimClient, dir: Ino) -> Result<(), ErrorCode> {
        for at in 0..FILES {
            let file = create(client, dir, &format!("turns{at}"), true).await?.file;
            client.begin().release(file.ino).await?;
            self.files.borrow_mut().push(file.ino);
        }
        Ok(())
    }

    /// Checks that each file has the number of the turns that were taken.
    ///
    /// # Errors
    /// A number differs, or an operation failed.
    pub async fn check(&self, client: &SimClient) -> Outcome {
        let files = self.files.borrow().clone();
        for (at, ino) in files.into_iter().enumerate() {
            let opened = open(client, ino).await.map_err(text)?;
            let found = number_in(client, &opened.file).await?;
            if self.lost[at].get() {
                continue;
            }
            let taken = self.numbers[at].get();
            if found != taken {
                return Err(format!("locks: {taken} turns, and the file says {found}"));
            }
            client.begin().release(ino).await.map_err(text)?;
        }
        Ok(())
    }

    /// Number of turns taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.turns.get()
    }
}

async fn number_in(client: &SimClient, file: &File<crate::net::SimNet>) -> Result<u64, String> {
    let mut bytes = [0; 8];
    let count = client
        .begin()
        .read(file, 0, &mut bytes)
        .await
        .map_err(text)?;
    Ok(if count == 0 {
        0
    } else {
        u64::from_le_bytes(bytes)
    })
}

impl Kernel {
    /// The kernel of the client with this index.
    #[must_use]
    pub fn new(
        world: Rc<World>,
        (client, cache, index): (Rc<SimClient>, Rc<KernelCache>, usize),
        turns: Rc<LockTurns>,
    ) -> Rc<Self> {
        Rc::new(Self {
            world,
            client,
            cache,
            index,
            turns,
            free: RefCell::new((1..=64).collect()),
            handles: Cell::new(0),
            waiters: Cell::new(0),
        })
    }

    fn next(of: &Cell<u64>) -> u64 {
        of.set(of.get() + 1);
        of.get()
    }

    fn take_owner(&self) -> u64 {
        self.free.borrow_mut().pop().unwrap_or(65)
    }

    /// Whether a client has lost its locks on the file, because it could not reclaim them from a
    /// restarted shard in time.
    ///
    /// Its writes under these locks are lost, too, and for a while two clients may take themselves
    /// for the holder. The scenario `fences` checks what the client is told.
    fn is_lost(&self, at: usize) -> bool {
        let ino = self.turns.files.borrow()[at];
        let mut nodes = self.world.meta_nodes().into_iter();
        let is_lost =
            self.world.network.has_forfeited(ino) || nodes.any(|node| node.has_silent_sessions());
        self.turns.lost[at].set(self.turns.lost[at].get() || is_lost);
        self.turns.lost[at].get()
    }

    fn unless_lost(&self, at: usize, outcome: Outcome) -> Outcome {
        match outcome {
            Err(_broken) if self.is_lost(at) => Ok(()),
            outcome => outcome,
        }
    }

    fn later(
        self: &Rc<Self>,
        at: usize,
        nanos: u64,
        what: &'static str,
        call: impl Future<Output = Result<(), ErrorCode>> + 'static,
    ) {
        let (world, kernel) = (self.world.clone(), self.clone());
        self.world.spawn_program(self.index, async move {
            world.clock.sleep(nanos).await;
            if let Err(code) = call.await
                && !kernel.is_lost(at)
            {
                world.report(format!("{what}: {code}"));
            }
        });
    }

    /// Runs one process on file `at`.
    ///
    /// # Errors
    /// An operation failed, there were two holders, or the number is not that of the turn before.
    pub async fn process(self: Rc<Self>, at: usize, mut rng: SimRng, rounds: u64) -> Outcome {
        let (ino, kind) = (self.turns.files.borrow()[at], KINDS[at]);
        for _ in 0..rounds {
            let opened = open(&self.client, ino).await.map_err(text)?;
            let handle = Self::next(&self.handles);
            let owner = self.take_owner();
            let range = LockRange {
                whole_file: kind == Kind::Flock,
                owner: if kind == Kind::Flock { handle } else { owner },
                handle,
                number: 0,
                pid: 1,
                kind: LockKind::Exclusive,
                start: 0,
                end: u64::MAX,
            };
            let times = rng.between(1, 2);
            for time in 1..=times {
                self.wait_for_lock((at, ino), range, &mut rng).await?;
                self.take_turn(at, &opened.file, &mut rng).await?;
                if time < times || rng.chance(300) {
                    let unlocked = self.client.begin().unlock(ino, range).await;
                    self.unless_lost(at, unlocked.map_err(text))?;
                }
            }
            self.close(&opened.file, at, (handle, owner), &mut rng)
                .await?;
            self.world.clock.sleep(rng.below(20_000_000)).await;
        }
        Ok(())
    }

    /// Closes the file. The process goes on when its writes are flushed and an fcntl lock is
    /// released. The rest follows later, when another process may have its owner's name.
    async fn close(
        self: &Rc<Self>,
        file: &File<crate::net::SimNet>,
        at: usize,
        (handle, owner): (u64, u64),
        rng: &mut SimRng,
    ) -> Outcome {
        let (ino, kind) = (file.ino, KINDS[at]);
        let flushed = self.client.begin().flush(file).await;
        self.unless_lost(at, flushed.map_err(text))?;
        if kind == Kind::Fcntl {
            let call = self.client.begin();
            let released = call.release_locks(ino, owner, false, None).await;
            self.unless_lost(at, released.map_err(text))?;
        }
        self.free.borrow_mut().push(owner);
        let client = self.client.clone();
        self.later(at, rng.below(CLOSE_LATE), "a late close", async move {
            let is_flock = kind == Kind::Flock;
            let owner = if is_flock { handle } else { owner };
            let call = client.begin();
            let released = call.release_locks(ino, owner, is_flock, Some(handle));
            let released = released.await;
            client.begin().release(ino).await.and(released)
        });
        Ok(())
    }

    /// Asks until the lock is granted. A signal ends the wait, and the process asks again at once.
    async fn wait_for_lock(
        self: &Rc<Self>,
        (at, ino): (usize, Ino),
        range: LockRange,
        rng: &mut SimRng,
    ) -> Outcome {
        loop {
            let waiter = Self::next(&self.waiters);
            let number = self.client.lock_number();
            let range = LockRange { number, ..range };
            match self.client.begin().lock(ino, range, Some(waiter)).await {
                Ok(LockOutcome::Granted { .. }) => return Ok(()),
                Ok(LockOutcome::Queued) => {}
                Err(code) => return Err(format!("a lock: {code}")),
            }
            if !self.is_granted(waiter, rng).await {
                // A mount remembers the take-back before the program asks again. The shard's lock
                // table does not depend on this order.
                let is_remembered = rng.chance(500);
                if is_remembered {
                    self.client.take_back_later(ino, range, Some(waiter));
                }
                let client = self.client.clone();
                self.later(at, rng.below(50_000_000), "a take-back", async move {
                    if !is_remembered {
                        client.take_back_later(ino, range, Some(waiter));
                    }
                    client.begin().send_taken_back(ino, range).await;
                    Ok(())
                });
                continue;
            }
            let granted = self.client.begin().lock_granted(ino, range).await;
            return granted.map(drop).map_err(text);
        }
    }

    /// Waits for a grant; returns false where a signal comes first.
    async fn is_granted(&self, waiter: u64, rng: &mut SimRng) -> bool {
        while !self.cache.take_granted(waiter) {
            if rng.chance(SIGNALS) {
                return false;
            }
            self.world.clock.sleep(LOOK).await;
        }
        true
    }

    async fn take_turn(
        &self,
        at: usize,
        file: &File<crate::net::SimNet>,
        rng: &mut SimRng,
    ) -> Outcome {
        let LockTurns {
            holders, numbers, ..
        } = &*self.turns;
        let me = self.index as u64;
        let taken = holders[at].take(me);
        let found = number_in(&self.client, file).await?;
        let expected = numbers[at].get();
        if found != expected {
            let odd = format!("locks: read {found} under the lock, after {expected}");
            self.unless_lost(at, Err(odd))?;
        }
        let next = (found + 1).to_le_bytes();
        let written = self.client.begin().write(file, 0, &next, false).await;
        self.unless_lost(at, written.map_err(text))?;
        numbers[at].set(found + 1);
        self.world.clock.sleep(rng.below(10_000_000)).await;
        if let Some(broken) = taken.or(holders[at].give(me)) {
            self.unless_lost(at, Err(broken))?;
        }
        self.turns.turns.set(self.turns.turns.get() + 1);
        self.world.count_operation();
        Ok(())
    }
}
