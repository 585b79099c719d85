//! Reads the index's file without the library that writes it: changes nothing and trusts nothing.
//!
//! A walk descends from the committed root (layout of redb 4, docs/on-disk-format.md). It compares
//! each page with the checksum that its parent page has of it, which detects old, misplaced and
//! torn pages. It corrects one flipped bit: of all pages that differ in one bit, the checksum
//! identifies the right one. It reports a page beyond repair with the keys that the page should
//! have held, and goes on behind it. Depth and pages are bounded, so that a walk of a damaged file
//! ends too.
//!
//! Costs: one `pread` and one checksum a page; some 30 ms for a damaged page.

mod page;
mod walk;

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use zonal_basics::to_usize;

use xxhash_rust::xxh3::xxh3_128;

use crate::files::error::DiskError;
use crate::index::{COPY, IndexProgress, STORE, unseal};

use page::{BRANCH, Branch, LEAF, Leaf, Link, mend, u32_at, u128_at, used};

const MAGIC: &[u8; 9] = b"redb\x1a\x0a\xa9\x0d\x0a";
const PAGE: u64 = 4096;
/// Positions of the two commit slots, and the bytes of one.
const SLOTS: [usize; 2] = [64, 192];
/// Deepest tree that is accepted: a branch has at least two children.
const DEPTH_MAX: u32 = 32;
/// Largest page that is accepted, as a power of two of [`PAGE`]: holds the largest value twice.
const ORDER_MAX: u64 = 12;

/// Largest page in which a flipped bit is searched, and how many pages are tried: minutes at most.
const MEND_BYTES_MAX: usize = 16 << 10;
const MENDS_MAX: u32 = 2048;
const SLOT_BYTES: usize = 128;
const SLOT_SUMMED: usize = SLOT_BYTES - 16;

/// An item of a walk over an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexItem<'a> {
    /// An entry whose checksum holds.
    Entry(&'a [u8], &'a [u8]),
    /// An entry whose key or value fails its checksum.
    BadEntry {
        /// The key as found; it may be the damaged part.
        key: &'a [u8],
    },
    /// A page in which one flipped bit was corrected: nothing is lost, but the file is damaged.
    Mended {
        /// Its position in the file.
        offset: u64,
    },
    /// An unusable page: keys above `above` and up to `upto` (`None`: all behind) may be lost.
    BadPage {
        /// Its position in the file.
        offset: u64,
        /// Its depth below the root.
        depth: u32,
        /// The last key before it, according to the page above.
        above: &'a [u8],
        /// The last key that it may have held.
        upto: Option<&'a [u8]>,
    },
}

/// Takes the items of a walk, in key order; false ends the walk.
pub(crate) type Visit<'a> = dyn FnMut(IndexItem<'_>) -> bool + 'a;

/// An index's file, open for reading.
#[derive(Debug)]
pub(crate) struct RawIndex {
    file: File,
    length: u64,
    region_bytes: u64,
    region_header: u64,
    /// The root page; `None`: the table is empty.
    root: Option<Link>,
    pub progress: IndexProgress,
    mends_left: Cell<u32>,
    /// Checksums of the blocks, from the file beside the index; 0: unknown.
    sums: Vec<u32>,
    /// Pages read so far.
    pub pages_read: Cell<u64>,
}

/// A page after it was read and verified.
enum Page {
    Sound(Vec<u8>),
    Mended(Vec<u8>),
    /// Its checksum fails.
    Doubtful(Vec<u8>),
    /// It lies outside of the file or is unreadable.
    Gone,
}

impl Page {
    /// The bytes, where they are verified.
    fn trusted(self) -> Option<Vec<u8>> {
        match self {
            Self::Sound(bytes) | Self::Mended(bytes) => Some(bytes),
            Self::Doubtful(_) | Self::Gone => None,
        }
    }
}

