//! A cell that grows: joins one at a time, the map in a store and in messages, and clients that
//! fetch its changes.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use zonal_testkit::Rng;
use zonal_types::limits::{MAP_PAGE_BYTES_MAX, MAP_TAIL_CHANGES_MAX};
use zonal_types::{
    Blob, CellId, Codec, ErrorCode, Ino, MapVersion, NodeId, PartitionId, ShardId, TargetId, ZoneId,
};
use zonal_wire::{JoinTarget, ManagerReply, ManagerRequest};
use zonal_zonemap::{
    ChangeMismatch, EditError, Fetch, FetchError, JunctionChange, Manager, MapChange, MapEdit,
    ZoneMap,
};

const CELL: CellId = CellId([7; 16]);
const ZONES: u16 = 50;
const TARGETS: u32 = 300;

/// A manager with its store.
struct Keeper {
    kv: BTreeMap<Vec<u8>, Vec<u8>>,
    manager: Manager,
}

impl Keeper {
    fn new() -> Self {
        let kv = BTreeMap::new();
        let manager = Manager::load(&kv, CELL).unwrap();
        Self { kv, manager }
    }

    fn edit(&mut self, edits: &[MapEdit]) -> Result<(), EditError> {
        let mut planned = self.manager.plan(&self.kv, edits, Vec::new(), None)?;
        for change in planned.changes.drain(..) {
            change.apply_to(&mut self.kv);
        }
        self.manager.logged(planned);
        let newest = self.manager.newest().clone();
        self.manager.flushed(&newest);
        Ok(())
    }

    fn ask(&mut self, request: &ManagerRequest) -> ManagerReply {
        let reply = self.manager.answer(&self.kv, request).unwrap().unwrap();
        assert!(reply.to_bytes().len() <= MAP_PAGE_BYTES_MAX + 64 * 1024);
        reply
    }

    fn fetch(&mut self, have: &Arc<ZoneMap>) -> (Arc<ZoneMap>, usize) {
        let mut replies = 0;
        let map = Fetch::newer(have.clone()).run(|request| {
            replies += 1;
            Ok::<_, FetchError>(self.ask(request))
        });
        (map.unwrap(), replies)
    }
}

fn join(node: u32, zone: u16, shard: Option<u32>, has_target: bool) -> MapEdit {
    let target = JoinTarget {
        target: TargetId(node),
        uuid: [node as u8; 16],
        capacity: 1 << 40,
    };
    MapEdit::Join {
        node: NodeId(node),
        zone: ZoneId(zone),
        zone_name: format!("row {zone}"),
        address: format!("10.{}.{}.{}:7100", zone, node / 250, node % 250),
        shard: shard.map(ShardId),
        targets: has_target.then_some(target).into_iter().collect(),
    }
}

fn unknown() -> Arc<ZoneMap> {
    Arc::new(ZoneMap::unknown(CELL))
}

