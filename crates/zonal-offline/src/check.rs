//! The check of a stopped cell: passes over all stores, each followed by repairs of its findings.
//! It ends when no finding is left that a repair can help.

use crate::cell::CellStores;
use crate::error::OfflineError;
use crate::pass::{self, RepairList};
use crate::resume::CheckStart;
use crate::{repair_cell, repair_shard, repair_target, scratch_folder};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use zonal_fsck::{Finding, StoreFault};
use zonal_types::Timestamp;

/// Most passes of one check.
pub const PASSES_MAX: u32 = 16;
/// Blocks of a target between two saves of the progress of their comparison: 256 MiB.
pub const KEEP_EVERY: u64 = 65_536;
/// Least time between two reports of progress.
const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Options of a check.
#[derive(Debug, Clone)]
pub struct CheckOptions {
    /// Repair the findings.
    pub repair: bool,
    /// Read every block of the targets and compare its checksum.
    pub data: bool,
    /// Folder for sorting, and for state that must survive until the next check. Made if need be.
    pub scratch: PathBuf,
    /// Calendar time that repairs write.
    pub wall: Timestamp,
    /// Begin anew, even where an interrupted check could be resumed.
    pub fresh: bool,
    /// [`KEEP_EVERY`], or less in tests; at least 1.
    pub keep_every: u64,
}

/// Progress of a pass.
#[derive(Debug, Clone, Copy)]
pub struct CheckProgress {
    /// Number of the pass, from 1.
    pub pass: u32,
    /// Records read.
    pub records: u64,
    /// Records a second.
    pub rate: u64,
    /// Estimated seconds until reading ends, where they can be estimated.
    pub left: Option<u64>,
}

/// Receives the findings and the progress of a check.
pub trait CheckReporter: Send {
    /// A finding of this pass.
    fn finding(&mut self, pass: u32, finding: &Finding);
    /// The progress, at most every half second.
    fn progress(&mut self, stage: CheckProgress);
    /// Number of changes that repairs made after this pass.
    fn repaired(&mut self, pass: u32, changes: u64);
    /// Whether the first pass resumes an interrupted check.
    fn begins(&mut self, _begin: &CheckStart) {}
    /// Called after each step that is saved, and between steps of repairs. On `false` the check
    /// ends there, as a kill would end it.
    fn goes_on(&mut self) -> bool {
        true
    }
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckSummary {
    /// Findings of the first pass that count.
    pub found: u64,
    /// Notes of the first pass: they leave the cell clean.
    pub notes: u64,
    /// Findings of the last pass that count.
    pub left: u64,
    /// Passes made.
    pub passes: u32,
    /// Changes that repairs made.
    pub changes: u64,
    /// Inodes read.
    pub inodes: u64,
    /// Objects read.
    pub objects: u64,
    /// Records read in all passes, including those that an interrupted check had read.
    pub records: u64,
    /// Stores that an interrupted check had read.
    pub kept: u64,
    /// Files of a running cell that changed while late reports of mounts were compared: they are
    /// not judged.
    pub changing: u64,
}

/// Counts the records of a pass, and reports progress now and then.
pub(crate) struct Ticker<'a> {
    pass: u32,
    start: Instant,
    records: AtomicU64,
    /// Records that the interrupted check had read.
    kept: AtomicU64,
    state: Mutex<(Instant, &'a mut dyn CheckReporter)>,
}

impl<'a> Ticker<'a> {
    pub fn new(pass: u32, report: &'a mut dyn CheckReporter) -> Self {
        let start = Instant::now();
        Self {
            pass,
            start,
            records: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            state: Mutex::new((start, report)),
        }
    }

