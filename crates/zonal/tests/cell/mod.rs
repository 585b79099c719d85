//! A cell of real processes for tests: made in a folder of its own, stopped when dropped.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

/// The program, as cargo built it for these tests; for an example in the folder above the
/// example's.
fn program() -> PathBuf {
    option_env!("CARGO_BIN_EXE_zonal").map_or_else(
        || {
            let example = std::env::current_exe().unwrap();
            example.ancestors().nth(2).unwrap().join("zonal")
        },
        PathBuf::from,
    )
}

pub fn zonal() -> Command {
    let mut command = Command::new(program());
    command
        .env_remove("ZONAL_CELL")
        .env_remove("ZONAL_KEY_FILE")
        .env_remove("ZONAL_LOG")
        .env_remove("ZONAL_SERVICE")
        .env_remove("ZONAL_TOKEN_FILE")
        .env_remove("ZONAL_RECORD");
    command
}

pub fn code(output: &Output) -> i32 {
    output.status.code().unwrap_or(-1)
}

pub fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A file that only its owner can read.
pub fn write_secret(path: &Path, bytes: impl AsRef<[u8]>) {
    use std::os::unix::fs::PermissionsExt;
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Copies a program that is to be run, in a child process. If this process wrote the copy, children
/// started meanwhile by other tests would inherit its descriptor. Running the copy would then fail
/// with "text file busy".
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to).status();
    assert!(copied.unwrap().success());
}

/// A cell of one zone and one target.
pub struct Cell {
    pub scratch: Scratch,
}

impl Cell {
    pub fn up(name: &str) -> Self {
        let cell = Self {
            scratch: Scratch::new(name),
        };
        let output = cell.up_again();
        assert_eq!(code(&output), 0, "{}", said(&output));
        cell
    }

    /// A cell whose servers and clients authenticate.
    pub fn with_key(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let cell = Self { scratch };
        let output = cell.brought_up(&[]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        cell
    }

    /// A cell of so many zones, with so many storage nodes each.
    pub fn with_shape(name: &str, shape: (u16, u16), options: &[&str]) -> Self {
        Self::made_by(zonal(), name, shape, options)
    }

    /// The same, by a command that runs the program.
    pub fn made_by(up: Command, name: &str, shape: (u16, u16), options: &[&str]) -> Self {
        let scratch = Scratch::new(name);
        let cell = Self { scratch };
        let output = cell.up_as(up, shape, options);
        assert_eq!(code(&output), 0, "{}", said(&output));
        cell
    }

    /// Brings up what is not running of a cell of this shape.
    pub fn up_as(
        &self,
        mut up: Command,
        (zones, storage_nodes): (u16, u16),
        options: &[&str],
    ) -> Output {
        up.args(["up", "--zones", &zones.to_string()]);
        up.args(["--storage-nodes", &storage_nodes.to_string()]);
        if !options.contains(&"--capacity") {
            up.args(["--capacity", "1 GiB"]);
        }
        up.args(options);
        up.arg("--dir").arg(self.dir()).output().unwrap()
    }

    pub fn dir(&self) -> &Path {
        &self.scratch
    }

    /// A command about this cell.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = zonal();
        command.args(words).arg("--cell").arg(self.dir());
        command
    }

    /// Runs a command about this cell, which must succeed; returns its output.
    pub fn runs(&self, words: &[&str]) -> String {
        let output = self.command(words).output().unwrap();
        assert_eq!(code(&output), 0, "{words:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    pub fn up_again(&self) -> Output {
        // Tests talk to its servers directly, without a key.
        self.brought_up(&["--no-key"])
    }

    fn brought_up(&self, more: &[&str]) -> Output {
        self.up_as(zonal(), (1, 1), more)
    }

    pub fn down(&self) -> Output {
        zonal()
            .arg("down")
            .arg("--dir")
            .arg(self.dir())
            .output()
            .unwrap()
    }

    pub fn status(&self) -> Output {
        zonal()
            .args(["status", "--json", "--cell"])
            .arg(self.dir())
            .output()
            .unwrap()
    }

    pub fn config(&self, node: &str) -> PathBuf {
        self.dir().join(node).join("node.toml")
    }

    /// The value behind `key = "` in a node's config; the last one.
    pub fn address(&self, node: &str, last: bool) -> SocketAddr {
        let text = fs::read_to_string(self.config(node)).unwrap();
        let mut found = text
            .lines()
            .filter_map(|line| line.strip_prefix("listen = \""));
        let line = if last {
            found.next_back()
        } else {
            found.next()
        };
        line.unwrap().trim_end_matches('"').parse().unwrap()
    }

    pub fn pid(&self, node: &str) -> u32 {
        let text = fs::read_to_string(self.dir().join(node).join("pid")).unwrap();
        text.trim().parse().unwrap()
    }

    pub fn log(&self, node: &str) -> String {
        fs::read_to_string(self.dir().join(node).join("log")).unwrap_or_default()
    }
}

pub const NODES: [&str; 3] = ["manager", "meta1", "storage1-1"];

impl Drop for Cell {
    fn drop(&mut self) {
        self.down();
    }
}

/// Whether the process lives, or holds ports and files still. A zombie whose threads are all gone
/// does not: its memory goes first, its files follow.
pub fn lives(pid: u32) -> bool {
    let Ok(text) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    let state = text
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    let threads = fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state != Some('Z') || threads > 1
}

/// Sends a signal, and does not wait for the process's end.
pub fn signal(pid: u32, name: &str) {
    let mut kill = Command::new("kill");
    let sent = kill.arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(sent.unwrap().success());
}

/// Sends a signal that ends the process, and waits until it has gone.
pub fn kill(pid: u32, name: &str) {
    signal(pid, name);
    let deadline = Instant::now() + Duration::from_secs(20);
    while lives(pid) {
        assert!(Instant::now() < deadline, "process {pid} outlives {name}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
