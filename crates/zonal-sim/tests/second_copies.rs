//! The second copy of a read: after the configured time it is asked, too, and not before.
#![allow(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{contents, run_on};
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{create, make_dir, set_placement};
use zonal_sim::world::CellSize;
use zonal_types::{Ino, Placement};

/// How long the first attempt of a read waits for its copy where no second one is asked, ms.
const ATTEMPT_MS: u64 = 500;
/// For messages on their way.
const SLACK_MS: u64 = 45;

#[test]
fn a_read_from_a_silent_copy_takes_the_configured_time() {
    let size = CellSize {
        copies: 2,
        ..CellSize::new(1, 3, 2)
    };
    run_on(size, |world| async move {
        let writer = world.connect(0, SimRng::new(2)).await?;
        let home = make_dir(&writer, Ino::ROOT, "home").await?;
        set_placement(&writer, home, Placement::Zone, "redundancy=copies:2").await?;
        let file = create(&writer, home, "f", true).await?.file;
        let bytes = vec![7; 1 << 20];
        writer.begin().write(&file, 0, &bytes, false).await?;
        writer.begin().fsync(&file).await?;

        let map = world.map.borrow().clone();
        let mut delays = Vec::new();
        for silent in world.storage_indices() {
            let node = map.nodes.iter();
            let node = node
                .clone()
                .find(|of| of.address == world.address_of(silent));
            let node = node.expect("a server is in the map").id;
            for (ms, expected) in [(50, 50), (200, 200), (0, ATTEMPT_MS)] {
                // A client of its own, on the silent copy's node, which knows no silence.
                let rng = SimRng::new(100 * u64::from(node.0) + ms);
                let change = |options: &mut zonal_client::ClientOptions| {
                    options.second_copy_ms = ms;
                    options.node = node;
                };
                let reader = world.connect_with(1, rng, change).await?;
                world.pause(silent, true);
                let begun = world.clock.now();
                let seen = contents(&reader, file.ino).await?;
                let took = world.clock.now().ms_since(begun);
                world.pause(silent, false);
                assert!(seen == bytes, "other bytes after {took} ms");
                if took > SLACK_MS {
                    let range = expected..expected + SLACK_MS;
                    assert!(range.contains(&took), "{took} ms with an option of {ms} ms");
                    delays.push(ms);
                }
            }
        }
        // The file has a piece beside a silent copy on two of three nodes.
        assert_eq!(delays.len(), 2 * 3, "{delays:?}");
        Ok(())
    });
}
