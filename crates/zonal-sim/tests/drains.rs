//! Files while targets are drained or lost for good, beside other faults: what is acknowledged is
//! read from the new places.

#[path = "common/seed_batch.rs"]
mod seed_batch;

use zonal_sim::Scenario;
use zonal_sim::coverage::FaultKind;

#[test]
fn seeds_are_good() {
    let summary = seed_batch::good_seeds(Scenario::Drains, 40);
    for fault in [
        FaultKind::Drain,
        FaultKind::DrainEnded,
        FaultKind::Rebalance,
        FaultKind::RebalanceEnded,
        FaultKind::CopiesAdded,
        FaultKind::FileRestriped,
        FaultKind::CopiesLowered,
        FaultKind::TargetLost,
    ] {
        let count = summary.coverage.of(fault);
        println!("{} in {} seeds: {count}", fault.name(), summary.seeds);
        assert!(count > 0, "{}", fault.name());
    }
    for mark in [
        "ObjectShed",
        "LeftoverDeleted",
        "CopiesDropped",
        "BytesSwapped",
        "SwapRefused",
    ] {
        assert!(summary.coverage.marks.contains(mark), "{mark}");
    }
}
