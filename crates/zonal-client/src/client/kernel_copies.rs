//! The kernel's copies of pages and listings: the shell reports which of them were dropped, and
//! asks which may be used again.

use crate::client::Client;
use crate::inode_cache::PendingPageVersion;
use crate::transport::net::Net;
use zonal_types::Ino;

impl<N: Net> Client<N> {
    /// Notes that the kernel has dropped the pages that a file had when `changed` was returned:
    /// from here on it shows the newer version.
    pub fn pages_dropped(&self, ino: Ino, changed: PendingPageVersion) {
        self.inode_cache.page_versions().dropped(ino, changed);
    }

    /// Notes that the kernel's pages of a file may be older than assumed. Drops requested until now
    /// do not cure that.
    pub fn doubt_pages(&self, ino: Ino) {
        self.inode_cache.page_versions().doubt(ino);
    }

    /// How long the kernel's copy of the last listing of `dir` stays valid, ms; 0: it must not be
    /// kept.
    pub fn listing_left_ms(&self, dir: Ino) -> u64 {
        self.inode_cache.listing_left_ms(dir, self.net.now())
    }

    /// Forgets the listing of `dir`, which has changed in a way that the kernel does not see.
    pub fn forget_listing(&self, dir: Ino) {
        self.inode_cache.forget_listing(dir);
    }

    /// Whether the kernel's copy of the last listing of `dir` is still valid. Where not, it has to
    /// be dropped before the next listing begins.
    pub fn keeps_listing(&self, dir: Ino) -> bool {
        self.inode_cache.keeps_listing(dir, self.net.now())
    }
}
