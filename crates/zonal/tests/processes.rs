//! Real processes of a small cell: start, join, restart, refusals, noise on the ports, the end.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, NODES, code, kill, lives, said, zonal};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;
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
    // A second `up` leaves what runs alone; this cell was made without a key.
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
fn several_that_make_one_cell_at_once_make_one() {
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
fn another_shape_of_a_cell_that_is_there_is_refused_and_nothing_started() {
    let cell = Cell::up("shape");
    cell.down();
    let up = |more: &[&str]| {
        let mut command = zonal();
        command.args(["up", "--dir"]).arg(cell.dir()).args(more);
        command.output().unwrap()
    };
    for other in [
        &["--zones", "5"][..],
        &["--storage-nodes", "2"],
        &["--zones", "1", "--storage-nodes", "3"],
        &["--zones", "2", "--storage-nodes", "1"],
    ] {
        let output = up(other);
        let text = said(&output);
        assert_eq!(code(&output), 5, "{other:?}: {text}");
        for part in ["zones: 1", "1 in zone 1", "nothing was changed", "Hint:"] {
            assert!(
                text.contains(part),
                "{other:?}: \"{text}\" lacks \"{part}\""
            );
        }
        assert_eq!(code(&cell.status()), 4, "nothing runs");
    }
    for same in [&[][..], &["--zones", "1"], &["--storage-nodes", "1"]] {
        let output = up(same);
        assert_eq!(code(&output), 0, "{same:?}: {}", said(&output));
    }
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

fn start(config: &Path, more: &[&str]) -> (i32, String) {
    let mut command = zonal();
    command.args(["server", "--config"]).arg(config).args(more);
    let output = command.output().unwrap();
    (code(&output), said(&output))
}

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .map(|entries| {
            entries
                .map(|entry| entry.unwrap().path().display().to_string())
                .collect()
        })
        .unwrap_or_default();
    names.sort();
    names
}

#[test]
fn refusals_have_their_codes_and_touch_nothing() {
    let cell = Cell::up("refusals");
    let config = cell.config("storage1-1");
    // Its store is open in another process.
    let (code, text) = start(&config, &[]);
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("in use by another process") && text.contains("Hint:"),
        "{text}"
    );

    let scratch = Scratch::new("copies");
    let text = fs::read_to_string(&config).unwrap();
    let variant = |name: &str, from: &str, to: &str| {
        assert!(text.contains(from), "{from}");
        let folder = scratch.join(name);
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("node.toml");
        let text = text.replacen(from, to, 1);
        fs::write(&path, text.split("[admin]").next().unwrap()).unwrap();
        (folder, path)
    };
    let address = cell.address("storage1-1", false).to_string();
    let free = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();

    // Not formatted.
    let (folder, path) = variant("empty", &address, &free);
    let (code, text) = start(&path, &[]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("--format"), "{text}");
    assert_eq!(listing(&folder).len(), 1, "{:?}", listing(&folder));

    // A folder with something else in it.
    let foreign = folder.join("target");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("thesis.txt"), "dear").unwrap();
    let (code, text) = start(&path, &["--format"]);
    assert_eq!(code, 5, "{text}");
    assert!(
        text.contains("not a store") && text.contains("Hint:"),
        "{text}"
    );
    assert_eq!(
        listing(&foreign),
        [foreign.join("thesis.txt").display().to_string()]
    );

    // Another target's number, another cell, both over the store of the running one.
    let target = cell.dir().join("storage1-1").join("target");
    let dir = format!(
        "listen = \"{free}\"\ndir = \"{}\"",
        target.parent().unwrap().display()
    );
    let listen = format!("listen = \"{address}\"");
    for (name, from, to) in [
        ("number", "target = 1", "target = 9"),
        ("cell", "cell = \"", "cell = \"ffff"),
    ] {
        let (_, path) = variant(name, &listen, &dir);
        let mut text = fs::read_to_string(&path).unwrap().replacen(from, to, 1);
        if name == "cell" {
            let start = text.find("ffff").unwrap();
            text.replace_range(start + 32..start + 36, "");
        }
        fs::write(&path, text).unwrap();
        let before = fs::read(target.join("identity")).unwrap();
        let (code, text) = start(&path, &["--format"]);
        assert_eq!(code, 5, "{name}: {text}");
        assert_eq!(fs::read(target.join("identity")).unwrap(), before);
    }

    // A target that is formatted anew under a number that the manager knows.
    let (_, path) = variant("impostor", &address, &free);
    let (code, text) = start(&path, &["--format"]);
    assert_eq!(code, 5, "{text}");
    assert!(text.contains("known with another store"), "{text}");
}

#[test]
fn a_port_in_use_is_told() {
    let cell = Cell::up("port");
    cell.down();
    let held = TcpListener::bind(cell.address("storage1-1", false)).unwrap();
    let (code, text) = start(&cell.config("storage1-1"), &[]);
    assert_eq!(code, 6, "{text}");
    assert!(text.contains("another process listens there"), "{text}");
    let output = cell.up_again();
    assert_eq!(cell::code(&output), 6, "{}", said(&output));
    assert!(
        said(&output).contains("storage1-1 ended at once"),
        "{}",
        said(&output)
    );
    drop(held);
    assert_eq!(cell::code(&cell.up_again()), 0);
}

