//! Random operations against a plain model, with checkpoints and crashes in between.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test may fail so"
)]

mod harness;
use harness::*;
use std::collections::BTreeMap;
use zonal_object::*;
use zonal_testkit::Rng;
use zonal_types::ErrorCode;

const CONFIG: TargetConfig = TargetConfig {
    segment_units: 200,
    segments: 30,
    pending_blocks_max: 128,
};

#[derive(Clone, Default, PartialEq, Debug)]
struct File {
    bytes: Vec<u8>,
    truncation: Truncation,
    exists: bool,
    /// Number of deletions of its object, because data ids are never used again.
    life: u64,
}

impl File {
    fn object(&self, id: u64) -> ObjectId {
        object(id + 10 * self.life)
    }
}

type Model = BTreeMap<u64, File>;

struct InFlight {
    id: u64,
    truncation: Truncation,
    plan: WritePlan,
    ranges: Vec<(u64, u32)>,
    payload: Vec<u8>,
}

struct Run {
    shell: Shell,
    rng: Rng,
    model: Model,
    flights: Vec<InFlight>,
    flush: Option<CheckpointPlan>,
    /// Model after each operation since the last checkpoint, by records in the log.
    history: Vec<(usize, Model)>,
    size: u64,
    config: TargetConfig,
    /// Operations that found no space.
    full: usize,
}

impl Run {
    fn new(seed: u64, size: u64, config: TargetConfig) -> Self {
        Self {
            shell: Shell::new(config),
            rng: Rng(seed),
            model: Model::new(),
            flights: Vec::new(),
            flush: None,
            history: vec![(0, Model::new())],
            size,
            config,
            full: 0,
        }
    }

    fn range(&mut self) -> (u64, usize) {
        let mut offset = self.rng.below(self.size);
        let mut length = match self.rng.below(4) {
            0 => 1 + self.rng.below(300),
            1 => 1 + self.rng.below(20_000),
            2 => 65_536 + self.rng.below(3) * 4096,
            _ => 1 + self.rng.below(300_000),
        };
        if self.rng.chance(50) {
            offset = offset / 4096 * 4096;
        }
        if self.rng.chance(30) {
            length = length.div_ceil(4096) * 4096;
        }
        (offset, length as usize)
    }

    /// One range, or many small ones that begin there: some touch, some share a block, some are
    /// whole blocks.
    fn ranges(&mut self, (offset, length): (u64, usize)) -> Vec<(u64, u32)> {
        if self.rng.chance(60) {
            return vec![(offset, length as u32)];
        }
        let mut at = offset;
        let mut ranges = Vec::new();
        for _range in 0..1 + self.rng.below(40) {
            let whole = self.rng.chance(40);
            let length = match whole {
                true => 4096 * (1 + self.rng.below(2)),
                false => 1 + self.rng.below(3000),
            };
            at = if whole { at.next_multiple_of(4096) } else { at };
            ranges.push((at, length as u32));
            at += length + self.rng.below(3) * self.rng.below(6000);
        }
        ranges.truncate(ranges_of_one_record(&self.config, &ranges));
        ranges
    }

    /// Runs `operation`, with a checkpoint and a second try where the target asks for one.
    fn retry<T>(
        &mut self,
        mut operation: impl FnMut(&mut Shell) -> Result<T, ErrorCode>,
    ) -> Result<T, ErrorCode> {
        for _ in 0..3 {
            match operation(&mut self.shell) {
                Err(ErrorCode::NoSpace | ErrorCode::Overloaded) => {
                    if let Some(plan) = self.flush.take() {
                        self.shell.commit_flush(plan);
                    }
                    self.shell.flush_pending(usize::MAX);
                    self.checkpoint(true);
                }
                result => return result,
            }
        }
        operation(&mut self.shell)
    }

