//! Damaged and hostile bytes: typed errors or a shorter log, never a panic, never a wrong value.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{MemDisk, MemFile, put_record};
use zonal_disk::log::{HEADER, RecordHeader};
use zonal_disk::{DiskError, record};
use zonal_testkit::Rng;
use zonal_types::{ErrorCode, KvRead};

fn filled() -> MemDisk {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    for number in 0..600 {
        let record = put_record(
            &format!("{number:04}"),
            &format!("value {number} ").repeat(20),
        );
        engine.append(&record).unwrap();
        if number == 400 {
            engine.checkpoint(&mut || Ok(())).unwrap();
        }
    }
    drop(engine);
    disk
}

fn read_all(disk: &MemDisk) {
    let engine = match disk.open() {
        Ok(engine) => engine,
        Err(error) => {
            // The error is typed; its text does not matter here.
            let _ = error.code();
            return;
        }
    };
    let check = |key: &[u8], value: &[u8]| {
        let number: usize = std::str::from_utf8(key).unwrap().parse().unwrap();
        let expected = format!("value {number} ").repeat(20);
        assert_eq!(value, expected.as_bytes(), "a wrong value for {number}");
    };
    for number in 0..600 {
        let key = format!("{number:04}").into_bytes();
        match engine.get(&key) {
            Ok(value) => value.iter().for_each(|value| check(&key, value)),
            Err(code) => assert!(matches!(code, ErrorCode::Corrupt | ErrorCode::Io)),
        }
    }
    let mut visit = |key: &[u8], value: &[u8]| {
        // Keys in a damaged inner page may be anything; values are bound to theirs.
        if std::str::from_utf8(key).is_ok_and(|key| key.parse::<usize>().is_ok()) {
            check(key, value);
        }
        true
    };
    let _ = engine.scan(&[], &[0xff; 8], &mut visit);
    let _ = engine.append(&put_record("9999", "new"));
    let _ = engine.checkpoint(&mut || Ok(()));
}

#[test]
fn damage_at_random_positions_never_panics() {
    let disk = filled();
    let (log, index) = (disk.log.live(), disk.index.live());
    // The library's own panics are caught; their text would drown the report.
    std::panic::set_hook(Box::new(|_| ()));
    let mut failed = Vec::new();
    for seed in 0..300 {
        let mut rng = Rng(seed);
        let mut log = log.clone();
        let mut index = index.clone();
        let victim = if seed % 2 == 0 { &mut log } else { &mut index };
        let span = if seed % 2 == 0 {
            300_000
        } else {
            victim.len() as u64
        };
        for _ in 0..=rng.below(6) {
            let at = usize::try_from(rng.below(span)).unwrap();
            let length = if rng.below(3) == 0 { 512 } else { 1 };
            for byte in victim.iter_mut().skip(at).take(length) {
                *byte = rng.byte();
            }
        }
        let disk = MemDisk {
            log: MemFile::holding(log),
            index: MemFile::holding(index),
            ..disk.after_kill()
        };
        let run = std::panic::AssertUnwindSafe(|| read_all(&disk));
        if std::panic::catch_unwind(run).is_err() {
            failed.push(seed);
        }
    }
    let _ = std::panic::take_hook();
    assert!(failed.is_empty(), "seeds {failed:?}");
}

#[test]
fn hostile_records_are_refused() {
    let mut rng = Rng(9);
    let mut good = Vec::new();
    let sample = put_record("key", "value");
    record::encode(&mut good, &sample.changes, b"note").unwrap();
    assert_eq!(record::decode(&good).unwrap().changes, sample.changes);
    for cut in 0..good.len() {
        assert!(record::decode(&good[..cut]).is_none());
    }
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.index(bytes.len());
            bytes[at] = rng.byte();
        }
        let _ = record::decode(&bytes);
    }
    // A count and lengths that would need more memory than the machine has.
    assert!(record::decode(&[0xff; 64]).is_none());
}

#[test]
fn hostile_headers_are_refused() {
    let mut rng = Rng(10);
    for _ in 0..20_000 {
        let bytes = rng.bytes(HEADER);
        assert!(RecordHeader::decode(&bytes).is_none());
    }
    assert!(RecordHeader::decode(&[]).is_none());
}

#[test]
fn an_empty_or_foreign_index_is_a_typed_error() {
    let disk = filled();
    for bytes in [vec![0; 4096], vec![0x55; 100_000], b"redb".to_vec()] {
        let disk = MemDisk {
            log: disk.log.clone(),
            index: MemFile::holding(bytes),
            ..disk.after_kill()
        };
        match disk.open() {
            Err(DiskError::Corrupt(_) | DiskError::Io { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        }
    }
}

/// Reads of a store with a flipped bit in its index are right or an error; no entry is hidden.
fn hides_nothing(disk: &MemDisk) -> bool {
    let Ok(engine) = disk.open() else {
        return true;
    };
    let value = |number: usize| format!("value {number} ").repeat(20).into_bytes();
    let looked_up = (0..600).all(|number| {
        let found = engine.get(format!("{number:04}").as_bytes());
        found.is_err() || found == Ok(Some(value(number)))
    });
    let mut listed = 0;
    let whole = engine.scan(&[], &[0xff; 8], &mut |_, _| {
        listed += 1;
        true
    });
    looked_up && (whole.is_err() || listed == 600)
}

#[test]
fn a_flipped_bit_anywhere_in_the_index_hides_nothing() {
    let disk = filled();
    let index = disk.index.live();
    std::panic::set_hook(Box::new(|_| ()));
    let mut rng = Rng(5);
    let mut failed = Vec::new();
    for block in 0..index.len() / 4096 {
        // The important parts lie at a page's beginning: its kind, its length, its first keys and
        // children.
        for reach in [16, 4096] {
            let at = block * 4096 + usize::try_from(rng.below(reach)).unwrap();
            let mut bytes = index.clone();
            bytes[at] ^= 1 << rng.below(8);
            let flipped = MemDisk {
                index: MemFile::holding(bytes),
                ..disk.after_kill()
            };
            if !hides_nothing(&flipped) {
                failed.push(at);
            }
        }
    }
    let _ = std::panic::take_hook();
    assert!(failed.is_empty(), "flips at {failed:?}");
}

#[test]
fn where_the_kernel_kept_all_writes_only_the_last_record_may_be_cut() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let mut ends = vec![0];
    for number in 0..20 {
        let record = put_record(&format!("{number:04}"), &"x".repeat(700));
        ends.push(engine.append(&record).unwrap().0);
    }
    drop(engine);
    for (victim, start) in ends.iter().take(20).enumerate() {
        for offset in [30, 300] {
            let mut bytes = disk.log.live();
            bytes[usize::try_from(start + offset).unwrap()] ^= 1;
            let damaged = MemDisk {
                log: MemFile::holding(bytes),
                kept: true,
                ..disk.after_kill()
            };
            match damaged.open() {
                Err(DiskError::Corrupt(_)) => assert!(victim < 19, "the last may be cut"),
                Err(other) => panic!("{other}"),
                Ok(_) => assert_eq!(victim, 19, "a record was dropped in silence"),
            }
        }
    }
}
