//! Valid requests, as a base for damaged ones.

use super::impossible_requests::{create, lock, object, on_inode, root_user};
use zonal_types::{Blob, Codec, Column, DataId, Ino, ShardId, TargetId};
use zonal_wire::{AdminRequest, ManagerRequest, MetaRequest, NewKind, ScrubOf, StorageRequest};
use zonal_zonemap::{MapEdit, ZoneMap};

pub fn valid_meta(dir: Ino) -> Vec<Vec<u8>> {
    let mut valid: Vec<_> = on_inode(dir, 4).iter().map(Codec::to_bytes).collect();
    valid.push(create(root_user(3), dir, b"mutated", NewKind::File).to_bytes());
    valid.push(
        MetaRequest::Reclaim {
            opens: vec![dir; 5],
            locks: vec![(dir, lock(1, 2)); 3],
        }
        .to_bytes(),
    );
    valid
}

pub fn valid_storage(target: TargetId) -> Vec<Vec<u8>> {
    let object = object(target, 5);
    #[rustfmt::skip]
    let requests = [
        StorageRequest::Read { object, offset: 0, length: 4096 },
        StorageRequest::Write { object, offset: 0, sync: true, expected_version: 0, txn: 0, snap_epoch: 0 },
        StorageRequest::Punch { object, offset: 0, length: 4096 },
        StorageRequest::Allocate { object, offset: 0, length: 4096, zero: true },
        StorageRequest::Map { object, offset: 0, end: 4096, limit: 10 },
        StorageRequest::Truncate { object },
        StorageRequest::Delete { target, objects: vec![(DataId(5), Column(5)); 4] },
        StorageRequest::StatFs { target },
        StorageRequest::WriteRanges { object, ranges: vec![(0, 1), (5, 2), (5000, 3)] },
    ];
    requests.iter().map(Codec::to_bytes).collect()
}

pub fn valid_manager(map: &ZoneMap) -> Vec<Vec<u8>> {
    let node = &map.nodes[0];
    let edit = MapEdit::SetSlot {
        set: map.sets[0].id,
        slot: 0,
        target: map.targets[0].id,
    };
    #[rustfmt::skip]
    let requests = [
        ManagerRequest::GetMap { have: map.version },
        ManagerRequest::Join { node: node.id, zone: node.zone, zone_name: "zone1".into(), address: node.address.clone(), meta: true, meta_zone: zonal_types::ZoneId(0), targets: Vec::new(), starts: Vec::new() },
        ManagerRequest::Edit { expected: map.version, edits: Blob(vec![edit].to_bytes()) },
        ManagerRequest::Junction { ino: Ino::ROOT },
        ManagerRequest::Junctions { after: Some(("/a".into(), Ino(1))), entries: 10 },
        ManagerRequest::JunctionsAt { path: "/a".into() },
        ManagerRequest::GetMapPart { version: map.version, offset: 0 },
        ManagerRequest::GetSubnets,
        ManagerRequest::ReportLoad { node: node.id, cpu_per_mille: 999 },
    ];
    requests.iter().map(Codec::to_bytes).collect()
}

pub fn valid_admin(target: TargetId) -> Vec<Vec<u8>> {
    let requests = [
        AdminRequest::Health,
        AdminRequest::ScrubStart {
            of: ScrubOf::Target { target },
            rate: 1 << 20,
            anew: true,
        },
        AdminRequest::ScrubStop {
            of: ScrubOf::Shard { shard: ShardId(1) },
        },
        AdminRequest::ListObjects {
            target,
            after: Some((DataId(u64::MAX), Column(u16::MAX))),
            limit: u32::MAX,
            digests: true,
        },
        AdminRequest::SnapshotBegin { shard: ShardId(1) },
        AdminRequest::SnapshotRead {
            snapshot: 1,
            after: Blob(vec![0xff; 5000]),
        },
        AdminRequest::SnapshotEnd { snapshot: 1 },
    ];
    requests.iter().map(Codec::to_bytes).collect()
}
