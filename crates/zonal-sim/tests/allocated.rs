//! Allocated bytes (st_blocks) where several clients write and truncate one file: the sum of their
//! reports, in any order, is what the targets hold.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{impatient, run};
use std::rc::Rc;
use zonal_client::Reserve;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, make_dir, open, who};
use zonal_sim::world::World;
use zonal_types::{ErrorCode, Ino};

const MIB: usize = 1 << 20;

fn at_targets(world: &World) -> u64 {
    let nodes = world.storage_nodes();
    let objects = nodes.iter().flat_map(|node| node.objects());
    objects.map(|(_id, stat)| stat.allocated).sum()
}

/// Allocated bytes by the shard's count, without the file's first bytes, which the shard stores
/// itself.
async fn at_shard(client: &SimClient, ino: Ino) -> Result<u64, ErrorCode> {
    let (attr, _terms) = client.begin().getattr(ino).await?;
    let own = attr.size.min(4096).next_multiple_of(512);
    Ok(attr.allocated - own)
}

async fn told_late(world: Rc<World>) -> Result<(), ErrorCode> {
    let one = world.connect(0, SimRng::new(2)).await?;
    let two = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&one, Ino::ROOT, "home").await?;
    let file = create(&one, home, "f", true).await?.file;
    let bytes = vec![b'N'; 3 * MIB];
    one.begin().write(&file, 0, &bytes[..MIB], false).await?;
    one.begin().fsync(&file).await?;
    // The targets have the bytes, and the client has not reported them.
    one.begin().write(&file, MIB as u64, &bytes, false).await?;
    two.begin()
        .truncate(&who(), file.ino, 0, true, false)
        .await?;
    one.begin().fsync(&file).await?;
    assert_eq!(at_shard(&two, file.ino).await?, at_targets(&world));
    one.begin().write(&file, 0, &bytes, false).await?;
    one.begin().fsync(&file).await?;
    let held = at_targets(&world);
    assert!(held > 2 * MIB as u64);
    assert_eq!(at_shard(&two, file.ino).await?, held);
    Ok(())
}

/// A truncation that reaches its targets with later writes alone.
async fn truncated_by_writes(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = world.connect(0, SimRng::new(2)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let file = create(&client, home, "f", true).await?.file;
    client.begin().write(&file, 0, &[1; 3000], false).await?;
    let length = 9 * MIB as u64;
    client
        .begin()
        .reserve(&file, 0, length, Reserve::Allocate, true)
        .await?;
    client.begin().fsync(&file).await?;
    let before = at_targets(&world);
    assert_eq!(at_shard(&client, file.ino).await?, before);
    assert!(before > length - 8192);
    // Within the bytes that the shard keeps, and nobody else has the file open: the targets hear
    // nothing.
    client
        .begin()
        .truncate(&who(), file.ino, 100, true, false)
        .await?;
    client.begin().write(&file, 0, &[3; 4096], false).await?;
    client.begin().fsync(&file).await?;
    assert_eq!(at_targets(&world), before);
    for at in 0..3 {
        let held = at_targets(&world);
        client
            .begin()
            .write(&file, at * MIB as u64 + 8192, &[2; 4096], false)
            .await?;
        client.begin().fsync(&file).await?;
        assert!(at_targets(&world) < held, "column {at}");
        assert_eq!(at_shard(&client, file.ino).await?, at_targets(&world));
    }
    assert_eq!(at_targets(&world), 3 * 4096);
    Ok(())
}

/// A truncation that a target learns of from a writer before the shard pushes it.
async fn truncated_by_another(world: Rc<World>) -> Result<(), ErrorCode> {
    let one = impatient(&world).await?;
    let two = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&one, Ino::ROOT, "home").await?;
    let file = create(&one, home, "f", true).await?.file;
    one.begin()
        .write(&file, 0, &vec![1; 6 * MIB], false)
        .await?;
    one.begin().fsync(&file).await?;
    let me = world.client_name(0);
    for target in world.storage_indices() {
        world.network.cut(&me, &world.address_of(target), true);
    }
    let truncated = one
        .begin()
        .truncate(&who(), file.ino, 4096, true, false)
        .await;
    assert!(truncated.is_err());
    let theirs = open(&two, file.ino).await?.file;
    let held = at_targets(&world);
    two.begin()
        .write(&theirs, MIB as u64, &[2; 8192], false)
        .await?;
    two.begin().fsync(&theirs).await?;
    assert!(at_targets(&world) < held);
    assert_eq!(at_shard(&two, file.ino).await?, at_targets(&world));
    world.network.heal();
    two.begin()
        .truncate(&who(), file.ino, 0, true, false)
        .await?;
    assert_eq!(
        (at_shard(&two, file.ino).await?, at_targets(&world)),
        (0, 0)
    );
    Ok(())
}

