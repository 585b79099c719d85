//! `zonal place` on a cell of two zones: near the bytes, in every format, and what is refused.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;

use cell::{Cell, code, said, zonal};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Output;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use zonal_native::{
    CellId, ConnectOptions, Identity, Native, NodeId, OpenOptions, Role, User, ZoneId,
};

/// Brings up a cell of two zones with two storage nodes each.
fn bring_up(name: &str) -> Cell {
    Cell::with_shape(name, (2, 2), &["--no-key"])
}

/// Makes `/dir` homed in a zone, with a file of so many bytes and a directory that only root reads.
fn fill(cell: &Cell, zone: u16, dir: &str, bytes: usize) {
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let manager = cell.address("manager", false).to_string();
    let options = ConnectOptions::new(ZoneId(zone));
    let native = Native::connect(&manager, identity, options).unwrap();
    let root = User::root();
    native.mkdir(&root, dir, 0o755).unwrap();
    native.mkdir(&root, format!("{dir}/secret"), 0o700).unwrap();
    let options = OpenOptions::new().write(true).create(0o644);
    let file = native.open(&root, format!("{dir}/f"), options).unwrap();
    file.write(&vec![7; bytes]).unwrap();
    file.close().unwrap();
    native.close().unwrap();
}

fn place(cell: &Cell, words: &[&str]) -> Output {
    let mut command = zonal();
    command.arg("place").args(words);
    command.arg("--cell").arg(cell.dir()).output().unwrap()
}

