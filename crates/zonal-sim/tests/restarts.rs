//! A client beside a shard that is restarted or does not answer, message by message.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{SHARD, impatient, run, run_on};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use zonal_client::{File, Reserve};
use zonal_sim::net::{NETWORK, SimNet, SimReply, SimServer, Task};
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, make_dir, name, open, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::{Codec, Credentials, ErrorCode, Ino, ShardId};
use zonal_wire::{ErrorNumber, Header, LockKind, LockRange, MetaReply};

/// From the `nth` message on, the shard's replies to the first client are lost.
fn lose_replies_after(world: &Rc<World>, nth: u64) {
    let (shard, me) = (world.address_of(SHARD), world.client_name(0));
    let from = world.network.messages() + nth;
    let watcher = world.clone();
    world.spawn_program(0, async move {
        while watcher.network.messages() < from {
            watcher.clock.sleep(1_000).await;
        }
        watcher.network.cut_way(&shard, &me, true);
    });
}

/// A client with an open file, in its directory. The shard was restarted, received the reclaim and
/// did not answer.
async fn told_without_an_answer(
    world: &Rc<World>,
) -> Result<(Rc<SimClient>, Ino, Arc<File<SimNet>>), ErrorCode> {
    let client = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let link = client.link_to(ShardId(1));
    client.background().poll_events(&link, 0).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let file = create(&client, home, "f", true).await?.file;
    world.kill(SHARD);
    world.start(SHARD);

    // The poll and its reply; the reclaim follows, and its reply is lost.
    lose_replies_after(world, 2);
    let told = client.background().poll_events(&link, 0).await;
    assert!(told.is_err(), "the reclaim was answered: {told:?}");
    world.network.heal();
    Ok((client, home, file))
}

async fn restarted_while_the_reclaim_is_not_answered(world: Rc<World>) -> Result<(), ErrorCode> {
    let (client, home, file) = told_without_an_answer(&world).await?;
    let link = client.link_to(ShardId(1));
    client.begin().write(&file, 0, b"bytes", false).await?;
    client.begin().fsync(&file).await?;
    client.begin().sync_directory(home).await?;
    let polled = client.background().poll_events(&link, 0).await?;
    assert!(polled.restarted, "waiting locks are to be queued again");
    Ok(())
}

async fn told_and_closed_without_an_answer(world: Rc<World>) -> Result<(), ErrorCode> {
    let (client, _, file) = told_without_an_answer(&world).await?;
    let link = client.link_to(ShardId(1));
    client.begin().release(file.ino).await?;
    lose_replies_after(&world, 0);
    world.clock.sleep(1_000_000).await;
    client.background().keep_house().await;
    world.network.heal();

    while client.background().keep_house().await {
        client.background().poll_events(&link, 0).await.ok();
        world.clock.sleep(100_000_000).await;
    }
    client.background().poll_events(&link, 0).await?;
    assert_eq!(opens_and_orphans(&world), (0, 0));
    Ok(())
}

async fn locked_and_not_told(world: Rc<World>) -> Result<(), ErrorCode> {
    let one = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let two = Rc::new(world.connect(1, SimRng::new(3)).await?);
    let home = make_dir(&one, Ino::ROOT, "home").await?;
    let ino = create(&one, home, "f", true).await?.file.ino;
    let range = |owner, start, end| LockRange {
        whole_file: false,
        owner,
        handle: 0,
        number: 0,
        pid: 1,
        kind: LockKind::Exclusive,
        start,
        end,
    };
    one.begin().lock(ino, range(1, 0, 0), None).await?;

    // The lock is granted. The question about the writes of its last holder is not answered.
    lose_replies_after(&world, 2);
    assert!(one.begin().lock(ino, range(1, 0, 9), None).await.is_err());
    world.network.heal();
    // The request is queued, perhaps; the client does not know.
    one.begin().lock(ino, range(2, 10, 19), None).await?;
    two.begin().lock(ino, range(5, 20, 29), None).await?;
    lose_replies_after(&world, 0);
    world.clock.sleep(1_000_000).await;
    assert!(
        one.begin()
            .lock(ino, range(3, 20, 29), Some(77))
            .await
            .is_err()
    );
    world.network.heal();

    while one.background().keep_house().await {
        world.clock.sleep(100_000_000).await;
    }
    two.begin().unlock(ino, range(5, 20, 29)).await?;
    two.begin().lock(ino, range(6, 1, 9), None).await?;
    two.begin().lock(ino, range(6, 20, 29), None).await?;
    assert_eq!(
        two.begin().lock(ino, range(6, 0, 0), None).await,
        Err(ErrorCode::WouldBlock),
        "the lock of before is held still"
    );
    assert_eq!(
        two.begin().lock(ino, range(6, 10, 19), None).await,
        Err(ErrorCode::WouldBlock),
        "another lock is held still"
    );
    Ok(())
}

