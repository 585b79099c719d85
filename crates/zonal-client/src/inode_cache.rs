//! The cache of inodes: all tables that attributes, names and bytes of small files pass on the way
//! from a shard to the kernel.
//!
//! | part | content | valid |
//! | --- | --- | --- |
//! | `page_validity` | versions that the kernel's pages of files show | until an event of data |
//! | `parent_attributes` | directories after this client's own changes | under a lease |
//! | `complete_directories` | every name of directories that were made here | under a lease |
//! | `kept_listings` | listings that the kernel keeps | under a lease |
//! | `readdir_prefetch` | listings that a walk will ask for | under a lease |
//! | `leased_attributes` | attributes of inodes | under a lease |
//! | `leased_names` | names and whole listings of directories | under a lease |
//! | `own_changes` | inodes that this client is changing | until they are changed |
//! | `inline_cache` | bytes of small files that came with an open | under a lease |
//! | `removed_attributes` | the last attributes of inodes that are not files | for good |
//! | `access_times` | reads that no shard has heard of | until they are reported |
//!
//! [`InodeCache`] is the only way to the parts. `forget` is the one place where events, restarts
//! and other operations take entries out. A part itself drops entries that are expired, that a
//! newer reply replaces, or that are over its bound (`bounds`).
//!
//! *Locks*: each part has its own, and no part is locked while another one is. Exceptions:
//! `parent_attributes` before `kept_listings`; `leased_names` before `leased_attributes` before
//! `own_changes`. A lock of a part is never held across an await.

mod access_times;
mod bounds;
mod complete_directories;
mod forget;
mod inline_cache;
mod kept_listings;
mod leased_attributes;
mod leased_changes;
mod leased_names;
mod leases;
mod own_changes;
mod page_validity;
mod parent_attributes;
mod readdir_prefetch;
mod removed_attributes;
#[cfg(test)]
mod sample_attributes;

pub use kept_listings::LISTED_MAX;
pub(crate) use leases::LeasedLookup;
pub use page_validity::{PageInstant, PageVersions, PendingPageVersion};
pub(crate) use readdir_prefetch::ListingRequest;
#[cfg(test)]
pub(crate) use sample_attributes::directory as sample_directory;

use crate::transport::mutex::lock;
use access_times::Touches;
use complete_directories::CompleteDirectories;
use inline_cache::InlineCache;
use kept_listings::KeptListings;
use leased_attributes::LeasedAttributes;
use leased_names::LeasedNames;
use own_changes::OwnChanges;
use parent_attributes::ParentAttributes;
use readdir_prefetch::ReaddirPrefetch;
use removed_attributes::RemovedAttributes;
use std::sync::{Mutex, MutexGuard};

/// The cache of inodes of one client.
#[derive(Default)]
pub(crate) struct InodeCache {
    page_versions: Mutex<PageVersions>,
    removed_attributes: Mutex<RemovedAttributes>,
    parent_attributes: Mutex<ParentAttributes>,
    kept_listings: Mutex<KeptListings>,
    leased_attributes: Mutex<LeasedAttributes>,
    leased_names: Mutex<LeasedNames>,
    own_changes: Mutex<OwnChanges>,
    readdir_prefetch: ReaddirPrefetch,
    complete_directories: Mutex<CompleteDirectories>,
    inline_cache: Mutex<InlineCache>,
    access_times: Mutex<Touches>,
}

impl InodeCache {
    /// Versions that the kernel's pages of files show.
    pub(crate) fn page_versions(&self) -> MutexGuard<'_, PageVersions> {
        lock(&self.page_versions)
    }

    /// The last attributes of inodes that are not files.
    pub(crate) fn removed_attributes(&self) -> MutexGuard<'_, RemovedAttributes> {
        lock(&self.removed_attributes)
    }

    /// Reads that no shard has heard of.
    pub(crate) fn touches(&self) -> MutexGuard<'_, Touches> {
        lock(&self.access_times)
    }
}
