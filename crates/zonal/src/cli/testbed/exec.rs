//! `zonal testbed exec`: a command in a node.

use super::TestbedArgs;
use crate::testbed::node_entry;
use clap::Args;
use std::ffi::OsString;

/// Run a command in a node: in its network, with its mounts
///
/// The command replaces this process, so its exit code and signals are its own. It has the
/// machine's files, the cell at ZONAL_MOUNT (DIR/mnt), and ZONAL_CELL for commands of zonal.
#[derive(Debug, Args)]
pub struct TestbedExec {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Node, such as r1n2
    node: String,
    /// Command with its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl TestbedExec {
    pub fn run(self) -> anyhow::Result<()> {
        let folder = self.testbed.open()?;
        // Also while `up` runs, which starts servers this way.
        let state = match folder.find_state()? {
            Some(state) if !state.keepers.is_empty() => state,
            _ => folder.state()?,
        };
        let node = state.plan().find_node(&self.node)?;
        node_entry::become_program(&folder, &state, node, &self.command)
    }
}
