//! A zone with two shards: a client reaches inodes of both, by their numbers alone.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{contents, run_on};
use std::collections::BTreeSet;
use std::rc::Rc;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{create, lookup, make_dir, name, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::{ErrorCode, Ino, ShardId, ZoneId};

const DIRS: usize = 8;

fn two_shards() -> CellSize {
    CellSize {
        shards: 2,
        ..CellSize::new(1, 3, 2)
    }
}

fn shard_of(world: &World, ino: Ino) -> (ShardId, ZoneId) {
    let map = world.map.borrow();
    let shard = map.shard_of(ino.partition()).expect("an owner");
    (shard.id, shard.zone)
}

/// A file of 100,000 bytes in each of several first-level directories.
async fn filled(world: &World) -> Result<Vec<Ino>, ErrorCode> {
    let client = world.connect(0, SimRng::new(3)).await?;
    let mut dirs = Vec::new();
    for number in 0..DIRS {
        let dir = make_dir(&client, Ino::ROOT, &format!("d{number}")).await?;
        let below = make_dir(&client, dir, "below").await?;
        assert_eq!(shard_of(world, below), shard_of(world, dir));
        let file = create(&client, below, "f", true).await?.file;
        let bytes = vec![number as u8 + 1; 100_000];
        client.begin().write(&file, 0, &bytes, false).await?;
        client.begin().fsync(&file).await?;
        client.begin().release(file.ino).await?;
        dirs.push(dir);
    }
    client.begin().close().await?;
    Ok(dirs)
}

#[test]
fn a_client_reaches_the_inodes_of_both_shards_of_a_zone() {
    run_on(two_shards(), |world: Rc<World>| async move {
        let dirs = filled(&world).await?;
        let shards: BTreeSet<_> = dirs.iter().map(|dir| shard_of(&world, *dir)).collect();
        let zone = ZoneId(1);
        assert_eq!(
            shards.into_iter().collect::<Vec<_>>(),
            [(ShardId(1), zone), (ShardId(1_001), zone)]
        );
        // Each shard is restarted, which another client notices.
        for server in [1, 2] {
            world.kill(server);
            world.start(server);
        }
        let client = world.connect(1, SimRng::new(4)).await?;
        for (number, dir) in dirs.iter().enumerate() {
            let found = lookup(&client, Ino::ROOT, &format!("d{number}")).await?;
            assert_eq!(found.map(|found| found.attr.ino), Some(*dir));
            let below = lookup(&client, *dir, "below").await?.expect("it is there");
            let file = lookup(&client, below.attr.ino, "f").await?;
            let file = file.expect("it is there").attr.ino;
            let bytes = contents(&client, file).await?;
            assert_eq!(bytes, vec![number as u8 + 1; 100_000], "of {dir}");
            assert_eq!(client.begin().locate(file).await?.home, zone);
        }
        Ok(())
    });
}

#[test]
fn names_move_inside_of_a_shard_and_go_at_the_right_one() {
    run_on(two_shards(), |world: Rc<World>| async move {
        let dirs = filled(&world).await?;
        let client = world.connect(1, SimRng::new(4)).await?;
        assert_eq!(
            client.begin().statfs(Ino::ROOT).await?.inodes,
            1 + 3 * DIRS as u64,
            "the root and those of the test"
        );
        let first = dirs[0];
        let (from, to) = (name("below")?, name("moved")?);
        let user = who();
        for dir in &dirs[1..] {
            let there = (*dir, to.clone());
            let call = client.begin();
            let moved = call
                .rename(&user, (first, from.clone()), there.clone(), 0)
                .await;
            if shard_of(&world, *dir) != shard_of(&world, first) {
                assert_eq!(moved.err(), Some(ErrorCode::CrossShard));
                continue;
            }
            moved?;
            call.rename(&user, there, (first, from.clone()), 0).await?;
        }
        for (number, dir) in dirs.iter().enumerate() {
            let below = lookup(&client, *dir, "below").await?.expect("it is there");
            let file = name("f")?;
            client.begin().unlink(&who(), below.attr.ino, file).await?;
            client.begin().rmdir(&who(), *dir, from.clone()).await?;
            let text = name(&format!("d{number}"))?;
            client.begin().rmdir(&who(), Ino::ROOT, text).await?;
        }
        let disk = world.disk_of(0).expect("the root's");
        assert_eq!(zonal_zonemap::junctions::all(disk), Ok(Vec::new()));
        Ok(())
    });
}

#[test]
fn shards_get_more_partitions_as_they_get_directories() {
    run_on(two_shards(), |world: Rc<World>| async move {
        let client = world.connect(0, SimRng::new(3)).await?;
        let mut partitions = BTreeSet::new();
        let mut counts = BTreeSet::new();
        for number in 0..100 {
            let dir = make_dir(&client, Ino::ROOT, &format!("d{number}")).await?;
            let below = make_dir(&client, dir, "below").await?;
            assert!(partitions.insert(dir.partition()), "of {number}");
            assert_eq!(below.partition(), dir.partition());
            let map = world.map.borrow();
            counts.insert(map.partitions_of(ShardId(1)).len());
        }
        assert_eq!(counts.into_iter().collect::<Vec<_>>(), [16, 32, 64]);
        client.begin().close().await
    });
}
