//! Seeds of one scenario, beside all its faults.
//!
//! `ZONAL_SEEDS` sets the number of seeds, `ZONAL_SEED` the first one. With `ZONAL_LOG` each
//! message is printed.

use zonal_sim::batch::BatchSummary;
use zonal_sim::{Plant, RunOptions, Scenario, run_batch};

/// Options of a run without a planted bug.
pub const fn beside_faults(scenario: Scenario) -> RunOptions {
    RunOptions {
        scenario,
        steps: 60,
        faults: true,
        plant: Plant::None,
        log: false,
    }
}

/// Runs `usual` seeds, or as many as are asked for. All must be good.
pub fn good_seeds(scenario: Scenario, usual: u64) -> BatchSummary {
    let (first, count) = (number("ZONAL_SEED", 1), number("ZONAL_SEEDS", usual));
    let mut bad = Vec::new();
    let options = RunOptions {
        log: std::env::var_os("ZONAL_LOG").is_some(),
        ..beside_faults(scenario)
    };
    let summary = run_batch(first, count, options, 2, |report| {
        if !report.is_good() {
            bad.push(report.to_string());
        }
        bad.len() < 5
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    summary
}

fn number(name: &str, default: u64) -> u64 {
    let asked = std::env::var(name).ok();
    asked.and_then(|text| text.parse().ok()).unwrap_or(default)
}
