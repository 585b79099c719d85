//! The manager role on a real store in a temporary folder, without a network.

use crate::manager_role::{ManagerError, ManagerParts, ManagerRole};
use crate::map_cache::MapCache;
use crate::node_probe::{NodeProbe, ProbeResult};
use crate::shard_log::ShardLog;
use crate::store_starts::{SHARD, TARGET};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use zonal_disk::{Engine, StoreIdentity, StoreKind};
use zonal_testkit::Scratch;
use zonal_types::limits::SET_WIDTH_DEFAULT;
use zonal_types::{CellId, Codec, ErrorCode, MapVersion, NodeId, ShardId, TargetId, ZoneId};
use zonal_wire::{JoinTarget, ManagerReply, ManagerRequest, StoreStart, SubnetZone};
use zonal_zonemap::{MapEdit, SubnetEntry, SubnetTable, ZoneReference};

const CELL: CellId = CellId([7; 16]);

/// The engine of a store with a small log, created where it does not exist.
pub(crate) fn engine(dir: &Path, kind: StoreKind) -> Arc<Engine> {
    let identity = StoreIdentity {
        cell: CELL.0,
        kind,
        id: 1,
    };
    let bounds = zonal_disk::engine::EngineConfig {
        log_bytes: 1 << 20,
        ..Default::default()
    };
    if !dir.join("identity").exists() {
        Engine::format(dir, identity, &bounds).unwrap();
    }
    Arc::new(Engine::open(dir, &identity, bounds, &mut |_, _, _| true).unwrap())
}

/// Probe results by address, and the addresses that were probed.
#[derive(Default)]
struct Answers {
    there: Mutex<BTreeSet<SocketAddr>>,
    asked: Mutex<Vec<(NodeId, SocketAddr, SocketAddr)>>,
}

impl NodeProbe for Arc<Answers> {
    fn probe(&self, node: NodeId, address: SocketAddr, claimed_by: SocketAddr) -> ProbeResult {
        self.asked.lock().unwrap().push((node, address, claimed_by));
        if self.there.lock().unwrap().contains(&address) {
            ProbeResult::Holder
        } else {
            ProbeResult::Nobody
        }
    }
}

pub(crate) fn manager(dir: &Path) -> (ManagerRole, Arc<MapCache>) {
    let (manager, cache, _) = manager_with_probe(dir);
    (manager, cache)
}

fn manager_with_probe(dir: &Path) -> (ManagerRole, Arc<MapCache>, Arc<Answers>) {
    manager_with(dir, SubnetTable::default(), 1)
}

fn manager_with(
    dir: &Path,
    subnets: SubnetTable,
    shards: usize,
) -> (ManagerRole, Arc<MapCache>, Arc<Answers>) {
    let cache = Arc::new(MapCache::here(CELL));
    let engine = engine(dir, StoreKind::Manager);
    let probe = Arc::<Answers>::default();
    let parts = ManagerParts {
        cell: CELL,
        published: Arc::clone(&cache),
        alone_on: Some(NodeId(1)),
        probe: Box::new(Arc::clone(&probe)),
        set_width: SET_WIDTH_DEFAULT,
        subnets,
        replicas: 1,
        shards,
        load_sink: OnceLock::new(),
    };
    let manager = ManagerRole::open(ShardLog::own(engine), Arc::new(parts)).unwrap();
    (manager, cache, probe)
}

fn store(kind: u8, id: u32, uuid: u8, taken: u64, proposed: &[u64]) -> StoreStart {
    let mark = |number: &u64| zonal_wire::StartMark {
        number: *number,
        tag: number * 7,
    };
    StoreStart {
        kind,
        id,
        uuid: [uuid; 16],
        mark: mark(proposed.last().unwrap()),
        taken: mark(&taken),
        proposed: proposed.iter().map(mark).collect(),
    }
}

