//! The check of a running cell: targets list their objects, then shards make snapshots, and the
//! check compares the two.
//!
//! Invariants:
//! 1. The check changes nothing.
//! 2. A shard is judged by one snapshot: one position of its log.
//! 3. Objects are listed before the snapshots are made. An object whose inode is younger than the
//!    snapshot cannot be in the list. An object that was removed since is gone when the check asks
//!    its target again ([`cross_checks`]).
//! 4. Numbers that mounts report late, and copies that differ, become findings only where file and
//!    objects stay the same for [`QUIET`] ([`late_reports`]).
//!
//! The trait [`RunningCell`] is the check's way to the servers.

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
use zonal_fsck::objects::{ObjectJoin, is_drained};
use zonal_fsck::{Finding, FindingKind, FindingPlace};
use zonal_object::{KnownObject, ObjectId};
use zonal_types::{Blob, ShardId, TargetId};
use zonal_zonemap::ZoneMap;

use cross_checks::CrossChecks;
use shards::Shards;
use snapshot_keepalive::SnapshotKeepalive;

/// How long a file and its objects have to stay the same before a difference of late reports is a
/// finding. Mounts send and report unflushed writes after 5 s.
pub const QUIET: Duration = Duration::from_secs(12);
/// Most attempts at a set of snapshots, where servers are restarted.
pub const ROUNDS_MAX: u32 = 5;
/// Most files that are compared again because mounts may report late or change them.
pub const LATE_MAX: usize = 16_384;
/// Name of the check's folder in the scratch folder. The folder is removed with all that is in it.
pub const RUNNING_FOLDER: &str = "zonal-fsck.running";
/// Most findings of one check.
const FINDINGS_MAX: usize = 1 << 19;
/// Objects in one answer of a target.
const LISTED: usize = 4096;

/// Entries of a snapshot, and whether these are the last.
pub type SnapshotPage = (Vec<(Blob, Blob)>, bool);

/// A snapshot of a shard. Dropping it releases it.
pub trait ShardSnapshot {
    /// The shard.
    fn shard(&self) -> ShardId;

    /// Returns entries behind `after`, sorted by key; at least one where there is one.
    ///
    /// # Errors
    /// [`OfflineError::SnapshotGone`], or the server does not answer.
    fn page(&self, after: &[u8]) -> Result<SnapshotPage, OfflineError>;
}

/// Snapshots of all shards, made for one version of the zone map.
pub struct SnapshotSet<'a> {
    /// The zone map in the snapshot of the root's shard.
    pub map: ZoneMap,
    /// One snapshot for each shard of the map.
    pub snapshots: Vec<Box<dyn ShardSnapshot + 'a>>,
}

/// Sends requests to the servers of a cell. The implementation waits for a server that does not
/// answer, for a bounded time.
pub trait RunningCell {
    /// The zone map.
    ///
    /// # Errors
    /// The manager does not answer.
    fn map(&self) -> Result<ZoneMap, OfflineError>;

    /// Lists objects of a target behind `after`, at most `limit`, without those whose deletion has
    /// begun; also returns whether these are the last. Each has the digest of its contents.
    ///
    /// # Errors
    /// The target does not answer.
    fn objects(
        &self,
        target: TargetId,
        after: Option<ObjectId>,
        limit: usize,
    ) -> Result<(Vec<KnownObject>, bool), OfflineError>;

    /// Makes snapshots of all shards. There is one set at a time: the caller has dropped earlier
    /// ones.
    ///
    /// # Errors
    /// A shard does not answer, or has a snapshot for somebody else.
    fn fix(&self) -> Result<SnapshotSet<'_>, OfflineError>;
}

/// Options of the check.
#[derive(Debug, Clone)]
pub struct RunningOptions {
    /// Folder for sorting; made if need be.
    pub scratch: PathBuf,
    /// [`QUIET`], or less in tests.
    pub quiet: Duration,
}

/// Findings, kept until it is sure that they are reported.
#[derive(Default)]
struct FindingList(Vec<Finding>);

impl FindingList {
    fn tell(&mut self, place: FindingPlace, path: Option<String>, what: FindingKind) {
        if self.0.len() < FINDINGS_MAX {
            self.0.push(Finding { place, what, path });
        }
    }
}

/// A folder below the scratch folder, for one check at a time; dropping it removes the folder.
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
        // Best effort: a left-over costs space only, and the next check overwrites it.
        let _ = std::fs::remove_dir_all(&self.dir);
        if let Some(above) = self.dir.parent() {
            scratch_folder::let_go(above);
        }
    }
}

/// Checks a running cell.
///
/// # Errors
/// A reason why the check cannot be made. Findings are no errors; `report` receives them.
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
) -> Result<(FindingList, CheckSummary), OfflineError> {
    let mut summary = CheckSummary::default();
    let mut objects = list(cell, options, ticker, &mut summary)?;
    for round in 1.. {
        // Each round reads the sorted runs of the list again.
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
    Ok((FindingList::default(), summary))
}

/// True for the targets that a check asks. All others in the map are drained: no file needs them,
/// and they may be gone.
fn is_asked(map: &ZoneMap, target: TargetId) -> bool {
    map.target(target).is_some() && !is_drained(map, target)
}

/// Lists all objects of all targets that files may need, as facts.
fn list(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    ticker: &Ticker<'_>,
    summary: &mut CheckSummary,
) -> Result<Sorter, OfflineError> {
    let mut sorter = Sorter::new(&options.scratch, "running.objects");
    let mut buffer = Vec::new();
    let map = cell.map()?;
    let targets = map.targets.iter().map(|target| target.id);
    for target in targets.filter(|target| is_asked(&map, *target)) {
        let mut after = None;
        loop {
            let (objects, end) = cell.objects(target, after, LISTED)?;
            for known in &objects {
                sorter.push(DataFact::found(target, known).encode(&mut buffer))?;
            }
            summary.objects += objects.len() as u64;
            ticker.tick(objects.len() as u64, (0, 0));
            // An empty answer that is not the last would make this loop endless.
            match objects.last() {
                Some(last) if !end => after = Some(last.object),
                _ => break,
            }
        }
    }
    Ok(sorter)
}

type Compared = (FindingList, Shards, cross_checks::LateFiles);

/// Compares snapshots of all shards with the objects.
fn compare(
    cell: &dyn RunningCell,
    options: &RunningOptions,
    ticker: &Ticker<'_>,
    objects: Sorter,
) -> Result<Compared, OfflineError> {
    let fixed = cell.fix()?;
    let map = fixed.map;
    let kept = SnapshotKeepalive::new(fixed.snapshots);
    let mut told = FindingList::default();
    let mut shards = Shards::read(&kept, &map, options, ticker, &mut told)?;
    shards.junctions(&map, &mut told);
    let mut sorters = std::mem::take(&mut shards.data);
    sorters.push(objects);
    let mut younger = CrossChecks::new(cell, shards.paths(&kept), &mut told);
    // A target that does not answer ends the check.
    let there = |target| is_asked(&map, target);
    let joined = std::cell::RefCell::new(Vec::new());
    let mut hear = |found| joined.borrow_mut().push(found);
    let mut join = ObjectJoin::new(&map, &there, &mut hear);
    Sorter::merge(sorters, &mut |bytes| {
        if let Some(fact) = DataFact::decode(bytes) {
            join.take(&fact);
        }
        ticker.tick(0, (0, 0));
        kept.tick();
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
