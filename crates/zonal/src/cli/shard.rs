//! `zonal shard`: shows shards with their replicas, and changes these.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::cli::target_remove::edit_map;
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND, REFUSED};
use serde_json::{Value, json};
use zonal_types::{Codec, NodeId, ShardId, ZoneId};
use zonal_wire::meta::ShardLoad;
use zonal_wire::{
    Header, MetaReply, MetaRequest, ReplicaPart, ReplicaReply, ReplicaReport, ReplicaRequest,
    Service,
};
use zonal_zonemap::{MapEdit, Shard, ZoneMap};

/// List metadata shards with their load and replicas, add shards, and change replicas
///
/// A zone has one shard or several (`zonal up --shards`): each first-level directory is in one of
/// them, a new one in the least loaded. A shard has its names and attributes on one server, or on
/// three or five replicas (`zonal up --replicas`). One of them leads; a majority must be up.
#[derive(Debug, clap::Subcommand)]
pub enum ShardCommand {
    /// List shards: load, replicas, the one that leads, and how many entries the others lack
    ///
    /// The load is the number of first-level directories, of inodes, and of requests in a second. A
    /// dash is where the shard has not reported for 10 s, and for the root's shard.
    Ls {
        #[command(flatten)]
        cell: CellArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Let a zone have one shard more
    ///
    /// A server with `[meta]` and a new node number, started in the zone, then gets a shard of its
    /// own. New first-level directories go there as long as it has the fewest inodes.
    Add {
        #[command(flatten)]
        cell: CellArgs,
        /// The zone
        zone: u16,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Take a node's replica out of its shard
    ///
    /// A server with a new node of the same zone then takes its place by itself: `[meta]` with
    /// `replicated = true`. So does the same node at its next start, unless its node.toml has no
    /// `[meta]` any more.
    Remove {
        #[command(flatten)]
        cell: CellArgs,
        /// The shard
        shard: u32,
        /// The node
        node: u32,
    },
    /// Take a node's replica out, and wait until a new node's replica votes in its place
    ///
    /// The new node is of the same zone and was never in the cell: start its server with `[meta]`
    /// and `replicated = true`, before the wait ends. The shard serves meanwhile. Refused where the
    /// replicas that remain are no majority. Repeat the command with NEW to wait on.
    Replace(super::shard_replace::ReplicaChange),
    /// Make a stopped server's replica the only one, where the others are gone for good
    ///
    /// Changes that only the lost replicas had are lost. Of several survivors choose the one with
    /// the highest last entry: without --accept-loss this command shows it and changes nothing.
    /// Then start the server, and take the lost nodes out with `zonal shard remove`. A lost replica
    /// that comes back on its old store is refused.
    Recover(super::shard_recover::ShardRecovery),
    /// Move a first-level directory with all below it to another shard of its zone
    ///
    /// Programs go on using it: their requests wait for a moment at the end of the copy. Nothing
    /// is lost where a server is killed at any step: the move begins again, or ends. A directory
    /// with files that were renamed or linked to or from another one does not move.
    Move(super::shard_move::SubtreeMove),
    /// Let a node's replica lead its shard
    Lead {
        #[command(flatten)]
        cell: CellArgs,
        /// The shard
        shard: u32,
        /// The node
        node: u32,
    },
}

/// A replica, as its own server and its leader tell.
pub(super) struct ReplicaState {
    node: NodeId,
    /// The answer of its server; `None`: it gave none.
    answer: Option<ReplicaReply>,
}

impl ShardCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Ls { cell, json } => list(&cell.open()?, json),
            Self::Add { cell, zone, json } => {
                super::shard_add::add(&cell.open()?, ZoneId(zone), json)
            }
            Self::Remove { cell, shard, node } => {
                remove(&cell.open()?, ShardId(shard), NodeId(node))
            }
            Self::Replace(replace) => replace.run(),
            Self::Recover(recover) => recover.run(),
            Self::Move(order) => order.run(),
            Self::Lead { cell, shard, node } => lead(&cell.open()?, ShardId(shard), NodeId(node)),
        }
    }
}

fn ask(
    cell: &CellHandle,
    map: &ZoneMap,
    node: NodeId,
    request: &ReplicaRequest,
) -> anyhow::Result<ReplicaReply> {
    let to = CellHandle::address(map, node)?;
    cell.call(to, Service::Replica, request.name(), &request.to_bytes())
}