/// A client writes, and dies before its report.
async fn truncated_and_never_told(world: Rc<World>) -> Result<(), ErrorCode> {
    let dead = world.connect(1, SimRng::new(2)).await?;
    let client = world.connect(0, SimRng::new(3)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let file = create(&client, home, "f", true).await?.file;
    let bytes = vec![b'N'; 3 * MIB];
    client.begin().write(&file, 0, &bytes[..MIB], false).await?;
    client.begin().fsync(&file).await?;
    let theirs = open(&dead, file.ino).await?.file;
    dead.begin()
        .write(&theirs, MIB as u64, &bytes, false)
        .await?;
    drop((theirs, dead));
    // Waits until its session ends.
    for _second in 0..80 {
        client.background().keep_house().await;
        world.clock.sleep(1_000_000_000).await;
    }
    assert!(at_targets(&world) > 3 * MIB as u64);
    client
        .begin()
        .truncate(&who(), file.ino, 0, true, false)
        .await?;
    assert_eq!(at_targets(&world), 0);
    client.begin().write(&file, 0, &bytes, false).await?;
    client.begin().fsync(&file).await?;
    assert_eq!(at_shard(&client, file.ino).await?, at_targets(&world));
    Ok(())
}

/// The same, where the file grows: the truncated bytes were never counted.
async fn grown_over_what_was_never_told(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = world.connect(0, SimRng::new(3)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let bytes = vec![b'N'; 6 * MIB];
    for is_truncated in [true, false] {
        let file = create(&client, home, &format!("f{is_truncated}"), true)
            .await?
            .file;
        client
            .begin()
            .write(&file, 0, &bytes[..2 * MIB], false)
            .await?;
        client.begin().fsync(&file).await?;
        client.begin().release(file.ino).await?;
        let dead = world.connect(1, SimRng::new(2)).await?;
        let theirs = open(&dead, file.ino).await?.file;
        dead.begin()
            .write(&theirs, 2 * MIB as u64, &bytes, false)
            .await?;
        drop((theirs, dead));
        for _second in 0..80 {
            client.background().keep_house().await;
            world.clock.sleep(1_000_000_000).await;
        }
        assert!(at_targets(&world) > 7 * MIB as u64);
        let file = open(&client, file.ino).await?.file;
        if is_truncated {
            let size = 20 * MIB as u64;
            client
                .begin()
                .truncate(&who(), file.ino, size, true, false)
                .await?;
        }
        for at in [9, 10, 11, 3] {
            let offset = (at * MIB) as u64 + 5_000;
            client
                .begin()
                .write(&file, offset, &bytes[..100_000], false)
                .await?;
            client.begin().fsync(&file).await?;
        }
        assert_eq!(at_shard(&client, file.ino).await?, at_targets(&world));
        client
            .begin()
            .truncate(&who(), file.ino, 0, true, false)
            .await?;
        assert_eq!(at_targets(&world), 0);
        assert_eq!(at_shard(&client, file.ino).await?, 0);
    }
    Ok(())
}

#[test]
fn bytes_truncated_where_a_file_grows_were_not_counted() {
    run(grown_over_what_was_never_told);
}

#[test]
fn unreported_bytes_that_are_truncated_are_not_missing_later() {
    run(truncated_and_never_told);
}

#[test]
fn bytes_that_writes_truncated_are_reported() {
    run(truncated_by_writes);
}

#[test]
fn bytes_that_a_write_truncated_for_another_clients_truncation_are_reported() {
    run(truncated_by_another);
}

#[test]
fn a_truncation_reported_before_the_writes_it_truncated_leaves_nothing_counted() {
    run(told_late);
}
