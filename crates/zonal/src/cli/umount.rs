//! `zonal umount`.

use crate::cell::{folder, mounts, processes};
use crate::exit::{FAILED, Failure, NOT_FOUND};
use anyhow::Context;
use rustix::process::Pid;
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
        let path = if mounts::is_mounted(&path) {
            path
        } else {
            folder::absolute(&path)?
        };
        let processes = mount_processes(&path);
        let is_mounted = mounts::is_mounted(&path);
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
            let of_path: Vec<_> = processes.iter().map(|pid| (*pid, path.clone())).collect();
            return processes::stop(&of_path, processes::is_ours);
        }
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Some(pid) = processes
            .iter()
            .find(|pid| processes::is_ours(**pid, &path))
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
fn mount_processes(path: &Path) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten();
    let pids = entries.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        Pid::from_raw(name.to_str()?.parse().ok()?)
    });
    let me = rustix::process::getpid();
    let is_mount = |pid: &Pid| {
        let has = |argument: &Path| processes::is_ours(*pid, argument);
        has(path) && has(Path::new("mount")) && has(Path::new("--foreground"))
    };
    pids.filter(|pid| *pid != me).filter(is_mount).collect()
}
