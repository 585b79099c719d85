//! Recordings of the changes of a store's files: they are complete and in order, they end at their
//! bound, and other bytes are refused. States made from them hold everything that was durable.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;
#[path = "common/replayed.rs"]
mod replayed;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use common::{identity, put_record, small, text};
use replayed::{Replayed, some, sync_points};
use zonal_disk::recording::{Ending, RecordedEvent, Recording};
use zonal_disk::{DiskError, Engine, Segments, SegmentsConfig, StoreDir, start_marks};
use zonal_testkit::power_cut::SparseBytes;
use zonal_testkit::{Rng, Scratch};
use zonal_types::store::KvRead;

const SEGMENT: u64 = 1 << 20;

fn open(store: &StoreDir) -> Result<(Arc<Engine>, Arc<Segments>), DiskError> {
    let engine = Engine::open_in(store, &identity(), small(), &mut |_, _, _| true)?;
    let bounds = SegmentsConfig {
        segment_bytes: SEGMENT,
        capacity: 8 * SEGMENT,
        headroom: 0,
    };
    let segments = Arc::new(Segments::open_in(store, bounds)?);
    engine.set_data_sync(Arc::clone(&segments) as Arc<dyn zonal_disk::DataSync>)?;
    Ok((Arc::new(engine), segments))
}

/// Length of the only recording in a folder.
fn length(recordings: &Path) -> u64 {
    fs::metadata(recordings.join("shard-3.0")).unwrap().len()
}

/// Does everything that a store does: records, checkpoints, segments, its small files. Each step
/// puts its number under `n` and into the segments. Returns the length of the recording at which
/// each step was durable.
fn history(store: &StoreDir, recordings: &Path) -> Vec<(u64, u32)> {
    let (engine, segments) = open(store).unwrap();
    let found = start_marks::propose(store).unwrap();
    start_marks::taken(store, found.proposed[0]).unwrap();
    let mut durable = Vec::new();
    for step in 0..60_u32 {
        let at = u64::from(step % 30) * 8192;
        let bytes = [step as u8 + 1; 5000];
        segments.write_at(step / 25, at, &bytes).unwrap();
        let padding = "x".repeat(300 * (step as usize % 7));
        engine.append(&put_record("n", &step.to_string())).unwrap();
        engine
            .append(&put_record(&format!("k{}", step % 11), &padding))
            .unwrap();
        match step % 10 {
            3 | 6 => engine.sync_all().unwrap(),
            9 => engine.checkpoint(&mut || Ok(())).unwrap(),
            _ => continue,
        }
        durable.push((length(recordings), step));
    }
    durable
}

struct Recorded {
    scratch: Scratch,
    durable: Vec<(u64, u32)>,
    bytes: Vec<u8>,
}

fn recorded(name: &str) -> Recorded {
    let scratch = Scratch::new(name);
    let (dir, recordings) = (scratch.join("store"), scratch.join("recordings"));
    Engine::format(&dir, identity(), &small()).unwrap();
    let durable = history(&StoreDir::recorded(&dir, &recordings), &recordings);
    let bytes = fs::read(recordings.join("shard-3.0")).unwrap();
    Recorded {
        scratch,
        durable,
        bytes,
    }
}

/// The files of a folder, by path.
fn files(dir: &Path, below: &str, out: &mut BTreeMap<String, Option<SparseBytes>>) {
    for entry in fs::read_dir(dir.join(below)).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let path = format!("{below}{name}");
        if dir.join(&path).is_dir() {
            out.insert(path.clone(), None);
            files(dir, &format!("{path}/"), out);
        } else {
            let bytes = fs::read(dir.join(&path)).unwrap();
            out.insert(path, Some(SparseBytes::of(&bytes)));
        }
    }
}

