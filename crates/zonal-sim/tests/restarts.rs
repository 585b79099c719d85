//! What a client makes of its shard's restart, message by message.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

use std::cell::RefCell;
use std::rc::Rc;
use zonal_sim::Plant;
use zonal_sim::rng::Rng;
use zonal_sim::workload::{create, make_dir};
use zonal_sim::world::{Size, World};
use zonal_types::{ErrorCode, Ino, ShardId};

/// The server of the only zone's shard.
const SHARD: usize = 1;

async fn restarted_while_the_reclaim_is_not_answered(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = Rc::new(world.connect(0, Rng::new(2)).await?);
    let link = client.link_to(ShardId(1));
    client.poll_events(&link, 0).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let opened = create(&client, home, "f", true).await?;
    world.kill(SHARD);
    world.start(SHARD);

    let (shard, me) = (world.address_of(SHARD), world.client_name(0));
    let before = world.network.messages();
    let watcher = world.clone();
    world.spawn_program(0, async move {
        // The poll and its reply; what follows is the reclaim, whose reply is lost.
        while watcher.network.messages() < before + 2 {
            watcher.clock.sleep(1_000).await;
        }
        watcher.network.cut_way(&shard, &me, true);
        watcher.clock.sleep(60_000_000_000).await;
        watcher.network.cut_way(&shard, &me, false);
    });
    let told = client.poll_events(&link, 0).await;
    assert!(told.is_err(), "the reclaim was answered: {told:?}");
    world.network.heal();

    client.write(&opened.file, 0, b"bytes", false).await?;
    client.fsync(&opened.file).await?;
    client.sync_directory(home).await?;
    let polled = client.poll_events(&link, 0).await?;
    assert!(polled.restarted, "waiting locks are to be queued again");
    Ok(())
}

#[test]
fn an_unanswered_reclaim_makes_no_change_look_lost() {
    let world = World::build(Size::new(1, 3, 1), Plant::None, false, Rng::new(1)).expect("a cell");
    let outcome = Rc::new(RefCell::new(None));
    let (inner, result) = (world.clone(), outcome.clone());
    world.spawn_program(0, async move {
        let done = restarted_while_the_reclaim_is_not_answered(inner).await;
        *result.borrow_mut() = Some(done);
    });
    let limit = world.clock.now().plus_ms(300_000);
    assert!(
        world.clock.run(limit, || outcome.borrow().is_some()),
        "the program did not end"
    );
    assert_eq!(outcome.take(), Some(Ok(())));
}
