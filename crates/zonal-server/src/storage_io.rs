//! Disk work of a target apart from requests: formatting, opening, the checkpoint thread, closing.

use crate::config::NodeConfig;
use crate::error::ServerError;
use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::rate_limited_log::RateLimit;
use crate::storage_role::StorageRole;
use crate::stores;
use std::sync::{Arc, Weak};
use zonal_basics::to_usize;
use zonal_disk::{
    Checkpointer, DiskError, Engine, Segments, SegmentsConfig, StoreDir, StoreIdentity, StoreKind,
    spawn_checkpointer,
};
use zonal_object::ids::BLOCK;
use zonal_object::{StorageTarget, TargetConfig, replay_checks};
use zonal_types::ErrorCode;

/// Moves everything into the index, as the last step of an orderly end. After a loss of power, a
/// record that only the log has is dropped where its data do not match: they may never have
/// arrived. Data that the index knows and that do not match are damage.
pub(crate) fn close(storage: &StorageRole) {
    if let Err(error) = storage.checkpoint() {
        tracing::warn!(%error, "the last checkpoint of the target failed");
    }
    if let Err(error) = storage.engine.sync_all() {
        tracing::error!(%error, "the last sync of the target failed");
    }
}

fn identity(config: &NodeConfig, target: u32) -> StoreIdentity {
    StoreIdentity {
        cell: config.cell.0,
        kind: StoreKind::Target,
        id: target,
    }
}

/// Formats the target of a node, if it has one.
pub(crate) fn format(config: &NodeConfig) -> Result<(), ServerError> {
    let Some(storage) = &config.storage_role else {
        return Ok(());
    };
    let dir = config.target_dir();
    stores::format(&dir, identity(config, storage.target.0), &storage.store)
}

/// An open target with its threads.
pub(crate) struct OpenedTarget {
    pub storage: Arc<StorageRole>,
    /// Ends before the storage is dropped.
    pub checkpointer: Checkpointer,
    pub uuid: [u8; 16],
    pub dir: StoreDir,
}

/// Opens the target of a node, if it has one.
pub(crate) fn open(
    config: &NodeConfig,
    map: &Arc<MapCache>,
    peers: &Arc<Peers>,
) -> Result<Option<OpenedTarget>, ServerError> {
    let Some(storage) = &config.storage_role else {
        return Ok(None);
    };
    let dir = config.target_dir();
    let failed = |source| ServerError::Store {
        dir: dir.clone(),
        source,
    };
    let identity = identity(config, storage.target.0);
    let uuid = stores::uuid(&dir, &identity)?;
    let units = u32::try_from(storage.segment / BLOCK).unwrap_or(u32::MAX);
    let geometry = TargetConfig {
        segment_units: units,
        segments: u32::try_from(storage.capacity / storage.segment).unwrap_or(u32::MAX),
        pending_blocks_max: usize::try_from(storage.pending / BLOCK).unwrap_or(usize::MAX),
    };
    let store_dir = config.store_dir(&dir);
    let (engine, segments, notes) =
        open_parts(&store_dir, &identity, config, &geometry).map_err(failed)?;
    let notes = notes.iter().map(Vec::as_slice);
    let target = StorageTarget::open(geometry, &engine, notes).map_err(|code| match code {
        ErrorCode::Invalid => failed(DiskError::Config(
            "`segment` or `capacity` differ from what the target was formatted with".into(),
        )),
        code => ServerError::Contents {
            dir: dir.clone(),
            code,
        },
    })?;
    let engine = Arc::new(engine);
    engine
        .set_data_sync(Arc::clone(&segments) as Arc<dyn zonal_disk::DataSync>)
        .map_err(failed)?;
    let opened = Arc::new(StorageRole::new(
        storage,
        target,
        engine,
        segments,
        (Arc::clone(map), Arc::clone(peers)),
    ));
    let checkpointer = start_checkpointer(&opened).map_err(failed)?;
    let unfinished = opened.lock().unfinished_deletes().len();
    if unfinished > 0 {
        tracing::info!(objects = unfinished, "deletions go on");
    }
    if let Err(refused) = opened.resume() {
        tracing::warn!(code = %refused.code, "a deletion from before cannot be finished");
    }
    Ok(Some(OpenedTarget {
        storage: opened,
        checkpointer,
        uuid,
        dir: store_dir,
    }))
}

