//! Records that name a foreign process: `zonal down` neither ends it nor waits for it.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, copy_program, lives, said, zonal};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

/// A user id that nobody else has.
const USER: u32 = 64_311;

/// A process that is killed at the end of the test.
struct Stranger(Child);

impl Stranger {
    fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let stranger = Self(command.spawn().unwrap());
        let end = Instant::now() + Duration::from_secs(10);
        // The kernel shows its command line once it runs.
        while !lives(stranger.0.id()) {
            assert!(Instant::now() < end);
        }
        stranger
    }

    /// Its start time, as in a record.
    fn started(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let fields = text.rsplit_once(") ").unwrap().1;
        fields.split(' ').nth(19).unwrap().parse().unwrap()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Another program with any command line.
fn shell(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "sleep 600 & wait", "sh"])
        .args(arguments);
    command
}

fn record(dir: &Path, name: &str, pid: u32, started: u64) {
    let mounts = dir.join("mounts");
    fs::create_dir_all(&mounts).unwrap();
    fs::set_permissions(&mounts, Permissions::from_mode(0o700)).unwrap();
    let text = format!("path = \"/nowhere/{name}\"\npid = {pid}\nstarted = {started}\nzone = 1\n");
    fs::write(mounts.join(format!("{name}.toml")), text).unwrap();
}

#[test]
fn a_record_of_a_mount_that_names_another_process_ends_nobody() {
    let cell = Cell::up("forged-record");
    // Matched by its command line, as in records of the first versions, and by its start time.
    let old = Stranger::start(&mut shell(&["mount", "/nowhere/old"]));
    let new = Stranger::start(&mut shell(&["mount", "--foreground", "/nowhere/new"]));
    record(cell.dir(), "old", old.0.id(), 0);
    record(cell.dir(), "new", new.0.id(), new.started());
    record(cell.dir(), "init", 1, 0);
    let begun = Instant::now();
    let output = cell.down();
    assert!(lives(old.0.id()) && lives(new.0.id()), "{}", said(&output));
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "it waited for them"
    );
}

#[test]
fn a_pid_file_that_names_another_process_ends_nobody() {
    let cell = Cell::up("forged-pid");
    let output = cell.down();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let config = cell.config("meta1");
    let config = config.to_str().unwrap();
    let stranger = Stranger::start(&mut shell(&["server", "--config", config]));
    fs::write(
        cell.dir().join("meta1/pid"),
        format!("{}\n", stranger.0.id()),
    )
    .unwrap();
    let output = cell.down();
    assert!(lives(stranger.0.id()), "{}", said(&output));
    assert_eq!(code(&output), 0, "{}", said(&output));
    // `zonal up` does not take it for the server either.
    let output = cell.up_again();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(lives(stranger.0.id()));
}

#[test]
fn a_process_of_another_user_is_not_taken_for_a_server() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can be two users");
        return;
    }
    let cell = Cell::up("forged-user");
    let output = cell.down();
    assert_eq!(code(&output), 0, "{}", said(&output));
    // A program of our name, with the command line of a server.
    let scratch = Scratch::new("forged-user-program");
    let program = scratch.join("zonal");
    copy_program(fs::canonicalize("/bin/sh").unwrap(), &program);
    fs::write(scratch.join("server"), "sleep 600 & wait\n").unwrap();
    let mut command = Command::new(&program);
    command
        .args(["server", "--config"])
        .arg(cell.config("meta1"));
    command.current_dir(&*scratch).uid(USER).gid(USER);
    let stranger = Stranger::start(&mut command);
    fs::write(
        cell.dir().join("meta1/pid"),
        format!("{}\n", stranger.0.id()),
    )
    .unwrap();
    let output = cell.down();
    assert!(lives(stranger.0.id()), "{}", said(&output));
    assert!(
        said(&output).contains("stopped 0 of 3"),
        "{}",
        said(&output)
    );
}

#[test]
fn umount_ends_no_other_program() {
    let stranger = Stranger::start(&mut shell(&["mount", "--foreground", "/nowhere/at-all"]));
    let begun = Instant::now();
    let mut command = zonal();
    let output = command.args(["umount", "--force", "/nowhere/at-all"]);
    let output = output.output().unwrap();
    assert!(lives(stranger.0.id()), "{}", said(&output));
    assert_eq!(code(&output), 7, "{}", said(&output));
    assert!(begun.elapsed() < Duration::from_secs(15));
}

