//! Admin pages of real servers: their token and text format; numbers of threads as configured.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, NODES, code, kill, said, write_secret, zonal};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

const TOKEN: &str = "a-token-of-a-test";

fn get(address: SocketAddr, path: &str, headers: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// Starts a server that must refuse to run.
fn refused(cell: &Cell, node: &str) -> (i32, String) {
    let mut command = zonal();
    let output = command
        .args(["server", "--config"])
        .arg(cell.config(node))
        .output()
        .unwrap();
    (code(&output), said(&output))
}

#[test]
fn with_a_token_file_the_pages_are_for_those_who_send_the_token() {
    let cell = Cell::up("token");
    let node = "storage1-1";
    let admin = cell.address(node, true);
    assert!(get(admin, "/health", "").starts_with("HTTP/1.0 200"));
    assert_eq!(code(&cell.down()), 0);
    let config = fs::read_to_string(cell.config(node)).unwrap();
    let listen = format!("[admin]\nlisten = \"{admin}\"\n");
    assert!(config.contains(&listen), "{config}");
    let with = config.replace(
        &listen,
        &format!("{listen}token_file = \"../admin.token\"\n"),
    );
    fs::write(cell.config(node), &with).unwrap();
    let file = cell.dir().join("admin.token");

    let (status, text) = refused(&cell, node);
    assert!(
        status == 3 && text.contains("admin.token"),
        "{status} {text}"
    );
    assert!(text.contains("Hint: make one with"), "{text}");
    for (bytes, why) in [
        (&b" 15 bytes here. \n"[..], "allowed are 16 to 1024"),
        (b"0123456789\xff\xfe0123456789", "other characters"),
        (b"0123456789 with a blank", "other characters"),
    ] {
        write_secret(&file, bytes);
        let (status, text) = refused(&cell, node);
        assert!(status == 3 && text.contains(why), "{status} {text}");
    }

    let token = TOKEN;
    fs::write(&file, format!("  {token}\n\n")).unwrap();
    let output = cell.up_again();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert_eq!(code(&cell.status()), 0, "{}", said(&cell.status()));
    for (path, shows) in [
        ("/metrics", "zonal_map_version "),
        ("/status", "\"healthy\": true"),
        ("/health", "\r\n\r\nok\n"),
    ] {
        for headers in ["", "Authorization: Bearer a-token-of-a-tesT\r\n"] {
            let text = get(admin, path, headers);
            assert!(text.starts_with("HTTP/1.0 401"), "{path}: {text}");
            assert!(text.contains("WWW-Authenticate: Bearer"), "{text}");
            assert!(!text.contains(shows), "{path}: {text}");
        }
        let text = get(admin, path, &format!("Authorization: Bearer {token}\r\n"));
        assert!(text.starts_with("HTTP/1.0 200"), "{path}: {text}");
        assert!(text.contains(shows), "{path}: {text}");
    }
    let log = cell.log(node);
    assert!(log.contains("without the token is refused") && !log.contains(token));

    // Outside loopback the pages require a token.
    let open = with
        .replace(&admin.to_string(), &format!("0.0.0.0:{}", admin.port()))
        .replace("[zone]", "key_file = \"any.key\"\n[zone]");
    for (config, expected) in [(open.clone(), 0), (open.replace("token_file", "#"), 3)] {
        let path = cell.dir().join("open.toml");
        fs::write(&path, config).unwrap();
        let checked = zonal().args(["config", "check"]).arg(&path).output();
        let checked = checked.unwrap();
        assert_eq!(code(&checked), expected, "{}", said(&checked));
        let told = said(&checked).contains("Hint: set `admin.token_file`");
        assert_eq!(told, expected == 3, "{}", said(&checked));
    }
}

/// A sample: name, labels except `le`, `le`, value.
type Sample = (String, String, Option<String>, f64);

fn sample(line: &str) -> Sample {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let end = line.find(|c| !is_name(c)).unwrap();
    let (name, rest) = line.split_at(end);
    assert!(!name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()));
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => rest.split_once("} ").unwrap(),
        None => ("", rest.strip_prefix(' ').unwrap()),
    };
    let (mut others, mut le) = (Vec::new(), None);
    for label in labels.split_terminator(',') {
        let (key, text) = label.split_once('=').unwrap();
        let text = text.strip_prefix('"').and_then(|t| t.strip_suffix('"'));
        let text = text.unwrap_or_else(|| panic!("{line}"));
        assert!(
            key.chars().all(is_name) && !text.contains(['"', '\\']),
            "{line}"
        );
        if key == "le" {
            le = Some(text.to_owned());
        } else {
            others.push(label);
        }
    }
    let value = value.parse().unwrap_or_else(|_| panic!("{line}"));
    (name.to_owned(), others.join(","), le, value)
}

