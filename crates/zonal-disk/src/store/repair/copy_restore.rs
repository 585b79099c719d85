//! Restores a damaged index from its copy with exactly the entries that it had. The log stays
//! unchanged.

use super::Filling;
use super::file_replacement::{FROM_COPY, place};
use crate::engine::EngineConfig;
use crate::files::error::DiskError;
use crate::files::identity::{self, StoreIdentity, Stored, sync_dir};
use crate::files::{COPIES, LOCK};
use crate::index::index_copy::restore::{self, Records};
use crate::index::{Index, IndexProgress};
use crate::log;
use crate::store::read_only::log_goes_on;
use crate::store::repair::NEW_INDEX;
use crate::store::take_lock;
use std::fs::{self, File};
use std::path::Path;

/// The identity of the store in `dir`; `uuid` is its own number, where the identity is damaged and
/// another source knows it.
fn stored(
    dir: &Path,
    identity: &StoreIdentity,
    uuid: Option<[u8; 16]>,
    config: &EngineConfig,
) -> Result<Option<Stored>, DiskError> {
    let found = match identity::load(dir) {
        Ok(found) => found,
        Err(DiskError::Corrupt(_) | DiskError::WrongVersion { .. }) => identity::load_mended(dir),
        Err(error) => return Err(error),
    };
    if let Some(stored) = &found {
        stored.check(identity)?;
    }
    let by_number = || {
        let log_bytes = fs::metadata(dir.join(crate::files::LOG)).map(|found| found.len());
        let log_bytes = log_bytes.ok().filter(|bytes| log::valid_capacity(*bytes));
        uuid.map(|uuid| Stored {
            identity: *identity,
            uuid,
            log_bytes: log_bytes.unwrap_or(config.log_bytes),
        })
    };
    Ok(found.or_else(by_number))
}

/// Whether [`restore_index`] would restore the index. Reads all of the copy.
///
/// # Errors
/// As [`restore_index`].
pub fn can_restore_index(
    dir: &Path,
    identity: &StoreIdentity,
    uuid: Option<[u8; 16]>,
    config: &EngineConfig,
) -> Result<bool, DiskError> {
    match stored(dir, identity, uuid, config)? {
        Some(stored) => usable(dir, &stored).map(|found| found.is_some()),
        None => Ok(false),
    }
}

/// Restores the index of the store in `dir` from its copy, if the copy is complete and the log
/// continues it without a gap. False: nothing was changed.
///
/// # Errors
/// The differences of [`Stored::check`], `Locked`, `NoSpace`, `Io`.
pub fn restore_index(
    dir: &Path,
    identity: &StoreIdentity,
    uuid: Option<[u8; 16]>,
    config: &EngineConfig,
) -> Result<bool, DiskError> {
    let _lock = match File::open(dir.join(LOCK)) {
        Ok(file) => Some(take_lock(file, dir)?),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(DiskError::io("lock file", error)),
    };
    let Some(stored) = make_index(dir, identity, uuid, config)? else {
        return Ok(false);
    };
    place(dir, &stored, FROM_COPY)?;
    Ok(true)
}

/// Makes the new index beside the old one; `None`: the copy is not usable.
pub(super) fn make_index(
    dir: &Path,
    identity: &StoreIdentity,
    uuid: Option<[u8; 16]>,
    config: &EngineConfig,
) -> Result<Option<Stored>, DiskError> {
    let Some(stored) = stored(dir, identity, uuid, config)? else {
        return Ok(None);
    };
    let Some((records, epoch)) = usable(dir, &stored)? else {
        return Ok(None);
    };
    let is_newer = |_: &[u8], _: &[u8], _: &[u8]| true;
    let mut filling = Filling::new(
        Index::create_file(&dir.join(NEW_INDEX), config.cache_bytes)?,
        &is_newer,
    );
    records.for_each(&mut |key, value| {
        filling.put(key, value);
        filling.failed.take().map_or(Ok(()), Err)
    })?;
    filling.flush(IndexProgress {
        // An opening may have begun an epoch without leaving a record of it.
        epoch: epoch + 1,
        ..records.progress()
    })?;
    drop(filling);
    Ok(Some(stored))
}

/// Removes the copy of the index: the next opening begins another.
///
/// # Errors
/// `Io`.
pub fn drop_copy(dir: &Path) -> Result<(), DiskError> {
    let failed = |error| DiskError::io("remove the copy of the index", error);
    for name in COPIES {
        match fs::remove_file(dir.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed(error));
            }
            _ => {}
        }
    }
    sync_dir(dir).map_err(failed)
}

/// The records from which the index of a store can be restored exactly, and the epoch that its log
/// has reached. The caller holds the store's lock.
///
/// # Errors
/// `Io` of the log.
fn usable(dir: &Path, stored: &Stored) -> Result<Option<(Records, u64)>, DiskError> {
    let Some(found) = restore::intact(dir, stored) else {
        return Ok(None);
    };
    let newest = log_goes_on(dir, stored, &found.progress())?;
    Ok(newest.map(|epoch| (found, epoch)))
}
