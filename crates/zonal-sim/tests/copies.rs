//! Files with copies, while servers are killed, cut off and paused: what is acknowledged is in all
//! copies.

#[path = "common/seed_batch.rs"]
mod seed_batch;

use zonal_sim::Scenario;

#[test]
fn seeds_are_good() {
    seed_batch::good_seeds(Scenario::Copies, 40);
}
