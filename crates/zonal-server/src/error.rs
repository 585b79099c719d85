//! Why a server does not start or stops, with advice and the exit code for scripts.

use crate::admin::TokenError;
use crate::config::ConfigError;
use std::net::SocketAddr;
use std::path::PathBuf;
use zonal_disk::DiskError;
use zonal_disk::trusted_paths::PathRefusal;
use zonal_net::{CredentialError, NetError};
use zonal_types::{ErrorCode, NodeId};

/// A failure that ends a server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The config cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A store cannot be opened or formatted.
    #[error("store {}", dir.display())]
    Store {
        /// Its folder.
        dir: PathBuf,
        /// The reason.
        source: DiskError,
    },
    /// A store's contents cannot be used.
    #[error("store {}: {code}", dir.display())]
    Contents {
        /// Its folder.
        dir: PathBuf,
        /// The reason.
        code: ErrorCode,
    },
    /// The admin pages cannot listen.
    #[error("cannot listen on {address} for the admin pages")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// The network layer failed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// The credential's file cannot be read, or other users can read it.
    #[error("credential")]
    Key(#[source] PathRefusal),
    /// The credential cannot be used.
    #[error("credential {}", path.display())]
    Credential {
        /// Its file.
        path: PathBuf,
        /// The reason.
        source: CredentialError,
    },
    /// The credential belongs to another node, or not to a server.
    #[error("credential {} is of {subject}, not of node {node} of this cell", path.display())]
    CredentialOfOther {
        /// Its file.
        path: PathBuf,
        /// Its subject.
        subject: String,
        /// The node in the config.
        node: NodeId,
    },
    /// The credential lacks a role of the config.
    #[error("credential {} is for the roles {has}, the config has {needs}", path.display())]
    CredentialRoles {
        /// Its file.
        path: PathBuf,
        /// Roles of the credential.
        has: String,
        /// Roles of the config.
        needs: String,
    },
    /// The token of the admin pages is unusable.
    #[error("token of the admin pages {}", path.display())]
    Token {
        /// Its file.
        path: PathBuf,
        /// The reason.
        source: TokenError,
    },
    /// The manager refused this node.
    #[error("the manager at {manager} refuses this node: {detail} ({code})")]
    JoinRefused {
        /// Addresses of the managers.
        manager: String,
        /// The error code.
        code: ErrorCode,
        /// The reason in words.
        detail: String,
    },
    /// Another server answers at the address that the cell would use for this node.
    #[error(
        "node {found} answers at {advertise} already, the address that node {node} gives the cell; this server listens on {listen}"
    )]
    AddressTaken {
        /// This node.
        node: NodeId,
        /// Address that it advertises.
        advertise: SocketAddr,
        /// Address that it would listen on.
        listen: SocketAddr,
        /// The node that answers.
        found: NodeId,
    },
    /// The system refused a thread or a signal handler.
    #[error("the system refused {what}")]
    System {
        /// The resource.
        what: &'static str,
        /// The reason.
        source: std::io::Error,
    },
}

impl ServerError {
    /// Advice, where there is any.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Config(error) => error.hint().to_owned(),
            Self::Store { source, .. } => return store_hint(source),
            Self::Listen { source, .. } if in_use(source) => {
                "another process listens there: stop it, or change `listen` of [admin] in node.toml".into()
            }
            Self::Net(NetError::Bind { source, .. }) if in_use(source) => {
                "another process listens there: stop it, or change `listen` in node.toml".into()
            }
            Self::Key(error) if error.hint().is_some() => return error.hint(),
            Self::Key(_) | Self::Credential { .. } | Self::CredentialOfOther { .. } | Self::CredentialRoles { .. } => {
                "make one with: zonal key create --node NUMBER --roles ROLES --authority FILE --to FILE".into()
            }
            Self::Net(NetError::BindUnix { .. }) => {
                "the folder must be root's or the server's user's, and writable for nobody else".into()
            }
            Self::Token { source: TokenError::Read(error), .. } if error.hint().is_some() => return error.hint(),
            Self::Token { .. } => "make one with: head -c 24 /dev/urandom | base64 > admin.token; chmod 600 admin.token".into(),
            Self::JoinRefused { .. } => {
                "is this the right cell, zone, node and target number? `zonal zone-map show` tells what the manager knows; a node that moves is stopped first where it was".into()
            }
            Self::AddressTaken { .. } => {
                "in a copied node.toml change `node`, `target`, `listen` and `advertise`; a node that moves is stopped first where it was".into()
            }
            Self::Contents {
                code: ErrorCode::WrongVersion,
                ..
            } => NEWER.into(),
            _ => return None,
        })
    }

    /// The exit code of the process: see docs/cli-reference.md.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            // The name may be known later.
            Self::Config(ConfigError::Lookup { .. }) => 4,
            Self::Config(_)
            | Self::Credential { .. }
            | Self::CredentialOfOther { .. }
            | Self::CredentialRoles { .. }
            | Self::Key(PathRefusal::Io { .. })
            | Self::Token { .. }
            | Self::Net(NetError::KeylessBind { .. }) => 3,
            Self::Net(NetError::BindUnix { .. }) => 5,
            Self::Store { source, .. } => store_exit_code(source),
            Self::Key(_) | Self::Contents { .. } | Self::JoinRefused { .. } => 5,
            Self::Listen { source, .. } | Self::Net(NetError::Bind { source, .. })
                if in_use(source) =>
            {
                6
            }
            Self::AddressTaken { .. } => 6,
            Self::Net(error) if error.is_retryable() => 4,
            _ => 1,
        }
    }
}

/// Advice where a newer program has used the store.
const NEWER: &str =
    "a newer zonal wrote this: use that version or a later one; nothing was touched";

fn in_use(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::AddrInUse
}

/// Exit code for a refused store.
#[must_use]
pub fn store_exit_code(error: &DiskError) -> u8 {
    match error {
        DiskError::Config(_) => 3,
        DiskError::Locked(_) => 6,
        _ => 5,
    }
}

/// Advice for a refused store.
#[must_use]
pub fn store_hint(error: &DiskError) -> Option<String> {
    Some(match error {
        DiskError::NotFormatted(_) => "put its folder back where it had data; format a new one with: zonal server --config node.toml --format".into(),
        DiskError::Untrusted(error) => return error.hint(),
        DiskError::NotOurs(_) => "choose an empty folder; nothing here was touched".into(),
        DiskError::Locked(_) => "the node runs already; `zonal status` shows it".into(),
        DiskError::WrongCell { .. } | DiskError::WrongKind { .. } | DiskError::WrongId { .. } => {
            "the folder belongs to another node: check `dir`, `cell` and the numbers in node.toml; nothing was touched".into()
        }
        DiskError::WrongVersion { .. } => NEWER.into(),
        DiskError::AlreadyFormatted(_) => "nothing was touched; with --force the store is put aside and kept".into(),
        DiskError::NoSpace(_) => "free some space below the folder, or lower the sizes in node.toml".into(),
        _ => return None,
    })
}