pub(super) fn states(cell: &CellHandle, map: &ZoneMap, shard: &Shard) -> Vec<ReplicaState> {
    let request = ReplicaRequest::Status { shard: shard.id };
    // At once: a server that is gone takes its time.
    std::thread::scope(|scope| {
        let asked = shard.replicas.iter().map(|node| {
            let request = &request;
            (
                *node,
                scope.spawn(move || ask(cell, map, *node, request).ok()),
            )
        });
        let asked: Vec<_> = asked.collect();
        asked
            .into_iter()
            .map(|(node, asked)| ReplicaState {
                node,
                answer: asked.join().ok().flatten(),
            })
            .collect()
    })
}

/// The leader with the newest term, and what it knows of the others.
pub(super) fn leader(states: &[ReplicaState]) -> Option<(NodeId, u64, u64, Vec<ReplicaReport>)> {
    let leads = states.iter().filter_map(|state| match &state.answer {
        Some(ReplicaReply::Status {
            part: ReplicaPart::Leads,
            term,
            committed,
            others,
            ..
        }) => Some((state.node, *term, *committed, others.clone())),
        _ => None,
    });
    leads.max_by_key(|(_, term, ..)| *term)
}

fn part(answer: Option<&ReplicaReply>) -> &'static str {
    match answer {
        Some(ReplicaReply::Status { part, .. }) => match part {
            ReplicaPart::Leads => "leads",
            ReplicaPart::Follows => "follows",
            ReplicaPart::Seeks => "seeks",
            ReplicaPart::Starts => "starts",
            ReplicaPart::Empty => "empty",
            ReplicaPart::Superseded => "superseded",
        },
        Some(_) => "none",
        None => "silent",
    }
}

/// Loads of the zones' shards, as the root's shard knows them; none where it does not answer.
fn loads(cell: &CellHandle, map: &ZoneMap) -> Vec<ShardLoad> {
    let Some(root) = map.shard(ShardId(0)) else {
        return Vec::new();
    };
    let mut header = Header::request(Service::Meta, cell.id);
    header.epoch = root.epoch;
    match cell.call_shard(map, root, header, &MetaRequest::GetShardLoads) {
        Ok(MetaReply::ShardLoads { loads }) => loads,
        Ok(_) | Err(_) => Vec::new(),
    }
}

