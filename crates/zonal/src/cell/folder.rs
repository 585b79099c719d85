//! The folder of a cell that `zonal up` made: `cell.toml`, one folder for each node, `mounts/`.
//!
//! ```text
//! DIR/cell.toml               cell id, manager's address, names of the nodes
//! DIR/NODE/node.toml          the node's config (see deploy/)
//! DIR/NODE/log, pid           of the process that `zonal up` started
//! DIR/NODE/manager|shard|target   stores
//! DIR/mounts/NAME.toml, .log  mounts of this cell on this machine
//! DIR/unfinished              nodes of a cell that is being made; removed when it is complete
//! ```

use super::cell_locator::CellLocator;
use crate::exit::{CONFIG, DAMAGED_HINT, Failure, NOT_FOUND, REFUSED};
use anyhow::Context;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use zonal_disk::trusted_paths::{self, PathRefusal};
use zonal_server::NodeConfig;
use zonal_types::CellId;

/// Name of the file that marks a folder as a cell's.
const CELL_FILE: &str = "cell.toml";

/// Name of a node's config in its folder.
const CONFIG_FILE: &str = "node.toml";

/// Largest `cell.toml` that is read, in bytes.
const CELL_FILE_MAX: u64 = 1 << 20;

/// Name of the file that a command locks while it starts or stops what is in the folder.
const LOCK: &str = "lock";

/// Contents of `cell.toml`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellFile {
    /// The cell's id, 32 hexadecimal digits.
    pub cell: String,
    /// A manager's address.
    pub manager: SocketAddr,
    /// Addresses of the other managers, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_managers: Vec<SocketAddr>,
    /// Credential file of commands, relative to the folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_file: Option<PathBuf>,
    /// Folders of the nodes, in the order in which `zonal up` starts them.
    pub nodes: Vec<String>,
}

/// The folder of a cell.
#[derive(Debug, Clone)]
pub struct CellFolder {
    /// Absolute path of the folder.
    pub dir: PathBuf,
    /// Contents of `cell.toml`.
    pub file: CellFile,
}

impl CellFile {
    /// Addresses of all managers.
    pub fn managers(&self) -> Vec<SocketAddr> {
        let all = std::iter::once(&self.manager).chain(&self.other_managers);
        all.copied().collect()
    }
}

/// The default folder of a cell: `$ZONAL_CELL`, else `/var/lib/zonal/default` for root and
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

/// The folder of a cell that this command starts, stops or writes in: `named`, or [`default_dir`].
pub fn own_dir(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let dir = default_dir();
    if dir.to_str().is_some_and(CellLocator::is_address) {
        let text = format!("ZONAL_CELL is an address: {}", dir.display());
        let failure = Failure::new(REFUSED, text);
        return Err(failure
            .hint("name the folder of a cell on this machine")
            .into());
    }
    Ok(dir)
}

/// Whether a name is a single path component inside the folder.
fn is_plain(name: &Path) -> bool {
    let mut parts = name.components();
    let is_normal =
        matches!(parts.next(), Some(Component::Normal(part)) if part == name.as_os_str());
    is_normal && parts.next().is_none()
}

/// Makes a path absolute, so that command lines and records stay valid in other directories.
pub fn absolute(path: &Path) -> anyhow::Result<PathBuf> {
    fs::canonicalize(path)
        .or_else(|_error| std::path::absolute(path))
        .with_context(|| format!("path {}", path.display()))
}

impl CellFolder {
    /// Whether a folder is the folder of a cell.
    pub fn is_cell(dir: &Path) -> bool {
        fs::symlink_metadata(dir.join(CELL_FILE)).is_ok_and(|found| found.is_file())
    }

    /// Opens the folder of a cell.
    pub fn open(dir: &Path) -> anyhow::Result<Self> {
        let none = || {
            let text = format!("no cell in {}", dir.display());
            let hint = "make one with `zonal up`, or name one with --cell DIR|ADDRESS";
            Failure::new(NOT_FOUND, text).hint(hint)
        };
        let trusted = match trusted_paths::open(dir) {
            Err(error) if error.is_missing() => return Err(none().into()),
            Err(PathRefusal::Kind { .. }) => return Err(none().into()),
            result => result?,
        };
        let dir = trusted.path().to_owned();
        let path = dir.join(CELL_FILE);
        let text = trusted.text(CELL_FILE, CELL_FILE_MAX)?.ok_or_else(none)?;
        let bad = |what: &str| {
            let failure = Failure::new(CONFIG, format!("{}: {what}", path.display()));
            failure.hint(DAMAGED_HINT)
        };
        let file: CellFile = toml::from_str(&text).map_err(|error| bad(error.message()))?;
        let names = file.nodes.iter().map(Path::new);
        if let Some(name) = names
            .chain(file.key_file.as_deref())
            .find(|name| !is_plain(name))
        {
            let what = format!(
                "{:?} is no single plain name in this folder",
                name.display().to_string()
            );
            return Err(bad(&what).into());
        }
        Ok(Self { dir, file })
    }

    /// Writes `cell.toml`; of a new cell this is the last file.
    pub fn save(&self) -> anyhow::Result<()> {
        let text = toml::to_string_pretty(&self.file).context("cell.toml")?;
        replace(&self.dir.join(CELL_FILE), &text)
    }

    /// The cell's id, decoded.
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
        self.dir.join(node).join(CONFIG_FILE)
    }

    /// The name of each server process with the nodes that it serves: one, or two where the config
    /// was edited so.
    pub fn servers(&self) -> anyhow::Result<Vec<(String, Vec<NodeConfig>)>> {
        let names = self.file.nodes.iter();
        names
            .map(|name| {
                let path = self.config_path(name);
                match trusted_paths::open(&self.dir.join(name))
                    .and_then(|dir| dir.file(CONFIG_FILE))
                {
                    Err(error) if !error.is_missing() => return Err(error.into()),
                    _ => {}
                }
                Ok((name.clone(), NodeConfig::load(&path)?))
            })
            .collect()
    }

    /// The configs of all nodes.
    pub fn nodes(&self) -> anyhow::Result<Vec<NodeConfig>> {
        let servers = self.servers()?.into_iter();
        Ok(servers.flat_map(|(_name, nodes)| nodes).collect())
    }

    /// Locks the folder, so that two commands do not start or stop the cell at once. Works on a
    /// read-only file system too: commands still stop and check the cell there.
    pub fn lock(dir: &Path) -> anyhow::Result<File> {
        let folder = trusted_paths::open(dir)?;
        let file = match folder.append(LOCK) {
            Err(PathRefusal::Io { source, .. })
                if source.kind() == ErrorKind::ReadOnlyFilesystem =>
            {
                folder.file(LOCK)?.with_context(|| source.to_string())
            }
            result => result.map_err(anyhow::Error::from),
        };
        let locked = file.and_then(|file| Ok(file.lock().map(|()| file)?));
        locked.with_context(|| dir.join(LOCK).display().to_string())
    }
}

/// Writes a file in a trusted folder, whole or not at all.
pub fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let name = path.file_name().and_then(OsStr::to_str);
    let (name, above) = name.zip(path.parent()).context("a path without a name")?;
    let folder = trusted_paths::open(above)?;
    let written = folder.replace(name, text.as_bytes(), 0o644);
    written.with_context(|| path.display().to_string())
}
