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
use zonal_native::{
    CellId, ConnectOptions, Identity, Native, NodeId, OpenOptions, Role, User, ZoneId,
};
use zonal_testkit::Scratch;

/// Brings up a cell of two zones with two storage nodes each.
fn bring_up(name: &str) -> Cell {
    let cell = Cell {
        scratch: Scratch::new(name),
    };
    let mut up = zonal();
    up.args(["up", "--zones", "2", "--storage-nodes", "2", "--no-key"]);
    up.args(["--capacity", "1 GiB", "--dir"]).arg(cell.dir());
    let output = up.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    cell
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

/// A request to the manager's pages; its status code and JSON.
fn ask(cell: &Cell, method: &str, target: &str) -> (u16, serde_json::Value) {
    let mut stream = TcpStream::connect(cell.address("manager", true)).unwrap();
    write!(stream, "{method} {target} HTTP/1.0\r\n\r\n").unwrap();
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