fn list(cell: &CellHandle, as_json: bool) -> anyhow::Result<()> {
    let map = cell.map()?;
    let loads = loads(cell, &map);
    let load_of = |shard: &Shard| loads.iter().find(|load| load.shard == shard.id).copied();
    let all: Vec<(&Shard, Vec<ReplicaState>)> = map
        .shards
        .iter()
        .map(|shard| match shard.is_replicated() {
            true => (shard, states(cell, &map, shard)),
            false => (shard, Vec::new()),
        })
        .collect();
    if as_json {
        let shards: Vec<Value> = all
            .iter()
            .map(|(shard, states)| to_json(shard, states, load_of(shard)))
            .collect();
        console::json(format_args!("{:#}", json!({ "shards": shards })));
        return Ok(());
    }
    let header = [
        "SHARD", "ZONE", "DIRS", "INODES", "REQ/S", "NODE", "PART", "VOTES", "LAG",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (shard, states) in &all {
        let name = match shard.id.0 {
            0 => "root".to_owned(),
            id => id.to_string(),
        };
        let load = load_of(shard);
        let dashed = |number: Option<u64>| number.map_or_else(|| "-".into(), |of| of.to_string());
        let row = |node: NodeId, rest: [String; 3]| {
            let mut row = vec![
                name.clone(),
                shard.zone.to_string(),
                dashed(load.map(|load| load.directories)),
                dashed(load.and_then(|load| load.inodes)),
                dashed(load.and_then(|load| load.requests_per_second)),
                node.to_string(),
            ];
            row.extend(rest);
            row
        };
        if states.is_empty() {
            rows.push(row(shard.node, ["alone", "-", "-"].map(str::to_owned)));
        }
        let leader = leader(states);
        for state in states {
            let known = leader.iter().flat_map(|(.., others)| others);
            let known = known.clone().find(|one| one.node == state.node);
            let is_leader = leader
                .as_ref()
                .is_some_and(|(node, ..)| *node == state.node);
            let votes = match known {
                Some(known) if known.votes => "yes",
                None if is_leader => "yes",
                Some(_) => "not yet",
                None => "-",
            };
            let lag = known.and_then(|known| known.lag);
            let lag = lag.map_or_else(|| "-".to_owned(), |lag| lag.to_string());
            let part = part(state.answer.as_ref()).to_owned();
            rows.push(row(state.node, [part, votes.to_owned(), lag]));
        }
    }
    console::table(&rows);
    Ok(())
}

fn to_json(shard: &Shard, states: &[ReplicaState], load: Option<ShardLoad>) -> Value {
    let leader = leader(states);
    let replicas: Vec<Value> = states
        .iter()
        .map(|state| {
            let known = leader.iter().flat_map(|(.., others)| others);
            let known = known.clone().find(|one| one.node == state.node);
            json!({
                "node": state.node.0,
                "part": part(state.answer.as_ref()),
                "votes": known.map(|known| known.votes),
                "lag": known.and_then(|known| known.lag),
            })
        })
        .collect();
    json!({
        "shard": shard.id.0,
        "zone": shard.zone.0,
        "directories": load.map(|load| load.directories),
        "inodes": load.and_then(|load| load.inodes),
        "requests_per_second": load.and_then(|load| load.requests_per_second),
        "leader": match shard.is_replicated() {
            true => leader.as_ref().map(|(node, ..)| node.0),
            false => Some(shard.node.0),
        },
        "term": leader.as_ref().map(|(_, term, ..)| term),
        "committed": leader.as_ref().map(|(_, _, committed, _)| committed),
        "replicas": replicas,
    })
}

pub(super) fn replicated(map: &ZoneMap, shard: ShardId, node: NodeId) -> anyhow::Result<&Shard> {
    let hint = "`zonal shard ls` shows shards and replicas";
    let Some(known) = map.shard(shard) else {
        let failure = Failure::new(NOT_FOUND, format!("the cell has no shard {shard}"));
        return Err(failure.hint(hint).into());
    };
    if !known.replicas.contains(&node) {
        let text = format!("node {node} has no replica of shard {shard}");
        return Err(Failure::new(NOT_FOUND, text).hint(hint).into());
    }
    if !known.is_replicated() {
        let text = format!("shard {shard} has one replica only");
        return Err(Failure::new(REFUSED, text).hint(hint).into());
    }
    Ok(known)
}

/// Refuses to take a replica out where no majority of the others is up.
pub(super) fn refuse_loss_of_majority(
    cell: &CellHandle,
    map: &ZoneMap,
    known: &Shard,
    node: NodeId,
) -> anyhow::Result<()> {
    let remain = known.replicas.len() - 1;
    let others = states(cell, map, known);
    let is_up = |state: &&ReplicaState| {
        let part = part(state.answer.as_ref());
        state.node != node && (part == "leads" || part == "follows")
    };
    let up = others.iter().filter(is_up).count();
    // A replica without a vote is missed by nobody: a new one, or one that is lost. A leader that
    // was just recovered does not know the others yet.
    let votes = leader(&others).is_none_or(|(leading, .., known)| {
        leading == node || known.iter().any(|one| one.node == node && one.votes)
    });
    if votes && up * 2 <= remain {
        let text = format!(
            "of the {remain} replicas that would remain, {up} are up, which is no majority"
        );
        return Err(Failure::new(REFUSED, text)
            .hint("start their servers first")
            .into());
    }
    Ok(())
}

fn remove(cell: &CellHandle, shard: ShardId, node: NodeId) -> anyhow::Result<()> {
    let map = cell.map()?;
    let known = replicated(&map, shard, node)?;
    refuse_loss_of_majority(cell, &map, known, node)?;
    let replicas: Vec<NodeId> = known
        .replicas
        .iter()
        .copied()
        .filter(|one| *one != node)
        .collect();
    let map = edit_map(cell, &map, MapEdit::SetReplicas { shard, replicas })?;
    let left = map.shard(shard).map_or(0, |shard| shard.replicas.len());
    console::line(format_args!(
        "node {node} leaves shard {shard}, which has {left} {} now",
        if left == 1 { "replica" } else { "replicas" }
    ));
    if left < 3 {
        console::line("none of them may die; start a new node with `[meta] replicated = true`");
    }
    Ok(())
}

fn lead(cell: &CellHandle, shard: ShardId, node: NodeId) -> anyhow::Result<()> {
    let map = cell.map()?;
    let known = replicated(&map, shard, node)?;
    let states = states(cell, &map, known);
    let Some((leader, ..)) = leader(&states) else {
        let text = format!("no replica of shard {shard} leads");
        return Err(Failure::new(FAILED, text)
            .hint("a majority must be up")
            .into());
    };
    if leader == node {
        console::line(format_args!("node {node} leads shard {shard} already"));
        return Ok(());
    }
    match ask(
        cell,
        &map,
        leader,
        &ReplicaRequest::HandOver { shard, to: node },
    )? {
        ReplicaReply::Done => {
            console::line(format_args!(
                "node {leader} hands shard {shard} over to node {node}"
            ));
            Ok(())
        }
        other => {
            let text = format!("node {leader} answers {}", other.name());
            Err(Failure::new(REFUSED, text)
                .hint("the new leader must have a vote")
                .into())
        }
    }
}
