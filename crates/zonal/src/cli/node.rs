//! `zonal node`: lists nodes, lets them join and removes them.

use super::drain::DrainArgs;
use super::edit_args::EditArgs;
use super::node_join;
use super::target_remove::{self, TargetUse, edit_map};
use super::zone_map::or_dash;
use crate::cell::connection::CellArgs;
use crate::cell::folder::CellFolder;
use crate::cell::processes::{self, ServerProcess};
use crate::console;
use crate::exit::{Failure, NOT_FOUND, REFUSED};
use serde_json::{Value, json};
use zonal_server::NodeConfig;
use zonal_types::{NodeId, ShardId, TargetId};
use zonal_zonemap::{MapEdit, Node, ZoneMap};

/// List the nodes of a cell, let new ones join, remove them
#[derive(Debug, clap::Subcommand)]
pub enum NodeCommand {
    /// List nodes: zone, address, roles, shards, targets, state in the zone map
    Ls {
        #[command(flatten)]
        cell: CellArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    Join(node_join::JoinArgs),
    /// Move all objects of a node's targets to other targets of its zone
    ///
    /// As `zonal target drain`, for each of them.
    Drain {
        #[command(flatten)]
        drain: DrainArgs,
        /// The node
        node: u32,
    },
    /// Remove a node from the cell
    ///
    /// Its empty targets go with it. While it has a shard, a replica, or a target with files, it is
    /// refused with exit code 5, and nothing changes. After the removal its stores are
    /// refused from then on, and its number is free again. Stop its server, and revoke its
    /// credential (`zonal key revoke "node N"`).
    Remove {
        #[command(flatten)]
        edit: EditArgs,
        /// The node
        node: u32,
    },
}

impl NodeCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Ls { cell, json } => {
                list(&cell.open()?.map()?, json);
                Ok(())
            }
            Self::Join(join) => join.run(),
            Self::Drain { drain, node } => drain.run(|map| Ok(targets_of(map, NodeId(node)))),
            Self::Remove { edit, node } => remove(&edit, NodeId(node)),
        }
    }
}

fn targets_of(map: &ZoneMap, node: NodeId) -> Vec<TargetId> {
    let targets = map.targets.iter().filter(|target| target.node == node);
    targets.map(|target| target.id).collect()
}

fn shards_of(map: &ZoneMap, node: NodeId) -> Vec<ShardId> {
    let shards = map.shards.iter();
    let shards = shards.filter(|shard| shard.replicas.contains(&node));
    shards.map(|shard| shard.id).collect()
}

/// The roles of a node that the zone map tells. It does not tell which nodes have an agent.
fn roles(map: &ZoneMap, node: NodeId) -> Vec<&'static str> {
    let has_shard = shards_of(map, node).iter().any(|shard| shard.0 != 0);
    let roles = [
        ("manager", map.managers.contains(&node)),
        ("meta", has_shard),
        ("storage", !targets_of(map, node).is_empty()),
    ];
    let roles = roles.into_iter().filter(|(_, has)| *has);
    roles.map(|(role, _)| role).collect()
}

fn list(map: &ZoneMap, as_json: bool) {
    if as_json {
        let to_json = |node: &Node| {
            json!({
                "id": node.id.0,
                "zone": node.zone.0,
                "address": node.address,
                "roles": roles(map, node.id),
                "shards": shards_of(map, node.id).iter().map(|shard| shard.0).collect::<Vec<_>>(),
                "targets": targets_of(map, node.id).iter().map(|target| target.0).collect::<Vec<_>>(),
                "state": node.state.name(),
            })
        };
        let nodes: Vec<Value> = map.nodes.iter().map(to_json).collect();
        let shown = json!({ "map_version": map.version.0, "nodes": nodes });
        console::json(format_args!("{shown:#}"));
        return;
    }
    let header = [
        "NODE", "ZONE", "ADDRESS", "ROLES", "SHARDS", "TARGETS", "STATE",
    ];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    rows.extend(map.nodes.iter().map(|node| {
        let shards = shards_of(map, node.id).into_iter();
        let shards = shards.map(|shard| match shard.0 {
            0 => "root".to_owned(),
            id => id.to_string(),
        });
        let targets = targets_of(map, node.id).into_iter();
        let targets = targets.map(|target| target.to_string());
        let zone = map.zone(node.zone).map_or("", |zone| &zone.name);
        vec![
            node.id.to_string(),
            format!("{} {zone}", node.zone),
            node.address.clone(),
            or_dash(roles(map, node.id).join(", ")),
            or_dash(shards.collect::<Vec<_>>().join(", ")),
            or_dash(targets.collect::<Vec<_>>().join(", ")),
            node.state.name().to_lowercase(),
        ]
    }));
    console::table(&rows);
}

fn remove(args: &EditArgs, node: NodeId) -> anyhow::Result<()> {
    let (cell, map) = args.open()?;
    if map.node(node).is_none() {
        let failure = Failure::new(NOT_FOUND, format!("the cell has no node {node}"));
        return Err(failure.hint("`zonal node ls` lists the nodes").into());
    }
    let targets = targets_of(&map, node);
    let held = match shards_of(&map, node).is_empty() && !map.managers.contains(&node) {
        true => None,
        false => map.needs_node(node),
    };
    if args.preview {
        let mut lines = vec![format!("node {node} leaves the cell")];
        lines.extend(held.map(|held| format!("it would be refused: it has {held}")));
        for target in targets {
            lines.extend(TargetUse::of(&cell, &map, target)?.lines(args.rate()));
        }
        args.previews(&map, &lines);
        return Ok(());
    }
    if let Some(held) = held {
        let shard = shards_of(&map, node).first().map_or(0, |shard| shard.0);
        let failure = Failure::new(REFUSED, format!("node {node} has {held}"));
        return Err(failure
            .hint(match held.starts_with("a replica") {
                true => format!("`zonal shard remove {shard} {node}` takes the replica away"),
                false => "this node cannot be removed in this version".to_owned(),
            })
            .into());
    }
    let mut map = map;
    for target in targets {
        target_remove::remove(&cell, &map, target, false)?;
        console::line(format_args!("target {target} is out of the cell"));
        // The node goes with its last target.
        map = cell.map()?;
    }
    if map.node(node).is_some() {
        edit_map(&cell, &map, MapEdit::RemoveNode { node })?;
    }
    let is_stopped = match &cell.folder {
        Some(folder) => leave_folder(folder, node)?,
        None => false,
    };
    let stop = match is_stopped {
        true => "its server is stopped",
        false => "stop its server",
    };
    console::line(format_args!(
        "node {node} is out of the cell: {stop}, and revoke its credential (zonal key revoke \"node {node}\")"
    ));
    Ok(())
}

/// Stops the server of a removed node, where `zonal up` started it, and starts it no longer. False
/// where the folder has no server of this node alone.
fn leave_folder(folder: &CellFolder, node: NodeId) -> anyhow::Result<bool> {
    let _lock = CellFolder::lock(&folder.dir)?;
    let mut folder = CellFolder::open(&folder.dir)?;
    let is_alone = |nodes: &[NodeConfig]| nodes.iter().all(|own| own.node == node);
    let servers = folder.servers()?.into_iter();
    let Some((name, _)) = servers.into_iter().find(|(_name, nodes)| is_alone(nodes)) else {
        return Ok(false);
    };
    let process = ServerProcess {
        config: folder.config_path(&name),
        name: name.clone(),
    };
    if let Some(running) = process.running() {
        processes::stop(&[(running, name.clone())])?;
    }
    folder.file.nodes.retain(|kept| *kept != name);
    folder.save()?;
    Ok(true)
}
