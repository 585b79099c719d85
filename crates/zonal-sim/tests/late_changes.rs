//! Late changes of objects: targets execute them after their sender has given them up and gone on.
//! Bytes that it wrote and synced since must stay.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail so"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{contents, impatient, run, written};
use std::cell::RefCell;
use std::rc::Rc;
use zonal_client::Reserve;
use zonal_sim::net::LinkFaults;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::open;
use zonal_sim::world::World;
use zonal_types::ErrorCode;

const MIB: usize = 1 << 20;
/// Longer than a late change is on its way.
const ALL_IS_THERE_NS: u64 = 30_000_000_000;

fn be_late(world: &World, late: u64) {
    world.network.set_faults(LinkFaults {
        late,
        ..LinkFaults::NONE
    });
}

/// No target answers for older bytes, newer bytes cover a part of them, a flush fails, and an fsync
/// succeeds.
async fn newer_over_given_up(
    world: Rc<World>,
    (late_ms, bytes): (u64, usize),
    wrong: Rc<RefCell<Vec<String>>>,
) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let file = written(&client, &vec![b'a'; 3 * MIB]).await?;
    be_late(&world, 1000);
    client
        .begin()
        .write(&file, MIB as u64, &vec![b'o'; MIB], false)
        .await?;
    let (clock, inner) = (world.clock.clone(), world.clone());
    world.spawn_program(0, async move {
        clock.sleep(late_ms * 1_000_000).await;
        be_late(&inner, 0);
    });
    let newer = vec![b'n'; bytes];
    let wrote = client.begin().write(&file, MIB as u64, &newer, false).await;
    let flushed = client.begin().flush(&file).await;
    world.clock.sleep(ALL_IS_THERE_NS).await;
    be_late(&world, 0);
    client.begin().fsync(&file).await?;
    world.clock.sleep(ALL_IS_THERE_NS).await;
    let there = contents(&client, file.ino).await?;
    if wrote.is_ok() && there[MIB..MIB + bytes] != newer {
        let what =
            format!("{bytes} bytes, late for {late_ms} ms: write {wrote:?}, flush {flushed:?}");
        wrong.borrow_mut().push(what);
    }
    Ok(())
}

#[test]
fn bytes_over_a_run_that_was_given_up_have_a_higher_number() {
    let wrong = Rc::new(RefCell::new(Vec::new()));
    for bytes in [4096, MIB] {
        for late_ms in (0..4_000).step_by(100) {
            let wrong = wrong.clone();
            run(move |world| newer_over_given_up(world, (late_ms, bytes), wrong));
        }
    }
    assert_eq!(*wrong.borrow(), Vec::<String>::new());
}

/// No target answers for a hole or zeros. The file is closed and opened again, written, and synced.
async fn opened_anew(world: Rc<World>, how: Reserve) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let file = written(&client, &vec![b'a'; 3 * MIB]).await?;
    let ino = file.ino;
    be_late(&world, 1000);
    let given_up = client
        .begin()
        .reserve(&file, MIB as u64, MIB as u64, how, true)
        .await;
    assert_eq!(given_up.map(drop), Err(ErrorCode::TimedOut));
    be_late(&world, 0);
    client.begin().release(ino).await?;
    drop(file);
    let file = open(&client, ino).await?.file;
    let newer = vec![b'n'; MIB];
    client
        .begin()
        .write(&file, MIB as u64, &newer, false)
        .await?;
    client.begin().fsync(&file).await?;
    world.clock.sleep(ALL_IS_THERE_NS).await;
    assert!(contents(&client, ino).await?[MIB..2 * MIB] == newer);
    Ok(())
}

#[test]
fn a_file_that_is_opened_anew_goes_on_with_higher_numbers() {
    run(|world| opened_anew(world, Reserve::Punch));
    run(|world| opened_anew(world, Reserve::Zero));
}

/// Random operations by several programs of one client, to servers that execute much late; then
/// everything is written anew.
async fn anything(world: Rc<World>, seed: u64, programs: u64) -> Result<(), ErrorCode> {
    let client = Rc::new(impatient(&world).await?);
    let ino = written(&client, &vec![b'a'; 3 * MIB]).await?.ino;
    client.begin().release(ino).await?;
    let ended = Rc::new(std::cell::Cell::new(0));
    for program in 0..programs {
        let (client, inner, ended) = (client.clone(), world.clone(), ended.clone());
        world.spawn_program(0, async move {
            let mut rng = SimRng::new(seed * 100 + program);
            for _step in 0..=seed % 8 {
                be_late(&inner, *rng.pick(&[0, 300, 1000, 1000]).unwrap());
                let Ok(opened) = open(&client, ino).await else {
                    continue;
                };
                let file = opened.file;
                for _ in 0..rng.below(4) {
                    let (at, bytes) = (
                        rng.below(48) << 16,
                        *rng.pick(&[4096, 65_536, MIB]).unwrap(),
                    );
                    let how = *rng
                        .pick(&[Reserve::Punch, Reserve::Zero, Reserve::Allocate])
                        .unwrap();
                    let outcome = match rng.below(8) {
                        0..3 => {
                            client
                                .begin()
                                .write(&file, at, &vec![b'x'; bytes], false)
                                .await
                        }
                        3..6 => {
                            client
                                .begin()
                                .reserve(&file, at, bytes as u64, how, true)
                                .await
                        }
                        6 => client.begin().fsync(&file).await,
                        _ => client.begin().flush(&file).await,
                    };
                    assert_ne!(outcome, Err(ErrorCode::Superseded));
                }
                client.begin().release(ino).await.ok();
                inner.clock.sleep(rng.below(3_000) * 1_000_000).await;
            }
            ended.set(ended.get() + 1);
        });
    }
    while ended.get() < programs {
        world.clock.sleep(50_000_000).await;
    }
    be_late(&world, 0);
    let file = open(&client, ino).await?.file;
    let newest = vec![b'n'; 5 * MIB];
    let mut tries = 0;
    while client
        .begin()
        .write(&file, 0, &newest, false)
        .await
        .is_err()
        || client.begin().fsync(&file).await.is_err()
    {
        tries += 1;
        assert!(tries < 50, "what failed before is told without end");
        world.clock.sleep(50_000_000).await;
    }
    world.clock.sleep(ALL_IS_THERE_NS).await;
    assert!(
        contents(&client, ino).await?[..newest.len()] == newest,
        "seed {seed}, {programs} programs"
    );
    Ok(())
}

#[test]
fn changes_that_were_given_up_have_no_effect_later() {
    for seed in 0..24 {
        for programs in [1, 3] {
            run(move |world| anything(world, seed, programs));
        }
    }
}
