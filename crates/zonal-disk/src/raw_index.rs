//! The index's file read without the library that writes it: nothing is changed, nothing is trusted.
//!
//! A walk goes down from the committed root (layout of redb 4, docs/on-disk-format.md). Each page is compared with the
//! checksum that the page above has of it, so that a page that is old, elsewhere's or torn is found out. One flipped bit
//! is put right: of all the pages that differ in one bit, the checksum names the one. A page beyond help is told with
//! the keys that it should have held, and the walk goes on behind it. Depth and pages are bounded, so that a damaged
//! file ends it too.
//!
//! Costs: one `pread` and one checksum a page; some 30 ms a damaged page.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::error::DiskError;
use crate::index::{Progress, unseal};

const MAGIC: &[u8; 9] = b"redb\x1a\x0a\xa9\x0d\x0a";
const PAGE: u64 = 4096;
/// Where the two commit slots are, and the bytes of one.
const SLOTS: [usize; 2] = [64, 192];
const LEAF: u8 = 1;
const BRANCH: u8 = 2;
/// Deepest tree believed: a branch has two children at least.
const DEPTH_MAX: u32 = 32;
/// Largest page believed, as a power of two of [`PAGE`]: holds the largest value twice.
const ORDER_MAX: u64 = 12;

/// Largest page in which a flipped bit is looked for, and how many pages are tried: minutes at most.
const MEND_BYTES_MAX: usize = 16 << 10;
const MENDS_MAX: u32 = 2048;
const SLOT_BYTES: usize = 128;
const SLOT_SUMMED: usize = SLOT_BYTES - 16;

/// What a walk meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found<'a> {
    /// An entry whose checksum holds.
    Entry(&'a [u8], &'a [u8]),
    /// An entry whose key or value fails its checksum.
    BadEntry {
        /// The key as it is there; it may be what is damaged.
        key: &'a [u8],
    },
    /// A page in which one flipped bit was put right: nothing is lost, and the file is damaged.
    Mended {
        /// Where it is in the file.
        offset: u64,
    },
    /// A page that cannot be used: keys above `above` and up to `upto` (`None`: all behind) may be lost.
    BadPage {
        /// Where it is in the file.
        offset: u64,
        /// How far below the root.
        depth: u32,
        /// The last key before it, as far as the page above says.
        above: &'a [u8],
        /// The last key that it may have held.
        upto: Option<&'a [u8]>,
    },
}

/// Told of what a walk meets, in key order; false ends the walk.
pub(crate) type Visit<'a> = dyn FnMut(Found<'_>) -> bool + 'a;

/// An index's file, open for reading.
#[derive(Debug)]
pub(crate) struct RawIndex {
    file: File,
    length: u64,
    region_bytes: u64,
    region_header: u64,
    /// The root page; `None`: the table is empty.
    root: Option<Link>,
    pub progress: Progress,
    mends_left: Cell<u32>,
    /// What the checksums beside the file say of its blocks; 0: nothing.
    sums: Vec<u32>,
    /// Pages read so far.
    pub pages_read: Cell<u64>,
}

/// A page as the one above knows it.
#[derive(Debug, Clone, Copy)]
struct Link {
    page: u64,
    checksum: u128,
}

impl Link {
    /// A page's number u64 and its checksum u128, one behind the other.
    fn at(bytes: &[u8], at: usize) -> Option<Self> {
        Some(Self {
            page: u64_at(bytes, at)?,
            checksum: u128_at(bytes, at + 8)?,
        })
    }
}

/// What a page turned out to be.
enum Page {
    Sound(Vec<u8>),
    Mended(Vec<u8>),
    /// Its checksum fails.
    Doubtful(Vec<u8>),
    /// It lies outside of the file or cannot be read.
    Gone,
}

impl Page {
    /// The bytes, where they are what they were.
    fn trusted(self) -> Option<Vec<u8>> {
        match self {
            Self::Sound(bytes) | Self::Mended(bytes) => Some(bytes),
            Self::Doubtful(_) | Self::Gone => None,
        }
    }
}

/// The part of the key space that a page may hold: keys above the first, up to the second.
#[derive(Clone, Copy)]
struct Bounds<'a> {
    above: &'a [u8],
    is_first: bool,
    upto: Option<&'a [u8]>,
}

impl Bounds<'_> {
    fn admit(&self, key: &[u8]) -> bool {
        (self.is_first || key > self.above) && self.upto.is_none_or(|upto| key <= upto)
    }
}

struct Walk<'a, 'v> {
    start: &'a [u8],
    end: Option<&'a [u8]>,
    pages_left: u64,
    visit: &'a mut Visit<'v>,
}

