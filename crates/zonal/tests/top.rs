//! `zonal top`: the document for scripts, silent servers, and the terminal that is given back.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stderr, reason = "what is skipped is said")]

mod cell;

use cell::{Cell, code, lives, said, zonal};
use serde_json::Value;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use zonal_native::{CellId, ConnectOptions, Identity, Native, NodeId, OpenOptions, Role};
use zonal_native::{User, ZoneId};
use zonal_testkit::Scratch;

fn two_zones(name: &str) -> Cell {
    Cell::with_shape(name, (2, 1), &["--no-key"])
}

fn document(cell: &Cell) -> Value {
    let mut top = zonal();
    top.args(["top", "--json", "--interval", "1", "--cell"]);
    let output = top.arg(cell.dir()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn rates_show_who_moves_bytes_where_and_how_long_it_takes() {
    let cell = two_zones("top-rates");
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let connect = |zone| {
        let options = ConnectOptions::new(ZoneId(zone));
        Native::connect(&manager, identity.clone(), options).unwrap()
    };
    let (here, there) = (connect(1), connect(2));
    here.mkdir(&User::root(), "/busy", 0o755).unwrap();
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        // A client of zone 2 writes to zone 1.
        scope.spawn(|| {
            let options = OpenOptions::new().write(true).create(0o644);
            let file = there.open(&User::root(), "/busy/f", options).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                file.pwrite(0, &[7; 1 << 20]).unwrap();
                file.fsync().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            file.close().unwrap();
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        let seen = loop {
            let seen = document(&cell);
            let is_busy = |entry: &&Value| entry["path"] == "/busy";
            let directories = seen["directories"].as_array().unwrap();
            if directories.iter().any(|entry| is_busy(&entry)) || Instant::now() > deadline {
                break seen;
            }
        };
        is_over.store(true, Ordering::Relaxed);
        seen
    });
    let rate = |value: &Value| value.as_u64().unwrap();
    let written = |client: u16, target: u16| {
        let traffic = seen["traffic"].as_array().unwrap().iter();
        let mut of = traffic
            .filter(|entry| entry["client_zone"] == client && entry["target_zone"] == target);
        of.next()
            .map_or(0, |entry| rate(&entry["written_bytes_per_second"]))
    };
    assert!(written(2, 1) > 0, "{seen:#}");
    assert_eq!(
        (written(1, 1), written(1, 2), written(2, 2)),
        (0, 0, 0),
        "{seen:#}"
    );
    let directories = seen["directories"].as_array().unwrap();
    let busy = directories.iter().find(|entry| entry["path"] == "/busy");
    let busy = busy.unwrap_or_else(|| panic!("{seen:#}"));
    assert!(rate(&busy["written_cross_zone_bytes_per_second"]) > 0);
    assert_eq!(rate(&busy["written_in_zone_bytes_per_second"]), 0);
    let operations = seen["operations"].as_array().unwrap().iter();
    let mut writes = operations.filter(|entry| entry["service"] == "storage");
    assert!(writes.any(|entry| rate(&entry["mean_us"]) > 0), "{seen:#}");
    for native in [here, there] {
        native.close().unwrap();
    }
}

/// A stopped process, which goes on when dropped.
struct Stopped(u32);

impl Stopped {
    fn signal(pid: u32, signal: &str) {
        let mut kill = Command::new("kill");
        let sent = kill.arg(format!("-{signal}")).arg(pid.to_string()).status();
        assert!(sent.unwrap().success());
    }

    fn new(pid: u32) -> Self {
        Self::signal(pid, "STOP");
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        Self::signal(self.0, "CONT");
    }
}

#[test]
fn a_silent_server_is_shown_as_silent_beside_the_others() {
    let cell = two_zones("top-silent");
    let is_silent = |seen: &Value| {
        let nodes = seen["nodes"].as_array().unwrap().iter();
        let states = nodes.map(|node| node["state"].as_str().unwrap().to_owned());
        states.filter(|state| state == "silent").count()
    };
    assert_eq!(is_silent(&document(&cell)), 0);
    let stopped = Stopped::new(cell.pid("storage1-1"));
    let seen = document(&cell);
    assert!(is_silent(&seen) >= 1, "{seen:#}");
    let zones = seen["zones"].as_array().unwrap();
    assert!(zones[0]["nodes_well"].as_u64() < zones[0]["nodes"].as_u64());
    drop(stopped);
}

#[test]
fn without_a_terminal_it_names_the_way_for_scripts() {
    let cell = Cell {
        scratch: Scratch::new("top-pipe"),
    };
    let mut top = zonal();
    let output = top.arg("top").arg("--cell").arg(cell.dir());
    let output = output.stdin(Stdio::null()).output().unwrap();
    assert_eq!(code(&output), 2, "{}", said(&output));
    let said = said(&output);
    assert!(said.contains("standard output is no terminal"), "{said}");
    assert!(said.contains("Hint: --json"), "{said}");
    for interval in ["0", "61", "x"] {
        let mut top = zonal();
        let output = top.args(["top", "--json", "--interval", interval]).output();
        assert_eq!(code(&output.unwrap()), 2, "{interval}");
    }
}

/// `zonal top` in a terminal of its own, which script(1) makes. Behind it a shell prints its exit
/// code and the state of the terminal.
struct InTerminal {
    script: Child,
    output: Receiver<Vec<u8>>,
    text: String,
}

impl InTerminal {
    fn start(cell: &Cell) -> Self {
        let zonal = zonal().get_program().to_string_lossy().into_owned();
        let dir = cell.dir().display();
        // The inner shell's number stays that of the program which takes its place.
        let inner = format!("echo pid=$$; exec {zonal} top --interval 1 --cell {dir}");
        let outer = format!("stty rows 24 cols 100; sh -c '{inner}'; echo code=$?=; stty -a");
        let mut script = Command::new("script");
        script.args(["-qec", &outer, "/dev/null"]);
        script.env("TERM", "xterm").env("SHELL", "/bin/sh");
        let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut script = script.spawn().unwrap();
        let mut stdout = script.stdout.take().unwrap();
        let (sender, output) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(bytes @ 1..) = stdout.read(&mut buffer)
                && sender.send(buffer[..bytes].to_vec()).is_ok()
            {}
        });
        Self {
            script,
            output,
            text: String::new(),
        }
    }

    /// Waits until the text appears.
    fn wait_for(&mut self, wanted: &str) {
        while !self.text.contains(wanted) {
            let bytes = self.output.recv_timeout(Duration::from_secs(60));
            let bytes = bytes.unwrap_or_else(|_| panic!("{wanted} does not come: {}", self.text));
            self.text.push_str(&String::from_utf8_lossy(&bytes));
        }
    }

    fn press(&mut self, keys: &str) {
        let input = self.script.stdin.as_mut().unwrap();
        input.write_all(keys.as_bytes()).unwrap();
    }

    fn pid(&self) -> u32 {
        let (_, rest) = self.text.split_once("pid=").unwrap();
        let digits = rest.split(|letter: char| !letter.is_ascii_digit());
        digits.into_iter().next().unwrap().parse().unwrap()
    }

    /// The end: the screen and the terminal are as before.
    fn ends_as_before(mut self) {
        self.wait_for("code=0=");
        self.wait_for(" echo ");
        let (_, behind) = self.text.split_once("code=0=").unwrap();
        let words: Vec<&str> = behind.split([' ', ';', '\r', '\n']).collect();
        for word in ["icanon", "isig"] {
            assert!(words.contains(&word), "no {word}: {behind}");
        }
        let at = |code: &str| {
            self.text
                .find(code)
                .unwrap_or_else(|| panic!("no {code:?}"))
        };
        assert!(at("\x1b[?1049h") < at("\x1b[?1049l"), "{:?}", self.text);
        assert!(at("\x1b[?25l") < at("\x1b[?25h"), "{:?}", self.text);
        drop(self.script.stdin.take());
        let status = self.script.wait();
        assert!(status.unwrap().success());
    }
}

