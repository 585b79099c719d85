//! Shards with three replicas, under kills, losses of power, partitions and slow clocks.

#[path = "common/seed_batch.rs"]
mod seed_batch;

use zonal_sim::coverage::FaultKind;
use zonal_sim::{RunOptions, Scenario, run};

const REPLICAS: RunOptions = seed_batch::beside_faults(Scenario::Replicas);

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
    let summary = seed_batch::good_seeds(Scenario::Replicas, 30);
    for fault in [FaultKind::Kill, FaultKind::PowerLoss, FaultKind::CutOneWay] {
        assert!(summary.coverage.of(fault) > 0, "{}", fault.name());
    }
}

#[test]
fn a_version_of_a_replicated_map_has_one_answer() {
    let summary = seed_batch::good_seeds(Scenario::Maps, 60);
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