fn joining(node: u32, zone: u16, address: &str, stores: Vec<StoreStart>) -> ManagerRequest {
    let targets = stores.iter().filter(|store| store.kind == TARGET);
    ManagerRequest::Join {
        node: NodeId(node),
        zone: ZoneId(zone),
        zone_name: String::new(),
        address: address.to_owned(),
        meta: stores.iter().any(|store| store.kind == SHARD),
        meta_zone: ZoneId(0),
        targets: targets
            .map(|store| JoinTarget {
                target: TargetId(store.id),
                uuid: store.uuid,
                capacity: 1 << 30,
            })
            .collect(),
        starts: stores,
    }
}

pub(crate) fn join(node: u32, zone: u16, meta: bool, target: Option<(u32, u8)>) -> ManagerRequest {
    let shard = meta.then(|| store(SHARD, node, 100, 0, &[1]));
    let target = target.map(|(target, uuid)| store(TARGET, target, uuid, 0, &[1]));
    let address = format!("127.0.0.1:{}", 7000 + node);
    joining(
        node,
        zone,
        &address,
        shard.into_iter().chain(target).collect(),
    )
}

pub(crate) fn manager_joins(manager: &ManagerRole) {
    manager
        .join(joining(1, 1, "127.0.0.1:7001", vec![]), true)
        .unwrap();
}

pub(crate) fn failed(reply: &ManagerReply) -> Option<ErrorCode> {
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
        manager_joins(&manager);
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
            // A repeated join changes nothing.
            assert_eq!(failed(&manager.handle(request)), None);
            assert_eq!(cache.current().version, MapVersion(3 + index as u64));
        }
        cache.current()
    };
    let shard = kept.shard_at(NodeId(2)).unwrap();
    assert_eq!((shard.id, shard.node), (ShardId(2), NodeId(2)));
    assert_eq!(kept.shard(ShardId(0)).unwrap().node, NodeId(1));
    let (again, cache) = manager(&scratch);
    assert_eq!(cache.current(), kept);
    let have = kept.version;
    assert_eq!(
        again.handle(ManagerRequest::GetMap { have }),
        ManagerReply::At { version: have }
    );
}

