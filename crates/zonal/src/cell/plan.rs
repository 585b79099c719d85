//! The plan of a new cell for `zonal up`: nodes with their ids, ports and configs.

use super::folder::{CellFile, CellFolder, replace};
use super::keyring::{AUTHORITY_FILE, COMMANDS, ISSUED_FILE, Keyring};
use crate::exit::{FAILED, Failure, REFUSED};
use anyhow::Context;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as SocketAddrUnix, UnixDatagram};
use std::path::Path;
use std::time::Duration;
use zonal_disk::trusted_paths::{self, PathRefusal};
use zonal_net::{ServerRoles, SubjectKind};
use zonal_server::units::ByteSize;
use zonal_types::{CellId, NodeId};

/// Range of ports for servers, below the kernel's range of ephemeral ports.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Shape of a new cell.
#[derive(Debug, Clone, Copy)]
pub struct CellShape {
    /// Number of zones.
    pub zones: u16,
    /// Storage servers in each zone.
    pub storage_nodes: u32,
    /// Replicas of each shard, each on a server of its own.
    pub replicas: u8,
    /// Shards of each zone.
    pub shards: u8,
    /// Capacity of each target, in bytes.
    pub capacity: ByteSize,
    /// Size of a segment, in bytes.
    pub segment: ByteSize,
    /// Whether to make an authority, and credentials for each node and for commands.
    pub key: bool,
    /// Whether storage nodes have an agent.
    pub agent: bool,
}

/// Highest number in a node's name: `--shards` times `--replicas`.
const NUMBER_MAX: u32 = 80;
/// File name of the commands' credential in the cell's folder.
const KEY_FILE: &str = "cell.key";
/// File name of a node's credential in the node's folder.
const NODE_KEY_FILE: &str = "node.key";
/// Term of these credentials.
const TERM: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Key files of a cell.
const KEY_FILES: [&str; 3] = [KEY_FILE, AUTHORITY_FILE, ISSUED_FILE];

/// File with the names of the nodes of a cell that is being made, one a line; removed when all is
/// complete.
const UNFINISHED: &str = "unfinished";

/// One node of the plan.
struct PlannedNode {
    name: String,
    zone: u16,
    kind: ServerRoles,
    roles: String,
}

/// A manager's part of a config: the root directory belongs to the user who makes the cell.
fn manager_role(shape: &CellShape) -> String {
    let mut counts = match shape.replicas {
        0 | 1 => String::new(),
        _ => "replicated = true\n".to_owned(),
    };
    for (key, count) in [("replicas", shape.replicas), ("shards", shape.shards)] {
        if count > 1 {
            let _infallible = writeln!(counts, "{key} = {count}");
        }
    }
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    if (uid, gid) == (0, 0) {
        return format!("[manager]\n{counts}");
    }
    format!("[manager]\n{counts}root_uid = {uid}\nroot_gid = {gid}\n")
}

fn nodes(shape: &CellShape) -> Vec<PlannedNode> {
    // Managers are spread over the zones.
    let managers = 1..=shape.replicas.max(1);
    let mut nodes: Vec<PlannedNode> = managers
        .map(|manager| PlannedNode {
            name: match manager {
                1 => "manager".into(),
                _ => format!("manager{manager}"),
            },
            zone: (u16::from(manager) - 1) % shape.zones.max(1) + 1,
            kind: ServerRoles {
                manager: true,
                ..ServerRoles::default()
            },
            roles: manager_role(shape),
        })
        .collect();
    for zone in 1..=shape.zones {
        // Nodes of one zone are alike: as they join, they fill one shard after the other.
        for number in 1..=u16::from(shape.replicas) * u16::from(shape.shards) {
            let roles = match shape.replicas {
                1 => "[meta]\n",
                _ => "[meta]\nreplicated = true\n",
            };
            nodes.push(PlannedNode {
                name: match number {
                    1 => format!("meta{zone}"),
                    _ => format!("meta{zone}-{number}"),
                },
                zone,
                kind: ServerRoles {
                    meta: true,
                    ..ServerRoles::default()
                },
                roles: roles.into(),
            });
        }
    }
    let mut target = 0;
    for zone in 1..=shape.zones {
        for index in 1..=shape.storage_nodes {
            target += 1;
            let mut roles = format!(
                "[storage]\ntarget = {target}\ncapacity = \"{}\"\nsegment = \"{}\"\n",
                shape.capacity, shape.segment
            );
            if shape.agent {
                // The cell's credentials are its maker's, who may run anything here.
                roles.push_str("\n[agent]\nuser_min = 0\n");
            }
            nodes.push(PlannedNode {
                name: format!("storage{zone}-{index}"),
                zone,
                kind: ServerRoles {
                    storage: true,
                    agent: shape.agent,
                    ..ServerRoles::default()
                },
                roles,
            });
        }
    }
    nodes
}

