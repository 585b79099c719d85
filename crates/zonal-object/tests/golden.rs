//! The stored form of a target, byte for byte: a change here is a change of the format
//! (docs/on-disk-format.md, "Target").
//!
//! Fields are separated as on the page: version, body, checksum of values; the lists of notes.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod harness;
use harness::*;
use zonal_object::*;
use zonal_testkit::to_hex as hex;
use zonal_types::{Column, DataId};

const SMALL: TargetConfig = TargetConfig {
    segment_units: 64,
    segments: 4,
    pending_blocks_max: 16,
};
const OBJECT: ObjectId = ObjectId {
    data_id: DataId(0x0102_0304_0506_0708),
    column: Column(0x0a0b),
};

/// An object of one extent of 16 blocks; then 100 bytes in block 3 and 10 in block 48, which are in
/// the log.
fn filled() -> Shell {
    let mut shell = Shell::new(SMALL);
    let truncation = Truncation { seq: 17, bytes: 0 };
    shell.write(OBJECT, truncation, 0, &[0xaa; 65_536]).unwrap();
    shell
        .write(OBJECT, truncation, 3 * 4096, &[0xbb; 100])
        .unwrap();
    shell
        .write(OBJECT, truncation, 200_000, &[0xcc; 10])
        .unwrap();
    shell
}

/// The value under a key, which is given in hexadecimal digits.
fn value(shell: &Shell, key: &str) -> String {
    let found = shell.store.now.iter().find(|(at, _)| hex(at) == key);
    hex(found.unwrap_or_else(|| panic!("nothing under {key}")).1)
}

fn joined(fields: &[&str]) -> String {
    fields.concat()
}

const HEADER: &str = "1001020304050607080a0b00";
const CHUNK: &str = "1001020304050607080a0b010000000000000000";
const PENDING: &str = "0401020304050607080a0b0000000000000030";
/// crc32c of a block of 0xaa.
const CRC: &str = "656bd64e";
const NONE: &str = "00000000";

#[test]
fn keys() {
    assert_eq!(hex(&key::target()), "01");
    assert_eq!(hex(&key::segment(0x0102)), "0200000102");
    assert_eq!(hex(&key::tombstone(OBJECT)), "0301020304050607080a0b");
    assert_eq!(hex(&key::pending(OBJECT, 48)), PENDING);
    assert_eq!(hex(&key::header(OBJECT)), HEADER);
    assert_eq!(hex(&key::chunk(OBJECT, 0)), CHUNK);
}

#[test]
fn header_and_chunk() {
    let shell = filled();
    let header = [
        "01",
        "1100000000000000", // truncate_seq
        "4a0d030000000000", // object_bytes: 200,010
        "1100000000000000", // blocks: 17
        "0000000000000000", // birth_epoch
        "0000000000000000", // version
        "00",               // deleting
        "cf9d4fd4",
    ];
    assert_eq!(value(&shell, HEADER), joined(&header));
    let chunk = [
        "01",
        "0100000000000000", // version
        "0000000000000000", // birth_epoch
        "0000000000000000", // pending_version
        "ffff000000000000", // written
        "01",               // runs: first, count, segment, unit
        "0010",
        "00000000",
        "00000000",
        &CRC.repeat(16),
        "7f08cc90",
    ];
    assert_eq!(value(&shell, CHUNK), joined(&chunk));
}

#[test]
fn a_chunk_of_several_runs() {
    let mut shell = filled();
    shell.flush_pending(1);
    let chunk = [
        "01",
        "0200000000000000",
        "0000000000000000",
        "0000000000000000",
        "ffff000000000000",
        "03",
        "0003",
        "00000000",
        "00000000",
        "0301",
        "00000000",
        "10000000",
        "040c",
        "00000000",
        "04000000",
        &CRC.repeat(3),
        "bd869d42",
        &CRC.repeat(12),
        "91d448d0",
    ];
    assert_eq!(value(&shell, CHUNK), joined(&chunk));
}

#[test]
fn own_record_bitmap_and_pending_block() {
    let mut shell = filled();
    shell.flush_pending(1);
    shell.freeze(true);
    let own = [
        "01",
        "40000000",
        "0100000000000000",
        "0000000000000000",
        "9e27418f",
    ];
    assert_eq!(value(&shell, "01"), joined(&own));
    // Unit 3 was freed, unit 16 has its block now.
    let bitmap = ["01", "f7ff010000000000", "c46878d8"];
    assert_eq!(value(&shell, "0200000000"), joined(&bitmap));
    let pending = value(&shell, PENDING);
    assert_eq!(pending.len(), 2 * (1 + 4096 + 4));
    let at = 2 * (1 + 200_000 % 4096);
    assert_eq!(
        (&pending[..2], &pending[at..at + 20]),
        ("01", "cc".repeat(10).as_str())
    );
    assert_eq!(pending[2..2 * 4097].replace('0', ""), "cc".repeat(10));
}

#[test]
fn tombstone() {
    let shell = filled();
    let half = TargetDefect::HalfDeleted(OBJECT);
    let changes = repair::repair(&SMALL, &shell.store, &half, &|_| None).unwrap();
    assert_eq!(changes[0].key, key::tombstone(OBJECT));
    assert_eq!(hex(changes[0].value.as_ref().unwrap()), "01470f2731");
}

#[test]
fn notes() {
    let mut shell = filled();
    let of_object = "08070605040302010b0a";
    let extent = [
        "01",
        "01000000",
        "00000000",
        "00000000",
        "10000000",         // taken: segment, unit, count
        NONE,               // freed
        NONE,               // removed
        "0100000000000000", // objects
        NONE,               // put
    ];
    assert_eq!(hex(&shell.log[0].note), joined(&extent));
    let put = [
        "01",
        NONE,
        NONE,
        NONE,
        "0000000000000000",
        "01000000",
        of_object,
        "0300000000000000",
        &"bb".repeat(100),
        &"aa".repeat(3996),
    ];
    assert_eq!(hex(&shell.log[1].note), joined(&put));
    shell.flush_pending(1);
    shell.delete(vec![OBJECT]).unwrap();
    let deletion = [
        "01",
        NONE,
        "03000000",
        "00000000",
        "00000000",
        "03000000",
        "00000000",
        "10000000",
        "01000000",
        "00000000",
        "04000000",
        "0c000000",
        "01000000",
        of_object,
        "3000000000000000",
        "3100000000000000",
        "ffffffffffffffff",
        NONE,
    ];
    assert_eq!(hex(&shell.log.last().unwrap().note), joined(&deletion));
}
