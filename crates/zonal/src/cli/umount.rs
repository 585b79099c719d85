//! `zonal umount`.

use crate::cell::{folder, mounts};
use crate::exit::{FAILED, Failure, NOT_FOUND};
use anyhow::Context;
use std::path::PathBuf;
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
        if !mounts::is_mounted(&path) {
            let text = format!("no cell is mounted on {}", path.display());
            return Err(Failure::new(NOT_FOUND, text)
                .hint("`findmnt -t fuse.zonal` lists mounts")
                .into());
        }
        let process = mount_process(&path);
        if self.force {
            zonal_fuse::abort(&path)
        } else {
            zonal_fuse::unmount(&path)
        }
        .with_context(|| format!("unmount {}", path.display()))?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while let Some(pid) = process
            && crate::cell::processes::is_ours(pid, &path)
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

/// The process of a mount: a `zonal mount` in the foreground that names the path.
fn mount_process(path: &std::path::Path) -> Option<rustix::process::Pid> {
    let pids = std::fs::read_dir("/proc").ok()?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        rustix::process::Pid::from_raw(name.to_str()?.parse().ok()?)
    });
    let me = rustix::process::getpid();
    pids.filter(|pid| *pid != me).find(|pid| {
        let argument =
            |text: &str| crate::cell::processes::is_ours(*pid, std::path::Path::new(text));
        crate::cell::processes::is_ours(*pid, path) && argument("mount") && argument("--foreground")
    })
}
