//! External sort, for more facts than fit in memory: sorted runs in files, merged as they are read.

use crate::error::OfflineError;
use crc_fast::{CrcAlgorithm, Digest};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use zonal_meta::check::fact_bytes::FACT_BYTES;
use zonal_types::codec_struct;

/// An encoded fact.
pub type FactBytes = [u8; FACT_BYTES];

/// Memory of one sorter, in bytes; also the size of a run.
pub const RUN_BYTES: usize = 48 << 20;
/// Bytes read ahead of each run while runs are merged.
const READ_BYTES: usize = 256 << 10;
/// Facts in one write: about 1 MiB.
const WRITE_FACTS: usize = (1 << 20) / FACT_BYTES;

codec_struct! {
    /// A sorted run: a file of facts.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SortedRun {
        /// The file's name in the sorter's folder.
        name: String,
        /// Number of facts.
        count: u64,
        /// crc64 of all its bytes.
        crc: u64,
    }
}

impl SortedRun {
    /// Whether the file in `dir` has its length and its checksum.
    #[must_use]
    pub fn is_whole(&self, dir: &Path) -> bool {
        let read = || -> std::io::Result<bool> {
            let mut file = File::open(dir.join(&self.name))?;
            if file.metadata()?.len() != self.count.saturating_mul(FACT_BYTES as u64) {
                return Ok(false);
            }
            let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
            let mut buffer = vec![0; READ_BYTES];
            loop {
                match file.read(&mut buffer)? {
                    0 => return Ok(digest.finalize() == self.crc),
                    length => digest.update(&buffer[..length]),
                }
            }
        };
        read().unwrap_or(false)
    }
}

/// Sorts facts, added in any order.
#[derive(Debug)]
pub struct Sorter {
    dir: PathBuf,
    name: String,
    buffer: Vec<FactBytes>,
    run_facts: usize,
    runs: Vec<SortedRun>,
    /// Keep the files of the runs when they are merged.
    stays: bool,
    /// Number of facts added.
    pub count: u64,
}

impl Sorter {
    /// Makes a sorter whose runs are files in `dir` with names that begin with `name`.
    #[must_use]
    pub fn new(dir: &Path, name: &str) -> Self {
        Self::with_memory(dir, name, RUN_BYTES)
    }

    /// Makes a sorter with `bytes` of memory.
    #[must_use]
    pub fn with_memory(dir: &Path, name: &str, bytes: usize) -> Self {
        Self {
            dir: dir.into(),
            name: name.into(),
            buffer: Vec::new(),
            run_facts: (bytes / FACT_BYTES).max(1),
            runs: Vec::new(),
            stays: false,
            count: 0,
        }
    }

    fn failed(&self, source: std::io::Error) -> OfflineError {
        OfflineError::Scratch {
            dir: self.dir.clone(),
            source,
        }
    }

    /// Adds a fact.
    ///
    /// # Errors
    /// The scratch folder fails.
    pub fn push(&mut self, fact: FactBytes) -> Result<(), OfflineError> {
        if self.buffer.len() >= self.run_facts {
            self.spill()?;
        }
        self.buffer.push(fact);
        self.count += 1;
        Ok(())
    }

    fn spill(&mut self) -> Result<(), OfflineError> {
        self.buffer.sort_unstable();
        let name = format!("{}.{}", self.name, self.runs.len());
        let write = || -> std::io::Result<u64> {
            let mut file = File::create(self.dir.join(&name))?;
            let mut digest = Digest::new(CrcAlgorithm::Crc64Nvme);
            for facts in self.buffer.chunks(WRITE_FACTS) {
                let bytes = facts.as_flattened();
                digest.update(bytes);
                file.write_all(bytes)?;
            }
            Ok(digest.finalize())
        };
        let crc = write().map_err(|error| self.failed(error))?;
        let count = self.buffer.len() as u64;
        self.runs.push(SortedRun { name, count, crc });
        self.buffer.clear();
        Ok(())
    }

    /// Writes the facts in memory to a run, and frees the memory.
    ///
    /// # Errors
    /// The scratch folder fails.
    pub fn settle(&mut self) -> Result<(), OfflineError> {
        if !self.buffer.is_empty() {
            self.spill()?;
        }
        self.buffer = Vec::new();
        Ok(())
    }

    /// Writes the facts in memory to a run and returns all runs. A merge keeps their files from now
    /// on.
    ///
    /// # Errors
    /// The scratch folder fails.
    pub fn keep(&mut self) -> Result<Vec<SortedRun>, OfflineError> {
        self.settle()?;
        self.stays = true;
        Ok(self.runs.clone())
    }

    /// Makes a sorter of runs that [`Self::keep`] returned. A merge keeps their files.
    #[must_use]
    pub fn of_kept(dir: &Path, name: &str, runs: Vec<SortedRun>) -> Self {
        let count = runs.iter().map(|run| run.count).sum();
        Self {
            runs,
            stays: true,
            count,
            ..Self::new(dir, name)
        }
    }

    /// Returns a sorter with the same facts, so that this one can be merged again later.
    ///
    /// # Errors
    /// The scratch folder fails.
    pub fn again(&mut self) -> Result<Self, OfflineError> {
        self.settle()?;
        Ok(Self {
            dir: self.dir.clone(),
            name: self.name.clone(),
            buffer: Vec::new(),
            run_facts: self.run_facts,
            runs: self.runs.clone(),
            stays: true,
            count: self.count,
        })
    }

