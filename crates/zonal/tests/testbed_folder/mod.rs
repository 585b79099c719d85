//! A testbed for tests: in a folder of its own, removed when dropped.
#![allow(dead_code, reason = "each test file uses a part of it")]

use crate::cell::{code, said};
use crate::testbed_rights;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

/// Said visibly where this machine cannot have a testbed.
pub fn is_skipped() -> bool {
    static MISSING: LazyLock<Option<&str>> = LazyLock::new(testbed_rights::missing);
    if let Some(why) = *MISSING {
        eprintln!("SKIPPED: no testbed here: {why}");
    }
    MISSING.is_some()
}

/// A testbed in a folder of its own, removed when dropped.
pub struct Testbed {
    pub scratch: Scratch,
}

impl Testbed {
    pub fn new(name: &str) -> Self {
        Self {
            scratch: Scratch::new(name),
        }
    }

    pub fn dir(&self) -> PathBuf {
        self.scratch.join("bed")
    }

    pub fn command(&self, word: &str) -> Command {
        // No command may hang the tests.
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60", env!("CARGO_BIN_EXE_zonal"), "testbed"]);
        command.arg(word).arg("--dir").arg(self.dir());
        command.env_remove("ZONAL_TESTBED").env_remove("ZONAL_CELL");
        command
    }

    pub fn run(&self, word: &str, arguments: &[&str]) -> Output {
        self.command(word).args(arguments).output().unwrap()
    }

    pub fn runs(&self, word: &str, arguments: &[&str]) -> String {
        let output = self.run(word, arguments);
        assert_eq!(code(&output), 0, "{word} {arguments:?}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a shell's command in a node.
    pub fn shell(&self, node: &str, text: &str) -> Output {
        self.run("exec", &[node, "--", "sh", "-c", text])
    }

    pub fn shells(&self, node: &str, text: &str) -> String {
        let output = self.shell(node, text);
        assert_eq!(code(&output), 0, "{node}, {text}: {}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The log of a node's mount.
    pub fn mount_log(&self, node: &str) -> String {
        let log = self.dir().join("cell").join(format!("{node}.mount.log"));
        fs::read_to_string(log).unwrap()
    }

    pub fn status(&self) -> Value {
        let output = self.run("status", &["--json"]);
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Bytes of each link, up and down.
    pub fn bytes(&self) -> BTreeMap<String, (u64, u64)> {
        let status = self.status();
        let links = status["links"].as_array().unwrap().iter();
        let number = |link: &Value, key: &str| link[key].as_u64().unwrap();
        links
            .map(|link| {
                let name = link["name"].as_str().unwrap().to_owned();
                (name, (number(link, "up_bytes"), number(link, "down_bytes")))
            })
            .collect()
    }

    pub fn pid(&self, node: &str, process: &str) -> u32 {
        let status = self.status();
        let mut nodes = status["nodes"].as_array().unwrap().iter();
        let node = nodes.find(|found| found["name"] == node).unwrap();
        u32::try_from(node[process].as_u64().unwrap()).unwrap()
    }

    /// Whether the servers of all nodes answer, asked in a node.
    pub fn is_well(&self, node: &str) -> bool {
        let zonal = env!("CARGO_BIN_EXE_zonal");
        self.run("exec", &[node, "--", zonal, "status"])
            .status
            .success()
    }

    /// Fails if anything of the testbed is on this machine.
    pub fn assert_gone(&self) {
        assert!(!self.dir().exists(), "the folder is left");
        let dir = self.dir().display().to_string();
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(&dir), "{mounts}");
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            assert!(!line.contains(&dir), "a process is left: {line}");
        }
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.run("down", &[]);
    }
}

/// Waits until something holds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
