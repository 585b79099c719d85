//! What `zonal up` makes of nothing: nodes with their numbers, ports and configs.

use super::folder::{CellFile, Folder, replace};
use super::keyring::{AUTHORITY_FILE, COMMANDS, ISSUED_FILE, Keyring};
use crate::exit::{FAILED, Failure, REFUSED};
use anyhow::Context;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as SocketAddrUnix, UnixDatagram};
use std::path::Path;
use std::time::Duration;
use zonal_disk::trusted_paths::{self, Distrust};
use zonal_net::{ServerRoles, SubjectKind};
use zonal_server::units::Size;
use zonal_types::{CellId, NodeId};

/// Ports are searched from here on: below the range from which Linux takes ports for connections.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// Shape of a new cell.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Zones.
    pub zones: u16,
    /// Storage servers in each.
    pub storage_nodes: u32,
    /// Bytes of each target.
    pub capacity: Size,
    /// Bytes of a segment.
    pub segment: Size,
    /// With an authority, and a credential for each node and for commands.
    pub key: bool,
}

/// Name of the commands' credential in the cell's folder.
const KEY_FILE: &str = "cell.key";
/// Name of a node's credential in its folder.
const NODE_KEY_FILE: &str = "node.key";
/// How long the credentials of such a cell last.
const TERM: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Files of a cell's keys.
const KEY_FILES: [&str; 3] = [KEY_FILE, AUTHORITY_FILE, ISSUED_FILE];

/// Names of what is being made, one a line, for as long as that is not all there.
const UNFINISHED: &str = "unfinished";

/// One node of the plan.
struct PlannedNode {
    name: String,
    zone: u16,
    kind: ServerRoles,
    roles: String,
}

/// The root directory is of who makes the cell.
fn manager_role() -> String {
    let uid = rustix::process::geteuid().as_raw();
    let gid = rustix::process::getegid().as_raw();
    if (uid, gid) == (0, 0) {
        return "[manager]\n".to_owned();
    }
    format!("[manager]\nroot_uid = {uid}\nroot_gid = {gid}\n")
}

