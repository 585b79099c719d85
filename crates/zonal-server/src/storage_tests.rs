//! The storage role on a real store in a temporary folder, without a network.

use crate::config::NodeConfig;
use crate::map_cache::MapCache;
use crate::storage_io;
use crate::storage_role::{Asker, NotAdmitted, Storage};
use std::path::Path;
use std::sync::Arc;
use zonal_object::{Delete, Edit};
use zonal_testkit::Scratch;
use zonal_types::{
    CellId, Column, DataId, Epoch, ErrorCode, NodeId, StripeSetId, TargetId, ZoneId,
};
use zonal_wire::{Header, JoinTarget, ObjectRef, Service, StorageReply, StorageRequest};
use zonal_zonemap::{MapEdit, ZoneMap};

const CELL: CellId = CellId([7; 16]);

pub(crate) struct Opened {
    pub storage: Arc<Storage>,
    pub config: NodeConfig,
    map: Arc<MapCache>,
    _checkpointer: zonal_disk::Checkpointer,
}

pub(crate) fn storage(dir: &Path) -> Opened {
    let text = format!(
        "cell = \"{CELL}\"\nnode = 2\nlisten = \"127.0.0.1:7002\"\nmanager_address = \"127.0.0.1:7001\"\n\
         [zone]\nid = 1\n[storage]\ntarget = 1\ncapacity = \"64 MiB\"\nsegment = \"1 MiB\"\n\
         log = \"8 MiB\"\npending = \"256 KiB\"\noverlay = \"1 MiB\"\n"
    );
    let mut nodes = NodeConfig::parse(&dir.join("node.toml"), &text).unwrap();
    let config = nodes.remove(0);
    storage_io::format(&config).unwrap();
    let map = Arc::new(MapCache::here(CELL));
    let opened = storage_io::open(&config, &map).unwrap().unwrap();
    Opened {
        storage: opened.storage,
        config,
        map,
        _checkpointer: opened.checkpointer,
    }
}

pub(crate) fn object(id: u64) -> ObjectRef {
    ObjectRef {
        target: TargetId(1),
        set: StripeSetId(0),
        slot: 0,
        data_id: DataId(id),
        column: Column(0),
        layout_gen: 0,
        truncate_seq: 0,
        truncate_bytes: 0,
    }
}

pub(crate) fn write(storage: &Storage, id: u64, offset: u64, bytes: &[u8]) {
    let result = storage.write(
        &object(id),
        Asker::WAITS,
        &[(offset, bytes.len() as u32)],
        bytes,
    );
    assert!(
        result.is_ok(),
        "{:?}",
        result.err().map(|refused| refused.detail)
    );
}

pub(crate) fn read(storage: &Storage, id: u64, offset: u64, length: usize) -> Vec<u8> {
    let object = zonal_object::ObjectId {
        data_id: DataId(id),
        column: Column(0),
    };
    let cut = zonal_object::Cut::default();
    let plan = storage
        .lock()
        .plan_read(&*storage.engine, object, cut, offset, length);
    let plan = plan.unwrap();
    let mut buffer = vec![0; plan.buffer_len()];
    storage_io::fill(&storage.segments, &plan, &mut buffer).unwrap();
    let range = plan.finish(&mut buffer).unwrap();
    buffer[range].to_vec()
}

/// Bytes that tell from which write they are.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length)
        .map(|index| ((seed * 31 + index * 7) % 251) as u8)
        .collect()
}

