//! `zonal rsh`: a command line on one node, in the form that launchers call ssh.

use super::job::{self, JobSettings};
use super::plan::{self, NodeChoice};
use super::{agents, command, end_with, refusal};
use crate::cli::fs::connection::AccessArgs;
use crate::exit::{FAILED, Failure, NOT_FOUND};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use zonal_types::NodeId;

/// Run a command line on a node, as ssh does, for launchers of MPI
///
/// HOST is the number of a node, or its address. The words are joined and run by `/bin/sh -c` in
/// the root directory, as the user who asks. The command ends with its last process, so a daemon
/// that goes into the background keeps it.
///
/// Open MPI: `mpirun --mca plm_rsh_agent "zonal rsh" ...`. MPICH: `mpiexec -launcher ssh
/// -launcher-exec FILE ...`, where FILE runs `exec zonal rsh "$@"`.
#[derive(Debug, clap::Args)]
pub struct RemoteShell {
    #[command(flatten)]
    access: AccessArgs,
    /// Option that launchers give ssh, as -T and -q; without an effect here
    #[arg(short = 'x', short_aliases = ['T', 'q'], action = clap::ArgAction::Count)]
    ssh_options: u8,
    /// Number or address of the node
    host: String,
    /// The command line
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

impl RemoteShell {
    pub fn run(self) -> anyhow::Result<()> {
        let map = self.access.map()?;
        let cell = self.access.cell()?;
        let found = agents::ask_all(&cell, &map);
        let node = self.node(&found.nodes).ok_or_else(|| {
            let text = format!("no node with an agent is {}", self.host);
            Failure::new(NOT_FOUND, text).hint("`zonal status` lists nodes with their addresses")
        })?;
        let plan = plan::plan(&NodeChoice::Given(vec![node]), (1, None), &found.nodes);
        let plan = plan.map_err(|error| refusal(&error, &found))?;
        let line = self.command.join(OsStr::from_bytes(b" "));
        let words = ["/bin/sh".into(), "-c".into(), line];
        let settings = JobSettings {
            command: command::command(&words, std::env::vars_os(), Path::new("/"))?,
            size: 1,
            awaits_all: true,
            with_prefix: false,
            with_input: true,
            moves: 0,
        };
        match job::run(cell, settings, plan)? {
            Ok(0) => Ok(()),
            Ok(code) => end_with(code),
            Err(refused) => Err(Failure::new(FAILED, refused).into()),
        }
    }

    fn node(&self, agents: &[agents::AgentNode]) -> Option<NodeId> {
        let is_named = |agent: &&agents::AgentNode| {
            self.host == agent.node.to_string()
                || self.host == agent.address.tcp.ip().to_string()
                || self.host == agent.address.tcp.to_string()
        };
        agents.iter().find(is_named).map(|agent| agent.node)
    }
}
