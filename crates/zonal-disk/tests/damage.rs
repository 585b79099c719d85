//! Damaged and hostile bytes: typed errors or a shorter log, never a panic, never a wrong value.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{MemDisk, MemFile, Rng, put_record};
use zonal_disk::log::{HEADER, Header};
use zonal_disk::{DiskError, record};
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
            // Typed; what it says does not matter here.
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
                *byte = rng.next() as u8;
            }
        }
        let disk = MemDisk {
            log: MemFile::holding(log),
            index: MemFile::holding(index),
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
            let at = usize::try_from(rng.below(bytes.len() as u64)).unwrap();
            bytes[at] = rng.next() as u8;
        }
        let _ = record::decode(&bytes);
    }
    // A count and lengths that would need more memory than there is.
    assert!(record::decode(&[0xff; 64]).is_none());
}

#[test]
fn hostile_headers_are_refused() {
    let mut rng = Rng(10);
    for _ in 0..20_000 {
        let bytes: Vec<u8> = (0..HEADER).map(|_| rng.next() as u8).collect();
        assert!(Header::decode(&bytes).is_none());
    }
    assert!(Header::decode(&[]).is_none());
}

#[test]
fn an_empty_or_foreign_index_is_a_typed_error() {
    let disk = filled();
    for bytes in [vec![0; 4096], vec![0x55; 100_000], b"redb".to_vec()] {
        let disk = MemDisk {
            log: disk.log.clone(),
            index: MemFile::holding(bytes),
        };
        match disk.open() {
            Err(DiskError::Corrupt(_) | DiskError::Io { .. }) => {}
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened"),
        }
    }
}