fn start_checkpointer(storage: &Arc<StorageRole>) -> Result<Checkpointer, DiskError> {
    let weak: Weak<StorageRole> = Arc::downgrade(storage);
    let job = Box::new(move |_engine: &Engine| match weak.upgrade() {
        Some(storage) => storage.checkpoint(),
        None => Ok(()),
    });
    let failed = RateLimit::default();
    let report = Box::new(move |error| {
        if failed.is_due() {
            tracing::error!(%error, "a checkpoint of the target failed");
        }
    });
    spawn_checkpointer(&storage.engine, job, report)
}

type Parts = (Engine, Arc<Segments>, Vec<Vec<u8>>);

/// Opens log and segments; returns the notes of the log's records.
///
/// * Unflushed writes may be lost: a record that was not known to be durable is dropped where its
///   data did not arrive. All later records are dropped with it.
/// * The kernel kept them: data that do not match are damage. The record stays, and reads of it
///   fail.
fn open_parts(
    dir: &StoreDir,
    identity: &StoreIdentity,
    config: &NodeConfig,
    geometry: &TargetConfig,
) -> Result<Parts, DiskError> {
    let Some(storage) = &config.storage_role else {
        return Err(DiskError::Config("no storage role".into()));
    };
    let bounds = SegmentsConfig {
        segment_bytes: storage.segment,
        capacity: storage.capacity,
        ..SegmentsConfig::default()
    };
    let mut segments = None;
    let mut notes = Vec::new();
    let mut failure = None;
    let mut dropped = 0_u64;
    let mut replay = |record: &zonal_disk::Record, _lsn, certain: bool| {
        if dropped > 0 {
            dropped += 1;
            return false;
        }
        if !certain {
            let opened = match &segments {
                Some(opened) => Ok(Arc::clone(opened)),
                None => Segments::open_in(dir, bounds).map(Arc::new),
            };
            match opened.and_then(|opened| {
                let arrived = has_arrived(geometry, record, &opened);
                segments = Some(opened);
                arrived
            }) {
                Ok(true) => {}
                Ok(false) => {
                    dropped = 1;
                    return false;
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        notes.push(record.note.clone());
        true
    };
    let engine = Engine::open_in(
        dir,
        identity,
        stores::engine_config(&storage.store),
        &mut replay,
    )?;
    if let Some(error) = failure {
        return Err(error);
    }
    if dropped > 0 {
        tracing::warn!(dropped, "records whose data did not survive were dropped");
    }
    let segments = match segments {
        Some(segments) => segments,
        None => Arc::new(Segments::open_in(dir, bounds)?),
    };
    Ok((engine, segments, notes))
}

fn has_arrived(
    geometry: &TargetConfig,
    record: &zonal_disk::Record,
    segments: &Segments,
) -> Result<bool, DiskError> {
    let ours = zonal_object::EffectRecord {
        changes: record.changes.clone(),
        note: record.note.clone(),
    };
    let corrupt = |code: ErrorCode| DiskError::Corrupt(format!("a record of the log: {code}"));
    let mut block = vec![0; to_usize(BLOCK)];
    for check in replay_checks(geometry, &ours).map_err(corrupt)? {
        match segments.read_at(check.place.segment, check.place.offset(), &mut block) {
            Ok(()) if zonal_wire::frame::crc32c(&block) == check.crc => {}
            Ok(()) | Err(DiskError::Range(_)) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}
