//! Losses of targets are reported, and other bytes are kept, whatever else fails at the same time.
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

use common::{contents, impatient, patient_for, run, run_on};
use std::rc::Rc;
use zonal_sim::rng::SimRng;
use zonal_sim::storage_node;
use zonal_sim::workload::{create, make_dir};
use zonal_sim::world::{CellSize, World};
use zonal_types::{ErrorCode, Ino};

/// One target loses power after it took bytes; another target does not answer when the bytes are to
/// become durable.
async fn lost_beside_silence(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let me = world.client_name(0);
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let targets = world.storage_indices();
    for lost in &targets {
        for silent in targets.iter().filter(|silent| *silent != lost) {
            let text = format!("f{lost}-{silent}");
            let file = create(&client, home, &text, true).await?.file;
            client
                .begin()
                .write(&file, 0, &vec![b'x'; 6 << 20], false)
                .await?;
            client.begin().flush(&file).await?;
            world.kill(*lost);
            world.lose_power(*lost, &mut SimRng::new(7));
            world.start(*lost);
            world.network.cut(&me, &world.address_of(*silent), true);
            let mut told = vec![client.begin().fsync(&file).await];
            world.network.heal();
            for _ in 0..3 {
                told.push(client.begin().fsync(&file).await);
            }
            let losses = told.iter().filter(|told| **told == Err(ErrorCode::Io));
            assert_eq!(losses.count(), 1, "{text}: {told:?}");
            client.begin().release(file.ino).await?;
        }
    }
    Ok(())
}

#[test]
fn losses_of_a_target_are_reported_though_another_one_does_not_answer() {
    run(lost_beside_silence);
}

/// A file is closed for the last time while one target has no space for its gathered bytes and
/// another one does not answer.
async fn closed_beside_full(world: Rc<World>) -> Result<(), ErrorCode> {
    const UNIT: u64 = 1 << 20;
    let client = impatient(&world).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let file = create(&client, home, "f", true).await?.file;
    let old = vec![b'o'; UNIT as usize];
    client.begin().write(&file, UNIT, &old, false).await?;
    client.begin().fsync(&file).await?;
    // The server of the second column.
    let nodes = world.storage_nodes();
    let silent = nodes.iter().position(|node| !node.objects().is_empty());
    let silent = world.address_of(world.storage_indices()[silent.expect("one")]);
    // The target of the first column has space for few of the bytes.
    let mut full = 0;
    loop {
        client.begin().write(&file, full, &old, false).await?;
        match client.begin().fsync(&file).await {
            Ok(()) => full += 3 * UNIT,
            Err(ErrorCode::NoSpace) => break,
            Err(other) => return Err(other),
        }
    }
    let newer = vec![b'n'; 9000];
    client.begin().write(&file, full, &old, false).await?;
    client
        .begin()
        .write(&file, full + UNIT, &newer, false)
        .await?;
    world.network.cut(&world.client_name(0), &silent, true);
    let closed = client.begin().release(file.ino).await;
    assert!(closed.is_err());
    client.background().flush_aged().await;
    world.network.heal();
    world.clock.sleep(30_000_000_000).await;
    client.background().flush_aged().await;
    let there = contents(&client, file.ino).await?;
    let at = (full + UNIT) as usize;
    assert!(
        there.get(at..at + newer.len()) == Some(&newer),
        "closed: {closed:?}"
    );
    Ok(())
}

#[test]
fn gathered_bytes_for_a_silent_target_are_kept_beside_a_full_one() {
    let mut size = CellSize::new(1, 3, 2);
    size.target = storage_node::SMALL;
    run_on(size, closed_beside_full);
}

/// Gathered bytes of files on live targets arrive although the target of other files does not
/// answer.
async fn aged_beside_silent(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = patient_for(&world, 10_000).await?;
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let mut files = Vec::new();
    for at in 0..12 {
        let file = create(&client, home, &format!("f{at}"), true).await?.file;
        client
            .begin()
            .write(&file, 0, &vec![b'o'; 9000], false)
            .await?;
        client.begin().fsync(&file).await?;
        files.push(file);
    }
    let nodes = world.storage_nodes();
    let silent = nodes.iter().position(|node| !node.objects().is_empty());
    let silent = world.address_of(world.storage_indices()[silent.expect("one")]);
    world.network.cut(&world.client_name(0), &silent, true);
    let mut held = 0;
    for file in &files {
        client
            .begin()
            .write(file, 4096, &[b'n'; 4000], false)
            .await?;
        held += usize::from(client.begin().flush(file).await.is_err());
    }
    let stays = client.dirty_bytes();
    for file in &files {
        client
            .begin()
            .write(file, 4096, &[b'm'; 4000], false)
            .await?;
    }
    assert!(
        client.dirty_bytes() > stays && (1..8).contains(&held),
        "{held}"
    );
    let end = world.clock.now().plus_ms(150_000);
    while world.clock.now() < end {
        world.clock.sleep(100_000_000).await;
        client.background().flush_aged().await;
    }
    assert_eq!(
        client.dirty_bytes(),
        stays,
        "{held} of 12 files are held up"
    );
    Ok(())
}

#[test]
fn aged_files_of_targets_that_live_are_flushed_beside_silent_ones() {
    run(aged_beside_silent);
}