    /// Removes the files of the runs.
    pub fn remove(self) {
        for run in &self.runs {
            // Best effort: the whole scratch folder is removed in the end.
            let _ = std::fs::remove_file(self.dir.join(&run.name));
        }
    }

    /// Passes all facts of several sorters to `take`, sorted. Removes the files of the runs, except
    /// those that are kept.
    ///
    /// # Errors
    /// The scratch folder fails, or an error of `take`.
    pub fn merge(
        sorters: Vec<Self>,
        take: &mut dyn FnMut(&FactBytes) -> Result<(), OfflineError>,
    ) -> Result<(), OfflineError> {
        let mut sources = Vec::new();
        let mut paths = Vec::new();
        for mut sorter in sorters {
            sorter.buffer.sort_unstable();
            for run in &sorter.runs {
                let path = sorter.dir.join(&run.name);
                let file = File::open(&path).map_err(|error| sorter.failed(error))?;
                let file = BufReader::with_capacity(READ_BYTES, file);
                sources.push(Source::Run(file, run.count, sorter.dir.clone()));
                if !sorter.stays {
                    paths.push(path);
                }
            }
            let buffer = std::mem::take(&mut sorter.buffer);
            sources.push(Source::Memory(buffer.into_iter()));
        }
        let mut heap = BinaryHeap::new();
        for (at, source) in sources.iter_mut().enumerate() {
            if let Some(fact) = source.next()? {
                heap.push(Reverse((fact, at)));
            }
        }
        while let Some(Reverse((fact, at))) = heap.pop() {
            take(&fact)?;
            if let Some(source) = sources.get_mut(at)
                && let Some(next) = source.next()?
            {
                heap.push(Reverse((next, at)));
            }
        }
        for path in paths {
            // Best effort: the whole scratch folder is removed in the end.
            let _ = std::fs::remove_file(path);
        }
        Ok(())
    }
}

enum Source {
    /// A run's file, the number of facts left in it, and its folder.
    Run(BufReader<File>, u64, PathBuf),
    Memory(std::vec::IntoIter<FactBytes>),
}

impl Source {
    /// Returns the next fact. A run that ends early is an error: missing facts would become
    /// findings.
    fn next(&mut self) -> Result<Option<FactBytes>, OfflineError> {
        match self {
            Self::Run(_, 0, _) => Ok(None),
            Self::Run(file, left, dir) => {
                let mut fact = [0; FACT_BYTES];
                let read = file.read_exact(&mut fact);
                read.map_err(|source| OfflineError::Scratch {
                    dir: dir.clone(),
                    source,
                })?;
                *left -= 1;
                Ok(Some(fact))
            }
            Self::Memory(facts) => Ok(facts.next()),
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

    fn filled(dir: &Path, facts: u64) -> Result<Sorter, OfflineError> {
        let mut sorter = Sorter::with_memory(dir, "s", 100 * FACT_BYTES);
        for number in 0..facts {
            let mut fact = [0; FACT_BYTES];
            fact[..8].copy_from_slice(&(number * 7919 % 1009).to_be_bytes());
            sorter.push(fact)?;
        }
        Ok(sorter)
    }

    #[test]
    fn a_run_that_is_cut_is_an_error_and_no_end() -> Result<(), OfflineError> {
        let dir = Scratch::new("sort-cut");
        for length in [0, 50, 99] {
            let sorter = filled(&dir, 350)?;
            let run = File::options().write(true).open(dir.join("s.1"));
            let cut = run.and_then(|run| run.set_len(length * FACT_BYTES as u64 + 1));
            assert!(cut.is_ok());
            let merged = Sorter::merge(vec![sorter], &mut |_fact| Ok(()));
            assert!(matches!(merged, Err(OfflineError::Scratch { .. })));
        }
        Ok(())
    }

    #[test]
    fn kept_runs_are_merged_again_and_known_when_they_change() -> Result<(), OfflineError> {
        let dir = Scratch::new("sort-kept");
        let mut first = Vec::new();
        let mut sorter = filled(&dir, 350)?;
        let runs = sorter.keep()?;
        assert_eq!(runs.iter().map(|run| run.count).sum::<u64>(), 350);
        Sorter::merge(vec![sorter], &mut |fact| {
            first.push(*fact);
            Ok(())
        })?;
        let mut second = Vec::new();
        let again = Sorter::of_kept(&dir, "s", runs.clone());
        assert_eq!(again.count, 350);
        Sorter::merge(vec![again], &mut |fact| {
            second.push(*fact);
            Ok(())
        })?;
        assert!(first == second && first.len() == 350);
        assert!(runs.iter().all(|run| run.is_whole(&dir)));
        for (at, change) in [(0, 1), (3599, 1), (7199, 0x80)] {
            let path = dir.join(&runs[1].name);
            let whole = std::fs::read(&path).unwrap_or_default();
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            assert!(std::fs::write(&path, &bytes).is_ok());
            assert!(!runs[1].is_whole(&dir), "byte {at}");
            assert!(std::fs::write(&path, &whole[..at]).is_ok());
            assert!(!runs[1].is_whole(&dir), "cut at {at}");
            assert!(std::fs::write(&path, &whole).is_ok());
            assert!(runs[1].is_whole(&dir));
        }
        Ok(())
    }
}
