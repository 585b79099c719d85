//! Holders of a lock that are away for longer than their session lasts. None of their writes
//! arrives once another client has the lock, and both planted bugs about this are found.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{SHARD, patient_at, run, written};
use std::rc::Rc;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::open;
use zonal_sim::world::World;
use zonal_sim::{Plant, RunOptions, Scenario, run_batch};
use zonal_types::ErrorCode;

fn options(plant: Plant, faults: bool) -> RunOptions {
    RunOptions {
        scenario: Scenario::Fences,
        faults,
        plant,
        ..RunOptions::default()
    }
}

#[test]
fn a_fenced_client_changes_nothing_and_is_told() {
    let mut bad = Vec::new();
    let summary = run_batch(1, 60, options(Plant::None, true), 2, |report| {
        if !report.is_good() {
            bad.push(report.to_string());
        }
        true
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(!summary.missing_marks().contains(&"FencedRefused"));
    run_batch(1, 10, options(Plant::None, false), 2, |report| {
        assert!(report.is_good(), "{report}");
        true
    });
}

#[test]
fn a_fence_that_is_forgotten_or_late_is_found() {
    for plant in [Plant::FencesAreForgotten, Plant::LocksBeforeFences] {
        let mut found = 0;
        run_batch(1, 40, options(plant, true), 2, |report| {
            let is_found = |broken: &String| broken.contains("a fenced client");
            found += u64::from(report.broken.iter().any(is_found));
            true
        });
        assert!(found >= 2, "{plant:?}: {found} of 40 seeds");
    }
}

/// A target is down while a client is fenced, and cut off from the shard when it starts. It
/// executes no change before it has heard of the fence.
async fn started_without_the_shard(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = world.connect(0, SimRng::new(2)).await?;
    let away = patient_at(&world, 1, 5_000).await?;
    let file = written(&client, &[b'0'; 200_000]).await?;
    let ino = file.ino;
    let of_away = open(&away, ino).await?.file;
    let (me, shard) = (world.client_name(1), world.address_of(SHARD));
    world.network.cut(&me, &shard, true);
    let targets = world.storage_indices();
    targets.iter().for_each(|target| world.kill(*target));
    // The session ends, though no target has heard of the fence.
    for _second in 0..80 {
        client.background().keep_house().await;
        client.begin().getattr(ino).await?;
        world.clock.sleep(1_000_000_000).await;
    }
    for target in &targets {
        world.network.cut(&world.address_of(*target), &shard, true);
        world.start(*target);
    }
    away.begin()
        .write(&of_away, 100_000, &[b'X'; 50_000], false)
        .await?;
    assert!(away.begin().flush(&of_away).await.is_err());
    world.network.heal();
    let mut found = vec![0; 200_000];
    client.begin().read(&file, 0, &mut found).await?;
    assert!(found.iter().all(|byte| *byte == b'0'), "it was fenced");
    // A client that is not fenced goes on.
    client
        .begin()
        .write(&file, 100_000, &[b'1'; 50_000], false)
        .await?;
    client.begin().fsync(&file).await
}

#[test]
fn a_target_that_starts_asks_who_is_fenced() {
    run(started_without_the_shard);
}
