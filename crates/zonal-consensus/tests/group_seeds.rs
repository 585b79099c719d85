//! Groups of three under lost messages, kills, losses of power and cuts; each planted bug is found.

mod group;

use group::{Fault, Group, PlantedBug, Weather};

fn run(seed: u64, weather: Weather) -> Result<u64, Fault> {
    let mut group = Group::new(seed, weather);
    group.run()?;
    Ok(group.history)
}

fn all_hold(seeds: std::ops::Range<u64>, weather: Weather) {
    for seed in seeds {
        if let Err(fault) = run(seed, weather) {
            panic!("seed {seed}: {}", fault.0);
        }
    }
}

fn seeds() -> u64 {
    let asked = std::env::var("ZONAL_SEEDS")
        .ok()
        .and_then(|text| text.parse().ok());
    asked.unwrap_or(60)
}

#[test]
fn nothing_acknowledged_is_lost_by_kills_and_the_power_of_one() {
    all_hold(0..seeds(), Weather::ROUGH);
}

#[test]
fn what_was_flushed_survives_the_power_of_all() {
    all_hold(0..seeds(), Weather::STORM);
}

#[test]
fn a_group_repeats_from_its_seed() {
    for seed in 0..5 {
        assert_eq!(run(seed, Weather::STORM), run(seed, Weather::STORM));
    }
    assert_ne!(run(1, Weather::ROUGH), run(2, Weather::ROUGH));
}

/// Some seed finds the bug.
fn is_found(weather: Weather, faults: &[&str]) {
    let found = (0..400).find_map(|seed| run(seed, weather).err());
    let found = found.map(|fault| fault.0);
    assert!(
        found.is_some_and(|fault| faults.contains(&fault)),
        "found: {found:?}"
    );
}

#[test]
fn a_loss_of_power_that_is_not_told_loses_acknowledged_entries() {
    let faults = [
        "an acknowledged entry is lost",
        "two entries were committed at one place",
        "a member's log contradicts its leader's",
    ];
    is_found(Weather::ROUGH.with(PlantedBug::LossUntold), &faults);
}

#[test]
fn a_slow_clock_makes_an_older_leader_answer() {
    let faults = ["an older leader may answer reads"];
    is_found(Weather::ROUGH.with(PlantedBug::SlowClock), &faults);
}

#[test]
fn a_flush_that_is_promised_loses_durable_entries() {
    let faults = ["a durable entry is lost", "an acknowledged entry is lost"];
    is_found(Weather::STORM.with(PlantedBug::FlushPromised), &faults);
}
