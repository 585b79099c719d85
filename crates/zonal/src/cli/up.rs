//! `zonal up`: makes and starts a cell on this machine in one command.

use crate::cell::mount_records::MountRecords;
use crate::cell::plan::{self, CellShape};
use crate::cell::processes::{self, ServerProcess};
use crate::cell::{CellFolder, CellHandle, folder, mount_table};
use crate::console;
use crate::exit::{Failure, IN_USE, REFUSED, UNREACHABLE};
use crate::mount::options::MountSettings;
use crate::mount::{command as mounting, stale_sessions};
use anyhow::Context;
use rustix::fs::StatVfsMountFlags;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use zonal_disk::trusted_paths::{self, PathRefusal};
use zonal_server::NodeConfig;
use zonal_server::units::ByteSize;

/// Time for all servers together to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Default number of zones of a new cell.
const ZONES: u16 = 2;
/// Default number of storage servers in each zone.
const STORAGE_NODES: u32 = 3;

/// Make a cell on loopback, start its stopped servers, and mount it
///
/// The first run makes one folder in DIR for each server process: a manager, a metadata server a
/// zone, storage servers. Each has its config, store, credential and log. The cell's authority
/// (DIR/authority.pem) issues the credentials; every connection requires one. Commands find theirs
/// with `--cell DIR`; otherwise name it with --key-file DIR/cell.key. Later runs start stopped
/// servers; the shape of the cell stays.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// Folder of the cell [default: $ZONAL_CELL, else /var/lib/zonal/default for root,
    /// ~/.zonal/default for others]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Mount the cell here, in zone 1; the directory is made if missing
    #[arg(long, value_name = "PATH")]
    mount: Option<PathBuf>,
    /// Number of zones of a new cell; an existing cell must match, or nothing is started [default:
    /// 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    zones: Option<u16>,
    /// Storage servers in each zone of a new cell; an existing cell must match, or nothing is
    /// started [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    storage_nodes: Option<u32>,
    /// Replicas of each zone's metadata in a new cell, 1, 3 or 5: with three, any one of them may
    /// die
    #[arg(long, default_value_t = 1, value_parser = replica_count)]
    replicas: u8,
    /// Shards of each zone in a new cell, with `--replicas` servers each: a first-level directory
    /// goes to the least loaded one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    shards: u8,
    /// Capacity of each storage server of a new cell
    #[arg(long, default_value = "10 GiB", value_name = "SIZE")]
    capacity: ByteSize,
    /// Size of a segment file of a new cell
    #[arg(long, default_value = "64 MiB", value_name = "SIZE")]
    segment: ByteSize,
    /// Make a cell without keys: every user of this machine can read and change all of it
    #[arg(long)]
    no_key: bool,
    /// Storage servers of a new cell run commands of jobs (`zonal run`), as this user or, for root,
    /// as any
    #[arg(long)]
    agent: bool,
    /// Make a cell with keys, the default
    #[arg(long, hide = true, conflicts_with = "no_key")]
    key: bool,
}

/// A server of the cell, and its process if this command started it.
struct Started {
    name: String,
    /// Config file.
    config: PathBuf,
    /// The nodes in the config.
    nodes: Vec<NodeConfig>,
    child: Option<Child>,
    /// Length of the log before this start.
    log_from: u64,
}

impl Up {
    pub fn run(self) -> anyhow::Result<()> {
        let dir = folder::own_dir(self.dir.as_deref())?;
        [Some(&dir), self.mount.as_ref()]
            .into_iter()
            .flatten()
            .try_for_each(|path| refuse_odd_bytes(path))?;
        let trusted = trusted_paths::make(&dir).map_err(|error| match &error {
            PathRefusal::Kind { .. } => no_folder(&error),
            PathRefusal::Io { source, .. }
                if matches!(
                    source.kind(),
                    ErrorKind::NotADirectory | ErrorKind::ReadOnlyFilesystem
                ) =>
            {
                no_folder(&error)
            }
            _ => error.into(),
        })?;
        let dir = trusted.path().to_owned();
        refuse_read_only(&dir)?;
        if !CellFolder::is_cell(&dir)
            && let Err(error) = check_empty(&trusted)
            && !is_made_by_another(&trusted)
        {
            return Err(error);
        }
        let _lock = CellFolder::lock(&dir)?;
        // Another command may have made the cell while this one waited for the lock.
        let is_new = !CellFolder::is_cell(&dir);
        let folder = if is_new {
            let shape = CellShape {
                zones: self.zones.unwrap_or(ZONES),
                storage_nodes: self.storage_nodes.unwrap_or(STORAGE_NODES),
                replicas: self.replicas,
                shards: self.shards,
                capacity: self.capacity,
                segment: self.segment,
                key: !self.no_key,
                agent: self.agent,
            };
            console::line(format_args!("making a cell in {}", dir.display()));
            plan::make(&dir, &shape)?
        } else {
            let folder = CellFolder::open(&dir)?;
            self.refuse_other_shape(&folder)?;
            folder
        };
        let cell = CellHandle::of_folder(&folder)?;
        let mut servers = start_all(&folder, &cell)?;
        wait_for_all(&cell, &mut servers)?;
        stale_sessions::end_sessions(&cell);
        if let Some(path) = &self.mount {
            mount(&folder, path)?;
        }
        super::zone_map::print(&cell.map()?);
        self.say_what_next(&folder);
        Ok(())
    }

