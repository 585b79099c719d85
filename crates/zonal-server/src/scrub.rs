//! Scrub: reads everything that a target or a shard stores and compares it with its checksums, slowly.
//!
//! One thread a store, asleep until a pass is begun by a command or is due. It walks the chunks of the index in key order,
//! a few at a time, and plans each read as any read is planned, so that no lock is held over a read and a place that was
//! reused meanwhile is planned again: the same plan that fails twice is damage. After each chunk it sleeps as long as the
//! rate wants. A target's bytes come from the medium. Of a shard every entry of the store is read, and with it every block of the
//! index in use; what the system caches of the index is not read again from the medium.
//!
//! Lock order: `Scrub::control`, then what [`Trouble`](crate::trouble::Trouble) locks.

use crate::clock;
use crate::meta_role::MetaRole;
use crate::scrub_record::{Pace, SCRUB_KEY, SHARD_SCRUB_KEY, ScrubRecord};
use crate::storage_role::Storage;
use crate::trouble::{Trouble, shortened};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zonal_disk::{DiskError, Engine};
use zonal_net::PayloadBuf;
use zonal_object::ids::BLOCK;
use zonal_object::list::{self, Passed};
use zonal_object::{Cut, ObjectId, ReadPlan};
use zonal_types::limits::{BLOCK_BYTES, CHUNK_BYTES, SCRUB_DAMAGED_MAX};
use zonal_types::{Blob, ErrorCode, KvRead, Timestamp};
use zonal_wire::{Damaged, ScrubReport, ScrubState};

/// Bytes of a shard's entries taken at a time.
const BATCH_BYTES: u64 = 64 << 10;
/// Behind every key of a shard or a manager.
const END_KEY: [u8; 8] = [0xff; 8];
/// Records taken from the index at a time.
const BATCH_RECORDS: usize = 64;
/// How often the place is kept.
const KEEP_EVERY: Duration = Duration::from_secs(30);
/// The longest sleep until a pass that is due, so that a clock that was put right is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(3600);
/// Shortest sleep for the rate: less is saved up.
const NAP: Duration = Duration::from_millis(2);

struct Control {
    record: ScrubRecord,
    stopping: bool,
}

/// What is scrubbed.
#[derive(Clone)]
pub(crate) enum Subject {
    Target(Arc<Storage>),
    Shard(Arc<MetaRole>),
}

impl Subject {
    fn engine(&self) -> &Arc<Engine> {
        match self {
            Self::Target(storage) => &storage.engine,
            Self::Shard(shard) => &shard.engine,
        }
    }

    fn trouble(&self) -> &Trouble {
        match self {
            Self::Target(storage) => &storage.trouble,
            Self::Shard(shard) => &shard.trouble,
        }
    }

    fn key(&self) -> &'static [u8] {
        match self {
            Self::Target(_) => &SCRUB_KEY,
            Self::Shard(_) => &SHARD_SCRUB_KEY,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Target(storage) => format!("target {}", storage.id()),
            Self::Shard(shard) => format!("shard {}", shard.identity().0),
        }
    }
}

/// One thing to do.
enum Work {
    /// A record of a target's index.
    Record(Passed),
    /// Entries of a shard's store, read already.
    Entries {
        behind: Vec<u8>,
        count: u64,
        bytes: u64,
    },
}

/// The scrub of one store.
pub struct Scrub {
    subject: Subject,
    pace: Pace,
    control: Mutex<Control>,
    wake: Condvar,
}

/// What a chunk was found to be.
#[derive(Default)]
struct Verified {
    bytes: u64,
    damaged: BTreeMap<u64, String>,
}

