//! The cell of a testbed: a folder with config, store and credential for each node that serves.
//!
//! The first node of each rack has its zone's metadata server. The first of all also has the
//! manager. With replicas, the first nodes of each rack have those of its zone's shard; with
//! `--spread-replicas` those of the shards of different zones. Managers are spread over the racks.
//! The first `storage_nodes` of each rack have a target. Each node has an agent.
//!
//! Connections prove who they are and then go in the clear: nobody else can reach the namespaces,
//! and two cores have no time to encrypt.

use super::plan::{NodePlace, TestbedPlan};
use super::shape::TestbedShape;
use crate::cell::folder::{CellFile, CellFolder, replace};
use crate::cell::keyring::{COMMANDS, Keyring};
use crate::exit::{FAILED, Failure};
use anyhow::Context;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use zonal_disk::trusted_paths;
use zonal_net::{ServerRoles, SubjectKind};
use zonal_server::NodeConfig;
use zonal_types::{CellId, NodeId};

/// Port of all servers.
const PORT: u16 = 7100;
/// Port of the metadata server beside the manager.
const META_PORT: u16 = 7101;
/// Port for metrics, on a node's loopback.
const ADMIN_PORT: u16 = 7190;
/// Sizes of a store: 16 of them share two cores and one disk.
const STORE: &str = "log = \"16 MiB\"\noverlay = \"8 MiB\"\ncache = \"32 MiB\"\n";
/// Term of credentials.
const TERM: Duration = Duration::from_secs(365 * 24 * 3600);
/// Credential of commands and mounts.
pub const KEY_FILE: &str = "cell.key";
/// Credential of a node.
const NODE_KEY_FILE: &str = "node.key";
/// Threads that format stores.
const FORMATTERS: usize = 4;

/// A server to be: its node, ids and roles.
struct ServerPlan {
    place: NodePlace,
    nodes: Vec<NodeId>,
    roles: ServerRoles,
    /// The zone whose shard it has a replica of.
    meta_zone: u16,
    target: u32,
}

fn servers(plan: &TestbedPlan, shape: &TestbedShape) -> Vec<ServerPlan> {
    let places = plan.places();
    let managers = manager_places(plan, shape.replicas);
    let mut beside_manager = (u32::try_from(places.len()).unwrap_or(u32::MAX) + 1..).map(NodeId);
    let mut target = 0;
    let mut servers = Vec::new();
    for (id, place) in (1..).map(NodeId).zip(places) {
        let roles = ServerRoles {
            manager: managers.contains(&place),
            meta: place.index <= shape.replicas,
            storage: place.index <= shape.storage_nodes,
            agent: true,
        };
        target += u32::from(roles.storage);
        let meta = (roles.manager && roles.meta).then(|| beside_manager.next());
        servers.push(ServerPlan {
            place,
            nodes: std::iter::once(id).chain(meta.flatten()).collect(),
            roles,
            meta_zone: match shape.spread_replicas {
                true => (place.rack + place.index - 2) % plan.racks + 1,
                false => place.rack,
            },
            target,
        });
    }
    servers
}

/// The nodes of the managers: the first ones of the racks, then the second ones.
fn manager_places(plan: &TestbedPlan, replicas: u16) -> Vec<NodePlace> {
    let place = |number| NodePlace {
        rack: number % plan.racks + 1,
        index: number / plan.racks + 1,
    };
    (0..replicas).map(place).collect()
}

/// Addresses of the managers.
pub fn managers(plan: &TestbedPlan, replicas: u16) -> Vec<SocketAddr> {
    let places = manager_places(plan, replicas).into_iter();
    let addresses = places.map(|place| SocketAddr::from((place.address(), PORT)));
    addresses.collect()
}

/// The managers as `--cell` takes them.
pub fn managers_named(plan: &TestbedPlan, replicas: u16) -> String {
    let managers = managers(plan, replicas);
    let named: Vec<String> = managers.iter().map(SocketAddr::to_string).collect();
    named.join(",")
}

fn config(cell: CellId, plan: &TestbedPlan, server: &ServerPlan, shape: &TestbedShape) -> String {
    let address = server.place.address();
    let managers = managers(plan, shape.replicas);
    let named: Vec<String> = managers.iter().map(|of| format!("\"{of}\"")).collect();
    let replicated = match shape.replicas {
        1 => "",
        _ => "replicated = true\n",
    };
    let zone = server.place.rack;
    let mut text = format!(
        "# Written by `zonal testbed up`.\n\
         cell = \"{cell}\"\nnode = {}\nlisten = \"{address}:{PORT}\"\n\
         manager_addresses = [{}]\nkey_file = \"{NODE_KEY_FILE}\"\ntransport = \"plain\"\n\
         shares_machine = true\n\n\
         [zone]\nid = {zone}\nname = \"zone{zone}\"\n\n\
         [admin]\nlisten = \"127.0.0.1:{ADMIN_PORT}\"\n",
        server.nodes[0],
        named.join(", "),
    );
    // Writing to a String cannot fail.
    let mut add = |part: String| {
        let _ = write!(text, "\n{part}");
    };
    if server.roles.manager {
        let replicas = shape.replicas;
        add(format!(
            "[manager]\n{replicated}replicas = {replicas}\n{STORE}"
        ));
    }
    if server.roles.meta {
        let beside = match server.nodes.get(1) {
            Some(node) => format!("node = {node}\nlisten = \"{address}:{META_PORT}\"\n"),
            None => String::new(),
        };
        let of_zone = match server.meta_zone {
            own if own == zone => String::new(),
            other => format!("of_zone = {other}\n"),
        };
        add(format!("[meta]\n{replicated}{of_zone}{beside}{STORE}"));
    }
    if server.roles.storage {
        add(format!(
            "[storage]\ntarget = {}\ncapacity = \"{}\"\nsegment = \"64 MiB\"\n{STORE}",
            server.target, shape.capacity
        ));
    }
    if server.roles.agent {
        // Commands on a testbed are root's.
        add("[agent]\nuser_min = 0\n".to_owned());
    }
    text
}

