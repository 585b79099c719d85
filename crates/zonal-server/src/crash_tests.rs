//! A whole target on a failing disk.
//!
//! * The state that a loss of power may leave at any moment of a history can be opened, and has all
//!   that was durable then.
//! * A full disk is used to its end.

use crate::storage_role::StorageRole;
use crate::storage_tests::{ask, delete, object, pattern, read, storage, try_write, write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use zonal_faultfs::crash_image::Choice;
use zonal_faultfs::{FaultDisk, FuseSession, mount};
use zonal_testkit::{Rng, Scratch, skip_mount};
use zonal_wire::StorageRequest;

const OBJECTS: u64 = 3;
/// Bytes of each object that the history touches.
const REACH: usize = 1 << 20;

#[derive(Clone)]
enum Step {
    Write { id: u64, at: usize, bytes: Vec<u8> },
    Punch { id: u64, at: usize, length: usize },
}

/// Contents of all objects after a number of steps.
type Contents = Vec<Vec<u8>>;

fn contents(steps: &[Step]) -> Contents {
    let mut out = vec![Vec::new(); OBJECTS as usize];
    for step in steps {
        match step {
            Step::Write { id, at, bytes } => {
                let object: &mut Vec<u8> = &mut out[*id as usize];
                let end = at + bytes.len();
                object.resize(object.len().max(end), 0);
                object[*at..end].copy_from_slice(bytes);
            }
            Step::Punch { id, at, length } => {
                let object = &mut out[*id as usize];
                let end = (at + length).min(object.len());
                if *at < end {
                    object[*at..end].fill(0);
                }
            }
        }
    }
    out
}

fn next_step(rng: &mut Rng, number: usize) -> Step {
    let id = rng.below(OBJECTS);
    let at = rng.below(REACH as u64 - 200_000) as usize;
    let (at, length) = match rng.below(5) {
        // Whole blocks, which go to segments.
        0 => (at / 4096 * 4096, 65_536 + 4096 * rng.below(16) as usize),
        1 => (at, 70_000 + rng.below(60_000) as usize),
        // Small writes, which go to the log; the same few blocks again and again.
        2 => (at % 20_000, 1 + rng.below(6000) as usize),
        3 => (at % 8 * 4096, 4096),
        _ => {
            let length = 1 + rng.below(150_000) as usize;
            return Step::Punch { id, at, length };
        }
    };
    Step::Write {
        id,
        at,
        bytes: pattern(number + 1, length),
    }
}

fn carry_out(storage: &StorageRole, step: &Step) {
    match step {
        Step::Write { id, at, bytes } => write(storage, *id, *at as u64, bytes),
        Step::Punch { id, at, length } => {
            let request = StorageRequest::Punch {
                object: object(*id),
                offset: *at as u64,
                length: *length as u64,
            };
            ask(storage, &request, &[]).unwrap();
        }
    }
}

fn held(storage: &StorageRole) -> Contents {
    (0..OBJECTS)
        .map(|id| read(storage, id, 0, 2 * REACH))
        .collect()
}

/// A history of writes. Its steps and flushes are placed in time by counting events of the disk.
#[derive(Default)]
struct History {
    steps: Vec<Step>,
    begun: Vec<usize>,
    /// Number of an event, and number of steps that were durable from then on.
    durable: Vec<(usize, usize)>,
}

impl History {
    fn run(storage: &StorageRole, disk: &FaultDisk, seed: u64, count: usize) -> Self {
        let mut rng = Rng(seed);
        let mut history = Self::default();
        for number in 0..count {
            let step = next_step(&mut rng, number);
            history.begun.push(disk.events().0);
            carry_out(storage, &step);
            history.steps.push(step);
            let flushes = match rng.below(8) {
                0 | 1 => storage.engine.sync_all().is_ok(),
                2 => storage.checkpoint().is_ok(),
                _ => continue,
            };
            assert!(flushes);
            history.durable.push((disk.events().0, history.steps.len()));
        }
        history
    }

    /// The least and the most steps that may be present at a moment.
    fn range(&self, events: usize) -> (usize, usize) {
        let flushed = self
            .durable
            .iter()
            .rev()
            .find(|(event, _)| *event <= events);
        let most = self.begun.iter().filter(|event| **event < events).count();
        (flushed.map_or(0, |(_, steps)| *steps), most)
    }
}

/// Opens a state as after a loss of power, and compares it with the history.
fn check(dir: &Path, history: &History, events: usize) -> Result<(), String> {
    // Pretend another start of the kernel.
    let _ = std::fs::remove_file(dir.join("target/power"));
    let opened = storage(dir);
    let found = held(&opened.storage);
    let (least, most) = history.range(events);
    if !(least..=most).any(|steps| contents(&history.steps[..steps]) == found) {
        return Err(format!("none of the states {least} to {most}"));
    }
    let target = opened.storage.lock();
    target
        .check(&*opened.storage.engine)
        .map_err(|broken| format!("{broken:?}"))?;
    Ok(())
}

/// Number of states to try, half of them at flushes. `ZONAL_CRASH_STATES` sets a minimum, and adds
/// each flush, just before it and just after it, and as many other moments.
fn states(flushes: usize) -> usize {
    let text = std::env::var("ZONAL_CRASH_STATES").unwrap_or_default();
    text.parse()
        .map_or(30, |least: usize| least.max(4 * flushes))
}

/// Mounts the disk; `None`, with a message, where this machine cannot mount and need not.
fn mounted(disk: &Arc<FaultDisk>, point: &Path) -> Option<FuseSession> {
    let mounted = mount(disk, point);
    mounted.map_err(|error| skip_mount(&error)).ok()
}

/// Runs a history and tries states of it; returns the failures. `None` where this machine cannot
/// mount.
fn failures(seed: u64, count: fn(usize) -> usize, lies: bool) -> Option<Vec<String>> {
    let scratch = Scratch::new("roles");
    let point = scratch.join("mnt");
    std::fs::create_dir(&point).unwrap();
    let disk = Arc::new(FaultDisk::new(&scratch.join("below")).unwrap());
    let session = mounted(&disk, &point)?;
    drop(storage(&point));
    disk.record();
    disk.faults(|faults| faults.lie = lies);
    let history = {
        let opened = storage(&point);
        History::run(&opened.storage, &disk, seed, 60)
    };
    let (end, _) = disk.events();
    // Each flush, just before it and just after it; then moments drawn by seed.
    let points = disk.sync_points();
    let count = count(points.len());
    let mut rng = Rng(seed);
    let mut moments: Vec<usize> = points.iter().flat_map(|at| [*at, at + 1]).collect();
    while moments.len() > count / 2 {
        moments.swap_remove(rng.below(moments.len() as u64) as usize);
    }
    while moments.len() < count {
        moments.push(rng.below(end as u64 + 1) as usize);
    }
    let mut failed = Vec::new();
    for (number, events) in moments.iter().enumerate() {
        let unit = if number % 2 == 0 { 512 } else { 4096 };
        let to = scratch.join(format!("state-{number}"));
        let choice = Choice::of_seed(number as u64, unit, *events);
        disk.snapshot(&to, choice).unwrap();
        let run = std::panic::AssertUnwindSafe(|| check(&to, &history, *events));
        match std::panic::catch_unwind(run) {
            Ok(Ok(())) => {}
            Ok(Err(text)) => failed.push(format!("state {number} at {events}: {text}")),
            Err(_) => failed.push(format!("state {number} at {events}: a panic")),
        }
        std::fs::remove_dir_all(&to).unwrap();
    }
    let (states, flushes) = (moments.len(), points.len());
    println!("seed {seed}: {states} states of {end} events, {flushes} flushes");
    session.unmount(Duration::from_secs(5)).unwrap();
    Some(failed)
}

#[test]
fn every_crash_state_of_a_history_keeps_all_durable_writes() {
    for seed in 1..=3 {
        let failed = failures(seed, states, false).unwrap_or_default();
        assert!(failed.is_empty(), "seed {seed}: {failed:#?}");
    }
}

#[test]
fn a_disk_that_ignores_flushes_is_detected() {
    std::panic::set_hook(Box::new(|_| ()));
    let failed = failures(1, |_flushes| 20, true);
    let _ = std::panic::take_hook();
    assert!(failed.is_none_or(|failed| !failed.is_empty()));
}

#[test]
fn a_full_disk_is_used_to_its_end_and_again_after_deleting() {
    let scratch = Scratch::new("roles");
    let point = scratch.join("mnt");
    std::fs::create_dir(&point).unwrap();
    let disk = Arc::new(FaultDisk::new(&scratch.join("below")).unwrap());
    let Some(session) = mounted(&disk, &point) else {
        return;
    };
    let opened = storage(&point);
    let fits =
        |id: u64, length: usize| try_write(&opened.storage, id, 0, &pattern(3, length)).is_ok();
    // Room for log, index, its reserve, and little more.
    disk.faults(|faults| faults.budget = Some((64 << 20) + (38 << 20)));
    let most = (0..1000).find(|id| !fits(*id, 100_000)).unwrap();
    assert!((200..400).contains(&most), "{most}");
    // Holes of 100 KB, shorter than the next writes. 4 MiB are kept for overwrites.
    for id in (0..200).step_by(2) {
        delete(&opened.storage, id);
    }
    let again = (2000..2100).take_while(|id| fits(*id, 200_000)).count();
    assert!(
        again >= 25,
        "only {again} of 200 KB fit where 100 of 100 KB were deleted"
    );
    disk.faults(|faults| faults.budget = None);
    assert!((3000..3050).all(|id| fits(id, 100_000)));
    assert!(opened.storage.is_healthy());
    drop(opened);
    session.unmount(Duration::from_secs(5)).unwrap();
}
