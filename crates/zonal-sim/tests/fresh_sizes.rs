//! Sizes that a mount tells of a file that it writes: never less than it wrote itself, even in
//! answers that were on their way.
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

use common::run;
use std::cell::Cell;
use std::rc::Rc;
use zonal_sim::net::LinkFaults;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{create, make_dir, open, who};
use zonal_sim::world::World;
use zonal_types::{ErrorCode, Ino};

const WRITES: u64 = 300;
const BYTES: u64 = 100;

async fn asked_while_it_grows(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = Rc::new(world.connect(0, SimRng::new(2)).await?);
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let file = create(&client, home, "f", true).await?.file;
    // Answers overtake one another.
    world.network.set_faults(LinkFaults {
        slow: 300,
        ..LinkFaults::NONE
    });
    let synced = Rc::new(Cell::new(0));
    let (writer, what, told) = (client.clone(), file.clone(), synced.clone());
    world.spawn_program(0, async move {
        for index in 0..WRITES {
            let offset = index * BYTES;
            let call = writer.begin();
            let wrote = call.write(&what, offset, &[b'N'; BYTES as usize], false);
            if wrote.await.is_err() || writer.begin().fsync(&what).await.is_err() {
                return;
            }
            told.set(offset + BYTES);
        }
    });
    let mut asked = 0;
    while synced.get() < WRITES * BYTES && asked < 20 * WRITES {
        let (attr, _term) = client.begin().getattr(file.ino).await?;
        assert!(attr.size >= synced.get(), "{} bytes", attr.size);
        asked += 1;
    }
    assert_eq!(synced.get(), WRITES * BYTES);
    Ok(())
}

#[test]
fn an_answer_from_before_a_report_does_not_bring_the_old_size_back() {
    run(asked_while_it_grows);
}

async fn truncated_by_another_before_it_is_read(world: Rc<World>) -> Result<(), ErrorCode> {
    let writer = world.connect(0, SimRng::new(2)).await?;
    let reader = world.connect(1, SimRng::new(3)).await?;
    let home = make_dir(&writer, Ino::ROOT, "home").await?;
    // A file that its shard has as a whole, and a file that is in targets, too.
    for (name, size) in [("small", 4_000), ("large", 9_000)] {
        let file = create(&writer, home, name, true).await?.file;
        writer
            .begin()
            .write(&file, 0, &vec![b'N'; size], false)
            .await?;
        writer.begin().flush(&file).await?;
        let opened = open(&reader, file.ino).await?.file;
        let mut found = vec![0; size];
        assert_eq!(reader.begin().read(&opened, 0, &mut found).await?, size);
        for left in [100, 0] {
            // The reader hears of no event.
            writer
                .begin()
                .truncate(&who(), file.ino, left, true, false)
                .await?;
            let got = reader.begin().read(&opened, 0, &mut found).await?;
            assert_eq!((name, got as u64), (name, left));
            assert!(found[..got].iter().all(|byte| *byte == b'N'));
            writer
                .begin()
                .write(&file, 0, &vec![b'N'; size], false)
                .await?;
            writer.begin().flush(&file).await?;
            assert_eq!(
                reader.begin().read(&opened, got as u64, &mut found).await?,
                size - got
            );
        }
    }
    Ok(())
}

#[test]
fn a_read_that_meets_a_truncation_gives_no_zeros() {
    run(truncated_by_another_before_it_is_read);
}