#[test]
fn umount_of_a_cell_that_is_mounted_names_its_mount_points_and_ends_none() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: mounting as another user needs fusermount3");
        return;
    }
    let cell = Cell::up("umount-cell");
    let scratch = Scratch::new("umount-cell-points");
    let point = scratch.join("point");
    fs::create_dir(&point).unwrap();
    let run = |words: &[&str], path: &Path| {
        let mut command = zonal();
        command.args(words).arg(path).output().unwrap()
    };
    let dir = cell.dir().to_str().unwrap();
    let output = run(&["mount", "--cell", dir], &point);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let begun = Instant::now();
    for words in [&["umount"][..], &["umount", "--force"]] {
        let output = run(words, cell.dir());
        assert_eq!(code(&output), 2, "{}", said(&output));
        let hint = format!("`zonal umount {}`", point.display());
        assert!(said(&output).contains(&hint), "{}", said(&output));
        let output = run(words, Path::new("127.0.0.1:7100"));
        assert_eq!(code(&output), 2, "{}", said(&output));
    }
    assert!(begun.elapsed() < Duration::from_secs(15));
    fs::write(point.join("f"), "kept").unwrap_or_else(|error| panic!("the mount ended: {error}"));
    let output = run(&["umount"], &point);
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn servers_are_stopped_by_another_build_and_after_an_upgrade() {
    let scratch = Scratch::new("upgrade");
    let (program, dir) = (scratch.join("zonal"), scratch.join("cell"));
    let install = || {
        let new = scratch.join("zonal.new");
        copy_program(zonal().get_program(), &new);
        fs::rename(&new, &program).unwrap();
    };
    let _stopped = Stopped(&dir);
    let run = |program: &Path, command: &str| {
        let mut line = Command::new(program);
        line.arg(command).arg("--dir").arg(&dir);
        line.env_remove("ZONAL_CELL").output().unwrap()
    };
    install();
    let up = Command::new(&program)
        .args(["up", "--zones", "1", "--storage-nodes", "1", "--dir"])
        .arg(&dir)
        .output()
        .unwrap();
    assert_eq!(code(&up), 0, "{}", said(&up));
    // The running file was deleted; the same program is also elsewhere.
    install();
    let output = run(&program, "down");
    assert!(
        said(&output).contains("stopped 3 of 3"),
        "{}",
        said(&output)
    );
    let up = run(&program, "up");
    assert_eq!(code(&up), 0, "{}", said(&up));
    let output = run(Path::new(zonal().get_program()), "down");
    assert!(
        said(&output).contains("stopped 3 of 3"),
        "{}",
        said(&output)
    );
}

#[test]
fn no_process_of_ours_leaves_a_core_dump() {
    let scratch = Scratch::new("core-dump");
    let (program, dir) = (zonal().get_program().to_owned(), scratch.join("cell"));
    let _stopped = Stopped(&dir);
    // As if the operator wants core dumps.
    let script = "ulimit -c unlimited 2>/dev/null; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&program);
    command.args(["up", "--zones", "1", "--storage-nodes", "1", "--dir"]);
    let output = command.arg(&dir).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    for node in cell::NODES {
        let pid = fs::read_to_string(dir.join(node).join("pid")).unwrap();
        let limits = fs::read_to_string(format!("/proc/{}/limits", pid.trim())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core"));
        let words: Vec<&str> = line.unwrap().split_whitespace().skip(4).collect();
        assert!(
            words.starts_with(&["1", "1"]) || words.starts_with(&["0", "0"]),
            "{limits}"
        );
    }
    let down = zonal().args(["down", "--dir"]).arg(&dir).output().unwrap();
    assert_eq!(code(&down), 0, "{}", said(&down));
    // A server that crashes.
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&program);
    command
        .args(["server", "--config"])
        .arg(dir.join("manager/node.toml"));
    command.current_dir(&*scratch).stderr(Stdio::null());
    let mut server = command.spawn().unwrap();
    let runs = |server: &Child| {
        let line = fs::read(format!("/proc/{}/cmdline", server.id())).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"server")
    };
    let end = Instant::now() + Duration::from_secs(20);
    while !runs(&server) || zonal_is_silent(&dir) {
        assert!(Instant::now() < end && server.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    cell::kill(server.id(), "ABRT");
    let status = server.wait().unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert!(
        status.signal().is_some() && !status.core_dumped(),
        "{status}"
    );
}

/// Stops the servers of a folder at the end of the test, even if an assertion fails.
struct Stopped<'a>(&'a Path);

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        let _ = zonal().args(["down", "--dir"]).arg(self.0).output();
    }
}

/// Whether no manager answers.
fn zonal_is_silent(dir: &Path) -> bool {
    let mut command = zonal();
    let output = command.args(["zone-map", "show", "--cell"]).arg(dir);
    code(&output.output().unwrap()) != 0
}
