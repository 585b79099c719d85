//! Arguments of commands that write a file, or that take long.

use crate::atomic_file::is_replaceable;
use crate::exit::{Failure, IN_USE};
use crate::progress::ProgressMeter;
use std::path::PathBuf;

/// The file that a command writes.
#[derive(Debug, clap::Args)]
pub struct OutputArgs {
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub to: PathBuf,
    /// Replace the file if it exists; never anything but a regular file
    #[arg(long)]
    force: bool,
}

impl OutputArgs {
    /// Refuses a file that exists, unless it may be replaced, and anything that is no regular file.
    pub fn refuse_existing(&self) -> anyhow::Result<()> {
        if is_replaceable(&self.to)? && !self.force {
            let text = format!("{} exists", self.to.display());
            let failure = Failure::new(IN_USE, text);
            return Err(failure.hint("name another file, or give --force").into());
        }
        Ok(())
    }
}

/// Arguments for progress and result.
#[derive(Debug, clap::Args)]
pub struct ReportArgs {
    /// Show progress on standard error
    #[arg(long)]
    progress: bool,
    /// As JSON
    #[arg(long)]
    pub json: bool,
}

impl ReportArgs {
    /// A meter that counts `what`.
    pub fn progress(&self, what: &'static str) -> ProgressMeter {
        ProgressMeter::new(what, self.progress)
    }
}
