//! `zonal server`: the server process.

use anyhow::Context;
use std::path::PathBuf;
use zonal_server::server::MissingStores;
use zonal_server::{NodeConfig, ServerError};

use crate::exit::{CONFIG, Failure};

/// Run the roles of one or more nodes in this process until SIGTERM
///
/// Logs go to standard error; ZONAL_LOG=debug overrides the level of the config.
#[derive(Debug, clap::Args)]
pub struct Server {
    /// Config of a node, or of two: of a manager's and a zone's metadata server's. Several configs
    /// make one process serve all their nodes
    #[arg(long, required = true, value_name = "FILE")]
    config: Vec<PathBuf>,
    /// Format missing stores; a folder that holds anything else is refused
    #[arg(long)]
    format: bool,
    /// Like --format, and exit then: run it once, as the user that the server runs as
    #[arg(long, conflicts_with = "format")]
    format_only: bool,
    /// Roles that the configs must have, as a check and for `ps`
    #[arg(long, value_name = "ROLES", value_delimiter = ',')]
    roles: Vec<String>,
    /// Record all operations on the stores' files, for tests of power loss
    ///
    /// Makes one recording for each store and start in this folder, of at most 1 GiB.
    #[arg(long, value_name = "DIR", env = "ZONAL_RECORD", hide_env_values = true)]
    record: Option<PathBuf>,
    /// Leave the terminal's session
    #[arg(long, hide = true)]
    new_session: bool,
}

impl Server {
    pub fn run(self) -> anyhow::Result<()> {
        if self.new_session {
            rustix::process::setsid().context("setsid")?;
        }
        let mut configs = NodeConfig::load_all(&self.config).map_err(ServerError::from)?;
        for config in &mut configs {
            config.record.clone_from(&self.record);
        }
        let roles: Vec<&str> = configs.iter().flat_map(NodeConfig::roles).collect();
        if !self.roles.is_empty() && self.roles != roles {
            let text = format!(
                "--roles says {}, the config has {}",
                self.roles.join(","),
                roles.join(",")
            );
            return Err(Failure::new(CONFIG, text).into());
        }
        if self.format_only {
            for config in &configs {
                zonal_server::server::format(config)?;
                let (path, node) = (config.path.display(), config.node);
                crate::console::line(format_args!("{path}: node {node} is formatted"));
            }
            return Ok(());
        }
        let missing = if self.format {
            MissingStores::Format
        } else {
            MissingStores::Refuse
        };
        Ok(zonal_server::server::run(&configs, missing)?)
    }
}
