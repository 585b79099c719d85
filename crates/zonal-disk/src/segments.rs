//! The segment files of a target, which hold the bytes of its objects.
//!
//! They are `seg.00000000`, `seg.00000001`, ... of the same length. Each is created when first
//! written, with its space allocated, so that a later write does not run out of space. Offsets and
//! lengths are in bytes. A read is one `pread`, a write one `pwrite`, a sync one `fdatasync` for
//! each dirty segment. A long write also starts the transfer of its bytes to the disk (one
//! `fadvise` more). So the disk works while further writes arrive, not only from the sync on.

mod direct_read;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use rustix::fs::Advice;
use rustix::io::Errno;

use crate::files::disk::DataSync;
use crate::files::error::DiskError;
use crate::files::group_commit::lock;
use crate::files::identity::sync_dir;
use crate::files::{StoreDir, StoreFile};

/// Smallest segment, in bytes.
pub const MIN_SEGMENT: u64 = 1 << 20;
/// Largest segment, in bytes.
pub const MAX_SEGMENT: u64 = 1 << 30;
/// The folder of a store's segments.
pub(crate) const FOLDER: &str = "segments";
pub(crate) const PREFIX: &str = "seg.";
const UNFINISHED: &str = ".new";
/// A write of at least this length is sent to the disk at once. Shorter ones are left to the
/// kernel, which may merge them.
const STREAM_BYTES: usize = 256 << 10;

/// Bounds of a folder of segments.
#[derive(Debug, Clone, Copy)]
pub struct SegmentsConfig {
    /// Length of each segment: a multiple of 4096, 1 MiB to 1 GiB. Fixed with the first segment.
    pub segment_bytes: u64,
    /// Most bytes of all segments together.
    pub capacity: u64,
    /// Bytes left free on the file system when a segment is created, so that the index can grow.
    pub headroom: u64,
}

impl Default for SegmentsConfig {
    fn default() -> Self {
        Self {
            segment_bytes: 64 << 20,
            capacity: u64::MAX,
            headroom: 64 << 20,
        }
    }
}

/// Space, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Most bytes that segments can take, created or not.
    pub total: u64,
    /// Bytes that further segments can take.
    pub unmade: u64,
    /// Bytes of the segments created so far.
    pub made: u64,
}

#[derive(Default)]
struct Dirty {
    /// Segments written since the last sync began.
    segments: BTreeSet<u32>,
    /// A sync is in progress.
    syncing: bool,
    /// A sync has failed: bytes may be lost, and nothing is durable from here on.
    failed: bool,
}

/// A folder of segment files. Shared by reference.
pub struct Segments {
    pub(crate) dir: PathBuf,
    store: StoreDir,
    /// The folder below the store's; empty where it is `store` itself.
    folder: &'static str,
    config: SegmentsConfig,
    files: RwLock<BTreeMap<u32, Arc<StoreFile>>>,
    making: Mutex<()>,
    dirty: Mutex<Dirty>,
    sync_turn: Mutex<()>,
    flushes: AtomicU64,
}

