//! st_blocks where several clients write and cut one file: the sum of what they tell, in whatever order, is what the targets hold.

#![expect(
    clippy::expect_used,
    reason = "a test may end where the cell cannot be made"
)]

#[allow(dead_code, reason = "for several test programs")]
mod common;

use common::run;
use std::rc::Rc;
use zonal_sim::rng::Rng;
use zonal_sim::workload::{SimClient, create, make_dir, who};
use zonal_sim::world::World;
use zonal_types::{ErrorCode, Ino};

const MIB: usize = 1 << 20;

fn at_targets(world: &World) -> u64 {
    let nodes = world.storage_nodes();
    let objects = nodes.iter().flat_map(|node| node.objects());
    objects.map(|(_id, stat)| stat.allocated).sum()
}

/// What the shard counts, but for the first bytes, which it has itself.
async fn at_shard(client: &SimClient, ino: Ino) -> Result<u64, ErrorCode> {
    let (attr, _terms) = client.getattr(ino).await?;
    let own = attr.size.min(4096).next_multiple_of(512);
    Ok(attr.allocated - own)
}

async fn told_late(world: Rc<World>) -> Result<(), ErrorCode> {
    let one = world.connect(0, Rng::new(2)).await?;
    let two = world.connect(1, Rng::new(3)).await?;
    let home = make_dir(&one, Ino::ROOT, "home").await?;
    let file = create(&one, home, "f", true).await?.file;
    let bytes = vec![b'N'; 3 * MIB];
    one.write(&file, 0, &bytes[..MIB], false).await?;
    one.fsync(&file).await?;
    // At the targets, and not told.
    one.write(&file, MIB as u64, &bytes, false).await?;
    two.truncate(&who(), file.ino, 0, true, false).await?;
    one.fsync(&file).await?;
    assert_eq!(at_shard(&two, file.ino).await?, at_targets(&world));
    one.write(&file, 0, &bytes, false).await?;
    one.fsync(&file).await?;
    let held = at_targets(&world);
    assert!(held > 2 * MIB as u64);
    assert_eq!(at_shard(&two, file.ino).await?, held);
    Ok(())
}

#[test]
fn a_cut_that_is_told_before_the_writes_it_cut_leaves_nothing_counted() {
    run(told_late);
}
