//! Callers that are killed while they wait: what they asked for is executed, perhaps, and nobody hears of it.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{contents, run};
use std::cell::Cell;
use std::rc::Rc;
use zonal_client::{Client, Message, Net, NetFailure, Options, Reply};
use zonal_sim::net::{Pending, SimNet};
use zonal_sim::rng::Rng;
use zonal_sim::workload::{create, make_dir, who};
use zonal_sim::world::World;
use zonal_types::{ErrorCode, Ino, Instant, Timestamp, ZoneId};
use zonal_wire::meta::flags::O_RDWR;
use zonal_wire::{LockKind, LockRange};

const MIB: usize = 1 << 20;

/// As `RealNet`: the caller of the next request is killed so many ns after that was sent, and waits no longer.
struct Killable {
    net: SimNet,
    world: Rc<World>,
    dies: Rc<Cell<Option<u64>>>,
}

impl Net for Killable {
    type Pending = (Pending, Option<u64>);
    type Sink = Vec<u8>;
    fn now(&self) -> Instant {
        self.net.now()
    }
    fn wall(&self) -> Timestamp {
        self.net.wall()
    }
    fn random(&self) -> u64 {
        self.net.random()
    }
    fn sleep(&self, ms: u64) -> impl Future<Output = ()> {
        self.net.sleep(ms)
    }
    fn start(&self, address: &str, message: &Message<'_>) -> Self::Pending {
        (self.net.start(address, message), self.dies.take())
    }
    async fn finish(
        &self,
        (pending, dies): Self::Pending,
        payload: Option<&mut [u8]>,
    ) -> Result<Reply, NetFailure> {
        if let Some(ns) = dies {
            self.world.clock.sleep(ns).await;
            return Err(NetFailure::Refused(ErrorCode::Interrupted));
        }
        self.net.finish(pending, payload).await
    }
    fn suits_sink(&self, _address: &str) -> bool {
        false
    }
    async fn finish_into(
        &self,
        _pending: Self::Pending,
        _sink: &mut Vec<u8>,
        _bytes: usize,
    ) -> Result<Reply, NetFailure> {
        Err(NetFailure::Refused(ErrorCode::NotSupported))
    }
    fn complain(&self, _server: &str, _doing: &str, _failure: NetFailure) {}
}

/// The first client, and when the caller of its next request is killed.
async fn killable(
    world: &Rc<World>,
) -> Result<(Rc<Client<Killable>>, Rc<Cell<Option<u64>>>), ErrorCode> {
    let dies = Rc::new(Cell::new(None));
    let net = Killable {
        net: SimNet::new(world.network.clone(), &world.client_name(0), Rng::new(2)),
        world: world.clone(),
        dies: dies.clone(),
    };
    let options = Options::new(&world.address_of(0), ZoneId(1), 77);
    Ok((Rc::new(Client::connect(net, options).await?), dies))
}

/// fcntl(F_SETLK) by a process that is killed meanwhile; the kernel closes its files.
async fn lock_of_a_killed_caller(world: Rc<World>) -> Result<(), ErrorCode> {
    let (one, dies) = killable(&world).await?;
    let two = world.connect(1, Rng::new(3)).await?;
    let home = make_dir(&two, Ino::ROOT, "home").await?;
    let ino = create(&two, home, "f", true).await?.file.ino;
    one.open(&who(), ino, O_RDWR).await?;
    let range = LockRange {
        whole_file: false,
        owner: 5,
        pid: 5,
        kind: LockKind::Exclusive,
        start: 0,
        end: u64::MAX,
    };
    dies.set(Some(1_000));
    let locked = one.lock(ino, range, None).await;
    assert_eq!(locked.map(drop), Err(ErrorCode::Interrupted));
    // FLUSH and RELEASE of the exit.
    one.release_locks(ino, 5, false).await?;
    one.release(ino).await?;
    for _ in 0..600 {
        one.keep_house().await;
        if let Some(shard) = one.map().shards.last() {
            one.poll_events(&one.link_to(shard.id), 0).await.ok();
        }
        world.clock.sleep(100_000_000).await;
    }
    let other = LockRange {
        owner: 6,
        pid: 6,
        ..range
    };
    let locked = two.lock(ino, other, None).await;
    assert!(locked.is_ok(), "a minute later: {locked:?}");
    Ok(())
}

/// A question is on its way, and then a truncation whose caller dies.
async fn old_answer(
    world: Rc<World>,
    first_us: u64,
    dies_us: u64,
    lost: Rc<Cell<u32>>,
) -> Result<(), ErrorCode> {
    let (one, dies) = killable(&world).await?;
    let two = world.connect(1, Rng::new(3)).await?;
    let home = make_dir(&two, Ino::ROOT, "home").await?;
    let ino = create(&two, home, "f", true).await?.file.ino;
    let file = one.open(&who(), ino, O_RDWR).await?.file;
    one.write(&file, 0, &vec![b'a'; 3 * MIB], false).await?;
    one.fsync(&file).await?;
    let (asks, asked) = (one.clone(), file.clone());
    world.spawn_program(0, async move {
        // As a read at the end of the file does.
        asks.refetch(&asked).await.ok();
    });
    world.clock.sleep(first_us * 1_000).await;
    dies.set(Some(dies_us * 1_000));
    let done = one.truncate(&who(), ino, 0, true, false).await;
    if done.is_ok() {
        return Ok(());
    }
    // What a program writes next, a while later.
    world.clock.sleep(1_000_000_000).await;
    one.write(&file, 0, &vec![b'N'; 2 * MIB], false).await?;
    one.fsync(&file).await?;
    let bytes = contents(&two, ino).await?;
    if bytes
        .get(..2 * MIB)
        .is_none_or(|bytes| bytes.iter().any(|byte| *byte != b'N'))
    {
        lost.set(lost.get() + 1);
    }
    Ok(())
}

#[test]
fn a_lock_of_a_killed_caller_is_taken_back() {
    run(lock_of_a_killed_caller);
}

#[test]
fn an_answer_to_an_earlier_question_ends_no_doubt() {
    let lost = Rc::new(Cell::new(0));
    for first_us in (10..200).step_by(20) {
        for dies_us in (20..400).step_by(20) {
            let lost = lost.clone();
            run(move |world| old_answer(world, first_us, dies_us, lost));
        }
    }
    assert_eq!(lost.get(), 0);
}
