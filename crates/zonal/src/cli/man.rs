//! `zonal man`.

use super::Cli;
use anyhow::Context;
use clap::CommandFactory;
use std::path::PathBuf;

/// Write manual pages into a folder
#[derive(Debug, clap::Args)]
pub struct Man {
    /// The folder; made if missing
    dir: PathBuf,
}

impl Man {
    pub fn run(self) -> anyhow::Result<()> {
        std::fs::create_dir_all(&self.dir).with_context(|| self.dir.display().to_string())?;
        clap_mangen::generate_to(Cli::command(), &self.dir).context("manual pages")
    }
}
