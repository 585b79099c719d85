//! The index: the checkpointed state as one ordered table in an embedded store (redb), with the log
//! position it has reached.
//!
//! The library does not check the bytes it reads. So every value carries a crc32c of key and value
//! behind it, and every block of the file has one beside the file ([`index_checksums`]).
//! Damage may make the library panic: each call is [`guarded`], and a panic becomes `Corrupt`.
//! Commits are durable and store the allocator's state, so that opening after a crash does not walk
//! the whole file.

pub mod index_checksums;
pub(crate) mod index_copy;
pub(crate) mod overlay;
pub(crate) mod panic_guard;
pub(crate) mod probe;
mod progress;
pub(crate) mod raw_index;

pub use progress::IndexProgress;
pub(crate) use progress::{COPY, STORE};

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redb::{Database, Durability, ReadableDatabase, StorageBackend, TableDefinition};

use crate::files::error::DiskError;
use crate::files::{StoreDir, StoreFile};
use crate::index::index_checksums::{ChecksummedBackend, Reads, SumsStore};
use crate::index::panic_guard::guarded;
use progress::PROGRESS;

/// Extension of the file with the checksums, beside the index.
const SUMS_EXTENSION: &str = "sums";
const ENTRIES: TableDefinition<'static, &[u8], &[u8]> = TableDefinition::new("entries");
const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
/// Unit of `st_blocks`.
const DISK_BLOCK: u64 = 512;

/// The embedded store.
pub struct Index {
    /// `Some` until the drop.
    database: Option<Database>,
    reads: Arc<Reads>,
    /// The file below, where the backend is a file.
    file: Option<File>,
}

/// An immutable view of the table as of one commit.
pub(crate) struct Snapshot {
    table: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
}

