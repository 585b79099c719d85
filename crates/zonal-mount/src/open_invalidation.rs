//! Opens at which the kernel drops the pages that it has of the file: it does so when it hears the
//! answer, on the thread of the program, which others of this mount may get ahead of. So whoever
//! has to know is told with the first use of the handle: then it is done.
//!
//! *Bound*: one entry for each open file.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use zonal_client::page_validity::PendingPageVersion;

/// What the pages show then, where that is not known already, by handle.
#[derive(Default)]
pub struct OpenInvalidations(Mutex<BTreeMap<u64, Option<PendingPageVersion>>>);

impl OpenInvalidations {
    /// A handle is being given to the kernel.
    pub fn note(&self, fh: u64, changed: Option<PendingPageVersion>) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.insert(fh, changed);
    }

    /// The kernel uses the handle: what its open dropped is gone. Told once.
    #[must_use]
    pub fn take(&self, fh: u64) -> Option<Option<PendingPageVersion>> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.remove(&fh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_client::page_validity::PageVersions;

    #[test]
    fn it_is_told_once_and_for_its_own_handle() {
        let opening = OpenInvalidations::default();
        opening.note(
            7,
            Some(PendingPageVersion::new(3, PageVersions::default().moment())),
        );
        assert!(opening.take(8).is_none());
        assert!(opening.take(7).is_some());
        assert!(opening.take(7).is_none());
    }
}
