//! Segment files: bounds, capacity, dirt, reopening.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::sync::Arc;

use common::{MemDisk, put_record};
use zonal_disk::{DataSync, DiskError, Segments, SegmentsConfig};
use zonal_testkit::Scratch;

const SIZE: u64 = 1 << 20;

fn small() -> SegmentsConfig {
    SegmentsConfig {
        segment_bytes: SIZE,
        capacity: 3 * SIZE + 5,
        headroom: 0,
    }
}

#[test]
fn written_bytes_are_read_back_also_after_reopening() {
    let dir = Scratch::new("segments");
    let segments = Segments::open(&dir, small()).unwrap();
    assert!(!segments.dirty());
    segments.write_at(0, 4096, b"hello").unwrap();
    segments.write_at(2, SIZE - 3, b"end").unwrap();
    assert_eq!(segments.count(), 2);
    assert!(segments.dirty());
    segments.sync_dirty().unwrap();
    assert_eq!((segments.dirty(), segments.flushes()), (false, 2));
    segments.sync_dirty().unwrap();
    assert_eq!(segments.flushes(), 2, "nothing dirty, nothing flushed");
    let segments = Segments::open(&dir, small()).unwrap();
    assert!(
        segments.dirty(),
        "a process before may have left it unflushed"
    );
    let mut buffer = [0; 5];
    segments.read_at(0, 4096, &mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
    segments.read_at(0, 0, &mut buffer).unwrap();
    assert_eq!(buffer, [0; 5]);
}

#[test]
fn ranges_and_capacity_are_limits() {
    let dir = Scratch::new("segments");
    let segments = Segments::open(&dir, small()).unwrap();
    let range = |result: Result<(), DiskError>| assert!(matches!(result, Err(DiskError::Range(_))));
    range(segments.write_at(0, SIZE, b"x"));
    range(segments.write_at(0, SIZE - 1, b"xy"));
    range(segments.write_at(0, u64::MAX, b"xy"));
    range(segments.read_at(0, 0, &mut [0; 8]));
    assert_eq!(segments.count(), 0);
    assert_eq!(segments.max_count(), 3);
    assert!(matches!(
        segments.write_at(3, 0, b"x"),
        Err(DiskError::NoSpace(_))
    ));
    segments.ensure(1).unwrap();
    let space = segments.space().unwrap();
    assert_eq!(
        (space.total, space.made, space.unmade),
        (3 * SIZE, SIZE, 2 * SIZE)
    );
    let crowded = SegmentsConfig {
        headroom: 1 << 62,
        ..small()
    };
    let segments = Segments::open(&dir, crowded).unwrap();
    assert!(matches!(segments.ensure(0), Err(DiskError::NoSpace(_))));
    assert_eq!(segments.space().unwrap().unmade, 0);
}

#[test]
fn leftovers_are_removed_and_wrong_lengths_are_damage() {
    let dir = Scratch::new("segments");
    fs::write(dir.join("seg.00000001.new"), "half").unwrap();
    fs::write(dir.join("notes.txt"), "spared").unwrap();
    let segments = Segments::open(&dir, small()).unwrap();
    assert_eq!(segments.count(), 0);
    assert!(dir.join("notes.txt").exists());
    assert!(!dir.join("seg.00000001.new").exists());
    fs::write(dir.join("seg.00000000"), "short").unwrap();
    assert!(matches!(
        Segments::open(&dir, small()),
        Err(DiskError::Corrupt(_))
    ));
    let odd = SegmentsConfig {
        segment_bytes: 1000,
        ..small()
    };
    assert!(matches!(
        Segments::open(&dir, odd),
        Err(DiskError::Config(_))
    ));
}

#[test]
fn an_engines_sync_flushes_dirty_segments_only() {
    let dir = Scratch::new("segments");
    let segments = Arc::new(Segments::open(&dir, small()).unwrap());
    let engine = MemDisk::new().open().unwrap();
    engine
        .set_data_sync(Arc::clone(&segments) as Arc<dyn DataSync>)
        .unwrap();
    engine.append(&put_record("a", "1")).unwrap();
    engine.sync_all().unwrap();
    assert_eq!(segments.flushes(), 0);
    segments.write_at(0, 0, b"data").unwrap();
    engine.append(&put_record("a", "2")).unwrap();
    engine.sync_all().unwrap();
    assert_eq!((segments.flushes(), segments.dirty()), (1, false));
}
