//! Open invalidation: opens at which the kernel drops its pages of the file. It drops them when it
//! receives the answer, on the program's thread, and other threads may act before that. So the
//! first use of the handle shows that the pages are gone.
//!
//! *Bound*: one entry per open file.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use zonal_client::inode_cache::PendingPageVersion;

/// By handle: the version that the pages show afterwards, where it is not known already.
#[derive(Default)]
pub struct OpenInvalidations(Mutex<BTreeMap<u64, Option<PendingPageVersion>>>);

impl OpenInvalidations {
    /// Notes a handle before the kernel gets it.
    pub fn note(&self, fh: u64, changed: Option<PendingPageVersion>) {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.insert(fh, changed);
    }

    /// Notes a use of the handle: the pages from before its open are gone. Returned once.
    #[must_use]
    pub fn take(&self, fh: u64) -> Option<Option<PendingPageVersion>> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.remove(&fh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_client::inode_cache::PageVersions;

    #[test]
    fn an_invalidation_is_returned_once_for_its_own_handle() {
        let opening = OpenInvalidations::default();
        opening.note(
            7,
            Some(PendingPageVersion::new(3, PageVersions::default().now())),
        );
        assert!(opening.take(8).is_none());
        assert!(opening.take(7).is_some());
        assert!(opening.take(7).is_none());
    }
}
