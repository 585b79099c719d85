//! Restore: makes a new store of a shard or a manager from a backup's entries, beside the store
//! that it replaces.
//!
//! The old store is not touched before the new one is complete ([`NewStore::finish`]). Then the old
//! folder is renamed, and stays until the administrator removes it. A restore cannot begin while a
//! process has the old store open.

use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::scrub_record::SHARD_SCRUB_KEY;
use crate::{store_starts, stores};
use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use zonal_disk::LogRoom;
use zonal_disk::identity::sync_dir;
use zonal_disk::{DiskError, Engine, StoreIdentity, StoreKind, trusted_paths};
use zonal_meta::restore;
use zonal_types::{ErrorCode, KvChange, PartitionId};
use zonal_zonemap::Assembly;

/// Bytes of keys and values in one record.
const RECORD_BYTES: usize = 256 << 10;
/// Names that are tried for the replaced folder.
const NAMES: u32 = 1000;

/// A new store in the making.
pub struct NewStore {
    /// Its final folder.
    dir: PathBuf,
    /// Its temporary folder.
    temporary: PathBuf,
    engine: Engine,
    kind: StoreKind,
    /// The backup's zone map.
    map: Assembly,
    /// Keys of reserved numbers that the backup has.
    reserved: BTreeSet<Vec<u8>>,
    batch: Vec<KvChange>,
    batch_bytes: usize,
    entries: u64,
    /// Lock of the old store, if there is one.
    _old: Option<File>,
}

fn store_error(dir: &Path) -> impl Fn(DiskError) -> ServerError + '_ {
    move |source| ServerError::Store {
        dir: dir.to_owned(),
        source,
    }
}

fn with_suffix(dir: &Path, suffix: &str) -> PathBuf {
    let mut name = dir.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Takes the lock of the store in `dir`, if there is one.
fn lock_old(dir: &Path) -> Result<Option<File>, DiskError> {
    let file = match File::open(dir.join("lock")) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(DiskError::io("lock file", error)),
    };
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Err(DiskError::Locked(dir.into())),
        Err(TryLockError::Error(error)) => Err(DiskError::io("lock file", error)),
    }
}

fn is_empty(dir: &Path) -> bool {
    fs::read_dir(dir).map_or(true, |mut entries| entries.next().is_none())
}

impl NewStore {
    /// Makes an empty store beside the store of the node's shard. `force`: also where there is one
    /// already.
    ///
    /// # Errors
    /// `AlreadyFormatted` where there is a store and no `force`; `Locked` where its process runs;
    /// those of the disk.
    pub fn begin(config: &NodeConfig, force: bool) -> Result<Self, ServerError> {
        let (dir, kind, store) = match (&config.manager_role, &config.meta_role) {
            (Some(store), _) => (config.manager_dir(), StoreKind::Manager, store),
            (None, Some(store)) => (config.meta_dir(), StoreKind::Shard, store),
            (None, None) => {
                let text = "the node has no metadata to restore".to_owned();
                return Err(store_error(&config.dir)(DiskError::Config(text)));
            }
        };
        let failed = store_error(&dir);
        // Before anything in the folder is read or removed.
        let above = trusted_paths::make(&config.dir).map_err(|error| failed(error.into()))?;
        if !is_empty(&dir) && !force {
            return Err(failed(DiskError::AlreadyFormatted(dir.clone())));
        }
        let old = lock_old(&dir).map_err(&failed)?;
        let temporary = with_suffix(&dir, ".restoring");
        // A remainder of an interrupted restore; nothing else has this name.
        let name = temporary.file_name().and_then(|name| name.to_str());
        above
            .remove(name.unwrap_or_default())
            .map_err(|error| failed(DiskError::io("remove an earlier try", error)))?;
        let identity = StoreIdentity {
            cell: config.cell.0,
            kind,
            id: config.node.0,
        };
        let bounds = stores::engine_config(store);
        let engine = Engine::format(&temporary, identity, &bounds)
            .and_then(|_stored| Engine::open(&temporary, &identity, bounds, &mut |_, _, _| true))
            .map_err(&failed)?;
        drop(failed);
        Ok(Self {
            dir,
            temporary,
            engine,
            kind,
            map: Assembly::default(),
            reserved: BTreeSet::new(),
            batch: Vec::new(),
            batch_bytes: 0,
            entries: 0,
            _old: old,
        })
    }

    /// The final folder of the store.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// True for a manager's store.
    #[must_use]
    pub fn is_manager(&self) -> bool {
        self.kind == StoreKind::Manager
    }