/// Said visibly where the tools are missing.
fn has_script() -> bool {
    let tools = ["script", "stty"].into_iter();
    let mut tools = tools.map(|tool| Command::new(tool).arg("--version").output());
    let has = tools.all(|output| output.is_ok_and(|output| output.status.success()));
    if !has {
        eprintln!("SKIPPED: zonal top in a terminal: no script(1) or stty(1)");
    }
    has
}

#[test]
fn the_terminal_ends_as_before_after_q_and_after_a_signal() {
    if !has_script() {
        return;
    }
    let cell = two_zones("top-terminal");
    let mut view = InTerminal::start(&cell);
    view.wait_for("HEALTH");
    view.press("\t");
    // Words that no earlier frame has: only changed letters are written.
    view.wait_for("FROM");
    view.press("p");
    view.wait_for("PAUSED");
    view.press("q");
    view.ends_as_before();

    for signal in ["TERM", "HUP", "INT"] {
        let mut view = InTerminal::start(&cell);
        view.wait_for("HEALTH");
        Stopped::signal(view.pid(), signal);
        view.ends_as_before();
    }

    // The terminal itself goes away.
    let mut view = InTerminal::start(&cell);
    view.wait_for("HEALTH");
    let pid = view.pid();
    drop(view);
    let deadline = Instant::now() + Duration::from_secs(60);
    while lives(pid) {
        assert!(Instant::now() < deadline, "it outlives its terminal");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for InTerminal {
    fn drop(&mut self) {
        // After a failure it would stay.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
