//! Clients that write the same blocks of a file with copies at the same time, without locks, while
//! servers are killed, cut off, paused and drained.

use zonal_sim::{RunOptions, Scenario, run};

/// So far each target orders the writes by itself.
#[test]
fn copies_of_concurrent_writers_differ() {
    let options = RunOptions {
        scenario: Scenario::Writers,
        ..RunOptions::default()
    };
    for seed in [1, 3, 5, 6, 7] {
        assert!(!run(seed, options).is_good(), "seed {seed} is good");
    }
}