/// `is_gone`: the former holder is gone, and does not try again.
async fn released_before_it_is_flushed(world: Rc<World>, is_gone: bool) -> Result<(), ErrorCode> {
    let one = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let two = Rc::new(world.connect(1, SimRng::new(3)).await?);
    let link = one.link_to(ShardId(1));
    one.background().poll_events(&link, 0).await?;
    let home = make_dir(&one, Ino::ROOT, "home").await?;
    let file = create(&one, home, "f", true).await?.file;
    let range = |owner| LockRange {
        whole_file: true,
        owner,
        handle: 0,
        number: 0,
        pid: 1,
        kind: LockKind::Exclusive,
        start: 0,
        end: u64::MAX,
    };
    one.begin().lock(file.ino, range(1), None).await?;
    one.begin()
        .write(&file, 0, b"under the lock", false)
        .await?;
    world.kill(SHARD);
    let starting = world.clone();
    world.spawn_program(0, async move {
        // The client has given the flush up, and would still try a release behind it.
        starting.clock.sleep(62_000_000_000).await;
        starting.start(SHARD);
    });
    let released = if is_gone {
        one.begin().release_locks(file.ino, 1, true, None).await
    } else {
        one.begin().unlock(file.ino, range(1)).await
    };
    assert!(released.is_err(), "released, and nothing is flushed");
    world.clock.sleep(5_000_000_000).await;

    one.background().poll_events(&link, 0).await?;
    assert_eq!(
        two.begin().lock(file.ino, range(5), None).await,
        Err(ErrorCode::WouldBlock),
        "what was written under the lock is not there yet"
    );
    if is_gone {
        while one.background().keep_house().await {
            world.clock.sleep(100_000_000).await;
        }
    } else {
        one.begin().unlock(file.ino, range(1)).await?;
    }
    two.begin().lock(file.ino, range(5), None).await?;
    let seen = open(&two, file.ino).await?.file;
    let mut bytes = [0; 14];
    two.begin().read(&seen, 0, &mut bytes).await?;
    assert_eq!(&bytes, b"under the lock");
    Ok(())
}

async fn written_to_an_unknown_set(world: Rc<World>) -> Result<(), ErrorCode> {
    const AT: u64 = 1 << 20;
    let full = world.map.borrow().clone();
    let older = |version: u64| {
        let mut map = (*full).clone();
        map.version.0 += version;
        map.sets.clear();
        for zone in &mut map.zones {
            zone.default_sets.clear();
        }
        Arc::new(map)
    };
    world.restore_map(&older(0));
    let client = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let mut with_sets = (*full).clone();
    with_sets.version.0 += 1;
    world.restore_map(&with_sets);
    let other = Rc::new(world.connect(1, SimRng::new(3)).await?);
    let home = make_dir(&other, Ino::ROOT, "home").await?;
    let ino = create(&other, home, "f", true).await?.file.ino;

    // The client asks for a newer map and gets one from before the set.
    let with_sets = world.map.borrow().clone();
    world.restore_map(&older(with_sets.version.0 + 1));
    let opened = open(&client, ino).await?;
    client
        .begin()
        .write(&opened.file, AT, b"bytes", false)
        .await?;
    for _ in 0..2 {
        let flushed = client.begin().fsync(&opened.file).await;
        assert_eq!(flushed, Err(ErrorCode::Unreachable), "it lies nowhere yet");
    }
    let mut newest = (*with_sets).clone();
    newest.version.0 += 100;
    world.restore_map(&newest);
    client.begin().fsync(&opened.file).await?;

    let seen = open(&other, ino).await?;
    let mut bytes = [0; 5];
    assert_eq!(other.begin().read(&seen.file, AT, &mut bytes).await?, 5);
    assert_eq!(&bytes, b"bytes");
    Ok(())
}

