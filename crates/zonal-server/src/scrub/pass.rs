//! A pass of a scrub over a store: the next work, the sleep after it, the findings.

use super::chunk::{Verified, verify};
use super::{ScrubTask, Subject};
use crate::clock;
use crate::medium_health::shortened;
use crate::scrub_record::ScrubRecord;
use std::sync::PoisonError;
use std::time::{Duration, Instant};
use zonal_net::AlignedBuf;
use zonal_object::ids::BLOCK;
use zonal_object::index_walk::{self, WalkedRecord};
use zonal_types::limits::SCRUB_DAMAGED_MAX;
use zonal_types::{Blob, ErrorCode, KvRead, Timestamp};
use zonal_wire::{Damaged, ScrubState};

/// Bytes of a shard's entries taken at a time.
const BATCH_BYTES: u64 = 64 << 10;

/// End of the keys of a shard or a manager (exclusive).
const END_KEY: [u8; 8] = [0xff; 8];

/// Records taken from the index at a time.
const BATCH_RECORDS: usize = 64;

/// How often the position is kept.
const KEEP_EVERY: Duration = Duration::from_secs(30);

/// The longest sleep before a pass is due, so that a corrected clock is noticed.
const LOOK_EVERY: Duration = Duration::from_secs(3600);

/// Shortest sleep; shorter ones are accumulated.
const NAP: Duration = Duration::from_millis(2);

/// One unit of work.
enum Work {
    /// A record of a target's index.
    Record(WalkedRecord),
    /// Entries of a shard's store, already read.
    Entries {
        behind: Vec<u8>,
        count: u64,
        bytes: u64,
    },
}

impl ScrubTask {
    pub(super) fn run(&self) {
        let mut kept = Instant::now();
        let mut free_at = Instant::now();
        let mut buffer = AlignedBuf::new();
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

    /// The next batch; the flag is true for the last one.
    fn batch(&self, pass: &ScrubRecord) -> Result<(Vec<Work>, bool), ErrorCode> {
        let is_first = pass.next.0.is_empty();
        match &self.subject {
            Subject::Target(storage) => {
                let start = if is_first {
                    index_walk::first()
                } else {
                    pass.next.0.clone()
                };
                let found = index_walk::records(&*storage.engine, &start, BATCH_RECORDS)?;
                let is_last = found.len() < BATCH_RECORDS;
                Ok((found.into_iter().map(Work::Record).collect(), is_last))
            }
            Subject::Shard(shard) => {
                let (mut behind, mut count, mut bytes) = (Vec::new(), 0, 0);
                shard
                    .engine()
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

    /// Does one unit of work; returns the bytes read.
    fn one(&self, pass: &ScrubRecord, work: &Work, buffer: &mut AlignedBuf) -> u64 {
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

    /// Waits for a pass and returns its record; `None` at the end of the thread.
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

    /// Sleeps until `until`; false where the pass must not go on from here.
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

    /// Counts a record of the index as done.
    fn took(&self, pass: &ScrubRecord, passed: WalkedRecord, verified: &Verified) {
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
            // After a kill some chunks are read again.
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
            self.subject.note_damage(object, *offset);
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
            self.subject.medium_health().damage(&text);
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
                self.subject.medium_health().no_damage();
            }
        });
    }

    fn fail(&self, pass: &ScrubRecord, code: ErrorCode) {
        tracing::error!(of = self.subject.name(), %code, "scrub: the index cannot be read further");
        self.subject
            .medium_health()
            .damage("the index cannot be read whole");
        self.change(|record| {
            if record.started == pass.started {
                record.damaged_blocks = record.damaged_blocks.max(1);
                record.end(ScrubState::Failed, self.pace);
            }
        });
    }
}

/// Time for a chunk at this rate. A chunk without stored blocks counts as one block, as it costs a
/// look-up.
fn pause(bytes: u64, rate: u64) -> Duration {
    let bytes = bytes.max(BLOCK);
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
