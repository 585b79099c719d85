//! `zonal testbed up`: makes a testbed.

use super::TestbedArgs;
use crate::console;
use crate::exit::{FAILED, Failure, IN_USE, REFUSED};
use crate::testbed::plan::{TestbedPlan, id_of};
use crate::testbed::shape::{LinkRate, TestbedShape};
use crate::testbed::state::{TestbedFolder, TestbedState};
use crate::testbed::{cell_folder, iproute, namespaces, network, node_entry, nodes, teardown};
use anyhow::Context;
use clap::Args;
use std::path::Path;
use std::time::Instant;
use zonal_server::units::ByteSize;

/// Make racks of nodes with a cell that is mounted in each node
///
/// Each node is a network and a mount namespace with a server and a mount in its rack's zone. The
/// first node of a rack has the zone's metadata server, the first of all the manager. With replicas
/// the first nodes of a rack have those of its zone's shard, and the managers are in different
/// racks, where there are enough. If a step fails, everything is removed again.
#[derive(Debug, Args)]
pub struct TestbedUp {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// Number of racks, each a zone: 1 to 8
    #[arg(long, default_value_t = 2)]
    racks: u16,
    /// Nodes in each rack: 1 to 32, and 32 in all racks
    #[arg(long, default_value_t = 4)]
    nodes: u16,
    /// Rate of each node's link, in each direction: 1mbit to 1gbit
    #[arg(long, default_value = "200mbit", value_name = "RATE")]
    node_rate: LinkRate,
    /// Rate of each rack's uplink, in each direction: 1mbit to 1gbit
    #[arg(long, default_value = "100mbit", value_name = "RATE")]
    uplink_rate: LinkRate,
    /// The first nodes of each rack that have a storage target [default: all]
    #[arg(long)]
    storage_nodes: Option<u16>,
    /// Managers, and replicas of each zone's shard on the first nodes of its rack: 1, 3 or 5
    #[arg(long, default_value_t = 1)]
    replicas: u16,
    /// Replicas of a zone's shard on nodes of different racks, so that its names outlive the rack
    #[arg(long)]
    spread_replicas: bool,
    /// Capacity of each target
    #[arg(long, default_value = "4 GiB", value_name = "SIZE")]
    capacity: ByteSize,
}

/// The steps of `up` with their times.
struct StepTimes {
    begun: Instant,
    last: Instant,
}

impl StepTimes {
    fn new() -> Self {
        let now = Instant::now();
        Self {
            begun: now,
            last: now,
        }
    }

    fn done(&mut self, what: &str) {
        let seconds = self.last.elapsed().as_secs_f64();
        console::note(format_args!("{what} ({seconds:.1} s)"));
        self.last = Instant::now();
    }
}

impl TestbedUp {
    fn shape(&self) -> TestbedShape {
        TestbedShape {
            racks: self.racks,
            nodes: self.nodes,
            storage_nodes: self.storage_nodes.unwrap_or(self.nodes),
            replicas: self.replicas,
            spread_replicas: self.spread_replicas,
            node_rate: self.node_rate,
            uplink_rate: self.uplink_rate,
            capacity: self.capacity,
        }
    }