fn nodes(shape: &Shape) -> Vec<PlannedNode> {
    let mut nodes = vec![PlannedNode {
        name: "manager".into(),
        zone: 1,
        kind: ServerRoles {
            manager: true,
            ..ServerRoles::default()
        },
        roles: manager_role(),
    }];
    for zone in 1..=shape.zones {
        nodes.push(PlannedNode {
            name: format!("meta{zone}"),
            zone,
            kind: ServerRoles {
                meta: true,
                ..ServerRoles::default()
            },
            roles: "[meta]\n".into(),
        });
    }
    let mut target = 0;
    for zone in 1..=shape.zones {
        for index in 1..=shape.storage_nodes {
            target += 1;
            let roles = format!(
                "[storage]\ntarget = {target}\ncapacity = \"{}\"\nsegment = \"{}\"\n",
                shape.capacity, shape.segment
            );
            nodes.push(PlannedNode {
                name: format!("storage{zone}-{index}"),
                zone,
                kind: ServerRoles {
                    storage: true,
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

/// Keeps other `zonal up` from giving a port that a server of ours is still to bind: a name in the
/// network namespace, for as long as this process lives. False where another one has it.
fn reserve(port: u16) -> bool {
    let name = SocketAddrUnix::from_abstract_name(format!("zonal-port-{port}"));
    let reserved = name.and_then(|name| UnixDatagram::bind_addr(&name));
    reserved.map(std::mem::forget).is_ok()
}

/// Free ports on loopback. They are all held until all are found, so that none is given twice.
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

/// Makes a new cell in `dir`, which is empty or not there: configs, formatted stores, `cell.toml`
/// last. What was begun is taken away again where anything fails, and by the next one where this
/// one was killed.
pub fn make(dir: &Path, shape: &Shape) -> anyhow::Result<Folder> {
    let folder = trusted_paths::open(dir)?;
    take_away(&folder)?;
    let nodes = nodes(shape);
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    replace(&dir.join(UNFINISHED), &(names.join("\n") + "\n"))?;
    let made = make_in(dir, &nodes, shape.key).inspect_err(|_error| {
        // What stays is told by the next one that comes upon it.
        let _ = take_away(&folder);
    })?;
    // A cell that is there is not looked at for it.
    let _ = folder.unlink(UNFINISHED);
    Ok(made)
}

/// Whether a file was being written when the making ended, before it had its name.
fn is_half_written(name: &str) -> bool {
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
    // Those of the first versions had no name of chance.
    ["unfinished.new", "cell.new"].contains(&name) || of(UNFINISHED) || of("cell.toml")
}

/// Whether a plan of any shape has a node of this name.
fn is_planned(name: &str) -> bool {
    let number = |text: &str| {
        let number = text
            .parse::<u32>()
            .ok()
            .filter(|number| (1..=64).contains(number));
        // As it is written in a plan, with no sign and no zeros before it.
        number.is_some_and(|number| number.to_string() == text)
    };
    if let Some(zone) = name.strip_prefix("meta") {
        return number(zone);
    }
    let storage = name
        .strip_prefix("storage")
        .and_then(|rest| rest.split_once('-'));
    name == "manager" || storage.is_some_and(|(zone, index)| number(zone) && number(index))
}

/// More bytes than the names of any plan have.
const UNFINISHED_MAX: u64 = 64 << 10;

/// The nodes of a making that ended halfway: `None` where there was none, or where the list has any
/// other name and is not ours.
fn unfinished(folder: &trusted_paths::Folder) -> Result<Option<Vec<String>>, Distrust> {
    let text = folder.text(UNFINISHED, UNFINISHED_MAX)?;
    let names = text.map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    Ok(names.filter(|names| names.iter().all(|name| is_planned(name))))
}

/// Whether a name in a folder that is no cell is of one whose making ended halfway.
///
/// # Errors
/// The list of its nodes is not trusted.
pub fn is_unfinished(folder: &trusted_paths::Folder, name: &str) -> Result<bool, Distrust> {
    if is_half_written(name) {
        return Ok(true);
    }
    let unfinished = unfinished(folder)?;
    Ok(unfinished.is_some_and(|names| {
        name == UNFINISHED || KEY_FILES.contains(&name) || names.iter().any(|node| node == name)
    }))
}

/// Takes away what a making that ended halfway left: the folders of its nodes, and files that have
/// the names of ours.
fn take_away(folder: &trusted_paths::Folder) -> anyhow::Result<()> {
    let left = |error: std::io::Error, name: &str| {
        let path = folder.path().join(name);
        let text = format!(
            "{} is left of a making that ended halfway, and cannot be taken away: {error}",
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
            .filter(|name| is_half_written(name))
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

fn format_all(folder: &Folder) -> anyhow::Result<()> {
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

fn make_in(dir: &Path, nodes: &[PlannedNode], key: bool) -> anyhow::Result<Folder> {
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
    let manager = serving.first().copied().context("no node")?;
    for (index, node) in nodes.iter().enumerate() {
        let folder = dir.join(&node.name);
        // Only the owner can look into it: stores hold what files hold, in clear.
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
             cell = \"{cell}\"\nnode = {}\nlisten = \"{}\"\nmanager_address = \"{manager}\"\n{key_line}\n\
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
    let folder = Folder {
        dir: dir.to_owned(),
        file: CellFile {
            cell: cell.to_string(),
            manager,
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
        let shape = Shape {
            zones: 2,
            storage_nodes: 3,
            capacity: Size(1 << 30),
            segment: Size(64 << 20),
            key: false,
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
    fn every_plan_has_only_names_that_are_known_as_such() {
        let shape = Shape {
            zones: 64,
            storage_nodes: 64,
            capacity: Size(1 << 30),
            segment: Size(64 << 20),
            key: false,
        };
        assert!(nodes(&shape).iter().all(|node| is_planned(&node.name)));
        for name in [
            "",
            "/",
            ".",
            "..",
            "meta",
            "meta0",
            "meta65",
            "meta01",
            "meta+1",
            "meta1/..",
            "storage1",
            "storage1-",
            "storage1-65",
            "storage1-1-1",
            "managers",
            "unfinished",
        ] {
            assert!(!is_planned(name), "{name}");
        }
        assert!(is_half_written("cell.toml.0123456789abcdef.new"));
        for name in [
            "cell.toml.new",
            "cell.toml",
            "mine.0123456789abcdef.new",
            "cell.toml./23456789abcdef.new",
        ] {
            assert!(!is_half_written(name), "{name}");
        }
    }

    #[test]
    fn ports_differ() {
        let ports = free_ports(20, 31_990).unwrap();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), 20);
    }
}
