//! `zonal meta`: backups of metadata.

use crate::backup;
use crate::cell::CellFolder;
use crate::cell::connection::CellArgs;
use crate::cli::output_args::{OutputArgs, ReportArgs};
use crate::console;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zonal_server::{NodeConfig, ServerError};

/// Back up and restore metadata: names, attributes, layouts, the zone map, first bytes of files
#[derive(Debug, clap::Subcommand)]
pub enum Meta {
    /// Write a snapshot of all shards to a file while the cell runs
    ///
    /// All of it is of one moment, durable and checksummed. The first bytes of files (4 KiB by
    /// default) lie with the metadata and are part of it, in clear; what else files hold stays on
    /// the targets and is not. Nobody else can read it (mode 0600). Its checksums find damage; they
    /// do not keep anybody from changing it who can write it.
    Backup {
        #[command(flatten)]
        cell: CellArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        telling: ReportArgs,
    },
    /// Make the metadata stores of a stopped cell out of a backup
    ///
    /// Take a backup that nobody else could write: it says who may do what, and is not
    /// authenticated. Unmount the cell everywhere first. The stores that are replaced stay beside
    /// the new ones under the name `...replaced-N`. Files made since the backup are gone from the
    /// name space, and `zonal fsck` lists their objects. The first bytes of files (4 KiB by
    /// default) are those of the backup. Behind them, files removed since are back without their
    /// bytes, and what was written since then stays up to the size of then: such a file is of two
    /// moments.
    Restore {
        /// Folder of the cell [default: as for `zonal up`]
        #[arg(long, value_name = "DIR", conflicts_with = "config")]
        cell: Option<PathBuf>,
        /// Configs of the nodes to restore, where the cell was not made by `zonal up`
        #[arg(long, value_name = "FILE")]
        config: Vec<PathBuf>,
        /// The backup
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Also where there are stores
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        telling: ReportArgs,
    },
}

impl Meta {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Backup {
                cell,
                output,
                telling,
            } => back_up(&cell, &output, &telling),
            Self::Restore {
                cell,
                config,
                from,
                force,
                telling,
            } => {
                let configs = configs(cell.as_deref(), &config)?;
                restore(&configs, config.is_empty(), &from, (force, &telling))
            }
        }
    }
}

fn back_up(cell: &CellArgs, output: &OutputArgs, telling: &ReportArgs) -> anyhow::Result<()> {
    output.refuse_existing()?;
    let cell = cell.open()?;
    let to = &output.to;
    let taken = backup::take(&cell, to, &mut telling.progress("entries"))?;
    if telling.json {
        let shards = taken.shards.iter().map(|shard| {
            json!({
                "shard": shard.shard.0,
                "node": shard.node.0,
                "epoch": shard.epoch.0,
                "position": shard.position,
            })
        });
        let shown = json!({
            "file": to,
            "bytes": taken.bytes,
            "entries": taken.entries,
            "map_version": taken.map_version,
            "shards": shards.collect::<Vec<Value>>(),
        });
        console::json(format_args!("{shown:#}"));
    } else {
        console::line(format_args!(
            "{} shards, {} entries, {} in {}",
            taken.shards.len(),
            taken.entries,
            console::bytes(taken.bytes),
            to.display()
        ));
    }
    Ok(())
}

fn configs(cell: Option<&Path>, files: &[PathBuf]) -> anyhow::Result<Vec<NodeConfig>> {
    if !files.is_empty() {
        return Ok(NodeConfig::load_all(files).map_err(ServerError::from)?);
    }
    CellFolder::open(&crate::cell::folder::own_dir(cell)?)?.nodes()
}

fn restore(
    configs: &[NodeConfig],
    is_folder: bool,
    from: &Path,
    (force, telling): (bool, &ReportArgs),
) -> anyhow::Result<()> {
    let restored = backup::restore(configs, from, force, &mut telling.progress("entries"))?;
    if telling.json {
        let shards = restored.iter().map(|done| {
            json!({
                "shard": done.shard.0,
                "dir": done.dir,
                "entries": done.entries,
                "kept": done.kept,
            })
        });
        let shown = json!({ "shards": shards.collect::<Vec<Value>>() });
        console::json(format_args!("{shown:#}"));
        return Ok(());
    }
    for done in &restored {
        console::line(format_args!(
            "shard {}: {} entries in {}",
            done.shard,
            done.entries,
            done.dir.display()
        ));
        if let Some(kept) = &done.kept {
            console::line(format_args!("  the store before is in {}", kept.display()));
        }
    }
    console::line(format_args!(
        "now: `zonal fsck` tells what is younger than the backup; {}",
        if is_folder {
            "`zonal up` starts the cell"
        } else {
            "then start its servers, the manager's first"
        }
    ));
    Ok(())
}
