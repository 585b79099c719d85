//! The engine in use: append, read, reopen, sync, checkpoint, laps of the log.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{LOG_BYTES, MemDisk, MemLog, dump, identity, put_record, small, text};
use zonal_disk::{DiskError, Engine, EngineConfig, LogFile, LogRoom, Record, spawn_checkpointer};
use zonal_testkit::{Rng, Scratch};
use zonal_types::{KvChange, KvRead};

#[test]
fn appended_records_are_there_after_reopening() {
    let dir = Scratch::new("reopen");
    Engine::format(&dir, identity(), &small()).unwrap();
    let open = || Engine::open(&dir, &identity(), small(), &mut |_, _, _| true).unwrap();
    let engine = open();
    engine.append(&put_record("a", "1")).unwrap();
    engine.append(&put_record("b", "2")).unwrap();
    engine.checkpoint(&mut || Ok(())).unwrap();
    engine.append(&put_record("c", "3")).unwrap();
    let remove = vec![KvChange::remove(b"a".to_vec())];
    let lsn = engine.append_with(remove, b"", LogRoom::Normal).unwrap();
    engine.sync(lsn).unwrap();
    // Neither stop nor checkpoint, as after a kill.
    drop(engine);
    for _ in 0..3 {
        let engine = open();
        assert_eq!(text(&engine, "a"), None);
        assert_eq!(text(&engine, "b").as_deref(), Some("2"));
        assert_eq!(text(&engine, "c").as_deref(), Some("3"));
        assert_eq!(dump(&engine).len(), 2);
    }
    let engine = open();
    engine.checkpoint(&mut || Ok(())).unwrap();
    assert_eq!(engine.stats().log_used, 0);
    assert_eq!(dump(&engine).len(), 2);
}

#[test]
fn a_record_costs_one_write_and_replay_returns_its_note() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let before = disk.log.writes.load(Ordering::Relaxed);
    let note = vec![5; 200_000];
    let lsn = engine.append_with(vec![], &note, LogRoom::Normal).unwrap();
    assert_eq!(disk.log.writes.load(Ordering::Relaxed), before + 1);
    drop(engine);
    let mut seen = Vec::new();
    let mut replay = |record: &Record, at, synced| {
        seen.push((record.note.clone(), at, synced));
        true
    };
    disk.open_with(EngineConfig::default(), &mut replay)
        .unwrap();
    assert_eq!(seen, [(note, lsn, false)]);
}

#[test]
fn a_record_too_large_is_refused_and_changes_nothing() {
    let engine = MemDisk::new().open().unwrap();
    let note = vec![0; 300_000];
    let refused = engine.append_with(vec![], &note, LogRoom::Normal);
    assert!(matches!(refused, Err(DiskError::TooBig { .. })));
    let key = vec![1; 5000];
    let refused = engine.append_with(vec![KvChange::remove(key)], b"", LogRoom::Normal);
    assert!(matches!(refused, Err(DiskError::TooBig { .. })));
    assert_eq!(engine.head().0, 0);
}

#[test]
fn reads_agree_with_a_plain_map_through_checkpoints_and_reopenings() {
    let mut disk = MemDisk::new();
    let mut engine = disk.open().unwrap();
    let mut model: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    let mut rng = Rng(11);
    for step in 0..4000 {
        let key = format!("{:03}", rng.below(700)).into_bytes();
        let change = if rng.below(3) == 0 {
            model.remove(&key);
            KvChange::remove(key)
        } else {
            let value = format!("{step}").into_bytes();
            model.insert(key.clone(), value.clone());
            KvChange::put(key, value)
        };
        engine
            .append_with(vec![change], b"", LogRoom::Normal)
            .unwrap();
        match rng.below(400) {
            0 | 1 => engine.checkpoint(&mut || Ok(())).unwrap(),
            2 => {
                // Aborted half way: everything must still be there.
                let refused = engine.checkpoint(&mut || Err(DiskError::NoSpace("planted".into())));
                assert!(matches!(refused, Err(DiskError::NoSpace(_))));
            }
            3 => {
                disk = disk.after_kill();
                engine = disk.open().unwrap();
            }
            4 | 5 => {
                // Read while frozen, and write above it.
                let checkpoint = engine.begin_checkpoint();
                let found = dump(&engine);
                assert!(found.iter().map(|(k, v)| (k, v)).eq(model.iter()));
                checkpoint.commit(&mut || Ok(())).unwrap();
            }
            _ => {}
        }
        if step % 100 == 0 {
            let found = dump(&engine);
            assert!(
                found.iter().map(|(k, v)| (k, v)).eq(model.iter()),
                "step {step}"
            );
            let from = format!("{:03}", rng.below(700)).into_bytes();
            let to = format!("{:03}", rng.below(700)).into_bytes();
            let limit = rng.below(300) as usize + 1;
            let mut part = Vec::new();
            let mut visit = |key: &[u8], _: &[u8]| {
                part.push(key.to_vec());
                part.len() < limit
            };
            engine.scan(&from, &to, &mut visit).unwrap();
            let keys = model.keys().filter(|key| **key >= from && **key < to);
            assert!(part.iter().eq(keys.take(limit)), "step {step}");
        }
    }
}

