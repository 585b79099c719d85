//! `zonal target`: lists, exports and imports the objects of a target, takes targets out of use and
//! removes them.

use crate::cell::connection::{CellArgs, CellHandle};
use crate::cli::drain::DrainArgs;
use crate::cli::edit_args::EditArgs;
use crate::cli::output_args::{OutputArgs, ReportArgs};
use crate::cli::target_remove::{self, TargetUse, edit_map};
use crate::console;
use crate::exit::{FAILED, Failure, NOT_FOUND};
use crate::transfer::{
    self, ImportSummary, ObjectPaths, ObjectSource, RunningTarget, StoppedTarget,
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use zonal_basics::byte_size;
use zonal_object::ObjectId;
use zonal_types::{Column, DataId, TargetId};
use zonal_wire::ObjectEntry;
use zonal_zonemap::{MapEdit, TargetState};

/// List, export and import the objects of a target; drain targets, take them out of use, remove
/// empty ones
#[derive(Debug, clap::Subcommand)]
pub enum TargetCommand {
    /// List objects: data id and column, bytes, allocated bytes
    Ls {
        #[command(flatten)]
        which: TargetSelection,
        /// Show the path of each object's file (a running target)
        #[arg(long, conflicts_with = "dir")]
        paths: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Write objects to a file, with their positions and checksums; damaged ranges are reported and
    /// left out
    ///
    /// Exits with 1 if anything was damaged; the file then holds the rest. If a named object does
    /// not exist, nothing is written.
    Export {
        #[command(flatten)]
        which: TargetSelection,
        /// Only this object (several may be given) [default: all]
        #[arg(long, value_name = "DATA_ID.COLUMN")]
        object: Vec<ObjectName>,
        #[command(flatten)]
        output: OutputArgs,
        #[command(flatten)]
        telling: ReportArgs,
    },
    /// Write the objects of an exported file to a running target
    ///
    /// A file that is damaged, truncated, or of another cell or target changes nothing.
    Import {
        #[command(flatten)]
        cell: CellArgs,
        /// The target
        #[arg(long, value_name = "N")]
        target: u32,
        /// The file
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Overwrite objects that exist
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        telling: ReportArgs,
    },
    /// Remove an empty target from the cell that was added by mistake
    ///
    /// Refused with exit code 5 if it holds an object or if any file's layout names a stripe set
    /// with it; then nothing changes. All shards must be up; the target need not be. Its store is
    /// refused from then on. Its number is free again, and so is its node's if the node had nothing
    /// else. Stop its server, or remove the role from its node.toml. The only target of a zone
    /// stays.
    Remove {
        #[command(flatten)]
        edit: EditArgs,
        /// The target
        #[arg(long, value_name = "N")]
        target: u32,
        /// Keep new files off the target from now on, even if it cannot be removed yet
        #[arg(long)]
        retire: bool,
    },
    /// Keep new files off a target from now on; its files stay, and are read and written
    ///
    /// The only target of a zone stays in use.
    Disuse {
        #[command(flatten)]
        edit: EditArgs,
        /// The target
        #[arg(long, value_name = "N")]
        target: u32,
    },
    /// Move all objects of a target to other targets of its zone, then take it out of service
    ///
    /// Files stay in use. The leading manager does it, also after this command has ended; each new
    /// target fills its part. The only target of a zone stays. A drained target can be removed.
    Drain {
        #[command(flatten)]
        drain: DrainArgs,
        /// The target
        #[arg(long, value_name = "N")]
        target: u32,
    },
    /// Let new files use a target again
    Use {
        #[command(flatten)]
        edit: EditArgs,
        /// The target
        #[arg(long, value_name = "N")]
        target: u32,
    },
}

/// Arguments that select a running target, or the store of a stopped one.
#[derive(Debug, clap::Args)]
pub struct TargetSelection {
    #[command(flatten)]
    cell: CellArgs,
    /// A running target, through its server
    #[arg(long, value_name = "N", required_unless_present = "dir")]
    target: Option<u32>,
    /// The store of a stopped target: the folder with `identity`, `log` and so on; it is only read
    #[arg(long, value_name = "DIR", conflicts_with = "target")]
    dir: Option<PathBuf>,
}

/// An object's name: data id and column.
#[derive(Debug, Clone, Copy)]
pub struct ObjectName(ObjectId);

impl std::str::FromStr for ObjectName {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('.');
        let parsed = parts.and_then(|(data_id, column)| {
            Some(ObjectId {
                data_id: DataId(data_id.parse().ok()?),
                column: Column(column.parse().ok()?),
            })
        });
        parsed.map(Self).ok_or_else(|| {
            "a data id, a dot and a column, as `zonal target ls` shows them".to_owned()
        })
    }
}

impl TargetSelection {
    /// Opens the target and calls `with` with it and its cell.
    fn open<T>(
        &self,
        with: impl FnOnce(&mut dyn ObjectSource, [u8; 16], Option<&CellHandle>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if let Some(dir) = &self.dir {
            let mut stopped = StoppedTarget::open(dir)?;
            let cell = stopped.cell();
            return with(&mut stopped, cell, None);
        }
        let cell = self.cell.open()?;
        let map = cell.map()?;
        let target = TargetId(self.target.unwrap_or_default());
        let mut remote = RunningTarget::new(&cell, &map, target)?;
        with(&mut remote, map.cell.0, Some(&cell))
    }
}

impl TargetCommand {
    pub fn run(self) -> anyhow::Result<()> {
        match self {
            Self::Disuse { edit, target } => set_use(&edit, target, TargetState::Offline),
            Self::Use { edit, target } => set_use(&edit, target, TargetState::Serving),
            Self::Drain { drain, target } => drain.run(|_map| Ok(vec![TargetId(target)])),
            Self::Remove {
                edit,
                target,
                retire,
            } => {
                let (cell, map) = edit.open()?;
                let id = TargetId(target);
                if edit.preview {
                    let lines = TargetUse::of(&cell, &map, id)?.lines(edit.rate());
                    edit.previews(&map, &lines);
                    return Ok(());
                }
                target_remove::remove(&cell, &map, id, retire)?;
                console::line(format_args!(
                    "target {target} is out of the cell; its store is refused from now on"
                ));
                Ok(())
            }
            Self::Ls { which, paths, json } => which.open(|source, _cell_id, cell| {
                let names = cell.filter(|_| paths).map(ObjectPaths::new).transpose()?;
                ls(source, names, json)
            }),
            Self::Export {
                which,
                object,
                output,
                telling,
            } => {
                output.refuse_existing()?;
                let only: Vec<ObjectId> = object.iter().map(|name| name.0).collect();
                let mut progress = telling.progress("objects");
                let exported = which.open(|source, cell, _| {
                    transfer::export(source, cell, &only, &output.to, &mut progress)
                })?;
                report_export(&exported, &output.to, telling.json)
            }
            Self::Import {
                cell,
                target,
                from,
                force,
                telling,
            } => {
                let cell = cell.open()?;
                let map = cell.map()?;
                let remote = RunningTarget::new(&cell, &map, TargetId(target))?;
                let mut progress = telling.progress("objects");
                let imported = transfer::import(&remote, map.cell, &from, force, &mut progress)?;
                report_import(&imported, target, telling.json);
                Ok(())
            }
        }
    }
}

/// Takes a target out of use for new files, or puts it back into use.
fn set_use(args: &EditArgs, number: u32, state: TargetState) -> anyhow::Result<()> {
    let (cell, map) = args.open()?;
    let target = TargetId(number);
    let Some(known) = map.target(target) else {
        let failure = Failure::new(NOT_FOUND, format!("the cell has no target {target}"));
        let hint = "`zonal node ls` lists the targets of each node";
        return Err(failure.hint(hint).into());
    };
    let text = match state {
        TargetState::Offline => {
            format!("new files do without target {target}; its files stay where they are")
        }
        _serving if known.state.is_leaving() => {
            format!("objects that have left target {target} stay away; new files use it again")
        }
        _serving => format!("new files use target {target}"),
    };
    if known.state == state {
        console::line(format_args!("{text} already"));
        return Ok(());
    }
    if !args.previews(&map, std::slice::from_ref(&text)) {
        edit_map(&cell, &map, MapEdit::UseTarget { target, state })?;
        console::line(format_args!("{text} from now on"));
    }
    Ok(())
}

fn report_import(imported: &ImportSummary, target: u32, as_json: bool) {
    if as_json {
        let lost: u64 = imported.lost.iter().map(|(_, lost)| lost.length).sum();
        let shown = json!({
            "objects": imported.objects,
            "data_bytes": imported.data_bytes,
            "lost_bytes": lost,
            "removed": imported.removed.len(),
        });
        console::json(format_args!("{shown:#}"));
    } else {
        console::line(format_args!(
            "{} objects, {} of data, on target {target}",
            imported.objects,
            byte_size::rounded(imported.data_bytes)
        ));
    }
    for object in &imported.removed {
        console::note(format_args!(
            "object {object} was left out: its file was removed"
        ));
    }
    for (object, lost) in &imported.lost {
        console::note(format_args!(
            "object {object}: {} bytes at {} were damaged where they were exported, and read as zeros now",
            lost.length, lost.offset
        ));
    }
}

fn ls(
    source: &mut dyn ObjectSource,
    mut names: Option<ObjectPaths>,
    as_json: bool,
) -> anyhow::Result<()> {
    let mut show = |entry: &ObjectEntry| {
        let path = names.as_mut().map(|names| names.path(entry.data_id));
        if as_json {
            let mut shown = json!({
                "data_id": entry.data_id.0,
                "column": entry.column.0,
                "object_bytes": entry.object_bytes,
                "allocated_bytes": entry.allocated,
                "truncate_seq": entry.truncate_seq,
            });
            if let (Value::Object(fields), Some(path)) = (&mut shown, path) {
                fields.insert("path".into(), path.into());
            }
            console::json(shown);
        } else {
            let path = match path {
                Some(Some(path)) => format!("  {path}"),
                Some(None) => "  (no name)".to_owned(),
                None => String::new(),
            };
            console::line(format_args!(
                "{}.{}  {}  {}{path}",
                entry.data_id, entry.column, entry.object_bytes, entry.allocated
            ));
        }
    };
    let mut after = None;
    loop {
        let (objects, end) = source.list(after)?;
        objects.iter().for_each(&mut show);
        match objects.last() {
            Some(last) if !end => {
                after = Some(ObjectId {
                    data_id: last.data_id,
                    column: last.column,
                });
            }
            _ => break,
        }
    }
    names.map_or(Ok(()), ObjectPaths::close)
}

fn report_export(
    exported: &transfer::ExportSummary,
    to: &Path,
    as_json: bool,
) -> anyhow::Result<()> {
    if as_json {
        let damaged = exported.damaged.iter().map(|(object, lost)| {
            json!({
                "data_id": object.data_id.0,
                "column": object.column.0,
                "offset": lost.offset,
                "length": lost.length,
                "detail": lost.detail,
            })
        });
        let shown = json!({
            "file": to,
            "bytes": exported.bytes,
            "objects": exported.objects,
            "data_bytes": exported.data_bytes,
            "lost_bytes": exported.lost_bytes,
            "damaged": damaged.collect::<Vec<Value>>(),
        });
        console::json(format_args!("{shown:#}"));
    } else {
        console::line(format_args!(
            "{} objects, {} of data in {}",
            exported.objects,
            byte_size::rounded(exported.data_bytes),
            to.display()
        ));
        for (object, lost) in &exported.damaged {
            console::line(format_args!(
                "object {object}, {} bytes at {}: {}",
                lost.length, lost.offset, lost.detail
            ));
        }
    }
    if exported.lost_bytes > 0 {
        let text = format!(
            "{} bytes are damaged and were left out",
            exported.lost_bytes
        );
        return Err(Failure::new(FAILED, text).into());
    }
    Ok(())
}
