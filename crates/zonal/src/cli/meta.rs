//! `zonal meta`: backups of metadata.

use crate::backup;
use crate::cell::CellFolder;
use crate::cell::connection::CellArgs;
use crate::cli::output_args::{OutputArgs, ReportArgs};
use crate::console;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zonal_basics::byte_size;
use zonal_server::{NodeConfig, ServerError};

/// Back up and restore metadata: names, attributes, layouts, the zone map, first bytes of files
#[derive(Debug, clap::Subcommand)]
pub enum Meta {
    /// Write a snapshot of all shards to a file while the cell runs
    ///
    /// The backup is of one moment, durable and checksummed. It includes the first bytes of files
    /// (4 KiB by default) in clear, since they are stored with the metadata. All other file
    /// contents stay on the targets. Only the owner can read the file (mode 0600). Checksums detect
    /// damage; they do not protect against a change by someone who can write the file.
    Backup {
        #[command(flatten)]
        cell: CellArgs,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        telling: ReportArgs,
    },
    /// Make the metadata stores of a stopped cell from a backup
    ///
    /// Use only a backup that nobody else could write: it decides who may do what, and is not
    /// authenticated. Unmount the cell everywhere first. The replaced stores stay beside the new
    /// ones, named `...replaced-N`. Files made since the backup are gone from the name space, and
    /// `zonal fsck` lists their objects. The first bytes of files (4 KiB by default) are those of
    /// the backup. Behind them, files removed since are back without their bytes. Later writes stay
    /// up to the size at the backup, so a file may combine two moments.
    Restore {
        /// Folder of the cell [default: as for `zonal up`]
        #[arg(long, value_name = "DIR", conflicts_with = "config")]
        cell: Option<PathBuf>,
        /// Configs of the nodes to restore, for a cell not made by `zonal up`
        #[arg(long, value_name = "FILE")]
        config: Vec<PathBuf>,
        /// The backup
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Replace existing stores
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
            byte_size::rounded(taken.bytes),
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
        "now: `zonal fsck` lists objects newer than the backup; {}",
        if is_folder {
            "`zonal up` starts the cell"
        } else {
            "then start its servers, the manager's first"
        }
    ));
    Ok(())
}