impl Segments {
    /// Opens the folder `dir`, creating it if necessary. Segments of an earlier process count as
    /// dirty.
    ///
    /// # Errors
    /// `Config`, `Corrupt` for a segment of another length, `Io`.
    pub fn open(dir: &Path, config: SegmentsConfig) -> Result<Self, DiskError> {
        check_config(&config)?;
        let fail = |error| DiskError::io("segment folder", error);
        fs::create_dir_all(dir).map_err(fail)?;
        if let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            sync_dir(parent).map_err(fail)?;
        }
        Self::load(StoreDir::plain(dir), "", config)
    }

    /// As [`Self::open`], for the segments of a store.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_in(store: &StoreDir, config: SegmentsConfig) -> Result<Self, DiskError> {
        check_config(&config)?;
        let fail = |error| DiskError::io("segment folder", error);
        store.make_folder(FOLDER).map_err(fail)?;
        store.sync_names("").map_err(fail)?;
        Self::load(store.clone(), FOLDER, config)
    }

    fn load(
        store: StoreDir,
        folder: &'static str,
        config: SegmentsConfig,
    ) -> Result<Self, DiskError> {
        let size = config.segment_bytes;
        let dir = store.path().join(folder);
        let fail = |error| DiskError::io("segment folder", error);
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(&dir).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            let name = path
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            if name.starts_with(PREFIX) && name.ends_with(UNFINISHED) {
                store.remove(&StoreDir::below(folder, name)).map_err(fail)?;
                continue;
            }
            let Some(number) = parse_name(name) else {
                continue;
            };
            let file = store.open(&StoreDir::below(folder, name)).map_err(fail)?;
            let length = file.file().metadata().map_err(fail)?.len();
            if length != size {
                let what = format!("{name}: {length} bytes long, not {size}");
                return Err(DiskError::Corrupt(what));
            }
            files.insert(number, Arc::new(file));
        }
        let dirty = Dirty {
            segments: files.keys().copied().collect(),
            ..Dirty::default()
        };
        Ok(Self {
            dir,
            store,
            folder,
            config,
            files: RwLock::new(files),
            making: Mutex::new(()),
            dirty: Mutex::new(dirty),
            sync_turn: Mutex::new(()),
            flushes: AtomicU64::new(0),
        })
    }

    /// Length of each segment.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.config.segment_bytes
    }

    /// Number of segments.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// Most segments that there can be.
    #[must_use]
    pub fn max_count(&self) -> u32 {
        u32::try_from(self.config.capacity / self.config.segment_bytes).unwrap_or(u32::MAX)
    }

    /// Flushes of segments since opening.
    #[must_use]
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Fills `buffer` from `offset` of `segment`.
    ///
    /// # Errors
    /// `Range` past the end or for a segment that does not exist, `Io`.
    pub fn read_at(&self, segment: u32, offset: u64, buffer: &mut [u8]) -> Result<(), DiskError> {
        self.check_range(segment, offset, buffer.len())?;
        let Some(file) = self.existing(segment) else {
            return Err(DiskError::Range(format!(
                "segment {segment} does not exist"
            )));
        };
        file.file()
            .read_exact_at(buffer, offset)
            .map_err(|error| DiskError::io(format!("read segment {segment}"), error))
    }

    /// Writes `bytes` at `offset` of `segment`, creating it if necessary.
    ///
    /// # Errors
    /// `Range`, `NoSpace` at the capacity or where the file system is full, `Io`.
    pub fn write_at(&self, segment: u32, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.check_range(segment, offset, bytes.len())?;
        let file = match self.existing(segment) {
            Some(file) => file,
            None => self.make(segment)?,
        };
        let written = file.write_all_at(bytes, offset);
        // Also after a failure: a part may have been written. Always before the caller's record, so
        // that the sync that covers the record covers this write.
        lock(&self.dirty).segments.insert(segment);
        written.map_err(|error| DiskError::io(format!("write segment {segment}"), error))?;
        if bytes.len() >= STREAM_BYTES {
            begin_writeback(file.file(), offset, bytes.len());
        }
        Ok(())
    }

    /// Creates `segment` with its space, unless it exists.
    ///
    /// # Errors
    /// `NoSpace`, `Io`.
    pub fn ensure(&self, segment: u32) -> Result<(), DiskError> {
        match self.existing(segment) {
            Some(_) => Ok(()),
            None => self.make(segment).map(drop),
        }
    }

    /// Makes everything written before the call durable; waits for a sync in progress.
    ///
    /// # Errors
    /// `Io` for the flush that failed, `Failed` from then on.
    pub fn sync_dirty(&self) -> Result<(), DiskError> {
        let _turn = lock(&self.sync_turn);
        let segments = {
            let mut dirty = lock(&self.dirty);
            if dirty.failed {
                return Err(DiskError::Failed);
            }
            assert!(!dirty.syncing, "one sync of the segments runs at a time");
            dirty.syncing = true;
            std::mem::take(&mut dirty.segments)
        };
        let result = segments.iter().try_for_each(|&segment| {
            let Some(file) = self.existing(segment) else {
                return Ok(());
            };
            self.flushes.fetch_add(1, Ordering::Relaxed);
            file.sync_data().map_err(|error| DiskError::Io {
                what: format!("flush segment {segment}"),
                source: error,
            })
        });
        let mut dirty = lock(&self.dirty);
        assert!(dirty.syncing, "a sync of the segments ends once");
        dirty.syncing = false;
        dirty.failed = result.is_err();
        result
    }

    /// Whether there is anything to flush, or a flush is in progress.
    #[must_use]
    pub fn dirty(&self) -> bool {
        let dirty = lock(&self.dirty);
        dirty.failed || dirty.syncing || !dirty.segments.is_empty()
    }

    /// Space as the capacity and the file system allow.
    ///
    /// # Errors
    /// `Io`.
    pub fn space(&self) -> Result<Space, DiskError> {
        let free = self.free_below()?.saturating_sub(self.config.headroom);
        let size = self.config.segment_bytes;
        let made = self.count() as u64 * size;
        let allowed = (self.config.capacity / size * size).saturating_sub(made);
        let unmade = allowed.min(free / size * size);
        Ok(Space {
            total: made + unmade,
            unmade,
            made,
        })
    }

    fn free_below(&self) -> Result<u64, DiskError> {
        let space = rustix::fs::statvfs(&self.dir)
            .map_err(|error| DiskError::io("space below", error.into()))?;
        Ok(space.f_bavail.saturating_mul(space.f_frsize))
    }

    fn existing(&self, segment: u32) -> Option<Arc<StoreFile>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files.get(&segment).cloned()
    }

    pub(crate) fn check_range(
        &self,
        segment: u32,
        offset: u64,
        length: usize,
    ) -> Result<(), DiskError> {
        let end = offset.checked_add(length as u64);
        if end.is_none_or(|end| end > self.config.segment_bytes) {
            let what = format!("{length} bytes at {offset} of segment {segment}");
            return Err(DiskError::Range(what));
        }
        Ok(())
    }

    fn make(&self, segment: u32) -> Result<Arc<StoreFile>, DiskError> {
        let _making = lock(&self.making);
        if let Some(file) = self.existing(segment) {
            return Ok(file);
        }
        let size = self.config.segment_bytes;
        if segment >= self.max_count() {
            let what = format!(
                "segment {segment} is past the capacity of {}",
                self.max_count()
            );
            return Err(DiskError::NoSpace(what));
        }
        if self.free_below()? < size.saturating_add(self.config.headroom) {
            let what =
                format!("no space on the file system for segment {segment} and the headroom");
            return Err(DiskError::NoSpace(what));
        }
        let path = StoreDir::below(self.folder, &format!("{PREFIX}{segment:08}"));
        let unfinished = format!("{path}{UNFINISHED}");
        let file = self.make_file(&unfinished, &path).map_err(|error| {
            // Best effort: the next opening removes it otherwise.
            let _ = self.store.remove(&unfinished);
            DiskError::io(format!("make segment {segment}"), error)
        })?;
        let file = Arc::new(file);
        let mut files = self.files.write().unwrap_or_else(PoisonError::into_inner);
        files.insert(segment, Arc::clone(&file));
        Ok(file)
    }

    /// Allocates under a temporary name: a crash leaves no segment of a wrong length.
    fn make_file(&self, unfinished: &str, path: &str) -> io::Result<StoreFile> {
        let file = self.store.create(unfinished)?;
        let size = self.config.segment_bytes;
        match file.allocate(size) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                file.set_len(size)?;
            }
            result => result?,
        }
        file.sync_all()?;
        self.store.rename(unfinished, path)?;
        self.store.sync_names(self.folder)?;
        Ok(file)
    }
}

