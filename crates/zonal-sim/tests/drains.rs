//! Files while targets are drained or lost for good, beside other faults: what is acknowledged is
//! read from the new places.

#[path = "common/seed_batch.rs"]
mod seed_batch;

use zonal_sim::Scenario;

#[test]
fn seeds_are_good() {
    seed_batch::good_seeds(Scenario::Drains, 40);
}
