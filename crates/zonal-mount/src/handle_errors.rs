//! Up to which lost write, and lost lock, each handle was told. Most files never lose one: only
//! handles that differ from the start are kept. *Bound*: open handles.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_client::Told;

/// By handle.
#[derive(Default)]
pub struct ToldHandles(Mutex<BTreeMap<u64, Told>>);

impl ToldHandles {
    fn map(&self) -> MutexGuard<'_, BTreeMap<u64, Told>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle of a file whose failures stand at `told`.
    pub fn open(&self, fh: u64, told: Told) {
        if told != Told::default() {
            self.map().insert(fh, told);
        }
    }

    /// What it was told.
    #[must_use]
    pub fn of(&self, fh: u64) -> Told {
        self.map().get(&fh).copied().unwrap_or_default()
    }

    /// It was told of everything up to here. Of two calls at once each stays told.
    pub fn set(&self, fh: u64, told: Told) {
        if told != Told::default() {
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
