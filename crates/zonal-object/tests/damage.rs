//! Damaged blocks and hostile stores: errors, never bytes and never a panic.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod harness;
use harness::*;
use zonal_object::*;
use zonal_testkit::Rng;
use zonal_types::{Codec, ErrorCode, KvChange};

#[test]
fn a_flipped_byte_is_an_error_and_never_bytes() {
    let (mut shell, payload) = filled();
    let mut rng = Rng(2);
    for _ in 0..50 {
        let at = rng.below(MIB as u64) as usize;
        let plan = shell
            .target
            .plan_read(&shell.store, object(1), UNTRUNCATED, at as u64, 1)
            .unwrap();
        let read = plan.reads().next().unwrap();
        let place = read.offset as usize + at % BLOCK;
        shell.segments.get_mut(&read.segment).unwrap()[place] ^= 1 << rng.below(8);
        let damage = shell.fetch(&plan).unwrap_err();
        assert_eq!(damage.offset, (at / BLOCK * BLOCK) as u64);
        assert_eq!((damage.segment, damage.object), (read.segment, object(1)));
        assert_eq!(
            shell.read(object(1), UNTRUNCATED, 0, MIB),
            Err(ErrorCode::Corrupt)
        );
        // A write to a part of the block does not make the block valid either.
        let result = shell.write(object(1), UNTRUNCATED, at as u64 / 4096 * 4096 + 1, b"x");
        assert_eq!(result, Err(ErrorCode::Corrupt));
        let punch = Edit::punch(object(1), UNTRUNCATED, at as u64 / 4096 * 4096 + 1, 1).unwrap();
        assert_eq!(shell.run_edit(punch), Err(ErrorCode::Corrupt));
        let segment = shell.segments.get_mut(&read.segment).unwrap();
        segment[read.offset as usize..][..BLOCK]
            .copy_from_slice(&payload[at / BLOCK * BLOCK..][..BLOCK]);
    }
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, MIB), Ok(payload));
    assert_eq!(shell.target.units_in_flight(), 0);
}

#[test]
fn a_reused_place_is_distinguished_from_damage() {
    let (mut shell, _) = filled();
    let plan = shell
        .target
        .plan_read(&shell.store, object(1), UNTRUNCATED, 0, 65_536)
        .unwrap();
    let read = plan.reads().next().unwrap();
    shell.delete(vec![object(1)]).unwrap();
    shell.checkpoint(true);
    shell.pwrite(read.segment, read.offset, &[9; 4096]);
    assert!(shell.fetch(&plan).is_err());
    let again = shell
        .target
        .plan_read(&shell.store, object(1), UNTRUNCATED, 0, 65_536)
        .unwrap();
    assert_ne!(plan, again);
}

/// Whatever the store holds, nothing panics and no bytes that fail their checks are served.
#[test]
fn hostile_values_are_errors() {
    let mut rng = Rng(7);
    for round in 0..160 {
        let (mut shell, payload) = filled();
        shell
            .write(object(1), UNTRUNCATED, 100, b"pending")
            .unwrap();
        shell.write(object(2), UNTRUNCATED, 0, b"other").unwrap();
        shell.flush_pending(1);
        shell.freeze(false);
        let keys: Vec<Vec<u8>> = shell.store.now.keys().cloned().collect();
        let key = keys[rng.index(keys.len())].clone();
        let mut value = shell.store.now[&key].clone();
        match round % 4 {
            0 => {
                let at = rng.index(value.len());
                value[at] ^= 1 << rng.below(8);
            }
            1 => value.truncate(rng.index(value.len())),
            2 => value = rng.bytes(64),
            _ => {
                // Nonsense with a correct checksum.
                let end = value.len() - 4;
                let at = 1 + rng.below(end as u64 - 1) as usize;
                value[at] = rng.byte();
                value.truncate(end);
                let sum = crc_fast::checksum(
                    crc_fast::CrcAlgorithm::Crc32Iscsi,
                    &[value.as_slice(), &key].concat(),
                );
                (sum as u32).put(&mut value);
            }
        }
        shell.store.apply(&[KvChange::put(key, value)]);
        if let Ok(bytes) = shell.read(object(1), UNTRUNCATED, 8192, 65_536) {
            assert!(
                bytes.len() < 65_536
                    || bytes == payload[8192..][..65_536]
                    || bytes.iter().filter(|byte| **byte == 0).count() >= 4096
            );
        }
        let _ = shell.write(object(1), UNTRUNCATED, 70_000, &payload[..200_000]);
        let _ = shell
            .target
            .map(&shell.store, object(1), UNTRUNCATED, 0, u64::MAX, 100);
        let _ = shell.target.check(&shell.store);
        let _ = shell.delete(vec![object(1)]);
        let notes: Vec<&[u8]> = shell
            .log
            .iter()
            .map(|record| record.note.as_slice())
            .collect();
        let _ = StorageTarget::open(CONFIG, &shell.store, notes);
        let mut note = rng.bytes(100);
        note[0] = 1;
        assert!(StorageTarget::open(CONFIG, &Store::default(), [note.as_slice()]).is_err());
    }
}
