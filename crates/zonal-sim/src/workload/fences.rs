//! Clients that take turns under an exclusive lock. A holder may be cut off from the shard, or
//! stand still, for longer than its session lasts, and writes on. None of these writes may arrive
//! once another client has the lock, and each of its calls must report the loss.
//!
//! Two places of the file are written: one in the bytes that the shard keeps, one at a target.
//! [`PossibleValues`] holds the values that a place may have: the synced one, and those written
//! since by the holder at that time. The next holder finds one of these values. From then on the
//! place has this value, or one that the new holder writes.

use super::{SimClient, create, open};
use crate::coverage::FaultKind;
use crate::net::{NETWORK, SimNet};
use crate::rng::SimRng;
use crate::world::World;
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;
use zonal_client::{File, LockOutcome, ReportedFailures};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{LockKind, LockRange};

/// Offsets of the two places: in the shard's bytes, and behind them.
const AT: [u64; 2] = [8, 100_000];
/// How long a holder is away, ms: mostly longer than a session lasts.
const AWAY_MS: (u64, u64) = (40_000, 100_000);
/// Turns whose holder goes away, of 1000.
const AWAY: u64 = 350;
/// Pause before a client asks for the lock again, ns.
const ASK_AGAIN: u64 = 300_000_000;
/// Pause between two writes of a holder that is away, ns.
const WRITE_AGAIN: u64 = 1_500_000_000;

type Outcome = Result<(), String>;

/// Values that a place may have.
#[derive(Debug, Default)]
pub struct PossibleValues(BTreeSet<u64>);

impl PossibleValues {
    /// The holder writes a value: the place may have it from now on.
    pub fn written(&mut self, value: u64) {
        self.0.insert(value);
    }

    /// The place has this value and no earlier one.
    pub fn surely(&mut self, value: u64) {
        self.0 = BTreeSet::from([value]);
    }

    /// The holder of the lock reads a value.
    ///
    /// # Errors
    /// No holder may have left this value.
    pub fn found(&mut self, value: u64) -> Outcome {
        if !self.0.contains(&value) {
            let may = &self.0;
            return Err(format!(
                "invariant 7: the holder reads {value}, where holders left one of {may:?}: a fenced client wrote it"
            ));
        }
        self.surely(value);
        Ok(())
    }
}

/// Shared state of the clients of one world.
#[derive(Default)]
pub struct Fences {
    file: Cell<Ino>,
    places: RefCell<[PossibleValues; 2]>,
    /// Turn number of the last client that got the lock.
    turn: Cell<u64>,
    values: Cell<u64>,
    /// How often a holder was away and another client got its lock.
    lost: Cell<u64>,
}

fn text(code: ErrorCode) -> String {
    code.to_string()
}

impl Fences {
    /// Makes the file and closes it.
    ///
    /// # Errors
    /// An error of the cell.
    pub async fn make(&self, client: &SimClient, dir: Ino) -> Result<(), ErrorCode> {
        let file = create(client, dir, "fences", true).await?.file;
        for at in AT {
            client
                .begin()
                .write(&file, at, &0_u64.to_le_bytes(), false)
                .await?;
        }
        client.begin().fsync(&file).await?;
        client.begin().release(file.ino).await?;
        self.file.set(file.ino);
        self.places
            .borrow_mut()
            .iter_mut()
            .for_each(|of| of.surely(0));
        Ok(())
    }

    /// Checks that each place has a value that a holder left.
    ///
    /// # Errors
    /// A value differs, or an operation failed.
    pub async fn check(&self, client: &SimClient) -> Outcome {
        let opened = open(client, self.file.get()).await.map_err(text)?;
        self.find(client, &opened.file).await?;
        client.begin().release(self.file.get()).await.map_err(text)
    }

    async fn find(&self, client: &SimClient, file: &File<SimNet>) -> Outcome {
        for (index, at) in AT.into_iter().enumerate() {
            let mut bytes = [0; 8];
            client
                .begin()
                .read(file, at, &mut bytes)
                .await
                .map_err(text)?;
            self.places.borrow_mut()[index].found(u64::from_le_bytes(bytes))?;
        }
        Ok(())
    }

    /// How often a lock was lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.get()
    }
}

/// One client's program.
pub struct Turn {
    world: Rc<World>,
    client: Rc<SimClient>,
    index: usize,
    fences: Rc<Fences>,
    rng: SimRng,
    /// The client's number, and the value that it wrote last, if any.
    number: u64,
    last: Option<u64>,
    /// The holder was away in this turn until another client may have had its lock. Or a restarted
    /// shard did not learn of it in time, and told it so.
    was_away: bool,
    /// A write has reported the loss.
    is_told: bool,
    faults: bool,
}