#[test]
fn many_laps_of_the_log() {
    let disk = MemDisk::new();
    let mut engine = disk.open().unwrap();
    let mut rng = Rng(5);
    let mut last = BTreeMap::new();
    while engine.head().0 < 6 * LOG_BYTES {
        let key = format!("{}", rng.below(40));
        let value = "x".repeat(rng.below(40_000) as usize);
        last.insert(key.clone().into_bytes(), value.clone().into_bytes());
        engine.append(&put_record(&key, &value)).unwrap();
        if engine.wants_checkpoint() {
            engine.checkpoint(&mut || Ok(())).unwrap();
        }
        if rng.below(60) == 0 {
            drop(engine);
            engine = disk.open().unwrap();
        }
    }
    drop(engine);
    let engine = disk.open().unwrap();
    assert!(dump(&engine).into_iter().eq(last));
}

#[test]
fn a_full_log_is_an_error_and_keeps_the_reserve() {
    let engine = MemDisk::new().open().unwrap();
    let note = vec![0; 30_000];
    let refused = loop {
        if let Err(error) = engine.append_with(vec![], &note, LogRoom::Normal) {
            break error;
        }
    };
    assert!(matches!(refused, DiskError::LogFull));
    for _ in 0..3 {
        engine.append_with(vec![], &note, LogRoom::Reserve).unwrap();
    }
    engine.checkpoint(&mut || Ok(())).unwrap();
    engine.append_with(vec![], &note, LogRoom::Normal).unwrap();
}

#[test]
fn a_checkpointer_frees_space_in_the_log() {
    let dir = Scratch::new("room");
    Engine::format(&dir, identity(), &small()).unwrap();
    let engine = Engine::open(&dir, &identity(), small(), &mut |_, _, _| true).unwrap();
    let engine = Arc::new(engine);
    let job = Box::new(|engine: &Engine| engine.checkpoint(&mut || Ok(())));
    let report = Box::new(|error| panic!("{error}"));
    let checkpointer = spawn_checkpointer(&engine, job, report).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let engine = &engine;
            scope.spawn(move || {
                for step in 0..300 {
                    engine.wait_for_room().unwrap();
                    let key = format!("{thread}.{step}");
                    engine
                        .append(&put_record(&key, &"v".repeat(10_000)))
                        .unwrap();
                }
            });
        }
    });
    assert!(engine.stats().checkpoints > 2);
    drop(checkpointer);
    assert_eq!(dump(&engine).len(), 900);
    drop(engine);
    let engine = Engine::open(&dir, &identity(), small(), &mut |_, _, _| true).unwrap();
    assert_eq!(dump(&engine).len(), 900);
}

#[test]
fn an_append_that_waits_for_a_failing_checkpointer_returns() {
    let engine = Arc::new(MemDisk::new().open().unwrap());
    let job = Box::new(|_: &Engine| Err(DiskError::NoSpace("planted".into())));
    let failures = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&failures);
    let report = Box::new(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let _checkpointer = spawn_checkpointer(&engine, job, report).unwrap();
    let note = vec![0; 30_000];
    let refused = loop {
        if let Err(error) = engine.append_with(vec![], &note, LogRoom::Normal) {
            break error;
        }
    };
    assert!(matches!(refused, DiskError::LogFull));
    assert!(failures.load(Ordering::Relaxed) > 0);
}