#[test]
fn small_writes_pass_their_bound_many_times_and_survive() {
    let scratch = Scratch::new("roles");
    let mut model = vec![0; 3 << 20];
    {
        let opened = storage(&scratch);
        // 16 times what may be pending, ragged, overlapping.
        for step in 0..1000 {
            let offset = step * 2_999 % (model.len() - 8192);
            let bytes = pattern(step, 100 + step * 37 % 8000);
            write(&opened.storage, 5, offset as u64, &bytes);
            model[offset..offset + bytes.len()].copy_from_slice(&bytes);
        }
        write(&opened.storage, 5, 1 << 20, &pattern(9, 1 << 20));
        model[1 << 20..2 << 20].copy_from_slice(&pattern(9, 1 << 20));
        let end = read(&opened.storage, 5, 0, 3 << 20).len();
        model.truncate(end);
        assert!(read(&opened.storage, 5, 0, 3 << 20) == model);
        let gauges = opened.storage.gauges();
        let gauge = |name: &str| gauges.iter().find(|(known, _)| known == name).unwrap().1;
        assert!(gauge("target_checkpoints_total") > 3);
        assert!(gauge("target_pending_bytes") <= gauge("target_pending_bytes_max"));
        assert_eq!(opened.storage.lock().units_in_flight(), 0);
    }
    let opened = storage(&scratch);
    assert!(read(&opened.storage, 5, 0, 3 << 20) == model);
    opened
        .storage
        .lock()
        .check(&*opened.storage.engine)
        .unwrap();
}

#[test]
fn what_nobody_waits_for_any_more_is_not_changed() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    let (storage, before) = (&opened.storage, pattern(1, 64 << 10));
    write(storage, 5, 0, &before);
    let gone = Asker {
        is_gone: &|| true,
        ..Asker::WAITS
    };
    // Into free space, and into a block that there is.
    for (offset, length) in [(0, 64 << 10), (100, 100)] {
        let refused = storage.write(
            &object(5),
            gone,
            &[(offset, length as u32)],
            &pattern(2, length),
        );
        assert_eq!(refused.err().unwrap().code, ErrorCode::NotReady);
    }
    let (id, cut) = crate::storage_role::named(&object(5));
    for edit in [
        Edit::punch(id, cut, 0, 8192),
        Edit::allocate(id, cut, 0, 8192, true),
    ] {
        let refused = storage.edit_range(edit.unwrap(), gone);
        assert_eq!(refused.err().unwrap().code, ErrorCode::NotReady);
    }
    assert!(read(storage, 5, 0, 64 << 10) == before);
    assert_eq!(storage.lock().units_in_flight(), 0);
}

#[test]
fn damage_done_while_a_target_is_down_is_an_error_and_never_zeros() {
    let scratch = Scratch::new("roles");
    {
        let opened = storage(&scratch);
        write(&opened.storage, 5, 0, &pattern(1, 64 << 10));
        write(&opened.storage, 6, 0, b"small");
        storage_io::close(&opened.storage);
    }
    damage_segments(&scratch);
    let opened = storage(&scratch);
    assert_eq!(first_block(&opened.storage, 5), None);
    assert_eq!(first_block(&opened.storage, 6), None);
}

/// Flips bits all over the segments of a target.
fn damage_segments(dir: &Path) {
    for entry in std::fs::read_dir(dir.join("target/segments")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes).unwrap();
    }
}

/// What a reader of the first block of an object gets: `None` for damage.
fn first_block(storage: &Storage, id: u64) -> Option<usize> {
    let object = zonal_object::ObjectId {
        data_id: DataId(id),
        column: Column(0),
    };
    let cut = zonal_object::Cut::default();
    let target = storage.lock();
    let plan = target.plan_read(&*storage.engine, object, cut, 0, 4096);
    let plan = plan.unwrap();
    let mut buffer = vec![0; plan.buffer_len()];
    storage_io::fill(&storage.segments, &plan, &mut buffer).unwrap();
    plan.finish(&mut buffer).ok().map(|range| range.len())
}

