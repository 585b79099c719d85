//! `zonal umount`.

use crate::cell::mount_records::MountRecords;
use crate::cell::{CellFolder, CellLocator, ProcessHandle, folder, mount_table, processes};
use crate::exit::{FAILED, Failure, NOT_FOUND, USAGE};
use crate::mount::unmount_status::{self, UnmountStatus};
use anyhow::Context;
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zonal_basics::byte_size;

/// Time to wait for the end of the mount's process.
const PATIENCE: Duration = Duration::from_secs(30);

/// Unmount, and wait until all written data has reached the servers
///
/// Waits at most 30 s, then reports how much is not sent yet and which servers do not answer. Exits
/// with 1 in that case, if files are open, and if data could not be sent and is lost.
#[derive(Debug, clap::Args)]
pub struct Umount {
    /// The mount point
    path: PathBuf,
    /// Unmount despite open files, and give up unsent data
    #[arg(long)]
    force: bool,
}

impl Umount {
    pub fn run(self) -> anyhow::Result<()> {
        // Resolves the path without asking the mount, which may be dead.
        let path = std::path::absolute(&self.path).context("mount point")?;
        let path = if mount_table::is_mounted(&path) {
            path
        } else {
            folder::absolute(&path)?
        };
        let processes = mount_processes(&path);
        let is_mounted = mount_table::is_mounted(&path);
        if !is_mounted && processes.is_empty() {
            return Err(not_a_mount_point(&self.path, &path).into());
        }
        // Connects before the unmount, after which the process may end.
        let heard: Vec<_> = processes
            .iter()
            .map(|held| unmount_status::listen(held.pid().as_raw_nonzero().get()))
            .collect();
        if is_mounted {
            if self.force {
                zonal_fuse::abort(&path)
            } else {
                zonal_fuse::unmount(&path)
            }
            .with_context(|| format!("unmount {}", path.display()))?;
        }
        if self.force {
            // Includes processes of earlier mounts there that are still in use.
            let name = path.display().to_string();
            let of_path: Vec<_> = processes
                .into_iter()
                .map(|held| (held, name.clone()))
                .collect();
            return processes::stop(&of_path);
        }
        let deadline = Instant::now() + PATIENCE;
        for (held, heard) in processes.iter().zip(&heard) {
            if !held.ends_within(deadline.saturating_duration_since(Instant::now())) {
                return Err(process_still_runs(&path, held.pid(), heard.last().as_ref()).into());
            }
        }
        heard
            .iter()
            .find_map(|heard| lost_data(&path, &heard.at_the_end()?))
            .map_or(Ok(()), |failure| Err(failure.into()))
    }
}

/// The error for a path that is no mount point; names the mount points if it is a cell.
fn not_a_mount_point(said: &Path, path: &Path) -> Failure {
    let is_address = !path.exists() && said.to_str().is_some_and(CellLocator::is_address);
    if !is_address && !CellFolder::is_cell(path) {
        let text = format!("no cell is mounted on {}", path.display());
        return Failure::new(NOT_FOUND, text).hint("`findmnt -t fuse.zonal` lists mounts");
    }
    let what = if is_address {
        "the address"
    } else {
        "the folder"
    };
    let text = format!(
        "{} is {what} of a cell, no mount point; nothing was unmounted",
        said.display()
    );
    let records = CellFolder::open(path).map(|folder| MountRecords::below(&folder).list());
    let points = records.unwrap_or_default().into_iter();
    let points: Vec<String> = points
        .filter(|record| mount_table::is_mounted(&record.path))
        .map(|record| format!("`zonal umount {}`", record.path.display()))
        .collect();
    Failure::new(USAGE, text).hint(match points.as_slice() {
        [] => "`findmnt -t fuse.zonal` lists mounts".to_owned(),
        _ => format!("it is mounted: {}", points.join(", ")),
    })
}

fn no_answer(servers: &str) -> String {
    if servers.is_empty() {
        String::new()
    } else {
        format!("; no answer from {servers}")
    }
}

/// The error for a mount that is unmounted but whose process continues.
fn process_still_runs(path: &Path, pid: Pid, said: Option<&UnmountStatus>) -> Failure {
    let shown = path.display();
    let give_up = format!("`zonal umount --force {shown}` gives up unsent data");
    let (why, hint) = match said {
        Some(UnmountStatus::Unsent(bytes, servers)) => (
            format!(
                "{} are not sent yet{}",
                byte_size::rounded(*bytes),
                no_answer(servers)
            ),
            format!("it continues after this command has ended; {give_up}"),
        ),
        Some(UnmountStatus::Open(files)) => (
            format!("files are open ({files})"),
            format!("close them, or: {give_up}"),
        ),
        _ => (
            "files are open, or written data is not sent yet".to_owned(),
            format!("close them, and look at its log; {give_up}"),
        ),
    };
    let text = format!("{shown} is unmounted, but its process {pid} still runs: {why}");
    Failure::new(FAILED, text).hint(hint)
}

/// The error for data that did not reach its servers before the process ended.
fn lost_data(path: &Path, said: &UnmountStatus) -> Option<Failure> {
    let UnmountStatus::Lost(bytes, servers) = said else {
        return None;
    };
    let text = format!(
        "{} is unmounted, but {} of written data could not be sent and are lost{}",
        path.display(),
        byte_size::rounded(*bytes),
        no_answer(servers)
    );
    Some(Failure::new(FAILED, text).hint("the log of the mount has details"))
}

/// The processes of mounts at a path, including those unmounted while in use.
///
/// Each is a `zonal mount` in the foreground that names the path, of the user who made the present
/// mount.
fn mount_processes(path: &Path) -> Vec<ProcessHandle> {
    let own = rustix::process::geteuid().as_raw();
    let uid = mount_table::user(path).unwrap_or(own);
    let me = rustix::process::getpid();
    let others = processes::all().filter(|pid| *pid != me);
    let held = others.filter_map(|pid| {
        ProcessHandle::of(pid, uid, |arguments| {
            processes::mounts(pid, arguments, path)
        })
    });
    held.collect()
}
