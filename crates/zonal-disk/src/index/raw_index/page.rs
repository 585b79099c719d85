//! Pages of the index's file: links, leaves, branches, and the correction of one flipped bit by a
//! checksum.

use crate::index::unseal;

pub(super) const LEAF: u8 = 1;
pub(super) const BRANCH: u8 = 2;

/// Reference to a page, as its parent page has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) page: u64,
    pub(super) checksum: u128,
}

impl Link {
    /// Decodes a link: the page's number u64, then its checksum u128.
    pub(super) fn at(bytes: &[u8], at: usize) -> Option<Self> {
        Some(Self {
            page: u64_at(bytes, at)?,
            checksum: u128_at(bytes, at + 8)?,
        })
    }
}

/// A leaf page: `count u16` at 2, then the ends of keys, the ends of values, keys, values.
pub(super) struct Leaf<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) count: usize,
}

impl<'a> Leaf<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Option<Self> {
        (bytes.first() == Some(&LEAF)).then(|| Self::new(bytes))?
    }

    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        let count = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
        (count > 0 && 4 + count * 8 <= bytes.len()).then_some(Self { bytes, count })
    }

    fn end(&self, at: usize) -> Option<usize> {
        usize::try_from(u32_at(self.bytes, 4 + at * 4)?).ok()
    }

    pub(super) fn entry(&self, at: usize) -> Option<(&'a [u8], &'a [u8])> {
        let key = match at {
            0 => 4 + self.count * 8,
            _ => self.end(at - 1)?,
        };
        // The ends of keys and of values are one list: the first value begins where the last key
        // ends.
        let value = self.end(self.count + at - 1)?;
        let key = self.bytes.get(key..self.end(at)?)?;
        let value = self.bytes.get(value..self.end(self.count + at)?)?;
        Some((key, value))
    }

    /// Whether an entry is unreadable or fails its checksum.
    pub(super) fn has_damage(&self) -> bool {
        !(0..self.count).all(|at| {
            self.entry(at)
                .is_some_and(|(key, sealed)| unseal(key, sealed).is_ok())
        })
    }
}

/// A branch page: `keys u16` at 2. From 8 on the checksums of the children (16 bytes each), their
/// pages, the ends of the keys, the keys.
pub(super) struct Branch<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) keys: usize,
}

impl<'a> Branch<'a> {
    pub(super) fn of(bytes: &'a [u8]) -> Option<Self> {
        (bytes.first() == Some(&BRANCH)).then(|| Self::new(bytes))?
    }

    pub(super) fn new(bytes: &'a [u8]) -> Option<Self> {
        let keys = usize::from(u16::from_le_bytes(bytes.get(2..4)?.try_into().ok()?));
        let fits = 8 + (keys + 1) * 24 + keys * 4 <= bytes.len();
        (keys > 0 && fits).then_some(Self { bytes, keys })
    }

    pub(super) fn child(&self, at: usize) -> Option<Link> {
        Some(Link {
            page: u64_at(self.bytes, 8 + (self.keys + 1) * 16 + at * 8)?,
            checksum: u128_at(self.bytes, 8 + at * 16)?,
        })
    }

    fn end(&self, at: usize) -> Option<usize> {
        let end = u32_at(self.bytes, 8 + (self.keys + 1) * 24 + at * 4)?;
        usize::try_from(end).ok()
    }

    pub(super) fn key(&self, at: usize) -> Option<&'a [u8]> {
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

/// How many bytes of a page its checksum covers.
pub(super) fn used(bytes: &[u8]) -> Option<usize> {
    match (Leaf::of(bytes), Branch::of(bytes)) {
        (Some(leaf), _) => leaf.end(leaf.count * 2 - 1),
        (_, Some(branch)) => branch.end(branch.keys - 1),
        _ => None,
    }
}

/// Searches for the one flipped bit whose correction makes `holds` true for `bytes`, and corrects
/// it.
pub(super) fn mend(bytes: &mut [u8], holds: impl Fn(&[u8]) -> bool) -> Option<()> {
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

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

pub(super) fn u128_at(bytes: &[u8], at: usize) -> Option<u128> {
    let field = bytes.get(at..at.checked_add(16)?)?;
    Some(u128::from_le_bytes(field.try_into().ok()?))
}