#[test]
fn a_join_that_conflicts_with_the_map_is_refused() {
    let scratch = Scratch::new("roles");
    let (manager, cache) = manager(&scratch);
    manager_joins(&manager);
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

/// A start of target 1 by a node. Marks are given by number; the last of them is proposed.
fn start(node: u32, uuid: u8, taken: u64, proposed: &[u64]) -> ManagerRequest {
    let address = format!("127.0.0.1:{}", 7000 + node);
    joining(
        node,
        1,
        &address,
        vec![store(TARGET, 1, uuid, taken, proposed)],
    )
}

#[test]
fn an_older_image_of_a_target_is_refused_also_after_the_managers_restart() {
    let scratch = Scratch::new("roles");
    {
        let (manager, _) = manager(&scratch);
        manager_joins(&manager);
        for request in [
            start(3, 1, 0, &[1]),
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
        // An image from when 1 was the last start; another node; formatted anew.
        start(3, 1, 1, &[2]),
        start(4, 1, 3, &[4]),
        start(3, 2, 3, &[4]),
    ] {
        let reply = manager.handle(request.clone());
        assert_eq!(failed(&reply), Some(ErrorCode::WrongTarget), "{request:?}");
    }
    assert_eq!(failed(&manager.handle(start(3, 1, 3, &[4]))), None);
}

fn detail(reply: ManagerReply) -> String {
    match reply {
        ManagerReply::Failed { detail, .. } => detail,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_number_that_another_node_has_is_refused_with_both_addresses_and_changes_nothing() {
    let scratch = Scratch::new("numbers");
    let (manager, cache, probe) = manager_with_probe(&scratch);
    manager_joins(&manager);
    let (here, there) = ("127.0.0.1:7003", "127.0.0.9:7003");
    let own = |taken, mark| {
        vec![
            store(SHARD, 3, 30, taken, &[mark]),
            store(TARGET, 5, 50, taken, &[mark]),
        ]
    };
    assert_eq!(
        failed(&manager.handle(joining(3, 1, here, own(0, 1)))),
        None
    );
    let before = cache.current();
    let kept = |request: ManagerRequest, code| {
        let reply = manager.handle(request.clone());
        assert_eq!(failed(&reply), Some(code), "{request:?}");
        assert_eq!(cache.current(), before);
        detail(reply)
    };
    for address in [here, there] {
        for others in [
            // A copied node.toml over other stores, with a target number of its own or the node's.
            vec![store(TARGET, 6, 60, 0, &[1])],
            vec![store(SHARD, 3, 31, 0, &[1]), store(TARGET, 6, 60, 0, &[1])],
            vec![store(SHARD, 3, 31, 0, &[1])],
            vec![store(TARGET, 5, 51, 0, &[1])],
            // No store at all.
            vec![],
        ] {
            let told = kept(joining(3, 1, address, others), ErrorCode::WrongTarget);
            assert!(told.contains(here) && told.contains(address), "{told}");
        }
    }
    let (node, asked, by) = *probe.asked.lock().unwrap().last().unwrap();
    assert_eq!(node, NodeId(3));
    assert_eq!((asked, by), (here.parse().unwrap(), there.parse().unwrap()));
    // The manager's own number with the target of another node.
    let stores = vec![store(TARGET, 6, 60, 0, &[1])];
    let told = kept(joining(1, 1, there, stores), ErrorCode::WrongTarget);
    assert!(
        told.contains("127.0.0.1:7001") && told.contains(there),
        "{told}"
    );
    let stores = vec![store(TARGET, 5, 51, 0, &[1])];
    let told = kept(joining(4, 1, there, stores), ErrorCode::WrongTarget);
    assert!(told.contains(here) && told.contains(there), "{told}");
    // No start of any of them was kept: the numbers are still free for their nodes.
    let stores = vec![store(TARGET, 6, 66, 0, &[1])];
    assert_eq!(failed(&manager.handle(joining(6, 1, there, stores))), None);
    assert_eq!(
        failed(&manager.handle(joining(3, 1, here, own(1, 2)))),
        None
    );
}

#[test]
fn a_node_moves_once_its_old_address_is_dead() {
    let scratch = Scratch::new("moves");
    let (manager, cache, probe) = manager_with_probe(&scratch);
    manager_joins(&manager);
    let (here, there) = ("127.0.0.1:7003", "127.0.0.9:7003");
    let own = |taken, mark| vec![store(TARGET, 5, 50, taken, &[mark])];
    assert_eq!(
        failed(&manager.handle(joining(3, 1, here, own(0, 1)))),
        None
    );
    let version = cache.current().version;
    // A copy of its folder, with the marks of this moment.
    probe.there.lock().unwrap().insert(here.parse().unwrap());
    let reply = manager.handle(joining(3, 1, there, own(1, 2)));
    assert_eq!(failed(&reply), Some(ErrorCode::WrongTarget));
    let told = detail(reply);
    assert!(told.contains(here) && told.contains(there), "{told}");
    // No start of the copy was taken: the node itself goes on, and comes up again at its address.
    let mut third = own(1, 3);
    third[0].mark.tag = 99;
    third[0].proposed[0].tag = 99;
    assert_eq!(failed(&manager.handle(joining(3, 1, here, third))), None);
    assert_eq!(cache.current().version, version);
    probe.there.lock().unwrap().clear();
    let mut fourth = own(3, 4);
    fourth[0].taken.tag = 99;
    assert_eq!(failed(&manager.handle(joining(3, 1, there, fourth))), None);
    let map = cache.current();
    assert_eq!(map.node(NodeId(3)).unwrap().address, there);
    assert_eq!(map.sets.len(), 1, "the same target");
    // A new store may join beside a known one.
    let mut both = own(4, 5);
    both.push(store(TARGET, 6, 60, 0, &[1]));
    assert_eq!(failed(&manager.handle(joining(3, 1, there, both))), None);
}

#[test]
fn sets_are_opened_durably_and_open_ones_are_never_replaced() {
    let scratch = Scratch::new("sets");
    let zone = ZoneId(2);
    let open = |manager: &ManagerRole| match manager.open_sets(zone).unwrap() {
        zonal_wire::MetaReply::Sets { map_version, sets } => (map_version, sets),
        other => panic!("{other:?}"),
    };
    let kept = {
        let (manager, cache) = manager(&scratch);
        manager_joins(&manager);
        for target in 1..=3 {
            let joined = manager.handle(join(1 + target, 2, false, Some((target, 1))));
            assert_eq!(failed(&joined), None);
        }
        assert_eq!(cache.current().sets.len(), 1, "nobody has used the others");
        let (version, sets) = open(&manager);
        assert_eq!(version, cache.current().version);
        assert_eq!(
            sets.iter().map(|(_, width)| *width).collect::<Vec<_>>(),
            [3]
        );
        assert_eq!(open(&manager), (version, sets.clone()), "once is enough");
        assert!(manager.open_sets(ZoneId(9)).is_err());
        sets[0].0
    };
    let (manager, cache) = manager(&scratch);
    assert!(cache.current().set(kept).unwrap().is_open);
    manager.set_width(2).unwrap();
    let version = cache.current().version;
    manager.set_width(2).unwrap();
    assert_eq!(cache.current().version, version);
    assert_eq!(
        failed(&manager.handle(join(8, 2, false, Some((8, 1))))),
        None
    );
    let map = cache.current();
    assert!(map.set(kept).is_some(), "its files");
    assert_eq!(map.sets.len(), 2);
    assert_eq!(open(&manager).1.len(), 2);
}

#[test]
fn a_join_that_contradicts_itself_is_refused() {
    let scratch = Scratch::new("absurd");
    let (manager, cache) = manager(&scratch);
    manager_joins(&manager);
    let before = cache.current();
    let target = || store(TARGET, 5, 50, 0, &[1]);
    let shard = |id| store(SHARD, id, 30, 0, &[1]);
    let with = |change: fn(&mut ManagerRequest), stores| {
        let mut request = joining(3, 1, "127.0.0.1:7003", stores);
        change(&mut request);
        request
    };
    let keep: fn(&mut ManagerRequest) = |_request| {};
    let without_starts: fn(&mut ManagerRequest) = |request| {
        if let ManagerRequest::Join { starts, .. } = request {
            starts.clear();
        }
    };
    let other_uuid: fn(&mut ManagerRequest) = |request| {
        if let ManagerRequest::Join { targets, .. } = request {
            targets[0].uuid = [9; 16];
        }
    };
    let no_meta: fn(&mut ManagerRequest) = |request| {
        if let ManagerRequest::Join { meta, .. } = request {
            *meta = false;
        }
    };
    let odd = StoreStart {
        kind: 77,
        ..target()
    };
    for request in [
        with(keep, vec![target(), target()]),
        with(keep, vec![shard(4)]),
        with(keep, vec![shard(3), shard(3)]),
        with(keep, vec![odd]),
        with(without_starts, vec![target()]),
        with(without_starts, vec![shard(3)]),
        with(other_uuid, vec![target()]),
        with(no_meta, vec![shard(3), target()]),
    ] {
        let reply = manager.handle(request.clone());
        assert_eq!(failed(&reply), Some(ErrorCode::Invalid), "{request:?}");
        assert_eq!(cache.current(), before);
    }
}

#[test]
fn a_removed_store_is_refused_and_its_numbers_are_free() {
    let scratch = Scratch::new("taken-out");
    let (manager, cache) = manager(&scratch);
    manager_joins(&manager);
    for (node, target, uuid) in [(3, 5, 50), (4, 6, 51)] {
        assert_eq!(
            failed(&manager.handle(join(node, 1, false, Some((target, uuid))))),
            None
        );
    }
    let edit = |edit: MapEdit| {
        let expected = cache.current().version;
        let edits = zonal_types::Blob(vec![edit].to_bytes());
        failed(&manager.handle(ManagerRequest::Edit { expected, edits }))
    };
    let target = TargetId(6);
    assert_eq!(
        edit(MapEdit::RemoveTarget { target }),
        Some(ErrorCode::Invalid)
    );
    let state = zonal_zonemap::TargetState::Offline;
    assert_eq!(edit(MapEdit::UseTarget { target, state }), None);
    assert_eq!(edit(MapEdit::RemoveTarget { target }), None);
    assert!(cache.current().node(NodeId(4)).is_none());
    let again = manager.handle(joining(
        4,
        1,
        "127.0.0.1:7004",
        vec![store(TARGET, 6, 51, 1, &[2])],
    ));
    assert_eq!(failed(&again), Some(ErrorCode::WrongTarget));
    assert!(detail(again).contains("was taken out of the cell"));
    assert_eq!(
        failed(&manager.handle(join(4, 1, false, Some((6, 60))))),
        None
    );
}

#[test]
fn a_map_that_nobody_could_be_sent_is_refused_and_nothing_is_changed() {
    let scratch = Scratch::new("roles");
    let (manager, cache) = manager(&scratch);
    manager_joins(&manager);
    let before = cache.current();
    let mut many = Vec::new();
    for zone in 1..=4000 {
        many.push(MapEdit::Join {
            node: NodeId(100 + u32::from(zone)),
            zone: ZoneId(zone),
            zone_name: "z".repeat(255),
            address: "127.0.0.1:7000".into(),
            shard: None,
            targets: Vec::new(),
        });
    }
    let refused = manager.append(Vec::new(), &many, None);
    let too_large = zonal_zonemap::EditError::TooLarge {
        bytes: 0,
        change: 0,
    };
    let is_same = |error: &ManagerError| matches!(error, ManagerError::Edit(error) if std::mem::discriminant(error) == std::mem::discriminant(&too_large));
    assert!(refused.as_ref().is_err_and(is_same), "{refused:?}");
    assert_eq!(cache.current(), before);
    // Smaller steps succeed, and clients fetch the map in parts of bounded size.
    for some in many.chunks(500) {
        let map = manager.append(Vec::new(), some, None).unwrap();
        manager.settle(map).unwrap();
        manager.engine().checkpoint(&mut || Ok(())).unwrap();
    }
    let mut replies = 0;
    let none = zonal_zonemap::ZoneMap::unknown(CELL);
    let map = zonal_zonemap::Fetch::newer(Arc::new(none)).run(|request| {
        let reply = manager.handle(request.clone());
        replies += 1;
        assert!(reply.to_bytes().len() <= zonal_types::limits::BODY_BYTES_MAX);
        Ok::<_, zonal_zonemap::FetchError>(reply)
    });
    assert_eq!(map.unwrap(), cache.current());
    assert!(replies > 2, "{replies}");
}

#[test]
fn what_was_revoked_stays_so_over_a_restart_and_is_asked_for_once() {
    let scratch = Scratch::new("roles");
    let revoked =
        |manager: &ManagerRole, have| match manager.handle(ManagerRequest::GetRevoked { have }) {
            ManagerReply::Revoked { version, serials } => (version, serials),
            other => panic!("{other:?}"),
        };
    {
        let (manager, _cache) = manager(&scratch);
        assert_eq!(revoked(&manager, 0), (0, vec![]));
        for serials in [vec![9, 7], vec![7], vec![8]] {
            let reply = manager.handle(ManagerRequest::Revoke { serials });
            assert!(matches!(reply, ManagerReply::Revoked { .. }), "{reply:?}");
        }
        assert_eq!(revoked(&manager, 1), (2, vec![7, 8, 9]));
        assert_eq!(revoked(&manager, 2), (2, vec![]));
        let flood = (0..70_000).collect();
        let reply = manager.handle(ManagerRequest::Revoke { serials: flood });
        assert!(matches!(reply, ManagerReply::Failed { .. }));
    }
    let (manager, _cache) = manager(&scratch);
    assert_eq!(revoked(&manager, 0), (2, vec![7, 8, 9]));
}

#[test]
fn a_zone_takes_as_many_shards_as_it_is_to_have_and_a_command_may_ask_for_more() {
    let scratch = Scratch::new("roles");
    let shard_joins =
        |manager: &ManagerRole, node: u32| manager.join(join(node, 1, true, None), false);
    let want = |manager: &ManagerRole, zone, shards| {
        let zone = ZoneId(zone);
        manager.handle(ManagerRequest::WantShards { zone, shards })
    };
    let count = |wanted, present| ManagerReply::ShardCount { wanted, present };
    {
        let (manager, ..) = manager_with(&scratch, SubnetTable::default(), 2);
        manager_joins(&manager);
        shard_joins(&manager, 11).unwrap();
        let map = shard_joins(&manager, 12).unwrap();
        let owners = map.shards_of_zone(ZoneId(1)).map(|shard| shard.node.0);
        assert_eq!(owners.collect::<Vec<_>>(), [11, 12]);
        let (first, second) = (map.shard_at(NodeId(11)), map.shard_at(NodeId(12)));
        let (first, second) = (first.unwrap().id, second.unwrap().id);
        assert_ne!(first, second);
        assert!(!map.partitions_of(second).is_empty());
        let refused = shard_joins(&manager, 13).unwrap_err();
        assert!(
            matches!(refused, ManagerError::ShardTaken { .. }),
            "{refused}"
        );
        // They come back as what they are.
        assert_eq!(shard_joins(&manager, 12).unwrap().version, map.version);
        assert_eq!(want(&manager, 1, 3), count(3, 2));
        assert_eq!(want(&manager, 1, 1), count(3, 2));
        for (zone, shards) in [(9, 3), (1, 65)] {
            let refused = want(&manager, zone, shards);
            assert!(
                matches!(refused, ManagerReply::Failed { .. }),
                "{refused:?}"
            );
        }
    }
    let (manager, _cache) = manager(&scratch);
    assert_eq!(want(&manager, 1, 0), count(3, 2));
    let map = shard_joins(&manager, 13).unwrap();
    assert_eq!(map.shards_of_zone(ZoneId(1)).count(), 3);
    assert!(shard_joins(&manager, 14).is_err());
}

#[test]
fn a_node_whose_clock_is_far_off_is_refused_before_it_joins() {
    let scratch = Scratch::new("roles");
    let (manager, _cache) = manager(&scratch);
    let check = |clock_ms| {
        let node = NodeId(2);
        manager.handle(ManagerRequest::CheckClock { node, clock_ms })
    };
    let now = crate::node_clock::now_ms();
    assert!(matches!(check(now), ManagerReply::At { .. }));
    match check(now - 3_600_000) {
        ManagerReply::Failed { code, detail } => {
            assert_eq!(code.0, ErrorCode::Invalid);
            assert!(detail.contains("behind the manager's"), "{detail}");
        }
        other => panic!("{other:?}"),
    }
}

/// A manager with a table of subnets.
fn manager_with_subnets(dir: &Path) -> (ManagerRole, Arc<MapCache>) {
    let entry = |subnet: &str, zone| SubnetEntry {
        subnet: subnet.parse().unwrap(),
        zone,
    };
    let table = SubnetTable::new(vec![
        entry("127.0.1.0/24", ZoneReference::Number(ZoneId(2))),
        entry("127.0.2.0/24", ZoneReference::Name("row".to_owned())),
        entry("127.0.3.0/24", ZoneReference::Name("zone9".to_owned())),
    ]);
    let (manager, cache, _) = manager_with(dir, table.unwrap(), 1);
    (manager, cache)
}

/// The join of a node that brings a target and may name its zone.
fn unplaced(node: u32, name: &str, address: &str) -> ManagerRequest {
    let stores = vec![store(TARGET, node, node as u8, 0, &[1])];
    match joining(node, 0, address, stores) {
        ManagerRequest::Join {
            node,
            zone,
            address,
            meta,
            meta_zone,
            targets,
            starts,
            ..
        } => ManagerRequest::Join {
            node,
            zone,
            zone_name: name.to_owned(),
            address,
            meta,
            meta_zone,
            targets,
            starts,
        },
        other => other,
    }
}

#[test]
fn a_node_without_a_zone_gets_that_of_its_name_or_of_its_subnet() {
    let scratch = Scratch::new("roles");
    let (manager, cache) = manager_with_subnets(&scratch);
    manager_joins(&manager);
    let zone_of = |node: u32, name: &str, address: &str| {
        manager.join(unplaced(node, name, address), false).unwrap();
        cache.current().node(NodeId(node)).unwrap().zone.0
    };
    assert_eq!(zone_of(11, "", "127.0.1.1:1"), 2);
    // The lowest number that neither the map nor the table has.
    assert_eq!(zone_of(12, "", "127.0.2.1:1"), 3);
    assert_eq!(zone_of(13, "row", "127.0.9.1:1"), 3);
    assert_eq!(zone_of(14, "another row", "127.0.2.2:1"), 4);
    assert_eq!(zone_of(15, "", "127.0.3.1:1"), 9);
    assert_eq!(zone_of(12, "", "127.0.2.1:1"), 3);
    assert_eq!(cache.current().zone(ZoneId(3)).unwrap().name, "row");

    let before = cache.current();
    let none = manager.join(unplaced(16, "", "127.0.9.1:1"), false);
    let none = none.unwrap_err();
    assert_eq!(none.code(), ErrorCode::Invalid);
    let text = none.to_string();
    assert!(
        text.contains("127.0.9.1:1 is in none of the manager's 3 subnets"),
        "{text}"
    );
    // A node that is known does not move to another zone.
    let moved = manager.join(unplaced(12, "", "127.0.1.2:1"), false);
    assert!(matches!(moved, Err(ManagerError::Edit(_))), "{moved:?}");
    assert_eq!(cache.current(), before);
}

#[test]
fn a_name_of_two_zones_tells_no_zone_and_the_table_is_served() {
    let scratch = Scratch::new("roles");
    let (manager, _cache) = manager_with_subnets(&scratch);
    manager_joins(&manager);
    let served = || match manager.handle(ManagerRequest::GetSubnets) {
        ManagerReply::Subnets { subnets } => subnets,
        other => panic!("{other:?}"),
    };
    let row = |subnets: &[SubnetZone]| (subnets[1].zone.0, subnets[1].zone_name.clone());
    let first = served();
    assert_eq!(
        (first[0].subnet.as_str(), first[0].zone.0),
        ("127.0.1.0/24", 2)
    );
    assert_eq!(row(&first), (0, "row".to_owned()));
    let joined = manager.join(unplaced(12, "row", "127.0.9.1:1"), false);
    joined.unwrap();
    assert_eq!(row(&served()), (3, "row".to_owned()));
    let twin = MapEdit::Join {
        node: NodeId(70),
        zone: ZoneId(7),
        zone_name: "row".into(),
        address: "127.0.0.1:7000".into(),
        shard: None,
        targets: Vec::new(),
    };
    manager.append(Vec::new(), &[twin], None).unwrap();
    let refused = manager.join(unplaced(13, "row", "127.0.9.2:1"), false);
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("zones 3 and 7 are both called \"row\""),
        "{text}"
    );
}
