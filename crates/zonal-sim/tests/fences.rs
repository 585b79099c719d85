//! Holders of a lock that are away for longer than their session lasts: nothing of what they write then arrives once others have the lock, and
//! both ways to break that are found.

use zonal_sim::{Options, Plant, Scenario, run_batch};

fn options(plant: Plant, faults: bool) -> Options {
    Options {
        scenario: Scenario::Fences,
        faults,
        plant,
        ..Options::default()
    }
}

#[test]
fn a_fenced_client_changes_nothing_and_is_told() {
    let mut bad = Vec::new();
    let summary = run_batch(1, 60, options(Plant::None, true), 2, |report| {
        if !report.is_good() {
            bad.push(report.to_string());
        }
        true
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    assert!(!summary.missing_marks().contains(&"FencedRefused"));
    run_batch(1, 10, options(Plant::None, false), 2, |report| {
        assert!(report.is_good(), "{report}");
        true
    });
}

#[test]
fn a_fence_that_is_forgotten_or_late_is_found() {
    for plant in [Plant::FencesAreForgotten, Plant::LocksBeforeFences] {
        let mut found = 0;
        run_batch(1, 40, options(plant, true), 2, |report| {
            let is_found = |broken: &String| broken.contains("a fenced client");
            found += u64::from(report.broken.iter().any(is_found));
            true
        });
        assert!(found >= 2, "{plant:?}: {found} of 40 seeds");
    }
}
