//! Replicas in three racks of a testbed. The rack with the manager that leads is cut off: programs
//! in all racks go on, each on its own zone.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stderr, reason = "what is skipped or measured is said")]

mod cell;
mod testbed_folder;
mod testbed_rights;

use cell::{code, said};
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use testbed_folder::{Testbed, is_skipped, until};

const RACKS: [u16; 3] = [1, 2, 3];
/// Creates, syncs, renames, reads and removes files for some seconds; prints rounds, errors and the
/// longest round.
const PROGRAM: &str = r#"
import os, sys, time
folder, seconds = sys.argv[1], float(sys.argv[2])
end, rounds, longest, errors = time.monotonic() + seconds, 0, 0.0, []
while time.monotonic() < end:
    begun, path = time.monotonic(), f"{folder}/{rounds}"
    try:
        with open(path + ".new", "xb") as file:
            file.write(path.encode() * 100)
            os.fsync(file.fileno())
        os.rename(path + ".new", path)
        with open(path, "rb") as file:
            assert file.read() == path.encode() * 100, "other bytes"
        if rounds >= 50:
            os.unlink(f"{folder}/{rounds - 50}")
    except Exception as error:
        errors.append(f"round {rounds}: {error}")
    longest = max(longest, time.monotonic() - begun)
    rounds += 1
print(rounds, len(errors), round(longest, 1), errors[:3])
"#;

/// The leader of the root's shard as seen from a node. The managers' nodes are 1, 4 and 7.
fn leader(bed: &Testbed, from: &str) -> Option<u64> {
    let zonal = env!("CARGO_BIN_EXE_zonal");
    let listed = bed.run("exec", &[from, "--", zonal, "shard", "ls", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).ok()?;
    let shards = listed["shards"].as_array()?.iter();
    let voting = |shard: &&Value| {
        let replicas = shard["replicas"].as_array().into_iter().flatten();
        replicas.filter(|one| one["votes"] == true).count() >= 2
    };
    shards.filter(voting).find(|shard| shard["shard"] == 0)?["leader"].as_u64()
}

fn program(bed: &Testbed, rack: u16, seconds: u32) -> Child {
    let zone = format!("{}/zone{rack}", bed.dir().join("mnt").display());
    let mut command: Command = bed.command("exec");
    command.args([&format!("r{rack}n2"), "--", "python3", "-c", PROGRAM]);
    command.args([zone, seconds.to_string()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_rack_that_is_cut_off_stops_no_program_that_uses_its_own_zone() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("replica-racks");
    let shape = ["--racks", "3", "--nodes", "3", "--replicas", "3"];
    let up = bed.run("up", &shape);
    assert_eq!(code(&up), 0, "{}", said(&up));
    let zonal = env!("CARGO_BIN_EXE_zonal");
    until("three managers vote", || leader(&bed, "r2n1").is_some());
    for rack in RACKS {
        let text = format!("{zonal} mkdir --zone {rack} $ZONAL_MOUNT/zone{rack}");
        bed.shells(&format!("r{rack}n1"), &text);
    }
    // The mirrors have the new names within a second or two.
    std::thread::sleep(std::time::Duration::from_secs(3));
    // The manager of the first rack leads when the rack is cut off.
    until("the first manager leads", || {
        let lead = format!("{zonal} shard lead 0 1");
        code(&bed.shell("r2n1", &lead)) == 0 && leader(&bed, "r2n1") == Some(1)
    });
    let programs: Vec<Child> = RACKS.iter().map(|rack| program(&bed, *rack, 24)).collect();
    std::thread::sleep(std::time::Duration::from_secs(3));
    bed.runs("cut", &["r1"]);
    until("another manager leads", || {
        leader(&bed, "r2n1").is_some_and(|node| node != 1)
    });
    std::thread::sleep(std::time::Duration::from_secs(9));
    bed.runs("heal", &["r1"]);
    for (rack, program) in RACKS.iter().zip(programs) {
        let output = program.wait_with_output().unwrap();
        let told = said(&output);
        eprintln!("rack {rack}: rounds, errors, longest: {told}");
        let mut words = told.split_whitespace();
        let mut number = || words.next().unwrap().parse::<f64>().unwrap();
        let (rounds, errors, longest) = (number(), number(), number());
        assert!(rounds > 20.0 && errors == 0.0, "rack {rack}: {told}");
        // No call takes longer than a request's deadline.
        assert!(longest < 10.0, "rack {rack}: {told}");
    }
    let text = format!("{zonal} fsck --json >/dev/null; echo $?");
    assert_eq!(bed.shells("r2n1", &text).trim(), "0");
}
