//! Callers that are killed while they wait: their operations are executed or not, and nobody hears
//! of the outcome.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{contents, run};
use std::cell::Cell;
use std::rc::Rc;
use zonal_client::names::ListingPage;
use zonal_client::names::NewFile;
use zonal_client::{Client, ClientCall, ClientOptions};
use zonal_sim::net::{LinkFaults, NETWORK, SimNet};
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{create, lookup, make_dir, name, who};
use zonal_sim::world::World;
use zonal_types::{ClientId, ErrorCode, Ino, ZoneId};
use zonal_wire::meta::flags::O_RDWR;
use zonal_wire::{LockKind, LockRange, NewKind};

const MIB: usize = 1 << 20;

/// A client without threads of its own.
async fn alone(world: &Rc<World>) -> Result<Rc<Client<SimNet>>, ErrorCode> {
    let net = SimNet::new(world.network.clone(), &world.client_name(0), SimRng::new(2));
    let options = ClientOptions::new(&world.address_of(0), ZoneId(1), ClientId(77));
    Ok(Rc::new(Client::connect(net, options).await?))
}

/// Begins a call that is given up after `ns` nanoseconds, as when its caller is killed.
fn dies_in<'a>(world: &Rc<World>, client: &'a Client<SimNet>, ns: u64) -> ClientCall<'a, SimNet> {
    let call = client.begin();
    let given_up = call.context().cancellation().clone();
    let clock = world.clock.clone();
    world.clock.spawn(NETWORK, async move {
        clock.sleep(ns).await;
        given_up.cancel();
    });
    call
}

/// fcntl(F_SETLK) by a process that is killed meanwhile; the kernel closes its files.
async fn lock_of_a_killed_caller(world: Rc<World>) -> Result<(), ErrorCode> {
    let one = alone(&world).await?;
    let two = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&two, Ino::ROOT, "home").await?;
    let ino = create(&two, home, "f", true).await?.file.ino;
    one.begin().open(&who(), ino, O_RDWR).await?;
    let range = LockRange {
        whole_file: false,
        owner: 5,
        handle: 0,
        number: 0,
        pid: 5,
        kind: LockKind::Exclusive,
        start: 0,
        end: u64::MAX,
    };
    let locked = dies_in(&world, &one, 1_000).lock(ino, range, None).await;
    assert_eq!(locked.map(drop), Err(ErrorCode::Interrupted));
    // FLUSH and RELEASE of the exit.
    one.begin().release_locks(ino, 5, false, None).await?;
    one.begin().release(ino).await?;
    for _ in 0..600 {
        one.background().keep_house().await;
        if let Some(shard) = one.map().shards.last() {
            one.background()
                .poll_events(&one.link_to(shard.id), 0)
                .await
                .ok();
        }
        world.clock.sleep(100_000_000).await;
    }
    let other = LockRange {
        owner: 6,
        pid: 6,
        ..range
    };
    let locked = two.begin().lock(ino, other, None).await;
    assert!(locked.is_ok(), "a minute later: {locked:?}");
    Ok(())
}

/// A request for attributes is on its way, then a truncation whose caller dies.
async fn old_answer(
    world: Rc<World>,
    first_us: u64,
    dies_us: u64,
    lost: Rc<Cell<u32>>,
) -> Result<(), ErrorCode> {
    let one = alone(&world).await?;
    let two = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&two, Ino::ROOT, "home").await?;
    let ino = create(&two, home, "f", true).await?.file.ino;
    let file = one.begin().open(&who(), ino, O_RDWR).await?.file;
    one.begin()
        .write(&file, 0, &vec![b'a'; 3 * MIB], false)
        .await?;
    one.begin().fsync(&file).await?;
    let (asks, asked) = (one.clone(), file.clone());
    world.spawn_program(0, async move {
        // Like a read at the end of the file.
        asks.begin().refetch(&asked).await.ok();
    });
    world.clock.sleep(first_us * 1_000).await;
    let call = dies_in(&world, &one, dies_us * 1_000);
    let done = call.truncate(&who(), ino, 0, true, false).await;
    if done.is_ok() {
        return Ok(());
    }
    // A later write of a program.
    world.clock.sleep(1_000_000_000).await;
    one.begin()
        .write(&file, 0, &vec![b'N'; 2 * MIB], false)
        .await?;
    one.begin().fsync(&file).await?;
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

/// Names of a directory with their attributes, listed like a walk lists them.
async fn names(client: &Client<SimNet>, dir: Ino) -> Result<Vec<String>, ErrorCode> {
    let part = ListingPage::new(0, 200, true);
    let (entries, _end) = client.begin().readdir(&who(), dir, part).await?;
    Ok(entries.iter().map(|item| item.name.to_string()).collect())
}

/// A client makes a name with a message that takes 1.2 s, and an answer that takes as long.
/// Meanwhile it walks through the tree.
async fn made_late(world: Rc<World>, is_killed: bool) -> Result<(), ErrorCode> {
    let one = alone(&world).await?;
    let two = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&two, Ino::ROOT, "home").await?;
    let top = make_dir(&two, home, "top").await?;
    let mut dirs = Vec::new();
    for number in 0..4 {
        let dir = make_dir(&two, top, &format!("d{number}")).await?;
        let made = create(&two, dir, "f", true).await?;
        two.begin().release(made.file.ino).await?;
        dirs.push(dir);
    }
    world.clock.sleep(7_000_000_000).await;
    let shard = one.map().shards.last().map(|shard| shard.id);
    one.background()
        .poll_events(&one.link_to(shard.expect("a shard")), 0)
        .await?;
    let messages_take = |ns| {
        world.network.set_faults(LinkFaults {
            delay_min: ns,
            delay_max: ns,
            ..LinkFaults::NONE
        });
    };
    messages_take(1_200_000_000);
    let new = NewFile {
        kind: NewKind::Fifo,
        mode: 0o644,
        umask: 0,
    };
    let late = name("late")?;
    if is_killed {
        let call = dies_in(&world, &one, 10_000_000);
        let made = call.make(&who(), dirs[2], late, new).await;
        assert_eq!(made.map(drop), Err(ErrorCode::Interrupted));
    } else {
        let (maker, dir) = (one.clone(), dirs[2]);
        world.spawn_program(0, async move {
            maker.begin().make(&who(), dir, late, new).await.ok();
        });
        world.clock.sleep(10_000_000).await;
    }
    messages_take(100_000);
    world.clock.sleep(600_000_000).await;
    names(&one, top).await?;
    names(&one, dirs[0]).await?;
    messages_take(1_500_000_000);
    world.clock.sleep(700_000_000).await;
    messages_take(100_000);
    world.clock.sleep(10_000_000).await;
    // Another client sees the name, and reports it.
    let there = lookup(&two, dirs[2], "late").await?;
    assert!(there.is_some());
    assert!(names(&one, dirs[2]).await?.contains(&"late".to_owned()));
    Ok(())
}

#[test]
fn a_change_that_is_carried_out_late_is_listed() {
    for is_killed in [true, false] {
        run(move |world| made_late(world, is_killed));
    }
}