impl Turn {
    /// The program of the client with this index.
    #[must_use]
    pub fn new(
        world: Rc<World>,
        client: Rc<SimClient>,
        index: usize,
        fences: Rc<Fences>,
        rng: SimRng,
    ) -> Self {
        Self {
            world,
            client,
            index,
            fences,
            rng,
            number: 0,
            last: None,
            was_away: false,
            is_told: false,
            faults: false,
        }
    }

    /// Takes turns.
    ///
    /// # Errors
    /// A fenced client's write arrived; a loss was not reported; or an operation failed though
    /// nobody was away.
    pub async fn take_all(mut self, turns: u64, faults: bool) -> Outcome {
        self.faults = faults;
        for turn in 0..turns {
            let handle = self.index as u64 * 1_000 + turn + 1;
            self.take_one(handle).await?;
            let pause = self.rng.below(500_000_000);
            self.world.clock.sleep(pause).await;
        }
        Ok(())
    }

    fn holds(&self) -> bool {
        self.fences.turn.get() == self.number
    }

    async fn take_one(&mut self, handle: u64) -> Outcome {
        let ino = self.fences.file.get();
        let (client, fences) = (self.client.clone(), self.fences.clone());
        let file = open(&client, ino).await.map_err(text)?.file;
        let mut told = file.told();
        let range = LockRange {
            whole_file: true,
            owner: handle,
            handle,
            number: 0,
            pid: 1,
            kind: LockKind::Exclusive,
            start: 0,
            end: u64::MAX,
        };
        self.lock(ino, range).await?;
        fences.turn.set(fences.turn.get() + 1);
        (self.number, self.last) = (fences.turn.get(), None);
        (self.was_away, self.is_told) = (false, false);
        self.say("has the lock");
        fences.find(&client, &file).await?;
        self.write(&file, &mut told).await?;
        if self.rng.chance(500) {
            self.sync(&file, &mut told).await?;
        }
        if self.faults && !self.was_away && self.rng.chance(AWAY) {
            self.go_away(&file, &mut told).await?;
            self.come_back(&file, &mut told).await?;
        }
        let released = client.begin().release_locks(ino, handle, true, None).await;
        if self.holds() && released.is_ok() && !self.was_away {
            self.is_there();
        }
        let closed = client.begin().flush_open(&file, &mut told).await;
        let over = client.begin().release(ino).await;
        let is_told = self.was_away || (self.faults && closed == Err(ErrorCode::Io));
        if !is_told {
            released.and(closed).and(over).map_err(text)?;
        }
        Ok(())
    }

    /// The holder's value is there, as far as anybody can see.
    fn is_there(&self) {
        if let Some(value) = self.last {
            let mut places = self.fences.places.borrow_mut();
            places.iter_mut().for_each(|place| place.surely(value));
        }
    }

    async fn lock(&self, ino: Ino, range: LockRange) -> Outcome {
        loop {
            match self.client.begin().lock(ino, range, None).await {
                Ok(LockOutcome::Granted { .. }) => return Ok(()),
                Ok(LockOutcome::Queued) => return Err("a lock: queued without a wait".to_owned()),
                Err(ErrorCode::WouldBlock) => self.world.clock.sleep(ASK_AGAIN).await,
                // Each start of the shard waits again for a holder that is away.
                Err(ErrorCode::TimedOut) if self.faults => {}
                Err(code) => return Err(format!("a lock: {code}")),
            }
        }
    }

    async fn write(&mut self, file: &File<SimNet>, told: &mut ReportedFailures) -> Outcome {
        if self.is_told {
            // Its later writes count again, and it has no lock.
            return Ok(());
        }
        self.fences.values.set(self.fences.values.get() + 1);
        let value = self.fences.values.get();
        let had_it = self.holds();
        let written = match file.tell_writer(told) {
            Ok(()) => self.write_value(file, value).await,
            lost => {
                self.say("is told");
                self.is_told = true;
                lost
            }
        };
        match written {
            Ok(()) => {
                self.last = Some(value);
                self.world.count_operation();
                Ok(())
            }
            // The holder may have learned of a loss.
            Err(_) if self.was_away || !had_it => Ok(()),
            Err(ErrorCode::Io) if self.faults => {
                (self.was_away, self.is_told) = (true, true);
                Ok(())
            }
            Err(code) => Err(format!("a write under the lock: {code}")),
        }
    }