/// The metric family of a sample: samples of a histogram have its name and a suffix.
fn family<'a>(name: &'a str, types: &BTreeMap<&str, &str>) -> &'a str {
    let endings = ["_bucket", "_sum", "_count"];
    let stems = endings
        .iter()
        .filter_map(|ending| name.strip_suffix(ending));
    let mut of = stems.filter(|stem| types.get(stem) == Some(&"histogram"));
    of.next().unwrap_or(name)
}

/// Checks a page against Prometheus' text format; returns the number of samples.
fn check_page(page: &str) -> usize {
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    let (mut ended, mut current) = (BTreeSet::new(), String::new());
    let mut seen = BTreeSet::new();
    let mut buckets: BTreeMap<String, Vec<(f64, f64)>> = BTreeMap::new();
    let mut counts: BTreeMap<String, f64> = BTreeMap::new();
    assert!(page.ends_with('\n'));
    for line in page.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let ["#", "TYPE", name, kind] = words[..] {
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert!(types.insert(name, kind).is_none(), "twice: {line}");
            continue;
        }
        if line.starts_with('#') {
            assert!(line.starts_with("# HELP "), "{line}");
            continue;
        }
        let (name, labels, le, value) = sample(line);
        let of = family(&name, &types);
        assert!(types.contains_key(of), "a sample before its TYPE: {line}");
        if current != of {
            assert!(ended.insert(of.to_owned()), "not in one group: {line}");
            of.clone_into(&mut current);
        }
        assert!(
            seen.insert((name.clone(), labels.clone(), le.clone())),
            "twice: {line}"
        );
        let series = format!("{of}{{{labels}}}");
        match le {
            Some(le) => {
                let bound = if le == "+Inf" {
                    f64::INFINITY
                } else {
                    le.parse().unwrap()
                };
                buckets.entry(series).or_default().push((bound, value));
            }
            None if name == format!("{of}_count") => drop(counts.insert(series, value)),
            None => {}
        }
    }
    for (series, found) in &buckets {
        let rises = found
            .windows(2)
            .all(|two| two[0].0 < two[1].0 && two[0].1 <= two[1].1);
        assert!(rises, "{series}: {found:?}");
        let last = found.last().unwrap();
        assert_eq!(last.0, f64::INFINITY, "{series}: {found:?}");
        assert_eq!(Some(&last.1), counts.get(series), "{series}: {found:?}");
    }
    assert_eq!(buckets.len(), counts.len());
    buckets.len()
}

#[test]
fn metrics_pages_are_valid_prometheus_text() {
    let cell = Cell::up("prometheus");
    // Sends each server a request.
    cell.status();
    let mut histograms = 0;
    for node in NODES {
        let page = get(cell.address(node, true), "/metrics", "");
        let (head, body) = page.split_once("\r\n\r\n").unwrap();
        assert!(head.contains("text/plain; version=0.0.4"), "{head}");
        histograms += check_page(body);
    }
    assert!(histograms >= 3, "{histograms} histograms");
}