    /// Refuses another shape for an existing cell, whose shape is fixed: the caller would wait for
    /// servers that never come.
    fn refuse_other_shape(&self, folder: &CellFolder) -> anyhow::Result<()> {
        let mut storage_nodes: BTreeMap<u16, u32> = BTreeMap::new();
        for config in folder.nodes()? {
            let nodes = storage_nodes.entry(config.zone.number().0).or_default();
            *nodes += u32::from(config.storage_role.is_some());
        }
        let zones = storage_nodes.len();
        let has_zones = self.zones.is_none_or(|asked| usize::from(asked) == zones);
        let has_nodes = self
            .storage_nodes
            .is_none_or(|asked| storage_nodes.values().all(|nodes| *nodes == asked));
        if has_zones && has_nodes {
            return Ok(());
        }
        let each: Vec<String> = storage_nodes
            .iter()
            .map(|(zone, nodes)| format!("{nodes} in zone {zone}"))
            .collect();
        let text = format!(
            "the cell in {} has another shape (zones: {zones}; storage servers: {}); nothing was changed",
            folder.dir.display(),
            each.join(", ")
        );
        let hint = "omit --zones and --storage-nodes to start it as it is, or name another folder with --dir";
        Err(Failure::new(REFUSED, text).hint(hint).into())
    }

    fn say_what_next(&self, folder: &CellFolder) {
        let dir = folder.dir.display();
        console::line("");
        match &self.mount {
            Some(path) => {
                let path = path.display();
                console::line(format_args!("mounted on {path}; try:"));
                console::line(format_args!(
                    "  zonal mkdir --zone 1 {path}/a && cp -r /usr/include {path}/a"
                ));
                console::line(format_args!("  zonal locate {path}/a/include/stdio.h"));
            }
            None => {
                console::line("mount it:");
                console::line(format_args!("  zonal mount --cell {dir} PATH"));
            }
        }
        console::line(format_args!("  zonal status --cell {dir}"));
        if folder.file.key_file.is_none() {
            console::line(
                "the cell has no keys: every user of this machine can read and change it",
            );
        }
        console::line(format_args!("  zonal down --dir {dir}"));
    }
}

fn replica_count(text: &str) -> Result<u8, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        "5" => Ok(5),
        _ => Err("1, 3 or 5: an even number survives no more than one less".into()),
    }
}

fn no_folder(error: &PathRefusal) -> anyhow::Error {
    let failure = Failure::new(REFUSED, error.to_string());
    failure.hint("name a folder with --dir").into()
}

/// Refuses a read-only file system: servers write from their first moment on.
fn refuse_read_only(dir: &Path) -> anyhow::Result<()> {
    let found = rustix::fs::statvfs(dir).with_context(|| dir.display().to_string())?;
    if !found.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Ok(());
    }
    let text = format!("{}: Read-only file system", dir.display());
    let hint =
        "name a folder with --dir; `zonal fsck --scratch DIR` checks a cell that is there as it is";
    Err(Failure::new(REFUSED, text).hint(hint).into())
}

/// Refuses a path that is not UTF-8: configs, records and messages are text.
fn refuse_odd_bytes(path: &Path) -> anyhow::Result<()> {
    if path.to_str().is_some() {
        return Ok(());
    }
    let text = format!("{} is not UTF-8; nothing was touched", path.display());
    Err(Failure::new(REFUSED, text)
        .hint("name a path that is text")
        .into())
}

/// Whether another command, which held the lock, has completed the cell.
fn is_made_by_another(dir: &trusted_paths::Folder) -> bool {
    let lock = dir.file("lock").ok().flatten();
    lock.is_some_and(|lock| lock.lock().is_ok()) && CellFolder::is_cell(dir.path())
}

fn check_empty(trusted: &trusted_paths::Folder) -> anyhow::Result<()> {
    let dir = trusted.path();
    let entries = std::fs::read_dir(dir).with_context(|| dir.display().to_string())?;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if name == "lock" || name == "lost+found" {
            continue;
        }
        if let Some(name) = name.to_str()
            && plan::is_unfinished(trusted, name)?
        {
            continue;
        }
        let text = format!(
            "{} is not empty and no cell; nothing was touched",
            dir.display()
        );
        return Err(Failure::new(5, text)
            .hint("name an empty folder with --dir")
            .into());
    }
    Ok(())
}

