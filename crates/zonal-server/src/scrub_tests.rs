//! Scrubs of a target on real files.

use crate::control::Control;
use crate::scrub::{ScrubTask, Subject};
use crate::scrub_record::ScrubPace;
use crate::storage_io;
use crate::storage_tests::{Opened, storage, write};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zonal_net::Role;
use zonal_testkit::Scratch;
use zonal_types::{Column, DataId, ErrorCode, TargetId};
use zonal_wire::{AdminReply, AdminRequest, ScrubOf, ScrubReport, ScrubState};

const TARGET: TargetId = TargetId(1);
const OF: ScrubOf = ScrubOf::Target { target: TARGET };
const FAST: u64 = 1 << 40;

struct Scrubbed {
    opened: Opened,
    control: Arc<Control>,
    thread: Option<JoinHandle<()>>,
}

impl Scrubbed {
    fn open(dir: &Path) -> Self {
        Self::with(dir, |_pace| ())
    }

    fn with(dir: &Path, change: impl FnOnce(&mut ScrubPace)) -> Self {
        let opened = storage(dir);
        let config = opened.config.storage_role.as_ref().unwrap();
        let mut pace = ScrubPace {
            rate: config.scrub_rate,
            period_seconds: config.scrub_period.0 / 1000,
        };
        change(&mut pace);
        let subject = Subject::Target(Arc::clone(&opened.storage));
        let (scrub, thread) = ScrubTask::start(subject, pace).unwrap();
        let me = (zonal_types::NodeId(1), "127.0.0.1:1".parse().unwrap());
        let control = Control::new(me, Some((Arc::clone(&opened.storage), scrub)), None);
        Self {
            opened,
            control,
            thread: Some(thread),
        }
    }

    fn ask_as(&self, role: Role, request: &AdminRequest) -> AdminReply {
        self.control.handle(role, request)
    }

    fn ask(&self, request: &AdminRequest) -> AdminReply {
        self.ask_as(Role::Tool, request)
    }

    fn begin(&self, rate: u64, anew: bool) {
        let of = OF;
        let reply = self.ask(&AdminRequest::ScrubStart { of, rate, anew });
        assert_eq!(reply, AdminReply::Done);
    }

    fn report(&self) -> ScrubReport {
        match self.ask(&AdminRequest::ScrubStatus { of: OF }) {
            AdminReply::Scrub { report } => report,
            other => panic!("{other:?}"),
        }
    }

    fn until(&self, what: &str, holds: impl Fn(&ScrubReport) -> bool) -> ScrubReport {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let report = self.report();
            if holds(&report) {
                return report;
            }
            assert!(Instant::now() < deadline, "not {what}: {report:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pass(&self) -> ScrubReport {
        self.begin(FAST, true);
        self.until("ended", |report| report.state == ScrubState::Idle)
    }

    fn trouble(&self) -> String {
        match self.ask(&AdminRequest::Health) {
            AdminReply::Health { roles } => roles[0].trouble.clone(),
            other => panic!("{other:?}"),
        }
    }
}

impl Drop for Scrubbed {
    fn drop(&mut self) {
        self.control.stop();
        self.thread.take().unwrap().join().unwrap();
        storage_io::close(&self.opened.storage);
    }
}

/// Damages the blocks with these contents in the segment files.
fn flip(dir: &Path, marks: &[Vec<u8>]) {
    for entry in std::fs::read_dir(dir.join("target/segments")).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        for mark in marks {
            let blocks = bytes.chunks_exact(4096);
            for (block, _) in blocks.enumerate().filter(|(_, found)| *found == mark) {
                let at = block as u64 * 4096 + 100;
                file.write_all_at(&[mark[100] ^ 4], at).unwrap();
            }
        }
        file.sync_all().unwrap();
    }
}

fn places(report: &ScrubReport) -> BTreeSet<(u64, u16, u64)> {
    let damaged = report.damaged.iter();
    damaged
        .map(|found| (found.data_id.0, found.column.0, found.offset))
        .collect()
}

