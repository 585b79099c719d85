//! Files with copies, while servers are killed, cut off and paused: what is acknowledged is in all
//! copies.
//!
//! `ZONAL_SEEDS` sets the number of seeds, `ZONAL_SEED` the first one.

use zonal_sim::{Plant, RunOptions, Scenario, run_batch};

const COPIES: RunOptions = RunOptions {
    scenario: Scenario::Copies,
    steps: 60,
    faults: true,
    plant: Plant::None,
    log: false,
};

fn number(name: &str, default: u64) -> u64 {
    let asked = std::env::var(name).ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn seeds_are_good() {
    let (first, count) = (number("ZONAL_SEED", 1), number("ZONAL_SEEDS", 40));
    let mut bad = Vec::new();
    run_batch(first, count, COPIES, 2, |report| {
        if !report.is_good() {
            bad.push(report.to_string());
        }
        bad.len() < 5
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
