//! `zonal config`: checks configs without running them.

use crate::console;
use std::path::PathBuf;
use zonal_server::NodeConfig;

/// Check configs
#[derive(Debug, clap::Subcommand)]
pub enum ConfigCommand {
    /// Check node.toml files and report errors; opens no store and changes nothing
    Check {
        /// Config files
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
                    "{}: node {} of {}, roles {}, listens on {}, keeps its data in {}",
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
