//! Repairs of a shard's store: small effects, through its own engine and log.

use crate::cell::{CellStores, StoreSpec};
use crate::check::CheckOptions;
use crate::error::OfflineError;
use crate::pass::{RepairList, shard_of};
use std::sync::Arc;
use zonal_disk::LogRoom;
use zonal_disk::{DiskError, Engine};
use zonal_meta::check::Broken;
use zonal_meta::repair::repair_key;
use zonal_meta::{MetaShard, Now, ShardConfig};
use zonal_types::{ErrorCode, Ino, Instant, KvChange, KvRead, ZoneId};
use zonal_zonemap::ZoneMap;

/// A shard's store, opened for changes.
pub(crate) struct Open<'a> {
    pub spec: &'a StoreSpec,
    pub engine: Engine,
    pub config: ShardConfig,
    pub now: Now,
    pub changes: u64,
}

impl<'a> Open<'a> {
    pub fn new(
        spec: &'a StoreSpec,
        map: &ZoneMap,
        options: &CheckOptions,
    ) -> Result<Option<Self>, OfflineError> {
        let Some(shard) = shard_of(spec, map) else {
            return Ok(None);
        };
        let zone = map.shard(shard).map_or(ZoneId(1), |shard| shard.zone);
        let opened = Engine::open(&spec.dir, &spec.identity, spec.config, &mut |_, _, _| true);
        let engine = opened.map_err(|source| failed(spec, source))?;
        Ok(Some(Self {
            spec,
            engine,
            config: ShardConfig::new(shard, zone, 0),
            now: Now {
                instant: Instant(0),
                wall: options.wall,
            },
            changes: 0,
        }))
    }

    /// Logs one effect.
    pub fn append(&mut self, changes: Vec<KvChange>) -> Result<(), OfflineError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.changes += 1;
        let appended = self.engine.append_with(changes, &[], LogRoom::Reserve);
        let appended = appended.map_err(|source| failed(self.spec, source))?;
        let _ = appended;
        if self.engine.wants_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }

    pub fn checkpoint(&self) -> Result<(), OfflineError> {
        let made = self.engine.checkpoint(&mut || Ok(()));
        made.map_err(|source| failed(self.spec, source))
    }

    /// Makes all effects durable; returns their number.
    pub fn close(self) -> Result<u64, OfflineError> {
        let synced = self.engine.sync_all();
        synced.map_err(|source| failed(self.spec, source))?;
        self.checkpoint()?;
        Ok(self.changes)
    }

    /// Loads the shard's core over the store.
    pub fn shard(&self, map: &Arc<ZoneMap>) -> Result<MetaShard, OfflineError> {
        let loaded = MetaShard::load(
            self.config.clone(),
            Arc::clone(map),
            &self.engine,
            self.now.instant,
        );
        loaded.map_err(|code| OfflineError::Contents {
            dir: self.spec.dir.clone(),
            code,
        })
    }
}

pub(crate) fn failed(spec: &StoreSpec, source: DiskError) -> OfflineError {
    match source {
        DiskError::Locked(dir) => OfflineError::Running(dir),
        source => OfflineError::Store {
            dir: spec.dir.clone(),
            source,
        },
    }
}

/// Name of a zone's directory for files without a name.
pub(crate) fn lost_found_name(zone: ZoneId) -> String {
    format!("lost+found-{zone}")
}

/// The directory for files without a name in a shard: the root itself in the root's shard. Another
/// shard of the same zone has one of its own, with a number behind the name.
pub(crate) fn lost_found(open: &Open<'_>, work: &RepairList) -> Option<Ino> {
    if open.config.is_root() {
        return Some(Ino::ROOT);
    }
    let base = lost_found_name(open.config.zone);
    let is_wanted = |name: &str| {
        let rest = name.strip_prefix(&base);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    let is_ours = |ino: Ino| {
        let shard = work.map.as_ref()?.shard_of(ino.partition())?;
        Some(shard.id == open.config.shard)
    };
    let mut named = work.root.iter();
    named
        .find(|(ino, name)| is_wanted(name) && is_ours(**ino) == Some(true))
        .map(|(ino, _)| *ino)
}

/// Repairs the findings of a shard's store. Returns the number of effects.
pub(crate) fn run(
    cell: &CellStores,
    at: usize,
    broken: &[Broken],
    work: &RepairList,
    options: &CheckOptions,
) -> Result<u64, OfflineError> {
    let (Some(spec), Some(map)) = (cell.stores.get(at), &work.map) else {
        return Ok(0);
    };
    let Some(mut open) = Open::new(spec, map, options)? else {
        return Ok(0);
    };
    let contents = |code| OfflineError::Contents {
        dir: spec.dir.clone(),
        code,
    };
    // Damaged keys first: the core may refuse to load with them.
    for found in broken {
        if let Broken::Key { key } = found {
            let changes = repair_key(&open.engine, key).map_err(contents)?;
            open.append(changes)?;
        }
    }
    let format = zonal_meta::keys::format();
    if open.engine.get(&format).map_err(contents)?.is_none() {
        let changes = MetaShard::format(&open.config, open.now.wall);
        let mut missing = Vec::new();
        for change in changes {
            if open.engine.get(&change.key).map_err(contents)?.is_none() {
                missing.push(change);
            }
        }
        open.append(missing)?;
    }
    let map = Arc::new(map.clone());
    let shard = open.shard(&map)?;
    let mut lost_found = lost_found(&open, work);
    for found in broken {
        if matches!(found, Broken::Key { .. }) {
            continue;
        }
        for _ in 0..2 {
            let is_first = |dir: Ino| work.listed.iter().any(|of| of.junction.ino == dir);
            let changes = shard.repair(&open.engine, open.now, lost_found, &is_first, found);
            match changes {
                Ok(changes) => {
                    open.append(changes)?;
                    break;
                }
                Err(ErrorCode::NotFound) if lost_found.is_none() => {
                    let made = shard.make_lost_found(&open.engine, open.now);
                    let (ino, changes) = made.map_err(contents)?;
                    open.append(changes)?;
                    lost_found = Some(ino);
                }
                // Another finding is in the way; its own repair removes it.
                Err(_) => break,
            }
        }
    }
    open.close()
}