#[test]
fn fifty_zones_of_three_hundred_targets_join_one_at_a_time() {
    let mut keeper = Keeper::new();
    keeper.edit(&[join(1, 1, Some(0), false)]).unwrap();
    let mut follower = unknown();
    let mut node = 1;
    for zone in 1..=ZONES {
        node += 1;
        let shard = Some(u32::from(zone));
        keeper.edit(&[join(node, zone, shard, false)]).unwrap();
        for _ in 1..TARGETS {
            node += 1;
            keeper.edit(&[join(node, zone, None, true)]).unwrap();
        }
        let before = keeper.manager.newest().clone();
        node += 1;
        keeper.edit(&[join(node, zone, None, true)]).unwrap();
        let change = before.change_to(keeper.manager.newest());
        assert!(change.to_bytes().len() < 8 * 1024, "one zone's sets");
        keeper
            .edit(&[MapEdit::OpenSets { zone: ZoneId(zone) }])
            .unwrap();
        let (now, replies) = keeper.fetch(&follower);
        assert!(
            zone == 1 || replies <= 5,
            "{replies} replies for {TARGETS} joins"
        );
        follower = now;
    }
    let map = keeper.manager.newest().clone();
    assert_eq!(follower, map);
    let slots: usize = map.sets.iter().map(|set| set.slots.len()).sum();
    assert_eq!(
        slots,
        usize::from(ZONES) * TARGETS as usize,
        "one slot a target"
    );
    let bytes = map.to_bytes();
    let since = Instant::now();
    let decoded = ZoneMap::decode(&bytes).unwrap();
    assert_eq!(decoded.check(), Vec::<String>::new());
    for set in &decoded.sets {
        for slot in &set.slots {
            let target = decoded.target(slot.target).unwrap();
            assert!(decoded.node(target.node).is_some());
        }
    }
    let took = since.elapsed();
    println!(
        "{} bytes; decoded, checked, every slot located: {took:.1?}",
        bytes.len()
    );
    assert!(took < Duration::from_secs(1), "{took:?}");
    // The store has the map. A restarted manager has no changes, so all clients fetch the whole map
    // in parts.
    assert_eq!(ZoneMap::load(&keeper.kv).unwrap().as_ref(), Some(&*map));
    keeper.manager = Manager::load(&keeper.kv, CELL).unwrap();
    let (fetched, replies) = keeper.fetch(&unknown());
    assert_eq!(fetched, map);
    assert!(replies > 2);
    assert!(map.shard_of(PartitionId(700)).is_some());
}

#[test]
fn making_a_junction_leaves_the_map_unchanged() {
    let mut keeper = Keeper::new();
    keeper
        .edit(&[join(1, 1, Some(0), false), join(2, 1, Some(1), true)])
        .unwrap();
    let (known, _) = keeper.fetch(&unknown());
    let add = JunctionChange::Add {
        ino: Ino::new(PartitionId(1), 16),
        path: "/data".into(),
        zone: ZoneId(1),
    };
    let mut planned = keeper
        .manager
        .plan(&keeper.kv, &[], vec![add], None)
        .unwrap();
    let bytes: usize = planned
        .changes
        .iter()
        .map(|of| of.key.len() + of.value.as_ref().map_or(0, Vec::len))
        .sum();
    assert!(bytes < 256, "{bytes}");
    for change in planned.changes.drain(..) {
        change.apply_to(&mut keeper.kv);
    }
    keeper.manager.logged(planned);
    let have = known.version;
    assert_eq!(
        keeper.ask(&ManagerRequest::GetMap { have }),
        ManagerReply::At { version: have }
    );
    let at = ManagerRequest::JunctionsAt {
        path: "/data".into(),
    };
    let ManagerReply::Junctions {
        junctions,
        count: 1,
        ..
    } = keeper.ask(&at)
    else {
        panic!("it is there");
    };
    let ino = junctions[0].ino;
    for request in [
        ManagerRequest::Junction { ino },
        ManagerRequest::Junctions {
            after: None,
            entries: 9,
        },
    ] {
        assert!(
            matches!(keeper.ask(&request), ManagerReply::Junctions { junctions: found, .. } if found == junctions)
        );
    }
}

#[test]
fn replies_show_only_durable_versions() {
    let mut keeper = Keeper::new();
    keeper.edit(&[join(1, 1, Some(0), false)]).unwrap();
    let (known, _) = keeper.fetch(&unknown());
    let planned = keeper
        .manager
        .plan(&keeper.kv, &[join(2, 1, None, true)], Vec::new(), None);
    keeper.manager.logged(planned.unwrap());
    assert_eq!(keeper.fetch(&known).0, known);
    assert_eq!(keeper.fetch(&unknown()).0, known);
    let newest = keeper.manager.newest().clone();
    keeper.manager.flushed(&newest);
    assert_eq!(keeper.fetch(&known), (newest.clone(), 1));
    // A client of another history has a version that the manager never had.
    let mut ahead = (*newest).clone();
    ahead.version.0 += 9;
    let ahead = Arc::new(ahead);
    assert_eq!(keeper.fetch(&ahead).0, ahead);
    let believed = Fetch::believing(ahead).run(|request| Ok::<_, FetchError>(keeper.ask(request)));
    assert_eq!(believed.unwrap(), newest);
}