impl Index {
    /// Creates a new, empty index at `path`, replacing an existing one.
    ///
    /// # Errors
    /// When the medium fails.
    pub fn create_file(path: &Path, cache_bytes: usize) -> Result<Self, DiskError> {
        // Checksums never outlive their index.
        for old in [&path.with_extension(SUMS_EXTENSION), path] {
            match std::fs::remove_file(old) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(DiskError::io("remove the index", error));
                }
                _ => {}
            }
        }
        let fail = |error| DiskError::io("make the index", error);
        let (store, name) = place(path);
        let file = store.create(&name).map_err(fail)?;
        Self::over_files(&store, &name, file, cache_bytes)
    }

    /// Opens the index `name` of a store.
    ///
    /// # Errors
    /// When the medium fails or the file is damaged.
    pub(crate) fn open_in(
        store: &StoreDir,
        name: &str,
        cache_bytes: usize,
    ) -> Result<Self, DiskError> {
        // The library would create a new, empty store in it, and new checksums beside it.
        let fail = |error| DiskError::io("open the index", error);
        let file = store.open(name).map_err(fail)?;
        if file.file().metadata().map_err(fail)?.len() == 0 {
            return Err(DiskError::Corrupt("index: the file is empty".into()));
        }
        Self::over_files(store, name, file, cache_bytes)
    }

    fn over_files(
        store: &StoreDir,
        name: &str,
        file: StoreFile,
        cache_bytes: usize,
    ) -> Result<Self, DiskError> {
        let fail = |error| DiskError::io("open the index", error);
        let sums = Path::new(name).with_extension(SUMS_EXTENSION);
        let sums = store.open_or_create(&sums.to_string_lossy());
        let sums = Box::new(sums.map_err(fail)?);
        let same = file.file().try_clone().map_err(fail)?;
        let mut index = Self::open_summed(file, sums, cache_bytes)?;
        index.file = Some(same);
        Ok(index)
    }

    /// As [`Self::open_backend`], with the checksums of its blocks in `sums`.
    ///
    /// # Errors
    /// As [`Self::open_backend`].
    pub fn open_summed(
        backend: impl StorageBackend,
        sums: Box<dyn SumsStore>,
        cache_bytes: usize,
    ) -> Result<Self, DiskError> {
        let reads = Arc::new(Reads::default());
        let summed = ChecksummedBackend::new(backend, sums, Arc::clone(&reads))
            .map_err(|error| DiskError::io("checksums of the index", error))?;
        let mut index = Self::open_backend(summed, cache_bytes)?;
        index.reads = reads;
        Ok(index)
    }

    /// Reads of blocks that failed their checksum, since opening.
    #[must_use]
    pub fn damaged(&self) -> u64 {
        self.reads.damaged.load(Ordering::Relaxed)
    }

    /// Reads that no cache answered, since opening.
    pub(crate) fn missed(&self) -> u64 {
        self.reads.missed.load(Ordering::Relaxed)
    }

    /// Opens an index over `backend`; initialises an empty one.
    ///
    /// # Errors
    /// When the backend fails or its contents are damaged.
    pub fn open_backend(
        backend: impl StorageBackend,
        cache_bytes: usize,
    ) -> Result<Self, DiskError> {
        let empty = backend
            .len()
            .map_err(|error| DiskError::io("index", error))?
            == 0;
        let open = || Ok(builder(cache_bytes).create_with_backend(backend)?);
        let index = guarded(open).map(Self::over)?;
        if empty {
            index.initialise()?;
        }
        Ok(index)
    }

    fn over(database: Database) -> Self {
        Self {
            database: Some(database),
            reads: Arc::default(),
            file: None,
        }
    }

    fn database(&self) -> Result<&Database, DiskError> {
        self.database.as_ref().ok_or(DiskError::Failed)
    }

    fn initialise(&self) -> Result<(), DiskError> {
        self.commit(std::iter::empty(), &IndexProgress::default())
    }

    /// The log position that the index has reached.
    pub(crate) fn progress(&self) -> Result<IndexProgress, DiskError> {
        guarded(|| {
            let transaction = self.database()?.begin_read()?;
            let table = transaction.open_table(META)?;
            let bytes = table.get(PROGRESS)?;
            let progress = bytes.and_then(|bytes| IndexProgress::decode(bytes.value()));
            let (copy, store) = (table.get(COPY)?, table.get(STORE)?);
            let copy = copy.as_ref().map(|bytes| bytes.value());
            let store = store.as_ref().map(|bytes| bytes.value());
            progress
                .map(|progress| progress.with(copy, store))
                .ok_or_else(|| DiskError::Corrupt("index: no valid progress entry".into()))
        })
    }

    /// Writes changes and progress in one durable commit.
    pub(crate) fn commit<'a>(
        &self,
        changes: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        progress: &IndexProgress,
    ) -> Result<(), DiskError> {
        guarded(|| {
            let mut transaction = self.database()?.begin_write()?;
            transaction
                .set_durability(Durability::Immediate)
                .map_err(|error| DiskError::Corrupt(format!("index: {error}")))?;
            transaction.set_quick_repair(true);
            {
                let mut table = transaction.open_table(ENTRIES)?;
                let mut sealed = Vec::new();
                for (key, value) in changes {
                    if let Some(value) = value {
                        seal(&mut sealed, key, value);
                        table.insert(key, sealed.as_slice())?;
                    } else {
                        table.remove(key)?;
                    }
                }
                let mut meta = transaction.open_table(META)?;
                meta.insert(PROGRESS, progress.encode().as_slice())?;
                meta.insert(COPY, progress.copy.to_le_bytes().as_slice())?;
                meta.insert(STORE, progress.store.to_le_bytes().as_slice())?;
            }
            transaction.commit()?;
            Ok(())
        })
    }

    /// Bytes of the file that have space on the disk and that the next commits may write. Walks the
    /// whole index; nobody else may write meanwhile.
    pub(crate) fn reusable(&self) -> Result<u64, DiskError> {
        let Some(file) = &self.file else {
            return Ok(0);
        };
        let used = guarded(|| {
            let transaction = self.database()?.begin_write()?;
            let stats = transaction.stats()?;
            transaction.abort()?;
            Ok(stats.allocated_pages() * stats.page_size() as u64)
        })?;
        let metadata = file.metadata();
        let metadata = metadata.map_err(|error| DiskError::io("the index's space", error))?;
        Ok((metadata.blocks() * DISK_BLOCK).saturating_sub(used))
    }

    /// The table as of the last commit.
    pub(crate) fn snapshot(&self) -> Result<Snapshot, DiskError> {
        guarded(|| {
            let transaction = self.database()?.begin_read()?;
            let table = transaction.open_table(ENTRIES)?;
            Ok(Snapshot { table })
        })
    }
}