#[test]
fn a_replayed_recording_equals_the_store_byte_for_byte() {
    let recorded = recorded("recorded");
    let recording = Recording::read(&recorded.bytes).unwrap();
    // It has the store's contents: only its owner may read it.
    let file = fs::metadata(recorded.scratch.join("recordings/shard-3.0")).unwrap();
    assert_eq!(file.permissions().mode() & 0o777, 0o600);
    assert_eq!(recording.identity, identity());
    assert_eq!(recording.ending, Some(Ending::Closed));
    let mut replayed = Replayed::new(&recording, false);
    replayed.run_to(usize::MAX);
    let mut expected = BTreeMap::new();
    files(&recorded.scratch.join("store"), "", &mut expected);
    let found = replayed.live().entries;
    assert!(found.keys().eq(expected.keys()), "{:?}", found.keys());
    for (path, bytes) in &expected {
        assert!(found[path] == *bytes, "{path}");
    }
    // It has everything that a store does.
    let has =
        |wanted: fn(&RecordedEvent<'_>) -> bool| recording.events.iter().any(|(_, e)| wanted(e));
    assert!(has(|event| matches!(
        event,
        RecordedEvent::MakeFolder { .. }
    )));
    assert!(has(|event| matches!(event, RecordedEvent::Allocate { .. })));
    assert!(has(|event| matches!(event, RecordedEvent::Rename { .. })));
    assert!(has(|event| matches!(
        event,
        RecordedEvent::FlushNames { .. }
    )));
}

/// The defect of a state, if any.
fn wrong(dir: &Path, least: Option<u32>) -> Option<String> {
    // Another start of the kernel than the test's.
    let opened = Engine::open_at_boot(dir, &identity(), small(), Some([9; 16]), &mut |_, _, _| {
        true
    });
    let engine = match opened {
        Ok(engine) => engine,
        Err(error) => return Some(error.to_string()),
    };
    let value = match engine.get(b"n") {
        Ok(value) => value,
        Err(error) => return Some(error.to_string()),
    };
    let found = value.map(|value| String::from_utf8(value).unwrap().parse::<u32>().unwrap());
    if found < least {
        return Some(format!("{found:?} is left of {least:?}"));
    }
    let segments = fs::read(dir.join("segments/seg.00000000")).unwrap_or_default();
    for step in 0..least.map_or(0, |step| (step + 1).min(25)) {
        let at = step as usize * 8192;
        // A later step may have overwritten it.
        let later = segments.get(at).is_some_and(|byte| *byte > step as u8 + 1);
        if !later && segments.get(at..at + 5000) != Some(&[step as u8 + 1; 5000][..]) {
            return Some(format!("the bytes of step {step} are not there"));
        }
    }
    None
}

/// Tries states of a recording; returns their defects, and the number of states.
fn tried(recorded: &Recorded, lies: bool) -> (Vec<String>, usize) {
    let recording = Recording::read(&recorded.bytes).unwrap();
    let mut rng = Rng(11);
    let points = some(sync_points(&recording), 30, &mut rng);
    let mut replayed = Replayed::new(&recording, lies);
    let mut failed = Vec::new();
    let mut count = 0;
    for point in points {
        replayed.run_to(point);
        let durable = recorded.durable.iter().rev();
        let mut durable = durable.filter(|(length, _)| *length <= replayed.bytes());
        let least = durable.next().map(|(_, step)| *step);
        for unit in [512, 4096] {
            for state in replayed.states(unit, 2, &mut rng) {
                let dir = recorded.scratch.join(format!("state-{count}"));
                state.write_to(&dir).unwrap();
                failed.extend(wrong(&dir, least).map(|text| format!("event {point}: {text}")));
                fs::remove_dir_all(&dir).unwrap();
                count += 1;
            }
        }
    }
    (failed, count)
}

#[test]
fn states_at_the_flushes_of_a_recording_hold_what_was_durable() {
    let recorded = recorded("states");
    let (failed, count) = tried(&recorded, false);
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(count >= 100, "{count}");
    let (failed, _) = tried(&recorded, true);
    assert!(!failed.is_empty(), "flushes that do nothing were not found");
}

#[test]
fn a_recording_ends_at_its_bound_and_the_store_goes_on() {
    let whole = recorded("whole").bytes.len() as u64;
    let scratch = Scratch::new("bound");
    let (dir, recordings) = (scratch.join("store"), scratch.join("recordings"));
    Engine::format(&dir, identity(), &small()).unwrap();
    let bound = whole / 2;
    let store = StoreDir::recorded_up_to(&dir, &recordings, bound);
    history(&store, &recordings);
    let bytes = fs::read(recordings.join("shard-3.0")).unwrap();
    assert!(bytes.len() as u64 <= bound);
    let recording = Recording::read(&bytes).unwrap();
    assert_eq!(recording.ending, Some(Ending::Full));
    // After a new opening it is another recording, of a store that has everything.
    let (engine, _segments) = open(&StoreDir::recorded(&dir, &recordings)).unwrap();
    assert_eq!(text(&engine, "n").as_deref(), Some("59"));
    assert!(recordings.join("shard-3.1").exists());
    drop(engine);
    let refused = open(&StoreDir::recorded_up_to(&dir, &recordings, 2000));
    assert!(matches!(refused, Err(DiskError::Config(_))));
}

#[test]
fn a_folder_that_takes_no_recording_is_an_error_and_without_one_nothing_is_written() {
    let scratch = Scratch::new("off");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &small()).unwrap();
    fs::write(scratch.join("file"), "").unwrap();
    let refused = open(&StoreDir::recorded(&dir, &scratch.join("file")));
    assert!(matches!(refused, Err(DiskError::Io { .. })));
    open(&StoreDir::plain(&dir)).unwrap();
    let mut names: Vec<_> = fs::read_dir(&*scratch)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["file", "store"]);
}

#[test]
fn truncated_or_damaged_recordings_are_errors_and_never_panic() {
    let bytes = recorded("damaged").bytes;
    let whole = Recording::read(&bytes).unwrap();
    let mut rng = Rng(5);
    for _ in 0..60 {
        // As a kill leaves it: complete events are there.
        let at = 48 + rng.index(bytes.len() - 48);
        let cut = Recording::read(&bytes[..at]).unwrap();
        let complete = whole.events.iter().take_while(|(end, _)| *end <= at as u64);
        assert!(cut.events.iter().eq(complete));
        assert_eq!(cut.ending, None);
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << rng.below(8);
        // A length may be damaged so that the rest looks cut.
        if let Ok(read) = Recording::read(&damaged) {
            assert!(read.events.len() < whole.events.len());
        }
    }
    assert!(Recording::read(&bytes[..47]).is_err());
    let mut newer = bytes.clone();
    newer[8] = 2;
    let refused = Recording::read(&newer);
    assert!(matches!(
        refused,
        Err(DiskError::WrongVersion { found: 2, known: 1 })
    ));
    let behind = [bytes.as_slice(), &bytes[48..]].concat();
    assert!(matches!(
        Recording::read(&behind),
        Err(DiskError::Corrupt(_))
    ));
}