#[test]
fn a_client_behind_the_kept_changes_fetches_the_whole_map() {
    let mut keeper = Keeper::new();
    keeper.edit(&[join(1, 1, Some(0), true)]).unwrap();
    let (old, _) = keeper.fetch(&unknown());
    keeper.edit(&[join(2, 1, None, true)]).unwrap();
    let (recent, _) = keeper.fetch(&old);
    for turn in 1..MAP_TAIL_CHANGES_MAX as u32 + 1 {
        let mut edit = join(1, 1, None, true);
        if let MapEdit::Join { address, .. } = &mut edit {
            *address = format!("10.0.0.1:{}", 1 + turn % 7);
        }
        keeper.edit(&[edit]).unwrap();
    }
    let newest = keeper.manager.newest().clone();
    assert_eq!(
        keeper.fetch(&old),
        (newest.clone(), 1),
        "the whole map, in one part"
    );
    let (followed, replies) = keeper.fetch(&recent);
    assert_eq!(followed, newest);
    assert!(replies > 1, "changes");
}

/// A map after edits, and the change that leads to it.
fn between(old: &ZoneMap, edits: &[MapEdit]) -> (ZoneMap, MapChange) {
    let next = old.edited(edits).unwrap().unwrap();
    let change = old.change_to(&next);
    (next, change)
}

#[test]
fn misfitting_changes_are_refused_and_the_whole_map_is_fetched() {
    let mut keeper = Keeper::new();
    keeper.edit(&[join(1, 1, Some(0), true)]).unwrap();
    let (known, _) = keeper.fetch(&unknown());
    let (second, first_change) = between(&known, &[join(2, 1, None, true)]);
    let (third, second_change) = between(&second, &[join(3, 2, None, true)]);
    assert_eq!(known.changed(&first_change).unwrap(), second);
    let order = known.changed(&second_change);
    assert!(
        matches!(order, Err(ChangeMismatch::Version { .. })),
        "{order:?}"
    );
    assert!(second.changed(&first_change).is_err(), "twice");
    let mut bad = first_change.clone();
    bad.gone.push(zonal_zonemap::ItemKey { kind: 2, id: 99 });
    assert!(matches!(
        known.changed(&bad),
        Err(ChangeMismatch::Unknown(_))
    ));
    let mut bad = first_change.clone();
    bad.head.cell = CellId([8; 16]);
    assert_eq!(known.changed(&bad), Err(ChangeMismatch::Foreign));
    keeper.edit(&[join(2, 1, None, true)]).unwrap();
    keeper.edit(&[join(3, 2, None, true)]).unwrap();
    let reply = |changes: Vec<Blob>, to: MapVersion| ManagerReply::MapChanges {
        from: known.version,
        to,
        newest: third.version,
        changes,
    };
    let (one, two) = (
        Blob(first_change.to_bytes()),
        Blob(second_change.to_bytes()),
    );
    let broken = {
        let mut broken = first_change.clone();
        broken
            .puts
            .retain(|item| !matches!(item, zonal_zonemap::Item::Node { .. }));
        Blob(broken.to_bytes())
    };
    for odd in [
        reply(vec![two.clone(), one.clone()], third.version),
        reply(vec![two], third.version),
        reply(vec![one.clone()], third.version),
        reply(vec![broken], second.version),
        reply(Vec::new(), third.version),
    ] {
        let mut fetch = Fetch::newer(known.clone());
        assert_eq!(fetch.take(odd), Ok(None), "it asks on");
        assert_eq!(
            fetch.request(),
            ManagerRequest::GetMap {
                have: MapVersion(0)
            }
        );
        let map = fetch.run(|request| Ok::<_, FetchError>(keeper.ask(request)));
        assert_eq!(map.unwrap(), *keeper.manager.newest());
    }
    // A fetch gives up on a manager whose replies never fit.
    let refused = Fetch::newer(known.clone()).run(|request| {
        Ok::<_, FetchError>(match request {
            ManagerRequest::GetMap { have } if have.0 > 0 => {
                reply(vec![one.clone(), one.clone()], third.version)
            }
            _ => ManagerReply::MapPart {
                version: third.version,
                newest: third.version,
                bytes: 100,
                offset: 50,
                part: Blob(vec![0; 10]),
            },
        })
    });
    assert_eq!(refused, Err(FetchError::OutOfOrder));
}

