//! `zonal fsck`: the stores of a stopped cell, checked and put right.

use crate::cell::folder::{Folder, default_dir};
use crate::exit::{Failure, with_causes};
use crate::out;
use anyhow::Context;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use zonal_disk::{Config, Identity, StoreKind};
use zonal_fsck::{Finding, What};
use zonal_object::TargetConfig;
use zonal_object::ids::BLOCK;
use zonal_offline::{Cell, Geometry, OfflineError, Options, Report, Stage, StoreSpec, Summary};
use zonal_server::NodeConfig;
use zonal_server::config::StoreConfig;
use zonal_types::Timestamp;

/// Findings were there and are put right.
const REPAIRED: u8 = 1;
/// Findings are left.
const LEFT: u8 = 4;
/// The check could not be made.
const NOT_CHECKED: u8 = 8;

/// Check the stores of a stopped cell, and repair them
///
/// Reads every store of the cell, compares what they say with one another, and names each inconsistency with its consequence.
/// Nothing is written without --repair. Exits with 0 where the cell is clean, 1 where everything found was put right, 4 where
/// something is left, 8 where the check could not be made.
#[derive(Debug, clap::Args)]
pub struct Fsck {
    /// Folder of the cell, made by `zonal up` [default: /var/lib/zonal/default for root, ~/.zonal/default for others]
    #[arg(long, value_name = "DIR", env = "ZONAL_CELL", hide_env_values = true)]
    cell: Option<PathBuf>,
    /// Configs of all nodes instead of a folder; may be given several times
    #[arg(long, value_name = "FILE", conflicts_with = "cell")]
    config: Vec<PathBuf>,
    /// Put right what is found
    #[arg(long)]
    repair: bool,
    /// Read every block of every file, too, and compare its checksum
    #[arg(long)]
    data: bool,
    /// One JSON object a finding, and one with the sums in the end
    #[arg(long)]
    json: bool,
    /// Tell how far it is, on standard error
    #[arg(long)]
    progress: bool,
    /// Folder for sorting: up to 400 bytes a file [default: `fsck` in the cell's folder, or beside the first config]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

struct Teller {
    json: bool,
    progress: bool,
    repair: bool,
}

impl Report for Teller {
    fn finding(&mut self, pass: u32, finding: &Finding) {
        if self.json {
            return out::line(to_json(pass, finding));
        }
        if pass > 1 {
            // What a repair brought to light; what is left is told by the sums.
            return;
        }
        out::line(format_args!("{finding}"));
        out::line(format_args!(
            "    consequence: {}",
            finding.what.consequence()
        ));
        if !self.repair {
            out::line(format_args!("    repair: {}", finding.what.repair()));
        }
    }

    fn progress(&mut self, stage: Stage) {
        if self.progress {
            let left = stage
                .left
                .map_or_else(String::new, |left| format!(", about {left} s left"));
            out::note(format_args!(
                "pass {}: {} records, {} a second{left}",
                stage.pass, stage.records, stage.rate
            ));
        }
    }