impl RawIndex {
    /// Opens the file at `path` by the newest commit that can be used.
    ///
    /// # Errors
    /// `Corrupt` where no commit can be used, `Io`.
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
            progress: Progress::default(),
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
    fn commit(&self, slot: &[u8]) -> Option<(Option<Link>, Progress)> {
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
        let progress = Progress::decode(&self.find(meta, b"progress", 0)?)?;
        Some((definition(b"entries").unwrap_or(None), progress))
    }

    /// The bytes under `key` in the tree at `link`, as they are.
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

    /// From now on, a sound page that the file `sums` says is damaged counts as mended: a server would refuse it.
    pub fn compare_with(&mut self, sums: &Path) {
        let bytes = std::fs::read(sums).unwrap_or_default();
        let (words, _rest) = bytes.as_chunks::<4>();
        self.sums = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
    }

    fn is_refused(&self, offset: u64, bytes: &[u8]) -> bool {
        let numbers = usize::try_from(offset / PAGE).unwrap_or(usize::MAX)..;
        bytes
            .chunks(PAGE as usize)
            .zip(numbers)
            .any(|(block, number)| {
                let expected = self.sums.get(number).copied().unwrap_or(0);
                number > 0 && expected != 0 && crate::sums::sum(block) != expected
            })
    }

    /// Pages of the file.
    pub fn pages(&self) -> u64 {
        self.length / PAGE
    }

    /// How deep below the root the leaves are: a tree has all of them at one depth.
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

    /// Value of `key`; damage on the way is `Corrupt`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, DiskError> {
        let mut end = key.to_vec();
        end.push(0);
        let mut result = Ok(None);
        self.walk(key, Some(&end), &mut |found| {
            result = match found {
                Found::Mended { .. } => return true,
                Found::Entry(_, value) => Ok(Some(value.to_vec())),
                _ => Err(DiskError::Corrupt("index: a page is damaged".into())),
            };
            false
        });
        result
    }

    /// Visits what there is from `start` (inclusive) to `end` (exclusive; `None`: all behind).
    pub fn walk(&self, start: &[u8], end: Option<&[u8]>, visit: &mut Visit<'_>) -> bool {
        let Some(root) = self.root else {
            return true;
        };
        let mut walk = Walk {
            start,
            end,
            pages_left: self.length / PAGE,
            visit,
        };
        let bounds = Bounds {
            above: &[],
            is_first: true,
            upto: None,
        };
        self.descend(root, bounds, 0, &mut walk)
    }

    fn descend(&self, link: Link, bounds: Bounds<'_>, depth: u32, walk: &mut Walk<'_, '_>) -> bool {
        let offset = self.address(link.page).map_or(0, |(offset, _)| offset);
        let bad = Found::BadPage {
            offset,
            depth,
            above: bounds.above,
            upto: bounds.upto,
        };
        if depth > DEPTH_MAX || walk.pages_left == 0 {
            return (walk.visit)(bad);
        }
        walk.pages_left -= 1;
        let bytes = match self.page(link) {
            Page::Sound(bytes) => bytes,
            Page::Mended(bytes) => {
                if !(walk.visit)(Found::Mended { offset }) {
                    return false;
                }
                bytes
            }
            Page::Doubtful(bytes) => {
                // A leaf that is damaged in places: entries have their own checksums. One in which all of them hold is
                // whole and not the one that belongs here.
                return (walk.visit)(bad)
                    && match Leaf::of(&bytes) {
                        Some(leaf) if leaf.has_damage() => leaf.visit_sound(&bounds, walk),
                        _ => true,
                    };
            }
            Page::Gone => return (walk.visit)(bad),
        };
        match (Leaf::of(&bytes), Branch::of(&bytes)) {
            (Some(leaf), _) => leaf.visit(walk),
            (_, Some(branch)) => self.children(&branch, bounds, depth, walk),
            _ => (walk.visit)(bad),
        }
    }

    fn children(
        &self,
        branch: &Branch<'_>,
        bounds: Bounds<'_>,
        depth: u32,
        walk: &mut Walk<'_, '_>,
    ) -> bool {
        for at in 0..=branch.keys {
            let (above, is_first) = match at.checked_sub(1).and_then(|before| branch.key(before)) {
                Some(key) => (key, false),
                None => (bounds.above, bounds.is_first),
            };
            let upto = branch.key(at).or(bounds.upto);
            if upto.is_some_and(|upto| upto < walk.start) {
                continue;
            }
            // Every key of this child is above `above`.
            if !is_first && walk.end.is_some_and(|end| above >= end) {
                break;
            }
            let child = Bounds {
                above,
                is_first,
                upto,
            };
            let Some(link) = branch.child(at) else {
                return true;
            };
            if !self.descend(link, child, depth + 1, walk) {
                return false;
            }
        }
        true
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
        // A page that the medium does not give is a damaged page: the walk goes on.
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

/// Looks for the one flipped bit that makes `bytes` hold, and flips it back.
fn mend(bytes: &mut [u8], holds: impl Fn(&[u8]) -> bool) -> Option<()> {
    for at in 0..bytes.len() {
        for bit in 0..8 {
            bytes[at] ^= 1 << bit;
            if holds(bytes) {
                return Some(());
            }
            bytes[at] ^= 1 << bit;
        }
    }
    None
}

/// How much of a page its checksum covers.
fn used(bytes: &[u8]) -> Option<usize> {
    match (Leaf::of(bytes), Branch::of(bytes)) {
        (Some(leaf), _) => leaf.end(leaf.count * 2 - 1),
        (_, Some(branch)) => branch.end(branch.keys - 1),
        _ => None,
    }
}

/// The entries of everything in `file` that has the form of a leaf.
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

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    let field = bytes.get(at..at.checked_add(16)?)?;
    Some(u128::from_le_bytes(field.try_into().ok()?))
}

