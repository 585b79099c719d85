//! `zonal testbed status`: nodes, processes and links.

use super::TestbedArgs;
use crate::console;
use crate::exit::{FAILED, Failure};
use crate::testbed::conditions::StoredCondition;
use crate::testbed::links::{self, LinkReport};
use crate::testbed::namespaces::{self, NamespaceIdentity, NamespaceProcess, ProcessKind};
use crate::testbed::plan::NodePlace;
use crate::testbed::state::{TestbedFolder, TestbedState};
use clap::Args;
use serde_json::{Value, json};

/// Show nodes with their processes, and links with rates, added delays and the bytes since `up`
///
/// Bytes are of whole frames on the wire. "Up" is towards the core. Exits with 1 if a process of a
/// node is missing or a link is not shaped.
#[derive(Debug, Args)]
pub struct TestbedStatus {
    #[command(flatten)]
    testbed: TestbedArgs,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// The processes of a node.
struct NodeProcesses {
    place: NodePlace,
    /// The node has a server, by its shape.
    serves: bool,
    has_target: bool,
    server: Option<i32>,
    mount: Option<i32>,
    keeper: Option<i32>,
    programs: usize,
}

impl NodeProcesses {
    fn of(
        state: &TestbedState,
        place: NodePlace,
        id: Option<NamespaceIdentity>,
        all: &[NamespaceProcess],
    ) -> Self {
        let own = || all.iter().filter(|found| Some(found.namespace) == id);
        let pid = |kind| {
            let mut found = own().filter(|found| found.kind == kind);
            Some(found.next()?.handle.pid().as_raw_nonzero().get())
        };
        Self {
            place,
            serves: place.index == 1 || place.index <= state.storage_nodes,
            has_target: place.index <= state.storage_nodes,
            server: pid(ProcessKind::Server),
            mount: pid(ProcessKind::Mount),
            keeper: pid(ProcessKind::Keeper),
            programs: own()
                .filter(|found| found.kind == ProcessKind::Program)
                .count(),
        }
    }

    fn missing(&self) -> Vec<&'static str> {
        let server = (self.serves && self.server.is_none()).then_some("server");
        let mount = self.mount.is_none().then_some("mount");
        server.into_iter().chain(mount).collect()
    }
}

impl TestbedStatus {
    pub fn run(self) -> anyhow::Result<()> {
        let folder = self.testbed.open()?;
        let state = folder.state()?;
        let nodes = nodes(&state);
        let links = links::report(&state)?;
        if self.json {
            console::json(format_args!(
                "{:#}",
                to_json(&folder, &state, &nodes, &links)
            ));
        } else {
            print(&folder, &state, &nodes, &links);
        }
        let mut wrong = Vec::new();
        for node in &nodes {
            let missing = node.missing().into_iter();
            wrong.extend(missing.map(|what| format!("{} has no {what}", node.place.name())));
        }
        if wrong.is_empty() {
            return Ok(());
        }
        let text = wrong.join(", ");
        let hint = "start it by `zonal testbed exec NODE -- zonal server` or `mount`; or begin anew: `down`, `up`";
        Err(Failure::new(FAILED, text).hint(hint).into())
    }
}

fn nodes(state: &TestbedState) -> Vec<NodeProcesses> {
    let plan = state.plan();
    let places = plan.places();
    let identities: Vec<Option<NamespaceIdentity>> = places
        .iter()
        .map(|place| namespaces::identity(&namespaces::path(&plan.node(*place))))
        .collect();
    let all = namespaces::processes_in(&identities.iter().flatten().copied().collect());
    let each = places.into_iter().zip(identities);
    each.map(|(place, id)| NodeProcesses::of(state, place, id, &all))
        .collect()
}

fn print(
    folder: &TestbedFolder,
    state: &TestbedState,
    nodes: &[NodeProcesses],
    links: &[LinkReport],
) {
    console::line(format_args!(
        "testbed in {}: {} racks with {} nodes each; namespaces zonal-{}-*; the cell is on {} in each node",
        folder.dir().display(),
        state.racks,
        state.nodes,
        state.id,
        folder.mount().display()
    ));
    let header = ["NODE", "ADDRESS", "SERVER", "MOUNT", "PROGRAMS"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    let shown = |pid: Option<i32>, is_wanted: bool| match pid {
        Some(pid) => pid.to_string(),
        None if is_wanted => "gone".to_owned(),
        None => "-".to_owned(),
    };
    for node in nodes {
        rows.push(vec![
            node.place.name(),
            node.place.address().to_string(),
            shown(node.server, node.serves),
            shown(node.mount, true),
            node.programs.to_string(),
        ]);
    }
    console::table(&rows);
    console::line("");
    let header = ["LINK", "RATE", "ADDED", "STATE", "UP", "DOWN", "DROPPED"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for report in links {
        rows.push(vec![
            report.link.name.clone(),
            report.up.rate.to_string(),
            shown_condition(report.added),
            if report.is_cut { "cut" } else { "whole" }.to_owned(),
            zonal_basics::byte_size::rounded(report.up.bytes),
            zonal_basics::byte_size::rounded(report.down.bytes),
            (report.up.drops + report.down.drops).to_string(),
        ]);
    }
    console::table(&rows);
}

fn shown_condition(added: StoredCondition) -> String {
    match added.is_none() {
        true => "-".to_owned(),
        false => added.to_string(),
    }
}

fn to_json(
    folder: &TestbedFolder,
    state: &TestbedState,
    nodes: &[NodeProcesses],
    links: &[LinkReport],
) -> Value {
    let nodes = nodes.iter().map(|node| {
        json!({
            "name": node.place.name(),
            "zone": node.place.rack,
            "address": node.place.address().to_string(),
            "has_target": node.has_target,
            "server": node.server,
            "mount": node.mount,
            "keeper": node.keeper,
            "programs": node.programs,
        })
    });
    let links = links.iter().map(|report| {
        json!({
            "name": report.link.name,
            "uplink": report.link.is_uplink,
            "cut": report.is_cut,
            "delay_us": report.added.delay_us.0,
            "lost_of_million": report.added.lost_of_million.0,
            "asked_bits_per_second": report.asked.0,
            "bits_per_second": report.up.rate.0,
            "up_bytes": report.up.bytes,
            "down_bytes": report.down.bytes,
            "up_frames": report.up.frames,
            "down_frames": report.down.frames,
            "up_drops": report.up.drops,
            "down_drops": report.down.drops,
        })
    });
    json!({
        "dir": folder.dir(),
        "cell": folder.cell(),
        "mount": folder.mount(),
        "id": state.id,
        "nodes": nodes.collect::<Vec<_>>(),
        "links": links.collect::<Vec<_>>(),
    })
}
