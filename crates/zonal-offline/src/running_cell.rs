//! The check of a running cell: targets list their objects, then shards fix snapshots, and the two
//! are compared.
//!
//! Invariants:
//! 1. Nothing is changed.
//! 2. A shard is judged by one snapshot: one position of its log.
//! 3. Objects are listed before the snapshots are fixed. An object whose inode is younger than the
//!    snapshot cannot have been seen, and what was removed since is gone when its target is asked
//!    again ([`cross_checks`]).
//! 4. What mounts report late is told only where it stays the same for [`QUIET`] ([`late_reports`]).
//!
//! Whoever runs the cell is behind [`RunningCell`].

mod cross_checks;
mod late_reports;
mod shards;
mod snapshot_keepalive;

use crate::check::{CheckReporter, CheckSummary, Ticker};
use crate::error::OfflineError;
use crate::external_sort::Sorter;
use crate::scratch_folder;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use zonal_fsck::data_fact::DataFact;
use zonal_fsck::objects::ObjectJoin;
use zonal_fsck::{Finding, FindingKind, FindingPlace};
use zonal_object::{KnownObject, ObjectId};
use zonal_types::{Blob, ShardId, TargetId};
use zonal_zonemap::ZoneMap;

use cross_checks::Younger;
use shards::Shards;
use snapshot_keepalive::Kept;

/// How long a file and its objects have to stay the same before a difference of what mounts report
/// late is told. Unflushed writes are sent and reported after 5 s.
pub const QUIET: Duration = Duration::from_secs(12);
/// How often the snapshots are fixed anew when their servers were restarted.
pub const ROUNDS_MAX: u32 = 5;
/// Most files that are looked at for what mounts report late.
pub const LATE_MAX: usize = 16_384;
/// The folder's name in the scratch folder: it is removed with all that is in it.
pub const RUNNING_FOLDER: &str = "zonal-fsck.running";
/// Most findings of one check.
const FINDINGS_MAX: usize = 1 << 19;
/// Objects in one answer.
const LISTED: usize = 4096;

/// Entries of a snapshot, and whether none follows.
pub type SnapshotPage = (Vec<(Blob, Blob)>, bool);

/// A snapshot of a shard. It is let go when it is dropped.
pub trait ShardSnapshot {
    /// Whose it is.
    fn shard(&self) -> ShardId;

    /// Entries behind `after` in the order of their keys; at least one, where there is one.
    ///
    /// # Errors
    /// [`OfflineError::SnapshotGone`], or the server does not answer.
    fn page(&self, after: &[u8]) -> Result<SnapshotPage, OfflineError>;
}

/// Snapshots of all shards that fit together.
pub struct SnapshotSet<'a> {
    /// The zone map that the root's has.
    pub map: ZoneMap,
    /// One a shard of the map.
    pub snapshots: Vec<Box<dyn ShardSnapshot + 'a>>,
}

/// Asks the servers of a cell. What does not answer is waited for there, for a bounded time.
pub trait RunningCell {
    /// The zone map.
    ///
    /// # Errors
    /// The manager does not answer.
    fn map(&self) -> Result<ZoneMap, OfflineError>;

