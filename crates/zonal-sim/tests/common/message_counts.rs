//! Counts the messages of a client's operations on a cell without faults, and how many of them
//! follow one another.

use super::run_on;
use std::rc::Rc;
use zonal_sim::net::LinkFaults;
use zonal_sim::rng::SimRng;
use zonal_sim::workload::{SimClient, create, make_dir, name, who};
use zonal_sim::world::{CellSize, World};
use zonal_types::{ErrorCode, Ino};

/// Delay of a message in [`Counter::time`].
const DELAY_NS: u64 = 1_000_000;

/// One zone, three targets, a client with a directory.
pub struct Counter {
    pub world: Rc<World>,
    pub client: Rc<SimClient>,
    pub home: Ino,
}

/// Runs a program on a fresh cell to its end. There are no event polls and no housekeeping, so
/// every message is the program's.
pub fn on_a_cell<P: Future<Output = Result<(), ErrorCode>> + 'static>(
    program: impl FnOnce(Counter) -> P + 'static,
) {
    run_on(CellSize::new(1, 3, 1), |world| async move {
        let client = Rc::new(world.connect(0, SimRng::new(2)).await?);
        let home = make_dir(&client, Ino::ROOT, "home").await?;
        // A target asks the shard for fenced clients before its first change; this is not counted.
        let first = create(&client, home, "first", true).await?.file;
        for unit in 1..=3 {
            client
                .begin()
                .write(&first, unit << 20, &[7], false)
                .await?;
        }
        client.begin().fsync(&first).await?;
        client.begin().release(first.ino).await?;
        client.begin().unlink(&who(), home, name("first")?).await?;
        program(Counter {
            world,
            client,
            home,
        })
        .await
    });
}

impl Counter {
    /// Runs an operation; returns its output and its round trips.
    pub async fn count<T>(
        &self,
        operation: impl Future<Output = Result<T, ErrorCode>>,
    ) -> Result<(T, u64), ErrorCode> {
        let before = self.world.network.messages();
        let value = operation.await?;
        let messages = self.world.network.messages() - before;
        assert_eq!(messages % 2, 0, "every request was answered");
        Ok((value, messages / 2))
    }

    /// Runs an operation; returns its output and its time, in messages that follow one another.
    pub async fn time<T>(
        &self,
        operation: impl Future<Output = Result<T, ErrorCode>>,
    ) -> Result<(T, u64), ErrorCode> {
        self.world.network.set_faults(LinkFaults {
            delay_min: DELAY_NS,
            delay_max: DELAY_NS,
            ..LinkFaults::NONE
        });
        for node in self.world.storage_nodes() {
            node.never_pause();
        }
        let before = self.world.clock.now().0;
        let value = operation.await?;
        let took = self.world.clock.now().0 - before;
        self.world.network.set_faults(LinkFaults::NONE);
        Ok((value, took / DELAY_NS))
    }
}
