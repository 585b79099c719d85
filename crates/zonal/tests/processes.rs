//! Real processes of a small cell: start, join, restart, noise on the ports, metrics, stop.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, NODES, code, kill, lives, said, zonal};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use zonal_testkit::Scratch;

#[test]
fn a_cell_comes_up_and_goes_down() {
    let cell = Cell::up("up-down");
    let status = cell.status();
    assert_eq!(code(&status), 0, "{}", said(&status));
    let pids: Vec<u32> = NODES.iter().map(|node| cell.pid(node)).collect();
    for (node, pid) in NODES.iter().zip(&pids) {
        let cmdline = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        let config = cell.config(node);
        assert!(cmdline.contains(config.to_str().unwrap()), "{cmdline}");
        assert!(cmdline.contains("--roles"), "{cmdline}");
    }
    // A second `up` leaves running servers alone; this cell was made without a key.
    let output = cell.up_again();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(said(&output).contains("has no key"), "{}", said(&output));
    assert!(!cell.dir().join("cell.key").exists());
    assert_eq!(
        pids,
        NODES.iter().map(|node| cell.pid(node)).collect::<Vec<_>>()
    );
    let output = cell.down();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        said(&output).contains("stopped 3 of 3 servers"),
        "{}",
        said(&output)
    );
    assert!(pids.iter().all(|pid| !lives(*pid)));
    for node in NODES {
        let log = cell.log(node);
        assert!(
            log.contains("stopped") && !log.contains("ERROR"),
            "{node}:\n{log}"
        );
    }
    let output = cell.status();
    assert_eq!(code(&output), 4, "{}", said(&output));
    assert!(said(&output).contains("Hint:"));
}

#[test]
fn concurrent_ups_make_one_cell() {
    let scratch = Scratch::new("at-once");
    let start = || {
        let mut command = zonal();
        command.args(["up", "--zones", "1", "--storage-nodes", "1", "--dir"]);
        command.arg(scratch.join("cell"));
        command.stdout(std::process::Stdio::piped());
        command.stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let children: Vec<_> = (0..4).map(|_| start()).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
    }
    let mut command = zonal();
    command.args(["down", "--dir"]).arg(scratch.join("cell"));
    let output = command.output().unwrap();
    assert!(
        said(&output).contains("stopped 3 of 3 servers"),
        "{}",
        said(&output)
    );
}

#[test]
fn an_interrupted_up_is_repeated_and_foreign_files_stay() {
    let scratch = Scratch::new("unfinished");
    let dir = scratch.join("cell");
    fs::create_dir_all(dir.join("manager/manager")).unwrap();
    fs::write(dir.join("cell.key"), "half").unwrap();
    fs::write(dir.join("unfinished"), "manager\nmeta1\n").unwrap();
    fs::write(dir.join("unfinished.new"), "man").unwrap();
    fs::write(dir.join("cell.toml.0123456789abcdef.new"), "cel").unwrap();
    let up = || {
        let mut command = zonal();
        command.args(["up", "--zones", "1", "--storage-nodes", "1", "--dir"]);
        command.arg(&dir).output().unwrap()
    };
    fs::write(dir.join("mine"), "kept").unwrap();
    let output = up();
    assert_eq!(code(&output), 5, "{}", said(&output));
    assert!(dir.join("manager").exists() && dir.join("mine").exists());
    fs::remove_file(dir.join("mine")).unwrap();
    let output = up();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(!dir.join("unfinished").exists() && !dir.join("unfinished.new").exists());
    assert!(!dir.join("cell.toml.0123456789abcdef.new").exists());
    let mut command = zonal();
    let output = command.args(["down", "--dir"]).arg(&dir).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
}

#[test]
fn a_server_without_a_recording_ends() {
    let cell = Cell::up("record");
    let pid = cell.pid("storage1-1");
    kill(pid, "KILL");
    let file = cell.dir().join("storage1-1/pid");
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    let output = cell.up_again();
    assert_eq!(code(&output), 1, "{}", said(&output));
    fs::remove_dir(&file).unwrap();
    let output = cell.up_again();
    assert_eq!(code(&output), 0, "nobody has the port: {}", said(&output));
}

#[test]
fn a_server_without_its_pid_file_is_found_all_the_same() {
    let cell = Cell::up("no-pid-file");
    let pid = cell.pid("meta1");
    // As if the disk had been full when it was written.
    fs::remove_file(cell.dir().join("meta1/pid")).unwrap();
    let output = cell.up_again();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(lives(pid) && !cell.dir().join("meta1/pid").exists());
    let output = cell.down();
    assert!(
        said(&output).contains("stopped 3 of 3"),
        "{}",
        said(&output)
    );
    assert!(!lives(pid));
}

