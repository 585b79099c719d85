//! `zonal umount`.

use crate::cell::processes::Started;
use crate::cell::{folder, points, processes};
use crate::exit::{FAILED, Failure, NOT_FOUND};
use anyhow::Context;
use rustix::process::Pid;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Unmount, and wait until everything written has reached the servers
#[derive(Debug, clap::Args)]
pub struct Umount {
    /// The mount point
    path: PathBuf,
    /// Give up what is open or under way
    #[arg(long)]
    force: bool,
}

impl Umount {
    pub fn run(self) -> anyhow::Result<()> {
        // Not by asking the mount itself, which may be dead.
        let path = std::path::absolute(&self.path).context("mount point")?;
        let path = if points::is_mounted(&path) {
            path
        } else {
            folder::absolute(&path)?
        };
        let processes = mount_processes(&path);
        let is_mounted = points::is_mounted(&path);
        if !is_mounted && processes.is_empty() {
            let text = format!("no cell is mounted on {}", path.display());
            return Err(Failure::new(NOT_FOUND, text)
                .hint("`findmnt -t fuse.zonal` lists mounts")
                .into());
        }
        if is_mounted {
            if self.force {
                zonal_fuse::abort(&path)
            } else {
                zonal_fuse::unmount(&path)
            }
            .with_context(|| format!("unmount {}", path.display()))?;
        }
        if self.force {
            // Also those of earlier mounts there that somebody still uses.
            let of_path: Vec<_> = processes
                .iter()
                .map(|(pid, _)| (*pid, path.clone()))
                .collect();
            return processes::stop(&of_path, |pid, _path| {
                processes.contains(&(pid, processes::started(pid)))
            });
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Some((pid, _)) = processes
            .iter()
            .find(|(pid, started)| processes::started(*pid) == *started)
        {
            if Instant::now() > deadline {
                let text = format!(
                    "{} is unmounted, but its process {pid} goes on: files are open",
                    path.display()
                );
                return Err(Failure::new(FAILED, text)
                    .hint("close them, or use --force")
                    .into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

/// The processes of mounts there, of those that were unmounted while in use, too: each a `zonal mount` in the foreground that names the path.
fn mount_processes(path: &Path) -> Vec<(Pid, Started)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    });
    let me = rustix::process::getpid();
    let mounts = pids.filter(|pid| *pid != me && is_mount(*pid, path));
    mounts
        .map(|pid| (pid, processes::started(pid)))
        .filter(|(_, started)| matches!(started, Started::At(_)))
        .collect()
}

fn is_mount(pid: Pid, path: &Path) -> bool {
    let arguments = processes::arguments(pid);
    let has = |wanted: &str| arguments.iter().any(|argument| argument == wanted);
    if !has("mount") || !(has("--foreground") || has("-f") && is_zonal(&arguments)) {
        return false;
    }
    if arguments.iter().any(|argument| Path::new(argument) == path) {
        return true;
    }
    // One that was started by hand may name it as seen from where it runs.
    std::fs::read_link(format!("/proc/{}/cwd", pid.as_raw_nonzero())).is_ok_and(|cwd| {
        let seen = |argument: &OsString| {
            // Without a slash at the end, which would ask the mount.
            let path = cwd.join(argument).components().collect::<PathBuf>();
            folder::absolute(&path).ok()
        };
        let mut named = arguments.iter().skip(1).filter_map(seen);
        named.any(|named| named == path)
    })
}

/// Whether it is no other program's `mount -f`.
fn is_zonal(arguments: &[OsString]) -> bool {
    let program = arguments.first().map(Path::new);
    program.and_then(Path::file_name) == Some(OsStr::new("zonal"))
}
