//! Where the cache of inodes forgets: by an event, by the end of leases, and by this client's own
//! operations.
//!
//! Order, for a reply that arrives meanwhile: the caller counts the event at its link first, and
//! then forgets. A reply is put into a part under the part's lock, after a look at that count. So
//! the reply is not kept, or it is forgotten here. The order of the parts among themselves does not
//! matter: each is valid alone.
//!
//! | ended | forgotten |
//! | --- | --- |
//! | leases on the inodes of an event | these inodes, in each part under a lease |
//! | leases of a shard (restart, session over) | all parts under a lease, of all shards |
//! | an inode, removed by this client | its attributes as a directory; its last ones are kept |
//!
//! `page_validity` outlives leases, as the kernel's pages do. An event about data ends it for an
//! inode. `removed_attributes` and `access_times` are of this client: no shard takes them back.

use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use zonal_types::{Attr, FileKind, Ino, Timestamp};

impl InodeCache {
    /// Forgets what an event names: `entries` is a directory whose names changed, and `has_data`
    /// tells that bytes of the inodes did.
    pub(crate) fn forget_named(&self, entries: Ino, inodes: &[Ino], has_data: bool) {
        lock(&self.complete_directories).forget(entries);
        lock(&self.leased_names).forget(entries);
        for ino in inodes.iter().chain([&entries]) {
            lock(&self.parent_attributes).drop_named(*ino);
            lock(&self.leased_attributes).forget(*ino);
            lock(&self.kept_listings).forget(*ino);
            lock(&self.inline_cache).forget(*ino);
            if has_data {
                lock(&self.page_versions).forget(*ino);
            }
        }
    }

    /// Forgets everything cached under leases that an earlier boot of a shard granted, or an
    /// earlier session there.
    pub(crate) fn forget_granted(&self) {
        lock(&self.complete_directories).forget_all();
        lock(&self.parent_attributes).forget_all();
        lock(&self.kept_listings).forget_all();
        self.readdir_prefetch.forget_all();
        lock(&self.inline_cache).forget_all();
        self.forget_leased();
    }

    /// Forgets the listing of `dir`, which has changed in a way that the kernel does not see.
    pub(crate) fn forget_listing(&self, dir: Ino) {
        lock(&self.kept_listings).forget(dir);
    }

    /// Forgets which version the kernel's pages of a file show, after an own change of which the
    /// reply does not tell the version.
    pub(crate) fn forget_pages(&self, ino: Ino) {
        lock(&self.page_versions).forget(ino);
    }

    /// Forgets the bytes of a small file that is locked from now on.
    pub(crate) fn forget_bytes(&self, ino: Ino) {
        lock(&self.inline_cache).forget(ino);
    }

    /// Forgets prefetched listings with entries whose access times were reported. `reads` is sorted
    /// by inode.
    pub(crate) fn forget_touched(&self, reads: &[(Ino, Timestamp)]) {
        self.readdir_prefetch.forget_touched(reads);
    }

    /// Forgets an inode that lost its last name, but for its last attributes, which no shard can
    /// report any more.
    pub(crate) fn forget_removed(&self, attr: &Attr) {
        if attr.kind == FileKind::Directory {
            lock(&self.parent_attributes).forget(attr.ino);
        }
        lock(&self.removed_attributes).note(attr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Instant, Timestamp};

    const FILE: Ino = Ino(5);
    const OTHER: Ino = Ino(6);

    /// A cache with pages, bytes and a read of two files.
    fn cache() -> InodeCache {
        let cache = InodeCache::default();
        for ino in [FILE, OTHER] {
            let mut pages = cache.page_versions();
            let asked = pages.now();
            pages.note(ino, 1, asked);
            let until = Instant(0).plus_ms(1_000);
            lock(&cache.inline_cache).keep(ino, 1, until, vec![1]);
            cache.touches().insert(ino, Timestamp::default());
        }
        cache
    }

    fn has_bytes(cache: &InodeCache, ino: Ino) -> bool {
        let bytes = lock(&cache.inline_cache).take(ino, 1, Instant(0));
        bytes.is_some()
    }

    #[test]
    fn an_event_ends_leases_on_its_inodes_and_pages_whose_bytes_changed() {
        let cache = cache();
        cache.forget_named(Ino(1), &[FILE], false);
        assert!(!cache.page_versions().differs(FILE, 1));
        assert!(!has_bytes(&cache, FILE) && has_bytes(&cache, OTHER));
        cache.forget_named(Ino(1), &[FILE], true);
        assert!(cache.page_versions().differs(FILE, 1));
        assert!(!cache.page_versions().differs(OTHER, 1));
    }

    #[test]
    fn the_end_of_leases_leaves_pages_and_unreported_reads() {
        let cache = cache();
        cache.forget_granted();
        assert!(!has_bytes(&cache, FILE) && !has_bytes(&cache, OTHER));
        assert!(!cache.page_versions().differs(FILE, 1));
        assert_eq!(cache.touches().len(), 2);
    }

    #[test]
    fn each_part_has_a_bound_of_its_own_name() {
        let names: std::collections::BTreeSet<_> =
            cache().gauges().into_iter().map(|gauge| gauge.0).collect();
        assert_eq!(names.len(), 11);
        let of = |name| cache().gauges().into_iter().find(|gauge| gauge.0 == name);
        assert_eq!(of("small_files").map(|gauge| gauge.1), Some(2));
        assert_eq!(of("seen_pages").map(|gauge| gauge.1), Some(2));
    }
}
