//! Invalidation: makes the kernel drop pages, attributes and names.

use super::jobs::LastByte;
use crate::fs::ZonalFs;
use crate::listing_cache::SETTLE;
use crate::name_cache::CachedNames;
use crate::page_tails::StalePages;
use std::time::Duration;
use zonal_fuse::Notifier;
use zonal_types::Ino;
use zonal_wire::Event;

/// How long the acknowledgement of an event waits for pages.
///
/// The kernel keeps pages locked while they are written, until the write is answered. The answer of
/// an O_SYNC write may wait for another mount's acknowledgement, which may wait for a write there.
/// So an acknowledgement waits for pages only briefly. An open and a lock of the file drop old
/// pages anyway.
const EVENT: Duration = Duration::from_millis(20);

/// How long the answer to a failed request waits for pages. Pages changed by a mapping wait for the
/// answer to a truncation.
const DOUBT: Duration = Duration::from_millis(200);

impl ZonalFs {
    /// Makes the kernel drop an inode's attributes; a worker may do so while it serves a request.
    pub(crate) fn drop_attributes(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            drop_pages(notifier, ino.0, false);
        }
    }

    /// Drops pages and attributes before a failed truncation or write is answered. The file may
    /// have another size all the same: a target did not hear of it, or bytes stay gathered. The
    /// kernel takes no size from an answer during which pages are dropped, and would read by the
    /// old one. `holds_pages`: the kernel keeps some pages locked until the answer.
    pub(crate) fn doubt_size(&self, ino: Ino, holds_pages: bool) {
        self.hints.forget(&[ino]);
        if let Some(notifier) = self.notifier.get() {
            let limit = if holds_pages { Duration::ZERO } else { DOUBT };
            self.signal.drop_within(notifier, &[ino], limit);
        }
    }

    /// Makes the kernel write the pages of a hole and drop them.
    pub(crate) fn drop_hole(&self, ino: Ino, (from, to): (u64, u64)) {
        if let Some(notifier) = self.notifier.get() {
            drop_range(self, notifier, ino.0, from, to);
        }
    }

    /// Drops pages and waits for it, at most `limit`. True where it is done.
    pub(crate) fn drop_range_within(&self, ino: Ino, pages: StalePages, limit: Duration) -> bool {
        let notifier = self.notifier.get();
        notifier.is_some_and(|notifier| {
            let signal = &self.signal;
            signal.drop_range_within(notifier, ino, pages, limit)
        })
    }

    /// Makes the kernel drop a directory's listing.
    pub(crate) fn drop_listing(&self, dir: Ino) {
        self.client.forget_listing(dir);
        if let Some(notifier) = self.notifier.get() {
            drop_pages(notifier, dir.0, true);
        }
    }

    /// Makes the kernel expire all names and drop all attributes that it caches. False where that
    /// is not certain.
    pub(crate) fn drop_all_cached(&self) -> bool {
        let Some(notifier) = self.notifier.get() else {
            return false;
        };
        let drop_known = || {
            let cached = self.hints.forget_all();
            for ino in &cached {
                drop_attributes_of(notifier, *ino);
            }
            for dir in self.listings.take_kept() {
                drop_pages(notifier, dir.0, true);
            }
            let names = self.names.take_all(SETTLE);
            let dirs: Vec<Ino> = names.iter().map(|(dir, _believed)| *dir).collect();
            for (dir, believed) in names {
                self.expire(notifier, dir, believed);
            }
            (dirs.is_empty() || notifier.has_expire_only()) && self.settle_names(&dirs)
        };
        let is_sure = drop_known();
        // Once more, for answers that the kernel was taking over at that moment.
        std::thread::sleep(SETTLE);
        is_sure && drop_known()
    }

    /// Makes the kernel look names up at their next use. Names whose answers may be on their way
    /// into the kernel are expired again later.
    fn expire(&self, notifier: &Notifier, dir: Ino, believed: CachedNames) {
        let CachedNames { names, fresh } = believed;
        if names.is_empty() || !notifier.has_expire_only() {
            return;
        }
        if !fresh.is_empty() {
            self.listings.expire_again(dir, fresh.clone());
        }
        self.expiries.expire(dir, names, fresh);
    }

    /// Waits until events about these directories may be acknowledged.
    pub(crate) fn settle_names(&self, dirs: &[Ino]) -> bool {
        dirs.is_empty()
            || self
                .expiries
                .settle(dirs, |dir| self.directories.parent(dir))
    }

    /// Invalidates everything that an event names. Returns the directories for which the
    /// acknowledgement waits, see [`Self::settle_names`].
    pub(crate) fn drop_named(&self, event: &Event) -> Vec<Ino> {
        let Event::Invalidate {
            entries, inodes, ..
        } = event
        else {
            return Vec::new();
        };
        self.expiries.count_event();
        // First, by the invariants of [`crate::name_cache`].
        let new = self.hints.forget(inodes);
        let Some(notifier) = self.notifier.get() else {
            return Vec::new();
        };
        let mut dirs = Vec::new();
        if entries.0 != 0 {
            let believed = self.names.take(*entries, SETTLE);
            if !believed.names.is_empty() {
                dirs.push(*entries);
            }
            self.expire(notifier, *entries, believed);
        }
        drop_inodes(self, notifier, event);
        for (ino, dir) in new {
            self.expiries.drop_behind(dir, ino);
            dirs.push(dir);
        }
        dirs
    }

    /// Drops the attributes, listings and pages of an event once more.
    pub(crate) fn drop_again(&self, event: &Event) {
        if let Some(notifier) = self.notifier.get() {
            drop_inodes(self, notifier, event);
        }
    }
}

