//! `zonal completions`.

use super::Cli;
use crate::console;
use clap::CommandFactory;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell
    shell: clap_complete::Shell,
}

impl Completions {
    #[expect(clippy::unnecessary_wraps, reason = "all commands have one shape")]
    pub fn run(self) -> anyhow::Result<()> {
        // Into memory first: the library panics if it cannot write.
        let mut text = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "zonal", &mut text);
        console::raw(&text);
        Ok(())
    }
}
