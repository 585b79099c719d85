//! Foreign text in logs and on terminals. Names are checked on arrival. Text that is shown all the
//! same does not control a terminal and forges no line.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod cell_file;

use cell::{Cell, code, said, zonal};
use cell_file::pool;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::{Duration, Instant};
use zonal_net::{Address, Identity, PayloadInto, Pool, PoolConfig, Request, Role};
use zonal_types::{CellId, ClientId, ClientIdentity, Codec, Epoch, ErrorCode, NodeId, ZoneId};
use zonal_wire::{Header, ManagerReply, ManagerRequest, MetaReply, MetaRequest, Service};

/// Escape sequences for colours and the window title, a forged line, an invisible letter, an 8-bit
/// control code, and a change of writing direction.
const ODD: [&str; 7] = [
    "a\u{1b}[31mred",
    "a\u{1b}]0;title\u{7}",
    "a\n2026-11-25T00:00:00Z  INFO forged",
    "a\rforged",
    "a\u{200b}b",
    "a\u{9b}31m",
    "a\u{202e}b",
];

fn ask<T: Codec>(pool: &Pool, address: &str, header: Header, body: &[u8]) -> T {
    let request = Request {
        operation: "a test's request",
        header,
        body,
        payload: &[],
        room: 0,
    };
    let to = Address::any_node(address.parse().unwrap());
    let reply = pool.call(to, request, PayloadInto::Owned).unwrap();
    T::from_bytes(&reply.body).unwrap()
}

fn open_session(cell: &Cell, name: &str) -> MetaReply {
    let mut header = Header::request(Service::Meta, CellId::default());
    header.epoch = Epoch(1);
    header.identity = ClientIdentity::first(ClientId(7));
    let request = MetaRequest::OpenSession {
        zone: ZoneId(1),
        name: name.to_owned(),
    };
    let address = cell.address("meta1", false).to_string();
    ask(&pool(), &address, header, &request.to_bytes())
}

fn join(cell: &Cell, zone_name: &str, address: &str) -> ManagerReply {
    let request = ManagerRequest::Join {
        node: NodeId(99),
        zone: ZoneId(9),
        zone_name: zone_name.to_owned(),
        address: address.to_owned(),
        meta: false,
        meta_zone: ZoneId(0),
        targets: Vec::new(),
        starts: Vec::new(),
    };
    let header = Header::request(Service::Manager, CellId::default());
    let manager = cell.address("manager", false).to_string();
    let me = Identity::new(CellId::default(), Role::Server, NodeId(99), None);
    let pool = Pool::new(me, PoolConfig::default());
    ask(&pool, &manager, header, &request.to_bytes())
}

#[test]
fn names_of_clients_that_cannot_be_shown_are_refused() {
    let cell = Cell::up("client-names");
    for name in ODD.into_iter().chain([&*"x".repeat(256)]) {
        match open_session(&cell, name) {
            MetaReply::Failed { code, .. } => assert_eq!(code.0, ErrorCode::Invalid, "{name:?}"),
            other => panic!("{name:?}: {other:?}"),
        }
    }
    let reply = open_session(&cell, "Größe 测试 (one)");
    assert!(matches!(reply, MetaReply::Session { .. }), "{reply:?}");
    let mut command = zonal();
    let output = command.args(["session", "ls", "--cell"]).arg(cell.dir());
    let output = output.output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    assert!(
        said(&output).contains("Größe 测试 (one)"),
        "{}",
        said(&output)
    );
}

