//! Config of a server process, `node.toml`: its node, its addresses, its roles.
//!
//! A node has one shard. So a file with both `[manager]`, which has the root's shard, and `[meta]`,
//! which has a zone's, describes two nodes. Code outside of this module does not know that they
//! came from one file.
//!
//! Unknown keys, values without units, values out of range and conflicting roles are errors that
//! name the file, the line and the key. Paths are relative to the file's folder. Reading a config
//! opens nothing else; the manager's host name is looked up.

mod address;
mod admin;
mod check;
mod cross_checks;
mod raw;
mod second_node;
mod uplinks;
mod zone;

use crate::units::Millis;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use zonal_disk::StoreDir;
use zonal_net::{ServerRoles, Transport};
use zonal_types::{CellId, NodeId, OneLine, TargetId, ZoneId};
use zonal_zonemap::SubnetTable;

use check::Source;
use raw::RawNode;
pub use uplinks::UplinkRates;

/// Why a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The text is not a config: syntax, unknown keys, units.
    #[error("{}:{line}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The error.
        message: String,
    },
    /// A value is outside of its range.
    #[error("{}:{line}: {key} is {found}, allowed is {allowed}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key, with its table.
        key: &'static str,
        /// The value.
        found: String,
        /// The allowed values.
        allowed: String,
    },
    /// The manager's host has no address, or cannot be looked up now.
    #[error("{}:{line}: manager_address {name} cannot be looked up", path.display())]
    Lookup {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// HOST:PORT.
        name: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The admin pages would be open to the network.
    #[error("{}:{line}: {key} {listen} is outside of loopback and asks for nothing", path.display())]
    AdminOpen {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key, with its table.
        key: &'static str,
        /// The address.
        listen: SocketAddr,
    },
    /// Roles or addresses conflict.
    #[error("{}: {message}", path.display())]
    Together {
        /// The file.
        path: PathBuf,
        /// The conflict.
        message: String,
    },
    /// A second node lacks a key of `[meta]`, or the key is there without a second node.
    #[error("{}:{line}: {key} {message}", path.display())]
    SecondNode {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The key, with its table.
        key: &'static str,
        /// The error.
        message: &'static str,
    },
    /// An address would be in two zones.
    #[error("{}:{line}: {second} overlaps {first} (line {first_line})", path.display())]
    SubnetOverlap {
        /// The file.
        path: PathBuf,
        /// Line of the second entry, from 1.
        line: usize,
        /// The second subnet with its zone.
        second: String,
        /// The first subnet with its zone.
        first: String,
        /// Line of the first entry, from 1.
        first_line: usize,
    },
    /// An entry of the subnets does not name one zone.
    #[error("{}:{line}: subnet {subnet} has {found}", path.display())]
    SubnetZone {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// The subnet.
        subnet: String,
        /// The keys that it has.
        found: &'static str,
    },
}

impl ConfigError {
    /// Advice for the user.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } => "name the node.toml with --config; `zonal up` writes such files",
            Self::Range { key, .. }
                if ![
                    "listen",
                    "address",
                    "advertise",
                    "node",
                    "cidr",
                    "zone",
                    "rack",
                ]
                .iter()
                .any(|end| key.ends_with(end)) =>
            {
                "sizes and times carry units, such as \"64 MiB\" and \"10 s\""
            }
            Self::Parse { .. } | Self::Range { .. } | Self::Together { .. } => {
                "samples of every role are in deploy/; all.toml has all of them"
            }
            Self::SubnetOverlap { .. } => {
                "an address belongs to one zone: make one of the prefixes longer, or give both the same zone"
            }
            Self::SubnetZone { .. } => {
                "each [[manager.subnets]] has `cidr` and either `zone`, a number, or `rack`, the name of a zone"
            }
            Self::Lookup { .. } => {
                "write its IP:PORT, or a host name that resolves on this machine"
            }
            Self::SecondNode { .. } => {
                "[meta] in a file with [manager] is a node of its own, with `node` and `listen` of its own (deploy/all.toml); in other files these are at the top only"
            }
            Self::AdminOpen { .. } => {
                "set `admin.token_file` to a file with 16 bytes or more, or listen on 127.0.0.1; Prometheus sends it with `authorization: credentials_file`"
            }
        }
    }
}

