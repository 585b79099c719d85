//! A shell for tests: store, log and segments in memory, with crashes.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

use std::cell::Cell;
use std::collections::BTreeMap;
use zonal_object::*;
use zonal_testkit::Rng;
use zonal_types::{Column, DataId, ErrorCode, KvChange, KvRead};

pub const BLOCK: usize = 4096;

/// The ordered store: contents that checkpoints made durable, and newer changes over them.
#[derive(Default)]
pub struct Store {
    pub durable: BTreeMap<Vec<u8>, Vec<u8>>,
    pub now: BTreeMap<Vec<u8>, Vec<u8>>,
    pub gets: Cell<usize>,
}

impl Store {
    pub fn apply(&mut self, changes: &[KvChange]) {
        for change in changes {
            change.apply_to(&mut self.now);
        }
    }
}

impl KvRead for Store {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        self.gets.set(self.gets.get() + 1);
        KvRead::get(&self.now, key)
    }
    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        self.now.scan(start, end, visit)
    }
}

/// A write to a segment that no flush has covered, with the bytes before it.
struct Unsynced {
    segment: u32,
    offset: usize,
    old: Vec<u8>,
}

pub struct Shell {
    pub config: TargetConfig,
    pub target: StorageTarget,
    pub store: Store,
    pub log: Vec<EffectRecord>,
    pub synced: usize,
    pub segments: BTreeMap<u32, Vec<u8>>,
    unsynced: Vec<Unsynced>,
    pub checkpoints: usize,
}

pub fn object(data_id: u64) -> ObjectId {
    ObjectId {
        data_id: DataId(data_id),
        column: Column(0),
    }
}

/// A small target; a test that needs another one has its own.
pub const CONFIG: TargetConfig = TargetConfig {
    segment_units: 512,
    segments: 4,
    pending_blocks_max: 128,
};
pub const UNTRUNCATED: Truncation = Truncation { seq: 0, bytes: 0 };
pub const MIB: usize = 1 << 20;

/// A shell with a MiB of object 1.
pub fn filled() -> (Shell, Vec<u8>) {
    let mut shell = Shell::new(CONFIG);
    let payload = Rng(1).bytes(MIB);
    shell.write(object(1), UNTRUNCATED, 0, &payload).unwrap();
    (shell, payload)
}

impl Shell {
    pub fn new(config: TargetConfig) -> Self {
        let store = Store::default();
        Self {
            config,
            target: StorageTarget::open(config, &store, []).unwrap(),
            store,
            log: Vec::new(),
            synced: 0,
            segments: BTreeMap::new(),
            unsynced: Vec::new(),
            checkpoints: 0,
        }
    }

    pub fn pwrite(&mut self, segment: u32, offset: u64, bytes: &[u8]) {
        assert!(segment < self.config.segments);
        let length = self.config.segment_units as usize * BLOCK;
        let stored = self
            .segments
            .entry(segment)
            .or_insert_with(|| vec![0xEE; length]);
        let offset = offset as usize;
        let place = &mut stored[offset..offset + bytes.len()];
        for (index, (old, new)) in place.chunks_mut(BLOCK).zip(bytes.chunks(BLOCK)).enumerate() {
            self.unsynced.push(Unsynced {
                segment,
                offset: offset + index * BLOCK,
                old: old.to_vec(),
            });
            old.copy_from_slice(new);
        }
    }

    pub fn append(&mut self, record: EffectRecord) {
        self.store.apply(&record.changes);
        self.log.push(record);
    }

    pub fn sync(&mut self) {
        self.unsynced.clear();
        self.synced = self.log.len();
    }

    /// Reads the plan's parts and finishes it.
    pub fn fetch(&self, plan: &ReadPlan) -> Result<Vec<u8>, Damage> {
        let mut buffer = self.raw(plan);
        let range = plan.finish(&mut buffer)?;
        Ok(buffer[range].to_vec())
    }

    /// Reads the plan's parts; bytes that no segment has stay unchanged.
    pub fn raw(&self, plan: &ReadPlan) -> Vec<u8> {
        let mut buffer = vec![0xDD; plan.buffer_len()];
        for read in plan.reads() {
            let from = read.offset as usize;
            let length = read.buffer.len();
            if let Some(segment) = self.segments.get(&read.segment) {
                buffer[read.buffer].copy_from_slice(&segment[from..from + length]);
            }
        }
        buffer
    }

    pub fn read(
        &self,
        object: ObjectId,
        truncation: Truncation,
        offset: u64,
        length: usize,
    ) -> Result<Vec<u8>, ErrorCode> {
        let plan = self
            .target
            .plan_read(&self.store, object, truncation, offset, length)?;
        self.fetch(&plan).map_err(|damage| damage.code())
    }

    pub fn run_edit(&mut self, mut edit: Edit) -> Result<ChangeOutcome, ErrorCode> {
        let mut damaged = None;
        loop {
            match self.target.edit_step(&self.store, &mut edit)? {
                EditStep::Read => {
                    let plan = edit.old_blocks().unwrap().clone();
                    if damaged.as_ref() == Some(&plan) {
                        return Err(ErrorCode::Corrupt);
                    }
                    let mut buffer = self.raw(&plan);
                    damaged = edit.supply(&mut buffer).is_err().then_some(plan);
                }
                EditStep::Log { record, done } => {
                    self.append(record);
                    if let Some(outcome) = done {
                        return Ok(outcome);
                    }
                }
                EditStep::Done(outcome) => return Ok(outcome),
            }
        }
    }

