//! Opening of a store: reads the log behind the index's progress and replays its records into the
//! overlay.

use crate::engine::{Engine, EngineConfig, Start};
use crate::files::disk::LogFile;
use crate::files::error::DiskError;
use crate::index::overlay::Overlay;
use crate::index::{Index, IndexProgress};
use crate::log::record::{self, Lsn, Record};
use crate::log::{self, LogExtent, Origin, Reader, RecordKind};

/// Takes each record in order: the record, its position, and whether it is certain to be complete
/// with its caller's data. A record is certain if it was durable, or the kernel has kept all
/// writes. Returns false to drop a record whose data did not arrive.
pub type Replay<'a> = dyn FnMut(&Record, Lsn, bool) -> bool + 'a;

/// Opens an engine over its parts: the log's file, the index, and the tag of the store. Assumes
/// nothing about writes that were not flushed.
///
/// # Errors
/// `Corrupt` where durable records are missing or dropped; `Io`.
pub fn open_parts(
    log: Box<dyn LogFile>,
    index: Index,
    store: u64,
    config: EngineConfig,
    replay: &mut Replay<'_>,
) -> Result<Engine, DiskError> {
    open_parts_after(false, log, index, store, config, replay)
}

/// As [`open_parts`]. `kept` means that the kernel has kept all writes. Then only the last record
/// may be incomplete, because the kill of the process interrupted it; anything else that is missing
/// is damage.
///
/// # Errors
/// As [`open_parts`].
pub fn open_parts_after(
    kept: bool,
    log: Box<dyn LogFile>,
    index: Index,
    store: u64,
    config: EngineConfig,
    replay: &mut Replay<'_>,
) -> Result<Engine, DiskError> {
    let capacity = log.len().map_err(|error| DiskError::io("log", error))?;
    if !log::valid_capacity(capacity) {
        return Err(DiskError::Corrupt(format!("log: {capacity} bytes long")));
    }
    let progress = index.progress()?;
    let mut origin = Origin {
        capacity,
        store,
        applied: progress.applied,
        applied_epoch: progress.applied_epoch,
        epoch: progress.epoch,
        kept,
    };
    let extent = Reader::new(log.as_ref(), origin).extent()?;
    let overlay = rebuild(log.as_ref(), origin, extent, replay)?;
    // Durable before the first append: left-overs of a crash behind the end must not be taken for
    // ours.
    origin.epoch += 1;
    let progress = IndexProgress {
        epoch: origin.epoch,
        store,
        ..progress
    };
    index.commit(std::iter::empty(), &progress)?;
    Engine::start(Start {
        config,
        log,
        index,
        origin,
        extent,
        overlay,
    })
}

fn rebuild(
    log: &dyn LogFile,
    origin: Origin,
    extent: LogExtent,
    replay: &mut Replay<'_>,
) -> Result<Overlay, DiskError> {
    let mut overlay = Overlay::default();
    let mut reader = Reader::new(log, origin);
    let mut position = origin.applied;
    let mut epoch = origin.applied_epoch;
    while position < extent.end {
        let changed = || DiskError::Corrupt("log: changed while it was read".into());
        let found = reader.at(position, epoch)?.ok_or_else(changed)?;
        assert!(
            found.end > position,
            "the replay of a log advances with each record"
        );
        position = found.end;
        epoch = found.header.epoch;
        if found.header.kind == RecordKind::Pad || found.header.dropped {
            continue;
        }
        let payload = reader.payload(&found.header)?;
        let undecodable = || DiskError::Corrupt(format!("log: record at {}", found.header.lsn));
        let record = record::decode(payload).ok_or_else(undecodable)?;
        let certain = origin.kept || found.end <= extent.synced;
        if replay(&record, Lsn(found.end), certain) {
            for change in record.changes {
                overlay.apply(change);
            }
        } else if certain {
            let what = format!("data of the durable record at {}", found.header.lsn);
            return Err(DiskError::Corrupt(what));
        } else {
            log::mark_dropped(log, &found.header, origin.capacity)?;
        }
    }
    Ok(overlay)
}