/// Number of opens that the only zone's shard counts, and of orphans.
fn opens_and_orphans(world: &World) -> (u64, u64) {
    let nodes = world.meta_nodes();
    let gauges = nodes.get(SHARD).map(|node| node.all_gauges());
    let gauges = gauges.unwrap_or_default();
    let of = |name| gauges.iter().find(|(known, _)| *known == name);
    let of = |name| of(name).map_or(0, |(_, value)| *value);
    (of("opens"), of("orphans"))
}

async fn closed_and_not_told(world: Rc<World>) -> Result<(), ErrorCode> {
    let (shard, me) = (world.address_of(SHARD), world.client_name(0));
    let client = impatient(&world).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let once = create(&client, home, "once", true).await?.file.ino;
    let twice = create(&client, home, "twice", true).await?.file.ino;
    open(&client, twice).await?;
    for text in ["once", "twice"] {
        client.begin().unlink(&who(), home, name(text)?).await?;
    }
    assert_eq!(opens_and_orphans(&world), (2, 2));
    let settle = async || {
        world.network.heal();
        while client.background().keep_house().await {
            world.clock.sleep(100_000_000).await;
        }
    };

    client.begin().release(once).await?;
    world.network.cut_way(&me, &shard, true);
    assert!(
        client.background().keep_house().await,
        "the shard has not heard of it"
    );
    settle().await;
    assert_eq!(opens_and_orphans(&world), (1, 1));

    client.begin().release(twice).await?;
    world.network.cut_way(&shard, &me, true);
    assert!(
        client.background().keep_house().await,
        "the shard has not answered"
    );
    settle().await;
    assert_eq!(opens_and_orphans(&world), (1, 1), "closed once");

    client.begin().release(twice).await?;
    settle().await;
    assert_eq!(opens_and_orphans(&world), (0, 0));
    Ok(())
}

/// A node whose shard is elsewhere.
struct NotOwner(Cell<u32>);

impl SimServer for NotOwner {
    fn handle(
        self: Rc<Self>,
        _header: Header,
        _body: Vec<u8>,
        _payload: Vec<u8>,
    ) -> Task<SimReply> {
        self.0.set(self.0.get() + 1);
        let code = ErrorNumber(ErrorCode::NotOwner);
        Box::pin(std::future::ready(SimReply {
            body: MetaReply::Failed { code }.to_bytes(),
            payload: Vec::new(),
        }))
    }
}

async fn session_at_a_shard_that_moved(world: Rc<World>) -> Result<(), ErrorCode> {
    let other = Rc::new(world.connect(1, SimRng::new(3)).await?);
    let home = make_dir(&other, Ino::ROOT, "home").await?;
    let client = Rc::new(world.connect(0, SimRng::new(2)).await?);

    let old = world.address_of(SHARD);
    let shard = world.meta_nodes().get(SHARD).cloned();
    let mut map = (**world.map.borrow()).clone();
    map.version.0 += 1;
    for node in map.nodes.iter_mut().filter(|node| node.address == old) {
        node.address = "moved".to_owned();
    }
    world.restore_map(&map);
    let left = Rc::new(NotOwner(Cell::new(0)));
    world.network.serve(
        "moved",
        NETWORK,
        shard.map(|shard| shard as Rc<dyn SimServer>),
    );
    world.network.serve(&old, NETWORK, Some(left.clone()));

    create(&client, home, "f", true).await?;
    assert_eq!(left.0.get(), 1, "it asks where the shard is");
    Ok(())
}

/// Bytes that all targets hold.
fn allocated(world: &World) -> u64 {
    let nodes = world.storage_nodes();
    let objects = nodes.iter().flat_map(|node| node.objects());
    objects.map(|(_, stat)| stat.allocated).sum()
}