#[test]
fn after_a_kill_data_that_do_not_match_are_damage_and_after_a_loss_of_power_they_never_arrived() {
    let scratch = Scratch::new("roles");
    let kept = {
        let opened = storage(&scratch);
        write(&opened.storage, 5, 0, &pattern(1, 64 << 10));
        opened.storage.engine.verifier()
    };
    // Killed: nothing was flushed, and the log alone has the record.
    damage_segments(&scratch);
    {
        let opened = storage(&scratch);
        assert_eq!(first_block(&opened.storage, 5), None);
        assert_eq!(opened.storage.engine.verifier(), kept);
    }
    // A store that does not say under which start of the kernel it was open.
    std::fs::remove_file(scratch.join("target/power")).unwrap();
    let opened = storage(&scratch);
    assert_eq!(first_block(&opened.storage, 5), Some(0));
    assert_ne!(opened.storage.engine.verifier(), kept);
}

#[test]
fn a_medium_that_takes_no_writes_is_not_asked_to_acknowledge() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    write(&opened.storage, 5, 0, &pattern(1, 64 << 10));
    assert_eq!(opened.storage.failure(), None);
    // A segment in place of which there is something that takes no writes.
    let failed = opened
        .storage
        .write_segment(3, u64::from(u32::MAX), &[0; 4096]);
    assert!(
        failed.is_err() && opened.storage.is_healthy(),
        "a wrong range is our fault"
    );
    std::fs::create_dir(scratch.join("target/segments/seg.00000003.new")).unwrap();
    assert!(opened.storage.write_segment(3, 0, &[0; 4096]).is_err());
    assert!(opened.storage.failure().unwrap().contains("segment 3"));
    assert!(!opened.storage.is_healthy());
}

#[test]
fn a_full_target_says_so_and_deletion_makes_room() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    let bytes = pattern(1, 1 << 20);
    let refused = (0..100).find_map(|step| {
        let result = opened.storage.write(
            &object(1),
            Asker::WAITS,
            &[(step << 20, bytes.len() as u32)],
            &bytes,
        );
        result.err().map(|refused| (step, refused.code))
    });
    let (step, code) = refused.unwrap();
    assert_eq!(code, ErrorCode::NoSpace);
    assert!((50..64).contains(&step), "{step}");
    assert!(opened.storage.is_healthy());
    let id = zonal_object::ObjectId {
        data_id: DataId(1),
        column: Column(0),
    };
    assert!(opened.storage.delete(Delete::new(vec![id])).is_ok());
    for step in 0..step {
        write(&opened.storage, 2, step << 20, &bytes);
    }
    assert!(read(&opened.storage, 2, 0, 1 << 20) == bytes);
}

/// Target 1 lies in three sets, each made by the same version of the map: after it joined, 2, and 3.
fn in_three_sets() -> ZoneMap {
    let join = |target: u32| MapEdit::Join {
        node: NodeId(1 + target),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: format!("127.0.0.1:{}", 7001 + target),
        shard: None,
        targets: vec![JoinTarget {
            target: TargetId(target),
            uuid: [1; 16],
            capacity: 1 << 30,
        }],
    };
    let open = || MapEdit::OpenSets { zone: ZoneId(1) };
    let map = ZoneMap::new(CELL).edited(&[join(1), open(), join(2), open(), join(3)]);
    let map = map.unwrap().unwrap();
    let has_it = map.sets.iter().filter(|set| {
        let mut slots = set.slots.iter();
        slots.any(|slot| slot.target == TargetId(1))
    });
    assert_eq!(has_it.count(), 3);
    map
}

/// A read by a slot as a map has it, which the sender has.
fn by_slot(map: &ZoneMap, set: StripeSetId, slot: u16) -> (Header, StorageRequest) {
    let mut header = Header::request(Service::Storage, CELL);
    header.map_version = map.version;
    header.epoch = map.set(set).unwrap().slots[usize::from(slot)].slot_epoch;
    let object = ObjectRef {
        set,
        slot,
        ..object(5)
    };
    (header, StorageRequest::Stat { object })
}