#[test]
fn killed_servers_come_back_with_the_same_map() {
    let cell = Cell::up("kill");
    let map = || {
        let mut command = zonal();
        command
            .args(["zone-map", "show", "--json", "--cell"])
            .arg(cell.dir());
        let output = command.output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
        said(&output)
    };
    let before = map();
    for node in ["storage1-1", "meta1"] {
        kill(cell.pid(node), "KILL");
        let output = cell.status();
        assert_eq!(code(&output), 1, "{}", said(&output));
        assert!(
            said(&output).contains("\"healthy\": false"),
            "{}",
            said(&output)
        );
    }
    assert_eq!(code(&cell.up_again()), 0);
    assert_eq!(code(&cell.status()), 0);
    for node in NODES {
        kill(cell.pid(node), "KILL");
    }
    assert_eq!(code(&cell.up_again()), 0);
    assert_eq!(map(), before);
}

/// A megabyte of reproducible pseudo-random bytes.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33).to_le_bytes()[0]
    };
    (0..1 << 20).map(|_| next()).collect()
}

#[test]
fn noise_on_every_port_changes_nothing() {
    let cell = Cell::up("noise");
    let stable = |text: String| {
        text.lines()
            .filter(|line| !line.contains("free_bytes"))
            .collect::<Vec<_>>()
            .join("\n")
    };
    let before = stable(said(&cell.status()));
    for (seed, node) in NODES.iter().enumerate() {
        for last in [false, true] {
            let address = cell.address(node, last);
            for prefix in [&b""[..], b"ZNL1", b"GET /metrics HTTP/1.1\r\n"] {
                let mut stream = TcpStream::connect(address).unwrap();
                stream
                    .set_write_timeout(Some(Duration::from_secs(10)))
                    .unwrap();
                // The server may close before it received everything.
                let _ = stream
                    .write_all(prefix)
                    .and_then(|()| stream.write_all(&noise(seed as u64)));
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
    let after = cell.status();
    assert_eq!(code(&after), 0, "{}", said(&after));
    assert_eq!(stable(said(&after)), before);
    for node in NODES {
        assert!(lives(cell.pid(node)));
        let log = cell.log(node);
        assert!(!log.contains("panicked"), "{log}");
        // A thread of its own logs each hostile connection with its peer and error.
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let log = cell.log(node);
            let told = log.lines().filter(|line| {
                line.contains("connection closed: ")
                    && line.contains("127.0.0.1:")
                    && line.contains(" broke the protocol: ")
            });
            if told.count() >= 3 {
                break;
            }
            assert!(Instant::now() < end, "{node}: {log}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn metrics_and_status_answer() {
    let cell = Cell::up("metrics");
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/metrics.md");
    let page = fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: BTreeSet<&str> = rows
        .filter_map(|row| row.split('`').next())
        .filter(|name| name.starts_with("zonal_") || name.starts_with("process_"))
        .collect();
    let mut scraped = BTreeSet::new();
    for node in NODES {
        let get = |path: &str| {
            let mut stream = TcpStream::connect(cell.address(node, true)).unwrap();
            write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
            let mut text = String::new();
            stream.read_to_string(&mut text).unwrap();
            text
        };
        let metrics = get("/metrics");
        assert!(metrics.contains("zonal_map_version "), "{metrics}");
        let (_, body) = metrics.split_once("\r\n\r\n").unwrap();
        let lines = body.lines().filter(|line| !line.starts_with('#'));
        scraped.extend(lines.map(|line| line.split(['{', ' ']).next().unwrap().to_owned()));
        assert!(get("/health").ends_with("ok\n"));
        assert!(
            get("/status").contains("\"healthy\": true"),
            "{}",
            get("/status")
        );
    }
    // Present only after a failed request.
    scraped.insert("zonal_request_failures_total".to_owned());
    let scraped: BTreeSet<&str> = scraped.iter().map(String::as_str).collect();
    assert_eq!(
        scraped, documented,
        "what is scraped and what docs/metrics.md lists"
    );
}

#[test]
fn one_process_may_serve_several_nodes() {
    let cell = Cell::up("several");
    cell.down();
    let mut command = zonal();
    command.arg("server");
    for node in NODES {
        command.arg("--config").arg(cell.config(node));
    }
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while code(&cell.status()) != 0 {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = std::process::Command::new("kill")
        .arg(child.id().to_string())
        .status();
    assert!(status.unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_full_log_disk_stops_no_server() {
    let cell = Cell::up("log-full");
    cell.down();
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let mut command = zonal();
    command.arg("server");
    for node in NODES {
        command.arg("--config").arg(cell.config(node));
    }
    let mut child = command.stderr(full).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while code(&cell.status()) != 0 {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
}
