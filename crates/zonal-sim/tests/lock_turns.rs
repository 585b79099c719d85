//! Turns under exclusive locks, by owners whose names repeat: exclusion holds, and each of the two
//! planted bugs is found at once.

use zonal_sim::{Plant, RunOptions, Scenario, run_batch};

fn options(plant: Plant, faults: bool) -> RunOptions {
    RunOptions {
        scenario: Scenario::Locks,
        faults,
        plant,
        ..RunOptions::default()
    }
}

/// The number of seeds, out of `seeds`, that find a wrong lock.
fn found_by(plant: Plant, faults: bool, seeds: u64) -> u64 {
    let mut found = 0;
    run_batch(1, seeds, options(plant, faults), 2, |report| {
        found += u64::from(report.broken.iter().any(|broken| broken.contains("locks:")));
        true
    });
    found
}

#[test]
fn late_closes_and_signals_free_nothing_that_others_took() {
    let mut bad = Vec::new();
    for faults in [false, true] {
        run_batch(1, 16, options(Plant::None, faults), 2, |report| {
            if !report.is_good() {
                bad.push(report.to_string());
            }
            true
        });
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn a_release_or_a_take_back_by_owner_is_found_at_once() {
    for plant in [Plant::ClosesNameOwners, Plant::TakeBacksNameOwners] {
        for faults in [false, true] {
            let found = found_by(plant, faults, 12);
            assert!(found >= 3, "{plant:?}: {found} of 12 seeds");
        }
    }
}
