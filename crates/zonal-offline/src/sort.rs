//! Sorting of more facts than fit in memory: sorted runs in files, merged when they are read.

use crate::error::OfflineError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use zonal_meta::check::sorted::FACT_BYTES;

/// A fact as bytes.
pub type Bytes = [u8; FACT_BYTES];

/// Memory of one sorter, in bytes; a run has as many.
pub const RUN_BYTES: usize = 48 << 20;
/// Read ahead of each run while runs are merged.
const READ_BYTES: usize = 256 << 10;

/// Takes facts in any order.
#[derive(Debug)]
pub struct Sorter {
    dir: PathBuf,
    name: String,
    buffer: Vec<Bytes>,
    run_facts: usize,
    runs: Vec<PathBuf>,
    /// Another one has the same runs: they stay when they are merged.
    is_copy: bool,
    /// Facts taken.
    pub count: u64,
}

impl Sorter {
    /// A sorter whose runs are files in `dir` that begin with `name`.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        Self::with_memory(dir, name, RUN_BYTES)
    }

    /// A sorter with another amount of memory.
    #[must_use]
    pub fn with_memory(dir: &Path, name: &str, bytes: usize) -> Self {
        Self {
            dir: dir.into(),
            name: name.into(),
            buffer: Vec::new(),
            run_facts: (bytes / FACT_BYTES).max(1),
            runs: Vec::new(),
            is_copy: false,
            count: 0,
        }
    }

    fn failed(&self, source: std::io::Error) -> OfflineError {
        OfflineError::Scratch {
            dir: self.dir.clone(),
            source,
        }
    }

    /// Takes a fact.
    ///
    /// # Errors
    /// Where the scratch folder fails.
    pub fn push(&mut self, fact: Bytes) -> Result<(), OfflineError> {
        if self.buffer.len() >= self.run_facts {
            self.spill()?;
        }
        self.buffer.push(fact);
        self.count += 1;
        Ok(())
    }

    fn spill(&mut self) -> Result<(), OfflineError> {
        self.buffer.sort_unstable();
        let path = self.dir.join(format!("{}.{}", self.name, self.runs.len()));
        let write = || -> std::io::Result<()> {
            let mut file = BufWriter::with_capacity(1 << 20, File::create(&path)?);
            for fact in &self.buffer {
                file.write_all(fact)?;
            }
            file.flush()
        };
        write().map_err(|error| self.failed(error))?;
        self.runs.push(path);
        self.buffer.clear();
        Ok(())
    }

    /// Writes out what is in memory, which is free afterwards.
    ///
    /// # Errors
    /// Where the scratch folder fails.
    pub fn settle(&mut self) -> Result<(), OfflineError> {
        if !self.buffer.is_empty() {
            self.spill()?;
        }
        self.buffer = Vec::new();
        Ok(())
    }

    /// One with the same facts, to be merged while this one is kept.
    ///
    /// # Errors
    /// Where the scratch folder fails.
    pub fn again(&mut self) -> Result<Self, OfflineError> {
        self.settle()?;
        Ok(Self {
            dir: self.dir.clone(),
            name: self.name.clone(),
            buffer: Vec::new(),
            run_facts: self.run_facts,
            runs: self.runs.clone(),
            is_copy: true,
            count: self.count,
        })
    }

    /// Removes its runs.
    pub fn remove(self) {
        for path in self.runs {
            // Best effort: the scratch folder goes in the end.
            let _ = std::fs::remove_file(path);
        }
    }

    /// All facts of several sorters in order, each given to `take`. Their runs are removed, but those of copies.
    ///
    /// # Errors
    /// Where the scratch folder fails, or what `take` gives.
    pub fn merge(
        sorters: Vec<Self>,
        take: &mut dyn FnMut(&Bytes) -> Result<(), OfflineError>,
    ) -> Result<(), OfflineError> {
        let mut sources = Vec::new();
        let mut paths = Vec::new();
        for mut sorter in sorters {
            sorter.buffer.sort_unstable();
            for path in &sorter.runs {
                let file = File::open(path).map_err(|error| sorter.failed(error))?;
                sources.push(Source::Run(BufReader::with_capacity(READ_BYTES, file)));
            }
            if !sorter.is_copy {
                paths.append(&mut sorter.runs);
            }
            let buffer = std::mem::take(&mut sorter.buffer);
            sources.push(Source::Memory(buffer.into_iter()));
        }
        let mut heap = BinaryHeap::new();
        for (at, source) in sources.iter_mut().enumerate() {
            if let Some(fact) = source.next() {
                heap.push(Reverse((fact, at)));
            }
        }
        while let Some(Reverse((fact, at))) = heap.pop() {
            take(&fact)?;
            if let Some(next) = sources.get_mut(at).and_then(Source::next) {
                heap.push(Reverse((next, at)));
            }
        }
        for path in paths {
            // Best effort: the scratch folder goes in the end.
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    }
}

enum Source {
    Run(BufReader<File>),
    Memory(std::vec::IntoIter<Bytes>),
}

impl Source {
    fn next(&mut self) -> Option<Bytes> {
        match self {
            Self::Run(file) => {
                let mut fact = [0; FACT_BYTES];
                file.read_exact(&mut fact).ok()?;
                Some(fact)
            }
            Self::Memory(facts) => facts.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Scratch;

    #[test]
    fn more_than_fits_comes_back_in_order() -> Result<(), OfflineError> {
        let dir = Scratch::new("sort");
        let mut sorters = Vec::new();
        for number in 0..3_u64 {
            let mut sorter = Sorter::with_memory(&dir, &format!("s{number}"), 100 * FACT_BYTES);
            for step in 0..1000_u64 {
                let mut fact = [0; FACT_BYTES];
                let value = (step * 7919 + number * 31) % 1009;
                fact[..8].copy_from_slice(&value.to_be_bytes());
                sorter.push(fact)?;
            }
            sorters.push(sorter);
        }
        let (mut last, mut count) = ([0; FACT_BYTES], 0);
        Sorter::merge(sorters, &mut |fact| {
            assert!(last <= *fact);
            last = *fact;
            count += 1;
            Ok(())
        })?;
        assert_eq!(count, 3000);
        assert_eq!(std::fs::read_dir(&dir).map_or(0, Iterator::count), 0);
        Ok(())
    }
}