#[test]
fn readers_see_whole_records_while_checkpoints_run() {
    let engine = MemDisk::new().open().unwrap();
    let keys: Vec<String> = (0..60).map(|number| format!("k{number:02}")).collect();
    let record = |value: u64| Record {
        changes: keys
            .iter()
            .map(|key| KvChange::put(key.clone().into(), value.to_string().into()))
            .collect(),
        note: Vec::new(),
    };
    engine.append(&record(0)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !stop.load(Ordering::Relaxed) {
                    // Fewer keys than a batch: one moment. The overlay may be empty or hold them
                    // all.
                    let mut values = Vec::new();
                    let mut visit = |_: &[u8], value: &[u8]| {
                        let value = std::str::from_utf8(value).unwrap();
                        values.push(value.parse::<u64>().unwrap());
                        values.len() < 16
                    };
                    engine.scan(b"k", b"l", &mut visit).unwrap();
                    assert_eq!(values.len(), 16);
                    assert!(values.iter().all(|value| *value == values[0]), "{values:?}");
                    assert!(values[0] >= last, "time went back");
                    last = values[0];
                    let one: u64 = text(&engine, "k30").unwrap().parse().unwrap();
                    assert!(one >= last);
                    last = one;
                }
            });
        }
        for value in 1..400 {
            engine.append(&record(value)).unwrap();
            if value % 7 == 0 {
                engine.checkpoint(&mut || Ok(())).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(text(&engine, "k00").as_deref(), Some("399"));
}

#[test]
fn the_callers_step_comes_between_log_and_index() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let lsn = engine.append(&put_record("a", "1")).unwrap();
    let before = disk.index.writes.load(Ordering::Relaxed);
    let mut step = || {
        assert!(engine.synced() >= lsn);
        assert_eq!(disk.index.writes.load(Ordering::Relaxed), before);
        assert_eq!(engine.stats().log_used, lsn.0);
        Ok(())
    };
    engine.checkpoint(&mut step).unwrap();
    assert!(disk.index.writes.load(Ordering::Relaxed) > before);
    assert_eq!(engine.stats().log_used, 0);
}

#[test]
fn unlogged_changes_become_durable_with_the_checkpoint() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    engine.apply_unlogged(vec![KvChange::put(b"a".to_vec(), b"1".to_vec())]);
    assert_eq!(text(&engine, "a").as_deref(), Some("1"));
    assert_eq!(text(&disk.after_kill().open().unwrap(), "a"), None);
    engine.checkpoint(&mut || Ok(())).unwrap();
    assert_eq!(
        text(&disk.after_kill().open().unwrap(), "a").as_deref(),
        Some("1")
    );
}

/// A log that was opened with none of it in the page cache must not be read while it is written.
#[test]
fn the_log_is_announced_before_it_is_written() {
    struct Log {
        inner: MemLog,
        announced: Arc<std::sync::Mutex<Vec<(u64, u64)>>>,
    }
    impl LogFile for Log {
        fn len(&self) -> std::io::Result<u64> {
            self.inner.len()
        }
        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            self.inner.read_at(offset, buffer)
        }
        fn write_at(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
            let end = offset + bytes.len() as u64;
            let known = self.announced.lock().unwrap();
            let is_known = known.iter().any(|(from, to)| (*from..=*to).contains(&end));
            assert!(is_known || offset == 0, "{offset}..{end} was not announced");
            self.inner.write_at(offset, bytes)
        }
        fn will_write(&self, offset: u64, length: u64) {
            let mut known = self.announced.lock().unwrap();
            known.push((offset, offset + length));
            // A range that was announced long ago may have left the cache.
            let old = known.len().saturating_sub(3);
            known.drain(..old);
        }
        fn sync(&self) -> std::io::Result<()> {
            self.inner.sync()
        }
    }
    let disk = MemDisk::new();
    let announced = Arc::default();
    let log = Log {
        inner: MemLog(Arc::clone(&disk.log)),
        announced: Arc::clone(&announced),
    };
    let engine = disk.open_with_log(Box::new(log)).unwrap();
    for round in 0..600 {
        if engine.stats().log_used > LOG_BYTES / 2 {
            engine.checkpoint(&mut || Ok(())).unwrap();
        }
        let note = vec![1; 100 + round * 7];
        engine.append_with(vec![], &note, LogRoom::Normal).unwrap();
    }
    assert!(engine.head().0 > LOG_BYTES, "more than a lap");
    assert!(!announced.lock().unwrap().is_empty());
}