    pub fn run(self) -> anyhow::Result<()> {
        let shape = self.shape();
        shape.check()?;
        require_rights()?;
        let (folder, made_dir) = TestbedFolder::make(&self.testbed.dir)?;
        let lock = folder.lock()?;
        let made = folder
            .require_empty()
            .and_then(|()| new_state(&folder, &shape, made_dir));
        let mut state = made.inspect_err(|_error| {
            if made_dir {
                // Only the lock is in it, or what another command has put there.
                folder.clear_lock();
            }
        })?;
        let mut times = StepTimes::new();
        let result = make(&folder, &shape, &mut state, &mut times);
        if let Err(error) = result {
            console::note("removing what was made");
            if let Err(left) = teardown::remove(&folder) {
                console::note(format_args!("not all is removed: {left:#}"));
            }
            return Err(error);
        }
        drop(lock);
        say_what_next(&folder, &shape, times.begun.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Refuses a user or a machine that cannot have a testbed, before anything is made.
fn require_rights() -> anyhow::Result<()> {
    namespaces::require_root()?;
    if !Path::new("/dev/fuse").exists() {
        let text = "there is no /dev/fuse, so nodes cannot mount";
        let hint = "load the kernel module fuse, or give the container the device";
        return Err(Failure::new(REFUSED, text).hint(hint).into());
    }
    iproute::ip(&["-V"]).map(drop)
}

/// Writes the state of a new testbed, before anything is made.
fn new_state(
    folder: &TestbedFolder,
    shape: &TestbedShape,
    made_dir: bool,
) -> anyhow::Result<TestbedState> {
    let plan = TestbedPlan {
        id: id_of(folder.dir()),
        racks: shape.racks,
        nodes: shape.nodes,
    };
    let existing = namespaces::existing(&plan.id);
    if !existing.is_empty() {
        let text = format!(
            "network namespaces of a testbed of this folder are left: {}",
            existing.join(", ")
        );
        let hint = format!(
            "`zonal testbed down --dir {}` removes them",
            folder.dir().display()
        );
        return Err(Failure::new(IN_USE, text).hint(hint).into());
    }
    let links = plan.links().into_iter();
    let rates = links.map(|link| {
        let rate = TestbedPlan::first_rate(&link, shape.node_rate, shape.uplink_rate);
        (link.name, rate)
    });
    let mut state = TestbedState::new(&plan, shape.storage_nodes, rates.collect());
    state.made_dir = made_dir;
    state.made_sockets_folder = !Path::new(node_entry::SOCKETS).exists();
    folder.save(&state)?;
    Ok(state)
}

fn make(
    folder: &TestbedFolder,
    shape: &TestbedShape,
    state: &mut TestbedState,
    times: &mut StepTimes,
) -> anyhow::Result<()> {
    let plan = state.plan();
    network::make(&plan, &state.rates)?;
    times.done(&format!("{} links are made and shaped", state.rates.len()));
    for place in [Path::new(node_entry::SOCKETS), &folder.mount()] {
        std::fs::create_dir_all(place).with_context(|| place.display().to_string())?;
    }
    state.keepers = nodes::keep(&plan)?;
    folder.save(state)?;
    let cell = cell_folder::make(&folder.cell(), &plan, shape)?;
    times.done("stores are formatted");
    let mut servers = nodes::start_servers(folder, &plan, &cell)?;
    let all = servers.len();
    nodes::await_servers(&plan, &cell, &mut servers, &|count| {
        progress("servers answer", count, all);
    })?;
    times.done(&format!("{all} servers answer"));
    let all = plan.places().len();
    let managers = cell_folder::managers_named(&plan, shape.replicas);
    nodes::mount_all(folder, &plan, &managers, &|count| {
        progress("mounts", count, all);
    })?;
    times.done(&format!("{all} nodes have the cell mounted"));
    state.is_complete = true;
    folder.save(state).map_err(|error| {
        let text = format!("the state cannot be written: {error:#}");
        Failure::new(FAILED, text).into()
    })
}

/// Shows every fourth step: a line each would hide the rest.
fn progress(what: &str, count: usize, all: usize) {
    if count.is_multiple_of(4) && count < all {
        console::note(format_args!("{count} of {all} {what}"));
    }
}

fn say_what_next(folder: &TestbedFolder, shape: &TestbedShape, seconds: f64) {
    let dir = folder.dir().display();
    console::line(format_args!(
        "{} racks with {} nodes each are up ({seconds:.1} s); the cell is on {} in each node; try:",
        shape.racks,
        shape.nodes,
        folder.mount().display()
    ));
    for command in [
        "exec --dir DIR r1n1 -- zonal status",
        "exec --dir DIR r1n1 -- sh -c 'cp -r /usr/include $ZONAL_MOUNT'",
        "status --dir DIR",
        "check --dir DIR",
        "down --dir DIR",
    ] {
        let command = command.replace("DIR", &dir.to_string());
        console::line(format_args!("  zonal testbed {command}"));
    }
}