    pub fn plan(&mut self, request: WriteRequest<'_>) -> Result<WritePlan, ErrorCode> {
        loop {
            match self.target.plan_write(&self.store, request)? {
                WriteDecision::Ready(plan) => return Ok(plan),
                WriteDecision::TruncateFirst(edit) => {
                    self.run_edit(edit)?;
                }
            }
        }
    }

    /// The shell's part between plan and commit.
    pub fn carry_out(&mut self, plan: &mut WritePlan, payload: &[u8]) {
        let writes: Vec<_> = plan.writes().collect();
        for write in writes {
            self.pwrite(write.segment, write.offset, &payload[write.payload]);
        }
        plan.checksum(payload);
    }

    pub fn commit(
        &mut self,
        plan: &mut WritePlan,
        payload: &[u8],
    ) -> Result<ChangeOutcome, ErrorCode> {
        loop {
            if let Some(read) = plan.old_blocks() {
                let mut buffer = self.raw(read);
                if let Err(damage) = plan.supply(&mut buffer)
                    && !self.target.refresh_write(&self.store, plan)?
                {
                    self.target.abort_write(plan);
                    return Err(damage.code());
                }
                continue;
            }
            match self.target.commit_write(&self.store, plan, payload)? {
                Committed::Done { record, outcome } => {
                    self.append(record);
                    return Ok(outcome);
                }
                Committed::Again => {}
            }
        }
    }

    pub fn write(
        &mut self,
        object: ObjectId,
        truncation: Truncation,
        offset: u64,
        payload: &[u8],
    ) -> Result<ChangeOutcome, ErrorCode> {
        self.write_ranges(
            object,
            truncation,
            &[(offset, payload.len() as u32)],
            payload,
        )
    }

    pub fn write_ranges(
        &mut self,
        object: ObjectId,
        truncation: Truncation,
        ranges: &[(u64, u32)],
        payload: &[u8],
    ) -> Result<ChangeOutcome, ErrorCode> {
        let mut plan = self.plan(WriteRequest {
            attempt: ChangeAttempt::default(),
            object,
            truncation,
            ranges,
        })?;
        self.carry_out(&mut plan, payload);
        self.commit(&mut plan, payload)
    }

    pub fn delete(&mut self, objects: Vec<ObjectId>) -> Result<usize, ErrorCode> {
        let mut delete = Delete::new(objects);
        let mut steps = 0;
        loop {
            match self.target.delete_step(&self.store, &mut delete)? {
                DeleteStep::Log(record) => {
                    self.append(record);
                    steps += 1;
                }
                DeleteStep::Again => {}
                DeleteStep::Done => return Ok(steps),
            }
        }
    }

    pub fn flush_pending(&mut self, blocks: usize) {
        let plan = self.target.plan_checkpoint(blocks);
        self.write_checkpoint(&plan);
        self.commit_flush(plan);
    }

    pub fn write_checkpoint(&mut self, plan: &CheckpointPlan) {
        let mut buffer = Vec::new();
        for run in plan.runs() {
            run.copy_to(&mut buffer);
            self.pwrite(run.place().segment, run.place().offset(), &buffer);
        }
    }

    pub fn commit_flush(&mut self, plan: CheckpointPlan) {
        for record in self.target.commit_checkpoint(&self.store, plan).unwrap() {
            self.append(record);
        }
    }

    /// Runs a whole checkpoint. `arrives` false: it fails before it is durable.
    pub fn checkpoint(&mut self, arrives: bool) {
        self.flush_pending(usize::MAX);
        self.freeze(arrives);
    }

    pub fn freeze(&mut self, arrives: bool) {
        let changes = self.target.freeze();
        self.store.apply(&changes);
        if arrives {
            self.store.durable = self.store.now.clone();
            self.log.clear();
            self.sync();
            self.target.checkpoint_done();
            self.checkpoints += 1;
        }
    }

    fn reopen(&mut self) {
        self.store.now = self.store.durable.clone();
        for record in self.log.clone() {
            self.store.apply(&record.changes);
        }
        let notes = self.log.iter().map(|record| record.note.as_slice());
        self.target = StorageTarget::open(self.config, &self.store, notes).unwrap();
    }

    /// The process dies; everything handed to the kernel stays.
    pub fn kill(&mut self) {
        self.reopen();
    }

    /// Power loss: each unsynced block arrives or not, and so does the log's tail. Returns the
    /// number of records left.
    pub fn power_loss(&mut self, rng: &mut Rng) -> usize {
        for lost in std::mem::take(&mut self.unsynced).into_iter().rev() {
            if rng.chance(30) {
                let stored = self.segments.get_mut(&lost.segment).unwrap();
                stored[lost.offset..lost.offset + BLOCK].copy_from_slice(&lost.old);
            }
        }
        let tail = (self.log.len() - self.synced) as u64;
        let keep = self.synced + rng.below(tail + 1) as usize;
        self.log.truncate(keep);
        let whole = |record: &EffectRecord| {
            replay_checks(&self.config, record)
                .unwrap()
                .iter()
                .all(|check| {
                    let from = check.place.offset() as usize;
                    let bytes = &self.segments[&check.place.segment][from..from + BLOCK];
                    crc_fast::crc32_iscsi(bytes) == check.crc
                })
        };
        let bad = (self.synced..keep).find(|at| !whole(&self.log[*at]));
        self.log.truncate(bad.unwrap_or(keep));
        // The store found after a power loss is on the medium.
        self.sync();
        self.reopen();
        self.log.len()
    }

    pub fn check(&self) {
        self.target.check(&self.store).unwrap();
    }
}
