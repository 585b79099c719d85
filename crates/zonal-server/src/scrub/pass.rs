//! A pass over a store: what comes next, how long to sleep, what was found.

use super::chunk::{Verified, verify};
use super::{Scrub, Subject};
use crate::clock;
use crate::scrub_record::ScrubRecord;
use crate::trouble::shortened;
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

/// One thing to do.
enum Work {
    /// A record of a target's index.
    Record(WalkedRecord),
    /// Entries of a shard's store, read already.
    Entries {
        behind: Vec<u8>,
        count: u64,
        bytes: u64,
    },
}

impl Scrub {
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

    /// What comes next, and whether that is the last of it.
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

    /// Does it; gives how many bytes were read.
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

/// How long a chunk may take; one without stored blocks counts as one block, for it costs a
/// look-up.
fn pause(bytes: u64, rate: u64) -> Duration {
    let bytes = bytes.max(BLOCK);
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}