    /// Number of entries taken.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries
    }

    fn contents(&self, code: ErrorCode) -> ServerError {
        ServerError::Contents {
            dir: self.dir.clone(),
            code,
        }
    }

    /// Takes an entry of the backup.
    ///
    /// # Errors
    /// `Contents` for an entry that cannot be decoded; those of the disk.
    pub fn take(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), ServerError> {
        if store_starts::is_of_shard(&key) || key == SHARD_SCRUB_KEY {
            // Left out: start records and scrub records belong to the old stores.
            return Ok(());
        }
        let is_of_map = self.map.take(&key, &value);
        if is_of_map.map_err(|code| self.contents(code))? {
            self.entries += 1;
            return Ok(());
        }
        let value = restore::value(&key, value).map_err(|code| self.contents(code))?;
        if restore::is_reserved(&key) {
            self.reserved.insert(key.clone());
        }
        self.entries += 1;
        self.put(KvChange::put(key, value))
    }

    fn put(&mut self, change: KvChange) -> Result<(), ServerError> {
        self.batch_bytes += change.key.len() + change.value.as_ref().map_or(0, Vec::len);
        self.batch.push(change);
        if self.batch_bytes >= RECORD_BYTES {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), ServerError> {
        let batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        let written = self.engine.append_with(batch, &[], LogRoom::Normal);
        let checkpointed = written.and_then(|_lsn| {
            if self.engine.wants_checkpoint() {
                self.engine.checkpoint(&mut || Ok(()))?;
            }
            Ok(())
        });
        checkpointed.map_err(store_error(&self.dir))
    }

    /// Completes the store after its last entry and makes it durable. It does not replace the old
    /// one yet.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn finish(mut self, partitions: &[PartitionId]) -> Result<ReadyStore, ServerError> {
        if let Some(map) = std::mem::take(&mut self.map).finish() {
            for change in map.restored().to_store() {
                self.put(change)?;
            }
        }
        let has = |key: &[u8]| self.reserved.contains(key);
        let missing = restore::missing(partitions, has).map_err(|code| self.contents(code))?;
        for change in missing {
            self.put(change)?;
        }
        self.write()?;
        let settled = self.engine.checkpoint(&mut || Ok(()));
        settled.map_err(store_error(&self.dir))?;
        Ok(ReadyStore {
            dir: self.dir,
            temporary: self.temporary,
            _old: self._old,
        })
    }
}

/// A complete store, ready to replace the old one.
pub struct ReadyStore {
    dir: PathBuf,
    temporary: PathBuf,
    _old: Option<File>,
}

impl ReadyStore {
    /// Replaces the old store; returns the folder that now has the old store, if there was one.
    ///
    /// # Errors
    /// Those of the disk. A crash between the two renames leaves the old store under its new name
    /// and the new one under `.restoring`. The restore can then be run again.
    pub fn take_place(self) -> Result<Option<PathBuf>, ServerError> {
        let failed = store_error(&self.dir);
        let moved = |what: &str, error| failed(DiskError::io(what, error));
        let mut kept = None;
        if is_empty(&self.dir) {
            match fs::remove_dir(&self.dir) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(moved("remove the empty folder", error));
                }
                _ => {}
            }
        } else {
            let names =
                (1..=NAMES).map(|number| with_suffix(&self.dir, &format!(".replaced-{number}")));
            let free = names.into_iter().find(|name| !name.exists());
            let name = free.ok_or_else(|| {
                failed(DiskError::NoSpace(
                    "remove some of the .replaced-N folders".into(),
                ))
            })?;
            fs::rename(&self.dir, &name).map_err(|error| moved("keep the old store", error))?;
            kept = Some(name);
        }
        fs::rename(&self.temporary, &self.dir)
            .and_then(|()| sync_dir(self.dir.parent().unwrap_or(Path::new("."))))
            .map_err(|error| moved("put the new store in its place", error))?;
        Ok(kept)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    #[test]
    fn a_lock_that_cannot_be_looked_at_is_not_taken_for_free() {
        let scratch = Scratch::new("restore");
        assert!(matches!(lock_old(&scratch), Ok(None)));
        std::os::unix::fs::symlink("lock", scratch.join("lock")).unwrap();
        assert!(matches!(lock_old(&scratch), Err(DiskError::Io { .. })));
        fs::remove_file(scratch.join("lock")).unwrap();
        fs::write(scratch.join("lock"), b"").unwrap();
        let held = lock_old(&scratch).unwrap();
        assert!(held.is_some());
        assert!(matches!(lock_old(&scratch), Err(DiskError::Locked(_))));
    }
}