/// The zone of a node.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneConfig {
    /// 1 and up.
    pub id: u16,
    /// Name for people; used when the zone is new.
    #[serde(default)]
    pub name: String,
}

/// Where a node's zone comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeZone {
    /// Its number is in the config.
    Given {
        /// The zone.
        zone: ZoneId,
        /// Name of the zone, used where the zone is new.
        name: String,
    },
    /// Its name is in the config; the manager knows the number, or chooses one.
    Named(String),
    /// The manager finds it by the node's address, in its table of subnets.
    BySubnet,
}

impl NodeZone {
    /// The number in the config; 0: the manager finds it.
    #[must_use]
    pub fn number(&self) -> ZoneId {
        match self {
            Self::Given { zone, .. } => *zone,
            Self::Named(_) | Self::BySubnet => ZoneId(0),
        }
    }

    /// The name in the config, if any.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Given { name, .. } | Self::Named(name) => name,
            Self::BySubnet => "",
        }
    }
}

impl std::fmt::Display for NodeZone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Given { zone, .. } => write!(f, "zone {zone}"),
            Self::Named(name) => write!(f, "zone \"{}\"", OneLine(name)),
            Self::BySubnet => write!(f, "the zone of its subnet"),
        }
    }
}

/// Memory and log of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Bytes of the log, fixed when formatting.
    pub log: u64,
    /// Bytes of recent changes kept in memory between checkpoints.
    pub overlay: u64,
    /// Bytes of the index's cache.
    pub cache: u64,
}

/// Config of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    /// Its id in the cell.
    pub target: TargetId,
    /// Bytes that the target may use.
    pub capacity: u64,
    /// Bytes of a segment file, fixed when formatting.
    pub segment: u64,
    /// Bytes of small writes that are not yet in segments, kept in memory.
    pub pending: u64,
    /// Rate of a scrub, bytes a second.
    pub scrub_rate: u64,
    /// Time from the end of a scrub to the next; 0: only on command.
    pub scrub_period: Millis,
    /// Its store.
    pub store: StoreConfig,
}

/// Config of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// Ranks that run at the same time.
    pub ranks: usize,
    /// The node is to be used only where nothing else is left.
    pub is_standby: bool,
    /// The first user id, and group id, that commands run with.
    pub user_min: u32,
    /// Commands get no rights by running set-id programs.
    pub no_new_privs: bool,
}

/// Bounds of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Deadline of a request whose sender gives none.
    pub request_deadline: Millis,
    /// Connections accepted at once.
    pub connections: usize,
    /// Requests that take longer are logged.
    pub slow_operation: Millis,
}

/// Config of the admin pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// Address that they listen on.
    pub listen: SocketAddr,
    /// File of the token that requests must carry, if any.
    pub token_file: Option<PathBuf>,
    /// For the manager's node: address of the placement service over gRPC, if any.
    pub grpc: Option<SocketAddr>,
}

