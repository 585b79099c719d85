//! Repair of a store with damaged files: makes an index with all readable entries, an empty log,
//! and an identity.
//!
//! It writes the new files beside the old ones and renames them into place ([`file_replacement`]),
//! the index first. So an interruption leaves a store that can be repaired again. The damaged index
//! stays as `index.redb.bad` in the store's `lost+found`.

mod copy_restore;
mod file_replacement;
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod file_replacement_tests;

pub use copy_restore::{can_restore_index, drop_copy, restore_index};
pub(crate) use file_replacement::finish;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use zonal_types::KvChange;

use crate::engine::EngineConfig;
use crate::files::error::DiskError;
use crate::files::identity::{StoreIdentity, Stored};
use crate::index::raw_index::IndexItem;
use crate::index::{Index, IndexProgress};
use crate::log;
use crate::store::read_only::{LogEnd, ReadStore, StoreDamage};
use crate::store::replay::Replay;
use file_replacement::{MENDED, place};

pub(crate) const NEW_INDEX: &str = "index-new.redb";
/// The name that [`Index::create_file`] gives them.
pub(crate) const NEW_SUMS: &str = "index-new.sums";
pub(crate) const NEW_LOG: &str = "log.new";
/// Bytes of entries in one commit of the new index, and in memory while old entries are sorted.
const BATCH_BYTES: usize = 16 << 20;

/// Unreadable keys: those above the first and up to the second (`None`: all behind).
pub type LostKeys = (Vec<u8>, Option<Vec<u8>>);

/// Parameters of a repair.
pub struct StoreRepair<'a> {
    /// The expected identity of the store.
    pub identity: StoreIdentity,
    /// Bounds of the engine, and the length of the log where there is none.
    pub config: EngineConfig,
    /// The store's own number, where another source knows it.
    pub uuid: Option<[u8; 16]>,
    /// Changes to apply on top: state that only the log's notes held.
    pub extra: Vec<KvChange>,
    /// Whether the second of two values of a key is the newer one. For entries of a lost index, of
    /// any age.
    pub is_newer: &'a IsNewer<'a>,
}

/// Called with a key, an older and a newer value: whether the second value is the newer one.
pub type IsNewer<'a> = dyn Fn(&[u8], &[u8], &[u8]) -> bool + 'a;

/// A new index that is being filled.
struct Filling<'a> {
    index: Index,
    batch: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    bytes: usize,
    is_newer: &'a IsNewer<'a>,
    failed: Option<DiskError>,
}

impl<'a> Filling<'a> {
    fn new(index: Index, is_newer: &'a IsNewer<'a>) -> Self {
        Self {
            index,
            batch: BTreeMap::new(),
            bytes: 0,
            is_newer,
            failed: None,
        }
    }

    fn put(&mut self, key: &[u8], value: Option<&[u8]>) -> bool {
        self.bytes += key.len() + value.map_or(0, <[u8]>::len) + 64;
        self.batch.insert(key.to_vec(), value.map(<[u8]>::to_vec));
        if self.bytes >= BATCH_BYTES {
            self.failed = self.flush(IndexProgress::default()).err();
        }
        self.failed.is_none()
    }

    /// Puts an entry, unless there is a newer one.
    fn put_newest(&mut self, key: &[u8], value: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        let known = match self.batch.get(key) {
            Some(known) => Ok(known.clone()),
            None => self.index.snapshot().and_then(|snapshot| snapshot.get(key)),
        };
        match known {
            Ok(Some(known)) if !(self.is_newer)(key, &known, value) => {}
            Ok(_) => {
                self.put(key, Some(value));
            }
            Err(error) => self.failed = Some(error),
        }
    }

    fn flush(&mut self, progress: IndexProgress) -> Result<(), DiskError> {
        let batch = std::mem::take(&mut self.batch);
        self.bytes = 0;
        let changes = batch
            .iter()
            .map(|(key, value)| (key.as_slice(), value.as_deref()));
        self.index.commit(changes, &progress)
    }
}

/// Repairs the files of the store in `dir`; `replay` as at an opening for use. Returns the keys
/// that were lost with pages of the index.
///
/// # Errors
/// As [`ReadStore::open`]; `NoSpace`, `Io`.
pub fn mend(
    dir: &Path,
    mend: &StoreRepair<'_>,
    replay: &mut Replay<'_>,
) -> Result<Vec<LostKeys>, DiskError> {
    let (new, lost) = make_index(dir, mend, replay)?;
    place(dir, &new.stored, MENDED)?;
    Ok(lost)
}

/// A store whose new index lies beside its old files.
struct Unplaced {
    /// Holds the store's lock.
    _locked: ReadStore,
    stored: Stored,
}