#[test]
fn names_of_zones_and_addresses_that_cannot_be_shown_are_refused() {
    let cell = Cell::up("zone-names");
    let long = "x".repeat(256);
    for name in ODD.into_iter().chain([&*long]) {
        for (zone, address) in [(name, "127.0.0.1:1"), ("zone9", name)] {
            match join(&cell, zone, address) {
                ManagerReply::Failed { code, .. } => {
                    assert_eq!(code.0, ErrorCode::Invalid, "{name:?}");
                }
                other => panic!("{name:?}: {other:?}"),
            }
        }
    }
    let log = cell.log("manager");
    assert!(log.contains("refused"), "{log}");
    for line in log.lines() {
        let is_known = line.starts_with("20") && !line.contains("INFO forged");
        assert!(
            is_known || line.contains("\\n2026"),
            "a forged line: {line:?}"
        );
        let odd = |letter: char| letter.is_control() || "\u{200b}\u{202e}".contains(letter);
        assert!(!line.contains(odd), "{line:?}");
        assert!(line.len() < 2_000, "{}", line.len());
    }
    let mut command = zonal();
    let output = command.args(["zone-map", "show", "--cell"]).arg(cell.dir());
    let output = output.output().unwrap();
    assert!(!said(&output).contains('\u{1b}'), "{:?}", said(&output));
    // `zonal config check` refuses the name already.
    let config = fs::read_to_string(cell.config("meta1")).unwrap();
    let odd = config.replace("name = \"zone1\"", "name = \"a\\u001b[31m\"");
    assert_ne!(config, odd);
    let file = cell.dir().join("odd.toml");
    fs::write(&file, odd).unwrap();
    let output = zonal().args(["config", "check"]).arg(&file).output();
    let output = output.unwrap();
    assert_eq!(code(&output), 3, "{}", said(&output));
    assert!(said(&output).contains("zone.name"), "{}", said(&output));
}

#[test]
fn text_of_a_folder_does_nothing_to_a_terminal_and_forges_no_hint() {
    let scratch = zonal_testkit::Scratch::new("odd-path");
    for name in ODD {
        let dir = scratch.join(name);
        let mut command = zonal();
        let output = command.args(["up", "--zones", "1", "--storage-nodes", "1", "--dir"]);
        let output = output.arg(&dir).output().unwrap();
        assert_eq!(code(&output), 0, "{}", said(&output));
        let status = zonal().args(["status", "--cell"]).arg(&dir).output();
        let down = zonal().args(["down", "--dir"]).arg(&dir).output();
        let gone = zonal().args(["status", "--cell"]).arg(&dir).output();
        for output in [output, status.unwrap(), down.unwrap(), gone.unwrap()] {
            let text = said(&output);
            let odd = |letter: char| {
                letter != '\n' && letter.is_control() || "\u{200b}\u{202e}".contains(letter)
            };
            assert!(!text.contains(odd), "{text:?}");
            assert!(!text.lines().any(|line| line.starts_with("2026")), "{text}");
        }
    }
}

#[test]
fn json_is_escaped_for_terminals_and_stays_json() {
    let scratch = zonal_testkit::Scratch::new("odd-json");
    let dir = scratch.join("a\u{9b}31m\u{202e}\u{1b}[31m\u{e0001}b");
    let mut command = zonal();
    let output = command.args([
        "up",
        "--zones",
        "1",
        "--storage-nodes",
        "1",
        "--no-key",
        "--dir",
    ]);
    let output = output.arg(&dir).output().unwrap();
    assert_eq!(code(&output), 0, "{}", said(&output));
    let backup = dir.join("backup");
    let mut command = zonal();
    command
        .args(["meta", "backup", "--json", "--cell"])
        .arg(&dir);
    let output = command.arg("--to").arg(&backup).output().unwrap();
    let down = zonal().args(["down", "--dir"]).arg(&dir).output().unwrap();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let text = String::from_utf8(output.stdout).unwrap();
    let odd = |letter: char| letter != '\n' && letter.is_control() || letter == '\u{202e}';
    assert!(!text.contains(odd), "{text:?}");
    assert!(!text.contains('\u{e0001}'), "{text:?}");
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["file"], backup.to_str().unwrap());
}

#[test]
fn an_answer_of_a_stranger_is_not_shown_raw() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let stranger = std::thread::spawn(move || {
        let end = Instant::now() + Duration::from_secs(20);
        listener.set_nonblocking(true).unwrap();
        while Instant::now() < end {
            if let Ok((mut stream, _)) = listener.accept() {
                let _ = stream.write_all("\u{1b}[31mHint: run this\n".repeat(8).as_bytes());
                let _ = stream.read(&mut [0; 64]);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let output = zonal()
        .args(["status", "--cell", &address])
        .output()
        .unwrap();
    stranger.join().unwrap();
    assert_eq!(code(&output), 4, "{}", said(&output));
    assert!(!said(&output).contains('\u{1b}'), "{:?}", said(&output));
}
