//! Handle errors: the write failures and lock losses already reported to each handle. Most files
//! have none: only handles that differ from the default are kept. *Bound*: open handles.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_client::ReportedFailures;

/// Reported failures by handle.
#[derive(Default)]
pub struct HandleErrors(Mutex<BTreeMap<u64, ReportedFailures>>);

impl HandleErrors {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, ReportedFailures>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a handle of a file whose failures are now at `told`.
    pub fn open(&self, fh: u64, told: ReportedFailures) {
        if told != ReportedFailures::default() {
            self.map().insert(fh, told);
        }
    }

    /// Failures reported to the handle.
    #[must_use]
    pub fn of(&self, fh: u64) -> ReportedFailures {
        self.map().get(&fh).copied().unwrap_or_default()
    }

    /// Notes reported failures. Concurrent calls add up.
    pub fn set(&self, fh: u64, told: ReportedFailures) {
        if told != ReportedFailures::default() {
            let mut map = self.map();
            let known = map.entry(fh).or_default();
            *known = told.with(*known);
        }
    }

    /// Removes a released handle.
    pub fn close(&self, fh: u64) {
        self.map().remove(&fh);
    }

    /// Handles kept.
    #[must_use]
    pub fn len(&self) -> usize {
        self.map().len()
    }
}
