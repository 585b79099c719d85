//! `zonal up`: a cell on this machine in one command.

use crate::cell::mounts::Records;
use crate::cell::plan::{self, Shape};
use crate::cell::processes::{self, Process};
use crate::cell::{Cell, Folder, folder, points};
use crate::exit::{Failure, IN_USE, REFUSED, UNREACHABLE};
use crate::mount::options::Options;
use crate::mount::{command as mounting, dead};
use crate::out;
use anyhow::Context;
use rustix::fs::StatVfsMountFlags;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use zonal_disk::trusted_paths::{self, Distrust};
use zonal_server::NodeConfig;
use zonal_server::units::Size;

/// How long all servers together may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Zones of a new cell, and storage servers in each, where nobody says.
const ZONES: u16 = 2;
/// See above.
const STORAGE_NODES: u32 = 3;

/// Make a cell on loopback, start what of it is down, and mount it
///
/// The first time, DIR gets one folder for each server process (a manager, a metadata server a
/// zone, storage servers) with its config, store, credential and log. The cell's authority
/// (DIR/authority.pem) made the credentials; no connection goes without one. Commands find theirs
/// with `--cell DIR`, others take it with --key-file DIR/cell.key. Later runs start what is down;
/// the shape of the cell stays.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// Folder of the cell [default: $ZONAL_CELL, else /var/lib/zonal/default for root,
    /// ~/.zonal/default for others]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Mount the cell here, in zone 1; the directory is made if need be
    #[arg(long, value_name = "PATH")]
    mount: Option<PathBuf>,
    /// Zones of a new cell; one that is there has as many, or nothing is started [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=64))]
    zones: Option<u16>,
    /// Storage servers in each zone of a new cell; one that is there has as many, or nothing is
    /// started [default: 3]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=64))]
    storage_nodes: Option<u32>,
    /// Bytes that each storage server of a new cell may use
    #[arg(long, default_value = "10 GiB", value_name = "SIZE")]
    capacity: Size,
    /// Bytes of a segment file of a new cell
    #[arg(long, default_value = "64 MiB", value_name = "SIZE")]
    segment: Size,
    /// A new cell without keys: every user of this machine can read and change all of it
    #[arg(long)]
    no_key: bool,
    /// A new cell with keys, as is usual
    #[arg(long, hide = true, conflicts_with = "no_key")]
    key: bool,
}

/// One server of the cell, with the process if this command started it.
struct Started {
    name: String,
    /// Its file.
    config: PathBuf,
    /// What that says.
    nodes: Vec<NodeConfig>,
    child: Option<Child>,
    /// Where its log begins, of that process.
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
            Distrust::Kind { .. } => no_folder(&error),
            Distrust::Io { source, .. }
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
        if !Folder::is_cell(&dir)
            && let Err(error) = check_empty(&trusted)
            && !is_made_by_another(&trusted)
        {
            return Err(error);
        }
        let _lock = Folder::lock(&dir)?;
        // Another command may have made it while this one waited for the lock.
        let is_new = !Folder::is_cell(&dir);
        let folder = if is_new {
            let shape = Shape {
                zones: self.zones.unwrap_or(ZONES),
                storage_nodes: self.storage_nodes.unwrap_or(STORAGE_NODES),
                capacity: self.capacity,
                segment: self.segment,
                key: !self.no_key,
            };
            out::line(format_args!("making a cell in {}", dir.display()));
            plan::make(&dir, &shape)?
        } else {
            let folder = Folder::open(&dir)?;
            self.refuse_other_shape(&folder)?;
            folder
        };
        let cell = Cell::of_folder(&folder)?;
        let mut servers = start_all(&folder, &cell)?;
        wait_for_all(&cell, &mut servers)?;
        dead::end_sessions(&cell);
        if let Some(path) = &self.mount {
            mount(&folder, path)?;
        }
        super::zone_map::print(&cell.map()?);
        self.say_what_next(&folder);
        Ok(())
    }

    /// The shape of a cell stays: who asks for another one would wait for servers that never come.
    fn refuse_other_shape(&self, folder: &Folder) -> anyhow::Result<()> {
        let mut storage_nodes: BTreeMap<u16, u32> = BTreeMap::new();
        for config in folder.nodes()? {
            let nodes = storage_nodes.entry(config.zone.0).or_default();
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
        let hint = "leave --zones and --storage-nodes away to start it as it is, or name another folder with --dir";
        Err(Failure::new(REFUSED, text).hint(hint).into())
    }

    fn say_what_next(&self, folder: &Folder) {
        let dir = folder.dir.display();
        out::line("");
        match &self.mount {
            Some(path) => {
                let path = path.display();
                out::line(format_args!("mounted on {path}; try:"));
                out::line(format_args!(
                    "  zonal mkdir --zone 1 {path}/a && cp -r /usr/include {path}/a"
                ));
                out::line(format_args!("  zonal locate {path}/a/include/stdio.h"));
            }
            None => {
                out::line("mount it:");
                out::line(format_args!("  zonal mount --cell {dir} PATH"));
            }
        }
        out::line(format_args!("  zonal status --cell {dir}"));
        if folder.file.key_file.is_none() {
            out::line("the cell has no keys: every user of this machine can read and change it");
        }
        out::line(format_args!("  zonal down --dir {dir}"));
    }
}