impl Scrub {
    /// Starts the thread; a pass that was under way goes on.
    ///
    /// # Errors
    /// Where the system refuses a thread.
    pub(crate) fn start(
        subject: Subject,
        pace: Pace,
    ) -> std::io::Result<(Arc<Self>, JoinHandle<()>)> {
        let (engine, key) = (subject.engine(), subject.key());
        let record = ScrubRecord::load(&**engine, key, pace).unwrap_or_else(|code| {
            tracing::warn!(%code, "what was known of the scrub cannot be read; it begins anew");
            let mut record = ScrubRecord::new(pace);
            record.begin(pace.rate, pace);
            record
        });
        // When the next one is due must not begin anew with each start.
        engine.apply_unlogged(vec![record.change(key)]);
        let scrub = Arc::new(Self {
            subject,
            pace,
            control: Mutex::new(Control {
                record,
                stopping: false,
            }),
            wake: Condvar::new(),
        });
        let thread = std::thread::Builder::new().name("scrub".into()).spawn({
            let scrub = Arc::clone(&scrub);
            move || scrub.run()
        })?;
        Ok((scrub, thread))
    }

    fn lock(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the record; durable with the next checkpoint, which is asked for.
    fn keep(&self, record: &ScrubRecord) {
        let engine = self.subject.engine();
        engine.apply_unlogged(vec![record.change(self.subject.key())]);
        engine.request_checkpoint();
    }

    fn change(&self, change: impl FnOnce(&mut ScrubRecord)) {
        let record = {
            let mut control = self.lock();
            change(&mut control.record);
            control.record.clone()
        };
        self.keep(&record);
        self.wake.notify_all();
    }

    /// Ends the thread; what was reached is kept.
    pub(crate) fn stop_thread(&self) {
        self.lock().stopping = true;
        self.wake.notify_all();
    }

    /// Begins a pass, or goes on with a stopped one. One that is under way gets the new rate.
    pub(crate) fn begin(&self, rate: u64, anew: bool) {
        let rate = if rate == 0 { self.pace.rate } else { rate };
        self.change(|record| match record.state {
            ScrubState::Running | ScrubState::Stopped if !anew => {
                record.state = ScrubState::Running;
                record.rate = rate;
            }
            _ => record.begin(rate, self.pace),
        });
    }

    /// Stops the pass under way, if one is; it keeps its place.
    pub(crate) fn pause(&self) {
        self.change(|record| {
            if record.state == ScrubState::Running {
                record.state = ScrubState::Stopped;
            }
        });
    }

    /// How far it is.
    pub(crate) fn report(&self) -> ScrubReport {
        let record = self.lock().record.clone();
        let (objects_now, bytes_now) = match &self.subject {
            Subject::Target(storage) => {
                let space = storage.lock().statfs();
                (space.objects, space.total.saturating_sub(space.free))
            }
            Subject::Shard(_) => (0, 0),
        };
        let at = list::object_at(&record.next.0).unwrap_or_default();
        ScrubReport {
            state: record.state,
            rate: record.rate,
            started: record.started,
            ended: record.ended,
            objects: record.objects,
            bytes: record.bytes,
            objects_now,
            bytes_now,
            data_id: at.data_id,
            column: at.column,
            damaged_blocks: record.damaged_blocks,
            damaged: record.damaged,
        }
    }

    /// Figures for people.
    pub(crate) fn gauges(&self) -> Vec<(String, u64)> {
        let control = self.lock();
        let record = &control.record;
        let running = record.state == ScrubState::Running;
        let ended = u64::try_from(record.ended.seconds).unwrap_or(0);
        let named = |name: &str| match &self.subject {
            Subject::Target(_) => format!("target_scrub_{name}"),
            Subject::Shard(shard) => {
                format!("shard_scrub_{name}{{shard=\"{}\"}}", shard.identity().0)
            }
        };
        vec![
            (named("running"), u64::from(running)),
            (named("rate_bytes"), record.rate),
            (named("objects"), record.objects),
            (named("bytes"), record.bytes),
            (named("damaged_blocks"), record.damaged_blocks),
            (named("ended_seconds"), ended),
        ]
    }

    fn run(&self) {
        let mut kept = Instant::now();
        let mut free_at = Instant::now();
        let mut buffer = PayloadBuf::new();
        while let Some(pass) = self.next_step() {
            let (found, is_last) = match self.batch(&pass) {
                Ok(batch) => batch,
                Err(code) => {
                    self.fail(&pass, code);
                    continue;
                }
            };
            let mut goes_on = true;
            for work in &found {
                let begun = Instant::now();
                let bytes = self.one(&pass, work, &mut buffer);
                free_at = free_at.max(begun) + pause(bytes, pass.rate);
                goes_on = self.rest(&pass, free_at);
                if !goes_on {
                    break;
                }
            }
            if goes_on && is_last {
                self.end(&pass);
            } else if kept.elapsed() >= KEEP_EVERY {
                let record = self.lock().record.clone();
                self.keep(&record);
                kept = Instant::now();
            }
        }
        let record = self.lock().record.clone();
        self.keep(&record);
    }

    /// What comes next, and whether that is the last of it.
    fn batch(&self, pass: &ScrubRecord) -> Result<(Vec<Work>, bool), ErrorCode> {
        let is_first = pass.next.0.is_empty();
        match &self.subject {
            Subject::Target(storage) => {
                let start = if is_first {
                    list::first()
                } else {
                    pass.next.0.clone()
                };
                let found = list::records(&*storage.engine, &start, BATCH_RECORDS)?;
                let is_last = found.len() < BATCH_RECORDS;
                Ok((found.into_iter().map(Work::Record).collect(), is_last))
            }
            Subject::Shard(shard) => {
                let (mut behind, mut count, mut bytes) = (Vec::new(), 0, 0);
                shard
                    .engine
                    .scan(&pass.next.0, &END_KEY, &mut |key, value| {
                        behind = [key, &[0]].concat();
                        count += 1;
                        bytes += (key.len() + value.len()) as u64;
                        bytes < BATCH_BYTES
                    })?;
                let is_last = bytes < BATCH_BYTES;
                let work = Work::Entries {
                    behind,
                    count,
                    bytes,
                };
                Ok((vec![work], is_last))
            }
        }
    }

    /// Does it; gives how many bytes were read.
    fn one(&self, pass: &ScrubRecord, work: &Work, buffer: &mut PayloadBuf) -> u64 {
        match (work, &self.subject) {
            (Work::Record(passed), Subject::Target(storage)) => {
                let verified = match passed.chunk {
                    Some(number) => verify(storage, passed.object, number, buffer),
                    None => Verified::default(),
                };
                self.took(pass, *passed, &verified);
                verified.bytes
            }
            (
                Work::Entries {
                    behind,
                    count,
                    bytes,
                },
                _,
            ) => {
                let mut control = self.lock();
                if control.record.started == pass.started && *count > 0 {
                    control.record.next = Blob(behind.clone());
                    control.record.objects += count;
                    control.record.bytes += bytes;
                }
                *bytes
            }
            (Work::Record(_), Subject::Shard(_)) => 0,
        }
    }

    /// The record of the pass under way, as soon as there is one; `None` at the end.
    fn next_step(&self) -> Option<ScrubRecord> {
        let mut control = self.lock();
        loop {
            if control.stopping {
                return None;
            }
            if control.record.state == ScrubState::Running {
                return Some(control.record.clone());
            }
            let due = control.record.due;
            if due == Timestamp::default() || control.record.state == ScrubState::Stopped {
                let waited = self.wake.wait(control);
                control = waited.unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let left = due.seconds.saturating_sub(clock::wall().seconds);
            if left <= 0 {
                tracing::info!(of = self.subject.name(), "a scrub is due");
                control.record.begin(self.pace.rate, self.pace);
                continue;
            }
            let left = Duration::from_secs(left.unsigned_abs()).min(LOOK_EVERY);
            let waited = self.wake.wait_timeout(control, left);
            control = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Sleeps until `until`; false where the pass is not to go on from here.
    fn rest(&self, pass: &ScrubRecord, until: Instant) -> bool {
        let mut control = self.lock();
        loop {
            let goes_on = !control.stopping
                && control.record.state == ScrubState::Running
                && control.record.started == pass.started
                && control.record.rate == pass.rate;
            let left = until.saturating_duration_since(Instant::now());
            if !goes_on || left < NAP {
                return goes_on;
            }
            let waited = self.wake.wait_timeout(control, left);
            control = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes a record of the index as done.
    fn took(&self, pass: &ScrubRecord, passed: Passed, verified: &Verified) {
        let mut control = self.lock();
        let record = &mut control.record;
        if record.started != pass.started {
            return;
        }
        let object = passed.object;
        record.next = Blob(passed.behind());
        record.bytes += verified.bytes;
        record.objects += u64::from(passed.chunk.is_none());
        for (offset, detail) in &verified.damaged {
            // After a kill a part is looked at again.
            let place = (object.data_id, object.column, *offset);
            let mut known = record.damaged.iter();
            if known.any(|known| (known.data_id, known.column, known.offset) == place) {
                continue;
            }
            tracing::error!(
                of = self.subject.name(),
                object = %object,
                offset,
                detail,
                "scrub: stored data is damaged"
            );
            record.damaged_blocks += 1;
            if record.damaged.len() < SCRUB_DAMAGED_MAX {
                record.damaged.push(Damaged {
                    data_id: object.data_id,
                    column: object.column,
                    offset: *offset,
                    detail: shortened(detail),
                });
            }
            let text = format!("object {object} at byte {offset}: {detail}");
            self.subject.trouble().damage(&text);
        }
    }

    fn end(&self, pass: &ScrubRecord) {
        self.change(|record| {
            if record.started != pass.started {
                return;
            }
            record.end(ScrubState::Idle, self.pace);
            tracing::info!(
                of = self.subject.name(),
                objects = record.objects,
                bytes = record.bytes,
                damaged_blocks = record.damaged_blocks,
                "a scrub has ended"
            );
            if record.damaged_blocks == 0 {
                self.subject.trouble().no_damage();
            }
        });
    }

    fn fail(&self, pass: &ScrubRecord, code: ErrorCode) {
        tracing::error!(of = self.subject.name(), %code, "scrub: the index cannot be read further");
        self.subject
            .trouble()
            .damage("the index cannot be read whole");
        self.change(|record| {
            if record.started == pass.started {
                record.damaged_blocks = record.damaged_blocks.max(1);
                record.end(ScrubState::Failed, self.pace);
            }
        });
    }
}

/// Compares a chunk with its checksums.
fn verify(storage: &Storage, object: ObjectId, number: u64, buffer: &mut PayloadBuf) -> Verified {
    let offset = number.saturating_mul(CHUNK_BYTES as u64);
    let mut before: Option<ReadPlan> = None;
    loop {
        let planned = storage.lock().plan_read(
            &*storage.engine,
            object,
            Cut::default(),
            offset,
            CHUNK_BYTES,
        );
        let plan = match planned {
            Ok(plan) => plan,
            Err(code) => {
                let text = format!("its record in the index: {code}");
                return Verified {
                    bytes: 0,
                    damaged: BTreeMap::from([(offset, text)]),
                };
            }
        };
        buffer.set_len(plan.buffer_len());
        let mut found = read(storage, &plan, offset, buffer.as_mut_slice());
        for damage in plan.damaged(buffer.as_slice()) {
            let text = || damage.to_string();
            found.damaged.entry(damage.offset).or_insert_with(text);
        }
        if found.damaged.is_empty() || before.as_ref() == Some(&plan) {
            return found;
        }
        before = Some(plan);
    }
}

/// Reads what the plan wants from the medium; a run that cannot be read is read block by block.
fn read(storage: &Storage, plan: &ReadPlan, offset: u64, buffer: &mut [u8]) -> Verified {
    let mut found = Verified::default();
    for read in plan.reads() {
        let first = read.buffer.start;
        let Some(run) = buffer.get_mut(read.buffer) else {
            continue;
        };
        found.bytes += run.len() as u64;
        let segments = &storage.segments;
        if segments.read_medium(read.segment, read.offset, run).is_ok() {
            continue;
        }
        for (index, block) in run.chunks_mut(BLOCK_BYTES).enumerate() {
            let at = (index * BLOCK_BYTES) as u64;
            if let Err(error) = segments.read_medium(read.segment, read.offset + at, block) {
                if matches!(error, DiskError::Io { .. }) {
                    storage.trouble.medium(&error.to_string());
                }
                let place = offset + first as u64 + at;
                found.damaged.insert(place, error.to_string());
            }
        }
    }
    found
}

/// How long a chunk may take; one without stored blocks counts as one block, for it costs a look-up.
fn pause(bytes: u64, rate: u64) -> Duration {
    let bytes = bytes.max(BLOCK);
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