impl DataSync for Segments {
    fn dirty(&self) -> bool {
        Self::dirty(self)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_dirty().map_err(|error| match &error {
            // Adds the segment's number to the error.
            DiskError::Io { source, .. } => io::Error::new(source.kind(), error),
            _ => io::Error::other(error),
        })
    }
}

/// Starts writing a dirty range to the disk and does not wait. The advice that the range is not
/// needed soon makes the kernel do so; the pages under write stay in the cache. The next sync
/// reports a failure.
fn begin_writeback(file: &File, offset: u64, length: usize) {
    let _ = rustix::fs::fadvise(
        file,
        offset,
        NonZeroU64::new(length as u64),
        Advice::DontNeed,
    );
}

fn check_config(config: &SegmentsConfig) -> Result<(), DiskError> {
    let size = config.segment_bytes;
    if (MIN_SEGMENT..=MAX_SEGMENT).contains(&size) && size.is_multiple_of(4096) {
        return Ok(());
    }
    let what = format!("segments of {size} bytes: take a multiple of 4096, 1 MiB to 1 GiB");
    Err(DiskError::Config(what))
}

fn parse_name(name: &str) -> Option<u32> {
    let digits = name.strip_prefix(PREFIX)?;
    let plain = digits.len() >= 8 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = plain.then(|| digits.parse().ok())??;
    (name == format!("{PREFIX}{number:08}")).then_some(number)
}
