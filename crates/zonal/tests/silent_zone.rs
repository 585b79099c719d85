//! A zone whose servers stand still, or are gone, holds up neither the listing of the root nor `df`
//! nor `zonal status`. All is well again when the zone is back.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

mod cell;

use cell::{Cell, code, kill, lives, said, signal, zonal};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

/// An answer comes within a second. A busy machine gets three; a request's deadline is ten.
const SOON: Duration = Duration::from_secs(3);
/// How long a zone that is back may go unnoticed; a busy machine gets as long again.
const BACK: Duration = Duration::from_secs(10);
/// Processes of the zone that is silenced.
const FAR: [&str; 2] = ["meta2", "storage2-1"];

/// A mounted cell of two zones, with a first-level directory in each, and two more in the second.
struct MountedCell {
    cell: Cell,
    /// Processes that stand still.
    stopped: Vec<u32>,
}

fn timed(command: &mut Command) -> (Output, Duration) {
    let since = Instant::now();
    let output = command.output().unwrap();
    (output, since.elapsed())
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
}

impl MountedCell {
    fn up(name: &str) -> Option<Self> {
        let mut device = fs::OpenOptions::new();
        if device.read(true).write(true).open("/dev/fuse").is_err()
            || !rustix::process::geteuid().is_root()
        {
            eprintln!("SKIPPED: no mount without root and /dev/fuse");
            return None;
        }
        let scratch = Scratch::new(name);
        let mounted = Self {
            cell: Cell { scratch },
            stopped: Vec::new(),
        };
        let mut up = zonal();
        up.args(["up", "--zones", "2", "--storage-nodes", "1", "--no-key"]);
        up.args(["--capacity", "1 GiB", "--dir"]);
        done(up.arg(mounted.cell.dir()));
        fs::create_dir(mounted.path()).unwrap();
        let mut mount = zonal();
        mount.args(["mount", "--zone", "1", "--cell"]);
        done(mount.arg(mounted.cell.dir()).arg(mounted.path()));
        for (dir, zone) in [("near", "1"), ("far", "2"), ("far-2", "2"), ("far-3", "2")] {
            let mut mkdir = zonal();
            done(
                mkdir
                    .args(["mkdir", "--zone", zone])
                    .arg(mounted.path().join(dir)),
            );
        }
        fs::write(mounted.path().join("near/file"), [7; 100_000]).unwrap();
        fs::write(mounted.path().join("far/file"), [7; 100_000]).unwrap();
        Some(mounted)
    }

    fn path(&self) -> PathBuf {
        self.cell.dir().join("mount")
    }

    fn stop(&mut self) {
        for node in FAR {
            let pid = self.cell.pid(node);
            signal(pid, "STOP");
            self.stopped.push(pid);
        }
    }

    fn go_on(&mut self) {
        for pid in self.stopped.drain(..) {
            signal(pid, "CONT");
        }
    }

    /// `ls` of the root.
    fn ls(&self, flag: &str) -> (Output, Duration) {
        timed(Command::new("ls").arg(flag).arg(self.path()))
    }

    fn blocks(&self) -> u64 {
        rustix::fs::statvfs(self.path()).unwrap().f_blocks
    }

    fn status(&self) -> (Output, Duration) {
        let mut status = zonal();
        timed(
            status
                .args(["status", "--json", "--cell"])
                .arg(self.cell.dir()),
        )
    }

    /// The root's listing, `df` and status answer soon, and say what they miss.
    fn answers_soon(&self, blocks: u64) {
        for round in 0..3 {
            let (output, took) = self.ls("-1");
            assert!(took < SOON, "ls, round {round}: {took:?}");
            assert_eq!(said(&output), "far\nfar-2\nfar-3\nnear\n");
            let (output, took) = self.ls("-l");
            assert!(took < SOON, "ls -l, round {round}: {took:?}");
            for name in ["far", "far-2", "far-3", "near"] {
                assert!(said(&output).contains(name), "{}", said(&output));
            }
            let since = Instant::now();
            assert_eq!(self.blocks(), blocks, "the last figures count");
            let took = since.elapsed();
            assert!(took < SOON, "df, round {round}: {took:?}");
        }
        let (output, took) = self.status();
        assert!(took < SOON, "status: {took:?}");
        assert_eq!(code(&output), 1, "{}", said(&output));
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        for zone in status["zones"].as_array().unwrap() {
            for node in zone["nodes"].as_array().unwrap() {
                assert_eq!(node["answers"], zone["id"] == 1, "{node}");
            }
        }
    }

    /// All is well, soon, and without another mount.
    fn is_well(&self) {
        let until = Instant::now() + BACK;
        loop {
            let (output, _took) = self.ls("-l");
            if code(&output) == 0 {
                break;
            }
            assert!(Instant::now() < until, "{}", said(&output));
            std::thread::sleep(Duration::from_millis(100));
        }
        let bytes = fs::read(self.path().join("far/file")).unwrap();
        assert_eq!(bytes, [7; 100_000]);
        fs::write(self.path().join("far/after"), [8; 10]).unwrap();
    }
}

impl Drop for MountedCell {
    fn drop(&mut self) {
        self.go_on();
        let gone = zonal()
            .args(["umount", "--force"])
            .arg(self.path())
            .output();
        if let Err(error) = gone {
            eprintln!("umount: {error}");
        }
    }
}

/// The kernel's names and attributes of the second zone expire when their leases end.
fn wait_until_unknown(mounted: &MountedCell) {
    let until = Instant::now() + BACK * 2;
    loop {
        let (output, took) = mounted.ls("-l");
        assert!(took < SOON, "{took:?}");
        if code(&output) != 0 {
            return;
        }
        assert!(Instant::now() < until, "no stat of the silent zone fails");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn a_zone_that_stands_still_holds_up_no_listing_of_the_root() {
    let Some(mut mounted) = MountedCell::up("silent-zone") else {
        return;
    };
    let blocks = mounted.blocks();
    mounted.is_well();
    mounted.stop();
    mounted.answers_soon(blocks);
    wait_until_unknown(&mounted);
    mounted.answers_soon(blocks);
    let mut status = zonal();
    let status = status.args(["status", "--cell"]).arg(mounted.cell.dir());
    let (output, _took) = timed(status);
    let text = said(&output);
    assert!(text.contains("no answer in zone 2"), "{text}");
    let near = fs::read(mounted.path().join("near/file")).unwrap();
    assert_eq!(near, [7; 100_000]);
    // An open in the zone waits for it, also while listings know that it is silent.
    let far = mounted.path().join("far/waits");
    let writer = std::thread::spawn(move || fs::write(far, [9; 10]));
    std::thread::sleep(Duration::from_millis(1_500));
    assert!(!writer.is_finished(), "it has not failed with the listing");
    mounted.go_on();
    writer.join().unwrap().unwrap();
    mounted.is_well();
}

#[test]
fn a_zone_that_is_gone_holds_up_no_listing_of_the_root() {
    let Some(mounted) = MountedCell::up("gone-zone") else {
        return;
    };
    let blocks = mounted.blocks();
    mounted.is_well();
    for node in FAR {
        let pid = mounted.cell.pid(node);
        assert!(lives(pid));
        kill(pid, "KILL");
    }
    mounted.answers_soon(blocks);
    wait_until_unknown(&mounted);
    mounted.answers_soon(blocks);
    let mut up = zonal();
    done(up.args(["up", "--no-key", "--dir"]).arg(mounted.cell.dir()));
    mounted.is_well();
}
