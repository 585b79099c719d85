//! What a target lost is told, whatever else fails at the same time.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::{impatient, run};
use std::rc::Rc;
use zonal_sim::rng::Rng;
use zonal_sim::workload::{create, make_dir};
use zonal_sim::world::World;
use zonal_types::{ErrorCode, Ino};

/// One target loses its power after it took bytes, another one does not answer when they are to be made durable.
async fn lost_beside_silence(world: Rc<World>) -> Result<(), ErrorCode> {
    let client = impatient(&world).await?;
    let me = world.client_name(0);
    let home = make_dir(&client, Ino::ROOT, "home").await?;
    let targets = world.storage_indices();
    for lost in &targets {
        for silent in targets.iter().filter(|silent| *silent != lost) {
            let text = format!("f{lost}-{silent}");
            let file = create(&client, home, &text, true).await?.file;
            client.write(&file, 0, &vec![b'x'; 6 << 20], false).await?;
            client.flush(&file).await?;
            world.kill(*lost);
            world.lose_power(*lost, &mut Rng::new(7));
            world.start(*lost);
            world.network.cut(&me, &world.address_of(*silent), true);
            let mut told = vec![client.fsync(&file).await];
            world.network.heal();
            for _ in 0..3 {
                told.push(client.fsync(&file).await);
            }
            let losses = told.iter().filter(|told| **told == Err(ErrorCode::Io));
            assert_eq!(losses.count(), 1, "{text}: {told:?}");
            client.release(file.ino).await?;
        }
    }
    Ok(())
}

#[test]
fn what_a_target_lost_is_told_also_where_another_one_does_not_answer() {
    run(lost_beside_silence);
}