/// Makes the kernel drop an inode's attributes.
fn drop_attributes_of(notifier: &Notifier, ino: Ino) {
    drop_pages(notifier, ino.0, false);
}

/// Drops the pages of `from..to`.
pub(super) fn drop_range(fs: &ZonalFs, notifier: &Notifier, ino: u64, from: u64, to: u64) {
    let from = i64::try_from(from).unwrap_or(i64::MAX);
    let length = i64::try_from(to).unwrap_or(i64::MAX) - from;
    let drop = fs.page_tails.drop_begins(Ino(ino));
    if let Err(error) = notifier.inval_inode(ino, from, length) {
        tracing::debug!(ino, %error, "the kernel refused an invalidation");
    }
    fs.page_tails.drop_ends(Ino(ino), drop, false);
}

/// Makes the kernel use the true length of a file whose pages were just dropped.
///
/// A read behind the kernel's known end asks for the attributes once. It ends at the old end where
/// the kernel ignores them. The kernel ignores attributes requested before an invalidation, or
/// before the answer to a write of this mount. It always accepts the end of bytes that it is given
/// to store. So this stores the file's last byte. Then it drops the page, because a newer one may
/// be on its way.
pub(super) fn lengthen(fs: &ZonalFs, notifier: &Notifier, ino: u64, last: &LastByte) {
    let size = last.at + 1;
    if fs.page_tails.show(Ino(ino), size).is_some() {
        // A reader has filled the page at the old end again: it would show zeros, so the kernel
        // must ask.
        return;
    }
    match notifier.store(ino, last.at, &last.byte) {
        Ok(_known) => fs.page_tails.lengthened(Ino(ino), size),
        Err(error) => tracing::debug!(ino, %error, "the kernel did not take a byte"),
    }
    drop_range(fs, notifier, ino, last.at, size);
}

/// Drops all pages of a file and its attributes. A size sent afterwards waits for no page, because
/// the kernel ignores attributes from an answer during which pages are dropped.
pub(super) fn drop_file(fs: &ZonalFs, notifier: &Notifier, ino: u64) {
    let pages = fs.page_tails.whole(Ino(ino));
    let drop = fs.page_tails.drop_begins(Ino(ino));
    drop_pages(notifier, ino, true);
    fs.page_tails.drop_ends(Ino(ino), drop, true);
    if let Some(pages) = pages {
        fs.page_tails.dropped(Ino(ino), pages);
    }
}

/// Makes the kernel drop an inode's pages or only its attributes. An unknown inode is not an error:
/// the kernel caches nothing of it.
pub(super) fn drop_pages(notifier: &Notifier, ino: u64, data: bool) {
    let offset = if data { 0 } else { -1 };
    if let Err(error) = notifier.inval_inode(ino, offset, 0) {
        tracing::debug!(ino, %error, "the kernel refused an invalidation");
    }
}

/// Drops the attributes, listings and pages that an event names.
fn drop_inodes(fs: &ZonalFs, notifier: &Notifier, event: &Event) {
    let Event::Invalidate {
        entries,
        inodes,
        data,
    } = event
    else {
        return;
    };
    if entries.0 != 0 {
        // The listing may be read through open handles.
        drop_pages(notifier, entries.0, true);
    }
    for ino in inodes {
        drop_attributes_of(notifier, *ino);
    }
    if *data {
        fs.signal.drop_within(notifier, inodes, EVENT);
    }
}