/// Formats all stores, a few at a time.
fn format_all(nodes: &[NodeConfig]) -> anyhow::Result<()> {
    let next = AtomicUsize::new(0);
    let work = || -> anyhow::Result<()> {
        while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
            zonal_server::server::format(node)
                .with_context(|| format!("format {}", node.path.display()))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..FORMATTERS).map(|_| scope.spawn(work)).collect();
        let mut results = threads.into_iter().map(|thread| {
            let joined = thread.join();
            joined.unwrap_or_else(|_panic| Err(Failure::new(FAILED, "formatting panicked").into()))
        });
        results.find(Result::is_err).unwrap_or(Ok(()))
    })
}

/// Makes the cell in `dir`.
pub fn make(dir: &Path, plan: &TestbedPlan, shape: &TestbedShape) -> anyhow::Result<CellFolder> {
    let mut random = [0; 16];
    getrandom::fill(&mut random).map_err(|error| anyhow::anyhow!("random bytes: {error}"))?;
    let cell = CellId(random);
    let keyring = Keyring::make(trusted_paths::make(dir)?, cell)?;
    let servers = servers(plan, shape);
    for server in &servers {
        let folder = dir.join(server.place.name());
        trusted_paths::make(&folder)?;
        let kind = SubjectKind::Server {
            nodes: server.nodes.clone(),
            roles: server.roles,
        };
        keyring.issue(kind, TERM, &folder.join(NODE_KEY_FILE))?;
        replace(
            &folder.join("node.toml"),
            &config(cell, plan, server, shape),
        )?;
    }
    let name = COMMANDS.to_owned();
    keyring.issue(SubjectKind::Admin { name }, TERM, &dir.join(KEY_FILE))?;
    let names = servers.iter().map(|server| server.place.name());
    let managers = managers(plan, shape.replicas);
    let folder = CellFolder {
        dir: dir.to_owned(),
        file: CellFile {
            cell: cell.to_string(),
            manager: managers[0],
            other_managers: managers[1..].to_vec(),
            key_file: Some(KEY_FILE.into()),
            nodes: names.collect(),
        },
    };
    format_all(&folder.nodes()?)?;
    folder.save()?;
    Ok(folder)
}

/// Log of a node's mount.
pub fn mount_log(cell: &Path, node: NodePlace) -> PathBuf {
    cell.join(format!("{}.mount.log", node.name()))
}

/// Conditions of the links between a node and all others.
pub fn condition_file(cell: &Path, node: NodePlace) -> PathBuf {
    cell.join(format!("{}.links", node.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::shape::LinkRate;
    use zonal_server::units::ByteSize;
    use zonal_testkit::Scratch;

    fn shape(replicas: u16) -> TestbedShape {
        TestbedShape {
            racks: 2,
            nodes: 3,
            storage_nodes: 2,
            replicas,
            spread_replicas: false,
            node_rate: LinkRate(1_000_000),
            uplink_rate: LinkRate(1_000_000),
            capacity: ByteSize(1 << 30),
        }
    }

    /// Nodes of a testbed with their roles.
    fn roles(replicas: u16) -> Vec<String> {
        let shape = shape(replicas);
        let plan = TestbedPlan {
            id: "0123456789".to_owned(),
            racks: 2,
            nodes: 3,
        };
        let scratch = Scratch::new("testbed-configs");
        let mut found = Vec::new();
        for server in servers(&plan, &shape) {
            let path = scratch.join("node.toml");
            let text = config(CellId([7; 16]), &plan, &server, &shape);
            std::fs::write(&path, text).unwrap();
            let configs = NodeConfig::load_all(&[path]).unwrap();
            let roles: Vec<&str> = configs.iter().flat_map(NodeConfig::roles).collect();
            found.push(format!("{} {}", server.place.name(), roles.join(",")));
            let zones = configs.iter().map(|node| node.zone.number().0);
            assert!(zones.into_iter().all(|zone| zone == server.place.rack));
        }
        found
    }

    #[test]
    fn configs_of_all_nodes_are_valid_and_have_their_roles() {
        assert_eq!(
            roles(1),
            [
                "r1n1 manager,storage,agent,meta",
                "r1n2 storage,agent",
                "r1n3 agent",
                "r2n1 meta,storage,agent",
                "r2n2 storage,agent",
                "r2n3 agent"
            ]
        );
        assert_eq!(
            roles(3),
            [
                "r1n1 manager,storage,agent,meta",
                "r1n2 manager,storage,agent,meta",
                "r1n3 meta,agent",
                "r2n1 manager,storage,agent,meta",
                "r2n2 meta,storage,agent",
                "r2n3 meta,agent"
            ]
        );
    }
}