    fn say(&self, what: &str) {
        let (world, me) = (&self.world, self.index);
        let holds = if self.holds() {
            ""
        } else {
            ", whose lock is lost,"
        };
        let text = || format!("client{me}{holds} {what}");
        world.network.trace.say(world.clock.now(), &text);
    }

    async fn write_value(&self, file: &File<SimNet>, value: u64) -> Result<(), ErrorCode> {
        for (index, at) in AT.into_iter().enumerate() {
            self.say(&format!("writes {value} at {at}"));
            if self.holds() {
                self.fences.places.borrow_mut()[index].written(value);
            }
            let bytes = value.to_le_bytes();
            self.client.begin().write(file, at, &bytes, false).await?;
        }
        Ok(())
    }

    async fn sync(&mut self, file: &File<SimNet>, told: &mut ReportedFailures) -> Outcome {
        let synced = self.client.begin().fsync_open(file, told).await;
        match synced {
            Ok(()) if self.holds() => self.is_there(),
            Ok(()) => {}
            Err(_) if self.was_away => {}
            Err(ErrorCode::Io) if self.faults => (self.was_away, self.is_told) = (true, true),
            Err(code) => return Err(format!("an fsync under the lock: {code}")),
        }
        Ok(())
    }

    /// Nobody hears of it at the shard, and it writes on, or stands still with what it wrote.
    async fn go_away(&mut self, file: &File<SimNet>, told: &mut ReportedFailures) -> Outcome {
        self.was_away = true;
        let away = self.rng.between(AWAY_MS.0, AWAY_MS.1) * 1_000_000;
        let world = self.world.clone();
        let end = world.clock.now().0 + away;
        if self.rng.chance(300) {
            world.network.count(FaultKind::PauseClient);
            let (paused, index, after) = (world.clone(), self.index, self.rng.below(50_000_000));
            world.clock.spawn(NETWORK, async move {
                paused.clock.sleep(after).await;
                paused.pause_client(index, true);
                paused.clock.sleep(away).await;
                paused.pause_client(index, false);
            });
        } else {
            world.network.count(FaultKind::CutClient);
            let (me, shard) = (world.client_name(self.index), self.shard());
            let (network, clock) = (world.network.clone(), world.clock.clone());
            network.cut(&me, &shard, true);
            world.clock.spawn(NETWORK, async move {
                clock.sleep(away).await;
                network.cut(&me, &shard, false);
            });
        }
        while world.clock.now().0 < end {
            self.write(file, told).await?;
            world.clock.sleep(WRITE_AGAIN).await;
        }
        Ok(())
    }

    /// Where another one got the lock, each call is told, once.
    async fn come_back(&mut self, file: &File<SimNet>, told: &mut ReportedFailures) -> Outcome {
        // Its polls tell it, or what it writes.
        self.world.clock.sleep(3_000_000_000).await;
        if self.holds() {
            return self.sync(file, told).await;
        }
        self.fences.lost.set(self.fences.lost.get() + 1);
        // Reports the loss, or gathers under the lock that the client still takes for its own.
        self.write(file, told).await?;
        let written = match self.is_told {
            true => file.tell_writer(told),
            // By fsync.
            false => Err(ErrorCode::Io),
        };
        let synced = loop {
            match self.client.begin().fsync_open(file, told).await {
                Err(ErrorCode::TimedOut | ErrorCode::Unreachable | ErrorCode::NotReady) => {
                    self.world.clock.sleep(ASK_AGAIN).await;
                }
                other => break other,
            }
        };
        let closed = self.client.begin().flush_open(file, told).await;
        for (call, outcome) in [("fsync", synced), ("write", written), ("close", closed)] {
            if outcome != Err(ErrorCode::Io) {
                return Err(format!(
                    "locks: others got the lock, and {call} returns {outcome:?}"
                ));
            }
        }
        let again = (
            self.client.begin().fsync_open(file, told).await,
            file.tell_writer(told),
        );
        match again {
            (Ok(()), Ok(())) => Ok(()),
            again => Err(format!("locks: a loss is reported twice: {again:?}")),
        }
    }

    /// Network address of the file's shard.
    fn shard(&self) -> String {
        let map = self.world.map.borrow().clone();
        let partition = self.fences.file.get().partition();
        let node = map
            .shard_of(partition)
            .and_then(|shard| map.node(shard.node));
        node.map(|node| node.address.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_holder_left_are_found() {
        let mut place = PossibleValues::default();
        place.surely(0);
        place.written(1);
        place.written(2);
        assert_eq!(place.found(1), Ok(()));
        assert!(place.found(2).is_err(), "it arrived later");
        place.written(3);
        assert_eq!(place.found(3), Ok(()));
        assert!(place.found(1).is_err());
    }
}