/// `count u16` at 2, then the ends of keys, the ends of values, keys, values.
struct Leaf<'a> {
    bytes: &'a [u8],
    count: usize,
}

impl<'a> Leaf<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        (bytes.first() == Some(&LEAF)).then(|| Self::new(bytes))?
    }

    fn new(bytes: &'a [u8]) -> Option<Self> {
        let count = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
        (count > 0 && 4 + count * 8 <= bytes.len()).then_some(Self { bytes, count })
    }

    fn end(&self, at: usize) -> Option<usize> {
        usize::try_from(u32_at(self.bytes, 4 + at * 4)?).ok()
    }

    fn entry(&self, at: usize) -> Option<(&'a [u8], &'a [u8])> {
        let key = match at {
            0 => 4 + self.count * 8,
            _ => self.end(at - 1)?,
        };
        // The ends of keys and of values are one list: the first value begins where the last key ends.
        let value = self.end(self.count + at - 1)?;
        let key = self.bytes.get(key..self.end(at)?)?;
        let value = self.bytes.get(value..self.end(self.count + at)?)?;
        Some((key, value))
    }

    /// Whether an entry cannot be had or fails its checksum.
    fn has_damage(&self) -> bool {
        !(0..self.count).all(|at| {
            self.entry(at)
                .is_some_and(|(key, sealed)| unseal(key, sealed).is_ok())
        })
    }

    fn visit(&self, walk: &mut Walk<'_, '_>) -> bool {
        for (key, sealed) in (0..self.count).filter_map(|at| self.entry(at)) {
            if key < walk.start {
                continue;
            }
            if walk.end.is_some_and(|end| key >= end) {
                return true;
            }
            let found = match unseal(key, sealed) {
                Ok(value) => Found::Entry(key, value),
                Err(_) => Found::BadEntry { key },
            };
            if !(walk.visit)(found) {
                return false;
            }
        }
        true
    }

    /// What belongs here, in order, and has its checksum.
    fn visit_sound(&self, bounds: &Bounds<'_>, walk: &mut Walk<'_, '_>) -> bool {
        let mut last: Option<&[u8]> = None;
        for (key, sealed) in (0..self.count).filter_map(|at| self.entry(at)) {
            let is_wanted = key >= walk.start && walk.end.is_none_or(|end| key < end);
            let rises = last.is_none_or(|last| last < key);
            if let (true, true, true, Ok(value)) =
                (is_wanted, rises, bounds.admit(key), unseal(key, sealed))
            {
                last = Some(key);
                if !(walk.visit)(Found::Entry(key, value)) {
                    return false;
                }
            }
        }
        true
    }
}

/// `keys u16` at 2, from 8 on the checksums of the children (16 each), their pages, the ends of the keys, the keys.
struct Branch<'a> {
    bytes: &'a [u8],
    keys: usize,
}

impl<'a> Branch<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        (bytes.first() == Some(&BRANCH)).then(|| Self::new(bytes))?
    }

    fn new(bytes: &'a [u8]) -> Option<Self> {
        let keys = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
        let fits = 8 + (keys + 1) * 24 + keys * 4 <= bytes.len();
        (keys > 0 && fits).then_some(Self { bytes, keys })
    }

    fn child(&self, at: usize) -> Option<Link> {
        Some(Link {
            page: u64_at(self.bytes, 8 + (self.keys + 1) * 16 + at * 8)?,
            checksum: u128_at(self.bytes, 8 + at * 16)?,
        })
    }

    fn end(&self, at: usize) -> Option<usize> {
        let end = u32_at(self.bytes, 8 + (self.keys + 1) * 24 + at * 4)?;
        usize::try_from(end).ok()
    }

    fn key(&self, at: usize) -> Option<&'a [u8]> {
        if at >= self.keys {
            return None;
        }
        let start = match at {
            0 => 8 + (self.keys + 1) * 24 + self.keys * 4,
            _ => self.end(at - 1)?,
        };
        self.bytes.get(start..self.end(at)?)
    }
}
