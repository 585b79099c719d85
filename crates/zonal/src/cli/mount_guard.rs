//! `zonal mount-guard`: hidden, started by a mount for itself.

use crate::mount::guard;
use clap::Args;
use std::path::PathBuf;

/// Ends the kernel's side of a mount whose process was killed and cannot end.
#[derive(Debug, Args)]
pub struct MountGuard {
    /// The mount's process.
    process: u32,
    /// Where it is mounted.
    path: PathBuf,
}

impl MountGuard {
    pub fn run(self) -> anyhow::Result<()> {
        guard::run(self.process, &self.path)
    }
}