fn no_folder(error: &Distrust) -> anyhow::Error {
    let failure = Failure::new(REFUSED, error.to_string());
    failure.hint("name a folder with --dir").into()
}

/// Servers write there from their first moment on.
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

/// Paths go into configs, records and messages, which are text.
fn refuse_odd_bytes(path: &Path) -> anyhow::Result<()> {
    if path.to_str().is_some() {
        return Ok(());
    }
    let text = format!("{} is not UTF-8; nothing was touched", path.display());
    Err(Failure::new(REFUSED, text)
        .hint("name a path that is text")
        .into())
}

/// Whether a command that was making a cell here, and so has the lock, has made it.
fn is_made_by_another(dir: &trusted_paths::Folder) -> bool {
    let lock = dir.file("lock").ok().flatten();
    lock.is_some_and(|lock| lock.lock().is_ok()) && Folder::is_cell(dir.path())
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

fn start_all(folder: &Folder, cell: &Cell) -> anyhow::Result<Vec<Started>> {
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
    // All are looked at before the first is started.
    servers
        .iter()
        .try_for_each(|server| server.refuse_stranger(cell))?;
    servers.iter_mut().try_for_each(Started::start_if_down)?;
    Ok(servers)
}

impl Started {
    fn process(&self) -> Process {
        Process {
            name: self.name.clone(),
            config: self.config.clone(),
        }
    }

    /// Fails where a process serves this node that this command cannot have started: it holds the
    /// store, and what was started beside it would end at once.
    fn refuse_stranger(&self, cell: &Cell) -> anyhow::Result<()> {
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

    /// Fails where the process that this command started has ended.
    fn check(&mut self) -> anyhow::Result<()> {
        match &mut self.child {
            Some(child) => match child.try_wait().context("wait")? {
                Some(status) => Err(processes::died(
                    &self.name,
                    &self.config,
                    status,
                    self.log_from,
                )),
                None => Ok(()),
            },
            // One that was just killed may have looked alive.
            None => self.start_if_down(),
        }
    }
}

fn wait_for_all(cell: &Cell, servers: &mut [Started]) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    for index in 0..servers.len() {
        loop {
            // Any of them may be the reason why the one waited for does not come up.
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

fn mount(folder: &Folder, path: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(path)
        .or_else(|error| {
            if points::is_mounted(path) {
                Ok(())
            } else {
                Err(error)
            }
        })
        .with_context(|| path.display().to_string())?;
    let path = folder::absolute(path)?;
    if points::is_mounted(&path) {
        let records = Records::below(folder);
        let record = records
            .list()
            .into_iter()
            .find(|record| record.path == path);
        match record {
            Some(record) if record.lives() => return Ok(()),
            // Its process died: what is left of it answers nobody.
            Some(record) => record.unmount(&records)?,
            None => {
                let text = format!("something else is mounted on {}", path.display());
                let hint = format!("zonal umount {}", path.display());
                return Err(Failure::new(IN_USE, text).hint(hint).into());
            }
        }
    }
    let options = Options::new(folder.dir.display().to_string(), path);
    mounting::run(&options).context("the cell is up, but cannot be mounted")
}
