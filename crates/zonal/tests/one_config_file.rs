//! One node.toml with every role: one process and two nodes are a whole cell.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test ends where something is not as it should be, and says what it leaves out"
)]

mod cell;

use cell::{Cell, code, kill, lives, said, zonal};
use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as SocketAddrUnix, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

const PATIENCE: Duration = Duration::from_secs(20);

/// Finds a free port on loopback, below the ephemeral range, so that a killed server gets it back.
///
/// The socket reserves the port for its life: it has the name by which `zonal up` and other tests
/// reserve ports.
fn free_port() -> (u16, UnixDatagram) {
    let first = 10_000 + (std::process::id() % 20_000) as u16;
    let reserve = |port: u16| {
        let name = SocketAddrUnix::from_abstract_name(format!("zonal-port-{port}")).unwrap();
        let reserved = UnixDatagram::bind_addr(&name).ok()?;
        TcpListener::bind(("127.0.0.1", port)).ok()?;
        Some((port, reserved))
    };
    (first..32_000).find_map(reserve).unwrap()
}

/// Makes the authority, one credential for both nodes, and one for commands and mounts; returns the
/// latter's file.
fn make_keys(folder: &Path, cell: &str) -> PathBuf {
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
    };
    run(zonal()
        .args(["key", "init", "--cell-id", cell, "--to"])
        .arg(folder));
    let create = |to: &str, more: &[&str]| {
        let mut command = zonal();
        command.args(["key", "create", "--authority"]);
        command.arg(folder.join("authority.pem"));
        command.arg("--to").arg(folder.join(to));
        run(command.args(more));
        folder.join(to)
    };
    let roles = "manager,meta,storage";
    create(
        "node.key",
        &["--node", "1", "--node", "2", "--roles", roles],
    );
    create("admin.key", &["--admin", "tests"])
}

/// The sample config with every role, with its own folder and ports.
struct OneFile {
    scratch: Scratch,
    config: PathBuf,
    key: PathBuf,
    manager: String,
    server: Option<Child>,
    _reserved: Vec<UnixDatagram>,
}

