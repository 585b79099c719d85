//! `zonal simulate` predicts, and refuses data centres that make no sense.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

use std::process::{Command, Output};

fn simulate(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.arg("simulate").args(arguments).output().unwrap()
}

#[test]
fn a_data_centre_that_makes_no_sense_is_wrong_usage() {
    let bad: [&[&str]; 9] = [
        &["--racks", "0"],
        &["--racks", "5000"],
        &["--nodes", "0"],
        &["--racks", "4000", "--nodes", "40"],
        &["--node-rate", "0"],
        &["--disk-rate", "nan"],
        &["--oversubscription", "0"],
        &["--megabytes", "0"],
        &["--preset", "fig7"],
    ];
    for arguments in bad {
        let output = simulate(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.starts_with("zonal: "), "{arguments:?}: {said}");
    }
}

#[test]
fn an_oversubscribed_uplink_limits_shared_files_and_not_own_files() {
    let rate = |workload: &str| {
        let words = [
            "--racks",
            "4",
            "--nodes",
            "8",
            "--oversubscription",
            "8",
            "--json",
        ];
        let output = simulate(&[&words[..], &["--workload", workload]].concat());
        let found: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let point = &found["lines"][0]["points"][0];
        point["bytes_per_second"].as_f64().unwrap() / 1e6
    };
    // 32 disks of 100 MB/s; 4 uplinks of 125 MB/s.
    assert!((rate("own") - 3_200.0).abs() < 32.0, "{}", rate("own"));
    assert!(rate("shared") <= 501.0, "{}", rate("shared"));
}
