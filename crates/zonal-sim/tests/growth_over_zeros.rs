//! Files that grow over zeros: bytes that a mount wrote behind the end, and never reported before
//! it died, never show.
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

use common::{SHARD, impatient, patient_for, run};
use std::ops::Range;
use std::rc::Rc;
use zonal_client::{File, Reserve};
use zonal_sim::net::SimNet;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, make_dir, open, who};
use zonal_sim::world::World;
use zonal_types::{ErrorCode, Ino};

const MIB: u64 = 1 << 20;
const SIZES: [u64; 3] = [100, 5_000, MIB + 10];

/// The operation that makes the file longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Growth {
    Truncate,
    TruncateByPath,
    Allocate,
    Write,
}

const GROWTHS: [Growth; 4] = [
    Growth::Truncate,
    Growth::TruncateByPath,
    Growth::Allocate,
    Growth::Write,
];

fn at_targets(world: &World) -> u64 {
    let nodes = world.storage_nodes();
    let objects = nodes.iter().flat_map(|node| node.objects());
    objects.map(|(_id, stat)| stat.allocated).sum()
}

/// Number of opens that shards count.
fn opens(world: &World) -> u64 {
    let nodes = world.meta_nodes();
    let gauges = nodes.iter().flat_map(|node| node.all_gauges());
    let opens = gauges.filter(|(name, _)| *name == "opens");
    opens.map(|(_, count)| count).sum()
}

/// Waits until the sessions of clients that do not poll are over, except those in `alive`.
async fn sessions_end(world: &World, alive: &[&SimClient]) {
    for _second in 0..80 {
        for client in alive {
            client.background().keep_house().await;
        }
        world.clock.sleep(1_000_000_000).await;
    }
}

/// The second client writes whole stripe units, which reach the targets, and dies before the shard
/// hears of them.
async fn write_and_die(
    world: &World,
    seed: u64,
    ino: Ino,
    range: Range<u64>,
) -> Result<(), ErrorCode> {
    let dead = world.connect(1, SimRng::new(seed)).await?;
    let file = open(&dead, ino).await?.file;
    let bytes = vec![b'X'; (range.end - range.start) as usize];
    dead.begin().write(&file, range.start, &bytes, false).await
}

async fn file_of(client: &SimClient, dir: Ino, text: &str, size: u64) -> Result<Ino, ErrorCode> {
    let file = create(client, dir, text, true).await?.file;
    client
        .begin()
        .write(&file, 0, &vec![b'o'; size as usize], false)
        .await?;
    client.begin().fsync(&file).await?;
    client.begin().release(file.ino).await?;
    Ok(file.ino)
}

async fn grow(client: &SimClient, ino: Ino, growth: Growth, end: u64) -> Result<(), ErrorCode> {
    if growth == Growth::TruncateByPath {
        let done = client
            .begin()
            .truncate(&who(), ino, end, false, false)
            .await;
        return done.map(drop);
    }
    let file = open(client, ino).await?.file;
    match growth {
        Growth::Truncate => drop(
            client
                .begin()
                .truncate(&who(), ino, end, true, false)
                .await?,
        ),
        Growth::Allocate => {
            client
                .begin()
                .reserve(&file, end - 10, 10, Reserve::Allocate, false)
                .await?;
        }
        _ => {
            client
                .begin()
                .write(&file, end - 10, &[0; 10], false)
                .await?;
            // Bytes that are not flushed yet do not show either.
            check(client, ino, end, "gathered").await?;
        }
    }
    client.begin().release(ino).await
}

/// Checks that the file has `o`s, then zeros up to `end`.
async fn check(client: &SimClient, ino: Ino, end: u64, what: &str) -> Result<(), ErrorCode> {
    let file = open(client, ino).await?.file;
    let mut bytes = vec![0xee; 20 * MIB as usize];
    let got = client.begin().read(&file, 0, &mut bytes).await?;
    assert_eq!(got as u64, end, "{what}: size");
    let zeros = bytes[..got].iter().skip_while(|byte| **byte == b'o');
    let stale = zeros.filter(|byte| **byte != 0).count();
    assert_eq!(stale, 0, "{what}: bytes that nobody told of");
    client.begin().release(ino).await
}