impl Drop for Index {
    /// Closing reads the pages it tidies up, which may be damaged. That loses nothing: commits are
    /// durable and store the allocator's state.
    fn drop(&mut self) {
        let database = self.database.take();
        drop(guarded(|| {
            drop(database);
            Ok(())
        }));
    }
}

impl Snapshot {
    /// The value of `key`.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        guarded(|| {
            let found = self.table.get(key)?;
            found
                .map(|sealed| unseal(key, sealed.value()).map(<[u8]>::to_vec))
                .transpose()
        })
    }

    /// Entries in key order from `start` (inclusive) to `end` (exclusive).
    pub(crate) fn range(&self, start: &[u8], end: &[u8]) -> Result<Cursor, DiskError> {
        guarded(|| {
            let range = self.table.range::<&[u8]>(start..end.max(start))?;
            Ok(Cursor { range })
        })
    }

    /// Entries in key order from `start` (inclusive) to the last.
    pub(crate) fn behind(&self, start: &[u8]) -> Result<Cursor, DiskError> {
        guarded(|| {
            let range = self.table.range::<&[u8]>(start..)?;
            Ok(Cursor { range })
        })
    }
}

/// A key and its value.
pub(crate) type Stored = (Vec<u8>, Vec<u8>);

/// A position in a range of a snapshot.
pub(crate) struct Cursor {
    range: redb::Range<'static, &'static [u8], &'static [u8]>,
}

impl Cursor {
    /// The next entry, copied out.
    pub(crate) fn next(&mut self) -> Result<Option<Stored>, DiskError> {
        guarded(|| {
            let Some(entry) = self.range.next() else {
                return Ok(None);
            };
            let (key, sealed) = entry?;
            let value = unseal(key.value(), sealed.value())?.to_vec();
            Ok(Some((key.value().to_vec(), value)))
        })
    }
}

/// The folder and the name of a file.
fn place(path: &Path) -> (StoreDir, String) {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let folder = path.parent().unwrap_or(Path::new(""));
    (StoreDir::plain(folder), name.into_owned())
}

fn builder(cache_bytes: usize) -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    builder
}

fn checksum(key: &[u8], value: &[u8]) -> u32 {
    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
    digest.update(key);
    digest.update(value);
    // A 32-bit algorithm: the upper half is zero.
    u32::try_from(digest.finalize() & 0xffff_ffff).unwrap_or(0)
}

fn seal(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    out.clear();
    out.extend_from_slice(value);
    out.extend_from_slice(&checksum(key, value).to_le_bytes());
}

pub(crate) fn unseal<'a>(key: &[u8], sealed: &'a [u8]) -> Result<&'a [u8], DiskError> {
    match sealed.split_last_chunk::<4>() {
        Some((value, crc)) if checksum(key, value) == u32::from_le_bytes(*crc) => Ok(value),
        _ => Err(DiskError::Corrupt(
            "index: a value fails its checksum".into(),
        )),
    }
}

fn from_library(error: redb::Error) -> DiskError {
    match error {
        redb::Error::Io(source) if source.kind() == std::io::ErrorKind::InvalidData => {
            DiskError::Corrupt(format!("index: {source}"))
        }
        redb::Error::Io(source) => DiskError::io("index", source),
        redb::Error::PreviousIo => DiskError::Failed,
        other => DiskError::Corrupt(format!("index: {other}")),
    }
}

macro_rules! from_library {
    ($($error:ty),*) => {$(
        impl From<$error> for DiskError {
            fn from(error: $error) -> Self {
                from_library(error.into())
            }
        }
    )*};
}

from_library!(
    redb::DatabaseError,
    redb::TransactionError,
    redb::TableError,
    redb::StorageError,
    redb::CommitError
);
