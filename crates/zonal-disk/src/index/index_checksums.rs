//! Checksums of the index's blocks: the `index.sums` file beside `index.redb`.
//!
//! The library does not check a page when it reads it, and a flipped bit in an inner page could
//! silently hide a key. So a layer below it keeps a crc32c of each 4 KiB block and compares it at
//! each read. For a block that fails, the layer returns bytes that are no valid page: the one
//! look-up fails, not the whole store.
//!
//! The file has one little-endian u32 for each block of the index; 0: not known. It leaves out
//! block 0, which the library rewrites in place and checks itself.
//!
//! Invariants:
//! 1. Checksums are durable before the flush of their blocks returns.
//! 2. A block that a durable commit refers to is not written again before a later one is durable.
//!    So a crash mixes up only blocks that no commit refers to.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use zonal_basics::to_usize;

use redb::StorageBackend;

use crate::files::StoreFile;
use crate::files::group_commit::lock;

/// Bytes covered by a checksum.
const BLOCK: u64 = 4096;
/// Checksums in one write of the file: a block of it.
const GROUP: usize = 1024;
/// Contents returned for a damaged block: its first byte is no kind of page.
const NO_PAGE: u8 = 0xff;

/// Storage of the checksums.
pub trait SumsStore: Send + Sync + 'static {
    /// Reads its first bytes, at most `bytes_max`.
    ///
    /// # Errors
    /// When the medium fails.
    fn load(&self, bytes_max: usize) -> io::Result<Vec<u8>>;

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// When the medium fails.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes earlier writes durable.
    ///
    /// # Errors
    /// When the medium fails.
    fn sync(&self) -> io::Result<()>;
}

impl SumsStore for File {
    fn load(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.metadata()?.len()).unwrap_or(usize::MAX);
        let mut bytes = vec![0; length.min(bytes_max)];
        self.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

impl SumsStore for StoreFile {
    fn load(&self, bytes_max: usize) -> io::Result<Vec<u8>> {
        self.file().load(bytes_max)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }
}

#[derive(Default)]
struct Known {
    sums: Vec<u32>,
    /// Groups that are not in the file yet.
    changed: BTreeSet<usize>,
}

/// A backend of the library that verifies checksums.
pub(crate) struct ChecksummedBackend<B> {
    below: B,
    store: Box<dyn SumsStore>,
    known: RwLock<Known>,
    /// One flush at a time: a second call must not return before the checksums of the first are
    /// durable.
    flushing: Mutex<()>,
    reads: Arc<Reads>,
}

/// Reads of blocks since opening.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    /// Reads from the disk, because the library had not cached the page.
    pub(crate) missed: AtomicU64,
    /// Blocks that failed their checksum.
    pub(crate) damaged: AtomicU64,
}

impl<B> fmt::Debug for ChecksummedBackend<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChecksummedBackend")
    }
}

impl<B: StorageBackend> ChecksummedBackend<B> {
    /// Puts the checksums of `store` over `below`.
    pub(crate) fn new(below: B, store: Box<dyn SumsStore>, reads: Arc<Reads>) -> io::Result<Self> {
        // Drops the checksums of blocks that the index does not have.
        let blocks = number(below.len()?.next_multiple_of(BLOCK));
        let bytes = store.load(blocks.saturating_mul(4))?;
        let (words, _rest) = bytes.as_chunks::<4>();
        let known = Known {
            sums: words.iter().map(|word| u32::from_le_bytes(*word)).collect(),
            changed: BTreeSet::new(),
        };
        Ok(Self {
            below,
            store,
            known: RwLock::new(known),
            flushing: Mutex::new(()),
            reads,
        })
    }

    fn change(&self, change: impl FnOnce(&mut Known)) {
        change(&mut self.known.write().unwrap_or_else(PoisonError::into_inner));
    }

    fn write_sums(&self) -> io::Result<()> {
        let groups: Vec<(usize, Vec<u8>)> = {
            let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
            let changed = std::mem::take(&mut known.changed);
            let bytes = |group: usize| {
                let from = (group * GROUP).min(known.sums.len());
                let to = (from + GROUP).min(known.sums.len());
                known.sums[from..to]
                    .iter()
                    .flat_map(|sum| sum.to_le_bytes())
                    .collect()
            };
            changed
                .into_iter()
                .map(|group| (group, bytes(group)))
                .collect()
        };
        if groups.is_empty() {
            return Ok(());
        }
        for (group, bytes) in groups {
            self.store.write_at((group * GROUP * 4) as u64, &bytes)?;
        }
        self.store.sync()
    }
}

impl Known {
    fn set(&mut self, block: usize, sum: u32) {
        if block >= self.sums.len() {
            self.sums.resize(block + 1, 0);
        }
        self.sums[block] = sum;
        self.changed.insert(block / GROUP);
    }
}

/// A checksum; never the value that means "not known".
#[must_use]
pub fn sum(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes).max(1)
}

fn number(offset: u64) -> usize {
    usize::try_from(offset / BLOCK).unwrap_or(usize::MAX)
}

impl<B: StorageBackend> StorageBackend for ChecksummedBackend<B> {
    fn len(&self) -> io::Result<u64> {
        self.below.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.reads.missed.fetch_add(1, Ordering::Relaxed);
        self.below.read(offset, out)?;
        if !offset.is_multiple_of(BLOCK) {
            return Ok(());
        }
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let blocks = out.chunks_exact(to_usize(BLOCK)).zip(number(offset)..);
        let differs = |(bytes, block): (&[u8], usize)| {
            let expected = known.sums.get(block).copied().unwrap_or(0);
            block > 0 && expected != 0 && sum(bytes) != expected
        };
        let bad = blocks.filter(|pair| differs(*pair)).count();
        if bad > 0 {
            self.reads.damaged.fetch_add(bad as u64, Ordering::Relaxed);
            out.fill(NO_PAGE);
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let blocks = number(len.next_multiple_of(BLOCK));
        self.change(|known| {
            for block in blocks..known.sums.len() {
                known.set(block, 0);
            }
        });
        self.below.set_len(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        let _turn = lock(&self.flushing);
        self.write_sums()?;
        self.below.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset + data.len() as u64;
        self.change(|known| {
            for block in number(offset)..number(end.next_multiple_of(BLOCK)) {
                let at = block as u64 * BLOCK;
                let whole = at >= offset && at + BLOCK <= end && block > 0;
                let start = usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX);
                let bytes = data.get(start..start.saturating_add(to_usize(BLOCK)));
                known.set(block, bytes.filter(|_| whole).map_or(0, sum));
            }
        });
        self.below.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.below.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_file_that_is_too_long_takes_bounded_memory() -> io::Result<()> {
        let scratch = zonal_testkit::Scratch::new("sums");
        let file = File::create_new(scratch.join("sums"))?;
        file.set_len(1 << 42)?;
        file.write_all_at(&7_u32.to_le_bytes(), 8)?;
        let below = redb::backends::InMemoryBackend::new();
        below.set_len(3 * BLOCK - 1)?;
        let summed = ChecksummedBackend::new(below, Box::new(file), Arc::default())?;
        let known = summed.known.read().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(known.sums, [0, 0, 7]);
        Ok(())
    }
}
