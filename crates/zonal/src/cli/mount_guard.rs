//! `zonal mount-guard`: hidden; a mount starts it for itself.

use crate::mount::guard;
use clap::Args;
use std::path::PathBuf;

/// Ends the kernel's side of a mount whose process was killed and cannot end.
#[derive(Debug, Args)]
pub struct MountGuard {
    /// Process id of the mount.
    process: u32,
    /// Mount point.
    path: PathBuf,
}

impl MountGuard {
    pub fn run(self) -> anyhow::Result<()> {
        guard::run(self.process, &self.path)
    }
}
