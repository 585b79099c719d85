//! Files with a copy in another zone, while all storage servers of a zone are away, beside other
//! faults.

#[path = "common/seed_batch.rs"]
mod seed_batch;

use zonal_sim::Scenario;
use zonal_sim::coverage::FaultKind;

#[test]
fn seeds_are_good() {
    let summary = seed_batch::good_seeds(Scenario::Zones, 40);
    for fault in [
        FaultKind::ZoneAway,
        FaultKind::Drain,
        FaultKind::CopiesAdded,
    ] {
        let count = summary.coverage.of(fault);
        println!("{} in {} seeds: {count}", fault.name(), summary.seeds);
        assert!(count > 0, "{}", fault.name());
    }
}