    /// Objects of a target behind `after`, at most `limit`, without those that are being deleted;
    /// and whether none follows.
    ///
    /// # Errors
    /// It does not answer.
    fn objects(
        &self,
        target: TargetId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<(Vec<KnownObject>, bool), OfflineError>;

    /// Fixes snapshots of all shards. There is one at a time: those of before have been dropped.
    ///
    /// # Errors
    /// One does not answer, or has one for somebody else.
    fn fix(&self) -> Result<SnapshotSet<'_>, OfflineError>;
}

/// What is wanted.
#[derive(Debug, Clone)]
pub struct RunningOptions {
    /// Folder for sorting; made if need be.
    pub scratch: PathBuf,
    /// [`QUIET`], or less in tests.
    pub quiet: Duration,
}

/// Findings, until it is sure that they stay.
#[derive(Default)]
struct Told(Vec<Finding>);

impl Told {
    fn tell(&mut self, place: FindingPlace, path: Option<String>, what: FindingKind) {
        if self.0.len() < FINDINGS_MAX {
            self.0.push(Finding { place, what, path });
        }
    }
}

/// A folder below the scratch folder for one check at a time; it goes with it.
struct Scratch {
    dir: PathBuf,
    _lock: File,
}

impl Scratch {
    fn take(above: &Path) -> Result<Self, OfflineError> {
        let dir = above.join(RUNNING_FOLDER);
        let failed = |source| OfflineError::Scratch {
            dir: dir.clone(),
            source,
        };
        match scratch_folder::take(above, &dir).map_err(failed)? {
            Some(lock) => Ok(Self { dir, _lock: lock }),
            None => Err(OfflineError::ScratchInUse(dir)),
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Best effort: a left-over costs space and nothing else, and is written over by the next
        // check.
        let _ = std::fs::remove_dir_all(&self.dir);
        if let Some(above) = self.dir.parent() {
            scratch_folder::let_go(above);
        }
    }
}

/// Checks a running cell.
///
/// # Errors
/// What keeps the check from being made; what it finds is told to `report`.
pub fn check_running(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    report: &mut dyn CheckReporter,
) -> Result<CheckSummary, OfflineError> {
    let scratch = Scratch::take(&options.scratch)?;
    let ticker = Ticker::new(1, report);
    let within = RunningOptions {
        scratch: scratch.dir.clone(),
        ..options.clone()
    };
    let (told, mut summary) = look(cell, &within, &ticker)?;
    drop(scratch);
    for finding in &told.0 {
        if finding.counts() {
            summary.found += 1;
        } else {
            summary.notes += 1;
        }
        ticker.finding(finding);
    }
    summary.left = summary.found;
    summary.passes = 1;
    summary.records = ticker.records();
    Ok(summary)
}

fn look(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    ticker: &Ticker<'_>,
) -> Result<(Told, CheckSummary), OfflineError> {
    let mut summary = CheckSummary::default();
    let mut objects = list(cell, options, ticker, &mut summary)?;
    for round in 1.. {
        // Sorted runs of the list are read again in each round.
        let again = objects.again()?;
        match compare(cell, options, ticker, again) {
            Err(OfflineError::SnapshotGone(_)) if round < ROUNDS_MAX => {}
            Err(error) => return Err(error),
            Ok((mut told, shards, late)) => {
                objects.remove();
                summary.inodes = shards.inodes;
                summary.changing = late.beyond;
                summary.changing +=
                    late_reports::tell(cell, options, ticker, (&shards, late.files), &mut told)?;
                return Ok((told, summary));
            }
        }
    }
    Ok((Told::default(), summary))
}

/// All objects of all targets, as facts.
fn list(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    ticker: &Ticker<'_>,
    summary: &mut CheckSummary,
) -> Result<Sorter, OfflineError> {
    let mut sorter = Sorter::new(&options.scratch, "running.objects");
    let mut buffer = Vec::new();
    for target in cell.map()?.targets.iter().map(|target| target.id) {
        let mut after = None;
        loop {
            let (objects, end) = cell.objects(target, after, LISTED)?;
            for known in &objects {
                sorter.push(DataFact::found(target, known).encode(&mut buffer))?;
            }
            summary.objects += objects.len() as u64;
            ticker.tick(objects.len() as u64, (0, 0));
            // An answer without anything and without an end would keep us here for ever.
            match objects.last() {
                Some(last) if !end => after = Some(last.object),
                _ => break,
            }
        }
    }
    Ok(sorter)
}

type Compared = (Told, Shards, cross_checks::Late);

/// Snapshots of all shards against the objects.
fn compare(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    ticker: &Ticker<'_>,
    objects: Sorter,
) -> Result<Compared, OfflineError> {
    let fixed = cell.fix()?;
    let map = fixed.map;
    let kept = Kept::new(fixed.snapshots);
    let mut told = Told::default();
    let mut shards = Shards::read(&kept, &map, options, ticker, &mut told)?;
    shards.junctions(&map, &mut told);
    let mut sorters = std::mem::take(&mut shards.data);
    sorters.push(objects);
    let mut younger = Younger::new(cell, shards.paths(&kept), &mut told);
    // Every target is there: one that does not answer ends the check.
    let there = |_target| true;
    let joined = std::cell::RefCell::new(Vec::new());
    let mut hear = |found| joined.borrow_mut().push(found);
    let mut join = ObjectJoin::new(&map, &there, &mut hear);
    Sorter::merge(sorters, &mut |bytes| {
        if let Some(fact) = DataFact::decode(bytes) {
            join.take(&fact);
        }
        ticker.tick(0, (0, 0));
        kept.remind();
        joined
            .take()
            .into_iter()
            .try_for_each(|found| younger.judge(found))
    })?;
    join.finish();
    joined
        .take()
        .into_iter()
        .try_for_each(|found| younger.judge(found))?;
    let late = younger.late;
    Ok((told, shards, late))
}
