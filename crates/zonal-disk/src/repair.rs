//! A store whose files are damaged gets new ones: an index with all that can still be read, an
//! empty log, an identity.
//!
//! Everything is written beside what is there and put in its place by renames ([`placing`]), the
//! index first, so that an interruption leaves a store that can be mended again. The damaged index
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
use crate::error::DiskError;
use crate::identity::{StoreIdentity, Stored};
use crate::index::{Index, IndexProgress};
use crate::log;
use crate::raw_index::IndexItem;
use crate::read_only::{ReadStore, StoreDamage};
use crate::replay::Replay;
use file_replacement::{MENDED, place};

pub(crate) const NEW_INDEX: &str = "index-new.redb";
/// As [`Index::create_file`] names them.
pub(crate) const NEW_SUMS: &str = "index-new.sums";
pub(crate) const NEW_LOG: &str = "log.new";
/// Bytes of entries in one commit of the new index, and in memory while old entries are sorted.
const BATCH_BYTES: usize = 16 << 20;

/// Keys above the first and up to the second (`None`: all behind) that could not be read.
pub type LostKeys = (Vec<u8>, Option<Vec<u8>>);

/// What a mending is told.
pub struct StoreRepair<'a> {
    /// Whose store it is.
    pub identity: StoreIdentity,
    /// Bounds, and the length of a log where there is none.
    pub config: EngineConfig,
    /// The store's own number, where somebody else knows it.
    pub uuid: Option<[u8; 16]>,
    /// Changes that belong on top: what only the log's notes said.
    pub extra: Vec<KvChange>,
    /// Of two values of one key, whether the second is the newer one. For entries of a lost index,
    /// of any age.
    pub is_newer: &'a IsNewer<'a>,
}

/// Of a key, an older and a newer value: whether the second is the newer one.
pub type IsNewer<'a> = dyn Fn(&[u8], &[u8], &[u8]) -> bool + 'a;

/// Entries on their way into a new index.
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

    /// An entry that may be older than one that is there.
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

/// Mends the files of the store in `dir`; `replay` as at an opening for use. Gives the keys that
/// are lost with pages of the index.
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

/// A store whose new index lies beside what is there.
struct Unplaced {
    /// It is locked by this.
    _locked: ReadStore,
    stored: Stored,
}

fn make_index(
    dir: &Path,
    mend: &StoreRepair<'_>,
    replay: &mut Replay<'_>,
) -> Result<(Unplaced, Vec<LostKeys>), DiskError> {
    let store = ReadStore::open(dir, &mend.identity, replay)?;
    let end = store.log();
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
    if carve {
        // The pages below one that is lost are there, among older ones.
        let ranges = lost.clone();
        let mut older = Vec::new();
        store.carve(&mut |key, value| {
            if is_among(key, &ranges) && !store.mentions(key) {
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
    }
    for change in &mend.extra {
        filling.put(&change.key, change.value.as_deref());
    }
    let stored = identity_of(&store, mend)?;
    // Ahead of all that the old log can have held, so that nothing of it is ever taken for ours.
    let lap = log::MAX_BYTES;
    let applied = (end.end.max(end.applied) / lap + 2) * lap;
    let epoch = end.epoch + 2;
    if let Some(error) = filling.failed.take() {
        return Err(error);
    }
    filling.flush(IndexProgress {
        applied,
        applied_epoch: epoch,
        epoch,
        copy: 0,
        store: stored.tag(),
    })?;
    drop(filling);
    Ok((
        Unplaced {
            _locked: store,
            stored,
        },
        lost,
    ))
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
