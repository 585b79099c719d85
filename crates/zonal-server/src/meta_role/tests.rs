//! Access to a shard, and background work of a shard that has to wait.

use super::*;
use crate::shard_log::ShardLog;
use std::time::Duration;
use zonal_disk::{LogRoom, StoreKind};
use zonal_meta::keys;
use zonal_net::{Pool, PoolConfig, Role};
use zonal_testkit::Scratch;
use zonal_types::{CellId, Codec, Ino, KvChange, KvRead, Layout, NodeId, ZoneId};
use zonal_wire::Service;
use zonal_zonemap::{MapEdit, ZoneMap};

const CELL: CellId = CellId([7; 16]);

fn join(node: u32) -> MapEdit {
    MapEdit::Join {
        node: NodeId(node),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: format!("127.0.0.1:{node}"),
        shard: Some(ShardId(1)),
        targets: Vec::new(),
    }
}

fn edited(map: &ZoneMap, edit: MapEdit) -> ZoneMap {
    map.edited(&[edit]).unwrap().unwrap()
}

/// Shard 1 of node 2, after these joins.
fn shard(dir: &std::path::Path, joins: &[MapEdit], pace: ShardPace) -> Arc<MetaRole> {
    let map = joins.iter().cloned();
    let map = map.fold(ZoneMap::new(CELL), |map, join| edited(&map, join));
    let opened = MetaRole::open_at(parts(dir, map), true, pace);
    Arc::new(opened.unwrap())
}

/// Parts of shard 1 of node 2, which knows this map.
fn parts(dir: &std::path::Path, known: ZoneMap) -> MetaRoleParts {
    let map = Arc::new(MapCache::here(CELL));
    map.publish(Arc::new(known));
    let own = zonal_net::Identity::new(CELL, Role::Server, NodeId(2), None);
    let pool = Arc::new(Pool::new(own, PoolConfig::default()));
    MetaRoleParts {
        config: ShardConfig::new(ShardId(1), ZoneId(1), 1),
        log: ShardLog::own(crate::manager_tests::engine(dir, StoreKind::Shard)),
        manager: None,
        map,
        peers: Arc::new(Peers::new(pool, CELL)),
    }
}

fn ask(role: &Arc<MetaRole>, epoch: u64) -> MetaReply {
    let mut header = Header::request(Service::Meta, CELL);
    header.epoch = Epoch(epoch);
    block_on(role.answer(&header, None, MetaRequest::StatFs))
}

#[test]
fn a_shard_refuses_epochs_that_it_does_not_own() {
    let scratch = Scratch::new("epochs");
    let role = shard(&scratch, &[join(2)], ShardPace::SERVER);
    for served in [0, 1] {
        assert!(matches!(ask(&role, served), MetaReply::StatFs { .. }));
    }
    let lost = failure(ErrorCode::NotOwner);
    assert_eq!(ask(&role, 2), lost);
    assert_eq!(ask(&role, u64::MAX), lost);
    // Its own map has the newer epoch.
    let map = &role.host().map;
    let moved = map.current().edited(&[join(3)]).unwrap().unwrap();
    map.publish(Arc::new(moved));
    for refused in 0..3 {
        assert_eq!(ask(&role, refused), lost);
    }
}

#[test]
fn a_sender_with_an_earlier_owner_gets_stale_epoch() {
    let scratch = Scratch::new("epochs");
    let role = shard(&scratch, &[join(2), join(3), join(2)], ShardPace::SERVER);
    let epoch = role.identity().1;
    let told = MetaReply::StaleShard {
        shard: ShardId(1),
        node: NodeId(2),
        epoch,
        map_version: role.host().map.current().version,
    };
    assert_eq!(ask(&role, epoch.0 - 1), told);
}

#[test]
fn an_unreadable_deletion_is_retried_without_another_removal() {
    let scratch = Scratch::new("deletions");
    let pace = ShardPace {
        deletions_ms: (5, 50),
        ..ShardPace::SERVER
    };
    let role = shard(&scratch, &[join(2)], pace);
    let partition = role.host().map.current().partitions_of(ShardId(1))[0];
    let key = keys::deletion(Ino::new(partition, 5));
    let put = |value: Vec<u8>| {
        let changes = vec![KvChange::put(key.clone(), value)];
        let engine = role.engine();
        engine.append_with(changes, &[], LogRoom::Normal).unwrap();
    };
    let is_there = || role.engine().get(&key).unwrap().is_some();
    put(vec![0xff]);
    let threads = role.start().unwrap();
    std::thread::sleep(Duration::from_millis(120));
    assert!(is_there());
    // It has no objects, so deleting it is done as soon as it is read.
    put(Layout::default().to_bytes());
    for _ in 0..200 {
        if !is_there() {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!is_there());
    role.stop();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// A leader of a group may begin before it hears of the map by which a partition has left.
#[test]
fn a_shard_does_not_serve_by_a_map_from_before_a_move() {
    let scratch = Scratch::new("ownership");
    let other = MapEdit::Join {
        node: NodeId(3),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: "127.0.0.1:3".into(),
        shard: Some(ShardId(2)),
        targets: Vec::new(),
    };
    let before = edited(&edited(&ZoneMap::new(CELL), join(2)), other);
    let partition = before.partitions_of(ShardId(1))[0];
    let given = MapEdit::MovePartition {
        partition,
        from: ShardId(1),
        to: ShardId(2),
    };
    let after = edited(&before, given);
    let open = |map: &ZoneMap, is_new| {
        let parts = parts(&scratch, map.clone());
        MetaRole::open_at(parts, is_new, ShardPace::SERVER)
    };
    let copied = zonal_meta::Departure {
        number: 1,
        to: ShardId(2),
        stage: zonal_wire::MoveStage::Switching,
        pages: 0,
    };
    let role = open(&before, true).unwrap();
    let note = KvChange::put(keys::departure(partition), copied.to_bytes());
    let engine = role.engine();
    engine
        .append_with(vec![note], &[], LogRoom::Normal)
        .unwrap();
    drop(role);
    let role = open(&after, false).unwrap();
    drop(role);
    assert_eq!(open(&before, false).err(), Some(ErrorCode::NotReady));
    assert!(open(&after, false).is_ok());
}

#[test]
fn a_shard_whose_thread_panics_serves_no_longer() {
    let scratch = Scratch::new("panic");
    let role = shard(&scratch, &[join(2)], ShardPace::SERVER);
    assert!(role.is_healthy());
    let panicked = std::thread::scope(|scope| {
        let run = || {
            let _guard = PanicGuard(role.host());
            panic!("as a thread of the shard's");
        };
        scope.spawn(run).join()
    });
    assert!(panicked.is_err() && !role.is_healthy());
    assert_eq!(ask(&role, 1), failure(ErrorCode::Io));
}
