//! A store of a stopped process, opened for inspection: nothing is written, and damage is reported
//! instead of refused.
//!
//! Opening replays the log's records behind the index into memory. [`RawIndex`] reads the index, so
//! the library need not repair it. Damage is listed ([`ReadStore::damage`]) or met by a walk
//! ([`IndexItem`]). Holds the store's lock where there is one, so that no process opens the store
//! meanwhile.

mod log;
mod log_bit_repair;

pub(crate) use log::goes_on as log_goes_on;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use zonal_types::{ErrorCode, KvRead};

use crate::files::error::DiskError;
use crate::files::identity::{self, StoreIdentity, Stored};
use crate::files::power_loss;
use crate::files::start_marks;
use crate::files::{COPIES, INDEX, LOCK, LOG, SUMS, VOTE};
use crate::index::index_copy::restore::{self, Copy};
use crate::index::overlay::Overlay;
use crate::index::probe;
use crate::index::raw_index::{IndexItem, RawIndex, Visit};
use crate::store;
use crate::store::repair::{NEW_INDEX, NEW_LOG, NEW_SUMS};
use crate::store::replay::Replay;

/// Names that a store's folder may hold besides its own files.
const KNOWN: [&str; 13] = [
    "segments",
    "lost+found",
    "identity.new",
    NEW_INDEX,
    NEW_SUMS,
    NEW_LOG,
    SUMS,
    COPIES[0],
    COPIES[1],
    power_loss::FILE_NAME,
    power_loss::TEMP_NAME,
    start_marks::FILE_NAME,
    start_marks::TEMP_NAME,
];

/// Damage of a store's files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreDamage {
    /// The identity is missing or damaged: the owner of the store is unknown.
    #[error("the identity is unusable: {0}")]
    Identity(String),
    /// The log's file is unusable.
    #[error("the log is lost: {0}")]
    LogLost(String),
    /// Records that were durable are missing.
    #[error("the log ends at {end}, but a header at {proof} proves that there was more")]
    LogTorn {
        /// The last readable position.
        end: u64,
        /// Position of the record that proves it.
        proof: u64,
    },
    /// Position of a flipped bit in the log that a checksum corrected.
    #[error("a flipped bit in the byte at {0} of the log")]
    LogFlipped(u64),
    /// A durable record whose data is missing.
    #[error("the durable record that ends at {0} cannot be applied, nor the records behind it")]
    LogRecord(u64),
    /// The index's file is unusable.
    #[error("the index is lost: {0}")]
    IndexLost(String),
    /// The library cannot open the index, though its entries are readable.
    #[error("the index cannot be opened for use: {0}")]
    IndexShut(String),
    /// The copy of the index is damaged; the index itself is not affected.
    #[error("the copy of the index is damaged: {0}")]
    Copy(String),
    /// A file or folder that does not belong to a store.
    #[error("{0} does not belong to the store")]
    Foreign(String),
}

/// The end of a store's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogEnd {
    /// The index holds everything below this position.
    pub applied: u64,
    /// End of the last readable record.
    pub end: u64,
    /// The highest epoch seen.
    pub epoch: u64,
    /// Records replayed.
    pub records: u64,
}

/// A store opened for inspection.
pub struct ReadStore {
    dir: PathBuf,
    stored: Option<Stored>,
    damage: Vec<StoreDamage>,
    index: Option<RawIndex>,
    /// The file in the index's place belongs to another store.
    is_index_strange: bool,
    overlay: Overlay,
    log: LogEnd,
    _lock: Option<File>,
}

impl std::fmt::Debug for ReadStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadStore")
            .field("stored", &self.stored)
            .field("damage", &self.damage)
            .field("log", &self.log)
            .finish_non_exhaustive()
    }
}

impl ReadStore {
    /// True for the store of a group's replica: entries that are not in its index yet are in a log
    /// of the group's.
    #[must_use]
    pub fn is_replica(&self) -> bool {
        self.dir.join(VOTE[0]).exists()
    }