fn start_all(folder: &CellFolder, cell: &CellHandle) -> anyhow::Result<Vec<Started>> {
    let servers = folder.servers()?.into_iter();
    let mut servers: Vec<Started> = servers
        .map(|(name, nodes)| Started {
            config: folder.config_path(&name),
            name,
            nodes,
            child: None,
            log_from: 0,
        })
        .collect();
    // All servers are checked before the first is started.
    servers
        .iter()
        .try_for_each(|server| server.refuse_stranger(cell))?;
    servers.iter_mut().try_for_each(Started::start_if_down)?;
    Ok(servers)
}

impl Started {
    fn process(&self) -> ServerProcess {
        ServerProcess {
            name: self.name.clone(),
            config: self.config.clone(),
        }
    }

    /// Fails if a process that this command cannot have started serves this node: it holds the
    /// store, so a second process would end at once.
    fn refuse_stranger(&self, cell: &CellHandle) -> anyhow::Result<()> {
        let process = self.process();
        let dir = cell.folder.as_ref().map(|folder| folder.dir.display());
        let dir = dir.map_or(String::new(), |dir| dir.to_string());
        if let Some(old) = process.moved_from() {
            let text = format!(
                "{} runs, but was started with {}: the folder was moved; nothing was started",
                self.name,
                old.display()
            );
            let hint = format!("`zonal down --dir {dir}` stops it, then `zonal up --dir {dir}`");
            return Err(Failure::new(IN_USE, text).hint(hint).into());
        }
        if process.running().is_some() {
            return Ok(());
        }
        let answers = |node: &&NodeConfig| cell.probe(node.advertise, node.node).is_ok();
        if let Some(node) = self.nodes.iter().find(answers) {
            let text = format!(
                "another process answers as {} at {}; nothing was started",
                self.name, node.advertise
            );
            let hint = "it may be of a copy of this folder, or run by `zonal server`; `ps -ef | grep 'zonal server'` shows it";
            return Err(Failure::new(IN_USE, text).hint(hint).into());
        }
        Ok(())
    }

    fn start_if_down(&mut self) -> anyhow::Result<()> {
        let process = self.process();
        if self.child.is_none() && process.running().is_none() {
            let roles: Vec<&str> = self.nodes.iter().flat_map(NodeConfig::roles).collect();
            let (child, log_from) = process.start(&roles.join(","))?;
            (self.child, self.log_from) = (Some(child), log_from);
        }
        Ok(())
    }

    /// Fails if the process that this command started has ended.
    fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.child {
            Some(child) => match child.try_wait().context("wait")? {
                Some(status) => Err(processes::start_failure(
                    &self.name,
                    &self.config,
                    status,
                    self.log_from,
                )),
                None => Ok(()),
            },
            // A process that was just killed may have looked alive.
            None => self.start_if_down(),
        }
    }
}

fn wait_for_all(cell: &CellHandle, servers: &mut [Started]) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for index in 0..servers.len() {
        loop {
            // Any server may be the reason that the awaited one does not answer.
            servers.iter_mut().try_for_each(Started::check)?;
            let server = &servers[index];
            let probes = server.nodes.iter();
            let mut probes = probes.map(|node| cell.probe(node.advertise, node.node));
            let Some(error) = probes.find_map(Result::err) else {
                break;
            };
            if Instant::now() > deadline {
                let log = processes::log_file(&server.config);
                let text = format!(
                    "{} does not answer within {} s ({error}); the end of its log:\n  {}",
                    server.name,
                    PATIENCE.as_secs(),
                    processes::tail(&log, server.log_from)
                );
                return Err(Failure::new(UNREACHABLE, text)
                    .hint(format!("all of it is in {}", log.display()))
                    .into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    Ok(())
}

fn mount(folder: &CellFolder, path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path)
        .or_else(|error| {
            if mount_table::is_mounted(path) {
                Ok(())
            } else {
                Err(error)
            }
        })
        .with_context(|| path.display().to_string())?;
    let path = folder::absolute(path)?;
    if mount_table::is_mounted(&path) {
        let records = MountRecords::below(folder);
        let record = records
            .list()
            .into_iter()
            .find(|record| record.path == path);
        match record {
            Some(record) if record.lives() => return Ok(()),
            // Its process died: the mount that remains answers nobody.
            Some(record) => record.unmount(&records)?,
            None => {
                let text = format!("something else is mounted on {}", path.display());
                let hint = format!("zonal umount {}", path.display());
                return Err(Failure::new(IN_USE, text).hint(hint).into());
            }
        }
    }
    let options = MountSettings::new(folder.dir.display().to_string(), path);
    mounting::run(&options).context("the cell is up, but cannot be mounted")
}
