//! What the kernel is made to drop: pages, attributes, names.

use crate::fs::ZonalFs;
use crate::tails::Stale;
use std::time::Duration;
use zonal_fuse::Notifier;
use zonal_types::Ino;
use zonal_wire::Event;

/// How long the acknowledgement of an event waits for pages.
///
/// The kernel keeps pages locked that are being written, until the write is answered. That of an O_SYNC write may wait for another mount's
/// acknowledgement, and that one for a write of its own: so an acknowledgement waits for no page for long. Who opens the file, or locks
/// it, sees to it anyway that what is old is dropped before.
const EVENT: Duration = Duration::from_millis(20);

/// How long the answer of what failed waits for pages. Those that a mapping has changed wait for the answer of a truncation.
const DOUBT: Duration = Duration::from_millis(200);

impl ZonalFs {
    /// Makes the kernel drop an inode's attributes; a worker may do so while it serves a request.
    pub(crate) fn drop_attributes(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            drop_pages(notifier, ino.0, false);
        }
    }

    /// A truncation or a write failed, and the file may have another size all the same (a target did not hear of it, bytes stay gathered). Before that
    /// is answered the kernel drops what it has: it takes no size from an answer during which pages are dropped, and would read by the old one.
    /// `holds_pages`: it keeps some locked until the answer.
    pub(crate) fn doubt_size(&self, ino: Ino, holds_pages: bool) {
        self.hints.forget(&[ino]);
        if let Some(notifier) = self.notifier.get() {
            let limit = if holds_pages { Duration::ZERO } else { DOUBT };
            self.signal.drop_within(notifier, &[ino], limit);
        }
    }

    /// Makes the kernel write the pages of a hole, and drop them.
    pub(crate) fn drop_hole(&self, ino: Ino, (from, to): (u64, u64)) {
        if let Some(notifier) = self.notifier.get() {
            drop_range(notifier, ino.0, from, to);
        }
    }

    /// Drops pages; returns when that is done, but after `limit` in any case.
    pub(crate) fn drop_range_within(&self, ino: Ino, pages: Stale, limit: Duration) {
        if let Some(notifier) = self.notifier.get() {
            self.signal.drop_range_within(notifier, ino, pages, limit);
        }
    }

    /// Makes the kernel drop a directory's listing.
    pub(crate) fn drop_listing(&self, dir: Ino) {
        self.client.forget_listing(dir);
        if let Some(notifier) = self.notifier.get() {
            drop_pages(notifier, dir.0, true);
        }
    }

    /// Makes the kernel drop all names and attributes that it caches. False where that is not sure.
    pub(crate) fn drop_all_cached(&self) -> bool {
        let Some(notifier) = self.notifier.get() else {
            return false;
        };
        let drop_known = || {
            let cached = self.hints.forget_all();
            for ino in &cached {
                drop_pages(notifier, ino.0, false);
            }
            for dir in self.listings.take_kept() {
                drop_pages(notifier, dir.0, true);
            }
            notifier.inc_epoch().is_ok()
        };
        let is_sure = drop_known();
        // What the kernel was taking over just then: once more.
        std::thread::sleep(crate::listings::SETTLE);
        is_sure && drop_known()
    }
}

/// The pages of `from..to`.
pub(super) fn drop_range(notifier: &Notifier, ino: u64, from: u64, to: u64) {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let length = i64::try_from(to).unwrap_or(i64::MAX) - from;
    if let Err(error) = notifier.inval_inode(ino, from, length) {
        tracing::debug!(ino, %error, "the kernel refused an invalidation");
    }
}

/// All pages of a file, and its attributes. A size that is told afterwards has no page to wait for: the kernel takes no attributes from an
/// answer during which pages are dropped.
pub(super) fn drop_file(fs: &ZonalFs, notifier: &Notifier, ino: u64) {
    let pages = fs.tails.whole(Ino(ino));
    drop_pages(notifier, ino, true);
    if let Some(pages) = pages {
        fs.tails.dropped(Ino(ino), pages);
    }
}

/// Absent inodes are no error: then the kernel holds nothing.
pub(super) fn drop_pages(notifier: &Notifier, ino: u64, data: bool) {
    let offset = if data { 0 } else { -1 };
    if let Err(error) = notifier.inval_inode(ino, offset, 0) {
        tracing::debug!(ino, %error, "the kernel refused an invalidation");
    }
}

/// Makes the kernel drop what an event says is old.
pub(crate) fn drop_cached(fs: &ZonalFs, event: &Event) {
    match event {
        Event::Invalidate {
            entries,
            inodes,
            data,
        } => {
            let is_new = fs.hints.forget(inodes);
            let Some(notifier) = fs.notifier.get() else {
                return;
            };
            if (entries.0 != 0 || is_new)
                && let Err(error) = notifier.inc_epoch()
            {
                tracing::warn!(%error, "the kernel keeps names for their whole time");
            }
            if entries.0 != 0 {
                // Its listing, of which open handles may be in the middle.
                drop_pages(notifier, entries.0, true);
            }
            for ino in inodes {
                drop_pages(notifier, ino.0, false);
            }
            if *data {
                fs.signal.drop_within(notifier, inodes, EVENT);
            }
        }
        Event::LockGranted { .. } | Event::RecallLease { .. } | Event::FileCut { .. } => {}
    }
}