async fn grown_after_a_death(
    world: Rc<World>,
    growth: Growth,
    is_restarted: bool,
) -> Result<(), ErrorCode> {
    let client = world.connect(0, SimRng::new(2)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let mut files = Vec::new();
    for size in SIZES {
        let ino = file_of(&client, home, &format!("f{size}"), size).await?;
        write_and_die(&world, size, ino, size..6 * MIB).await?;
        files.push((size, ino));
    }
    if is_restarted {
        for server in world.storage_indices().into_iter().chain([0, SHARD]) {
            world.kill(server);
            world.start(server);
        }
    }
    sessions_end(&world, &[&client]).await;
    for (size, ino) in files {
        let what = format!("{growth:?} of {size}");
        assert!(at_targets(&world) > 4 * MIB);
        grow(&client, ino, growth, 4 * MIB).await?;
        check(&client, ino, 4 * MIB, &what).await?;
        // Grows the file again: targets truncate as much as before, even where they missed the
        // first growth.
        grow(&client, ino, growth, 5 * MIB).await?;
        check(&client, ino, 5 * MIB, &what).await?;
        let other = world.connect(1, SimRng::new(9)).await?;
        check(&other, ino, 5 * MIB, &what).await?;
        sessions_end(&world, &[&client]).await;
    }
    Ok(())
}

/// The file grew and was written, and another mount dies: columns that missed the first truncation
/// missed the second one, too.
async fn grown_written_and_grown_again(world: Rc<World>, growth: Growth) -> Result<(), ErrorCode> {
    let client = world.connect(0, SimRng::new(2)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let ino = file_of(&client, home, "f", 5_000).await?;
    write_and_die(&world, 3, ino, 5_000..6 * MIB).await?;
    sessions_end(&world, &[&client]).await;
    grow(&client, ino, growth, 3 * MIB).await?;
    // One column hears of the truncation, and not all.
    let file = open(&client, ino).await?.file;
    client
        .begin()
        .write(&file, 5_000, &[b'o'; 2_000], false)
        .await?;
    client.begin().fsync(&file).await?;
    client.begin().release(ino).await?;
    write_and_die(&world, 4, ino, 3 * MIB..4 * MIB).await?;
    sessions_end(&world, &[&client]).await;
    grow(&client, ino, growth, 6 * MIB).await?;
    check(&client, ino, 6 * MIB, &format!("{growth:?}")).await?;
    let file = open(&client, ino).await?.file;
    client
        .begin()
        .write(&file, 5 * MIB, &[0; 9_000], false)
        .await?;
    client.begin().fsync(&file).await?;
    check(&client, ino, 6 * MIB, &format!("{growth:?}")).await
}

/// Space that was reserved behind the end is no garbage.
async fn reserved(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = world.connect(0, SimRng::new(2)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    for growth in GROWTHS {
        let ino = file_of(&client, home, &format!("{growth:?}"), 5_000).await?;
        client.background().keep_house().await;
        let file = open(&client, ino).await?.file;
        client
            .begin()
            .reserve(&file, 5_000, 3 * MIB, Reserve::Allocate, true)
            .await?;
        client.begin().release(ino).await?;
        client.background().keep_house().await;
        let held = at_targets(&world);
        grow(&client, ino, growth, 4 * MIB).await?;
        // The file's columns hear of a truncation, if there was one.
        let file = open(&client, ino).await?.file;
        for at in 0..3 {
            client
                .begin()
                .write(&file, at * MIB + 6_000, &[0; 10], false)
                .await?;
        }
        client.begin().fsync(&file).await?;
        client.begin().release(ino).await?;
        assert!(at_targets(&world) >= held, "{growth:?}");
        check(&client, ino, 4 * MIB, "reserved").await?;
    }
    Ok(())
}

/// A writer that the shard has not heard of for longer than its session; then the file grows.
async fn away_for_long(world: Rc<World>, is_grown: bool) -> Result<(), ErrorCode> {
    let client = world.connect(0, SimRng::new(2)).await?;
    let away = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let ino = file_of(&client, home, "f", 5_000).await?;
    let file = open(&away, ino).await?.file;
    let (me, shard) = (world.client_name(1), world.address_of(SHARD));
    away.begin()
        .write(&file, 5_000, &vec![b'o'; 3 * MIB as usize], false)
        .await?;
    world.network.cut(&me, &shard, true);
    sessions_end(&world, &[&client]).await;
    if is_grown {
        grow(&client, ino, Growth::Write, 8 * MIB).await?;
    }
    world.network.heal();
    let told = away.begin().fsync(&file).await;
    assert_eq!(told.is_err(), is_grown, "what is lost is told: {told:?}");
    // The writer can go on.
    away.begin()
        .write(&file, 5_000, &vec![b'o'; 3 * MIB as usize], false)
        .await?;
    away.begin().fsync(&file).await?;
    let end = if is_grown { 8 * MIB } else { 3 * MIB + 5_000 };
    check(&client, ino, end, "written again").await
}

/// A writer whose report failed at its close.
async fn closed_before_it_told(world: Rc<World>) -> Result<(), ErrorCode> {
    let writer = impatient(&world).await?;
    let client = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&writer, Ino::ROOT, "home").await?;
    let ino = file_of(&writer, home, "f", 5_000).await?;
    let file = open(&writer, ino).await?.file;
    writer.background().keep_house().await;
    let bytes = vec![b'o'; 3 * MIB as usize];
    writer.begin().write(&file, 5_000, &bytes, false).await?;
    let (me, shard) = (world.client_name(0), world.address_of(SHARD));
    world.network.cut(&me, &shard, true);
    assert!(writer.begin().release(ino).await.is_err());
    world.network.heal();
    writer.background().keep_house().await;
    grow(&client, ino, Growth::Write, 8 * MIB).await?;
    for _second in 0..20 {
        writer.background().keep_house().await;
        world.clock.sleep(1_000_000_000).await;
    }
    let seen = open(&client, ino).await?.file;
    let mut found = vec![0; 3 * MIB as usize];
    client.begin().read(&seen, 5_000, &mut found).await?;
    assert!(found == bytes, "acknowledged by targets, and sent later");
    // Its open is over nevertheless.
    client.begin().release(ino).await?;
    client.background().keep_house().await;
    assert_eq!(opens(&world), 0);
    Ok(())
}

/// An append that failed while other clients had the file open.
async fn after_an_append_that_failed(world: Rc<World>) -> Result<(), ErrorCode> {
    // Longer than other clients may cache.
    let client = patient_for(&world, 8_000).await?;
    let other = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    for growth in GROWTHS {
        let ino = file_of(&client, home, &format!("{growth:?}"), 5_000).await?;
        let file = open(&client, ino).await?.file;
        for is_shared in [false, true] {
            if is_shared {
                open(&other, ino).await?;
            }
            one_fails_and_one_does_not(&world, &client, &file).await?;
        }
        other.begin().release(ino).await?;
        other.background().keep_house().await;
        client.begin().release(ino).await?;
        client.background().keep_house().await;
        assert_eq!(opens(&world), 0);
        grow(&client, ino, growth, 5 * MIB).await?;
        check(&client, ino, 5 * MIB, &format!("{growth:?}")).await?;
    }
    Ok(())
}

/// A target does not answer the first append; the second append succeeds.
async fn one_fails_and_one_does_not(
    world: &World,
    client: &SimClient,
    file: &File<SimNet>,
) -> Result<(), ErrorCode> {
    let target = world.address_of(world.storage_indices()[2]);
    world.network.cut(&world.client_name(0), &target, true);
    let bytes = vec![b'X'; 6 * MIB as usize];
    assert!(client.begin().append(file, &bytes, false).await.is_err());
    world.network.heal();
    // The call ended before it could tell the shard that it gave its place up.
    client.background().keep_house().await;
    client.begin().append(file, &[b'o'; 3_000], false).await?;
    Ok(())
}

/// Appends that fail in a file that only this client knows. Of the second append not all columns
/// can be told with a number.
async fn after_appends_that_failed(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    for growth in GROWTHS {
        let file = create(&client, home, &format!("{growth:?}"), true)
            .await?
            .file;
        client.begin().append(&file, &[b'o'; 5_000], false).await?;
        for _ in 0..2 {
            one_fails_and_one_does_not(&world, &client, &file).await?;
        }
        grow(&client, file.ino, growth, 5 * MIB).await?;
        check(&client, file.ino, 5 * MIB, &format!("{growth:?}")).await?;
    }
    Ok(())
}

#[test]
fn a_truncation_up_shows_zeros_after_a_mount_died_before_its_report() {
    run(|world| grown_after_a_death(world, Growth::Truncate, false));
    run(|world| grown_after_a_death(world, Growth::TruncateByPath, false));
}

#[test]
fn a_reservation_shows_zeros_after_a_mount_died_before_its_report() {
    run(|world| grown_after_a_death(world, Growth::Allocate, false));
}

#[test]
fn a_hole_shows_zeros_after_a_mount_died_before_its_report() {
    run(|world| grown_after_a_death(world, Growth::Write, false));
}

#[test]
fn a_file_grows_over_zeros_after_all_servers_were_killed_too() {
    for growth in GROWTHS {
        run(move |world| grown_after_a_death(world, growth, true));
    }
}

#[test]
fn a_file_that_grew_and_was_written_grows_over_zeros_again() {
    for growth in GROWTHS {
        run(move |world| grown_written_and_grown_again(world, growth));
    }
}

#[test]
fn reserved_space_stays_where_the_file_grows_into_it() {
    run(reserved);
}

#[test]
fn a_writer_whose_session_was_over_is_told_what_it_lost() {
    run(|world| away_for_long(world, false));
    run(|world| away_for_long(world, true));
}

#[test]
fn bytes_sent_after_a_close_belong_to_the_file() {
    run(closed_before_it_told);
}

#[test]
fn a_file_grows_over_zeros_after_an_append_that_failed() {
    run(after_an_append_that_failed);
    run(after_appends_that_failed);
}