async fn allocated_and_failed(world: Rc<World>) -> Result<(), ErrorCode> {
    const LENGTH: usize = 6 << 20;
    let client = impatient(&world).await?;
    let me = world.client_name(0);
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let mut others = 0;
    for is_append in [false, true] {
        let text = format!("append-{is_append}");
        let file = create(&client, home, &text, true).await?.file;
        // One of three targets does not answer; those before it have their parts.
        for target in world.storage_indices() {
            let target = world.address_of(target);
            world.network.cut(&me, &target, true);
            let outcome = if is_append {
                client
                    .begin()
                    .append(&file, &[7; LENGTH], false)
                    .await
                    .map(drop)
            } else {
                let (length, how) = (LENGTH as u64, Reserve::Allocate);
                client.begin().reserve(&file, 0, length, how, true).await
            };
            assert!(outcome.is_err());
            world.network.heal();
            client.begin().fsync(&file).await?;
            let attr = client.begin().getattr(file.ino).await?.0;
            assert_eq!(attr.size, 0);
            // Bytes that a failed append left behind the end belong to nobody, and take space until
            // they are truncated.
            let held = allocated(&world) - others;
            assert_eq!(attr.allocated, held, "{text}, {target}");
        }
        assert!(allocated(&world) > others, "nothing was taken");
        others = allocated(&world);
    }
    Ok(())
}

async fn truncated_and_failed(world: Rc<World>) -> Result<(), ErrorCode> {
    const LENGTH: usize = 6 << 20;
    let client = impatient(&world).await?;
    let me = world.client_name(0);
    let who = Credentials::root();
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    for target in world.storage_indices() {
        let target = world.address_of(target);
        let file = create(&client, home, &target, true).await?.file;
        client.begin().write(&file, 0, &[7; LENGTH], false).await?;
        client.begin().fsync(&file).await?;
        let held = allocated(&world);
        // One of three targets does not answer; the others truncate.
        world.network.cut(&me, &target, true);
        let outcome = client
            .begin()
            .truncate(&who, file.ino, 0, true, false)
            .await;
        assert!(outcome.is_err());
        world.network.heal();
        let left = allocated(&world);
        assert!(0 < left && left < held, "truncated in part");
        let attr = client.begin().getattr(file.ino).await?.0;
        assert_eq!(attr.allocated, left, "{target}");
        client
            .begin()
            .truncate(&who, file.ino, 0, true, false)
            .await?;
        let attr = client.begin().getattr(file.ino).await?.0;
        assert_eq!((attr.allocated, allocated(&world)), (0, 0), "{target}");
    }
    Ok(())
}

async fn allocated_in_part(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let other = create(&client, home, "other", true).await?.file;
    client
        .begin()
        .reserve(&other, 0, 40 << 20, Reserve::Allocate, true)
        .await?;
    let held = allocated(&world);
    let file = create(&client, home, "f", true).await?.file;
    let call = client.begin();
    let outcome = call.reserve(&file, 0, 120 << 20, Reserve::Allocate, true);
    assert_eq!(outcome.await, Err(ErrorCode::NoSpace));
    client.begin().fsync(&file).await?;
    let attr = client.begin().getattr(file.ino).await?.0;
    assert!(attr.allocated >= 32 << 20, "a step was done");
    assert_eq!(attr.allocated, allocated(&world) - held);
    Ok(())
}

#[test]
fn an_unanswered_reclaim_makes_no_change_look_lost() {
    run(restarted_while_the_reclaim_is_not_answered);
}

#[test]
fn a_close_and_what_was_told_before_it_count_once_though_neither_is_answered() {
    run(told_and_closed_without_an_answer);
}

#[test]
fn a_close_that_is_not_answered_is_executed_once() {
    run(closed_and_not_told);
}

#[test]
fn a_session_that_opens_finds_a_shard_that_moved() {
    run(session_at_a_shard_that_moved);
}

#[test]
fn space_that_was_given_up_before_a_failure_is_counted() {
    run(truncated_and_failed);
}

#[test]
fn space_that_was_taken_before_a_failure_is_counted() {
    run(allocated_and_failed);
}

#[test]
fn space_that_a_target_gave_before_it_was_full_is_counted() {
    let mut size = CellSize::new(1, 1, 2);
    size.target.segments *= 2;
    run_on(size, allocated_in_part);
}

#[test]
fn bytes_whose_stripe_set_is_unknown_are_kept_and_sent_later() {
    run(written_to_an_unknown_set);
}

#[test]
fn a_lock_whose_caller_heard_of_an_error_is_taken_back() {
    run(locked_and_not_told);
}

#[test]
fn a_lock_is_not_released_before_what_was_written_under_it_has_arrived() {
    run(|world| released_before_it_is_flushed(world, false));
    run(|world| released_before_it_is_flushed(world, true));
}
