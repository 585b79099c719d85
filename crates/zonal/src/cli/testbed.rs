//! `zonal testbed`: a data centre of racks on one machine, for trying and testing.

mod check;
mod exec;
mod link;
mod status;
mod up;

use crate::cell::folder;
use crate::console;
use crate::testbed::state::{DEFAULT_DIR, TestbedFolder};
use crate::testbed::{namespaces, node_entry, plan, teardown};
use anyhow::Context;
use clap::{Args, Subcommand};
use std::path::PathBuf;
use std::time::Instant;

/// Make a data centre on this machine: racks of nodes in network namespaces, links with rates, a
/// cell
///
/// Needs root and iproute2. Makes no interface outside of its own namespaces. docs/testbed.md has a
/// tour and the limits.
#[derive(Debug, Subcommand)]
pub enum TestbedCommand {
    Up(up::TestbedUp),
    Exec(exec::TestbedExec),
    Cut(link::TestbedCut),
    Heal(link::TestbedHeal),
    Rate(link::TestbedRate),
    Delay(link::TestbedDelay),
    Status(status::TestbedStatus),
    Check(check::TestbedCheck),
    Down(TestbedDown),
    #[command(hide = true)]
    Keep(TestbedKeep),
}

impl TestbedCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Up(command) => command.run(),
            Self::Exec(command) => command.run(),
            Self::Cut(command) => command.run(),
            Self::Heal(command) => command.run(),
            Self::Rate(command) => command.run(),
            Self::Delay(command) => command.run(),
            Self::Status(command) => command.run(),
            Self::Check(command) => command.run(),
            Self::Down(command) => command.run(),
            Self::Keep(_) => node_entry::keep(),
        }
    }
}

/// The argument that selects a testbed.
#[derive(Debug, Args)]
struct TestbedArgs {
    /// Folder of the testbed
    #[arg(
        long,
        value_name = "DIR",
        default_value = DEFAULT_DIR,
        env = "ZONAL_TESTBED",
        hide_env_values = true
    )]
    dir: PathBuf,
}

impl TestbedArgs {
    fn open(&self) -> anyhow::Result<TestbedFolder> {
        namespaces::require_root()?;
        TestbedFolder::open(&self.dir)
    }
}

/// Stop all processes of a testbed and remove its namespaces and files, stores and logs too
///
/// Works on a testbed that is not complete, too: after `up` or `down` was killed, or all processes
/// were. Programs that `exec` started are stopped as well.
#[derive(Debug, Args)]
pub struct TestbedDown {
    #[command(flatten)]
    testbed: TestbedArgs,
}

impl TestbedDown {
    fn run(self) -> anyhow::Result<()> {
        let begun = Instant::now();
        let dir = folder::absolute(&self.testbed.dir)?;
        let is_removed = !dir.exists() && !namespaces::existing(&plan::id_of(&dir)).is_empty();
        if is_removed {
            // Somebody removed the folder while the testbed was up: its id follows from the path.
            std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
        let folder = self.testbed.open()?;
        let _lock = folder.lock()?;
        let counts = teardown::remove(&folder)?;
        console::line(format_args!(
            "stopped {} processes, removed {} namespaces and the files in {} ({:.1} s)",
            counts.processes,
            counts.namespaces,
            folder.dir().display(),
            begun.elapsed().as_secs_f64()
        ));
        if is_removed {
            folder.clear_lock();
        }
        Ok(())
    }
}

/// Keeps the mount namespace of a node; `up` starts it in the node's network.
#[derive(Debug, Args)]
pub struct TestbedKeep {}
