//! `zonal shard replace`: takes a replica out of its shard, and waits until a new node's replica
//! votes in its place.

use super::shard::{ReplicaState, leader, refuse_loss_of_majority, replicated, states};
use crate::cell::connection::{CellArgs, CellHandle};
use crate::cli::target_remove::edit_map;
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND, REFUSED};
use serde_json::json;
use std::time::{Duration, Instant};
use zonal_types::{NodeId, ShardId};
use zonal_zonemap::{MapEdit, Shard, ZoneMap};

/// Pause between two looks at the group.
const LOOK: Duration = Duration::from_millis(500);

/// Arguments of `zonal shard replace`.
#[derive(Debug, clap::Args)]
pub struct ReplicaChange {
    #[command(flatten)]
    cell: CellArgs,
    /// The shard
    shard: u32,
    /// The node whose replica leaves
    old: u32,
    /// The node that takes the place; without it the first that does
    new: Option<u32>,
    /// Give up after this many seconds; the place stays free
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    wait: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// How far the new replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// No node has taken the place.
    Free,
    /// A node has, and its replica is not a voter yet; it lacks so many entries.
    Learns(NodeId, Option<u64>),
    /// Its replica votes.
    Votes(NodeId),
}

impl ReplicaChange {
    pub fn run(self) -> anyhow::Result<()> {
        let began = Instant::now();
        let cell = self.cell.open()?;
        let (shard, old) = (ShardId(self.shard), NodeId(self.old));
        let map = cell.map()?;
        let kept = self.free_the_place(&cell, &map)?;
        if !self.json {
            console::note(format_args!(
                "node {old} leaves shard {shard}; start a new node's server in the zone of the \
                 shard, with {} and `replicated = true`",
                if shard.0 == 0 { "[manager]" } else { "[meta]" }
            ));
        }
        let mut told = Progress::Free;
        let new = loop {
            let now = self.progress(&cell, &kept)?;
            if now != told && !self.json {
                tell(now);
            }
            told = now;
            if let Progress::Votes(new) = now {
                break new;
            }
            if began.elapsed().as_secs() >= self.wait {
                return Err(self.not_in_time(told).into());
            }
            std::thread::sleep(LOOK);
        };
        if self.json {
            let value = json!({ "shard": shard.0, "old": old.0, "new": new.0 });
            console::json(format_args!("{value}"));
        } else {
            console::line(format_args!(
                "node {new} has the place of node {old} in shard {shard}"
            ));
        }
        Ok(())
    }

    /// Takes the old replica out, unless that was done before; returns the others.
    fn free_the_place(&self, cell: &CellHandle, map: &ZoneMap) -> anyhow::Result<Vec<NodeId>> {
        let (shard, old) = (ShardId(self.shard), NodeId(self.old));
        let new = self.new.map(NodeId);
        if new == Some(old) {
            let text = format!("node {old} cannot take its own place");
            return Err(Failure::new(REFUSED, text)
                .hint("an empty store needs a new node number")
                .into());
        }
        let holds = |shard: &Shard, node| shard.replicas.contains(&node);
        let known = map.shard(shard);
        let is_in =
            |node: Option<NodeId>| known.zip(node).is_some_and(|(of, node)| holds(of, node));
        if is_in(new) && !is_in(Some(old)) {
            // A repetition: the new node is on its way.
            let of = known
                .map(|known| known.replicas.clone())
                .unwrap_or_default();
            return Ok(of.into_iter().filter(|node| Some(*node) != new).collect());
        }
        let known = replicated(map, shard, old)?;
        if is_in(new) {
            let text = format!(
                "node {} has a replica of shard {shard} already",
                self.new.unwrap_or(0)
            );
            return Err(Failure::new(REFUSED, text)
                .hint("the new node must be none of the shard's replicas")
                .into());
        }
        refuse_loss_of_majority(cell, map, known, old)?;
        let kept: Vec<NodeId> = known
            .replicas
            .iter()
            .copied()
            .filter(|one| *one != old)
            .collect();
        let replicas = kept.clone();
        edit_map(cell, map, MapEdit::SetReplicas { shard, replicas })?;
        Ok(kept)
    }

    /// How far the new replica is, with the shard's other replicas `kept`.
    fn progress(&self, cell: &CellHandle, kept: &[NodeId]) -> anyhow::Result<Progress> {
        let shard = ShardId(self.shard);
        // While a group elects a leader there is no answer.
        let Ok(map) = cell.map() else {
            return Ok(Progress::Free);
        };
        let Some(known) = map.shard(shard) else {
            return Err(Failure::new(NOT_FOUND, format!("shard {shard} is gone")).into());
        };
        let newcomer = known
            .replicas
            .iter()
            .copied()
            .find(|node| !kept.contains(node));
        let Some(newcomer) = newcomer else {
            return Ok(Progress::Free);
        };
        if self.new.is_some_and(|wanted| wanted != newcomer.0) {
            let text = format!("node {newcomer} has taken the place");
            return Err(Failure::new(REFUSED, text)
                .hint("`zonal shard ls` shows the replicas")
                .into());
        }
        Ok(progress_of(&states(cell, &map, known), newcomer))
    }

    fn not_in_time(&self, told: Progress) -> Failure {
        let text = match told {
            Progress::Free => format!("no node has taken the place in {} s", self.wait),
            Progress::Learns(node, _) | Progress::Votes(node) => {
                format!("node {node} has no vote after {} s", self.wait)
            }
        };
        Failure::new(FAILED, text).hint("the shard goes on; `zonal shard ls` shows its replicas")
    }
}

fn progress_of(states: &[ReplicaState], newcomer: NodeId) -> Progress {
    let leader = leader(states);
    if leader.as_ref().is_some_and(|(node, ..)| *node == newcomer) {
        return Progress::Votes(newcomer);
    }
    let others = leader.iter().flat_map(|(.., others)| others);
    let mut of_node = others.filter(|one| one.node == newcomer);
    match of_node.next() {
        Some(one) if one.votes => Progress::Votes(newcomer),
        one => Progress::Learns(newcomer, one.and_then(|one| one.lag)),
    }
}

fn tell(progress: Progress) {
    match progress {
        Progress::Free => console::note("the place is free"),
        Progress::Learns(node, None) => console::note(format_args!("node {node} has joined")),
        Progress::Learns(node, Some(lag)) => {
            console::note(format_args!("node {node} lacks {lag} entries"));
        }
        Progress::Votes(node) => console::note(format_args!("node {node} votes")),
    }
}
