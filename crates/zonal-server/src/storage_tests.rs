//! The storage role on a real store in a temporary folder, without a network.

use crate::config::NodeConfig;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::storage_io;
use crate::storage_role::{Refused, StorageRole};
use std::path::Path;
use std::sync::Arc;
use zonal_driver::at_once;
use zonal_driver::storage::{NotAdmitted, ReplyRoom, TargetHost, WriteFailure};
use zonal_net::{Identity, Pool, PoolConfig, Role};
use zonal_testkit::Scratch;
use zonal_types::{
    CellId, Column, DataId, Epoch, ErrorCode, HolderNumber, NodeId, StripeSetId, TargetId, ZoneId,
};
use zonal_wire::{Header, JoinTarget, ObjectRef, Service, StorageReply, StorageRequest};
use zonal_zonemap::{MapEdit, ZoneMap};

const CELL: CellId = CellId([7; 16]);

pub(crate) struct Opened {
    pub storage: Arc<StorageRole>,
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
    let own = Identity::new(CELL, Role::Server, NodeId(2), None);
    let pool = Arc::new(Pool::new(own, PoolConfig::default()));
    let peers = Arc::new(Peers::new(pool, CELL));
    let opened = storage_io::open(&config, &map, &peers).unwrap().unwrap();
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

/// The payload of a reply, and whether a client waits for it.
#[derive(Default)]
struct Reply {
    payload: Vec<u8>,
    is_sender_gone: bool,
}

impl ReplyRoom for Reply {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        self.payload.clear();
        self.payload.resize(bytes, 0xee);
        &mut self.payload
    }

    fn cut(&mut self, bytes: usize) {
        self.payload.truncate(bytes);
    }

    fn leave_shared(&mut self) {}

    fn is_sender_gone(&self) -> bool {
        self.is_sender_gone
    }
}

fn ask_by(
    storage: &StorageRole,
    request: &StorageRequest,
    payload: &[u8],
    reply: &mut Reply,
) -> Result<StorageReply, Refused> {
    let header = Header::request(Service::Storage, CELL);
    let from = (&header, HolderNumber(0));
    at_once(storage.driver().answer(from, request, payload, reply)).unwrap()
}

/// The target's answer, with the payload of its reply.
pub(crate) fn ask(
    storage: &StorageRole,
    request: &StorageRequest,
    payload: &[u8],
) -> Result<Vec<u8>, Refused> {
    let mut reply = Reply::default();
    ask_by(storage, request, payload, &mut reply).map(|_answer| reply.payload)
}

pub(crate) fn try_write(
    storage: &StorageRole,
    id: u64,
    offset: u64,
    bytes: &[u8],
) -> Result<(), Refused> {
    ask(storage, &write_at(id, offset), bytes).map(drop)
}

fn write_at(id: u64, offset: u64) -> StorageRequest {
    StorageRequest::Write {
        object: object(id),
        offset,
        sync: false,
        expected_version: 0,
        txn: 0,
        snap_epoch: 0,
    }
}

pub(crate) fn write(storage: &StorageRole, id: u64, offset: u64, bytes: &[u8]) {
    try_write(storage, id, offset, bytes).unwrap();
}

fn try_read(
    storage: &StorageRole,
    id: u64,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, Refused> {
    let request = StorageRequest::Read {
        object: object(id),
        offset,
        length: length as u32,
    };
    ask(storage, &request, &[])
}

pub(crate) fn read(storage: &StorageRole, id: u64, offset: u64, length: usize) -> Vec<u8> {
    try_read(storage, id, offset, length).unwrap()
}

pub(crate) fn delete(storage: &StorageRole, id: u64) {
    let request = StorageRequest::Delete {
        target: TargetId(1),
        objects: vec![(DataId(id), Column(0))],
    };
    ask(storage, &request, &[]).unwrap();
}

/// Bytes that tell the write that they belong to.
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
        // 16 times the bound on pending bytes, ragged, overlapping.
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
        // A checkpoint in the background holds units until its end.
        opened.storage.checkpoint().unwrap();
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
fn an_abandoned_request_changes_nothing() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    let (storage, before) = (&opened.storage, pattern(1, 64 << 10));
    write(storage, 5, 0, &before);
    let refused = |request: &StorageRequest, payload: &[u8]| {
        let mut gone = Reply {
            is_sender_gone: true,
            ..Reply::default()
        };
        let answer = ask_by(storage, request, payload, &mut gone);
        assert_eq!(answer.err().unwrap().code, ErrorCode::NotReady);
    };
    // Into free space, and into an existing block.
    for (offset, length) in [(0, 64 << 10), (100, 100)] {
        refused(&write_at(5, offset), &pattern(2, length));
    }
    let (object, offset, length) = (object(5), 0, 8192);
    let punch = StorageRequest::Punch {
        object,
        offset,
        length,
    };
    let allocate = StorageRequest::Allocate {
        object,
        offset,
        length,
        zero: true,
    };
    refused(&punch, &[]);
    refused(&allocate, &[]);
    assert!(read(storage, 5, 0, 64 << 10) == before);
    assert_eq!(storage.lock().units_in_flight(), 0);
}

