//! Sparse bytes of a file that is mostly zeros: a copy costs as much as the blocks written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = 4096;

/// A file's bytes.
#[derive(Debug, Clone, Default)]
pub struct SparseBytes {
    length: u64,
    /// Missing blocks are zeros. Bytes behind the length are zeros as well.
    blocks: BTreeMap<u64, Arc<Vec<u8>>>,
}

impl SparseBytes {
    /// A file of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        let mut out = Self::default();
        out.put(0, bytes);
        out
    }

    /// The length.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Sets the length; new bytes are zeros.
    pub fn resize(&mut self, length: u64) {
        if length < self.length {
            drop(self.blocks.split_off(&length.div_ceil(BLOCK)));
            if let Some(last) = self.blocks.get_mut(&(length / BLOCK)) {
                Arc::make_mut(last)[(length % BLOCK) as usize..].fill(0);
            }
        }
        self.length = length;
    }

    /// Writes `bytes` at `at`; a shorter file grows.
    pub fn put(&mut self, mut at: u64, mut bytes: &[u8]) {
        self.length = self.length.max(at + bytes.len() as u64);
        while !bytes.is_empty() {
            let inside = (at % BLOCK) as usize;
            let step = (BLOCK as usize - inside).min(bytes.len());
            let (first, rest) = bytes.split_at(step);
            let zeros = || Arc::new(vec![0; BLOCK as usize]);
            let block = self.blocks.entry(at / BLOCK).or_insert_with(zeros);
            Arc::make_mut(block)[inside..inside + step].copy_from_slice(first);
            at += step as u64;
            bytes = rest;
        }
    }

    /// Copies all bytes.
    #[must_use]
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.length as usize];
        for (block, at, length) in self.parts() {
            out[at as usize..][..length].copy_from_slice(&block[..length]);
        }
        out
    }

    /// Creates a file of them, with holes.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write_to(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.length)?;
        for (block, at, length) in self.parts() {
            file.write_all_at(&block[..length], at)?;
        }
        Ok(())
    }

    /// Each block with its offset, and the number of its bytes within the length.
    fn parts(&self) -> impl Iterator<Item = (&[u8], u64, usize)> {
        self.blocks.iter().map(|(number, block)| {
            let at = number * BLOCK;
            let length = BLOCK.min(self.length.saturating_sub(at));
            (block.as_slice(), at, length as usize)
        })
    }
}

impl PartialEq for SparseBytes {
    fn eq(&self, other: &Self) -> bool {
        self.length == other.length && self.to_vec() == other.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Rng, Scratch};

    #[test]
    fn sparse_bytes_equal_a_plain_list_of_bytes() -> io::Result<()> {
        let mut rng = Rng(3);
        let mut plain: Vec<u8> = Vec::new();
        let mut sparse = SparseBytes::default();
        for _ in 0..500 {
            if rng.below(5) == 0 {
                let length = rng.index(40_000);
                plain.resize(length, 0);
                sparse.resize(length as u64);
            } else {
                let (at, length) = (rng.index(30_000), rng.index(9000));
                let bytes = rng.bytes(length);
                plain.resize(plain.len().max(at + length), 0);
                plain[at..at + length].copy_from_slice(&bytes);
                sparse.put(at as u64, &bytes);
            }
            assert!(sparse.to_vec() == plain);
        }
        let scratch = Scratch::new("bytes");
        sparse.write_to(&scratch.join("file"))?;
        assert!(std::fs::read(scratch.join("file"))? == plain);
        Ok(())
    }
}