fn refused(storage: &Storage, (header, request): &(Header, StorageRequest)) -> Option<ErrorCode> {
    match storage.check_sender(header, request) {
        Ok(()) => None,
        Err(NotAdmitted::Refused(refused)) => Some(refused.code),
        Err(NotAdmitted::Stale(StorageReply::Stale { .. })) => Some(ErrorCode::StaleEpoch),
        Err(NotAdmitted::Stale(other)) => panic!("{other:?}"),
    }
}

#[test]
fn a_stale_client_is_refused_by_a_target_that_lies_in_three_sets() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    let renew = |map: &ZoneMap, set: StripeSetId, target: u32| {
        let (slot, target) = (0, TargetId(target));
        let edit = MapEdit::SetSlot { set, slot, target };
        map.edited(&[edit]).unwrap().unwrap()
    };
    let before = in_three_sets();
    let sets: Vec<StripeSetId> = before.sets.iter().map(|set| set.id).collect();
    opened.map.publish(Arc::new(before.clone()));
    for set in &sets {
        assert_eq!(refused(&opened.storage, &by_slot(&before, *set, 0)), None);
    }
    // The slot of one set changes; in the two others the target has the old epoch still.
    let renewed = renew(&before, sets[1], 1);
    opened.map.publish(Arc::new(renewed.clone()));
    let stale = Some(ErrorCode::StaleEpoch);
    for (set, expected) in [(sets[0], None), (sets[1], stale), (sets[2], None)] {
        let by_old = by_slot(&before, set, 0);
        assert_eq!(refused(&opened.storage, &by_old), expected, "set {set}");
        let by_new = by_slot(&renewed, set, 0);
        assert_eq!(refused(&opened.storage, &by_new), None, "set {set}");
    }
    // It moves to another target.
    let moved = renew(&renewed, sets[0], 2);
    let by_new = by_slot(&moved, sets[0], 0);
    // Nobody gives us the sender's map.
    let not_ready = Some(ErrorCode::NotReady);
    assert_eq!(refused(&opened.storage, &by_new), not_ready);
    opened.map.publish(Arc::new(moved.clone()));
    let by_old = by_slot(&renewed, sets[0], 0);
    assert_eq!(refused(&opened.storage, &by_old), stale);
    let elsewhere = Some(ErrorCode::WrongTarget);
    assert_eq!(refused(&opened.storage, &by_new), elsewhere);
}

#[test]
fn slots_that_do_not_exist_are_refused_and_whole_targets_need_none() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    let map = in_three_sets();
    opened.map.publish(Arc::new(map.clone()));
    let good = by_slot(&map, map.sets[2].id, 0);
    let with = |set: StripeSetId, slot: u16, epoch: Epoch| {
        let object = ObjectRef {
            set,
            slot,
            ..object(5)
        };
        let (mut header, request) = (good.0, StorageRequest::Stat { object });
        header.epoch = epoch;
        refused(&opened.storage, &(header, request))
    };
    let (set, epoch) = (map.sets[2].id, good.0.epoch);
    let wrong = Some(ErrorCode::WrongTarget);
    assert_eq!(with(set, 0, epoch), None);
    assert_eq!(with(set, 1, epoch), wrong, "another target's");
    assert_eq!(with(set, 3, epoch), wrong);
    assert_eq!(with(set, u16::MAX, epoch), wrong);
    assert_eq!(with(StripeSetId(9), 0, epoch), wrong);
    assert_eq!(with(StripeSetId(0), 0, epoch), wrong);
    assert_eq!(with(set, 0, Epoch(0)), Some(ErrorCode::StaleEpoch));
    assert_eq!(with(StripeSetId(0), 0, Epoch(0)), None, "a tool's");
    let of_target = |target: u32| {
        let target = TargetId(target);
        refused(
            &opened.storage,
            &(good.0, StorageRequest::StatFs { target }),
        )
    };
    assert_eq!(of_target(1), None);
    assert_eq!(of_target(2), wrong);
}
