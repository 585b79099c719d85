//! `zonal run`: a command on nodes near its files, through their agents.

mod agents;
mod command;
mod job;
mod output;
mod plan;
mod remote_shell;
mod report;
mod signal_queue;

use super::fs::connection::AccessArgs;
use super::place::bytes;
use crate::console;
use crate::exit::{FAILED, Failure, UNREACHABLE, USAGE};
use crate::placement_client::{PlacementClient, ServiceArgs};
use crate::progress::ProgressMeter;
use agents::CellAgents;
use anyhow::Context;
use job::JobSettings;
use plan::{JobPlan, NodeChoice, PlanError};
pub use remote_shell::RemoteShell;
use report::ReportedJob;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;
use zonal_types::NodeId;
use zonal_types::limits::AGENT_RANKS_MAX;
use zonal_zonemap::ZoneMap;

/// Most ranks of one job.
const RANKS_MAX: usize = 64 * AGENT_RANKS_MAX;

/// Run a command on nodes near its files
///
/// The agents of the nodes start it, as the user who asks. All ranks are in one zone: the zone with
/// most of the bytes of --near, else the least loaded. Lines of output have the number of their
/// rank. Standard input goes to rank 0.
///
/// Signals are forwarded; a second SIGINT or SIGTERM kills all ranks. The exit code is the highest
/// of all ranks, where a signal N counts as 128 + N. Nothing is left running, unless a command
/// kills the guard of its rank, as it can where the agent is not root.
#[derive(Debug, clap::Args)]
pub struct RunJob {
    #[command(flatten)]
    access: AccessArgs,
    #[command(flatten)]
    service: ServiceArgs,
    /// A file or directory that the command uses, from the cell's root; may be repeated
    #[arg(long, value_name = "PATH")]
    near: Vec<PathBuf>,
    /// Add up the bytes of all files below directories of --near
    #[arg(long, short)]
    recursive: bool,
    /// Ranks of the job [default: 1; with --per-node and --nodes, as many as fit]
    #[arg(short, long = "ranks", value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=RANKS_MAX as i64))]
    n: Option<u32>,
    /// Ranks on each node [default: spread evenly over the nodes of the zone]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=AGENT_RANKS_MAX as i64))]
    per_node: Option<u32>,
    /// Take nodes of all zones in turn, for comparison
    #[arg(long, conflicts_with_all = ["near", "nodes"])]
    any: bool,
    /// Numbers of the nodes to use, in this order
    #[arg(
        long,
        value_name = "NODE,...",
        value_delimiter = ',',
        conflicts_with = "near"
    )]
    nodes: Vec<u32>,
    /// Start ranks of a dead node on another node of its zone, so often at most; once where
    /// TIMES is left out
    #[arg(long, value_name = "TIMES", num_args = 0..=1, require_equals = true, default_missing_value = "1", default_value = "0")]
    retry: u32,
    /// Working directory on the nodes [default: that of this command]
    #[arg(long, value_name = "DIR")]
    chdir: Option<PathBuf>,
    /// Pass output on as it comes, without numbers of ranks
    #[arg(long)]
    no_prefix: bool,
    /// Give no rank standard input
    #[arg(long)]
    no_stdin: bool,
    /// Print the plan, and run nothing
    #[arg(long)]
    dry_run: bool,
    /// The plan as JSON
    #[arg(long, requires = "dry_run")]
    json: bool,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl RunJob {
    pub fn run(self) -> anyhow::Result<()> {
        let map = self.access.map()?;
        let choice = self.choice()?;
        let cell = self.access.cell()?;
        let found = agents::ask_all(&cell, &map);
        let ranks = self.ranks();
        let per_node = self.per_node.map(|count| count as usize);
        let plan = plan::plan(&choice, (ranks as usize, per_node), &found.nodes);
        let plan = plan.map_err(|error| refusal(&error, &found))?;
        if self.dry_run {
            match self.json {
                true => console::json(format_args!("{:#}", to_json(&map, &plan, &found))),
                false => print(&map, &plan, &found),
            }
            return Ok(());
        }
        if !plan.standby.is_empty() {
            console::note(format_args!(
                "zonal: {}: {}",
                nodes_text("standby node", &plan.standby),
                plan.explanation
            ));
        }
        let order = self.order(ranks)?;
        let service = PlacementClient::of(&cell, &self.service)?;
        let name = self.command[0].to_string_lossy().into_owned();
        let reported = ReportedJob::begin(self.access.cell()?, service, name, &plan);
        let ended = job::run(cell, order, plan);
        if let Some(reported) = reported {
            reported.end(matches!(ended, Ok(Ok(0))));
        }
        match ended? {
            Ok(0) => Ok(()),
            Ok(code) => end_with(code),
            Err(refused) => Err(Failure::new(FAILED, refused)
                .hint("docs/agents.md has the rules of agents")
                .into()),
        }
    }

    fn ranks(&self) -> u32 {
        let nodes = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        let fit = self.per_node.unwrap_or(1).saturating_mul(nodes.max(1));
        self.n.unwrap_or(fit)
    }

    fn choice(&self) -> anyhow::Result<NodeChoice> {
        if self.any {
            return Ok(NodeChoice::Any);
        }
        if !self.nodes.is_empty() {
            return Ok(NodeChoice::Given(
                self.nodes.iter().copied().map(NodeId).collect(),
            ));
        }
        if self.near.is_empty() {
            return Ok(NodeChoice::Near(std::collections::BTreeMap::new()));
        }
        let cell = self.access.connect("run")?;
        let mut progress = ProgressMeter::new("files", std::io::stderr().is_terminal());
        let found = bytes::by_zone(&cell, &self.near, self.recursive, &mut progress);
        let (found, outcome) = match found {
            Ok(found) => (found.demand(), Ok(())),
            Err(error) => (std::collections::BTreeMap::new(), Err(error)),
        };
        cell.end(outcome)?;
        Ok(NodeChoice::Near(found))
    }

    fn order(&self, size: u32) -> anyhow::Result<JobSettings> {
        let directory = match &self.chdir {
            Some(directory) if directory.is_absolute() => directory.clone(),
            Some(_) => {
                let text = "--chdir does not start with /";
                return Err(Failure::new(USAGE, text).into());
            }
            None => std::env::current_dir().context("working directory")?,
        };
        let number = format!("{:016x}", command::job_number()?);
        let own = [("ZONAL_JOB".into(), number.into())];
        let environment = std::env::vars_os().filter(|(name, _)| name != "ZONAL_JOB");
        let command = command::command(&self.command, environment.chain(own), &directory)?;
        Ok(JobSettings {
            command,
            size,
            awaits_all: false,
            with_prefix: !self.no_prefix,
            with_input: !self.no_stdin,
            moves: self.retry,
        })
    }
}

