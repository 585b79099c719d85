//! Cost of the order of writes to files with copies. It is nothing where writers do not meet, and
//! one round more where calendars differ.
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

use common::run_on;
use std::cell::Cell;
use std::rc::Rc;
use zonal_sim::clock_skew::ProcessClock;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, make_dir, open, set_placement};
use zonal_sim::world::{CellSize, World};
use zonal_types::{ErrorCode, Ino, Placement};

/// Copies of the files.
const COPIES: u64 = 2;
/// Past the bytes that the shard keeps.
const FIRST: u64 = 1 << 20;
const BLOCK: usize = 4_096;

fn size() -> CellSize {
    CellSize {
        copies: COPIES as u16,
        ..CellSize::new(1, 3, 2)
    }
}

/// Two clients, and a file with two copies.
async fn two_clients(world: &World) -> Result<(Vec<Rc<SimClient>>, Ino), ErrorCode> {
    let mut clients = Vec::new();
    for index in 0..2 {
        let rng = SimRng::new(2 + index as u64);
        let client = Rc::new(world.connect(index, rng).await?);
        world.serve_client(index, &client, &Rc::default());
        clients.push(client);
    }
    let home = make_dir(&clients[0], Ino::ROOT, "home").await?;
    set_placement(&clients[0], home, Placement::Zone, "redundancy=copies:2").await?;
    let file = create(&clients[0], home, "f", true).await?.file;
    for client in &clients {
        // A target asks the shard for fences before its first change.
        let opened = open(client, file.ino).await?.file;
        for unit in 1..=3_u64 {
            client
                .begin()
                .write(&opened, unit << 20, &[7], false)
                .await?;
        }
        client.begin().flush(&opened).await?;
    }
    Ok((clients, file.ino))
}

/// Requests to targets of a write of one block with its flush.
async fn requests(world: &World, client: &SimClient, ino: Ino, at: u64) -> Result<u64, ErrorCode> {
    let opened = open(client, ino).await?.file;
    let before = world.network.storage_requests();
    client
        .begin()
        .write(&opened, at, &[9; BLOCK], false)
        .await?;
    client.begin().flush(&opened).await?;
    Ok(world.network.storage_requests() - before)
}

#[test]
fn writers_that_do_not_meet_send_nothing_more() {
    run_on(size(), |world| async move {
        let (clients, ino) = two_clients(&world).await?;
        for turn in 0..6_usize {
            let client = &clients[turn % 2];
            for at in [0, BLOCK as u64 * turn as u64] {
                let sent = requests(&world, client, ino, FIRST + at).await?;
                assert_eq!(sent, COPIES, "one for each copy");
            }
        }
        Ok(())
    });
}

#[test]
fn a_client_whose_calendar_differs_is_refused_once() {
    for seed in 1..=4 {
        run_on(size(), move |world| async move {
            let clock = ProcessClock::default();
            clock.jump(&mut SimRng::new(seed));
            world.network.set_clock(&world.client_name(1), clock);
            let (clients, ino) = two_clients(&world).await?;
            let mut more = 0;
            for turn in 0..20 {
                more += requests(&world, &clients[turn % 2], ino, FIRST).await? - COPIES;
                world.clock.sleep(700_000_000).await;
            }
            // The first writes of the clients have met already.
            assert!(more <= COPIES, "{more} requests more");
            Ok(())
        });
    }
}

#[test]
fn clients_that_all_write_one_block_get_on() {
    run_on(size(), |world| async move {
        let (clients, ino) = two_clients(&world).await?;
        const WRITES: u64 = 50;
        let left = Rc::new(Cell::new(clients.len()));
        let before = world.network.storage_requests();
        for client in clients {
            let (world, left, ended) = (world.clone(), left.clone(), world.clone());
            ended.spawn_program(0, async move {
                for _ in 0..WRITES {
                    let written = requests(&world, &client, ino, FIRST).await;
                    assert!(written.is_ok(), "{written:?}");
                }
                left.set(left.get() - 1);
            });
        }
        while left.get() > 0 {
            world.clock.sleep(1_000_000).await;
        }
        let sent = world.network.storage_requests() - before;
        assert!(sent > 2 * WRITES * COPIES, "they never met");
        assert!(sent < 2 * 2 * WRITES * COPIES, "{sent} requests");
        println!("{sent} requests for {} writes", 2 * WRITES);
        Ok(())
    });
}
