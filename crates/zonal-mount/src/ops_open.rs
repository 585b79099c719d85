//! Opening files.
//!
//! A handle is a number with flags of its open in the low bits; the inode number finds the file.
//! Handles that only write or append bypass the page cache. Each of their writes is a request
//! anyway, and the kernel must not guess the offset of an append. Other handles use the page cache,
//! with pages from earlier opens where nothing changed.

use crate::caller::credentials;
use crate::conversions::{kernel_entry, name};
use crate::fs::ZonalFs;
use crate::page_tails::PageAccess;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use zonal_client::names::{NewFile, OpenedFile};
use zonal_fuse::request::{Create, Open};
use zonal_fuse::{Context, FuseEntry as KernelEntry, OpenFlags};
use zonal_native::RealNet;
use zonal_native::block_on;
use zonal_types::{Attr, ErrorCode, Ino};
use zonal_wire::NewKind;
use zonal_wire::meta::flags::{O_ACCMODE, O_APPEND, O_EXEC, O_RDONLY, O_TRUNC, O_WRONLY};

/// Flags of open(2) that a handle remembers.
pub(crate) const O_DSYNC: u32 = 0o10_000;
const O_NOATIME: u32 = 0o1_000_000;
const O_EXCL: u32 = 0o200;
/// Bits of a handle's number.
pub(crate) const HANDLE_APPEND: u64 = 1;
pub(crate) const HANDLE_SYNC: u64 = 2;
/// The handle reads and writes through the kernel's pages.
pub(crate) const HANDLE_PAGES: u64 = 4;
/// The handle is open for writing.
pub(crate) const HANDLE_WRITES: u64 = 8;
/// The handle is open for execution.
pub(crate) const HANDLE_EXEC: u64 = 16;
/// The handle may read through the kernel's pages. A handle that bypasses them can do so by a
/// mapping.
pub(crate) const HANDLE_READS: u64 = 32;
const HANDLE_BITS: u32 = 8;
/// The next read renews an access time older than this (relatime), seconds.
const RELATIME_SECONDS: i64 = 86_400;
/// Files whose access time is due; a forgotten one keeps its old time.
pub const TOUCH_DUE_MAX: usize = 65_536;

impl ZonalFs {
    /// Makes a handle's number and the kernel's flags for it.
    fn handle(
        &self,
        ctx: &Context<'_>,
        opened: &OpenedFile<RealNet>,
        flags: u32,
    ) -> (u64, OpenFlags) {
        let mut bits = 0;
        if flags & O_APPEND != 0 {
            bits |= HANDLE_APPEND;
        }
        if flags & O_DSYNC != 0 || self.flags.is_sync() {
            bits |= HANDLE_SYNC;
        }
        if flags & O_ACCMODE != 0 {
            bits |= HANDLE_WRITES;
        }
        if flags & O_EXEC != 0 {
            bits |= HANDLE_EXEC;
            self.executables.open(opened.found.attr.ino);
        }
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let goes_round = flags & O_APPEND != 0 || flags & O_ACCMODE == O_WRONLY;
        let is_touch_due = flags & O_NOATIME == 0
            && flags & O_ACCMODE != O_WRONLY
            && self.is_touch_due(&opened.found.attr);
        let kernel_flags = if goes_round {
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        } else if opened.keep_pages {
            OpenFlags::KEEP_CACHE
        } else {
            OpenFlags::NONE
        };
        if !goes_round {
            bits |= HANDLE_PAGES;
        }
        if flags & O_ACCMODE != O_WRONLY {
            bits |= HANDLE_READS;
            let attr = &opened.found.attr;
            let access = PageAccess {
                writes: bits & HANDLE_WRITES != 0,
                keeps_pages: opened.keep_pages && !goes_round,
            };
            let space = (attr.size, attr.allocated);
            if self.page_tails.open(attr.ino, space, access) {
                self.drop_attributes(attr.ino);
            }
        }
        if is_touch_due {
            // A read of kept pages sends no request, so the open counts as one. The pages are not
            // dropped for that. The kernel would drop a page that a writer has just filled before
            // its write arrives, and read the page again without the bytes.
            let stands_for_read = opened.keep_pages && flags & O_ACCMODE == O_RDONLY;
            let due = self.touch_due.lock();
            let mut due = due.unwrap_or_else(PoisonError::into_inner);
            *due.entry(opened.found.attr.ino).or_default() |= stands_for_read;
            if stands_for_read {
                self.signal.wake();
            }
            // Otherwise files that are opened and never read would stay for ever.
            if due.len() > TOUCH_DUE_MAX {
                due.pop_first();
            }
        }
        let fh = number << HANDLE_BITS | bits;
        self.handle_errors.open(fh, opened.file.told());
        if bits & HANDLE_WRITES != 0 {
            self.write_handles.open(opened.file.ino, fh, ctx.uid);
        }
        let drops_pages = opened.changed.is_some() || opened.keep_pages && goes_round;
        if drops_pages {
            self.page_tails.open_drops(opened.file.ino);
            self.open_invalidations.note(fh, opened.changed);
        }
        (fh, kernel_flags)
    }

