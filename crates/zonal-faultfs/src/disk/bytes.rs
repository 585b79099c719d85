//! Bytes of files: read, write, truncate, allocate and flush, with the current faults.

use super::state::State;
use super::{FaultDisk, Result, below, used};
use crate::faults::DiskFaultKind;
use crate::history::{DiskChange, DiskEvent};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, MutexGuard};

impl FaultDisk {
    fn file(&self, state: &mut State, node: u64) -> Result<Arc<File>> {
        let known = state.nodes.get_mut(&node).ok_or(Errno::NOENT)?;
        if let Some(file) = &known.file {
            return Ok(Arc::clone(file));
        }
        let path = self.root.join(&known.path);
        let file = Arc::new(
            File::options()
                .read(true)
                .write(true)
                .open(path)
                .map_err(below)?,
        );
        known.file = Some(Arc::clone(&file));
        Ok(file)
    }

    pub(crate) fn open(&self, node: u64, truncate: bool) -> Result<()> {
        let mut state = self.lock();
        let file = self.file(&mut state, node)?;
        drop(state);
        drop(file);
        if truncate {
            self.resize(node, 0)
        } else {
            Ok(())
        }
    }

    pub(crate) fn read(&self, node: u64, at: u64, length: usize) -> Result<Vec<u8>> {
        let mut state = self.wait_for_read();
        state.counts.reads += 1;
        let path = state.text(node)?;
        state
            .faults
            .check(DiskFaultKind::Read, &path, at, at + length as u64)?;
        let file = self.file(&mut state, node)?;
        let mut bytes = vec![0; length];
        let mut done = 0;
        while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, at + done as u64).map_err(below)? {
                0 => break,
                count => done += count,
            }
        }
        bytes.truncate(done);
        state.faults.flip(&path, at, &mut bytes);
        Ok(bytes)
    }

    /// Delays a read; others go on meanwhile.
    fn wait_for_read(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let takes = state.faults.read_takes;
        state.reading += 1;
        state.counts.reads_at_once = state.counts.reads_at_once.max(state.reading);
        if !takes.is_zero() {
            drop(state);
            std::thread::sleep(takes);
            state = self.lock();
        }
        state.reading -= 1;
        state
    }

    pub(crate) fn write(&self, node: u64, at: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        state.counts.writes += 1;
        let end = at + bytes.len() as u64;
        let path = state.text(node)?;
        state.faults.check(DiskFaultKind::Write, &path, at, end)?;
        let file = self.file(&mut state, node)?;
        if !is_allocated(&file, at, end) {
            self.check_budget(&state, bytes.len() as u64)?;
        }
        let length = file.metadata().map_err(below)?.len();
        if end > length {
            file.set_len(end).map_err(below)?;
            state.changed(DiskChange::Resize {
                node,
                from: length,
                to: end,
                cut: Vec::new(),
            });
        }
        let mut old = vec![0; bytes.len()];
        file.read_exact_at(&mut old, at).map_err(below)?;
        file.write_all_at(bytes, at).map_err(below)?;
        state.changed(DiskChange::Write {
            node,
            at,
            old,
            new: bytes.to_vec(),
        });
        Ok(())
    }

    pub(crate) fn resize(&self, node: u64, to: u64) -> Result<()> {
        let mut state = self.lock();
        let path = state.text(node)?;
        let file = self.file(&mut state, node)?;
        let from = file.metadata().map_err(below)?.len();
        state
            .faults
            .check(DiskFaultKind::Write, &path, from.min(to), from.max(to))?;
        let mut cut = vec![0; usize::try_from(from.saturating_sub(to)).unwrap_or(0)];
        file.read_exact_at(&mut cut, to.min(from)).map_err(below)?;
        file.set_len(to).map_err(below)?;
        state.changed(DiskChange::Resize {
            node,
            from,
            to,
            cut,
        });
        Ok(())
    }

    pub(crate) fn allocate(&self, node: u64, mode: u32, at: u64, length: u64) -> Result<()> {
        if mode != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let mut state = self.lock();
        let path = state.text(node)?;
        state
            .faults
            .check(DiskFaultKind::Write, &path, at, at + length)?;
        let file = self.file(&mut state, node)?;
        let metadata = file.metadata().map_err(below)?;
        self.check_budget(&state, length.saturating_sub(metadata.blocks() * 512))?;
        rustix::fs::fallocate(&file, FallocateFlags::empty(), at, length)?;
        let to = file.metadata().map_err(below)?.len();
        if to > metadata.len() {
            state.changed(DiskChange::Resize {
                node,
                from: metadata.len(),
                to,
                cut: Vec::new(),
            });
        }
        Ok(())
    }

    pub(crate) fn sync(&self, node: u64) -> Result<()> {
        let mut state = self.lock();
        state.counts.syncs += 1;
        let path = state.text(node)?;
        state
            .faults
            .check(DiskFaultKind::Sync, &path, 0, u64::MAX)?;
        if !state.faults.lie {
            state.history.push(DiskEvent::Sync(node));
        }
        let takes = state.faults.sync_takes;
        drop(state);
        std::thread::sleep(takes);
        Ok(())
    }

    pub(crate) fn lock_file(&self, node: u64, owner: u64, takes: bool) -> Result<()> {
        let mut state = self.lock();
        match (state.locks.get(&node), takes) {
            (Some(holder), true) if *holder != owner => return Err(Errno::AGAIN),
            (_, true) => drop(state.locks.insert(node, owner)),
            (Some(holder), false) if *holder == owner => drop(state.locks.remove(&node)),
            (_, false) => {}
        }
        Ok(())
    }

    pub(super) fn check_budget(&self, state: &State, more: u64) -> Result<()> {
        let Some(budget) = state.faults.budget else {
            return Ok(());
        };
        if used(&self.root).map_err(below)?.saturating_add(more) > budget {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }
}

/// Whether the blocks of a range are allocated.
fn is_allocated(file: &File, at: u64, end: u64) -> bool {
    rustix::fs::seek(file, SeekFrom::Hole(at)).is_ok_and(|hole| hole >= end)
}
