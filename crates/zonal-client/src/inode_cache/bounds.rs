//! The bounds of the cache of inodes, with how full each part is.

use crate::inode_cache::InodeCache;
use crate::inode_cache::complete_directories::{KNOWN_DIRECTORIES_MAX, KNOWN_NAMES_MAX};
use crate::inode_cache::inline_cache::SMALL_MAX;
use crate::inode_cache::kept_listings::LISTED_MAX;
use crate::inode_cache::leased_attributes::LEASED_ATTRIBUTES_MAX;
use crate::inode_cache::leased_names::LEASED_NAMES_MAX;
use crate::inode_cache::page_validity::SEEN_MAX;
use crate::inode_cache::parent_attributes::FRESH_MAX;
use crate::inode_cache::readdir_prefetch::{BESIDE_MAX, KEPT_MAX};
use crate::inode_cache::removed_attributes::GHOSTS_MAX;
use crate::transport::mutex::lock;

impl InodeCache {
    /// Gauges of the parts: name, value, bound. Unreported reads have no gauge: they are reported
    /// when there are some.
    pub(crate) fn gauges(&self) -> Vec<(&'static str, u64, u64)> {
        let (known_directories, known_names) = lock(&self.complete_directories).len();
        let (listed_ahead, known_beside) = self.readdir_prefetch.len();
        let sizes = [
            ("seen_pages", lock(&self.page_versions).len(), SEEN_MAX),
            (
                "fresh_directories",
                lock(&self.parent_attributes).len(),
                FRESH_MAX,
            ),
            (
                "leased_attributes",
                lock(&self.leased_attributes).len(),
                LEASED_ATTRIBUTES_MAX,
            ),
            (
                "leased_names",
                lock(&self.leased_names).len().1,
                LEASED_NAMES_MAX,
            ),
            ("kept_listings", lock(&self.kept_listings).len(), LISTED_MAX),
            ("listed_ahead", listed_ahead, KEPT_MAX),
            ("known_beside", known_beside, BESIDE_MAX),
            (
                "known_directories",
                known_directories,
                KNOWN_DIRECTORIES_MAX,
            ),
            ("known_names", known_names, KNOWN_NAMES_MAX),
            ("small_files", lock(&self.inline_cache).len(), SMALL_MAX),
            ("ghosts", lock(&self.removed_attributes).len(), GHOSTS_MAX),
        ];
        let sizes = sizes.into_iter();
        sizes
            .map(|(name, size, bound)| (name, size as u64, bound as u64))
            .collect()
    }
}