    fn is_touch_due(&self, attr: &Attr) -> bool {
        use zonal_client::Net as _;
        if self.flags.is_noatime() {
            return false;
        }
        let now = self.client.net().wall();
        attr.atime <= attr.mtime
            || attr.atime <= attr.ctime
            || attr.atime.seconds < now.seconds - RELATIME_SECONDS
    }

    pub(crate) fn do_open(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        open: &Open,
    ) -> Result<(u64, OpenFlags), ErrorCode> {
        let call = self.begin(ctx);
        let truncates_only = open.flags & (O_ACCMODE | O_TRUNC) == O_RDONLY | O_TRUNC;
        if truncates_only && self.executables.is_busy(ino) {
            return Err(ErrorCode::TextBusy);
        }
        let opened = block_on(call.open(&credentials(ctx), ino, open.flags));
        if open.flags & O_TRUNC != 0 {
            // Bytes from before it may be gathered again.
            self.signal.wake();
            match &opened {
                Ok(_truncated) => {
                    self.page_tails.truncate(ino, 0);
                    self.hints.forget(&[ino]);
                }
                Err(_) => self.doubt_size(ino, false),
            }
        }
        Ok(self.handle(ctx, &opened?, open.flags))
    }

    pub(crate) fn do_create(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
        create: &Create,
    ) -> Result<(KernelEntry, u64, OpenFlags), ErrorCode> {
        let call = self.begin(ctx);
        let new = NewFile {
            kind: NewKind::File,
            mode: create.mode & 0o7777,
            umask: create.umask,
        };
        let mark = self.hints.mark();
        let _changing = self.expiries.change(parent);
        let mut opened =
            block_on(call.create(&credentials(ctx), parent, name(bytes)?, new, create.flags))?;
        let found = &mut opened.found;
        found.attr_ms = self
            .hints
            .note_new(mark, parent, &found.attr, found.attr_ms);
        found.entry_ms = self.note_name(mark, (parent, bytes), found.entry_ms, false);
        let (fh, flags) = self.handle(ctx, &opened, create.flags);
        self.space(&mut opened.found.attr);
        Ok((kernel_entry(&opened.found), fh, flags))
    }

    pub(crate) fn do_tmpfile(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        create: &Create,
    ) -> Result<(KernelEntry, u64, OpenFlags), ErrorCode> {
        let call = self.begin(ctx);
        let mode = (create.mode & 0o7777, create.umask);
        let exclusive = create.flags & O_EXCL != 0;
        let mut opened = block_on(call.tmpfile(&credentials(ctx), parent, mode, exclusive))?;
        let found = &mut opened.found;
        found.attr_ms = self.hints.note_term(found.attr.ino, found.attr_ms);
        let (fh, flags) = self.handle(ctx, &opened, create.flags);
        Ok((kernel_entry(&opened.found), fh, flags))
    }
}
