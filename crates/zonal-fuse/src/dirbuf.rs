//! The reply to READDIR and READDIRPLUS: records aligned to 8 bytes, at most the requested size.

use crate::bytes::Put;
use crate::encode;
use crate::types::{FuseEntry, FuseFileKind};

/// The entries of a directory in a reply.
#[derive(Debug)]
pub struct DirBuffer {
    data: Vec<u8>,
    limit: usize,
}

const DIRENT: usize = 24;

impl DirBuffer {
    /// A buffer for a request of `size` bytes.
    #[must_use]
    pub fn new(size: u32) -> Self {
        let limit = size as usize;
        // The kernel asks for at most a few hundred KiB; a hostile size reserves nothing up front.
        Self {
            data: Vec::with_capacity(limit.min(128 * 1024)),
            limit,
        }
    }

    /// Adds an entry to a READDIR reply. `offset` is the cookie from which a later request
    /// continues *behind* this entry. Returns false and changes nothing when the entry does not
    /// fit.
    #[must_use]
    pub fn add(&mut self, ino: u64, offset: u64, kind: FuseFileKind, name: &[u8]) -> bool {
        if !self.fits(DIRENT, name) {
            return false;
        }
        self.dirent(ino, offset, kind, name);
        true
    }

    /// Adds an entry to a READDIRPLUS reply, with the answer of a LOOKUP. An entry with `ino` 0
    /// (listed but not looked up) is allowed; then `ino` is the number that the listing shows. "."
    /// and ".." must be given with an entry of node 0.
    #[must_use]
    pub fn add_plus(
        &mut self,
        entry: &FuseEntry,
        ino: u64,
        offset: u64,
        kind: FuseFileKind,
        name: &[u8],
    ) -> bool {
        if !self.fits(encode::ENTRY_OUT + DIRENT, name) {
            return false;
        }
        encode::entry(&mut self.data, entry);
        self.dirent(ino, offset, kind, name);
        true
    }

    fn fits(&self, fixed: usize, name: &[u8]) -> bool {
        self.data.len() + (fixed + name.len()).next_multiple_of(8) <= self.limit
    }

    fn dirent(&mut self, ino: u64, offset: u64, kind: FuseFileKind, name: &[u8]) {
        self.data.u64(ino);
        self.data.u64(offset);
        self.data.u32(u32::try_from(name.len()).unwrap_or(u32::MAX));
        self.data.u32(kind.0);
        self.data.put(name);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
    }

    /// True where no entry was added, which tells the kernel that the listing is at its end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// The bytes so far.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_aligned_and_bounded() {
        let mut buffer = DirBuffer::new(64);
        assert!(buffer.add(5, 1, FuseFileKind::from_mode(libc::S_IFREG), b"abc"));
        assert_eq!(buffer.as_bytes().len(), 32);
        assert!(buffer.add(6, 2, FuseFileKind::from_mode(libc::S_IFDIR), b"12345678"));
        assert_eq!(buffer.as_bytes().len(), 64);
        assert!(!buffer.add(7, 3, FuseFileKind::from_mode(libc::S_IFREG), b""));
        let mut plus = DirBuffer::new(151);
        assert!(!plus.add_plus(&FuseEntry::default(), 5, 1, FuseFileKind(8), b"a"));
        assert!(plus.is_empty());
        let mut plus = DirBuffer::new(160);
        assert!(plus.add_plus(&FuseEntry::default(), 5, 1, FuseFileKind(8), b"a"));
        assert_eq!(plus.as_bytes().len(), 160);
    }
}