    /// Opens the store in `dir`; `replay` gets the log's records as at an opening for use.
    ///
    /// # Errors
    /// `NotFormatted` where there is no store, the differences of [`Stored::check`],
    /// `WrongVersion`, `Locked`, `Io`.
    pub fn open(
        dir: &Path,
        expected: &StoreIdentity,
        replay: &mut Replay<'_>,
    ) -> Result<Self, DiskError> {
        store::check_trust(dir)?;
        let mut damage = Vec::new();
        let stored = read_identity(dir, expected, &mut damage)?;
        let lock = match File::open(dir.join(LOCK)) {
            Ok(file) => Some(store::take_lock(file, dir)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(DiskError::io("lock file", error)),
        };
        look_for_strangers(dir, &mut damage)?;
        let (index, is_index_strange) = open_index(dir, stored.as_ref(), &mut damage);
        if let (Some(stored), Some(index)) = (&stored, &index) {
            let copy = restore::look(dir, stored.tag(), Some(&index.progress));
            if let Copy::Damaged(what) = copy {
                damage.push(StoreDamage::Copy(what));
            }
        }
        let mut opened = Self {
            dir: dir.to_path_buf(),
            stored,
            damage,
            index,
            is_index_strange,
            overlay: Overlay::default(),
            log: LogEnd::default(),
            _lock: lock,
        };
        opened.read_log(dir, replay);
        Ok(opened)
    }

    /// The identity, where it is readable.
    #[must_use]
    pub fn stored(&self) -> Option<&Stored> {
        self.stored.as_ref()
    }

    /// Damage of its files. [`Self::walk`] reports damage inside the index.
    #[must_use]
    pub fn damage(&self) -> &[StoreDamage] {
        &self.damage
    }

    /// Damage inside the index's copy, unless damage of the copy is known already. Reads all of it.
    #[must_use]
    pub fn copy_damage(&self) -> Option<StoreDamage> {
        let (stored, index) = (self.stored.as_ref()?, self.index.as_ref()?);
        restore::inside(&self.dir, stored.tag(), &index.progress).map(StoreDamage::Copy)
    }

    /// The end of the log.
    #[must_use]
    pub fn log(&self) -> LogEnd {
        self.log
    }

    /// Pages of the index read so far, and in all, for estimates.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        let index = self.index.as_ref();
        index.map_or((0, 0), |index| (index.pages_read.get(), index.pages()))
    }