impl RawIndex {
    /// Opens the file at `path` by its newest usable commit.
    ///
    /// # Errors
    /// `Corrupt` where no commit is usable, `Io`.
    pub fn open(path: &Path) -> Result<Self, DiskError> {
        let failed = |error| DiskError::io("index", error);
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let corrupt = |what: &str| DiskError::Corrupt(format!("index: {what}"));
        let mut header = [0; 320];
        if length < PAGE {
            return Err(corrupt("shorter than its header"));
        }
        file.read_exact_at(&mut header, 0).map_err(failed)?;
        let pages = |at| u64::from(u32_at(&header, at).unwrap_or(0));
        let (region_header, region_pages) = (pages(16) * PAGE, pages(20));
        if !header.starts_with(MAGIC) || region_pages == 0 || region_pages > 1 << 20 {
            return Err(corrupt("its header is none"));
        }
        let mut index = Self {
            file,
            length,
            region_bytes: region_header + region_pages * PAGE,
            region_header,
            root: None,
            progress: IndexProgress::default(),
            mends_left: Cell::new(MENDS_MAX),
            sums: Vec::new(),
            pages_read: Cell::new(0),
        };
        let primary = usize::from(header[9] & 1 != 0);
        for at in [SLOTS[primary], SLOTS[1 - primary]] {
            let Some(slot) = header.get(at..at + SLOT_BYTES) else {
                continue;
            };
            if let Some((root, progress)) = index.commit(slot) {
                (index.root, index.progress) = (root, progress);
                return Ok(index);
            }
        }
        Err(corrupt("no commit can be read"))
    }

    /// Root of the entries and progress of the commit in a slot.
    fn commit(&self, slot: &[u8]) -> Option<(Option<Link>, IndexProgress)> {
        let mut slot = slot.to_vec();
        let sum = u128_at(&slot, SLOT_SUMMED)?;
        if xxh3_128(&slot[..SLOT_SUMMED]) != sum {
            mend(&mut slot, |slot| xxh3_128(&slot[..SLOT_SUMMED]) == sum)?;
        }
        if slot.get(1) == Some(&0) {
            return None;
        }
        let tables = Link::at(&slot, 8)?;
        let definition = |name: &[u8]| -> Option<Option<Link>> {
            let value = self.find(tables, name, 0)?;
            // Type 3 (a plain table), length u64, whether there is a root u8, the root.
            if value.first() != Some(&3) {
                return None;
            }
            Some(match value.get(9)? {
                0 => None,
                _ => Some(Link::at(&value, 10)?),
            })
        };
        let meta = definition(b"meta")??;
        let progress = IndexProgress::decode(&self.find(meta, b"progress", 0)?)?;
        let copy = self.find(meta, COPY.as_bytes(), 0);
        let store = self.find(meta, STORE.as_bytes(), 0);
        let progress = progress.with(copy.as_deref(), store.as_deref());
        Some((definition(b"entries").unwrap_or(None), progress))
    }

    /// The bytes under `key` in the tree at `link`, unverified.
    fn find(&self, link: Link, key: &[u8], depth: u32) -> Option<Vec<u8>> {
        let bytes = self.page(link).trusted()?;
        match *bytes.first()? {
            LEAF => {
                let leaf = Leaf::new(&bytes)?;
                (0..leaf.count)
                    .filter_map(|at| leaf.entry(at))
                    .find(|(found, _)| *found == key)
                    .map(|(_, value)| value.to_vec())
            }
            BRANCH if depth < DEPTH_MAX => {
                let branch = Branch::new(&bytes)?;
                let at = (0..branch.keys).find(|at| branch.key(*at).is_some_and(|top| key <= top));
                self.find(branch.child(at.unwrap_or(branch.keys))?, key, depth + 1)
            }
            _ => None,
        }
    }

    /// Compares pages with the checksums in the file `sums` from now on. A sound page that fails
    /// there counts as mended, because a server would refuse it.
    pub fn compare_with(&mut self, sums: &Path) {
        let bytes = std::fs::read(sums).unwrap_or_default();
        let (words, _rest) = bytes.as_chunks::<4>();
        self.sums = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    }

    fn is_refused(&self, offset: u64, bytes: &[u8]) -> bool {
        let numbers = usize::try_from(offset / PAGE).unwrap_or(usize::MAX)..;
        bytes
            .chunks(to_usize(PAGE))
            .zip(numbers)
            .any(|(block, number)| {
                let expected = self.sums.get(number).copied().unwrap_or(0);
                number > 0 && expected != 0 && crate::index::index_checksums::sum(block) != expected
            })
    }

