//! Power loss and kills at every kind of moment: synced records survive, and all survivors are a
//! prefix.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{LOG_BYTES, MemDisk, dump, text};
use zonal_disk::{DiskError, Engine, EngineConfig, LogRoom, Record};
use zonal_testkit::Rng;
use zonal_types::KvChange;

type Changes = Vec<KvChange>;

/// The state after the first records of a history.
fn state(history: &[Changes]) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut map = BTreeMap::new();
    for change in history.iter().flatten().cloned() {
        match change.value {
            Some(value) => map.insert(change.key, value),
            None => map.remove(&change.key),
        };
    }
    map
}

/// Record `number` of a history. It stores its number, so that a reader knows how long the prefix
/// is.
fn changes(number: usize, rng: &mut Rng) -> Changes {
    let key = format!("k{:02}", rng.below(50)).into_bytes();
    let size = if rng.below(20) == 0 { 9000 } else { 300 };
    let value = vec![b'v'; rng.below(size) as usize];
    let second = match rng.below(4) {
        0 => KvChange::remove(key),
        _ => KvChange::put(key, value),
    };
    vec![
        KvChange::put(b"number".to_vec(), number.to_string().into_bytes()),
        second,
    ]
}

/// How many records survived; checks that they are a prefix and hold everything acknowledged.
fn survived(engine: &Engine, history: &[Changes], synced: usize) -> usize {
    let count = text(engine, "number").map_or(0, |number| number.parse::<usize>().unwrap() + 1);
    assert!(
        count >= synced,
        "{count} records are left, {synced} were durable"
    );
    assert!(count <= history.len());
    let expected = state(&history[..count]);
    assert!(dump(engine).into_iter().eq(expected), "not a prefix");
    count
}

fn history_with_crashes(seed: u64) {
    let mut rng = Rng(seed);
    let mut disk = MemDisk::new();
    let mut engine = disk.open().unwrap();
    let mut history: Vec<Changes> = Vec::new();
    let mut synced = 0;
    for _ in 0..400 {
        match rng.below(40) {
            0..=2 => {
                engine.sync_all().unwrap();
                synced = history.len();
            }
            3 => {
                engine.checkpoint(&mut || Ok(())).unwrap();
                synced = history.len();
            }
            4 => {
                disk = disk.after_kill();
                engine = disk.open().unwrap();
                assert_eq!(survived(&engine, &history, history.len()), history.len());
            }
            5 | 6 => {
                let after = disk.after_power_loss(&mut rng);
                engine = after.open().unwrap();
                disk = after;
                let count = survived(&engine, &history, synced);
                history.truncate(count);
            }
            _ => {
                let next = changes(history.len(), &mut rng);
                engine
                    .append_with(next.clone(), b"", LogRoom::Normal)
                    .unwrap();
                history.push(next);
                if engine.wants_checkpoint() {
                    engine.checkpoint(&mut || Ok(())).unwrap();
                    synced = history.len();
                }
            }
        }
    }
}

#[test]
fn histories_with_crashes_keep_their_promises() {
    for seed in 0..25 {
        let run = std::panic::catch_unwind(|| history_with_crashes(seed));
        assert!(run.is_ok(), "seed {seed}");
    }
}

/// Number of states tried at each sync point and unit; `ZONAL_CRASH_STATES` sets another.
fn states_a_point() -> usize {
    let text = std::env::var("ZONAL_CRASH_STATES").unwrap_or_default();
    text.parse().unwrap_or(8)
}

/// The records appended, and the number that syncs have covered.
#[derive(Default)]
struct Promised {
    history: Mutex<Vec<Changes>>,
    synced: AtomicUsize,
    points: AtomicUsize,
    states: AtomicUsize,
}