fn make_index(
    dir: &Path,
    mend: &StoreRepair<'_>,
    replay: &mut Replay<'_>,
) -> Result<(Unplaced, Vec<LostKeys>), DiskError> {
    let store = ReadStore::open(dir, &mend.identity, replay)?;
    let is_lost = |damage: &StoreDamage| matches!(damage, StoreDamage::IndexLost(_));
    let is_index_lost = store.damage().iter().any(is_lost);
    let path = dir.join(NEW_INDEX);
    let mut filling = Filling::new(
        Index::create_file(&path, mend.config.cache_bytes)?,
        mend.is_newer,
    );
    let mut lost: Vec<LostKeys> = Vec::new();
    if is_index_lost {
        store.carve(&mut |key, value| filling.put_newest(key, value))?;
        lost.push((Vec::new(), None));
    }
    if fill_from_pages(&store, &mut filling, &mut lost) {
        fill_from_lost_pages(&store, &mut filling, &lost)?;
    }
    for change in &mend.extra {
        filling.put(&change.key, change.value.as_deref());
    }
    let stored = identity_of(&store, mend)?;
    if let Some(error) = filling.failed.take() {
        return Err(error);
    }
    filling.flush(progress_beyond(store.log(), stored.tag()))?;
    drop(filling);
    let new = Unplaced {
        _locked: store,
        stored,
    };
    Ok((new, lost))
}

/// Puts the entries that a walk of the index finds, and lists the ranges that it cannot read.
/// Returns whether pages are lost that had others below them.
fn fill_from_pages(store: &ReadStore, filling: &mut Filling<'_>, lost: &mut Vec<LostKeys>) -> bool {
    let leaves = store.leaf_depth();
    let mut carve = false;
    store.walk(&[], None, &mut |found| match found {
        IndexItem::Entry(key, value) => filling.put(key, Some(value)),
        IndexItem::BadEntry { key } => {
            lost.push((key.to_vec(), Some(key.to_vec())));
            true
        }
        IndexItem::BadPage {
            depth, above, upto, ..
        } => {
            carve |= leaves.is_none_or(|leaves| depth < leaves);
            lost.push((above.to_vec(), upto.map(<[u8]>::to_vec)));
            true
        }
        IndexItem::Mended { .. } => true,
    });
    carve
}

/// Puts entries of lost ranges. The pages below a lost page are still there, among older ones.
///
/// # Errors
/// `Io`.
fn fill_from_lost_pages(
    store: &ReadStore,
    filling: &mut Filling<'_>,
    lost: &[LostKeys],
) -> Result<(), DiskError> {
    let mut older = Vec::new();
    store.carve(&mut |key, value| {
        if is_among(key, lost) && !store.mentions(key) {
            older.push((key.to_vec(), value.to_vec()));
        }
        if older.len() >= BATCH_BYTES / 256 {
            for (key, value) in older.drain(..) {
                filling.put_newest(&key, &value);
            }
        }
    })?;
    for (key, value) in older {
        filling.put_newest(&key, &value);
    }
    Ok(())
}

/// A position ahead of all that the old log can have held. So none of its records is taken for one
/// of the new index.
fn progress_beyond(end: LogEnd, store: u64) -> IndexProgress {
    let lap = log::MAX_BYTES;
    let epoch = end.epoch + 2;
    IndexProgress {
        applied: (end.end.max(end.applied) / lap + 2) * lap,
        applied_epoch: epoch,
        epoch,
        copy: 0,
        store,
    }
}

fn identity_of(store: &ReadStore, mend: &StoreRepair<'_>) -> Result<Stored, DiskError> {
    if let Some(stored) = store.stored() {
        return Ok(*stored);
    }
    let mut uuid = [0; 16];
    getrandom::fill(&mut uuid)
        .map_err(|error| DiskError::io("random bytes", io::Error::other(error)))?;
    let log_bytes = mend.config.log_bytes;
    if !log::valid_capacity(log_bytes) {
        return Err(DiskError::Config(format!("a log of {log_bytes} bytes")));
    }
    Ok(Stored {
        identity: mend.identity,
        uuid: mend.uuid.unwrap_or(uuid),
        log_bytes,
    })
}

/// Whether a key is in one of these ranges.
#[must_use]
pub fn is_among(key: &[u8], ranges: &[LostKeys]) -> bool {
    ranges.iter().any(|(above, upto)| {
        let is_exact = upto.as_ref() == Some(above) && key == above.as_slice();
        let is_above = above.is_empty() || key > above.as_slice();
        is_exact || (is_above && upto.as_ref().is_none_or(|upto| key <= upto.as_slice()))
    })
}
