//! `zonal shard recover`: goes on with one replica of a group whose majority is gone for good.

use crate::console;
use crate::exit::{Failure, NOT_FOUND, REFUSED};
use serde_json::json;
use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use zonal_server::NodeConfig;
use zonal_server::replica_recovery::ReplicaRecovery;
use zonal_types::NodeId;

/// Arguments of `zonal shard recover`.
#[derive(Debug, clap::Args)]
pub struct ShardRecovery {
    /// The node.toml of the survivor, whose server is stopped
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The node, where the file has several
    #[arg(long, value_name = "NODE")]
    node: Option<u32>,
    /// Go on with this replica, whatever only the lost ones had
    #[arg(long)]
    accept_loss: bool,
    /// Do not ask again on a terminal
    #[arg(long)]
    yes: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
}

impl ShardRecovery {
    pub fn run(self) -> anyhow::Result<()> {
        let (node, replica) = self.replica()?;
        let (voters, learners) = replica.members();
        let (last, committed) = replica.entries();
        let lost: Vec<NodeId> = voters.iter().copied().filter(|one| *one != node).collect();
        let written = replica.written().map(|time| console::ago(seconds(time)));
        let written = written.unwrap_or_else(|| "at an unknown time".to_owned());
        if lost.is_empty() {
            let text = format!("node {node} has the only vote of its shard: nothing is to be done");
            return Err(Failure::new(REFUSED, text).hint("start its server").into());
        }
        let numbers = |nodes: &[NodeId]| {
            let numbers: Vec<String> = nodes.iter().map(NodeId::to_string).collect();
            numbers.join(", ")
        };
        if !self.json {
            console::line(format_args!(
                "node {node}: votes are with nodes {}, learners: {}",
                numbers(&voters),
                if learners.is_empty() {
                    "none".to_owned()
                } else {
                    numbers(&learners)
                }
            ));
            console::line(format_args!(
                "its last entry is {last}, known as committed up to {committed}, written {written}"
            ));
            console::line(format_args!(
                "lost may be: every change behind entry {last} that nodes {} have acknowledged \
                 without this one, and locks and sessions of their last seconds",
                numbers(&lost)
            ));
        }
        let answer = |record: Option<&Path>| {
            let ids = |nodes: &[NodeId]| nodes.iter().map(|one| one.0).collect::<Vec<_>>();
            json!({
                "node": node.0,
                "voters": ids(&voters),
                "learners": ids(&learners),
                "lost": ids(&lost),
                "last_entry": last,
                "committed_entry": committed,
                "record": record.map(|record| record.display().to_string()),
            })
        };
        self.ask(node)
            .inspect_err(|_refused| self.show(|| answer(None)))?;
        let line = format!(
            "{}: node {node} goes on alone behind entry {last} (committed {committed}); lost: {}",
            seconds(SystemTime::now()),
            numbers(&lost)
        );
        replica.make_only_member(&line)?;
        let record = replica.record();
        self.show(|| answer(Some(&record)));
        if self.json {
            return Ok(());
        }
        console::line(format_args!(
            "node {node} has the only vote now; written down in {}",
            console::path(&record)
        ));
        console::line(format_args!(
            "next: start its server, then `zonal shard remove SHARD NODE` for nodes {}",
            numbers(&lost)
        ));
        Ok(())
    }

    /// Prints the answer where JSON is asked for. `record` is null where nothing was changed.
    fn show(&self, answer: impl FnOnce() -> serde_json::Value) {
        if self.json {
            console::json(answer());
        }
    }

    /// Refuses without consent.
    fn ask(&self, node: NodeId) -> anyhow::Result<()> {
        if !self.accept_loss {
            let text = "nothing is changed without --accept-loss";
            return Err(Failure::new(REFUSED, text)
                .hint("where one more server can be brought back, a majority needs no recovery")
                .into());
        }
        if !self.yes && !self.json && std::io::stdin().is_terminal() {
            console::note(format_args!("type the node's number, {node}, to go on: "));
            let mut said = String::new();
            std::io::stdin().lock().read_line(&mut said)?;
            if said.trim() != node.to_string() {
                return Err(Failure::new(REFUSED, "nothing is changed").into());
            }
        }
        Ok(())
    }

    fn replica(&self) -> anyhow::Result<(NodeId, ReplicaRecovery)> {
        let nodes = NodeConfig::load(&self.config).map_err(zonal_server::ServerError::from)?;
        for config in &nodes {
            if self.node.is_some_and(|wanted| wanted != config.node.0) {
                continue;
            }
            if let Some(replica) = ReplicaRecovery::open(config)? {
                return Ok((config.node, replica));
            }
        }
        let text = format!(
            "{} has no node with a replica of a group",
            console::path(&self.config)
        );
        Err(Failure::new(NOT_FOUND, text)
            .hint("a node with `replicated = true` that has joined its group")
            .into())
    }
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_secs()).unwrap_or(i64::MAX)
}
