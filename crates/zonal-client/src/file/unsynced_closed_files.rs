//! Unsynced writes of closed files: the fsync of a later open covers them.

use crate::file::unsynced_writes::UnsyncedWrites;
use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{Ino, TargetId};

/// Closed files whose unsynced targets are remembered.
pub(crate) const LEFT_BEHIND_MAX: usize = 65_536;

/// Unsynced writes of closed files.
#[derive(Debug, Default, Clone)]
pub(crate) struct UnsyncedClosedFiles {
    pub(crate) files: BTreeMap<Ino, UnsyncedWrites>,
    /// Targets of forgotten files. Where there are some, an fsync must include every target of its
    /// file.
    pub(crate) forgotten: BTreeSet<TargetId>,
    /// How often files were forgotten.
    pub(crate) overflows: u64,
}

impl UnsyncedClosedFiles {
    /// Files remembered now.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// As [`UnsyncedWrites::settle`], for each file.
    pub(crate) fn settle(&mut self, copy: &Self, left: &[TargetId]) {
        self.files.retain(|ino, unsynced| {
            let Some(then) = copy.files.get(ino) else {
                return true;
            };
            unsynced.settle(then, left);
            !unsynced.targets().is_empty()
        });
        if self.overflows == copy.overflows {
            self.forgotten.retain(|target| left.contains(target));
        }
    }
}
