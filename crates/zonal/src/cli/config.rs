//! `zonal config`: configs without running them.

use crate::console;
use std::path::PathBuf;
use zonal_server::NodeConfig;

/// Check configs
#[derive(Debug, clap::Subcommand)]
pub enum ConfigCommand {
    /// Read node.toml files and say what is wrong with them; opens and changes nothing
    Check {
        /// The files
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

impl ConfigCommand {
    pub fn run(self) -> anyhow::Result<()> {
        let Self::Check { files } = self;
        for file in files {
            for config in NodeConfig::load(&file)? {
                console::line(format_args!(
                    "{}: node {} of zone {}, roles {}, listens on {}, keeps its data in {}",
                    file.display(),
                    config.node,
                    config.zone,
                    config.roles().join(", "),
                    config.listen,
                    config.dir.display()
                ));
            }
        }
        Ok(())
    }
}
