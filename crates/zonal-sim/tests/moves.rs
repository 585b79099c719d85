//! Partitions that move between the shards of a zone while programs use them, beside kills, losses
//! of power, cuts and slow clocks.

#[path = "common/seed_batch.rs"]
mod seed_batch;

use zonal_sim::Scenario;
use zonal_sim::coverage::FaultKind;

#[test]
fn seeds_are_good() {
    let summary = seed_batch::good_seeds(Scenario::Moves, 60);
    let moves = summary.coverage.of(FaultKind::Move);
    println!("{moves} moves in {} seeds", summary.seeds);
    assert!(
        moves >= summary.seeds,
        "{moves} moves in {} seeds",
        summary.seeds
    );
}