    /// Visits entries and damage from `start` (inclusive) to `end` (exclusive; `None`: all behind),
    /// in key order; false ends the walk.
    pub fn walk(
        &self,
        start: &[u8],
        end: Option<&[u8]>,
        visit: &mut dyn FnMut(IndexItem<'_>) -> bool,
    ) {
        let mut recent = self
            .overlay
            .iter()
            .filter(|(key, _)| *key >= start && end.is_none_or(|end| *key < end))
            .peekable();
        let mut goes_on = true;
        if let Some(index) = &self.index {
            goes_on = index.walk(start, end, &mut |found| {
                let key = match found {
                    IndexItem::Entry(key, _) | IndexItem::BadEntry { key } => key,
                    IndexItem::BadPage { .. } | IndexItem::Mended { .. } => return visit(found),
                };
                while let Some((newer, value)) = recent.next_if(|(newer, _)| *newer < key) {
                    if let Some(value) = value
                        && !visit(IndexItem::Entry(newer, value))
                    {
                        return false;
                    }
                }
                match recent.next_if(|(newer, _)| *newer == key) {
                    Some((_, Some(value))) => visit(IndexItem::Entry(key, value)),
                    Some((_, None)) => true,
                    None => visit(found),
                }
            });
        }
        for (key, value) in recent {
            if !goes_on {
                return;
            }
            if let Some(value) = value {
                goes_on = visit(IndexItem::Entry(key, value));
            }
        }
    }

    /// Depth of the index's leaves below the root; `None` where none is reachable.
    pub(crate) fn leaf_depth(&self) -> Option<u32> {
        self.index.as_ref().and_then(RawIndex::leaf_depth)
    }

    /// Whether the log has a change of the key.
    pub(crate) fn mentions(&self, key: &[u8]) -> bool {
        self.overlay.get(key).is_some()
    }

    /// Passes every entry found anywhere in the index's file, of any age and in no order. Skips the
    /// file of another store.
    ///
    /// # Errors
    /// `Io`.
    pub(crate) fn carve(&self, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<(), DiskError> {
        if self.is_index_strange {
            return Ok(());
        }
        let file = match File::open(self.dir.join(INDEX)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(DiskError::io("index", error)),
        };
        let length = file
            .metadata()
            .map_err(|error| DiskError::io("index", error))?
            .len();
        crate::index::raw_index::carve(&file, length, visit);
        Ok(())
    }
}

/// The identity, one flipped bit corrected; `None` where it is lost and other files are there.
///
/// # Errors
/// As [`ReadStore::open`], but `Locked`.
fn read_identity(
    dir: &Path,
    expected: &StoreIdentity,
    damage: &mut Vec<StoreDamage>,
) -> Result<Option<Stored>, DiskError> {
    match identity::load(dir) {
        Ok(Some(stored)) => {
            stored.check(expected)?;
            Ok(Some(stored))
        }
        Ok(None) if !dir.join(LOG).exists() && !dir.join(INDEX).exists() => {
            Err(DiskError::NotFormatted(dir.into()))
        }
        Ok(None) => {
            damage.push(StoreDamage::Identity("the file is missing".into()));
            Ok(None)
        }
        Err(error @ (DiskError::Corrupt(_) | DiskError::WrongVersion { .. })) => {
            let mended = identity::load_mended(dir);
            if let Some(stored) = &mended {
                stored.check(expected)?;
            } else if matches!(error, DiskError::WrongVersion { .. }) {
                return Err(error);
            }
            damage.push(StoreDamage::Identity(error.to_string()));
            Ok(mended)
        }
        Err(error) => Err(error),
    }
}

/// The index, if it is readable and of this store; and whether the file is another store's.
fn open_index(
    dir: &Path,
    stored: Option<&Stored>,
    damage: &mut Vec<StoreDamage>,
) -> (Option<RawIndex>, bool) {
    let is_strange =
        |index: &RawIndex| stored.is_some_and(|stored| !index.progress.may_be_of(stored.tag()));
    match RawIndex::open(&dir.join(INDEX)) {
        Ok(index) if is_strange(&index) => {
            damage.push(StoreDamage::IndexLost("it is of another store".into()));
            (None, true)
        }
        Ok(mut index) => {
            index.compare_with(&dir.join(SUMS));
            if let Err(error) = probe::probe(&dir.join(INDEX), &dir.join(SUMS)) {
                damage.push(StoreDamage::IndexShut(error.to_string()));
            }
            (Some(index), false)
        }
        Err(error) => {
            damage.push(StoreDamage::IndexLost(error.to_string()));
            (None, false)
        }
    }
}

fn look_for_strangers(dir: &Path, damage: &mut Vec<StoreDamage>) -> Result<(), DiskError> {
    let failed = |error| DiskError::io("list directory", error);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let known = [identity::FILE_NAME, LOCK, LOG, INDEX];
        let is_known = known.iter().chain(&KNOWN).any(|known| name == *known);
        if !is_known {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort_unstable();
    damage.extend(names.into_iter().map(StoreDamage::Foreign));
    Ok(())
}

impl KvRead for ReadStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        match (self.overlay.get(key), &self.index) {
            (Some(value), _) => Ok(value.map(<[u8]>::to_vec)),
            (None, Some(index)) => index.get(key).map_err(ErrorCode::from),
            (None, None) => Ok(None),
        }
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        let mut result = Ok(());
        let walk: &mut Visit<'_> = &mut |found| match found {
            IndexItem::Entry(key, value) => visit(key, value),
            IndexItem::Mended { .. } => true,
            _ => {
                result = Err(ErrorCode::Corrupt);
                false
            }
        };
        self.walk(start, Some(end), walk);
        result
    }
}