/// Bytes without two equal blocks.
fn unlike(seed: u64, length: usize) -> Vec<u8> {
    let words = (0..length as u64).step_by(8).map(|at| {
        let word = (seed << 32 | at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (word ^ (word >> 29)).to_le_bytes()
    });
    words.flatten().take(length).collect()
}

fn fill(storage: &crate::storage_role::StorageRole) {
    for id in 1..=20 {
        // Large and small writes, with holes, some of them only in the log.
        write(storage, id, (id - 1) * 300_000, &unlike(id, 700_000));
        write(storage, id, 9_000_000, &unlike(id, 5000));
    }
}

#[test]
fn a_scrub_names_exactly_the_damaged_blocks_and_status_shows_them() {
    let scratch = Scratch::new("roles");
    let scrubbed = Scrubbed::open(&scratch);
    fill(&scrubbed.opened.storage);
    let clean = scrubbed.pass();
    assert_eq!((clean.objects, clean.damaged_blocks), (20, 0));
    assert!(clean.bytes >= 20 * 600_000, "{clean:?}");
    assert_eq!(scrubbed.trouble(), "");
    // The 30th whole block of object 3, the 7th of object 11.
    let block = |id: u64, index: usize| {
        let start = (id as usize - 1) * 300_000;
        let first = start.next_multiple_of(4096) + index * 4096;
        let bytes = unlike(id, 700_000);
        (
            first as u64,
            bytes[first - start..first - start + 4096].to_vec(),
        )
    };
    let ((at3, mark3), (at11, mark11)) = (block(3, 30), block(11, 7));
    flip(&scratch, &[mark3.clone(), mark11.clone()]);
    let damaged = scrubbed.pass();
    let expected = BTreeSet::from([(3, 0, at3), (11, 0, at11)]);
    assert_eq!(places(&damaged), expected);
    assert_eq!((damaged.objects, damaged.damaged_blocks), (20, 2));
    assert!(damaged.damaged[0].detail.contains("instead of"));
    assert!(
        scrubbed.trouble().contains("damaged"),
        "{}",
        scrubbed.trouble()
    );
    // Overwriting removes the damage.
    write(&scrubbed.opened.storage, 3, at3, &mark3);
    write(&scrubbed.opened.storage, 11, at11, &mark11);
    let again = scrubbed.pass();
    assert_eq!(again.damaged_blocks, 0);
    assert_eq!(scrubbed.trouble(), "");
}

#[test]
fn a_scrub_keeps_its_rate_and_its_place_over_stops_and_restarts() {
    let scratch = Scratch::new("roles");
    let scrubbed = Scrubbed::open(&scratch);
    fill(&scrubbed.opened.storage);
    scrubbed.opened.storage.checkpoint().unwrap();
    let all = scrubbed.pass().bytes;
    // At this rate the pass takes about 2 s.
    let rate = all / 2;
    let start = Instant::now();
    scrubbed.begin(rate, true);
    let some = scrubbed.until("begun", |report| report.bytes > all / 10);
    let allowed = start.elapsed().as_secs_f64() * rate as f64 + 600_000.0;
    assert!((some.bytes as f64) < allowed, "{} of {allowed}", some.bytes);
    scrubbed.ask(&AdminRequest::ScrubStop { of: OF });
    let stopped = scrubbed.report();
    assert_eq!(stopped.state, ScrubState::Stopped);
    assert!(stopped.data_id > DataId(0) && stopped.bytes < all);
    drop(scrubbed);
    // A paused pass keeps its position over a restart.
    let scrubbed = Scrubbed::open(&scratch);
    let kept = scrubbed.report();
    assert_eq!((kept.state, kept.started), (stopped.state, stopped.started));
    // The chunk that it was reading when it was paused may count.
    assert!(kept.bytes >= stopped.bytes && kept.data_id >= stopped.data_id && kept.bytes < all);
    drop(scrubbed);
    let scrubbed = Scrubbed::open(&scratch);
    assert_eq!(scrubbed.report(), kept);
    scrubbed.begin(rate, false);
    scrubbed.until("going on", |report| report.bytes > kept.bytes);
    drop(scrubbed);
    // A running pass continues by itself after a restart.
    let scrubbed = Scrubbed::open(&scratch);
    assert_eq!(scrubbed.report().state, ScrubState::Running);
    scrubbed.begin(FAST, false);
    let ended = scrubbed.until("ended", |report| report.state == ScrubState::Idle);
    assert_eq!((ended.bytes, ended.objects), (all, 20));
    assert_eq!(ended.started, stopped.started);
}

#[test]
fn a_scrub_that_is_due_begins_by_itself() {
    let scratch = Scratch::new("roles");
    let scrubbed = Scrubbed::with(&scratch, |pace| pace.period_seconds = 1);
    fill(&scrubbed.opened.storage);
    // The first pass may begin before all is written.
    let ended = scrubbed.until("ended", |report| {
        report.objects == 20 && report.ended.seconds > 0
    });
    assert_eq!(ended.damaged_blocks, 0);
}

#[test]
fn a_scrub_under_writes_and_deletions_finds_nothing_wrong() {
    let scratch = Scratch::new("roles");
    let scrubbed = Scrubbed::open(&scratch);
    fill(&scrubbed.opened.storage);
    let storage = &scrubbed.opened.storage;
    for round in 0..6_u64 {
        scrubbed.begin(FAST, true);
        for step in 0..12_u64 {
            let id = (round * 5 + step) % 20 + 1;
            write(storage, id, step * 90_000, &unlike(step, 200_000));
            storage.checkpoint().unwrap();
        }
        let ended = scrubbed.until("ended", |report| report.state == ScrubState::Idle);
        assert_eq!(ended.damaged, []);
    }
}

#[test]
fn mounts_are_refused_and_objects_are_listed_in_steps() {
    let scratch = Scratch::new("roles");
    let scrubbed = Scrubbed::open(&scratch);
    fill(&scrubbed.opened.storage);
    let list = |after, limit| AdminRequest::ListObjects {
        target: TARGET,
        after,
        limit,
        digests: true,
    };
    for request in [AdminRequest::Health, list(None, 5)] {
        match scrubbed.ask_as(Role::Client, &request) {
            AdminReply::Failed { code, .. } => assert_eq!(code.0, ErrorCode::NotPermitted),
            other => panic!("{other:?}"),
        }
    }
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let AdminReply::Objects { objects, end } = scrubbed.ask(&list(after, 7)) else {
            panic!("no list");
        };
        found.extend(
            objects
                .iter()
                .map(|entry| (entry.data_id.0, entry.object_bytes)),
        );
        after = objects.last().map(|last| (last.data_id, last.column));
        if end {
            break;
        }
    }
    let expected: Vec<(u64, u64)> = (1..=20).map(|id| (id, 9_005_000)).collect();
    assert_eq!(found, expected);
    assert_eq!(after, Some((DataId(20), Column(0))));
    let elsewhere = AdminRequest::ScrubStatus {
        of: ScrubOf::Target {
            target: TargetId(2),
        },
    };
    assert!(matches!(
        scrubbed.ask(&elsewhere),
        AdminReply::Failed { code, .. } if code.0 == ErrorCode::WrongTarget
    ));
}