    fn repaired(&mut self, pass: u32, changes: u64) {
        if self.progress {
            out::note(format_args!("pass {pass}: {changes} repairs made"));
        }
    }
}

fn to_json(pass: u32, finding: &Finding) -> Value {
    let mut value = json!({
        "pass": pass,
        "name": finding.what.name(),
        "place": finding.place.to_string(),
        "class": format!("{:?}", finding.what.class()).to_lowercase(),
        "text": finding.what.to_string(),
        "consequence": finding.what.consequence(),
        "repair": finding.what.repair(),
    });
    if let Some(path) = &finding.path {
        value["path"] = json!(path);
    }
    if let What::LostWithTarget { ranges, .. }
    | What::Damaged { ranges, .. }
    | What::KnownLost { ranges, .. } = &finding.what
    {
        value["ranges"] = json!(ranges.first);
        value["ranges_count"] = json!(ranges.count);
        value["bytes"] = json!(ranges.bytes);
    }
    value
}

fn engine_config(config: &StoreConfig) -> Config {
    Config {
        log_bytes: config.log,
        overlay_bytes: usize::try_from(config.overlay).unwrap_or(usize::MAX),
        cache_bytes: usize::try_from(config.cache).unwrap_or(usize::MAX),
        ..Config::default()
    }
}

fn stores_of(config: &NodeConfig) -> Vec<StoreSpec> {
    let spec = |kind, id, dir, store: &StoreConfig, geometry| StoreSpec {
        node: config.node,
        dir,
        identity: Identity {
            cell: config.cell.0,
            kind,
            id,
        },
        config: engine_config(store),
        geometry,
    };
    let mut stores = Vec::new();
    if let Some(store) = &config.manager_role {
        let dir = config.manager_dir();
        stores.push(spec(StoreKind::Manager, config.node.0, dir, store, None));
    }
    if let Some(store) = &config.meta_role {
        let dir = config.meta_dir();
        stores.push(spec(StoreKind::Shard, config.node.0, dir, store, None));
    }
    if let Some(storage) = &config.storage_role {
        let geometry = Geometry {
            target: storage.target,
            config: TargetConfig {
                segment_units: u32::try_from(storage.segment / BLOCK).unwrap_or(u32::MAX),
                segments: u32::try_from(storage.capacity / storage.segment).unwrap_or(u32::MAX),
                pending_blocks_max: usize::try_from(storage.pending / BLOCK).unwrap_or(usize::MAX),
            },
            segment_bytes: storage.segment,
        };
        let (id, dir) = (storage.target.0, config.target_dir());
        stores.push(spec(
            StoreKind::Target,
            id,
            dir,
            &storage.store,
            Some(geometry),
        ));
    }
    stores
}

impl Fsck {
    pub fn run(self) -> anyhow::Result<()> {
        let (configs, folder) = if self.config.is_empty() {
            let dir = self.cell.clone().unwrap_or_else(default_dir);
            let folder = Folder::open(&dir)?;
            let configs = folder.configs()?.into_iter().map(|(_, config)| config);
            (configs.collect::<Vec<_>>(), Some(folder))
        } else {
            let configs = self.config.iter().map(|path| NodeConfig::load(path));
            (configs.collect::<Result<Vec<_>, _>>()?, None)
        };
        // Nobody starts the cell meanwhile.
        let _lock = folder
            .as_ref()
            .map(|folder| Folder::lock(&folder.dir))
            .transpose()?;
        let beside = || match (&folder, configs.first()) {
            (Some(folder), _) => folder.dir.join("fsck"),
            (None, Some(config)) => config.dir.join("fsck"),
            (None, None) => PathBuf::from("fsck"),
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let since = since.context("the clock")?;
        let options = Options {
            repair: self.repair,
            data: self.data,
            scratch: self.scratch.clone().unwrap_or_else(beside),
            wall: Timestamp {
                seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
                nanos: since.subsec_nanos(),
            },
        };
        let cell = Cell {
            stores: configs.iter().flat_map(stores_of).collect(),
        };
        be_quiet_about_the_library();
        let mut teller = Teller {
            json: self.json,
            progress: self.progress,
            repair: self.repair,
        };
        let start = Instant::now();
        let summary = zonal_offline::check(&cell, &options, &mut teller)
            .map_err(|error| not_checked(&error))?;
        self.conclude(&summary, start.elapsed().as_secs_f64())
    }

    fn conclude(&self, summary: &Summary, seconds: f64) -> anyhow::Result<()> {
        let Summary {
            found,
            notes,
            left,
            passes,
            changes,
            inodes,
            objects,
            records,
        } = *summary;
        if self.json {
            out::line(json!({
                "name": "summary",
                "found": found,
                "notes": notes,
                "left": left,
                "passes": passes,
                "changes": changes,
                "inodes": inodes,
                "objects": objects,
                "records": records,
                "seconds": seconds,
            }));
        } else {
            out::line(format_args!(
                "{inodes} inodes and {objects} objects in {seconds:.1} s: {found} findings, {notes} notes, {left} left"
            ));
        }
        if left > 0 {
            let text = format!("{left} findings are left");
            let hint = if self.repair {
                "what is lost is named above; restore it from elsewhere and remove what is damaged"
            } else {
                "`zonal fsck --repair` puts right what can be"
            };
            return Err(Failure::new(LEFT, text).hint(hint).into());
        }
        if found > 0 {
            let text = format!("{found} findings were put right, with {changes} changes");
            return Err(Failure::new(REPAIRED, text).into());
        }
        Ok(())
    }
}

fn not_checked(error: &OfflineError) -> Failure {
    let hint = match error {
        OfflineError::Running(_) => "a server has the store open: stop the cell with `zonal down`",
        OfflineError::Scratch { .. } => "name a folder with room by --scratch",
        OfflineError::NoManager => "name the configs of all nodes, the manager's too",
        _ => "the medium below may fail: look at the kernel's log",
    };
    Failure::new(NOT_CHECKED, with_causes(error)).hint(hint)
}

/// The library below the index panics on damaged bytes; that is caught and told as damage, so its own words are not shown.
fn be_quiet_about_the_library() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if info
            .location()
            .is_none_or(|place| !place.file().contains("redb"))
        {
            usual(info);
        }
    }));
}
