//! A cell whose map has many zones of 300 targets, all but the first unreachable. It comes up, is
//! mounted, and shows where data is stored.
//!
//! `ZONAL_GROWN_ZONES=50 cargo test -p zonal --test large_map -- --nocapture` prints the time of
//! each step.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]
#![allow(clippy::print_stdout, reason = "figures")]

mod cell;

use cell::{Cell, code, said, zonal};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;
use zonal_net::{Address, Identity, PayloadInto, Pool, PoolConfig, Request, Role};
use zonal_types::{CellId, Codec, NodeId, TargetId, ZoneId};
use zonal_wire::{
    Header, JoinTarget, ManagerReply, ManagerRequest, Service, StartMark, StoreStart,
};
use zonal_zonemap::{Fetch, FetchError, ZoneMap};

const TARGETS: u32 = 300;

/// Sends the manager a request as the server of a node.
fn ask(manager: Address, node: NodeId, request: &ManagerRequest) -> ManagerReply {
    let identity = Identity::new(CellId::default(), Role::Server, node, None);
    let pool = Pool::new(identity, PoolConfig::default());
    let sent = Request {
        operation: request.name(),
        header: Header::request(Service::Manager, CellId::default()),
        body: &request.to_bytes(),
        payload: &[],
        room: 0,
    };
    let reply = pool.call(manager, sent, PayloadInto::Owned).unwrap();
    ManagerReply::from_bytes(&reply.body).unwrap()
}

fn map_of(manager: Address) -> Arc<ZoneMap> {
    let fetch = Fetch::newer(Arc::new(ZoneMap::unknown(CellId::default())));
    let map = fetch.run(|request| Ok::<_, FetchError>(ask(manager, NodeId(1), request)));
    map.unwrap()
}

/// The join request of a node with an unused address, for a zone's shard or a target.
fn absent(node: u32, zone: u16, number: u32) -> ManagerRequest {
    let uuid = u128::from(node).to_le_bytes();
    let is_target = number > 0;
    let (first, none) = (
        StartMark { number: 1, tag: 7 },
        StartMark { number: 0, tag: 0 },
    );
    let target = JoinTarget {
        target: TargetId(node),
        uuid,
        capacity: 1 << 40,
    };
    ManagerRequest::Join {
        node: NodeId(node),
        zone: ZoneId(zone),
        zone_name: format!("row {zone}"),
        address: format!("127.{zone}.{}.{}:7", number / 250, number % 250 + 1),
        meta: !is_target,
        meta_zone: ZoneId(0),
        targets: is_target.then_some(target).into_iter().collect(),
        starts: vec![StoreStart {
            kind: 1 + u8::from(is_target),
            id: node,
            uuid,
            mark: first,
            taken: none,
            proposed: vec![first],
        }],
    }
}

fn zones() -> u16 {
    let given = std::env::var("ZONAL_GROWN_ZONES").ok();
    given.map_or(4, |text| text.parse().unwrap())
}

fn timed(what: &str, command: &mut Command) -> String {
    let since = Instant::now();
    let output = command.output().unwrap();
    let took = since.elapsed();
    assert_eq!(code(&output), 0, "{what}: {}", said(&output));
    println!("{what}: {took:.2?}");
    said(&output)
}

#[test]
fn a_cell_with_the_map_of_a_data_centre_comes_up_and_is_mounted() {
    let cell = Cell::up("grown-cell");
    let manager = Address::any_node(cell.address("manager", false));
    let since = Instant::now();
    let zones = zones();
    for zone in 2..=zones {
        for number in 0..=TARGETS {
            let node = u32::from(zone) * 1_000 + number;
            let reply = ask(manager, NodeId(node), &absent(node, zone, number));
            assert!(matches!(reply, ManagerReply::At { .. }), "{reply:?}");
        }
    }
    println!("joins: {:.2?}", since.elapsed());
    let map = map_of(manager);
    assert_eq!(
        map.targets.len(),
        1 + usize::from(zones - 1) * TARGETS as usize
    );
    let down = cell.down();
    assert_eq!(code(&down), 0, "{}", said(&down));
    let mount = cell.dir().join("mount");
    let mut up = zonal();
    up.args([
        "up",
        "--no-key",
        "--zones",
        "1",
        "--storage-nodes",
        "1",
        "--dir",
    ]);
    timed("up", up.arg(cell.dir()));
    let mkdir = timed("mkdir", &mut cell.command(&["fs", "mkdir", "/d"]));
    assert_eq!(mkdir, "");
    let bytes = cell.dir().join("bytes");
    std::fs::write(&bytes, [7; 100_000]).unwrap();
    timed("put", cell.command(&["fs", "put"]).arg(&bytes).arg("/d/f"));
    if !std::path::Path::new("/dev/fuse").exists() {
        println!("no FUSE here: not mounted");
        return;
    }
    std::fs::create_dir(&mount).unwrap();
    timed("mount", cell.command(&["mount"]).arg(&mount));
    let mut locate = zonal();
    let located = timed("locate", locate.arg("locate").arg(mount.join("d/f")));
    assert!(located.contains("zone 1"), "{located}");
    timed("umount", zonal().arg("umount").arg(&mount));
}
