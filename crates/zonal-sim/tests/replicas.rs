//! Shards with three replicas, under kills, losses of power, partitions and slow clocks.
//!
//! `ZONAL_SEEDS` sets the number of seeds, `ZONAL_SEED` the first one.

use zonal_sim::coverage::FaultKind;
use zonal_sim::{Plant, RunOptions, Scenario, run, run_batch};

const REPLICAS: RunOptions = RunOptions {
    scenario: Scenario::Replicas,
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
fn seeds_without_faults_are_good() {
    let options = RunOptions {
        faults: false,
        ..REPLICAS
    };
    for seed in 1..4 {
        let report = run(seed, options);
        assert!(report.is_good(), "{report}");
    }
}

#[test]
fn seeds_are_good() {
    let (first, count) = (number("ZONAL_SEED", 1), number("ZONAL_SEEDS", 30));
    let mut bad = Vec::new();
    let summary = run_batch(first, count, REPLICAS, 2, |report| {
        if !report.is_good() {
            bad.push(report.to_string());
        }
        bad.len() < 5
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    for fault in [FaultKind::Kill, FaultKind::PowerLoss, FaultKind::CutOneWay] {
        assert!(summary.coverage.of(fault) > 0, "{}", fault.name());
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 7] {
        assert_eq!(run(seed, REPLICAS), run(seed, REPLICAS));
    }
    assert_ne!(run(3, REPLICAS).trace, run(4, REPLICAS).trace);
}
