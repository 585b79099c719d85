//! Hostile zone maps and edits: decoding, checking, looking up and editing never panic.
//!
//! A map has the bytes written down here: they are the manager's stored form and travel on the
//! wire.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

use zonal_testkit::Rng;
use zonal_types::{
    CellId, Codec, ErrorCode, Ino, NodeId, PartitionId, ShardId, StripeSetId, TargetId, ZoneId,
};
use zonal_wire::JoinTarget;
use zonal_zonemap::{MapEdit, ZoneMap};

fn edits() -> Vec<MapEdit> {
    let target = JoinTarget {
        target: TargetId(1),
        uuid: *b"fedcba9876543210",
        capacity: 1 << 30,
    };
    vec![
        MapEdit::Join {
            node: NodeId(1),
            zone: ZoneId(1),
            zone_name: "zone1".into(),
            address: "127.0.0.1:7100".into(),
            shard: Some(ShardId(0)),
            targets: Vec::new(),
        },
        MapEdit::Join {
            node: NodeId(2),
            zone: ZoneId(1),
            zone_name: "zone1".into(),
            address: "127.0.0.1:7101".into(),
            shard: Some(ShardId(1)),
            targets: vec![target],
        },
    ]
}

fn map() -> ZoneMap {
    let map = ZoneMap::new(CellId(*b"0123456789abcdef"));
    map.edited(&edits()).unwrap().unwrap()
}

/// Does with a map from the network all that a process does with one.
fn feed(bytes: &[u8]) {
    let Ok(map) = ZoneMap::from_bytes(bytes) else {
        return;
    };
    assert_eq!(map.to_bytes(), bytes);
    let is_sound = map.check().is_empty();
    // Look-ups never panic, also on a map with violated invariants.
    for id in [0, 1, 2, u32::MAX] {
        let _ = (map.zone(ZoneId(id as u16)), map.node(NodeId(id)));
        let _ = (map.target(TargetId(id)), map.shard(ShardId(id)));
        let _ = (map.set(StripeSetId(id)), map.shard_of(PartitionId(id)));
    }
    let _ = (map.zone_of(Ino(u64::MAX)), map.targets_by_zone());
    if is_sound && let Ok(Some(next)) = map.edited(&edits()) {
        assert_eq!(next.check(), Vec::<String>::new());
    }
}

#[test]
fn every_prefix_is_refused() {
    let bytes = map().to_bytes();
    for end in 0..bytes.len() {
        assert!(ZoneMap::from_bytes(&bytes[..end]).is_err(), "prefix {end}");
    }
}

#[test]
fn flipped_bits_and_overwritten_fields_never_panic() {
    let good = map().to_bytes();
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        feed(&bad);
    }
    let mut random = Rng(7);
    for _ in 0..20_000 {
        let mut bad = good.clone();
        let at = random.index(bad.len());
        let count = (1 + random.index(8)).min(bad.len() - at);
        bad[at..at + count].fill([0, 1, 0x7f, 0x80, 0xff][random.index(5)]);
        feed(&bad);
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Rng(8);
    for _ in 0..20_000 {
        let count = random.index(120);
        let bytes: Vec<u8> = (0..count).map(|_| random.below(3) as u8).collect();
        feed(&bytes);
        let _ = Vec::<MapEdit>::from_bytes(&bytes);
    }
}

#[test]
fn map_bytes_match_the_golden_file() {
    let hex = zonal_testkit::to_hex(&map().to_bytes());
    assert_eq!(hex, include_str!("../testdata/map.hex").trim());
}

#[test]
fn a_newer_format_is_refused_as_wrong_version() {
    let mut map = ZoneMap::new(CellId([5; 16]));
    assert_eq!(ZoneMap::decode(&map.to_bytes()), Ok(map.clone()));
    map.format += 1;
    let newer = map.to_bytes();
    for bytes in [
        newer.as_slice(),
        &newer[..2],
        &[newer.as_slice(), b"more"].concat(),
    ] {
        assert_eq!(ZoneMap::decode(bytes), Err(ErrorCode::WrongVersion));
    }
    assert_eq!(ZoneMap::decode(&newer[..1]), Err(ErrorCode::Corrupt));
}