    pub fn tick(&self, records: u64, pages: (u64, u64)) {
        let records = self.records.fetch_add(records, Ordering::Relaxed) + records;
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        if state.0.elapsed() < PROGRESS_EVERY {
            return;
        }
        state.0 = Instant::now();
        let elapsed = self.start.elapsed().as_secs_f64().max(0.001);
        let left = (pages.0 > 0)
            .then(|| elapsed * pages.1.saturating_sub(pages.0) as f64 / pages.0 as f64);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an estimate; no term is negative"
        )]
        let whole = |number: f64| number as u64;
        state.1.progress(CheckProgress {
            pass: self.pass,
            records,
            rate: whole(records as f64 / elapsed),
            left: left.map(whole),
        });
    }

    /// Counts records that an interrupted check had read; they do not count for the rate.
    pub fn kept(&self, records: u64) {
        self.kept.fetch_add(records, Ordering::Relaxed);
    }

    /// Records counted so far.
    pub fn records(&self) -> u64 {
        self.records.load(Ordering::Relaxed) + self.kept.load(Ordering::Relaxed)
    }

    fn told<T>(&self, tell: impl FnOnce(&mut dyn CheckReporter) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        tell(state.1)
    }

    pub fn finding(&self, finding: &Finding) {
        self.told(|report| report.finding(self.pass, finding));
    }

    pub fn begins(&self, begin: &CheckStart) {
        if self.pass == 1 {
            self.told(|report| report.begins(begin));
        }
    }

    /// Called after each step that is saved.
    pub fn step(&self) -> Result<(), OfflineError> {
        if self.told(|report| report.goes_on()) {
            Ok(())
        } else {
            Err(OfflineError::Interrupted)
        }
    }
}

/// Checks a stopped cell.
///
/// # Errors
/// A reason why the check cannot be made. Findings are no errors; `report` receives them.
pub fn check(
    cell: &CellStores,
    options: &CheckOptions,
    report: &mut dyn CheckReporter,
) -> Result<CheckSummary, OfflineError> {
    let failed = |source| OfflineError::Scratch {
        dir: options.scratch.clone(),
        source,
    };
    scratch_folder::make(&options.scratch).map_err(failed)?;
    let mut summary = CheckSummary::default();
    for number in 1..=PASSES_MAX {
        let ticker = Ticker::new(number, report);
        let (seen, folder) = pass::run(cell, options, &ticker)?;
        // Before a repair changes anything, and when no repair follows.
        folder.remove()?;
        summary.records += ticker.records();
        summary.passes = number;
        summary.left = seen.counting;
        (summary.inodes, summary.objects) = (seen.inodes, seen.objects);
        if number == 1 {
            (summary.found, summary.notes) = (seen.counting, seen.notes);
            summary.kept = seen.kept;
        }
        if !options.repair || seen.work.is_empty() {
            break;
        }
        let mut step = || {
            if report.goes_on() {
                Ok(())
            } else {
                Err(OfflineError::Interrupted)
            }
        };
        let changes = repair(cell, options, &seen.work, &mut step)?;
        report.repaired(number, changes);
        summary.changes += changes;
        if changes == 0 {
            break;
        }
    }
    if summary.left == 0 || !options.repair {
        pass::clean_scratch(&options.scratch, options.repair);
    }
    Ok(summary)
}

/// Called between steps of a repair; an error ends the repair there.
pub(crate) type Step<'a> = dyn FnMut() -> Result<(), OfflineError> + 'a;

/// Repairs in three steps: files of stores first (among them those that a copy makes whole), then
/// each store by itself, then disagreements between stores. A step begins only when the step before
/// left nothing, since it builds on it.
fn repair(
    cell: &CellStores,
    options: &CheckOptions,
    work: &RepairList,
    step: &mut Step<'_>,
) -> Result<u64, OfflineError> {
    let mut changes = 0;
    let is_whole = |faults: &[StoreFault]| {
        let mut faults = faults.iter();
        faults.any(|fault| matches!(fault, StoreFault::FromCopy(_)))
    };
    let some_are_whole = work.files.iter().any(|(_, faults)| is_whole(faults));
    for (at, faults) in &work.files {
        // A store that comes back whole may tell the content of another one.
        if some_are_whole && !is_whole(faults) {
            continue;
        }
        if let Some(spec) = cell.stores.get(*at) {
            changes += repair_cell::mend(spec, faults, work, (options, step))?;
            step()?;
        }
    }
    if changes > 0 || some_are_whole {
        return Ok(changes);
    }
    for (at, broken) in &work.shards {
        changes += repair_shard::run(cell, *at, broken, work, options)?;
        step()?;
    }
    for (at, target) in &work.targets {
        changes += repair_target::run(cell, *at, target, work)?;
        step()?;
    }
    if changes > 0 {
        return Ok(changes);
    }
    repair_cell::run(cell, work, options)
}