fn random() -> anyhow::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("random bytes: {error}"))?;
    Ok(bytes)
}

/// Reserves a port against other `zonal up` until a server binds it; false if it was reserved
/// before.
///
/// The reservation is an abstract socket name in the network name space, which lasts as long as
/// this process.
fn reserve(port: u16) -> bool {
    let name = SocketAddrUnix::from_abstract_name(format!("zonal-port-{port}"));
    let reserved = name.and_then(|name| UnixDatagram::bind_addr(&name));
    reserved.map(std::mem::forget).is_ok()
}

/// Finds free ports on loopback. All stay bound until all are found, so that none is given twice.
fn free_ports(count: usize, start: u16) -> anyhow::Result<Vec<SocketAddr>> {
    let mut held = Vec::new();
    let candidates = (start..PORTS.end).chain(PORTS.start..start);
    for port in candidates {
        if held.len() == count {
            break;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            && reserve(port)
        {
            held.push(listener);
        }
    }
    if held.len() < count {
        return Err(Failure::new(FAILED, format!("no {count} free ports on loopback")).into());
    }
    let addresses = held.iter().map(TcpListener::local_addr);
    Ok(addresses.collect::<Result<_, _>>()?)
}

/// Makes a new cell in `dir`, which is empty or missing: configs, formatted stores, `cell.toml`
/// last.
///
/// After a failure the partial cell is removed. If this process is killed, the next `zonal up`
/// removes it.
pub fn make(dir: &Path, shape: &CellShape) -> anyhow::Result<CellFolder> {
    let folder = trusted_paths::open(dir)?;
    remove_unfinished(&folder)?;
    let nodes = nodes(shape);
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    replace(&dir.join(UNFINISHED), &(names.join("\n") + "\n"))?;
    let made = make_in(dir, &nodes, shape.key).inspect_err(|_error| {
        // The next `zonal up` reports what could not be removed.
        let _ = remove_unfinished(&folder);
    })?;
    // Best effort: in a complete cell nobody reads this file.
    let _ = folder.unlink(UNFINISHED);
    Ok(made)
}

/// Whether a name is that of a temporary file left by an interrupted `zonal up`.
fn is_temporary_name(name: &str) -> bool {
    let of = |file: &str| {
        let chance = name
            .strip_prefix(file)
            .and_then(|rest| rest.strip_suffix(".new"));
        chance
            .and_then(|chance| chance.strip_prefix('.'))
            .is_some_and(|chance| {
                chance.len() == 16 && chance.bytes().all(|digit| digit.is_ascii_hexdigit())
            })
    };
    // Temporary names of the first versions had no random part.
    ["unfinished.new", "cell.new"].contains(&name) || of(UNFINISHED) || of("cell.toml")
}

/// Whether any plan has a node of this name.
fn is_planned(name: &str) -> bool {
    let number = |text: &str| {
        let number = text
            .parse::<u32>()
            .ok()
            .filter(|number| (1..=NUMBER_MAX).contains(number));
        // In the form of a plan: no sign, no leading zeros.
        number.is_some_and(|number| number.to_string() == text)
    };
    if let Some(zone) = name.strip_prefix("meta") {
        return match zone.split_once('-') {
            Some((zone, other)) => number(zone) && other != "1" && number(other),
            None => number(zone),
        };
    }
    let storage = name
        .strip_prefix("storage")
        .and_then(|rest| rest.split_once('-'));
    let is_manager = name
        .strip_prefix("manager")
        .is_some_and(|number| ["", "2", "3", "4", "5"].contains(&number));
    is_manager || storage.is_some_and(|(zone, index)| number(zone) && number(index))
}

/// Largest list of unfinished nodes that is read, in bytes.
const UNFINISHED_MAX: u64 = 64 << 10;

/// The nodes of an interrupted `zonal up`. `None` if there was none, or if the list has any name
/// that no plan has, since then the list is not ours.
fn unfinished(folder: &trusted_paths::Folder) -> Result<Option<Vec<String>>, PathRefusal> {
    let text = folder.text(UNFINISHED, UNFINISHED_MAX)?;
    let names = text.map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    Ok(names.filter(|names| names.iter().all(|name| is_planned(name))))
}

/// Whether a name in an incomplete cell's folder was left by an interrupted `zonal up`.
///
/// # Errors
/// The list of the nodes is not trusted.
pub fn is_unfinished(folder: &trusted_paths::Folder, name: &str) -> Result<bool, PathRefusal> {
    if is_temporary_name(name) {
        return Ok(true);
    }
    let unfinished = unfinished(folder)?;
    Ok(unfinished.is_some_and(|names| {
        name == UNFINISHED || KEY_FILES.contains(&name) || names.iter().any(|node| node == name)
    }))
}

/// Removes what an interrupted `zonal up` left: the folders of its nodes, and files with names of
/// ours.
fn remove_unfinished(folder: &trusted_paths::Folder) -> anyhow::Result<()> {
    let left = |error: std::io::Error, name: &str| {
        let path = folder.path().join(name);
        let text = format!(
            "{} is left of an interrupted `zonal up` and cannot be removed: {error}",
            path.display()
        );
        let hint = "unmount what is mounted below it, or name an empty folder with --dir";
        Failure::new(REFUSED, text).hint(hint)
    };
    let names = unfinished(folder)?;
    for name in names.iter().flatten() {
        folder.remove(name).map_err(|error| left(error, name))?;
    }
    for entry in std::fs::read_dir(folder.path())?.flatten() {
        if let Some(name) = entry
            .file_name()
            .to_str()
            .filter(|name| is_temporary_name(name))
        {
            let _ = folder.unlink(name);
        }
    }
    if names.is_some() {
        for name in KEY_FILES.iter().chain([&UNFINISHED]) {
            let _ = folder.unlink(name);
        }
    }
    Ok(())
}

fn format_all(folder: &CellFolder) -> anyhow::Result<()> {
    let nodes = folder.nodes()?;
    std::thread::scope(|scope| {
        let running: Vec<_> = nodes
            .iter()
            .map(|node| (node, scope.spawn(|| zonal_server::server::format(node))))
            .collect();
        for (node, thread) in running {
            let result = thread.join();
            result
                .map_err(|_panic| Failure::new(FAILED, "formatting panicked"))?
                .with_context(|| format!("format {}", node.path.display()))?;
        }
        Ok(())
    })
}

fn make_in(dir: &Path, nodes: &[PlannedNode], key: bool) -> anyhow::Result<CellFolder> {
    let random = random()?;
    let cell = CellId(random);
    let span = PORTS.end - PORTS.start;
    let start = PORTS.start + u16::from_le_bytes([random[0], random[1]]) % span;
    let ports = free_ports(nodes.len() * 2, start)?;
    let (serving, admin) = ports.split_at(nodes.len());
    let keyring = match key {
        true => Some(Keyring::make(trusted_paths::open(dir)?, cell)?),
        false => None,
    };
    let key_line = if key {
        format!("key_file = \"{NODE_KEY_FILE}\"\n")
    } else {
        String::new()
    };
    let managers = nodes.iter().zip(serving);
    let managers = managers.filter(|(node, _)| node.kind.manager);
    let managers: Vec<SocketAddr> = managers.map(|(_, address)| *address).collect();
    let (manager, others) = managers.split_first().context("no manager")?;
    let manager_line = match others {
        [] => format!("manager_address = \"{manager}\""),
        _ => {
            let all: Vec<String> = managers.iter().map(|one| format!("\"{one}\"")).collect();
            format!("manager_addresses = [{}]", all.join(", "))
        }
    };
    for (index, node) in nodes.iter().enumerate() {
        let folder = dir.join(&node.name);
        // Only the owner can open the folder: stores hold file contents in clear.
        trusted_paths::make(&folder)?;
        if let Some(keyring) = &keyring {
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            let kind = SubjectKind::Server {
                nodes: vec![NodeId(number)],
                roles: node.kind,
            };
            keyring.issue(kind, TERM, &folder.join(NODE_KEY_FILE))?;
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "# Written by `zonal up`; it may be edited while the cell is down.\n\
             cell = \"{cell}\"\nnode = {}\nlisten = \"{}\"\n{manager_line}\nshares_machine = true\n{key_line}\n\
             [zone]\nid = {}\nname = \"zone{}\"\n\n{}\n[admin]\nlisten = \"{}\"\n",
            index + 1,
            serving[index],
            node.zone,
            node.zone,
            node.roles,
            admin[index],
        );
        replace(&folder.join("node.toml"), &text)?;
    }
    if let Some(keyring) = &keyring {
        let name = COMMANDS.to_owned();
        keyring.issue(SubjectKind::Admin { name }, TERM, &dir.join(KEY_FILE))?;
    }
    let folder = CellFolder {
        dir: dir.to_owned(),
        file: CellFile {
            cell: cell.to_string(),
            manager: *manager,
            other_managers: others.to_vec(),
            key_file: key.then(|| KEY_FILE.into()),
            nodes: nodes.iter().map(|node| node.name.clone()).collect(),
        },
    };
    format_all(&folder)?;
    folder.save()?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_has_a_manager_and_each_zones_servers() {
        let shape = CellShape {
            zones: 2,
            storage_nodes: 3,
            replicas: 1,
            shards: 1,
            capacity: ByteSize(1 << 30),
            segment: ByteSize(64 << 20),
            key: false,
            agent: false,
        };
        let names: Vec<String> = nodes(&shape).into_iter().map(|node| node.name).collect();
        assert_eq!(
            names,
            [
                "manager",
                "meta1",
                "meta2",
                "storage1-1",
                "storage1-2",
                "storage1-3",
                "storage2-1",
                "storage2-2",
                "storage2-3"
            ]
        );
    }

    #[test]
    fn is_planned_accepts_all_names_of_plans() {
        let shape = CellShape {
            zones: 64,
            storage_nodes: 64,
            replicas: 5,
            shards: 16,
            capacity: ByteSize(1 << 30),
            segment: ByteSize(64 << 20),
            key: false,
            agent: false,
        };
        assert!(nodes(&shape).iter().all(|node| is_planned(&node.name)));
        for name in [
            "",
            "/",
            ".",
            "..",
            "meta",
            "meta0",
            "meta81",
            "meta1-1",
            "meta1-81",
            "meta01",
            "meta+1",
            "meta1/..",
            "storage1",
            "storage1-",
            "storage1-81",
            "storage1-1-1",
            "managers",
            "manager1",
            "manager6",
            "unfinished",
        ] {
            assert!(!is_planned(name), "{name}");
        }
        assert!(is_temporary_name("cell.toml.0123456789abcdef.new"));
        for name in [
            "cell.toml.new",
            "cell.toml",
            "mine.0123456789abcdef.new",
            "cell.toml./23456789abcdef.new",
        ] {
            assert!(!is_temporary_name(name), "{name}");
        }
    }

    #[test]
    fn free_ports_are_distinct() {
        let ports = free_ports(20, 31_990).unwrap();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), 20);
    }
}
