//! Syncs: which calls share a flush, what a flush covers, and what is reported after a failed one.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{MemDisk, put_record, text};
use zonal_disk::DiskError;
use zonal_disk::disk::SyncHook;
use zonal_types::{ErrorCode, KvRead};

#[test]
fn waiting_syncs_share_a_flush() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let before = engine.stats().flushes;
    let gate = disk.log.gate.lock().unwrap();
    std::thread::scope(|scope| {
        let append = |number: usize| {
            engine
                .append(&put_record(&number.to_string(), "v"))
                .unwrap()
        };
        let first = append(0);
        scope.spawn({
            let engine = &engine;
            move || engine.sync(first).unwrap()
        });
        // The leader is in its flush: all calls from now on share the next one.
        while engine.stats().flushes == before {
            std::thread::yield_now();
        }
        for number in 1..20 {
            let lsn = append(number);
            let engine = &engine;
            scope.spawn(move || engine.sync(lsn).unwrap());
        }
        drop(gate);
    });
    assert_eq!(engine.synced(), engine.head());
    let flushes = engine.stats().flushes - before;
    assert_eq!(flushes, 2, "one for the first, one for the other nineteen");
    engine.sync_all().unwrap();
    assert_eq!(engine.stats().flushes - before, flushes, "nothing to do");
}

#[test]
fn records_appended_during_a_flush_wait_for_the_next() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let first = engine.append(&put_record("a", "1")).unwrap();
    let gate = disk.log.gate.lock().unwrap();
    std::thread::scope(|scope| {
        let flush = scope.spawn(|| engine.sync(first).unwrap());
        while engine.stats().flushes == 0 {
            std::thread::yield_now();
        }
        // The leader has read how far it goes once the file's sync has begun.
        while disk.log.syncs.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        let second = engine.append(&put_record("b", "2")).unwrap();
        drop(gate);
        flush.join().unwrap();
        assert_eq!(engine.synced(), first);
        engine.sync(second).unwrap();
        assert_eq!(engine.synced(), second);
    });
}

#[test]
fn a_sync_flushes_the_callers_data() {
    let engine = MemDisk::new().open().unwrap();
    let flushed = Arc::new(AtomicU64::new(0));
    let broken = Arc::new(AtomicBool::new(false));
    let hook = {
        let (flushed, broken) = (Arc::clone(&flushed), Arc::clone(&broken));
        move || {
            flushed.fetch_add(1, Ordering::Relaxed);
            match broken.load(Ordering::Relaxed) {
                true => Err(std::io::Error::other("planted")),
                false => Ok(()),
            }
        }
    };
    engine.set_data_sync(Arc::new(SyncHook(hook))).unwrap();
    engine.append(&put_record("a", "1")).unwrap();
    engine.sync_all().unwrap();
    assert_eq!(flushed.load(Ordering::Relaxed), 1);
    broken.store(true, Ordering::Relaxed);
    let lsn = engine.append(&put_record("a", "2")).unwrap();
    assert!(engine.sync(lsn).is_err());
    assert!(matches!(engine.sync(lsn), Err(DiskError::Failed)));
}

#[test]
fn after_a_failed_flush_nothing_more_is_promised() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let first = engine.append(&put_record("a", "1")).unwrap();
    engine.sync(first).unwrap();
    let second = engine.append(&put_record("b", "2")).unwrap();
    disk.log.fail_sync.store(true, Ordering::Relaxed);
    assert!(matches!(engine.sync(second), Err(DiskError::Io { .. })));
    disk.log.fail_sync.store(false, Ordering::Relaxed);
    assert!(matches!(engine.sync(second), Err(DiskError::Failed)));
    let refused = engine.append(&put_record("c", "3"));
    assert!(matches!(refused, Err(DiskError::Failed)));
    let refused = engine.checkpoint(&mut || Ok(()));
    assert!(matches!(refused, Err(DiskError::Failed)));
    assert_eq!(text(&engine, "a").as_deref(), Some("1"), "reads go on");
    assert_eq!(engine.get(b"none"), Ok::<_, ErrorCode>(None));
}
