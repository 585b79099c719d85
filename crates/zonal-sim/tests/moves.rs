//! Partitions that move between the shards of a zone while programs use them, beside kills, losses
//! of power, cuts and slow clocks.
//!
//! `ZONAL_SEEDS` sets the number of seeds, `ZONAL_SEED` the first one.

use zonal_sim::coverage::FaultKind;
use zonal_sim::{Plant, RunOptions, Scenario, run_batch};

const MOVES: RunOptions = RunOptions {
    scenario: Scenario::Moves,
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
    let (first, count) = (number("ZONAL_SEED", 1), number("ZONAL_SEEDS", 60));
    let mut bad = Vec::new();
    let summary = run_batch(first, count, MOVES, 2, |report| {
        if !report.is_good() {
            bad.push(report.to_string());
        }
        bad.len() < 5
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    let moves = summary.coverage.of(FaultKind::Move);
    println!("{moves} moves in {count} seeds");
    assert!(moves >= count, "{moves} moves in {count} seeds");
}
