//! The kernel's operations, each handed to the client core on the worker that took it.
//!
//! The operations are in `ops_*`; this file lists them.

use crate::attribute_hints::AttributeHints;
use crate::background::MountSignal;
use crate::in_flight::KernelOperation;
use crate::ops_open::HANDLE_PAGES;
use crate::ops_write::PagesToDrop;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock};
use zonal_client::Client;
use zonal_fuse::request::{
    CopyFileRange, Create, Fallocate, Forgets, Lock, Mknod, Open, Read, Release, Rename, SetXattr,
    Statx, Write,
};
use zonal_fuse::{
    Context, Errno, FileSystem, Flags, KernelInfo, Notifier, ReplyAttr, ReplyCopy, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, SetAttr, WriteData,
};
use zonal_native::RealNet;
use zonal_native::lock_waiters::LockWaiters;
use zonal_types::{ErrorCode, Ino};

/// A mounted cell.
pub struct ZonalFs {
    pub(crate) client: Client<RealNet>,
    pub(crate) notifier: OnceLock<Notifier>,
    pub(crate) waiters: LockWaiters<ReplyEmpty>,
    pub(crate) hints: AttributeHints,
    pub(crate) directories: crate::directories::DirectoryTable,
    pub(crate) root_listings: crate::root_listings::RootListings,
    pub(crate) names: crate::name_cache::NameCache,
    pub(crate) expiries: crate::expiries::NameExpiries,
    pub(crate) listings: crate::listing_cache::ListingCache,
    pub(crate) signal: Arc<MountSignal>,
    pub(crate) handle_locks: crate::handle_locks::HandleLocks,
    pub(crate) open_invalidations: crate::open_invalidation::OpenInvalidations,
    pub(crate) handle_errors: crate::handle_errors::HandleErrors,
    pub(crate) next_handle: AtomicU64,
    /// Files whose access time is due at their next read. True: the open counts as a read where
    /// none follows soon.
    pub(crate) touch_due: Mutex<BTreeMap<Ino, bool>>,
    pub(crate) in_flight: crate::in_flight::OperationsInFlight,
    pub(crate) page_tails: crate::page_tails::PageTails,
    pub(crate) executables: crate::executables::Executables,
    pub(crate) write_handles: crate::write_handles::WriteHandles,
    /// Workers of the FUSE session.
    pub(crate) workers: usize,
    /// Flags of the mount.
    pub(crate) flags: Flags,
    pub(crate) on_end: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl ZonalFs {
    /// The file system of a connected client, with so many workers and these mount flags.
    #[must_use]
    pub fn new(client: Client<RealNet>, workers: usize, flags: Flags) -> Self {
        Self {
            client,
            notifier: OnceLock::new(),
            waiters: LockWaiters::default(),
            hints: AttributeHints::default(),
            directories: crate::directories::DirectoryTable::default(),
            root_listings: crate::root_listings::RootListings::default(),
            names: crate::name_cache::NameCache::default(),
            expiries: crate::expiries::NameExpiries::default(),
            listings: crate::listing_cache::ListingCache::default(),
            signal: Arc::default(),
            handle_locks: crate::handle_locks::HandleLocks::default(),
            open_invalidations: crate::open_invalidation::OpenInvalidations::default(),
            handle_errors: crate::handle_errors::HandleErrors::default(),
            next_handle: AtomicU64::new(1),
            touch_due: Mutex::default(),
            in_flight: crate::in_flight::OperationsInFlight::default(),
            page_tails: crate::page_tails::PageTails::default(),
            executables: crate::executables::Executables::default(),
            write_handles: crate::write_handles::WriteHandles::default(),
            workers,
            flags,
            on_end: OnceLock::new(),
        }
    }

    /// Calls `tell` when the mount is gone, however it ended. Only the first call counts.
    pub fn when_gone(&self, tell: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_end.set(Box::new(tell));
    }

    /// The client core.
    #[must_use]
    pub fn client(&self) -> &Client<RealNet> {
        &self.client
    }

    /// Begins an operation for the caller of a request. A caller that this process cannot name
    /// could not end a wait without a deadline.
    pub(crate) fn begin(&self, ctx: &Context<'_>) -> KernelOperation<'_> {
        let mut call = self.client.begin();
        if ctx.pid == 0 {
            call = call.bounded();
        }
        self.in_flight.begin(call, ctx.unique, ctx.pid)
    }

    /// As [`Self::begin`], with a deadline in any mount.
    pub(crate) fn begin_bounded(&self, ctx: &Context<'_>) -> KernelOperation<'_> {
        let call = self.client.begin().bounded();
        self.in_flight.begin(call, ctx.unique, ctx.pid)
    }

    /// As [`Self::begin`], for pages that the kernel would drop after an error.
    pub(crate) fn begin_write_back(&self, ctx: &Context<'_>) -> KernelOperation<'_> {
        self.in_flight
            .begin(self.client.begin(), ctx.unique, ctx.pid)
    }

    /// As [`Self::begin`], for a stat of an entry of `parent`.
    pub(crate) fn begin_stat(
        &self,
        ctx: &Context<'_>,
        parent: impl FnOnce() -> Option<Ino>,
    ) -> KernelOperation<'_> {
        let mut call = self.client.begin();
        if ctx.pid == 0 {
            call = call.bounded();
        }
        if self.root_listings.has(ctx.pid) && parent() == Some(Ino::ROOT) {
            call = call.of_listing();
        }
        self.in_flight.begin(call, ctx.unique, ctx.pid)
    }
}

/// Answers with the value or the errno.
macro_rules! answer {
    ($reply:ident, $outcome:expr, $value:pat => $ok:expr) => {
        match $outcome {
            Ok($value) => $ok,
            Err(code) => $reply.err(crate::conversions::errno(code)),
        }
    };
}

impl FileSystem for ZonalFs {
    fn init(&self, kernel: &KernelInfo, notifier: &Notifier) {
        // Called once, before any request.
        let _ = self.notifier.set(notifier.clone());
        if !kernel.has_expire_only() {
            tracing::info!(
                "this kernel has no FUSE_HAS_EXPIRE_ONLY (Linux 6.3): names and attributes are not cached"
            );
            self.client.stop_caching();
        }
    }

    fn destroy(&self) {
        if let Some(tell) = self.on_end.get() {
            tell();
        }
    }

    fn interrupt(&self, unique: u64) -> bool {
        self.interrupt_waiter(unique)
    }

    fn lingers(&self, unique: u64) {
        if self.waiters.is_interrupted(unique) {
            self.in_flight.cancel(unique);
        } else {
            self.in_flight.cancel_if_dying(unique);
        }
    }

    fn connection_ended(&self) {
        self.in_flight.cancel_all();
    }

    fn forget(&self, ino: u64, _nlookup: u64) {
        self.hints.kernel_forgot(Ino(ino));
    }

    fn batch_forget(&self, forgets: Forgets<'_>) {
        for (ino, _nlookup) in forgets {
            self.hints.kernel_forgot(Ino(ino));
        }
    }

    fn lookup(&self, ctx: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        self.do_lookup(ctx, Ino(parent), name, reply);
    }

    fn getattr(&self, ctx: &Context<'_>, ino: u64, _fh: Option<u64>, reply: ReplyAttr) {
        self.do_getattr(ctx, Ino(ino), reply);
    }

    fn statx(&self, ctx: &Context<'_>, ino: u64, _statx: &Statx, reply: ReplyStatx) {
        self.do_statx(ctx, Ino(ino), reply);
    }

    fn setattr(&self, ctx: &Context<'_>, ino: u64, change: &SetAttr, reply: ReplyAttr) {
        let behind = change
            .size
            .and_then(|size| self.page_tails.growth_begins(Ino(ino), size));
        let outcome = self.do_setattr(ctx, Ino(ino), change);
        if let Ok((attr, _ms)) = &outcome
            && change.size.is_some()
        {
            self.page_tails.truncate(attr.ino, attr.size);
        }
        let behind =
            behind.and_then(|(mask, range)| self.page_tails.behind_ends(Ino(ino), mask, range));
        if let (Err(_), Some(pages)) = (&outcome, behind) {
            self.after_drop(Ino(ino), pages, || {});
        }
        answer!(reply, outcome, (mut attr, ms) => {
            self.space(&mut attr);
            let ms = self.hints.note_term(attr.ino, ms);
            let tell = move || {
                reply.attr(&crate::conversions::kernel_attr(&attr), crate::conversions::valid(ms));
            };
            if change.size.is_some() {
                // Until it has this answer, the kernel sends no page that a mapping has changed,
                // and a drop of pages waits for that. Where the size differs from its own, the
                // kernel drops all pages itself.
                let pages = self.page_tails.show(attr.ino, attr.size);
                tell();
                for pages in pages.into_iter().chain(behind) {
                    self.after_drop(attr.ino, pages, || {});
                }
            } else {
                self.after_size(attr.ino, attr.size, tell);
            }
        });
    }

    fn readlink(&self, ctx: &Context<'_>, ino: u64, reply: ReplyData) {
        let call = self.begin(ctx);
        let outcome = zonal_native::block_on(call.readlink(Ino(ino)));
        answer!(reply, outcome, text => reply.data(&text));
    }

    fn symlink(
        &self,
        ctx: &Context<'_>,
        parent: u64,
        name: &[u8],
        target: &[u8],
        reply: ReplyEntry,
    ) {
        let mark = self.hints.mark();
        let changing = self.expiries.change(Ino(parent));
        let outcome = self.do_symlink(ctx, Ino(parent), name, target);
        self.answer_entry(mark, (Ino(parent), name), reply, outcome);
        drop(changing);
    }

    fn mknod(&self, ctx: &Context<'_>, parent: u64, name: &[u8], node: &Mknod, reply: ReplyEntry) {
        let mark = self.hints.mark();
        let changing = self.expiries.change(Ino(parent));
        let outcome = self.do_mknod(ctx, Ino(parent), name, node);
        self.answer_entry(mark, (Ino(parent), name), reply, outcome);
        drop(changing);
    }

    fn mkdir(
        &self,
        ctx: &Context<'_>,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let mark = self.hints.mark();
        let changing = self.expiries.change(Ino(parent));
        let outcome = self.do_mkdir(ctx, Ino(parent), name, (mode, umask));
        self.answer_entry(mark, (Ino(parent), name), reply, outcome);
        drop(changing);
    }

    fn unlink(&self, ctx: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let outcome = self.do_unlink(ctx, Ino(parent), name);
        answer!(reply, outcome, () => reply.ok());
    }

    fn rmdir(&self, ctx: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let outcome = self.do_rmdir(ctx, Ino(parent), name);
        answer!(reply, outcome, () => reply.ok());
    }

    fn rename(&self, ctx: &Context<'_>, parent: u64, rename: &Rename<'_>, reply: ReplyEmpty) {
        let outcome = self.do_rename(ctx, Ino(parent), rename);
        answer!(reply, outcome, () => reply.ok());
    }

    fn link(
        &self,
        ctx: &Context<'_>,
        ino: u64,
        new_parent: u64,
        new_name: &[u8],
        reply: ReplyEntry,
    ) {
        let mark = self.hints.mark();
        let changing = self.expiries.change(Ino(new_parent));
        let outcome = self.do_link(ctx, Ino(ino), Ino(new_parent), new_name);
        if outcome.is_ok() {
            self.forget_attributes(Ino(ino));
        }
        self.answer_entry(mark, (Ino(new_parent), new_name), reply, outcome);
        drop(changing);
    }

    fn open(&self, ctx: &Context<'_>, ino: u64, open: &Open, reply: ReplyOpen) {
        let outcome = self.do_open(ctx, Ino(ino), open);
        answer!(reply, outcome, (fh, flags) => reply.opened(fh, flags));
    }

    fn create(
        &self,
        ctx: &Context<'_>,
        parent: u64,
        name: &[u8],
        create: &Create,
        reply: ReplyCreate,
    ) {
        let outcome = self.do_create(ctx, Ino(parent), name, create);
        answer!(reply, outcome, (entry, fh, flags) => {
            self.after_size(Ino(entry.ino), entry.attr.size, move || {
                reply.created(&entry, fh, flags);
            });
        });
    }

    fn tmpfile(&self, ctx: &Context<'_>, parent: u64, create: &Create, reply: ReplyCreate) {
        let outcome = self.do_tmpfile(ctx, Ino(parent), create);
        answer!(reply, outcome, (entry, fh, flags) => reply.created(&entry, fh, flags));
    }

    fn read(&self, ctx: &Context<'_>, ino: u64, read: &Read, reply: ReplyData) {
        self.do_read(ctx, Ino(ino), read, reply);
    }

    fn write(
        &self,
        ctx: &Context<'_>,
        ino: u64,
        write: &Write,
        data: WriteData<'_>,
        reply: ReplyWrite,
    ) {
        let outcome = self.do_write(ctx, Ino(ino), write, data);
        // The kernel knows the end of its own pages.
        if outcome.is_err() && !write.from_cache {
            self.doubt_size(Ino(ino), write.fh & HANDLE_PAGES != 0);
        }
        answer!(reply, outcome, (size, drop) => match drop {
            PagesToDrop::Nothing => reply.written(size),
            PagesToDrop::Before(pages) => {
                self.after_drop_of_write(Ino(ino), pages, move || reply.written(size));
            }
            PagesToDrop::After(pages) => {
                reply.written(size);
                self.after_drop(Ino(ino), pages, || {});
            }
        });
    }

    fn statfs(&self, ctx: &Context<'_>, ino: u64, reply: ReplyStatfs) {
        let outcome = self.do_statfs(ctx, Ino(ino));
        answer!(reply, outcome, figures => reply.statfs(&figures));
    }

    fn release(&self, ctx: &Context<'_>, ino: u64, release: &Release, reply: ReplyEmpty) {
        let outcome = self.do_release(ctx, Ino(ino), release);
        answer!(reply, outcome, () => reply.ok());
    }

    fn fsync(&self, ctx: &Context<'_>, ino: u64, fh: u64, _datasync: bool, reply: ReplyEmpty) {
        let outcome = self.do_fsync(ctx, Ino(ino), fh);
        answer!(reply, outcome, () => reply.ok());
    }

    fn flush(&self, ctx: &Context<'_>, ino: u64, fh: u64, lock_owner: u64, reply: ReplyEmpty) {
        let outcome = self.do_flush(ctx, Ino(ino), fh, lock_owner);
        answer!(reply, outcome, () => reply.ok());
    }

    fn opendir(&self, ctx: &Context<'_>, ino: u64, _flags: u32, reply: ReplyOpen) {
        let outcome = self.do_opendir(ctx, Ino(ino));
        answer!(reply, outcome, (fh, flags) => reply.opened(fh, flags));
    }

    fn readdir(&self, ctx: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        self.do_readdir(ctx, Ino(ino), read, false, reply);
    }

    fn readdirplus(&self, ctx: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        self.do_readdir(ctx, Ino(ino), read, true, reply);
    }

    fn releasedir(&self, _ctx: &Context<'_>, ino: u64, release: &Release, reply: ReplyEmpty) {
        self.directories.close(Ino(ino), release.fh);
        self.root_listings.close(release.fh);
        reply.ok();
    }

    fn fsyncdir(&self, ctx: &Context<'_>, ino: u64, _fh: u64, _datasync: bool, reply: ReplyEmpty) {
        let _changing = self.expiries.change(Ino(ino));
        let outcome = self.do_fsyncdir(ctx, Ino(ino));
        answer!(reply, outcome, () => reply.ok());
    }

    fn setxattr(&self, ctx: &Context<'_>, ino: u64, set: &SetXattr<'_>, reply: ReplyEmpty) {
        let outcome = self.do_setxattr(ctx, Ino(ino), set);
        answer!(reply, outcome, () => reply.ok());
    }

    fn getxattr(&self, ctx: &Context<'_>, ino: u64, name: &[u8], reply: ReplyXattr) {
        let outcome = self.do_getxattr(ctx, Ino(ino), name);
        answer!(reply, outcome, value => reply.value(&value));
    }

    fn listxattr(&self, ctx: &Context<'_>, ino: u64, reply: ReplyXattr) {
        let outcome = self.do_listxattr(ctx, Ino(ino));
        answer!(reply, outcome, names => reply.value(&names));
    }

    fn removexattr(&self, ctx: &Context<'_>, ino: u64, name: &[u8], reply: ReplyEmpty) {
        let outcome = self.do_removexattr(ctx, Ino(ino), name);
        answer!(reply, outcome, () => reply.ok());
    }

    fn access(&self, ctx: &Context<'_>, ino: u64, mask: u32, reply: ReplyEmpty) {
        let outcome = self.do_access(ctx, Ino(ino), mask);
        answer!(reply, outcome, () => reply.ok());
    }

    fn getlk(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyLock) {
        let outcome = self.do_getlk(ctx, Ino(ino), lock);
        answer!(reply, outcome, held => reply.lock(&held));
    }

    fn setlk(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyEmpty) {
        self.do_setlk(ctx, Ino(ino), lock, false, reply);
    }

    fn setlkw(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyEmpty) {
        self.do_setlk(ctx, Ino(ino), lock, true, reply);
    }

    fn fallocate(&self, ctx: &Context<'_>, ino: u64, change: &Fallocate, reply: ReplyEmpty) {
        let outcome = self
            .do_fallocate(ctx, Ino(ino), change)
            .inspect_err(|_| self.doubt_size(Ino(ino), false));
        answer!(reply, outcome, pages => match pages {
            None => reply.ok(),
            Some(pages) => self.after_drop(Ino(ino), pages, move || reply.ok()),
        });
    }

    fn lseek(
        &self,
        ctx: &Context<'_>,
        ino: u64,
        _fh: u64,
        offset: u64,
        whence: u32,
        reply: ReplyLseek,
    ) {
        self.do_lseek(ctx, Ino(ino), (offset, whence), reply);
    }

    fn copy_file_range(&self, ctx: &Context<'_>, ino: u64, copy: &CopyFileRange, reply: ReplyCopy) {
        let outcome = self
            .do_copy(ctx, Ino(ino), copy)
            .inspect_err(|_| self.doubt_size(Ino(copy.ino_out), false));
        answer!(reply, outcome, (done, pages) => match pages {
            None => reply.copied(done),
            Some(pages) => self.after_drop(Ino(copy.ino_out), pages, move || reply.copied(done)),
        });
    }

    fn syncfs(&self, ctx: &Context<'_>, _ino: u64, reply: ReplyEmpty) {
        let call = self.begin(ctx);
        let outcome = zonal_native::block_on(call.sync_all());
        answer!(reply, outcome, () => reply.ok());
    }
}

/// The error code of an errno without a code of its own.
pub(crate) fn refused(errno: Errno) -> ErrorCode {
    match errno {
        Errno::OPNOTSUPP => ErrorCode::NotSupported,
        _ => ErrorCode::Invalid,
    }
}