impl OneFile {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new(name);
        let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/all.toml");
        let mut text = fs::read_to_string(sample).unwrap();
        let (ports, reserved): (Vec<u16>, Vec<UnixDatagram>) = (0..4).map(|_| free_port()).unzip();
        let written = [
            "10.1.0.10:7100",
            "10.1.0.10:7101",
            "127.0.0.1:7190",
            "127.0.0.1:7191",
        ];
        let id = format!("{:0>32x}", ports[0]);
        let own: Vec<String> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let changes = written
            .iter()
            .zip(&own)
            .map(|(from, to)| (*from, to.as_str()));
        for (from, to) in changes.chain([
            ("/var/lib/zonal", "stores"),
            ("/etc/zonal/node.key", "node.key"),
            ("1 TiB", "1 GiB"),
            ("00112233445566778899aabbccddeeff", &id),
        ]) {
            assert!(text.contains(from), "{from}");
            text = text.replace(from, to);
        }
        let config = scratch.join("all.toml");
        fs::write(&config, text).unwrap();
        let key = make_keys(&scratch, &id);
        Self {
            scratch,
            config,
            key,
            manager: own[0].clone(),
            server: None,
            _reserved: reserved,
        }
    }

    /// Runs a command with the config.
    fn with_config<S: AsRef<OsStr>>(&self, command: &[&str], more: &[S]) -> Output {
        let mut command_line = zonal();
        command_line.args(command).arg("--config").arg(&self.config);
        command_line.args(more).output().unwrap()
    }

    /// Runs a command on the running cell.
    fn asking<S: AsRef<OsStr>>(&self, command: &[&str], more: &[S]) -> Output {
        let mut command_line = zonal();
        command_line.args(command);
        command_line.args(["--cell", &self.manager, "--key-file"]);
        command_line.arg(&self.key).args(more).output().unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.scratch.join("log")).unwrap()
    }

    fn format(&self) {
        let output = self.with_config(&["server", "--format-only"], &[""; 0]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        for node in ["node 1 is formatted", "node 2 is formatted"] {
            assert!(said(&output).contains(node), "{}", said(&output));
        }
        for store in ["manager", "shard", "target"] {
            assert!(self.scratch.join("stores").join(store).is_dir(), "{store}");
        }
    }

    /// Starts the process and waits until both nodes serve.
    fn start(&mut self) {
        let log = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.scratch.join("log"));
        let mut command = zonal();
        command.args(["server", "--roles", "manager,storage,meta", "--config"]);
        command.arg(&self.config).stderr(log.unwrap());
        let server = self.server.insert(command.spawn().unwrap());
        let deadline = Instant::now() + PATIENCE;
        loop {
            assert!(server.try_wait().unwrap().is_none(), "the server has ended");
            let mut status = zonal();
            status.args(["status", "--json", "--cell", &self.manager]);
            let output = status.arg("--key-file").arg(&self.key).output().unwrap();
            let text = said(&output);
            // Until the second node has joined, the status shows only the first.
            if code(&output) == 0 && text.matches("\"error\": null").count() == 2 {
                assert!(text.contains("\"total_bytes\""), "{text}");
                return;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the process; returns whether it exited with 0.
    fn end(&mut self, signal: &str) -> bool {
        let mut server = self.server.take().unwrap();
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(server.id().to_string())
            .status();
        assert!(status.unwrap().success());
        server.wait().unwrap().success()
    }

    fn fsck(&self) {
        let output = self.with_config(&["fsck", "--json"], &[""; 0]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        assert!(said(&output).contains("\"found\":0"), "{}", said(&output));
    }
}

impl Drop for OneFile {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

/// A mount in the foreground, ended when dropped.
struct Mounted {
    path: PathBuf,
    process: Child,
}

impl Mounted {
    /// Mounts; prints a note and returns `None` if this machine cannot mount.
    fn new(cell: &OneFile) -> Option<Self> {
        let device = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/fuse");
        if let Err(error) = device {
            eprintln!("SKIPPED: /dev/fuse: {error}");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: mounting without fusermount3 needs root");
            return None;
        }
        let path = cell.scratch.join("mnt");
        fs::create_dir(&path).unwrap();
        let mut command = zonal();
        command.args(["mount", "--foreground", "--cell", &cell.manager]);
        command.arg("--key-file").arg(&cell.key).arg(&path);
        let log = fs::File::create(cell.scratch.join("mount.log")).unwrap();
        let mut mounted = Self {
            process: command.stderr(log).spawn().unwrap(),
            path,
        };
        let deadline = Instant::now() + PATIENCE;
        while !mounted.is_there() {
            assert!(mounted.process.try_wait().unwrap().is_none());
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
        Some(mounted)
    }

    /// The output of the mount and its state.
    fn log(&self) -> String {
        let log = self.path.with_file_name("mount.log");
        let text = fs::read_to_string(log).unwrap_or_default();
        format!("mounted: {}; the mount says: {text}", self.is_there())
    }

    fn is_there(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        table.contains(&format!(" {} ", self.path.display()))
    }

    fn unmount(mut self) {
        let output = zonal().arg("umount").arg(&self.path).output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_there() {
            let _ = zonal().args(["umount", "--force"]).arg(&self.path).output();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn one_config_file_runs_a_whole_cell() {
    let mut cell = OneFile::new("one-file");
    let output = cell.with_config(&["server"], &[""; 0]);
    assert_eq!(code(&output), 5, "not formatted: {}", said(&output));
    cell.format();
    cell.start();
    // The next start finds the state that the first one left.
    assert!(cell.end("TERM"), "{}", cell.log());
    cell.fsck();
    cell.start();
    let Some(mounted) = Mounted::new(&cell) else {
        assert!(!cell.end("KILL"));
        cell.start();
        assert!(cell.end("TERM"), "{}", cell.log());
        return;
    };
    let home = mounted.path.join("home");
    let output = zonal()
        .args(["mkdir", "--zone", "1"])
        .arg(&home)
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}\n{}", said(&output), mounted.log());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
    let durable = fs::File::create(home.join("before")).unwrap();
    fs::write(home.join("before"), &bytes).unwrap();
    durable.sync_all().unwrap();
    drop(durable);
    let output = zonal()
        .arg("locate")
        .arg(home.join("before"))
        .output()
        .unwrap();
    assert!(said(&output).contains("zone 1"), "{}", said(&output));

    // The mount works again when its servers are back.
    assert!(!cell.end("KILL"));
    cell.start();
    assert_eq!(fs::read(home.join("before")).unwrap(), bytes);
    fs::write(home.join("after"), &bytes).unwrap();
    let output = cell.with_config(&["fsck"], &[""; 0]);
    assert_eq!(code(&output), 0, "while it runs: {}", said(&output));
    mounted.unmount();
    assert!(cell.end("TERM"), "{}", cell.log());
    let log = cell.log();
    assert!(log.contains("stopped") && !log.contains("ERROR"), "{log}");
    cell.fsck();
    let output = cell.with_config(&["fsck", "--data", "--fresh"], &[""; 0]);
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn both_shards_of_one_config_file_are_restored_from_a_backup() {
    let mut cell = OneFile::new("one-file-backup");
    cell.format();
    cell.start();
    let backup = cell.scratch.join("backup");
    let output = cell.asking(&["meta", "backup"], &[OsStr::new("--to"), backup.as_ref()]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    let from = [OsStr::new("--from"), backup.as_ref(), OsStr::new("--force")];
    let output = cell.with_config(&["meta", "restore"], &from);
    assert_eq!(code(&output), 6, "while it runs: {}", said(&output));
    assert!(cell.end("TERM"), "{}", cell.log());
    let output = cell.with_config(&["meta", "restore"], &from);
    assert_eq!(code(&output), 0, "{}", said(&output));
    for store in ["manager.replaced-1", "shard.replaced-1"] {
        assert!(said(&output).contains(store), "{}", said(&output));
    }
    cell.start();
    assert!(cell.end("TERM"), "{}", cell.log());
    cell.fsck();
}

/// A cell of `zonal up` whose manager's config was edited to also serve the zone's shard.
#[test]
fn up_and_down_treat_a_config_of_two_nodes_as_one_server() {
    let cell = Cell::up("two-in-one");
    assert_eq!(code(&cell.down()), 0);
    let listen = cell.address("meta1", false);
    let config = cell.config("manager");
    let text = fs::read_to_string(&config).unwrap();
    let table = format!("\n[meta]\nnode = 2\nlisten = \"{listen}\"\n");
    fs::write(&config, text + &table).unwrap();
    let (from, to) = (
        cell.dir().join("meta1/shard"),
        cell.dir().join("manager/shard"),
    );
    fs::rename(from, to).unwrap();
    let file = cell.dir().join("cell.toml");
    let text = fs::read_to_string(&file).unwrap();
    let nodes: Vec<&str> = text
        .lines()
        .filter(|line| !line.contains("\"meta1\""))
        .collect();
    assert!(nodes.len() < text.lines().count(), "{text}");
    fs::write(&file, nodes.join("\n")).unwrap();

    for _ in 0..2 {
        let output = cell.up_again();
        assert_eq!(code(&output), 0, "{}", said(&output));
        let status = cell.status();
        assert_eq!(code(&status), 0, "{}", said(&status));
        assert_eq!(said(&status).matches("\"error\": null").count(), 3);
    }
    let pid = cell.pid("manager");
    let command_line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(command_line.contains("manager,meta"), "{command_line}");
    kill(pid, "KILL");
    assert_eq!(code(&cell.status()), 4, "the manager is gone");
    assert_eq!(code(&cell.up_again()), 0);
    let pid = cell.pid("manager");
    let output = cell.down();
    assert!(
        said(&output).contains("stopped 2 of 2 servers"),
        "{}",
        said(&output)
    );
    assert!(!lives(pid));
    let mut fsck = zonal();
    let output = fsck.args(["fsck", "--cell"]).arg(cell.dir()).output();
    assert_eq!(code(&output.unwrap()), 0);
}