#[test]
fn every_sync_point_leaves_a_store_that_opens() {
    let mut rng = Rng(77);
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let promised = Arc::new(Promised::default());
    let files = [&disk.log, &disk.index, &disk.sums];
    for file in files {
        let (promised, watched) = (Arc::clone(&promised), disk.clone());
        let mut rng = Rng(rng.bits());
        *file.observer.lock().unwrap() = Some(Box::new(move || {
            let synced = promised.synced.load(Ordering::Relaxed);
            promised.points.fetch_add(1, Ordering::Relaxed);
            for unit in [512, 4096] {
                for state in watched.states(unit, states_a_point(), &mut rng) {
                    let engine = state.open().unwrap();
                    survived(&engine, &promised.history.lock().unwrap(), synced);
                    promised.states.fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for number in 0..150 {
        let next = changes(number, &mut rng);
        promised.history.lock().unwrap().push(next.clone());
        engine.append_with(next, b"", LogRoom::Normal).unwrap();
        if number % 10 == 4 {
            engine.sync_all().unwrap();
            promised.synced.store(number + 1, Ordering::Relaxed);
        }
        if number % 30 == 20 {
            engine.checkpoint(&mut || Ok(())).unwrap();
            promised.synced.store(number + 1, Ordering::Relaxed);
        }
    }
    for file in files {
        *file.observer.lock().unwrap() = None;
    }
    let points = promised.points.load(Ordering::Relaxed);
    let states = promised.states.load(Ordering::Relaxed);
    println!("{states} states at {points} sync points");
    assert!(points > 40 && states > 40 * 8);
}

#[test]
fn a_torn_record_ends_the_log_and_its_space_is_reused() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let mut rng = Rng(3);
    let mut ends = Vec::new();
    let mut history = Vec::new();
    for number in 0..30 {
        let next = changes(number, &mut rng);
        ends.push(
            engine
                .append_with(next.clone(), b"", LogRoom::Normal)
                .unwrap()
                .0,
        );
        history.push(next);
    }
    drop(engine);
    // The last 10 records are damaged one byte at a time: at most the prefix before them is left.
    for lost in 20..30 {
        let mut bytes = disk.log.live();
        let from = ends[lost - 1];
        let at = from + rng.below(64 + 20);
        bytes[usize::try_from(at).unwrap()] ^= 0x40;
        let torn = disk.after_kill();
        let torn = MemDisk {
            log: common::MemFile::holding(bytes),
            ..torn
        };
        let engine = torn.open().unwrap();
        assert_eq!(survived(&engine, &history, lost), lost);
        // A record of the same size as the torn one: the left-overs behind it must not come back.
        engine
            .append_with(history[lost].clone(), b"", LogRoom::Normal)
            .unwrap();
        let engine = torn.after_kill().open().unwrap();
        assert_eq!(survived(&engine, &history, lost + 1), lost + 1);
    }
}

#[test]
fn a_damaged_record_that_was_durable_is_an_error() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let mut rng = Rng(4);
    let mut ends = vec![0];
    for number in 0..20 {
        let next = changes(number, &mut rng);
        ends.push(engine.append_with(next, b"", LogRoom::Normal).unwrap().0);
        if number == 9 {
            engine.sync_all().unwrap();
        }
    }
    drop(engine);
    for (victim, start) in ends.iter().take(20).enumerate() {
        let mut bytes = disk.log.live();
        bytes[usize::try_from(start + 30).unwrap()] ^= 1;
        let damaged = MemDisk {
            log: common::MemFile::holding(bytes),
            ..disk.after_kill()
        };
        match damaged.open() {
            Err(DiskError::Corrupt(_)) => assert!(victim < 10, "record {victim} was not durable"),
            Err(other) => panic!("{other}"),
            Ok(_) => assert!(victim >= 10, "record {victim} was lost in silence"),
        }
    }
}

#[test]
fn an_older_index_is_refused() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    engine.append(&common::put_record("a", "1")).unwrap();
    engine.checkpoint(&mut || Ok(())).unwrap();
    drop(engine);
    let old = disk.index.live();
    let engine = disk.open().unwrap();
    while engine.head().0 < LOG_BYTES * 3 / 2 {
        engine
            .append(&common::put_record("a", &"x".repeat(50_000)))
            .unwrap();
        engine.checkpoint(&mut || Ok(())).unwrap();
    }
    drop(engine);
    let mixed = MemDisk {
        log: disk.after_kill().log,
        index: common::MemFile::holding(old),
        sums: common::MemFile::holding(Vec::new()),
        kept: false,
    };
    assert!(matches!(mixed.open(), Err(DiskError::Corrupt(_))));
}

#[test]
fn a_record_whose_data_did_not_arrive_is_dropped_for_good() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let append = |engine: &Engine, key: &str, note: &[u8]| {
        let changes = vec![KvChange::put(key.into(), b"1".to_vec())];
        engine.append_with(changes, note, LogRoom::Normal).unwrap()
    };
    let durable = append(&engine, "a", b"fine");
    engine.sync(durable).unwrap();
    append(&engine, "b", b"lost");
    append(&engine, "c", b"fine");
    drop(engine);
    let mut refuse = |record: &Record, _, synced: bool| {
        assert!(!synced || record.note == b"fine");
        record.note != b"lost"
    };
    let config = EngineConfig::default();
    // "b" was written after "a" was synced, and its header says so.
    let engine = disk.open_with(config, &mut refuse).unwrap();
    assert_eq!(text(&engine, "b"), None);
    assert_eq!(text(&engine, "c").as_deref(), Some("1"));
    engine.sync_all().unwrap();
    append(&engine, "d", b"fine");
    drop(engine);
    // Now all of them are known to be durable; the dropped one is not asked about again.
    let mut seen = Vec::new();
    let mut accept = |record: &Record, _, synced| {
        seen.push((record.changes[0].key.clone(), synced));
        true
    };
    let engine = disk.after_kill().open_with(config, &mut accept).unwrap();
    assert_eq!(text(&engine, "b"), None);
    assert_eq!(
        seen,
        [
            (b"a".to_vec(), true),
            (b"c".to_vec(), true),
            (b"d".to_vec(), false)
        ]
    );
    // Missing data of a durable record is damage.
    let refused = disk.after_kill().open_with(config, &mut |_, _, _| false);
    assert!(matches!(refused, Err(DiskError::Corrupt(_))));
}
