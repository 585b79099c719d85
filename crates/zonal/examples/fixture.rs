//! Makes the fixture of a version, once a release: `cargo xtask fixture vX.Y.Z` builds the program
//! and starts this.
//!
//! A fixture is one file below `crates/zonal-disk/testdata`. It holds the stores of a small cell
//! whose servers were killed, a backup, and exported objects. `tests/upgrade.rs` and
//! `crates/zonal-disk/tests/fixtures.rs` read it in all later versions.
#![allow(
    clippy::unwrap_used,
    reason = "ends where something is not as it should be"
)]

#[path = "../tests/cell/mod.rs"]
mod cell;
#[path = "../tests/fixture/mod.rs"]
mod fixture;
#[path = "../../zonal-disk/tests/common/pack.rs"]
mod pack;

use cell::{Cell, NODES, code, kill, said, zonal};
use fixture::{User, check, fill, fill_late, packed_in};
use std::fs;
use std::process::ExitCode;
use zonal_native::block_on;
use zonal_testkit::Scratch;

/// Largest fixture in bytes, since it stays in the repository for ever.
const BYTES_MAX: usize = 200 << 10;

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command prints its result"
)]
fn main() -> ExitCode {
    let version = std::env::args().nth(1).unwrap_or_default();
    match make(&version) {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("error: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the fixture unless there is one of this version.
fn make(version: &str) -> Result<String, String> {
    let is_version = version
        .strip_prefix('v')
        .is_some_and(|numbers| numbers.split('.').all(|part| part.parse::<u32>().is_ok()));
    if !is_version {
        return Err("usage: cargo xtask fixture vX.Y.Z".to_owned());
    }
    let path = packed_in(version);
    if path.exists() {
        return Err(format!(
            "{} is there: fixtures never change",
            path.display()
        ));
    }
    let packed = packed(&made());
    assert!(packed.len() < BYTES_MAX, "{} bytes", packed.len());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, &packed).unwrap();
    Ok(format!("{} bytes in {}", packed.len(), path.display()))
}

/// Makes a cell with the content of a fixture, and kills its servers.
fn made() -> Cell {
    let cell = Cell {
        scratch: Scratch::new("fixture"),
    };
    let shape = "--no-key --zones 1 --storage-nodes 1 --segment";
    let mut command = zonal();
    command.arg("up").arg("--dir").arg(cell.dir());
    command
        .args(shape.split(' '))
        .args(["1 MiB", "--capacity", "64 MiB"]);
    let up = command.output().unwrap();
    assert_eq!(code(&up), 0, "{}", said(&up));
    let user = User::of(&cell);
    fill(&user);
    block_on(user.0.begin().close()).unwrap();
    for (command, to) in [
        ("meta backup", "backup"),
        ("target export --target 1", "objects"),
    ] {
        let mut made = zonal();
        made.args(command.split(' '))
            .arg("--to")
            .arg(cell.dir().join(to));
        let made = made.arg("--cell").arg(cell.dir()).output().unwrap();
        assert_eq!(code(&made), 0, "{}", said(&made));
    }
    // Moves everything so far into indexes and segments; later writes stay in logs.
    assert_eq!(code(&cell.down()), 0);
    assert_eq!(code(&cell.up_again()), 0);
    let user = User::of(&cell);
    fill_late(&user);
    check(&user);
    for node in NODES {
        kill(cell.pid(node), "KILL");
    }
    cell
}

/// Packs the cell into one file, without logs and pid files of its processes.
fn packed(cell: &Cell) -> Vec<u8> {
    pack::pack(cell.dir(), |path| {
        let name = path.file_name().unwrap();
        let is_output = name == "pid" || (name == "log" && path.components().count() == 2);
        !is_output && name != "lock" && !path.starts_with("mounts")
    })
}
