//! The folder of a cell that `zonal up` made: `cell.toml`, one folder a node, `mounts/`.
//!
//! ```text
//! DIR/cell.toml               cell id, manager's address, names of the nodes
//! DIR/NODE/node.toml          what the node is (see deploy/)
//! DIR/NODE/log, pid           of the process that `zonal up` started
//! DIR/NODE/manager|shard|target   stores
//! DIR/mounts/NAME.toml, .log  mounts of this cell that this machine made
//! DIR/unfinished              what a cell that is being made consists of so far; gone when it is made
//! ```

use super::named::Named;
use crate::exit::{CONFIG, Failure, NOT_FOUND, REFUSED};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use zonal_server::NodeConfig;
use zonal_types::CellId;

/// Name of the file that makes a folder a cell's.
const CELL_FILE: &str = "cell.toml";

/// `cell.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellFile {
    /// 32 hexadecimal digits.
    pub cell: String,
    /// The manager's address.
    pub manager: SocketAddr,
    /// The cell key, relative to the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Folders of the nodes, in the order in which they are started.
    pub nodes: Vec<String>,
}

/// The folder of a cell.
#[derive(Debug, Clone)]
pub struct Folder {
    /// Absolute.
    pub dir: PathBuf,
    /// What `cell.toml` says.
    pub file: CellFile,
}

/// Where a cell is when nobody says: `$ZONAL_CELL`, else `/var/lib/zonal/default` for root and
/// `~/.zonal/default` for others.
pub fn default_dir() -> PathBuf {
    if let Some(dir) = std::env::var_os("ZONAL_CELL").filter(|dir| !dir.is_empty()) {
        return dir.into();
    }
    match std::env::var_os("HOME") {
        Some(home) if !rustix::process::geteuid().is_root() => {
            PathBuf::from(home).join(".zonal/default")
        }
        _ => PathBuf::from("/var/lib/zonal/default"),
    }
}

/// The folder of a cell that this command starts, stops or writes in: the one that was named, or [`default_dir`].
pub fn own_dir(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let dir = default_dir();
    if dir.to_str().is_some_and(Named::is_address) {
        let text = format!("ZONAL_CELL is an address: {}", dir.display());
        let failure = Failure::new(REFUSED, text);
        return Err(failure
            .hint("name the folder of a cell on this machine")
            .into());
    }
    Ok(dir)
}

/// The absolute path, so that command lines and records stay true.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    fs::canonicalize(path)
        .or_else(|_error| std::path::absolute(path))
        .with_context(|| format!("path {}", path.display()))
}

impl Folder {
    /// Whether a folder is a cell's.
    pub fn is_cell(dir: &Path) -> bool {
        dir.join(CELL_FILE).is_file()
    }

    /// Opens the folder of a cell.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let dir = absolute(dir)?;
        let path = dir.join(CELL_FILE);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
            {
                let text = format!("no cell in {}", dir.display());
                let hint = "make one with `zonal up`, or name one with --cell DIR|ADDRESS";
                return Err(Failure::new(NOT_FOUND, text).hint(hint).into());
            }
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let file: CellFile = toml::from_str(&text).map_err(|error| {
            Failure::new(CONFIG, format!("{}: {}", path.display(), error.message()))
        })?;
        Ok(Self { dir, file })
    }

    /// Writes `cell.toml`, last of all files of a new cell.
    pub fn save(&self) -> anyhow::Result<()> {
        let text = toml::to_string_pretty(&self.file).context("cell.toml")?;
        replace(&self.dir.join(CELL_FILE), &text)
    }

    /// The cell's id.
    pub fn cell(&self) -> anyhow::Result<CellId> {
        let bad = |_error| {
            Failure::new(
                CONFIG,
                format!("{}: bad cell id", self.dir.join(CELL_FILE).display()),
            )
        };
        Ok(self.file.cell.parse().map_err(bad)?)
    }

    /// The config file of a node.
    pub fn config_path(&self, node: &str) -> PathBuf {
        self.dir.join(node).join("node.toml")
    }

    /// What each server process is to serve, with its name: one node, or two where the file was edited so.
    pub fn servers(&self) -> anyhow::Result<Vec<(String, Vec<NodeConfig>)>> {
        let names = self.file.nodes.iter();
        names
            .map(|name| Ok((name.clone(), NodeConfig::load(&self.config_path(name))?)))
            .collect()
    }

    /// The configs of all nodes.
    pub fn nodes(&self) -> anyhow::Result<Vec<NodeConfig>> {
        let servers = self.servers()?.into_iter();
        Ok(servers.flat_map(|(_name, nodes)| nodes).collect())
    }

    /// Keeps two commands from starting and stopping the same cell at once. Also where nothing can be written: what is there is stopped and checked.
    pub fn lock(dir: &Path) -> anyhow::Result<File> {
        let path = dir.join("lock");
        let file = match File::create(&path) {
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => File::open(&path),
            other => other,
        };
        file.and_then(|file| file.lock().map(|()| file))
            .with_context(|| path.display().to_string())
    }
}

/// Writes a file whole or not at all.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    fs::write(&new, text)
        .and_then(|()| fs::rename(&new, path))
        .with_context(|| path.display().to_string())
}