fn answer(cell: &Cell, words: &[&str]) -> serde_json::Value {
    let output = place(cell, &[words, &["--json"]].concat());
    assert_eq!(code(&output), 0, "{}", said(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn refused(cell: &Cell, words: &[&str], number: i32, texts: &[&str]) {
    let output = place(cell, words);
    assert_eq!(code(&output), number, "{}", said(&output));
    for text in texts {
        assert!(said(&output).contains(text), "{text}: {}", said(&output));
    }
}

#[test]
fn a_job_is_placed_in_the_zone_of_its_bytes_or_told_why_not() {
    let cell = bring_up("place");
    fill(&cell, 1, "/one", 1 << 20);
    fill(&cell, 2, "/two", 3 << 20);

    for (path, zone) in [("/one/f", 1), ("/two/f", 2), ("/one", 1), ("/two", 2)] {
        let told = answer(&cell, &[path]);
        assert_eq!(told["zone"], zone, "{path}: {told}");
        assert_eq!(told["cost"], 0, "{path}: {told}");
        assert_eq!(told["nodes"].as_array().unwrap().len(), 1);
    }
    // From the root there is no common home: everything is walked.
    let told = answer(&cell, &["/"]);
    assert_eq!(
        (&told["zone"], &told["bytes"]["2"]),
        (&2.into(), &(3 << 20).into())
    );
    // Most of the bytes of both are in zone 2.
    let told = answer(&cell, &["-r", "-n", "2", "/one", "/two"]);
    assert_eq!(
        (&told["zone"], &told["cost"]),
        (&2.into(), &(1 << 20).into())
    );
    assert_eq!(told["elsewhere"][0]["cost"], 3 << 20);
    let nodes = told["nodes"].as_array().unwrap();
    assert!(
        nodes.len() == 2 && nodes[0]["id"] != nodes[1]["id"],
        "{told}"
    );
    let text = said(&place(&cell, &["/two/f"]));
    assert!(text.starts_with("zone 2 ("), "{text}");
    assert!(text.contains("holds 100 percent of the bytes"), "{text}");

    for (format, begins) in [
        ("hostfile", "127.0.0.1 slots=2\n"),
        (
            "rankfile",
            "rank 0=127.0.0.1 slot=0\nrank 1=127.0.0.1 slot=1\n",
        ),
        ("slurm-topology", "SwitchName="),
        ("slurm-hints", "#ZONAL zone="),
        ("k8s-affinity", "affinity:\n"),
        ("k8s-labels", "kubectl label node 127.0.0.1 "),
        ("yarn-topology", "127.0.0.1 /"),
        ("json", "{\n"),
    ] {
        let output = place(&cell, &["-n", "2", "/two/f", "--format", format]);
        assert_eq!(code(&output), 0, "{}", said(&output));
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with(begins), "{format}: {text}");
    }

    let told = answer(&cell, &["/t*/f", "/o[mn]e"]);
    assert_eq!(told["paths"], serde_json::json!(["/two/f", "/one"]));
    let told = answer(&cell, &["/*/f"]);
    assert_eq!(told["paths"], serde_json::json!(["/one/f", "/two/f"]));
    refused(&cell, &["/three*"], 7, &["no path matches /three*"]);
    refused(&cell, &["/one/f/*"], 7, &["no path matches"]);

    refused(&cell, &["/three"], 7, &["/three"]);
    refused(&cell, &["one"], 2, &["does not start with /", "Hint:"]);
    refused(
        &cell,
        &["-n", "3", "/one"],
        1,
        &["no zone has 3 nodes", "Hint:"],
    );
    refused(&cell, &["-n", "0", "/one"], 1, &["at least one node"]);
    refused(
        &cell,
        &["/one", "--format", "pbs"],
        2,
        &["hostfile", "Hint:"],
    );
    refused(&cell, &["/one", "--policy", "far"], 2, &["near"]);
}

#[test]
fn no_matrix_is_shown_where_no_path_was_found() {
    let cell = Cell::up("place-no-matrix");
    let mut locate = zonal();
    locate
        .args(["locate", "--matrix", "--cell"])
        .arg(cell.dir());
    locate.args(["/no/such/a", "/no/such/b"]);
    let output = locate.output().unwrap();
    assert_eq!(code(&output), 1, "{}", said(&output));
    assert!(output.stdout.is_empty(), "{}", said(&output));
}

#[test]
fn a_path_that_the_asker_may_not_read_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let cell = bring_up("place-secret");
    fill(&cell, 1, "/one", 1 << 20);
    // Another user asks by the manager's address, as the cell's folder is root's.
    let program = cell.dir().join("zonal");
    cell::copy_program(env!("CARGO_BIN_EXE_zonal"), &program);
    fs::set_permissions(
        cell.dir(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let manager = cell.address("manager", false).to_string();
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(&program).args([
        "place",
        "/one/secret",
        "--zone",
        "1",
        "--transport",
        "plain",
    ]);
    let output = command.args(["--cell", &manager]).output().unwrap();
    assert_eq!(code(&output), 1, "{}", said(&output));
    assert!(
        said(&output).contains("you ask as user id 65534"),
        "{}",
        said(&output)
    );
}

#[test]
fn the_command_reserves_at_the_service_and_goes_on_without_it() {
    let cell = bring_up("place-reserve");
    fill(&cell, 1, "/one", 1 << 20);
    // Both zones are idle, so the second job goes to the other.
    let spread = ["--policy", "spread", "/one"];
    let first = answer(&cell, &spread);
    let second = answer(&cell, &spread);
    assert_eq!((&first["zone"], &second["zone"]), (&1.into(), &2.into()));
    let reserved = first["reserved_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&reserved), "{first}");
    let id = first["reservation"].to_string();
    let output = place(&cell, &["--release", &id]);
    assert_eq!(code(&output), 0, "{}", said(&output));
    refused(&cell, &["--release", &id], 7, &["it has ended"]);
    let third = answer(&cell, &[&spread[..], &["--no-reserve"]].concat());
    assert_eq!(
        (&third["zone"], third.get("reservation")),
        (&1.into(), None)
    );
    refused(&cell, &["/one", "--hold", "11 min"], 2, &["10 min"]);
    let text = said(&place(&cell, &["/one", "--hold", "2 s"]));
    assert!(text.contains("zonal place --release"), "{text}");

    let silent = ["--service", "127.0.0.1:1"];
    let output = place(&cell, &[&silent[..], &["/one"]].concat());
    assert_eq!(code(&output), 0, "{}", said(&output));
    let note = String::from_utf8(output.stderr).unwrap();
    assert!(
        note.contains("does not answer") && note.contains("none is reserved"),
        "{note}"
    );
    refused(
        &cell,
        &[&silent[..], &["--release", "1"]].concat(),
        4,
        &["Hint:"],
    );
}

#[test]
fn with_a_token_the_pages_tell_homes_and_commands_send_it() {
    let cell = bring_up("place-token");
    fill(&cell, 2, "/set-a", 1 << 20);
    fill(&cell, 1, "/set-b", 1 << 20);
    assert_eq!(code(&cell.down()), 0);
    let token = "0123456789abcdef";
    cell::write_secret(&cell.dir().join("manager/token"), token);
    let config = cell.config("manager");
    let text = fs::read_to_string(&config).unwrap();
    let text = text.replace(
        "[admin]\n",
        "[admin]\ntoken_file = \"token\"\ngrpc = \"127.0.0.1:0\"\n",
    );
    let text = text.replace(
        "[manager]\n",
        "[manager]\nuplinks = { zone2 = \"1 gbit\", 1 = \"2 gbit\" }\n",
    );
    fs::write(&config, text).unwrap();
    let output = zonal()
        .args(["up", "--dir"])
        .arg(cell.dir())
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));

    assert!(cell.log("manager").contains("answers over gRPC"));
    assert_eq!(ask(&cell, "GET", "/v1/zones").0, 401);
    assert!(answer(&cell, &["/set-a"])["reservation"].is_number());
    let asked = |target: &str| {
        ask_with(
            &cell,
            "GET",
            target,
            &format!("Authorization: Bearer {token}\r\n"),
        )
    };
    let (code, told) = asked("/v1/locate?path=/set-%2a/x&path=/set-a");
    assert_eq!(code, 200, "{told}");
    let homes: Vec<(&str, u64)> = told["paths"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            (
                entry["path"].as_str().unwrap(),
                entry["home"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(homes, [("/set-a/x", 2), ("/set-b/x", 1), ("/set-a", 2)]);
    // The uplink of zone 2 has half the rate: it weighs 2, that of zone 1 weighs 1.
    let (_, told) = asked("/v1/locate?bytes=1:100");
    assert_eq!(told["costs"][1]["cost"], 150, "{told}");
    assert_eq!(asked("/v1/locate?path=/none").0, 404);
    assert_eq!(asked("/v1/locate?path=none").0, 400);
}

#[test]
fn a_job_goes_where_the_processors_are_idle() {
    let cell = bring_up("place-cpu");
    assert_eq!(code(&cell.down()), 0);
    // As if only the nodes of zone 1 had a machine of their own.
    for node in ["storage1-1", "storage1-2"] {
        let config = cell.config(node);
        let text = fs::read_to_string(&config).unwrap();
        let alone = text.replace("shares_machine = true\n", "");
        assert_ne!(text, alone);
        fs::write(&config, alone).unwrap();
    }
    let mut up = zonal();
    let output = up.args(["up", "--dir"]).arg(cell.dir()).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let is_over = AtomicBool::new(false);
    let told = std::thread::scope(|scope| {
        let processors = std::thread::available_parallelism().unwrap().get();
        for _ in 0..processors {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let told = loop {
            let told = answer(&cell, &["/", "--policy", "spread", "--no-reserve"]);
            if told["zone"] == 2 || Instant::now() > deadline {
                break told;
            }
        };
        is_over.store(true, Ordering::Relaxed);
        told
    });
    assert_eq!(told["zone"], 2, "{told}");
    let (_, told) = ask(&cell, "GET", "/v1/zones");
    let cpu = |index: usize| told["zones"][index]["cpu_per_mille"].as_u64().unwrap();
    assert!(cpu(0) > 0 && cpu(1) == 0, "{told}");
    let mut top = zonal();
    top.args(["top", "--json", "--interval", "1", "--cell"]);
    let output = top.arg(cell.dir()).output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = told["nodes"].as_array().unwrap();
    assert!(
        nodes.iter().all(|node| node["cpu_per_mille"].is_number()),
        "{told:#}"
    );
}

#[test]
fn jobs_are_listed_with_the_part_of_their_traffic_in_their_zone() {
    let cell = bring_up("place-jobs");
    let (_, placed) = ask(&cell, "POST", "/v1/place?nodes=2");
    let start = format!(
        "/v1/jobs?name=a%1bb&user=me&reservation={}",
        placed["reservation"]
    );
    let (code, started) = ask(&cell, "POST", &start);
    assert_eq!(code, 200, "{started}");
    let page = format!("/v1/jobs/{}", started["job"]);
    assert_eq!(
        ask(
            &cell,
            "PUT",
            &format!("{page}?in_zone_bytes=9&cross_zone_bytes=3")
        )
        .0,
        200
    );
    let listed = |words: &[&str]| {
        let mut command = zonal();
        let output = command
            .arg("jobs")
            .args(words)
            .arg("--cell")
            .arg(cell.dir())
            .output()
            .unwrap();
        assert_eq!(cell::code(&output), 0, "{}", said(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let told: serde_json::Value = serde_json::from_str(&listed(&["--json", "--running"])).unwrap();
    assert_eq!(
        (&told["running"], &told["jobs"][0]["nodes"]),
        (&1.into(), &2.into())
    );
    let ended = format!("{page}?in_zone_bytes=10&cross_zone_bytes=30&state=failed");
    assert_eq!(ask(&cell, "DELETE", &ended).0, 200);
    assert_eq!(ask(&cell, "PUT", &page).0, 404);
    let text = listed(&[]);
    assert!(text.contains("25.0 %") && text.contains("failed"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    assert!(!listed(&["--running"]).contains("failed"));
}

#[test]
fn requests_wait_for_a_change_and_hold_up_nobody() {
    let cell = bring_up("place-watch");
    let (_, told) = ask(&cell, "GET", "/v1/watch");
    let since = told["version"].to_string();
    let target = format!("/v1/watch?since={since}");
    std::thread::scope(|scope| {
        // More than the threads that answer.
        let waiting: Vec<_> = (0..20)
            .map(|_| scope.spawn(|| ask(&cell, "GET", &target)))
            .collect();
        // Clients that go away, and one whose time is over at once.
        for _ in 0..20 {
            let mut stream = TcpStream::connect(cell.address("manager", true)).unwrap();
            write!(stream, "GET {target} HTTP/1.0\r\n\r\n").unwrap();
        }
        let (_, told) = ask(&cell, "GET", &format!("{target}&wait_ms=1"));
        assert_eq!(told["changes"], serde_json::json!([]), "{told}");
        fill(&cell, 2, "/two", 1);
        for thread in waiting {
            let (code, told) = thread.join().unwrap();
            assert_eq!(
                (code, &told["changes"][0]["kind"]),
                (200, &"junctions".into()),
                "{told}"
            );
        }
    });
    let (_, placed) = ask(&cell, "POST", "/v1/place");
    let (_, told) = ask(&cell, "GET", &target);
    let kinds: Vec<&str> = told["changes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|change| change["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["junctions", "reservation"]);
    assert_eq!(told["changes"][1]["id"], placed["reservation"]);
}

/// A request to the manager's pages; its status code and JSON.
fn ask(cell: &Cell, method: &str, target: &str) -> (u16, serde_json::Value) {
    ask_with(cell, method, target, "")
}

fn ask_with(cell: &Cell, method: &str, target: &str, headers: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(cell.address("manager", true)).unwrap();
    write!(stream, "{method} {target} HTTP/1.0\r\n{headers}\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, serde_json::from_str(body).unwrap_or_default())
}

#[test]
fn the_managers_pages_spread_a_burst_and_end_reservations() {
    let cell = bring_up("place-pages");
    fill(&cell, 2, "/two", 1 << 20);
    let mut jobs = BTreeMap::new();
    for _ in 0..100 {
        let (code, told) = ask(&cell, "POST", "/v1/place?bytes=1:50&bytes=2:50");
        assert_eq!(code, 200, "{told}");
        *jobs.entry(told["zone"].as_u64().unwrap()).or_insert(0) += 1;
    }
    assert_eq!(jobs, BTreeMap::from([(1, 50), (2, 50)]));
    let (_, zones) = ask(&cell, "GET", "/v1/zones");
    assert_eq!(zones["zones"][0]["jobs"], 50, "{zones}");

    let (_, told) = ask(&cell, "POST", "/v1/place?bytes=2:9&nodes=2");
    assert_eq!(
        (&told["zone"], told["nodes"].as_array().unwrap().len()),
        (&2.into(), 2)
    );
    let reservation = format!("/v1/reservations/{}", told["reservation"]);
    assert_eq!(ask(&cell, "DELETE", &reservation).0, 200);
    assert_eq!(ask(&cell, "DELETE", &reservation).0, 404);
    let (code, told) = ask(&cell, "POST", "/v1/place?nodes=3");
    assert!(
        code == 409 && told["error"].as_str().unwrap().contains("3 nodes"),
        "{told}"
    );
    assert_eq!(ask(&cell, "POST", "/status").0, 405);
    // This cell has no token, so everybody may ask: nothing is told of names.
    assert_eq!(ask(&cell, "POST", "/v1/place?path=/two").0, 403);
}
