//! Clients that write the same blocks of a file with copies at the same time, without locks.
//! Servers are killed, cut off, paused and drained meanwhile. All copies end with the same bytes.

#[path = "common/seed_batch.rs"]
mod seed_batch;

use zonal_sim::Scenario;

#[test]
fn seeds_are_good() {
    let summary = seed_batch::good_seeds(Scenario::Writers, 60);
    for mark in ["ChangeOvertaken", "OvertakenSentAgain"] {
        assert!(!summary.missing_marks().contains(&mark), "{mark}");
    }
}
