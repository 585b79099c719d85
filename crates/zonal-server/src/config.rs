//! `node.toml`: who a server process is, where it listens, which roles it has.
//!
//! A node has one shard. A file with `[manager]`, which brings the root's shard, and `[meta]`, a
//! zone's, is therefore of two nodes, and nothing behind this module knows that they came from one
//! file.
//!
//! Unknown keys, values without units, values out of range and roles that do not go together are
//! errors that name the file, the line and the key. Paths are relative to the file's folder.
//! Nothing is opened here; a manager that is named by its host is looked up.

mod address;
mod admin;
mod check;
mod cross_checks;
mod raw;
mod second_node;

use crate::units::Millis;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use zonal_disk::StoreDir;
use zonal_net::{ServerRoles, Transport};
use zonal_types::{CellId, NodeId, TargetId, ZoneId};

use check::Source;
use raw::RawNode;

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
    /// The text is not what a config looks like: syntax, unknown keys, units.
    #[error("{}:{line}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A value is outside of its range.
    #[error("{}:{line}: {key} is {found}, allowed is {allowed}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Its key, with its table.
        key: &'static str,
        /// What is there.
        found: String,
        /// What may be there.
        allowed: String,
    },
    /// The manager's host has no address, or nobody knows it now.
    #[error("{}:{line}: manager_address {name} cannot be looked up", path.display())]
    Lookup {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// HOST:PORT.
        name: String,
        /// The reason.
        source: std::io::Error,
    },
    /// Everybody could see the admin pages.
    #[error("{}:{line}: {key} {listen} is outside of loopback and asks for nothing", path.display())]
    AdminOpen {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Its key, with its table.
        key: &'static str,
        /// What is there.
        listen: SocketAddr,
    },
    /// Roles or addresses that do not fit each other.
    #[error("{}: {message}", path.display())]
    Together {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        message: String,
    },
    /// A key of [meta] that a second node needs and does not have, or that is there without one.
    #[error("{}:{line}: {key} {message}", path.display())]
    SecondNode {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The key, with its table.
        key: &'static str,
        /// What is wrong with it.
        message: &'static str,
    },
}

impl ConfigError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } => "name the node.toml with --config; `zonal up` writes such files",
            Self::Range { key, .. }
                if !["listen", "address", "advertise", "node"]
                    .iter()
                    .any(|end| key.ends_with(end)) =>
            {
                "sizes and times carry units, such as \"64 MiB\" and \"10 s\""
            }
            Self::Parse { .. } | Self::Range { .. } | Self::Together { .. } => {
                "samples of every role are in deploy/; all.toml has all of them"
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

/// The zone that a node is in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneConfig {
    /// 1 and up.
    pub id: u16,
    /// For people; used when the zone is new.
    #[serde(default)]
    pub name: String,
}

/// Memory and log of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Length of the log, fixed when formatting.
    pub log: u64,
    /// Recent changes kept in memory between checkpoints.
    pub overlay: u64,
    /// Cache of the index.
    pub cache: u64,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    /// Its id in the cell.
    pub target: TargetId,
    /// Bytes that it may use.
    pub capacity: u64,
    /// Bytes of a segment file, fixed when formatting.
    pub segment: u64,
    /// Memory of small writes that are not yet in segments.
    pub pending: u64,
    /// Bytes a second of a scrub.
    pub scrub_rate: u64,
    /// Time from the end of a scrub to the next; 0: only when told.
    pub scrub_period: Millis,
    /// Its store.
    pub store: StoreConfig,
}

/// Bounds of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How long a request may take where the sender does not say.
    pub request_deadline: Millis,
    /// Connections accepted.
    pub connections: usize,
    /// Requests that take longer are logged.
    pub slow_operation: Millis,
}

/// The admin pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdminConfig {
    /// Where they are served.
    pub listen: SocketAddr,
    /// What each request must carry, where it must.
    pub token_file: Option<PathBuf>,
}

/// One node, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// The file it came from.
    pub path: PathBuf,
    /// The cell.
    pub cell: CellId,
    /// The node.
    pub node: NodeId,
    /// Its zone.
    pub zone: ZoneId,
    /// The zone's name, where it is new.
    pub zone_name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// What others connect to.
    pub advertise: SocketAddr,
    /// The manager.
    pub manager: SocketAddr,
    /// Its folder.
    pub dir: PathBuf,
    /// The node's credential, where one is used.
    pub key_file: Option<PathBuf>,
    /// What protects its connections by TCP.
    pub transport: Transport,
    /// The admin pages, where there are any.
    pub admin: Option<AdminConfig>,
    /// Lowest level logged.
    pub log_level: String,
    /// Bounds.
    pub limits: Limits,
    /// How many of their first bytes new files leave to the node's shard.
    pub inline_bytes: u32,
    /// Owner and group of the root directory, where the manager's shard is formatted.
    pub root_owner: (u32, u32),
    /// Slots of a new stripe set, at most, where the node is the manager.
    pub set_width: u16,
    /// The manager role with the root shard.
    pub manager_role: Option<StoreConfig>,
    /// The role of a zone's metadata server.
    pub meta_role: Option<StoreConfig>,
    /// The role of a storage server.
    pub storage_role: Option<StorageConfig>,
    /// Where what is done to the node's stores is written down. Not of the file: whoever starts the
    /// server says so.
    pub record: Option<PathBuf>,
}

impl NodeConfig {
    /// Reads and checks files: the nodes of all of them.
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

    /// Reads and checks a file: its node, or its two nodes. The manager's is the first: it must be
    /// up before others join.
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
        ];
        roles
            .iter()
            .filter(|(_, on)| *on)
            .map(|(name, _)| *name)
            .collect()
    }

    /// Its roles, as a credential names them.
    #[must_use]
    pub fn server_roles(&self) -> ServerRoles {
        ServerRoles {
            manager: self.manager_role.is_some(),
            meta: self.meta_role.is_some(),
            storage: self.storage_role.is_some(),
        }
    }

    /// A store's folder in `dir`, recorded where that is asked for.
    pub(crate) fn store_dir(&self, dir: &Path) -> StoreDir {
        match &self.record {
            Some(recordings) => StoreDir::recorded(dir, recordings),
            None => StoreDir::plain(dir),
        }
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