#[test]
fn damage_while_a_target_is_down_is_an_error_and_never_zeros() {
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

/// Flips bits in all segments of a target.
fn damage_segments(dir: &Path) {
    for entry in std::fs::read_dir(dir.join("target/segments")).unwrap() {
        let path = entry.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.iter_mut().step_by(512).for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes).unwrap();
    }
}

/// Length of the first block of an object as read; `None` for damage.
fn first_block(storage: &StorageRole, id: u64) -> Option<usize> {
    match try_read(storage, id, 0, 4096) {
        Ok(bytes) => Some(bytes.len()),
        Err(refused) => {
            assert_eq!(refused.code, ErrorCode::Corrupt);
            None
        }
    }
}

#[test]
fn after_a_kill_data_that_do_not_match_are_damage_and_after_a_loss_of_power_they_never_arrived() {
    let scratch = Scratch::new("roles");
    let kept = {
        let opened = storage(&scratch);
        write(&opened.storage, 5, 0, &pattern(1, 64 << 10));
        opened.storage.engine.verifier()
    };
    // Killed: nothing was flushed, and only the log has the record.
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
fn a_target_acknowledges_nothing_on_a_medium_that_refuses_writes() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    write(&opened.storage, 5, 0, &pattern(1, 64 << 10));
    assert_eq!(opened.storage.failure(), None);
    // Bad bytes or a bad place are not a failure of the medium.
    let host = opened.storage.driver().host();
    let outside = at_once(host.write_segment(3, u64::from(u32::MAX), &[0; 4096]));
    assert!(matches!(outside, Ok(Err(WriteFailure::Bytes(_)))));
    // A directory in place of a segment, which takes no writes.
    std::fs::create_dir(scratch.join("target/segments/seg.00000001.new")).unwrap();
    let refused = try_write(&opened.storage, 6, 0, &pattern(2, 1 << 20));
    assert_eq!(refused.err().unwrap().code, ErrorCode::Io);
    let why = opened.storage.failure().unwrap();
    assert!(why.contains("segment 1"), "{why}");
    assert!(!opened.storage.is_healthy());
    assert_eq!(opened.storage.lock().units_in_flight(), 0);
}

#[test]
fn a_full_target_says_so_and_deletion_makes_room() {
    let scratch = Scratch::new("roles");
    let opened = storage(&scratch);
    let bytes = pattern(1, 1 << 20);
    let refused = (0..100).find_map(|step| {
        let result = try_write(&opened.storage, 1, step << 20, &bytes);
        result.err().map(|refused| (step, refused.code))
    });
    let (step, code) = refused.unwrap();
    assert_eq!(code, ErrorCode::NoSpace);
    assert!((50..64).contains(&step), "{step}");
    assert!(opened.storage.is_healthy());
    delete(&opened.storage, 1);
    for step in 0..step {
        write(&opened.storage, 2, step << 20, &bytes);
    }
    assert!(read(&opened.storage, 2, 0, 1 << 20) == bytes);
}

/// Target 1 lies in three sets, each made by the same version of the map: after it joined, 2, and
/// 3.
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

/// A read by a slot of a map, which the sender has.
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

fn refused(
    storage: &StorageRole,
    (header, request): &(Header, StorageRequest),
) -> Option<ErrorCode> {
    match at_once(storage.driver().admit(header, request)).unwrap() {
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
    // The slot of one set changes; in the two others the target still has the old epoch.
    let renewed = renew(&before, sets[1], 1);
    opened.map.publish(Arc::new(renewed.clone()));
    let stale = Some(ErrorCode::StaleEpoch);
    for (set, expected) in [(sets[0], None), (sets[1], stale), (sets[2], None)] {
        let by_old = by_slot(&before, set, 0);
        assert_eq!(refused(&opened.storage, &by_old), expected, "set {set}");
        let by_new = by_slot(&renewed, set, 0);
        assert_eq!(refused(&opened.storage, &by_new), None, "set {set}");
    }
    // The slot moves to another target.
    let moved = renew(&renewed, sets[0], 2);
    let by_new = by_slot(&moved, sets[0], 0);
    // This process cannot fetch the sender's map.
    let not_ready = Some(ErrorCode::NotReady);
    assert_eq!(refused(&opened.storage, &by_new), not_ready);
    opened.map.publish(Arc::new(moved.clone()));
    let by_old = by_slot(&renewed, sets[0], 0);
    assert_eq!(refused(&opened.storage, &by_old), stale);
    let elsewhere = Some(ErrorCode::WrongTarget);
    assert_eq!(refused(&opened.storage, &by_new), elsewhere);
}

#[test]
fn unknown_slots_are_refused_and_requests_for_a_whole_target_name_none() {
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
