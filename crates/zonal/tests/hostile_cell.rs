//! Requests in valid frames that no honest client sends. Each gets a typed reply or a closed
//! connection, and the servers continue unharmed.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod cell;
mod hostile;

use cell::{Cell, NODES, code, said};
use hostile::Server;
use hostile::impossible_requests::{
    foreign_edits, impossible_manager_requests, impossible_meta_requests, impossible_root_requests,
    impossible_storage_requests, map_of, name, object, root_user,
};
use hostile::valid_requests::{valid_admin, valid_manager, valid_meta, valid_storage};
use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_testkit::Rng;
use zonal_types::{CellId, Codec, ErrorCode, Ino, NodeId, TargetId, Timestamp, ZoneId};
use zonal_wire::{AdminReply, MetaReply, MetaRequest, Service, StorageReply, StorageRequest};

const RSS_KIB_MAX: u64 = 300 << 10;
const TIME_MAX: Duration = Duration::from_secs(200);

/// Checks that requests for commands only are refused from mounts.
fn refuses_mounts(pool: &Pool, to: SocketAddr, target: TargetId) {
    let mut server = Server::new(pool, to, Service::Admin);
    for body in valid_admin(target) {
        let header = server.header();
        let reply = server.send(header, &body, &[]).unwrap();
        match AdminReply::from_bytes(&reply).unwrap() {
            AdminReply::Failed { code, .. } => assert_eq!(code.0, ErrorCode::NotPermitted),
            other => panic!("{other:?}"),
        }
    }
}

/// Sends garbage as a peer with the rights of a command.
fn odd_commands(to: SocketAddr, target: TargetId, random: &mut Rng) {
    let tool = Identity::new(CellId::default(), Role::Tool, NodeId(0), None);
    let pool = Pool::new(tool, PoolConfig::default());
    let mut admin = Server::new(&pool, to, Service::Admin);
    admin.random_bodies(random);
    admin.mutated(random, &valid_admin(target));
    admin.odd_headers(&valid_admin(target)[0]);
}

fn serves(server: &mut Server<'_>, dir: Ino) {
    server.open_session(0x5eed);
    let attr = server.meta(&MetaRequest::GetAttr {
        ino: dir,
        data: false,
    });
    assert!(matches!(attr, MetaReply::Attr { .. }), "{attr:?}");
    // A change, to detect a shard whose log failed.
    let made = server.meta(&MetaRequest::Mkdir {
        who: root_user(0),
        parent: dir,
        name: name(b"afterwards"),
        mode: 0o755,
        umask: 0,
        zone: ZoneId(1),
    });
    assert!(matches!(made, MetaReply::Entry { .. }), "{made:?}");
    assert_eq!(server.meta(&MetaRequest::CloseSession), MetaReply::Done);
}

fn rss_kib(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = line.unwrap().trim().split(' ').next();
    words.unwrap().parse().unwrap()
}

fn make_dir(root: &mut Server<'_>) -> Ino {
    let request = MetaRequest::Mkdir {
        who: root_user(0),
        parent: Ino::ROOT,
        name: name(b"home"),
        mode: 0o755,
        umask: 0,
        zone: ZoneId(1),
    };
    match root.meta(&request) {
        MetaReply::Entry { entry } => entry.ino,
        other => panic!("{other:?}"),
    }
}

#[test]
fn servers_survive_requests_that_no_client_sends() {
    let cell = Cell::up("hostile");
    let identity = Identity::new(CellId::default(), Role::Client, NodeId(0), None);
    let pool = Pool::new(identity, PoolConfig::default());
    let mut manager = Server::new(&pool, cell.address("manager", false), Service::Manager);
    let map = map_of(&mut manager);
    let address = |zone| {
        let shard = map.shards_of_zone(zone).next().unwrap();
        map.node(shard.node).unwrap().address.parse().unwrap()
    };
    let target = map.targets[0].id;
    let storage_address = &map.node(map.targets[0].node).unwrap().address;
    let mut root = Server::new(&pool, manager.to, Service::Meta);
    let mut zone = Server::new(&pool, address(ZoneId(1)), Service::Meta);
    let mut storage = Server::new(&pool, storage_address.parse().unwrap(), Service::Storage);
    root.open_session(1);
    zone.open_session(1);
    let dir = make_dir(&mut root);

    let start = Instant::now();
    let mut random = Rng(0x9e37_79b9_7f4a_7c15);
    let lap = |what: &str| println!("{what}: {:?}", start.elapsed());
    impossible_manager_requests(&mut manager, map.version, &mut random);
    lap("manager");
    foreign_edits(&mut manager);
    let rename = MetaRequest::Rename {
        who: root_user(0),
        parent: Ino::ROOT,
        name: name(b"home"),
        new_parent: Ino::ROOT,
        new_name: name(b"moved"),
        flags: 0,
    };
    assert_eq!(root.meta(&rename), MetaReply::Done);
    impossible_root_requests(&mut root);
    lap("root shard");
    impossible_meta_requests(&mut zone, dir);
    lap("zone shard");
    impossible_storage_requests(&mut storage, target);
    lap("target");
    let valid = [
        valid_manager(&map),
        valid_meta(Ino::ROOT),
        valid_meta(dir),
        valid_storage(target),
    ];
    for to in [storage.to, zone.to] {
        refuses_mounts(&pool, to, target);
        odd_commands(to, target, &mut random);
        lap("commands");
    }
    let mut servers = [manager, root, zone, storage];
    for (server, valid) in servers.iter_mut().zip(&valid) {
        server.random_bodies(&mut random);
        server.mutated(&mut random, valid);
        let with_slot = MetaRequest::Touch {
            reads: vec![(dir, Timestamp::default())],
        }
        .to_bytes();
        let body = match server.service {
            Service::Meta => &with_slot,
            _ => &valid[0],
        };
        server.odd_headers(body);
        lap("garbled");
    }
    assert!(start.elapsed() < TIME_MAX, "{:?}", start.elapsed());
    let sent: usize = servers.iter().map(|server| server.sent).sum();
    let refused: usize = servers.iter().map(|server| server.refused).sum();
    println!("{sent} requests, {refused} of them ended their connection");
    assert!(sent > 2000);

    let [mut manager, mut root, mut zone, mut storage] = servers;
    assert!(map_of(&mut manager).check().is_empty());
    serves(&mut root, Ino::ROOT);
    serves(&mut zone, dir);
    let write = StorageRequest::Write {
        object: object(target, 77),
        offset: 0,
        sync: true,
        expected_version: 0,
        txn: 0,
        snap_epoch: 0,
    };
    let written = storage.storage(&write, &[1; 4096]);
    assert!(
        matches!(written, StorageReply::Written { .. }),
        "{written:?}"
    );
    let status = cell.status();
    assert_eq!(code(&status), 0, "{}", said(&status));
    for node in NODES {
        let log = cell.log(node);
        assert!(
            !log.contains("panic") && !log.contains("ERROR"),
            "{node}:\n{log}"
        );
        let rss = rss_kib(cell.pid(node));
        println!("{node}: {} MiB", rss >> 10);
        assert!(rss < RSS_KIB_MAX, "{node}: {rss} KiB");
    }
}
