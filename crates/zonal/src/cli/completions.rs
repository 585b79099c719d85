//! `zonal completions`.

use super::Cli;
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
        clap_complete::generate(
            self.shell,
            &mut Cli::command(),
            "zonal",
            &mut std::io::stdout(),
        );
        Ok(())
    }
}
