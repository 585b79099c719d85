//! `zonal fsck`: checks and repairs the stores of a stopped cell, or checks the state that the
//! servers of a running cell report.

mod reporter;
mod stores;

use crate::cell::CellLocator;
use crate::cell::connection::{CellArgs, CellHandle as Servers};
use crate::cell::folder::{CellFolder, default_dir};
use crate::console;
use crate::exit::{Failure, with_causes};
use crate::running_cell::CheckedCell;
use anyhow::Context;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use zonal_offline::{
    CellStores, CheckOptions, CheckSummary, KEEP_EVERY, OfflineError, RunningOptions,
    check_running, running_cell,
};
use zonal_server::NodeConfig;
use zonal_types::Timestamp;

use reporter::FindingReporter;
use stores::stores_of;

/// Exit code: all findings were repaired.
const REPAIRED: u8 = 1;
/// Exit code: findings are left.
const LEFT: u8 = 4;
/// Exit code: the check could not be made.
const NOT_CHECKED: u8 = 8;

/// Check a cell, running or stopped; repair a stopped one
///
/// Stopped: reads every store of the cell, and compares them with one another. It names each
/// inconsistency with its consequence. Copies of files that differ are named, too. Nothing is
/// written without --repair. An interrupted check resumes at the next start if the stores are
/// unchanged and --data is given as before. Otherwise it starts over and says so on standard error.
///
/// Running: compares snapshots of all shards with the lists of all targets, and reports nothing
/// that concurrent changes explain. Some files are looked at twice, 12 s apart: those whose
/// allocated bytes or sizes disagree, or whose copies differ. Single stores are not checked: `zonal
/// scrub` verifies checksums of a running cell.
///
/// Exit code: 0 if the cell is clean, 1 if all findings were repaired, 4 if findings are left, 8 if
/// no check was possible.
#[derive(Debug, clap::Args)]
pub struct Fsck {
    #[command(flatten)]
    cell: CellArgs,
    /// Configs of all nodes instead of a folder; may be given several times
    #[arg(long, value_name = "FILE", conflicts_with = "cell")]
    config: Vec<PathBuf>,
    /// Repair findings (a stopped cell)
    #[arg(long)]
    repair: bool,
    /// Also read every block of every file and compare its checksum (a stopped cell)
    #[arg(long)]
    data: bool,
    /// One JSON object a finding, and one with totals at the end
    #[arg(long)]
    json: bool,
    /// Show progress on standard error
    #[arg(long)]
    progress: bool,
    /// Start over, without the state of an interrupted check (a stopped cell)
    #[arg(long)]
    fresh: bool,
    /// Folder for sorting, up to 400 bytes a file [default: `fsck` in the cell's folder or beside
    /// the first config, else the temporary folder]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

impl Fsck {
    pub fn run(self) -> anyhow::Result<()> {
        let named = self.cell.named();
        if named.is_some_and(CellLocator::is_address) {
            let beside = std::env::temp_dir().join(format!("zonal-fsck-{}", std::process::id()));
            return self.running(&self.cell.open()?, &beside);
        }
        let (configs, folder) = if self.config.is_empty() {
            let dir = named.map_or_else(default_dir, PathBuf::from);
            let folder = CellFolder::open(&dir)?;
            (folder.nodes()?, Some(folder))
        } else {
            (NodeConfig::load_all(&self.config)?, None)
        };
        let beside = match (&folder, configs.first()) {
            (Some(folder), _) => folder.dir.join("fsck"),
            (None, Some(config)) => config.dir.join("fsck"),
            (None, None) => PathBuf::from("fsck"),
        };
        match self.stopped(&configs, folder.as_ref(), &beside)? {
            Err(OfflineError::Running(_)) => {
                let servers = match (&folder, configs.first()) {
                    (None, Some(config)) => Servers::of_config(config)?,
                    _ => self.cell.open()?,
                };
                self.running(&servers, &beside)
            }
            Err(error) => Err(not_checked(&error).into()),
            Ok((summary, seconds)) => self.conclude(&summary, seconds, false),
        }
    }

    fn scratch(&self, beside: &Path) -> PathBuf {
        self.scratch.clone().unwrap_or_else(|| beside.to_owned())
    }

    fn teller(&self) -> FindingReporter {
        FindingReporter {
            json: self.json,
            progress: self.progress,
            repair: self.repair,
        }
    }