    /// Pages of the file.
    pub fn pages(&self) -> u64 {
        self.length / PAGE
    }

    /// Depth of the leaves below the root; all leaves of a tree have the same.
    pub fn leaf_depth(&self) -> Option<u32> {
        self.depth_below(self.root?, 0)
    }

    fn depth_below(&self, link: Link, depth: u32) -> Option<u32> {
        let bytes = self.page(link).trusted()?;
        match Branch::of(&bytes) {
            None => Some(depth),
            Some(_) if depth > DEPTH_MAX => None,
            Some(branch) => (0..=branch.keys)
                .filter_map(|at| branch.child(at))
                .find_map(|child| self.depth_below(child, depth + 1)),
        }
    }

    /// Value of `key`; damage on the path is `Corrupt`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        let mut end = key.to_vec();
        end.push(0);
        let mut result = Ok(None);
        self.walk(key, Some(&end), &mut |found| {
            result = match found {
                IndexItem::Mended { .. } => return true,
                IndexItem::Entry(_, value) => Ok(Some(value.to_vec())),
                _ => Err(DiskError::Corrupt("index: a page is damaged".into())),
            };
            false
        });
        result
    }

    /// Offset and length of a page in the file, where it lies inside.
    fn address(&self, number: u64) -> Option<(u64, u64)> {
        let order = number >> 59;
        if order > ORDER_MAX {
            return None;
        }
        let page = number & (0xf_ffff >> order);
        let region = number >> 20 & 0xf_ffff;
        let length = PAGE << order;
        let inside = self.region_header + page * length;
        let offset = PAGE + region * self.region_bytes + inside;
        let fits = inside + length <= self.region_bytes && offset + length <= self.length;
        fits.then_some((offset, length))
    }

    fn page(&self, link: Link) -> Page {
        let Some((offset, length)) = self.address(link.page) else {
            return Page::Gone;
        };
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.pages_read.set(self.pages_read.get() + length / PAGE);
        // An unreadable page counts as damaged: the walk goes on.
        if self.file.read_exact_at(&mut bytes, offset).is_err() {
            return Page::Gone;
        }
        let holds = |bytes: &[u8]| {
            used(bytes)
                .and_then(|end| bytes.get(..end))
                .is_some_and(|used| xxh3_128(used) == link.checksum)
        };
        if holds(&bytes) {
            return if self.is_refused(offset, &bytes) {
                Page::Mended(bytes)
            } else {
                Page::Sound(bytes)
            };
        }
        let is_empty = bytes.iter().all(|byte| *byte == 0);
        if is_empty || bytes.len() > MEND_BYTES_MAX || self.mends_left.get() == 0 {
            return Page::Doubtful(bytes);
        }
        self.mends_left.set(self.mends_left.get() - 1);
        match mend(&mut bytes, holds) {
            Some(()) => Page::Mended(bytes),
            None => Page::Doubtful(bytes),
        }
    }
}

/// Walks the entries of an index's file without the store around it, for fuzzers that generate
/// index files.
///
/// # Errors
/// `Corrupt` where no commit is usable, `Io`.
pub fn walk_index(
    path: &Path,
    visit: &mut dyn FnMut(IndexItem<'_>) -> bool,
) -> Result<(), DiskError> {
    RawIndex::open(path)?.walk(&[], None, visit);
    Ok(())
}

/// Passes the entries of every block in `file` that has the form of a leaf to `visit`.
pub(crate) fn carve(file: &File, length: u64, visit: &mut dyn FnMut(&[u8], &[u8])) {
    let largest = PAGE << 4;
    let mut offset = PAGE;
    let mut bytes = Vec::new();
    while offset + PAGE <= length {
        let size = largest.min(length - offset);
        bytes.resize(usize::try_from(size).unwrap_or(0), 0);
        if file.read_exact_at(&mut bytes, offset).is_ok()
            && let Some(leaf) = Leaf::of(&bytes)
        {
            for (key, sealed) in (0..leaf.count).filter_map(|at| leaf.entry(at)) {
                if let Ok(value) = unseal(key, sealed) {
                    visit(key, value);
                }
            }
        }
        offset += PAGE;
    }
}
