//! A zone of a testbed is cut off. Its files have a copy in another zone, and its shard has
//! replicas in three zones. Programs of the other zones go on with its files.
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
use std::time::Duration;
use testbed_folder::{Testbed, is_skipped, until};

/// Makes files with known bytes and changes a part of earlier ones, each with fsync, and reads them
/// back. Prints rounds, errors and the longest round.
const PROGRAM: &str = r#"
import os, sys, time
folder, seconds = sys.argv[1], float(sys.argv[2])
end, rounds, longest, errors = time.monotonic() + seconds, 0, 0.0, []
def wanted(round):
    return (b"%08d" % round) * 25_000
while time.monotonic() < end:
    begun, path = time.monotonic(), f"{folder}/{rounds}"
    try:
        with open(path + ".new", "xb") as file:
            file.write(bytes(100_000) + wanted(rounds)[100_000:])
            os.fsync(file.fileno())
        os.rename(path + ".new", path)
        file = os.open(path, os.O_RDWR)
        os.pwrite(file, wanted(rounds)[:100_000], 0)
        os.fsync(file)
        os.close(file)
        earlier = rounds // 2
        with open(f"{folder}/{earlier}", "rb") as file:
            assert file.read() == wanted(earlier), "other bytes"
    except Exception as error:
        errors.append(f"round {rounds}: {error}")
    longest = max(longest, time.monotonic() - begun)
    rounds += 1
print(rounds, len(errors), round(longest, 1), errors[:3])
"#;

/// Compares all files of the program, as many as there are.
const COMPARE: &str = r#"
import os, sys
folder, seen = sys.argv[1], 0
for name in os.listdir(folder):
    if name.endswith(".new"):
        continue
    with open(f"{folder}/{name}", "rb") as file:
        found = file.read()
    assert found == (b"%08d" % int(name)) * 25_000, f"{name} has other bytes"
    seen += 1
print(seen)
"#;

fn python(bed: &Testbed, node: &str, text: &str, args: &[&str]) -> Command {
    let folder = format!("{}/zone1", bed.dir().join("mnt").display());
    let mut command: Command = bed.command("exec");
    command.args([node, "--", "python3", "-c", text, &folder]);
    command.args(args);
    command
}

fn compared(bed: &Testbed, node: &str) -> u64 {
    let output = python(bed, node, COMPARE, &[]).output().unwrap();
    assert_eq!(code(&output), 0, "{node}: {}", said(&output));
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

fn zonal_json(bed: &Testbed, node: &str, args: &str) -> Option<Value> {
    let text = format!("{} {args}", env!("CARGO_BIN_EXE_zonal"));
    serde_json::from_slice(&bed.shell(node, &text).stdout).ok()
}

/// Whether each of the four shards has a leader and two others with a vote.
fn are_shards_whole(bed: &Testbed) -> bool {
    let listed = zonal_json(bed, "r2n1", "shard ls --json").unwrap_or_default();
    let shards = listed["shards"].as_array().into_iter().flatten();
    let is_whole = |shard: &&Value| {
        let replicas = shard["replicas"].as_array().into_iter().flatten();
        replicas.filter(|one| one["votes"] == true).count() == 2
    };
    shards.filter(is_whole).count() == 4
}

#[test]
fn programs_of_other_zones_go_on_with_the_files_of_a_lost_zone() {
    if is_skipped() {
        return;
    }
    let bed = Testbed::new("zone-lost");
    let shape = [
        "--racks",
        "3",
        "--nodes",
        "3",
        "--replicas",
        "3",
        "--spread-replicas",
    ];
    let up = bed.run("up", &shape);
    assert_eq!(code(&up), 0, "{}", said(&up));
    let zonal = env!("CARGO_BIN_EXE_zonal");
    until("all shards have three votes", || are_shards_whole(&bed));
    let text = format!(
        "{zonal} mkdir --zone 1 $ZONAL_MOUNT/zone1 && \
         {zonal} layout set --copies 1 --also-zone any $ZONAL_MOUNT/zone1"
    );
    bed.shells("r1n1", &text);
    // The mirrors have the new name within a second or two.
    std::thread::sleep(Duration::from_secs(3));
    let refused = bed.shell("r2n1", &format!("{zonal} zone fail-over 1"));
    assert_eq!(code(&refused), 5, "{}", said(&refused));

    let mut program = python(&bed, "r2n2", PROGRAM, &["45"]);
    let program = program.stdout(Stdio::piped()).stderr(Stdio::piped());
    let program: Child = program.spawn().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    bed.runs("cut", &["r1"]);
    std::thread::sleep(Duration::from_secs(15));
    let mut lost = Value::Null;
    until("the zone's targets are out", || {
        let fail_over = zonal_json(&bed, "r2n1", "zone fail-over 1 --json");
        lost = fail_over.unwrap_or_default();
        lost["targets_out"]
            .as_array()
            .is_some_and(|out| out.len() == 3)
    });
    eprintln!("{lost}");
    let served = lost["shards"].as_array().unwrap();
    assert!(
        !served.is_empty() && served.iter().all(|of| of["served_by"].is_u64()),
        "{lost}"
    );
    // Read in the third zone, which has seen none of it, without the first.
    let without = compared(&bed, "r3n2");
    std::thread::sleep(Duration::from_secs(5));
    bed.runs("heal", &["r1"]);
    let output = program.wait_with_output().unwrap();
    let told = said(&output);
    eprintln!("rounds, errors, longest: {told}");
    let mut words = told.split_whitespace();
    let mut number = || words.next().unwrap().parse::<f64>().unwrap();
    let (rounds, errors, longest) = (number(), number(), number());
    assert!(rounds > 30.0 && errors == 0.0, "{told}");
    assert!(longest < 20.0, "{told}");

    until("the zone has what it missed", || {
        code(&bed.shell("r2n1", &format!("{zonal} zone fail-back 1"))) == 0
    });
    let back = compared(&bed, "r1n2");
    assert_eq!(back as f64, rounds);
    assert!(without > 5 && without <= back, "{without} of {back}");
    let text = format!("{zonal} fsck --json >/dev/null; echo $?");
    assert_eq!(bed.shells("r2n1", &text).trim(), "0");
}