/// The number of threads of a process with this name.
fn threads(pid: u32, name: &str) -> usize {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.filter(|found| found.trim_end() == name).count()
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "still not: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_has_no_more_threads_for_connections_than_its_config_says() {
    let cell = Cell::up("threads");
    let node = "storage1-1";
    assert_eq!(code(&cell.down()), 0);
    let config = fs::read_to_string(cell.config(node)).unwrap();
    assert!(!config.contains("[limits]"), "{config}");
    fs::write(
        cell.config(node),
        format!("{config}\n[limits]\nconnections = 5\n"),
    )
    .unwrap();
    assert_eq!(code(&cell.up_again()), 0);
    let pid = cell.pid(node);
    let address = cell.address(node, false);
    let page = || get(cell.address(node, true), "/metrics", "");
    let ended = || {
        let page = page();
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix("zonal_net_strangers_ended "));
        value.unwrap().parse::<usize>().unwrap()
    };
    // Silent strangers: each occupies a thread until a newer one displaces it.
    let strangers = zonal_net::STRANGERS_MAX;
    let streams: Vec<_> = (0..strangers + 100)
        .map(|_| TcpStream::connect(address).unwrap())
        .collect();
    wait_for("a hundred that had to go", || ended() >= 100);
    wait_for("the threads of the others alone", || {
        threads(pid, "connection") <= strangers + 10
    });
    // With no thread left for strangers, the cell would not answer now.
    assert_eq!(code(&cell.status()), 0, "{}", said(&cell.status()));
    assert!(page().contains("zonal_net_connections_max 5\n"));
    drop(streams);
    wait_for("the end of their threads", || {
        threads(pid, "connection") <= 5
    });
    assert_eq!(code(&cell.status()), 0, "{}", said(&cell.status()));
}

#[test]
fn bounds_of_memory_follow_the_config() {
    const MIB: u64 = 1 << 20;
    let cell = Cell::up("bounds");
    assert_eq!(code(&cell.down()), 0);
    let with = |node: &str, table: &str, keys: &str| {
        let config = fs::read_to_string(cell.config(node)).unwrap();
        assert!(config.contains(table), "{config}");
        let more = config.replacen(table, &format!("{table}\n{keys}"), 1);
        fs::write(cell.config(node), more).unwrap();
    };
    with("meta1", "[meta]", "overlay = \"2 MiB\"\ncache = \"3 MiB\"");
    with(
        "storage1-1",
        "[storage]",
        "overlay = \"5 MiB\"\ncache = \"6 MiB\"\npending = \"7 MiB\"",
    );
    assert_eq!(code(&cell.up_again()), 0);
    for (node, name, bound) in [
        ("meta1", "zonal_shard_overlay_bytes_max", 4 * 2 * MIB),
        ("meta1", "zonal_shard_index_cache_bytes_max", 3 * MIB),
        ("storage1-1", "zonal_target_overlay_bytes_max", 4 * 5 * MIB),
        ("storage1-1", "zonal_target_index_cache_bytes_max", 6 * MIB),
        ("storage1-1", "zonal_target_pending_bytes_max", 7 * MIB),
    ] {
        let page = get(cell.address(node, true), "/metrics", "");
        let of = |line: &&str| line.starts_with(name);
        let line = page.lines().find(of).unwrap_or_default();
        assert!(line.ends_with(&format!(" {bound}")), "{node}: {line:?}");
    }
}

#[test]
fn admin_pages_answer_while_a_server_waits_for_the_manager() {
    let cell = Cell::up("waits");
    assert_eq!(code(&cell.down()), 0);
    let node = "storage1-1";
    let mut command = zonal();
    command.args(["server", "--config"]).arg(cell.config(node));
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(cell.address(node, false)).is_err() {
        assert!(Instant::now() < end && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut turns = 0..20;
    let all = turns.all(|_| {
        std::thread::sleep(Duration::from_millis(10));
        let found = TcpStream::connect(cell.address(node, true));
        found.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
    });
    assert!(child.try_wait().unwrap().is_none(), "it has ended");
    kill(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
    assert!(all, "a connection that nobody answers");
}
