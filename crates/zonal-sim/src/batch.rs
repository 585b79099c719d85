//! Runs many seeds on several threads, each world on one thread. Reports are in the order of the
//! seeds, so the output depends on the seeds alone.

use crate::coverage::{Coverage, FaultKind};
use crate::report::RunReport;
use crate::scenario::{RunOptions, run};
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};

/// Most reports that wait for the report of an earlier seed.
const AHEAD_MAX: u64 = 256;

/// Result of a batch.
#[derive(Debug, Clone, Default)]
pub struct BatchSummary {
    /// Seeds that ran.
    pub seeds: u64,
    /// Seeds whose run found something broken.
    pub bad: Vec<u64>,
    /// Operations of programs in all runs.
    pub operations: u64,
    /// Messages in all runs.
    pub messages: u64,
    /// Simulated time, ms.
    pub simulated_ms: u64,
    /// Faults by kind, and marks.
    pub coverage: Coverage,
    /// Seeds by scenario.
    pub scenarios: BTreeMap<&'static str, u64>,
}

impl BatchSummary {
    fn add(&mut self, report: &RunReport) {
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

    /// Names of the kinds of faults that no seed met.
    #[must_use]
    pub fn missing_faults(&self) -> Vec<&'static str> {
        let missing = FaultKind::ALL
            .iter()
            .filter(|kind| self.coverage.of(**kind) == 0);
        missing.map(|kind| kind.name()).collect()
    }

    /// Names of the marks that no seed reached.
    #[must_use]
    pub fn missing_marks(&self) -> Vec<&'static str> {
        let known = zonal_types::coverage_marks::NAMES.iter().copied();
        known
            .filter(|name| !self.coverage.marks.contains(name))
            .collect()
    }
}

/// Reports that wait for reports of earlier seeds.
struct Queue {
    done: BTreeMap<u64, RunReport>,
    next_begun: u64,
    next_told: u64,
    is_over: bool,
}

/// Runs `count` seeds from `first` on `threads` threads. Passes each report to `tell`, in the order
/// of the seeds. Once `tell` returns false, no further seed begins and no report is passed.
pub fn run_batch(
    first: u64,
    count: u64,
    options: RunOptions,
    threads: usize,
    mut tell: impl FnMut(&RunReport) -> bool,
) -> BatchSummary {
    let end = first.saturating_add(count);
    let queue = Mutex::new(Queue {
        done: BTreeMap::new(),
        next_begun: first,
        next_told: first,
        is_over: false,
    });
    let changed = Condvar::new();
    let mut summary = BatchSummary::default();
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
