//! Up to which lost write, and lost lock, each handle was told. Most files never lose one: only
//! handles that differ from the start are kept. *Bound*: open handles.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_client::ReportedFailures;

/// By handle.
#[derive(Default)]
pub struct HandleErrors(Mutex<BTreeMap<u64, ReportedFailures>>);

impl HandleErrors {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, ReportedFailures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle of a file whose failures stand at `told`.
    pub fn open(&self, fh: u64, told: ReportedFailures) {
        if told != ReportedFailures::default() {
            self.map().insert(fh, told);
        }
    }

    /// What it was told.
    #[must_use]
    pub fn of(&self, fh: u64) -> ReportedFailures {
        self.map().get(&fh).copied().unwrap_or_default()
    }

    /// It was told of everything up to here. Of two calls at once each stays told.
    pub fn set(&self, fh: u64, told: ReportedFailures) {
        if told != ReportedFailures::default() {
            let mut map = self.map();
            let known = map.entry(fh).or_default();
            *known = told.with(*known);
        }
    }

    /// It is released.
    pub fn close(&self, fh: u64) {
        self.map().remove(&fh);
    }

    /// Handles kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map().len()
    }
}