/// Ends this process with the exit code of a rank, without a message of its own.
fn end_with(code: u8) -> ! {
    if let Err(error) = console::finish() {
        console::note(format_args!("zonal: standard output: {error}"));
    }
    std::process::exit(i32::from(code))
}

fn refusal(error: &PlanError, found: &CellAgents) -> Failure {
    let mut text = error.to_string();
    for (node, reason) in &found.missing {
        text.push_str(&format!("\nnode {node}: {reason}"));
    }
    match error {
        PlanError::NoAgents | PlanError::NoAgent(_) => Failure::new(UNREACHABLE, text).hint(
            "an agent is on where node.toml has [agent]; `zonal up --agent` makes a cell with agents",
        ),
        _ => Failure::new(FAILED, text)
            .hint("`zonal run --dry-run` shows a plan; -n and --per-node set its size"),
    }
}

fn nodes_text(what: &str, nodes: &[NodeId]) -> String {
    let list: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
    match nodes.len() {
        1 => format!("{what} {}", list.join(", ")),
        _ => format!("{what}s {}", list.join(", ")),
    }
}

fn zone_name(map: &ZoneMap, zone: zonal_types::ZoneId) -> String {
    let found = map.zones.iter().find(|known| known.id == zone);
    found.map_or(String::new(), |zone| zone.name.clone())
}

fn print(map: &ZoneMap, plan: &JobPlan, found: &CellAgents) {
    for node in &plan.nodes {
        let ranks: Vec<String> = node.ranks.iter().map(u32::to_string).collect();
        let agent = &node.agent;
        let standby = if agent.is_standby { ", standby" } else { "" };
        console::line(format_args!(
            "zone {} ({}), {}{standby}: rank {}",
            agent.zone,
            zone_name(map, agent.zone),
            agent.address,
            ranks.join(", ")
        ));
    }
    console::line(format_args!("because {}", plan.explanation));
    for (node, reason) in &found.missing {
        console::line(format_args!("left out: node {node}: {reason}"));
    }
}

fn to_json(map: &ZoneMap, plan: &JobPlan, found: &CellAgents) -> Value {
    let nodes = plan.nodes.iter().map(|node| {
        json!({
            "node": node.agent.node.0,
            "address": node.agent.address.tcp.to_string(),
            "zone": node.agent.zone.0,
            "zone_name": zone_name(map, node.agent.zone),
            "standby": node.agent.is_standby,
            "ranks": node.ranks,
        })
    });
    let missing = found.missing.iter();
    let missing = missing.map(|(node, reason)| json!({"node": node.0, "reason": reason}));
    json!({
        "nodes": nodes.collect::<Vec<_>>(),
        "explanation": plan.explanation,
        "left_out": missing.collect::<Vec<_>>(),
        "map_version": map.version.0,
    })
}
