//! Gathered appends: no record is lost, doubled, torn or moved, except with its mount or an error.
//! Both bugs that would do so are found.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{contents, run};
use std::rc::Rc;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{create, make_dir};
use zonal_sim::world::World;
use zonal_sim::{Plant, RunOptions, Scenario, run_batch};
use zonal_types::{ErrorCode, Ino};

fn options(plant: Plant, faults: bool) -> RunOptions {
    RunOptions {
        scenario: Scenario::Appends,
        faults,
        plant,
        ..RunOptions::default()
    }
}

#[test]
fn records_are_there_once_whole_and_at_the_place_that_was_told() {
    let mut bad = Vec::new();
    // 1471: the shard was killed twice while a client with the lent end was cut off, and another
    // client appended between. 6051: a client told the shard that it gave up a place. It did so in
    // a session in which it had been given the same place again.
    let runs = [
        (1, 60, true),
        (1, 12, false),
        (1471, 1, true),
        (6051, 1, true),
        // 30351: a client that could not publish its gathered records forgot under which end it
        // gathered them.
        (30351, 1, true),
    ];
    for (first, seeds, faults) in runs {
        run_batch(first, seeds, options(Plant::None, faults), 2, |report| {
            if !report.is_good() {
                bad.push(report.to_string());
            }
            true
        });
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// One client appends records of 100 bytes; returns the number of its messages.
async fn messages_of(world: &Rc<World>, records: u64) -> Result<u64, ErrorCode> {
    let client = Rc::new(world.connect(0, SimRng::new(1)).await?);
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let file = create(&client, home, "log", true).await?.file;
    let before = world.network.messages();
    for number in 0..records {
        let at = client
            .begin()
            .append_gathered(&file, &[b'r'; 100], false)
            .await?;
        assert_eq!(at, number * 100);
    }
    let messages = world.network.messages() - before;
    client.begin().release(file.ino).await?;
    assert_eq!(
        contents(&client, file.ino).await?.len() as u64,
        records * 100
    );
    Ok(messages)
}

#[test]
fn one_client_asks_twice_where_to_append_and_not_again() {
    run(|world| async move {
        let messages = messages_of(&world, 1_000).await?;
        // Two appends of two requests each, one for the end.
        assert_eq!(messages, 10, "with their answers");
        Ok(())
    });
}

#[test]
fn another_client_sees_earlier_appends_and_appends_behind_them() {
    run(|world| async move {
        let one = Rc::new(world.connect(0, SimRng::new(1)).await?);
        world.serve_client(0, &one, &Rc::default());
        let two = Rc::new(world.connect(1, SimRng::new(2)).await?);
        world.serve_client(1, &two, &Rc::default());
        let home = make_dir(&one, Ino::ROOT, "home").await?;
        let file = create(&one, home, "log", true).await?.file;
        for _ in 0..100 {
            one.begin().append_gathered(&file, b"one\n", false).await?;
        }
        let before = world.clock.now();
        assert_eq!(
            contents(&two, file.ino).await?.len(),
            400,
            "an open recalls"
        );
        let opened = create(&two, home, "log", false).await?.file;
        for turn in 0..100 {
            let at = two
                .begin()
                .append_gathered(&opened, b"two\n", false)
                .await?;
            assert_eq!(at, 400 + turn * 8);
            let at = one.begin().append_gathered(&file, b"one\n", false).await?;
            assert_eq!(at, 404 + turn * 8);
        }
        let waited = world.clock.now().ms_since(before);
        assert!(waited < 3_000, "{waited} ms");
        Ok(())
    });
}
