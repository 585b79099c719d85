//! Reading, flushing, fallocate and copies.

use crate::caller::{is_dying, is_exiting};
use crate::conversions::errno;
use crate::fs::{ZonalFs, refused};
use crate::in_flight::KernelCall;
use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use zonal_client::data::ReadInto;
use zonal_client::{File, Reserve};
use zonal_fuse::request::{CopyFileRange, Fallocate, Read, Release};
use zonal_fuse::{Context, Errno, ReplyData};
use zonal_native::block_on;
use zonal_types::{ErrorCode, Ino};

use crate::ops_open::{HANDLE_EXEC, HANDLE_READS, HANDLE_WRITES};
use crate::page_masks::{ByteRange, DirectChange};
use crate::page_tails::StalePages;
use zonal_native::ReadSink;
use zonal_native::RealNet;

/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// How often a short read is repeated because the kernel was told a longer file meanwhile.
const REREADS: u32 = 3;
/// Most bytes moved by one copy_file_range; the kernel repeats it for the rest.
const COPY_MAX: u64 = 8 << 20;
/// Whether the kernel reads into pages: a direct read names a lock owner.
fn is_for_pages(read: &Read) -> bool {
    read.lock_owner.is_none()
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ZonalFs {
    pub(crate) fn file(&self, ino: Ino) -> Result<Arc<File<RealNet>>, ErrorCode> {
        self.client.file(ino).ok_or(ErrorCode::BadHandle)
    }

    pub(crate) fn do_read(&self, ctx: &Context<'_>, ino: Ino, read: &Read, reply: ReplyData) {
        let call = self.begin(ctx);
        let file = match self.file(ino) {
            Ok(file) => file,
            Err(code) => return reply.err(errno(code)),
        };
        self.touch_if_due(&call, ino);
        self.is_opened(ino, read.fh);
        let is_paged = is_for_pages(read);
        let range = (read.offset, read.offset.saturating_add(read.size.into()));
        if is_paged && self.page_tails.read_begins(ino, range, ctx.pid) {
            self.drop_attributes(ino);
        }
        self.answer_read(&call, ino, &file, read, reply);
        if self.client.has_traffic_to_report() {
            self.signal.wake();
        }
        if is_paged {
            self.page_tails.read_ends(ino, range, ctx.pid);
        }
    }

    fn answer_read(
        &self,
        call: &KernelCall<'_>,
        ino: Ino,
        file: &File<RealNet>,
        read: &Read,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = read.size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let mut sink = ReadSink::default();
            let mut read_once = || {
                let out = &mut buffer[..size];
                block_on(call.read_into(file, read.offset, out, Some(&mut sink)))
            };
            let mut outcome = read_once();
            for _ in 0..REREADS {
                let Ok(ReadInto::Buffer(bytes)) = outcome else {
                    break;
                };
                let is_short = bytes < size && is_for_pages(read);
                if !is_short || !self.page_tails.read_short(ino, read.offset + bytes as u64) {
                    break;
                }
                outcome = block_on(call.refetch(file)).and_then(|_attr| read_once());
            }
            match outcome {
                Ok(ReadInto::Buffer(bytes)) => reply.data(&buffer[..bytes]),
                Ok(ReadInto::Sink) => {
                    if let Some(memory) = sink.take() {
                        reply.data(&memory);
                    }
                }
                Err(code) => reply.err(errno(code)),
            }
        });
    }

    /// Moves the access time at the first read after a change. A failure does not fail the read.
    fn touch_if_due(&self, call: &KernelCall<'_>, ino: Ino) {
        let due = {
            let mut due = self
                .touch_due
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            !due.is_empty() && due.remove(&ino).is_some()
        };
        if due {
            self.touch(call, ino);
        }
    }

    /// Counts opens as reads where none followed, because the kernel had the pages. The kernel must
    /// fetch the new access time.
    pub(crate) fn touch_opened(&self) {
        let opened: Vec<Ino> = {
            let due = self.touch_due.lock();
            let mut due = due.unwrap_or_else(PoisonError::into_inner);
            due.extract_if(.., |_ino, stands_for_read| *stands_for_read)
                .map(|(ino, _)| ino)
                .collect()
        };
        for ino in opened {
            self.touch(&self.client.background(), ino);
            self.drop_attributes(ino);
        }
    }

    /// Moves the access time of a file.
    fn touch(&self, call: &KernelCall<'_>, ino: Ino) {
        call.touch(ino);
        self.signal.wake();
    }

    pub(crate) fn do_flush(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        fh: u64,
        lock_owner: u64,
    ) -> Result<(), ErrorCode> {
        // The end of a process does not wait for ever: its bytes stay gathered.
        let call = match self.client.options().waits && is_exiting(ctx.pid) {
            true => self.begin_bounded(ctx),
            false => self.begin(ctx),
        };
        self.is_opened(ino, fh);
        let flushed = match self.client.file(ino) {
            Some(file) if fh & HANDLE_WRITES != 0 => {
                let mut told = self.handle_errors.of(fh);
                let flushed = block_on(call.flush_open(&file, &mut told));
                self.handle_errors.set(fh, told);
                flushed
            }
            // A handle for reading has lost nothing.
            Some(file) => block_on(call.settle(&file)),
            None => Ok(()),
        };
        let released = block_on(call.release_locks(ino, lock_owner, false, None));
        if released.is_ok() {
            self.handle_locks.forget(fh, lock_owner);
        }
        flushed.and(released)
    }

    pub(crate) fn do_fsync(&self, ctx: &Context<'_>, ino: Ino, fh: u64) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        self.is_opened(ino, fh);
        self.fsync_handle(&call, &*self.file(ino)?, fh)
    }

    /// Notes a use of the handle: at its open the kernel has dropped older pages.
    pub(crate) fn is_opened(&self, ino: Ino, fh: u64) {
        let Some(changed) = self.open_invalidations.take(fh) else {
            return;
        };
        self.page_tails.open_dropped(ino);
        if let Some(changed) = changed {
            self.client.pages_dropped(ino, changed);
        }
    }

    /// Makes a file durable and returns losses not yet reported to this handle.
    pub(crate) fn fsync_handle(
        &self,
        call: &KernelCall<'_>,
        file: &File<RealNet>,
        fh: u64,
    ) -> Result<(), ErrorCode> {
        let mut told = self.handle_errors.of(fh);
        let outcome = block_on(call.fsync_open(file, &mut told));
        self.handle_errors.set(fh, told);
        outcome
    }

    /// fsync of the mount's root makes everything durable that this mount wrote, because the kernel
    /// sends no syncfs.
    pub(crate) fn do_fsyncdir(&self, ctx: &Context<'_>, ino: Ino) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        if ino == Ino::ROOT {
            block_on(call.sync_all())
        } else {
            block_on(call.sync_directory(ino))
        }
    }

    pub(crate) fn do_release(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        release: &Release,
    ) -> Result<(), ErrorCode> {
        let call = self.begin_bounded(ctx);
        // The handle may never have been used, because its opener was killed.
        if self.open_invalidations.take(release.fh).is_some() {
            self.page_tails.open_dropped(ino);
        }
        if release.fh & HANDLE_EXEC != 0 {
            self.executables.close(ino);
        }
        if release.fh & HANDLE_WRITES != 0 {
            self.write_handles.close(ino, release.fh);
        }
        // The closing thread does not wait any more, and may be gone.
        call.is_left();
        // The open ends even if the release of locks fails.
        let unlocked = self.release_handle_locks(&call, ino, release.fh);
        self.handle_errors.close(release.fh);
        if release.fh & HANDLE_READS != 0 {
            self.page_tails.close(ino, release.fh & HANDLE_WRITES != 0);
        }
        let outcome = block_on(call.release(ino)).and(unlocked);
        self.signal.wake();
        if let Err(error) = outcome {
            // No caller is left to get the error.
            tracing::warn!(%ino, %error, "the end of an open file failed");
        }
        outcome
    }

    pub(crate) fn do_fallocate(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        change: &Fallocate,
    ) -> Result<Option<StalePages>, ErrorCode> {
        let call = self.begin(ctx);
        let keep = change.mode & KEEP_SIZE != 0;
        let how = match change.mode & !KEEP_SIZE {
            0 => Reserve::Allocate,
            PUNCH_HOLE if keep => Reserve::Punch,
            ZERO_RANGE => Reserve::Zero,
            _ => return Err(refused(Errno::OPNOTSUPP)),
        };
        let file = self.file(ino)?;
        if ctx.uid != 0 {
            // The kernel does not say whether the caller may keep set-id bits, and uses a mode that
            // may be stale.
            self.before_write(&call, ctx, &file)?;
        }
        let end = change.offset.saturating_add(change.length);
        // Allocation changes no byte.
        let from = match how {
            Reserve::Allocate => end,
            Reserve::Punch | Reserve::Zero => change.offset,
        };
        let mask = self.change_begins(ctx, ino, (from, end))?;
        let reserved = block_on(call.reserve(&file, change.offset, change.length, how, keep));
        // Its report to the shard may have failed.
        self.signal.wake();
        let grows = reserved.is_ok() && !keep;
        let stale = self.page_tails.change_ends(ino, mask, (from, end), grows);
        self.dropped_unless(ino, stale, reserved)
    }

    pub(crate) fn do_copy(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        copy: &CopyFileRange,
    ) -> Result<(u64, Option<StalePages>), ErrorCode> {
        let call = self.begin(ctx);
        let from = self.file(ino)?;
        let to = self.file(Ino(copy.ino_out))?;
        let length = copy.len.min(COPY_MAX);
        if ctx.uid != 0 {
            // As for fallocate.
            self.before_write(&call, ctx, &to)?;
        }
        let mut parts = Vec::new();
        let mut begins = |at, end| {
            let mask = self.change_begins(ctx, to.ino, (at, end))?;
            parts.push((mask, (at, end)));
            Ok(())
        };
        let copied = block_on(call.copy_range(
            (&from, copy.offset_in),
            (&to, copy.offset_out),
            length,
            &mut begins,
        ));
        self.signal.wake();
        let mut stale = None;
        for (mask, range) in parts {
            let more = self
                .page_tails
                .change_ends(to.ino, mask, range, copied.is_ok());
            if let Some(earlier) = std::mem::replace(&mut stale, more) {
                self.after_drop(to.ino, earlier, || {});
            }
        }
        let done = *copied.as_ref().unwrap_or(&0);
        let stale = self.dropped_unless(to.ino, stale, copied.map(drop))?;
        Ok((done, stale))
    }

    /// Returns the pages to drop before the answer to a change. After a failure they are dropped as
    /// soon as possible.
    pub(crate) fn dropped_unless(
        &self,
        ino: Ino,
        stale: Option<StalePages>,
        outcome: Result<(), ErrorCode>,
    ) -> Result<Option<StalePages>, ErrorCode> {
        match (outcome, stale) {
            (Ok(()), stale) => Ok(stale),
            (Err(code), None) => Err(code),
            (Err(code), Some(stale)) => {
                self.after_drop(ino, stale, || {});
                Err(code)
            }
        }
    }

    /// Begins a change of bytes that bypasses the pages.
    pub(crate) fn change_begins(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        range: ByteRange,
    ) -> Result<DirectChange, ErrorCode> {
        let begun = self
            .page_tails
            .change_begins(ino, range, || is_dying(ctx.pid));
        begun.ok_or(ErrorCode::Interrupted)
    }
}