#[test]
fn unexpected_replies_end_a_fetch_with_a_typed_error() {
    let known = Arc::new(ZoneMap::new(CELL));
    let part = |bytes, offset, part: Vec<u8>| ManagerReply::MapPart {
        version: MapVersion(9),
        newest: MapVersion(9),
        bytes,
        offset,
        part: Blob(part),
    };
    let give = |reply: ManagerReply| {
        let mut replies = 0;
        let result = Fetch::newer(known.clone()).run(|_request| {
            replies += 1;
            Ok::<_, FetchError>(reply.clone())
        });
        assert!(replies < 10_000, "it ends");
        result
    };
    assert_eq!(give(part(u64::MAX, 0, vec![1])), Err(FetchError::TooLarge));
    assert_eq!(give(part(9, 0, Vec::new())), Err(FetchError::OutOfOrder));
    assert_eq!(
        give(part(9, u64::MAX, vec![1])),
        Err(FetchError::OutOfOrder)
    );
    assert!(give(part(1 << 20, 0, vec![1])).is_err());
    assert_eq!(
        give(part(2, 0, vec![1, 0])),
        Err(FetchError::Decode(ErrorCode::WrongVersion))
    );
    let mut foreign = ZoneMap::new(CellId([9; 16]));
    foreign.version = MapVersion(9);
    let bytes = foreign.to_bytes();
    assert_eq!(
        give(part(bytes.len() as u64, 0, bytes)),
        Err(FetchError::WrongCell)
    );
    let revoked = ManagerReply::Revoked {
        version: 1,
        serials: Vec::new(),
    };
    assert_eq!(give(revoked), Err(FetchError::Odd("Revoked")));
    let mut random = Rng(3);
    for _ in 0..20_000 {
        let count = random.index(60);
        let mut bytes = random.bytes(count);
        if let Some(tag) = bytes.first_mut() {
            *tag %= 7;
        }
        if let Ok(reply) = ManagerReply::from_bytes(&bytes) {
            let _ = Fetch::newer(known.clone()).take(reply);
        }
    }
}

#[test]
fn a_stored_map_that_is_damaged_or_of_another_format_is_refused() {
    let mut keeper = Keeper::new();
    keeper
        .edit(&[join(1, 1, Some(0), true), join(2, 2, Some(2), true)])
        .unwrap();
    let load = |kv: &BTreeMap<Vec<u8>, Vec<u8>>| {
        Manager::load(kv, CELL).map(|manager| manager.newest().clone())
    };
    assert!(load(&keeper.kv).is_ok());
    for (at, value) in keeper.kv.clone() {
        assert!(
            zonal_zonemap::map_records::describe(&at, &value).is_some(),
            "{at:?}"
        );
        let mut bad = keeper.kv.clone();
        bad.insert(at.clone(), value[..value.len() - 1].to_vec());
        assert!(load(&bad).is_err(), "{at:?}");
        bad.insert(at.clone(), value.clone());
        let mut other = at.clone();
        *other.last_mut().unwrap() ^= 4;
        if zonal_zonemap::map_records::is_of_map(&other) {
            bad.insert(other, value);
            assert!(load(&bad).is_err(), "another one's value");
        }
    }
    let head = zonal_zonemap::map_records::MAP_KEY.to_vec();
    for format in [1_u16, 2, 4] {
        let mut other = keeper.kv.clone();
        other.get_mut(&head).unwrap()[..2].copy_from_slice(&format.to_le_bytes());
        assert_eq!(load(&other), Err(ErrorCode::WrongVersion));
    }
    assert_eq!(
        Manager::load(&keeper.kv, CellId([1; 16])).err(),
        Some(ErrorCode::Corrupt)
    );
}
