//! A zone without the root's shard goes on with its own directories by absolute paths. The
//! manager's process stands still, or is gone. All is well again when it is back.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

mod cell;

use cell::{Cell, code, kill, said, signal, zonal};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

/// The first operation waits five seconds for the root's shard; a request's deadline is ten.
const SOON: Duration = Duration::from_secs(9);
/// Longer than any lease, and than the deadline of the servers' own requests.
const SILENCE: Duration = Duration::from_secs(14);
/// How long the manager that is back may go unnoticed.
const BACK: Duration = Duration::from_secs(20);

/// A cell of two zones with a mount in each, and a first-level directory in each zone.
struct TwoMounts {
    cell: Cell,
    stopped: Option<u32>,
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert_eq!(code(&output), 0, "{command:?}: {}", said(&output));
}

/// Runs a shell's script in a process of its own, with `$1` as a path.
fn sh(script: &str, path: &Path) -> (Output, Duration) {
    let since = Instant::now();
    let mut shell = Command::new("sh");
    let output = shell.args(["-c", script, "sh"]).arg(path).output().unwrap();
    (output, since.elapsed())
}

/// Operations that must go on in a zone's own directory.
const OWN: [(&str, &str); 8] = [
    ("read", "test \"$(cat \"$1/file\")\" = text"),
    ("list", "ls -l \"$1\" | grep -q file"),
    (
        "create and fsync",
        "dd if=/dev/zero of=\"$1/new\" bs=64k count=4 conv=fsync 2>&1",
    ),
    ("rename", "mv \"$1/new\" \"$1/newer\""),
    ("lock", "flock \"$1/newer\" true"),
    ("mkdir and rmdir", "mkdir \"$1/sub\" && rmdir \"$1/sub\""),
    ("attributes", "chmod 600 \"$1/newer\" && stat \"$1/newer\""),
    ("unlink and statfs", "rm \"$1/newer\" && df \"$1\""),
];

impl TwoMounts {
    fn up(name: &str) -> Option<Self> {
        let mut device = fs::OpenOptions::new();
        if device.read(true).write(true).open("/dev/fuse").is_err()
            || !rustix::process::geteuid().is_root()
        {
            eprintln!("SKIPPED: no mount without root and /dev/fuse");
            return None;
        }
        let scratch = Scratch::new(name);
        let mounts = Self {
            cell: Cell { scratch },
            stopped: None,
        };
        let mut up = zonal();
        up.args(["up", "--zones", "2", "--storage-nodes", "1", "--no-key"]);
        up.args(["--capacity", "1 GiB", "--dir"]);
        done(up.arg(mounts.cell.dir()));
        for zone in [1, 2] {
            let path = mounts.mount(zone);
            fs::create_dir(&path).unwrap();
            let mut mount = zonal();
            mount.args(["mount", "--zone", &zone.to_string(), "--cell"]);
            done(mount.arg(mounts.cell.dir()).arg(&path));
            fs::create_dir(mounts.own(zone)).unwrap();
            fs::write(mounts.own(zone).join("file"), "text\n").unwrap();
        }
        fs::write(mounts.mount(1).join("file-of-the-root"), "text\n").unwrap();
        Some(mounts)
    }

    fn mount(&self, zone: u16) -> PathBuf {
        self.cell.dir().join(format!("mount{zone}"))
    }

    /// The directory of a zone, by the mount there.
    fn own(&self, zone: u16) -> PathBuf {
        self.mount(zone).join(format!("of-{zone}"))
    }

    /// Waits until the servers of both zones know both first-level directories.
    fn wait_for_mirrors(&self) {
        let until = Instant::now() + BACK;
        let knows =
            |line: &str| line.starts_with("zonal_shard_root_mirror_names") && line.ends_with(" 2");
        for node in ["meta1", "meta2"] {
            while !self.metrics(node).lines().any(knows) {
                assert!(Instant::now() < until, "{node} has no mirror");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }

    fn metrics(&self, node: &str) -> String {
        let mut stream = TcpStream::connect(self.cell.address(node, true)).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page
    }

    fn zones_go_on(&self) {
        let until = Instant::now() + SILENCE;
        while Instant::now() < until {
            for zone in [1, 2] {
                for (what, script) in OWN {
                    let (output, took) = sh(script, &self.own(zone));
                    assert_eq!(code(&output), 0, "{what}, zone {zone}: {}", said(&output));
                    assert!(took < SOON, "{what}, zone {zone}: {took:?}");
                }
                let (output, took) = sh("ls \"$1\"", &self.mount(zone));
                assert!(took < SOON, "the root's listing, zone {zone}: {took:?}");
                let listed = said(&output);
                assert!(
                    listed.contains("of-1") && listed.contains("of-2"),
                    "{listed}"
                );
            }
            std::thread::sleep(Duration::from_millis(300));
        }
    }

    /// The root can be changed again, and both mounts see the change.
    fn is_well(&self) {
        let until = Instant::now() + BACK;
        let path = self.mount(1).join("after");
        while let Err(error) = fs::create_dir(&path) {
            assert!(Instant::now() < until, "{error}");
            std::thread::sleep(Duration::from_millis(100));
        }
        for zone in [1, 2] {
            while let Err(error) = fs::metadata(self.mount(zone).join("after")) {
                assert!(Instant::now() < until, "zone {zone}: {error}");
                std::thread::sleep(Duration::from_millis(100));
            }
            let text = fs::read_to_string(self.mount(zone).join("file-of-the-root"));
            assert_eq!(text.unwrap(), "text\n");
        }
        fs::remove_dir(&path).unwrap();
        let gone = fs::metadata(self.mount(2).join("after")).unwrap_err();
        assert_eq!(gone.kind(), std::io::ErrorKind::NotFound);
    }
}

impl Drop for TwoMounts {
    fn drop(&mut self) {
        if let Some(pid) = self.stopped.take() {
            signal(pid, "CONT");
        }
        for zone in [1, 2] {
            let mut umount = zonal();
            let gone = umount.args(["umount", "--force"]).arg(self.mount(zone));
            if let Err(error) = gone.output() {
                eprintln!("umount: {error}");
            }
        }
    }
}

#[test]
fn zones_go_on_while_the_manager_stands_still() {
    let Some(mut mounts) = TwoMounts::up("silent-root") else {
        return;
    };
    mounts.wait_for_mirrors();
    let pid = mounts.cell.pid("manager");
    signal(pid, "STOP");
    mounts.stopped = Some(pid);
    mounts.zones_go_on();
    // A change of the root waits for its shard, and so does a file that lies there.
    let inside = mounts.mount(1).join("in-the-root");
    let writer = std::thread::spawn(move || fs::create_dir(inside));
    std::thread::sleep(Duration::from_millis(500));
    assert!(
        !writer.is_finished(),
        "nothing but the root's shard may make it"
    );
    mounts.stopped = None;
    signal(pid, "CONT");
    let _made_or_late = writer.join().unwrap();
    mounts.is_well();
}

#[test]
fn zones_go_on_while_the_manager_is_gone() {
    let Some(mounts) = TwoMounts::up("gone-root") else {
        return;
    };
    mounts.wait_for_mirrors();
    kill(mounts.cell.pid("manager"), "KILL");
    mounts.zones_go_on();
    let mut up = zonal();
    done(up.args(["up", "--no-key", "--dir"]).arg(mounts.cell.dir()));
    mounts.is_well();
}
