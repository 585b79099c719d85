//! The manager's role on a real store in a temporary folder, without a network.

use crate::manager_role::Manager;
use crate::map_cache::MapCache;
use std::path::Path;
use std::sync::Arc;
use zonal_disk::{Engine, Identity, StoreKind};
use zonal_testkit::Scratch;
use zonal_types::{CellId, Codec, ErrorCode, MapVersion, NodeId, ShardId, TargetId, ZoneId};
use zonal_wire::{JoinTarget, ManagerReply, ManagerRequest};
use zonal_zonemap::MapEdit;

const CELL: CellId = CellId([7; 16]);

/// The engine of a store with a small log, which is made where it is not there.
pub(crate) fn engine(dir: &Path, kind: StoreKind) -> Arc<Engine> {
    let identity = Identity {
        cell: CELL.0,
        kind,
        id: 1,
    };
    let bounds = zonal_disk::engine::Config {
        log_bytes: 1 << 20,
        ..Default::default()
    };
    if !dir.join("identity").exists() {
        Engine::format(dir, identity, &bounds).unwrap();
    }
    Arc::new(Engine::open(dir, &identity, bounds, &mut |_, _, _| true).unwrap())
}

fn manager(dir: &Path) -> (Manager, Arc<MapCache>) {
    let cache = Arc::new(MapCache::here(CELL));
    let engine = engine(dir, StoreKind::Manager);
    let manager = Manager::open(engine, CELL, Arc::clone(&cache)).unwrap();
    (manager, cache)
}

fn join(node: u32, zone: u16, meta: bool, target: Option<(u32, u8)>) -> ManagerRequest {
    ManagerRequest::Join {
        node: NodeId(node),
        zone: ZoneId(zone),
        zone_name: String::new(),
        address: format!("127.0.0.1:{}", 7000 + node),
        meta,
        targets: target
            .map(|(target, uuid)| JoinTarget {
                target: TargetId(target),
                uuid: [uuid; 16],
                capacity: 1 << 30,
            })
            .into_iter()
            .collect(),
    }
}

fn failed(reply: &ManagerReply) -> Option<ErrorCode> {
    match reply {
        ManagerReply::Failed { code, .. } => Some(code.0),
        _ => None,
    }
}

#[test]
fn the_map_grows_without_gaps_and_outlives_the_manager() {
    let scratch = Scratch::new("roles");
    let kept = {
        let (manager, cache) = manager(&scratch);
        manager.join(join(1, 1, false, None), true).unwrap();
        for (index, request) in [
            join(2, 2, true, None),
            join(3, 2, false, Some((1, 1))),
            join(4, 1, true, None),
        ]
        .into_iter()
        .enumerate()
        {
            assert_eq!(failed(&manager.handle(request.clone())), None);
            assert_eq!(cache.current().version, MapVersion(3 + index as u64));
            // Coming back changes nothing.
            assert_eq!(failed(&manager.handle(request)), None);
            assert_eq!(cache.current().version, MapVersion(3 + index as u64));
        }
        cache.current()
    };
    let shard = kept.shard_of_zone(ZoneId(2)).unwrap();
    assert_eq!((shard.id, shard.node), (ShardId(2), NodeId(2)));
    assert_eq!(kept.shard(ShardId(0)).unwrap().node, NodeId(1));
    let (again, cache) = manager(&scratch);
    assert_eq!(cache.current(), kept);
    let have = kept.version;
    assert_eq!(
        again.handle(ManagerRequest::GetMap { have }),
        ManagerReply::Unchanged { version: have }
    );
}

#[test]
fn what_does_not_fit_the_map_is_refused() {
    let scratch = Scratch::new("roles");
    let (manager, cache) = manager(&scratch);
    manager.join(join(1, 1, false, None), true).unwrap();
    assert_eq!(
        failed(&manager.handle(join(2, 1, true, Some((1, 1))))),
        None
    );
    let before = cache.current();
    let mut bad_address = join(9, 1, false, None);
    if let ManagerRequest::Join { address, .. } = &mut bad_address {
        *address = "nowhere".into();
    }
    let edits = zonal_types::Blob(Vec::<MapEdit>::new().to_bytes());
    let expected = MapVersion(1);
    for (request, code) in [
        (join(3, 1, true, None), ErrorCode::Invalid),
        (join(2, 2, true, Some((1, 1))), ErrorCode::Invalid),
        (join(2, 1, true, Some((1, 2))), ErrorCode::WrongTarget),
        (join(3, 1, false, Some((1, 1))), ErrorCode::WrongTarget),
        (bad_address, ErrorCode::Invalid),
        (
            ManagerRequest::Edit { expected, edits },
            ErrorCode::StaleEpoch,
        ),
    ] {
        assert_eq!(
            failed(&manager.handle(request.clone())),
            Some(code),
            "{request:?}"
        );
    }
    assert_eq!(cache.current(), before);
}

/// A start of target 1 by a node: marks by number, the last of them is proposed.
fn start(node: u32, uuid: u8, taken: u64, proposed: &[u64]) -> ManagerRequest {
    let mark = |number: &u64| zonal_wire::StartMark {
        number: *number,
        tag: number * 7,
    };
    ManagerRequest::Start {
        node: NodeId(node),
        store: zonal_wire::StoreStart {
            kind: crate::starts::TARGET,
            id: 1,
            uuid: [uuid; 16],
            mark: mark(proposed.last().unwrap()),
            taken: mark(&taken),
            proposed: proposed.iter().map(mark).collect(),
        },
    }
}

#[test]
fn an_older_image_of_a_target_is_refused_also_after_the_managers_restart() {
    let scratch = Scratch::new("roles");
    {
        let (manager, _) = manager(&scratch);
        manager.join(join(1, 1, false, None), true).unwrap();
        for request in [
            start(3, 1, 0, &[1]),
            join(3, 1, false, Some((1, 1))),
            start(3, 1, 1, &[2]),
            start(3, 1, 1, &[2]),
            start(3, 1, 1, &[2, 3]),
        ] {
            assert_eq!(
                failed(&manager.handle(request.clone())),
                None,
                "{request:?}"
            );
        }
    }
    let (manager, _) = manager(&scratch);
    for request in [
        // Of when 1 was the last; on another node; formatted anew.
        start(3, 1, 1, &[2]),
        start(4, 1, 3, &[4]),
        start(3, 2, 3, &[4]),
    ] {
        let reply = manager.handle(request.clone());
        assert_eq!(failed(&reply), Some(ErrorCode::WrongTarget), "{request:?}");
    }
    assert_eq!(manager.handle(start(3, 1, 3, &[4])), ManagerReply::Started);
}