fn of_dir(command: &str, dir: &Path) -> (i32, String) {
    let output = zonal().arg(command).arg("--dir").arg(dir).output().unwrap();
    (code(&output), said(&output))
}

#[test]
fn servers_of_a_folder_that_was_moved_are_found_and_told() {
    let cell = Cell::up("moved");
    let pids: Vec<u32> = NODES.iter().map(|node| cell.pid(node)).collect();
    let dir = cell.dir().to_path_buf();
    let moved = dir.with_extension("moved");
    fs::rename(&dir, &moved).unwrap();
    let (code, text) = of_dir("up", &moved);
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("manager runs") && text.contains("was moved") && text.contains("Hint:"),
        "{text}"
    );
    assert!(pids.iter().all(|pid| lives(*pid)));
    let (code, text) = of_dir("down", &moved);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("stopped 3 of 3 servers"), "{text}");
    assert!(!pids.iter().any(|pid| lives(*pid)), "{text}");
    let (code, text) = of_dir("up", &moved);
    assert_eq!(code, 0, "{text}");
    assert_eq!(of_dir("down", &moved).0, 0);
    fs::rename(&moved, &dir).unwrap();
}

#[test]
fn servers_that_were_not_started_here_are_not_said_to_be_stopped() {
    let cell = Cell::up("strangers");
    let pids: Vec<u32> = NODES.iter().map(|node| cell.pid(node)).collect();
    // What says which process is whose is lost.
    let file = cell.dir().join("storage1-1").join("pid");
    let kept = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    let (code, text) = of_dir("up", cell.dir());
    assert_eq!(code, 6, "{text}");
    assert!(
        text.contains("another process answers as storage1-1"),
        "{text}"
    );
    assert!(!file.exists(), "it was started nevertheless");
    let (code, text) = of_dir("down", cell.dir());
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("stopped 2 of 3 servers") && text.contains("storage1-1 at"),
        "{text}"
    );
    assert_eq!(
        pids.iter().map(|pid| lives(*pid)).collect::<Vec<_>>(),
        [false, false, true]
    );
    fs::write(&file, kept).unwrap();
    assert_eq!(of_dir("down", cell.dir()).0, 0);
    assert!(!lives(pids[2]));
}

/// A megabyte that looks random and is the same each time.
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
                // The server may close before it has all.
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
        assert!(!cell.log(node).contains("panicked"), "{}", cell.log(node));
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
    // Shown only where a request failed.
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
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while code(&cell.status()) != 0 {
        assert!(std::time::Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = std::process::Command::new("kill")
        .arg(child.id().to_string())
        .status();
    assert!(status.unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_log_that_cannot_be_written_ends_nobody() {
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
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while code(&cell.status()) != 0 {
        assert!(std::time::Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_new_cell_has_a_key_and_refuses_those_without() {
    let scratch = Scratch::new("key");
    let dir = scratch.to_str().unwrap();
    let up = ["up", "--dir", dir, "--zones", "1", "--storage-nodes", "1"];
    let output = zonal().args(up).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(!said(&output).contains("has no key"), "{}", said(&output));
    // Ended also where an assertion fails.
    let cell = Cell { scratch };
    assert_eq!(code(&cell.status()), 0, "{}", said(&cell.status()));
    let key = cell.dir().join("cell.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&key).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    for node in NODES {
        let folder = fs::metadata(cell.dir().join(node)).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&folder.permissions());
        assert_eq!(mode & 0o777, 0o700, "{node}");
    }
    let address = cell.address("manager", false).to_string();
    let ask = |more: &[&str]| {
        let output = zonal()
            .args(["status", "--cell", &address])
            .args(more)
            .output()
            .unwrap();
        (code(&output), said(&output))
    };
    let (code, text) = ask(&[]);
    assert!(code == 4 && text.contains("--key-file"), "{code}: {text}");
    let (code, text) = ask(&["--key-file", key.to_str().unwrap()]);
    assert_eq!(code, 0, "{text}");
    let wrong = cell.dir().join("wrong.key");
    fs::write(&wrong, [7; 32]).unwrap();
    let (code, text) = ask(&["--key-file", wrong.to_str().unwrap()]);
    assert_eq!(code, 4, "{text}");
    // A node's folder may be a link to another disk: its key is still beside where the path says.
    assert_eq!(cell::code(&cell.down()), 0);
    let disk = Scratch::new("key-disk");
    let (there, here) = (disk.join("storage"), cell.dir().join("storage1-1"));
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .arg(&here)
        .arg(&there)
        .status();
    assert!(copied.unwrap().success());
    fs::remove_dir_all(&here).unwrap();
    std::os::unix::fs::symlink(&there, &here).unwrap();
    let output = cell.up_again();
    assert_eq!(cell::code(&output), 0, "{}", said(&output));
    assert_eq!(cell::code(&cell.status()), 0, "{}", said(&cell.status()));
    cell.down();
}