    fn stopped(
        &self,
        configs: &[NodeConfig],
        folder: Option<&CellFolder>,
        beside: &Path,
    ) -> anyhow::Result<Result<(CheckSummary, f64), OfflineError>> {
        // Keeps `zonal up` from starting the cell during the check.
        let _lock = folder
            .map(|folder| CellFolder::lock(&folder.dir))
            .transpose()?;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.context("the clock")?;
        let options = CheckOptions {
            repair: self.repair,
            data: self.data,
            scratch: self.scratch(beside),
            wall: Timestamp {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanos: since.subsec_nanos(),
            },
            fresh: self.fresh,
            keep_every: KEEP_EVERY,
        };
        let cell = CellStores {
            stores: configs.iter().flat_map(stores_of).collect(),
        };
        let start = Instant::now();
        let checked = zonal_offline::check(&cell, &options, &mut self.teller());
        Ok(checked.map(|summary| (summary, start.elapsed().as_secs_f64())))
    }

    fn running(&self, servers: &Servers, beside: &Path) -> anyhow::Result<()> {
        let refused =
            |text: &str, hint: &str| Err(Failure::new(NOT_CHECKED, text).hint(hint).into());
        if self.repair {
            return refused(
                "the cell runs: it can be checked but not repaired",
                "stop it with `zonal down`",
            );
        }
        if self.data {
            return refused(
                "the cell runs: its blocks are not compared",
                "`zonal scrub` verifies checksums of a running cell; or stop it with `zonal down`",
            );
        }
        let options = RunningOptions {
            scratch: self.scratch(beside),
            quiet: running_cell::QUIET,
        };
        let start = Instant::now();
        let summary = CheckedCell::new(servers)
            .and_then(|cell| check_running(&cell, &options, &mut self.teller()))
            .map_err(|error| not_checked(&error))?;
        self.conclude(&summary, start.elapsed().as_secs_f64(), true)
    }

    fn conclude(
        &self,
        summary: &CheckSummary,
        seconds: f64,
        is_running: bool,
    ) -> anyhow::Result<()> {
        let CheckSummary {
            found,
            notes,
            left,
            passes,
            changes,
            inodes,
            objects,
            records,
            kept,
            changing,
        } = *summary;
        if self.json {
            console::json(json!({
                "name": "summary",
                "found": found,
                "notes": notes,
                "left": left,
                "passes": passes,
                "changes": changes,
                "inodes": inodes,
                "objects": objects,
                "records": records,
                "kept": kept,
                "seconds": seconds,
                "running": is_running,
                "changing": changing,
            }));
        } else {
            console::line(format_args!(
                "{inodes} inodes and {objects} objects in {seconds:.1} s: {found} findings, {notes} notes, {left} left"
            ));
            if changing > 0 {
                console::line(format_args!(
                    "{changing} files were written to: their sizes and allocated bytes were not compared"
                ));
            }
        }
        if left > 0 {
            let text = format!("{left} findings are left");
            let hint = if is_running {
                "stop the cell with `zonal down`; then `zonal fsck --repair` repairs as much as possible"
            } else if self.repair {
                "lost data is named above; restore it from elsewhere and remove damaged files"
            } else {
                "`zonal fsck --repair` repairs as much as possible"
            };
            return Err(Failure::new(LEFT, text).hint(hint).into());
        }
        if found > 0 {
            let text = format!("{found} findings were repaired, with {changes} changes");
            return Err(Failure::new(REPAIRED, text).into());
        }
        Ok(())
    }
}

fn not_checked(error: &OfflineError) -> Failure {
    let hint = match error {
        OfflineError::Running(_) => "a server has the store open: stop the cell with `zonal down`",
        OfflineError::NoAnswer { .. } | OfflineError::SnapshotGone(_) => {
            "`zonal status` shows which server does not answer; a cell is checked with all servers running, or with none"
        }
        OfflineError::ScratchInUse(_) => "wait for it, or name another folder by --scratch",
        OfflineError::Scratch { .. } => {
            "name a folder that has room, and can be written, by --scratch"
        }
        OfflineError::Replica(_) => {
            "start the cell, then `zonal fsck` compares all of it, and `zonal scrub start` verifies targets"
        }
        OfflineError::NoManager => "name the configs of all nodes, the manager's too",
        _ => "the medium below may fail: look at the kernel's log",
    };
    Failure::new(NOT_CHECKED, with_causes(error)).hint(hint)
}