    /// As [`Self::retry`]; `None` where there is really no space.
    fn unless_full<T>(
        &mut self,
        operation: impl FnMut(&mut Shell) -> Result<T, ErrorCode>,
    ) -> Option<T> {
        match self.retry(operation) {
            Ok(done) => Some(done),
            Err(ErrorCode::NoSpace) => {
                self.full += 1;
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn checkpoint(&mut self, arrives: bool) {
        let flush = self.rng.chance(70);
        if flush {
            self.shell.flush_pending(usize::MAX);
        }
        self.shell.freeze(arrives);
        if arrives {
            self.history = vec![(0, self.model.clone())];
        }
    }

    fn apply_write(&mut self, id: u64, offset: u64, payload: &[u8]) {
        let file = self.model.entry(id).or_default();
        let end = offset as usize + payload.len();
        if file.bytes.len() < end {
            file.bytes.resize(end, 0);
        }
        file.bytes[offset as usize..end].copy_from_slice(payload);
        file.exists = true;
    }

    fn step(&mut self) {
        let id = self.rng.below(4);
        let file = self.model.entry(id).or_default().clone();
        let (offset, length) = self.range();
        match self.rng.below(100) {
            0..35 => {
                let ranges = self.ranges((offset, length));
                let length: u32 = ranges.iter().map(|(_at, length)| *length).sum();
                let payload = self.rng.bytes(length as usize);
                let request = WriteRequest {
                    attempt: ChangeAttempt::default(),
                    object: file.object(id),
                    truncation: file.truncation,
                    ranges: &ranges,
                };
                let Some(mut plan) = self.unless_full(|shell| shell.plan(request)) else {
                    return;
                };
                self.shell.carry_out(&mut plan, &payload);
                self.flights.push(InFlight {
                    id,
                    truncation: file.truncation,
                    plan,
                    ranges,
                    payload,
                });
                if self.flights.len() > 3 || self.rng.chance(60) {
                    self.land();
                }
            }
            35..45 => {
                let keep = self.rng.below(self.size + 100_000);
                let keep = if self.rng.chance(30) {
                    keep / 4096 * 4096
                } else {
                    keep
                };
                // A shard confirms one shrink before it takes the next.
                let current = file.truncation;
                self.retry(|shell| shell.run_edit(Edit::truncate(file.object(id), current)))
                    .unwrap();
                let whole = file.object(id);
                let file = self.model.entry(id).or_default();
                if keep >= file.bytes.len() as u64 {
                    return;
                }
                let truncation = Truncation {
                    seq: file.truncation.seq + 1,
                    bytes: keep,
                };
                file.bytes.truncate(keep as usize);
                file.truncation = truncation;
                // Half of the time only the next request tells the target.
                if self.rng.chance(50) {
                    self.retry(|shell| shell.run_edit(Edit::truncate(whole, truncation)))
                        .unwrap();
                }
            }
            45..55 => {
                let edit = || {
                    Edit::punch(file.object(id), file.truncation, offset, length as u64).unwrap()
                };
                self.retry(|shell| shell.run_edit(edit())).unwrap();
                self.zero(id, offset, length);
            }
            55..63 => {
                let zero = self.rng.chance(50);
                let edit = || {
                    Edit::allocate(
                        file.object(id),
                        file.truncation,
                        offset,
                        length as u64,
                        zero,
                    )
                    .unwrap()
                };
                if self.unless_full(|shell| shell.run_edit(edit())).is_none() {
                    return;
                }
                if zero {
                    self.zero(id, offset, length);
                }
            }
            63..65 => {
                self.delete(id);
            }
            65..70 => {
                let arrives = self.rng.chance(80);
                self.checkpoint(arrives);
            }
            70..74 => match self.flush.take() {
                Some(plan) => self.shell.commit_flush(plan),
                None => {
                    let plan = self.shell.target.plan_checkpoint(20);
                    self.shell.write_checkpoint(&plan);
                    self.flush = Some(plan);
                }
            },
            74..76 => self.shell.sync(),
            76..82 => self.compare_map(id),
            _ => self.compare(id, offset, length),
        }
        self.history
            .push((self.shell.log.len(), self.model.clone()));
    }

    fn delete(&mut self, id: u64) {
        // Data ids are never used again: the writes in flight end first.
        while !self.flights.is_empty() {
            self.land();
        }
        let file = self.model.entry(id).or_default().clone();
        self.shell.delete(vec![file.object(id)]).unwrap();
        let stat = self.shell.target.stat(&self.shell.store, file.object(id));
        assert_eq!(stat, Ok(ObjectStat::default()));
        let next = File {
            life: file.life + 1,
            ..File::default()
        };
        self.model.insert(id, next);
    }

    fn zero(&mut self, id: u64, offset: u64, length: usize) {
        let file = self.model.entry(id).or_default();
        let end = file.bytes.len().min(offset as usize + length);
        if (offset as usize) < end {
            file.bytes[offset as usize..end].fill(0);
        }
    }

    fn land(&mut self) {
        let at = self.rng.index(self.flights.len());
        let mut flight = self.flights.remove(at);
        if self.rng.chance(10) {
            self.shell.target.abort_write(&mut flight.plan);
            return;
        }
        match self.shell.commit(&mut flight.plan, &flight.payload) {
            Ok(_) => {
                // Planned before a truncation that the target has not seen: the truncation will
                // remove the bytes behind it.
                let truncation = self.model.entry(flight.id).or_default().truncation;
                let mut rest = flight.payload.as_slice();
                for (offset, length) in flight.ranges {
                    let (mut payload, behind) = rest.split_at(length as usize);
                    rest = behind;
                    if flight.truncation.seq < truncation.seq {
                        let left = truncation.bytes.saturating_sub(offset) as usize;
                        payload = &payload[..payload.len().min(left)];
                    }
                    if !payload.is_empty() {
                        self.apply_write(flight.id, offset, payload);
                    }
                }
            }
            Err(ErrorCode::StaleTruncate) => {}
            Err(error) => panic!("commit: {error}"),
        }
        self.history
            .push((self.shell.log.len(), self.model.clone()));
    }

    fn compare(&self, id: u64, offset: u64, length: usize) {
        let file = self.model.get(&id).cloned().unwrap_or_default();
        let got = self
            .shell
            .read(file.object(id), file.truncation, offset, length)
            .unwrap();
        let end = file.bytes.len().min(offset as usize + length);
        let want = file.bytes.get(offset as usize..end).unwrap_or(&[]);
        assert!(got == want, "object {id} {offset}+{length}");
    }

    fn compare_map(&self, id: u64) {
        let file = self.model.get(&id).cloned().unwrap_or_default();
        let map = self
            .shell
            .target
            .map(
                &self.shell.store,
                file.object(id),
                file.truncation,
                0,
                u64::MAX,
                1000,
            )
            .unwrap();
        assert_eq!(map.object_bytes, file.bytes.len() as u64);
        assert_eq!(map.known_to, u64::MAX);
        let mut covered = 0;
        for (start, length) in map.ranges {
            assert!(
                file.bytes[covered..start as usize]
                    .iter()
                    .all(|byte| *byte == 0)
            );
            covered = (start + length) as usize;
        }
        assert!(file.bytes[covered..].iter().all(|byte| *byte == 0));
    }

    fn compare_all(&self) {
        for id in 0..4 {
            self.compare(id, 0, 4 << 20);
            self.compare_map(id);
        }
    }

    fn crash(&mut self, power: bool) {
        self.flights.clear();
        self.flush = None;
        if power {
            let left = self.shell.power_loss(&mut self.rng);
            // A truncation that a later request brought to the target is the client's to repeat.
            let at = self
                .history
                .iter()
                .rposition(|(records, _)| *records <= left);
            let candidates: Vec<Model> = match at {
                Some(at) => self.history[at..]
                    .iter()
                    .take(2)
                    .map(|(_, model)| model.clone())
                    .collect(),
                None => self
                    .history
                    .iter()
                    .take(1)
                    .map(|(_, model)| model.clone())
                    .collect(),
            };
            let candidates = if candidates.is_empty() {
                vec![self.model.clone()]
            } else {
                candidates
            };
            let matching = candidates.into_iter().find(|model| {
                (0..4).all(|id| {
                    let file = model.get(&id).cloned().unwrap_or_default();
                    self.shell
                        .read(file.object(id), file.truncation, 0, 4 << 20)
                        .as_ref()
                        == Ok(&file.bytes)
                })
            });
            self.model = matching.expect("a state of the history");
            self.history = vec![(left, self.model.clone())];
        } else {
            self.shell.kill();
        }
        self.shell.check();
        assert_eq!(self.shell.target.units_in_flight(), 0);
        self.compare_all();
    }
}

impl Run {
    fn with_kills(&mut self) {
        for _ in 0..250 {
            self.step();
            self.history.clear();
            if self.rng.chance(2) {
                self.crash(false);
            }
            if self.rng.chance(10) {
                self.shell.check();
            }
        }
    }
}

fn finish(mut run: Run) {
    while !run.flights.is_empty() {
        run.land();
    }
    if let Some(plan) = run.flush.take() {
        run.shell.commit_flush(plan);
    }
    run.compare_all();
    run.shell.check();
    let all = (0..4).map(|id| run.model.entry(id).or_default().object(id));
    let all: Vec<ObjectId> = all.collect();
    run.shell.delete(all).unwrap();
    run.shell.check();
    run.shell.checkpoint(true);
    run.shell.check();
    assert_eq!(run.shell.target.units_in_flight(), 0);
    let space = run.shell.target.statfs();
    let empty = Shell::new(run.config).target.statfs();
    assert_eq!(space, empty);
    assert!(run.shell.checkpoints > 0);
}

#[test]
fn contents_match_the_model_through_kills() {
    for seed in 0..8 {
        let mut run = Run::new(seed, 900_000, CONFIG);
        run.with_kills();
        finish(run);
    }
}

#[test]
fn contents_match_a_prefix_through_power_losses() {
    for seed in 100..112 {
        let mut run = Run::new(seed, 300_000, CONFIG);
        for _ in 0..150 {
            run.step();
            if run.rng.chance(4) {
                run.crash(true);
            }
        }
        finish(run);
    }
}

#[test]
fn contents_match_the_model_on_a_target_that_is_often_full() {
    let config = TargetConfig {
        segment_units: 100,
        segments: 4,
        pending_blocks_max: 90,
    };
    let mut full = 0;
    for seed in 200..208 {
        let mut run = Run::new(seed, 900_000, config);
        run.with_kills();
        full += run.full;
        finish(run);
    }
    assert!(full > 0);
}