/// Config of one node, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// The file that it was read from.
    pub path: PathBuf,
    /// The cell.
    pub cell: CellId,
    /// The node.
    pub node: NodeId,
    /// Its zone.
    pub zone: NodeZone,
    /// Address that it listens on.
    pub listen: SocketAddr,
    /// Address that others connect to.
    pub advertise: SocketAddr,
    /// Addresses of managers, one at least.
    pub managers: Vec<SocketAddr>,
    /// The node's folder.
    pub dir: PathBuf,
    /// File of the node's credential, if any.
    pub key_file: Option<PathBuf>,
    /// Protection of its TCP connections.
    pub transport: Transport,
    /// Other nodes run on its machine, so that the machine's CPU says nothing of this node.
    pub shares_machine: bool,
    /// The admin pages, if any.
    pub admin: Option<AdminConfig>,
    /// Lowest level logged.
    pub log_level: String,
    /// Bounds.
    pub limits: Limits,
    /// First bytes of a new file that the node's shard keeps.
    pub inline_bytes: u32,
    /// Owner and group of the root directory, when the manager's shard is formatted.
    pub root_owner: (u32, u32),
    /// The node's shard has replicas: its store is that of a member of a group.
    pub replicated: bool,
    /// The node has a replica of a shard of this zone; 0: of its own zone.
    pub meta_zone: ZoneId,
    /// For a manager's node: replicas of each zone's shard, on nodes with the meta role. As many
    /// managers have replicas of the root's shard with the map.
    pub replicas: usize,
    /// For the manager's node: shards of each zone, as long as no command asks for more.
    pub shards: usize,
    /// For the manager's node: slots of a new stripe set, at most.
    pub set_width: u16,
    /// For the manager's node: a target that is out for this long is rebuilt; 0: never.
    pub rebuild_after: Millis,
    /// For the manager's node: the table of subnets.
    pub subnets: SubnetTable,
    /// For the manager's node: rates of the zones' uplinks.
    pub uplinks: UplinkRates,
    /// The manager role with the root shard.
    pub manager_role: Option<StoreConfig>,
    /// The meta role: a zone's shard.
    pub meta_role: Option<StoreConfig>,
    /// The storage role: a target.
    pub storage_role: Option<StorageConfig>,
    /// The agent role: commands for jobs.
    pub agent_role: Option<AgentConfig>,
    /// Folder for recordings of the changes to the node's stores. Not a key of the file: the
    /// command line sets it.
    pub record: Option<PathBuf>,
}

impl NodeConfig {
    /// Reads and checks files; returns the nodes of all of them.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load_all(paths: &[PathBuf]) -> Result<Vec<Self>, ConfigError> {
        let mut nodes = Vec::new();
        for path in paths {
            nodes.extend(Self::load(path)?);
        }
        Ok(nodes)
    }

    /// Reads and checks a file; returns its node or its two nodes. The manager's is the first, as
    /// it must be up before others join.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: &Path) -> Result<Vec<Self>, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    /// Checks a file's text, as [`Self::load`].
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(path: &Path, text: &str) -> Result<Vec<Self>, ConfigError> {
        let source = Source { path, text };
        let raw: RawNode = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            line: source.line(error.span().map_or(0, |span| span.start)),
            message: error.message().trim().replace('\n', " "),
        })?;
        source.nodes(&raw)
    }

    /// Names of the roles, for people.
    #[must_use]
    pub fn roles(&self) -> Vec<&'static str> {
        let roles = [
            ("manager", self.manager_role.is_some()),
            ("meta", self.meta_role.is_some()),
            ("storage", self.storage_role.is_some()),
            ("agent", self.agent_role.is_some()),
        ];
        roles
            .iter()
            .filter(|(_, on)| *on)
            .map(|(name, _)| *name)
            .collect()
    }

    /// Its roles, in the form of a credential.
    #[must_use]
    pub fn server_roles(&self) -> ServerRoles {
        ServerRoles {
            manager: self.manager_role.is_some(),
            meta: self.meta_role.is_some(),
            storage: self.storage_role.is_some(),
            agent: self.agent_role.is_some(),
        }
    }

    /// A store's folder in `dir`, with recording where the command line asks for it.
    pub(crate) fn store_dir(&self, dir: &Path) -> StoreDir {
        match &self.record {
            Some(recordings) => StoreDir::recorded(dir, recordings),
            None => StoreDir::plain(dir),
        }
    }

    /// The addresses of managers, for messages.
    pub(crate) fn managers_text(&self) -> String {
        let all: Vec<String> = self.managers.iter().map(SocketAddr::to_string).collect();
        all.join(", ")
    }

    /// True where this node, one of several managers, makes their group where nobody has any: it is
    /// the first in the list.
    pub(crate) fn founds_managers(&self) -> bool {
        self.manager_role.is_some() && self.managers.first() == Some(&self.advertise)
    }

    /// Folder of the manager's store.
    #[must_use]
    pub fn manager_dir(&self) -> PathBuf {
        self.dir.join("manager")
    }

    /// Folder of the shard's store.
    #[must_use]
    pub fn meta_dir(&self) -> PathBuf {
        self.dir.join("shard")
    }

    /// Folder of the target's store.
    #[must_use]
    pub fn target_dir(&self) -> PathBuf {
        self.dir.join("target")
    }
}
