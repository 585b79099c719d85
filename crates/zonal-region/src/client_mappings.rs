//! Client mappings: the regions of clients as a server maps them.
//!
//! *Invariant*: mapped memory is on tmpfs and was sealed against shrinking before its length was
//! read. So no access to it can end the process. A client can change these bytes at any time, also
//! while this process has a slice of them. So nobody decodes them, no length or place comes from
//! them, and they are compared with checksums of blocks. *Lock order*: `Mappings`, alone.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use zonal_basics::to_usize;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat, fstatfs};
use rustix::io::Errno;

use crate::shared_mmap::Map;

/// `f_type` of tmpfs, and of a memfd without huge pages (magic.h).
const TMPFS: i64 = 0x0102_1994;

/// Why a client's memory is not mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// Not a memfd, or one with huge pages.
    #[error("it is not a memory file")]
    Kind,
    /// It could shrink.
    #[error("it is not sealed against shrinking")]
    Seal,
    /// Empty, or longer than the bound.
    #[error("it has {bytes} bytes, of {max} at most")]
    Length {
        /// Its length.
        bytes: u64,
        /// The bound.
        max: u64,
    },
    /// The kernel refused.
    #[error("{0}")]
    System(#[from] Errno),
}

/// A client's region, in a server.
#[derive(Debug)]
pub struct Mapping {
    map: Map,
}

impl Mapping {
    /// A part of it; `None` where the range is not completely inside.
    #[must_use]
    pub fn part(self: &Arc<Self>, offset: u64, length: u32) -> Option<RegionPart> {
        let offset = usize::try_from(offset).ok()?;
        let length = length as usize;
        let is_within = offset.checked_add(length)? <= self.map.len();
        is_within.then(|| RegionPart {
            mapping: Arc::clone(self),
            offset,
            length,
        })
    }
}

/// The part of a client's region that a request names.
#[derive(Debug)]
pub struct RegionPart {
    mapping: Arc<Mapping>,
    offset: usize,
    length: usize,
}

impl RegionPart {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The bytes, which the client may change at any time.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        self.mapping.map.bytes(self.offset, self.length)
    }

    /// The bytes, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.mapping.map.bytes_mut(self.offset, self.length)
    }
}

/// The regions of all connections of a server: one mapping for each region, however many
/// connections sent it.
#[derive(Debug, Default)]
pub struct Mappings(Mutex<BTreeMap<(u64, u64), Weak<Mapping>>>);

impl Mappings {
    /// Bytes currently mapped.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let known = self.lock();
        let live = known.values().filter_map(Weak::upgrade);
        live.map(|mapping| mapping.map.len() as u64).sum()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, u64), Weak<Mapping>>> {
        // No code that can panic runs under this lock; a poisoned one is still consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mapping of a client's file of up to `max` bytes. The key holds the file's number:
    /// another file can have it only after the mapping, and its key, are gone.
    ///
    /// # Errors
    /// See [`MapError`]; nothing is mapped then.
    pub fn of(&self, file: &OwnedFd, max: u64) -> Result<Arc<Mapping>, MapError> {
        // The kernel alone answers, whatever file system the file is on: EINVAL for one without
        // seals.
        let seals = fcntl_get_seals(file).map_err(|_errno| MapError::Kind)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MapError::Seal);
        }
        if fstatfs(file)?.f_type as i64 != TMPFS {
            return Err(MapError::Kind);
        }
        // After the seal check: before it the client could still shrink the file.
        let stat = fstat(file)?;
        let bytes = u64::try_from(stat.st_size).unwrap_or_default();
        if bytes == 0 || bytes > max {
            return Err(MapError::Length { bytes, max });
        }
        let key = (stat.st_dev, stat.st_ino);
        let mut known = self.lock();
        if let Some(mapping) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(mapping);
        }
        known.retain(|_key, mapping| mapping.strong_count() > 0);
        let map = Map::new(file, to_usize(bytes))?;
        let mapping = Arc::new(Mapping { map });
        known.insert(key, Arc::downgrade(&mapping));
        Ok(mapping)
    }
}
