//! Many seeds, two at a time: each world runs on one thread, and what is told is in the order of
//! the seeds, so that it depends on nothing else.

use crate::coverage::{Coverage, Fault};
use crate::report::Report;
use crate::scenario::{Options, run};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

/// How many reports may wait for an earlier one.
const AHEAD_MAX: u64 = 256;

/// What a batch comes to.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// Seeds that ran.
    pub seeds: u64,
    /// Those with something broken.
    pub bad: Vec<u64>,
    /// Operations of programs.
    pub operations: u64,
    /// Messages.
    pub messages: u64,
    /// Simulated time, ms.
    pub simulated_ms: u64,
    /// Faults by kind, and marks.
    pub coverage: Coverage,
    /// Seeds by scenario.
    pub scenarios: BTreeMap<&'static str, u64>,
}

impl Summary {
    fn add(&mut self, report: &Report) {
        self.seeds += 1;
        if !report.is_good() {
            self.bad.push(report.seed);
        }
        self.operations += report.operations;
        self.messages += report.messages;
        self.simulated_ms += report.simulated_ms;
        self.coverage.add(&report.coverage);
        *self.scenarios.entry(report.scenario.name()).or_default() += 1;
    }

    /// Kinds of faults that were not met.
    #[must_use]
    pub fn missing_faults(&self) -> Vec<&'static str> {
        let missing = Fault::ALL
            .iter()
            .filter(|kind| self.coverage.of(**kind) == 0);
        missing.map(|kind| kind.name()).collect()
    }

    /// Marks that were not reached.
    #[must_use]
    pub fn missing_marks(&self) -> Vec<&'static str> {
        let known = zonal_types::coverage_marks::NAMES.iter().copied();
        known
            .filter(|name| !self.coverage.marks.contains(name))
            .collect()
    }
}

/// Reports by seed that wait for earlier ones.
struct Queue {
    done: BTreeMap<u64, Report>,
    next_begun: u64,
    next_told: u64,
    is_over: bool,
}

/// Runs `count` seeds from `first` on `threads` threads. `tell` gets each report in the order of
/// the seeds; where it returns false, no further seed begins and nothing more is told.
pub fn run_batch(
    first: u64,
    count: u64,
    options: Options,
    threads: usize,
    mut tell: impl FnMut(&Report) -> bool,
) -> Summary {
    let end = first.saturating_add(count);
    let queue = Mutex::new(Queue {
        done: BTreeMap::new(),
        next_begun: first,
        next_told: first,
        is_over: false,
    });
    let changed = Condvar::new();
    let mut summary = Summary::default();
    let lock = || queue.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || loop {
        let seed = {
            let mut state = lock();
            while !state.is_over && state.next_begun >= state.next_told + AHEAD_MAX {
                state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.is_over || state.next_begun >= end {
                return;
            }
            state.next_begun += 1;
            state.next_begun - 1
        };
        let report = run(seed, options);
        lock().done.insert(seed, report);
        changed.notify_all();
    };
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(work);
        }
        for seed in first..end {
            let report = {
                let mut state = lock();
                loop {
                    if let Some(report) = state.done.remove(&seed) {
                        break report;
                    }
                    state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            };
            summary.add(&report);
            let goes_on = tell(&report);
            let mut state = lock();
            state.next_told = seed + 1;
            state.is_over = !goes_on;
            changed.notify_all();
            if !goes_on {
                break;
            }
        }
    });
    summary
}
