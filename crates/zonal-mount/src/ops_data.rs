//! Reading, writing, flushing, sizes.

use crate::block::block_on;
use crate::caller::credentials;
use crate::convert::errno;
use crate::fs::{ZonalFs, refused};
use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use zonal_client::Net as _;
use zonal_client::read::ReadInto;
use zonal_client::{File, Reserve, Run};
use zonal_fuse::request::{CopyFileRange, Fallocate, Read, Release, Write};
use zonal_fuse::{Context, Data, Errno, ReplyData};
use zonal_types::limits::REGION_PAYLOAD_MIN;
use zonal_types::{ErrorCode, Ino};

use crate::ops_open::{
    HANDLE_APPEND, HANDLE_EXEC, HANDLE_PAGES, HANDLE_SYNC, HANDLE_WRITES, O_DSYNC,
};
use crate::sink::Sink;
use crate::tails::Stale;
use crate::wire::RealNet;

/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;
/// Whence of lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;
/// How often a read that ended short is done again because a longer file was told meanwhile.
const REREADS: u32 = 3;
/// Bytes that one copy_file_range moves at most: the kernel asks again.
const COPY_MAX: u64 = 8 << 20;
/// Writes from here on are kept in the memory they came in, without a copy. That is as long as the longest write: gathered bytes
/// never take more than about twice their number of memory.
pub const KEEP_MIN: usize = 512 << 10;

/// Pages that the kernel has to drop because of a write.
pub(crate) enum ToDrop {
    Nothing,
    /// Before it hears of it.
    Before(Stale),
    /// When it has: until then it may hold them locked.
    After(Stale),
}

/// Whether a write goes round the kernel's pages: by its handle, or by O_DIRECT, where only the kernel's direct writes name a lock owner.
fn goes_round(write: &Write) -> bool {
    let is_direct = write.fh & HANDLE_PAGES == 0 || write.lock_owner.is_some();
    is_direct && !write.from_cache
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl ZonalFs {
    pub(crate) fn file(&self, ino: Ino) -> Result<Arc<File<RealNet>>, ErrorCode> {
        self.client.file(ino).ok_or(ErrorCode::BadHandle)
    }

    pub(crate) fn do_read(&self, ctx: &Context<'_>, ino: Ino, read: &Read, reply: ReplyData) {
        self.begin(ctx);
        let file = match self.file(ino) {
            Ok(file) => file,
            Err(code) => return reply.err(errno(code)),
        };
        self.touch_if_due(ino);
        let is_paged = read.fh & HANDLE_PAGES != 0;
        let end = read.offset.saturating_add(read.size.into());
        if is_paged {
            self.tails.read_begins(ino, read.offset, end);
        }
        self.answer_read(ino, &file, read, reply);
        if is_paged {
            self.tails.read_ends(ino, read.offset, end);
        }
    }

    fn answer_read(&self, ino: Ino, file: &File<RealNet>, read: &Read, reply: ReplyData) {
        BUFFER.with_borrow_mut(|buffer| {
            let size = read.size as usize;
            if buffer.len() < size {
                buffer.resize(size, 0);
            }
            let mut sink = Sink::default();
            let mut read_once = || {
                let out = &mut buffer[..size];
                block_on(
                    self.client
                        .read_into(file, read.offset, out, Some(&mut sink)),
                )
            };
            let mut outcome = read_once();
            for _ in 0..REREADS {
                let Ok(ReadInto::Buffer(bytes)) = outcome else {
                    break;
                };
                let is_short = bytes < size && read.fh & HANDLE_PAGES != 0;
                if !is_short || !self.tails.read_short(ino, read.offset + bytes as u64) {
                    break;
                }
                outcome = block_on(self.client.refetch(file)).and_then(|_attr| read_once());
            }
            match outcome {
                Ok(ReadInto::Buffer(bytes)) => reply.data(&buffer[..bytes]),
                Ok(ReadInto::Sink) => sink.answer(reply),
                Err(code) => reply.err(errno(code)),
            }
        });
    }

    /// The first read after a change moves the access time. A failure of that is no reason to fail the read.
    fn touch_if_due(&self, ino: Ino) {
        let due = {
            let mut due = self
                .touch_due
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            !due.is_empty() && due.remove(&ino).is_some()
        };
        if due {
            self.touch(ino);
        }
    }

    /// Opens that stand for reads: none came meanwhile, so the kernel had the pages. It is to ask for the time, too.
    pub(crate) fn touch_opened(&self) {
        let opened: Vec<Ino> = {
            let due = self.touch_due.lock();
            let mut due = due.unwrap_or_else(PoisonError::into_inner);
            due.extract_if(.., |_ino, stands_for_read| *stands_for_read)
                .map(|(ino, _)| ino)
                .collect()
        };
        for ino in opened {
            self.client.net().begin();
            self.touch(ino);
            self.drop_attributes(ino);
        }
    }

    /// A file is read now.
    fn touch(&self, ino: Ino) {
        if let Err(error) = block_on(self.client.touch(ino)) {
            tracing::debug!(%ino, %error, "access time not updated");
        }
        self.signal.wake();
    }

    /// Writes; returns the bytes written, and the pages that have to be dropped.
    pub(crate) fn do_write(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        write: &Write,
        data: Data<'_>,
    ) -> Result<(u32, ToDrop), ErrorCode> {
        self.begin(ctx);
        let is_direct = goes_round(write);
        let file = self.file(ino)?;
        file.tell_writer(self.told.of(write.fh))?;
        if write.kill_suidgid {
            self.before_write(ctx, &file)?;
        }
        let mut offset = write.offset;
        if write.fh & HANDLE_APPEND != 0 && !write.from_cache {
            let append = |bytes| block_on(self.client.append(&file, bytes, write.kill_suidgid));
            let appended = if data.bytes().len() < REGION_PAYLOAD_MIN {
                append(data.bytes())
            } else {
                // Out of the worker's hands: where this is given up, a target may still take bytes from there, and they must not be
                // another request's.
                let other = self.client.net().pool().memory(data.memory_len());
                let (memory, range) = data.take(other);
                append(memory.get(range).unwrap_or_default())
            };
            // Where it was given up the shard must hear of that.
            let at = appended.inspect_err(|_| self.signal.wake())?;
            offset = at;
            if at != write.offset
                && let Some(notifier) = self.notifier.get()
            {
                // The kernel dropped the pages where it thought the data goes; drop those where it went.
                self.signal.later(notifier, ino.0);
            }
        } else if data.bytes().len() >= KEEP_MIN {
            let other = self.client.net().pool().memory(data.memory_len());
            let (memory, range) = data.take(other);
            let run = Run::new(Box::new(memory), range);
            block_on(
                self.client
                    .write_run(&file, write.offset, run, write.kill_suidgid),
            )?;
        } else {
            block_on(
                self.client
                    .write(&file, write.offset, data.bytes(), write.kill_suidgid),
            )?;
        }
        let is_sync = is_direct && write.flags & O_DSYNC != 0;
        if write.fh & HANDLE_SYNC != 0 || is_sync {
            self.fsync_handle(&file, write.fh)?;
        }
        self.signal.wake();
        let size = write.size;
        let end = offset + u64::from(size);
        let drop = if write.fh & HANDLE_PAGES == 0 && !write.from_cache {
            self.tails.wrote(ino, offset, end).map(ToDrop::Before)
        } else {
            self.tails.crossed(ino, offset, end).map(ToDrop::After)
        };
        Ok((size, drop.unwrap_or(ToDrop::Nothing)))
    }

    /// Before a write by one who has no right to keep set-id bits and capabilities: they are gone, also for the kernel.
    fn before_write(&self, ctx: &Context<'_>, file: &File<RealNet>) -> Result<(), ErrorCode> {
        if self.client.has_no_privileges(file) {
            return Ok(());
        }
        self.take_privileges(ctx, file)
    }

    /// The same where there are some, perhaps.
    pub(crate) fn take_privileges(
        &self,
        ctx: &Context<'_>,
        file: &File<RealNet>,
    ) -> Result<(), ErrorCode> {
        if block_on(self.client.take_privileges(&credentials(ctx), file))? {
            self.hints.forget(&[file.ino]);
            self.drop_attributes(file.ino);
        }
        Ok(())
    }

    pub(crate) fn do_flush(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        fh: u64,
        lock_owner: u64,
    ) -> Result<(), ErrorCode> {
        self.begin(ctx);
        let flushed = match self.client.file(ino) {
            Some(file) if fh & HANDLE_WRITES != 0 => {
                block_on(self.client.flush_open(&file, self.told.of(fh)))
            }
            // Whoever only read lost nothing.
            Some(file) => block_on(self.client.settle(&file)),
            None => Ok(()),
        };
        let released = block_on(self.client.release_locks(ino, lock_owner, false, None));
        if released.is_ok() {
            self.handle_locks.forget(fh, lock_owner);
        }
        flushed.and(released)
    }

    pub(crate) fn do_fsync(&self, ctx: &Context<'_>, ino: Ino, fh: u64) -> Result<(), ErrorCode> {
        self.begin(ctx);
        self.fsync_handle(&*self.file(ino)?, fh)
    }

    /// Makes a file durable, and tells this handle what was lost since it was told last.
    fn fsync_handle(&self, file: &File<RealNet>, fh: u64) -> Result<(), ErrorCode> {
        let mut told = self.told.of(fh);
        let outcome = block_on(self.client.fsync_open(file, &mut told));
        self.told.set(fh, told);
        outcome
    }

    /// fsync of the mount's root makes everything durable that this mount wrote: syncfs never arrives here.
    pub(crate) fn do_fsyncdir(&self, ctx: &Context<'_>, ino: Ino) -> Result<(), ErrorCode> {
        self.begin(ctx);
        if ino == Ino::ROOT {
            block_on(self.client.sync_all())
        } else {
            block_on(self.client.sync_directory(ino))
        }
    }

    pub(crate) fn do_release(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        release: &Release,
    ) -> Result<(), ErrorCode> {
        self.begin(ctx);
        if release.fh & HANDLE_EXEC != 0 {
            self.executed.close(ino);
        }
        if release.fh & HANDLE_WRITES != 0 {
            self.writers.close(ino, release.fh);
        }
        // Whoever closed it waits no more, and may be gone.
        self.callers.note(ctx.unique, 0);
        // The open ends, whatever becomes of the locks.
        let unlocked = self.release_handle_locks(ino, release.fh);
        self.told.close(release.fh);
        if release.fh & HANDLE_PAGES != 0 {
            self.tails.close(ino);
        }
        let outcome = block_on(self.client.release(ino)).and(unlocked);
        self.signal.wake();
        if let Err(error) = outcome {
            // There is nobody left to be told.
            tracing::warn!(%ino, %error, "the end of an open file failed");
        }
        outcome
    }

    pub(crate) fn do_fallocate(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        change: &Fallocate,
    ) -> Result<(), ErrorCode> {
        self.begin(ctx);
        let keep = change.mode & KEEP_SIZE != 0;
        let how = match change.mode & !KEEP_SIZE {
            0 => Reserve::Allocate,
            PUNCH_HOLE if keep => Reserve::Punch,
            ZERO_RANGE => Reserve::Zero,
            _ => return Err(refused(Errno::OPNOTSUPP)),
        };
        let file = self.file(ino)?;
        if ctx.uid != 0 {
            // The kernel does not say who has no right to keep set-id bits, and goes by a mode that it may have from before.
            self.before_write(ctx, &file)?;
        }
        block_on(
            self.client
                .reserve(&file, change.offset, change.length, how, keep),
        )
    }

    pub(crate) fn do_lseek(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        offset: u64,
        whence: u32,
    ) -> Result<u64, ErrorCode> {
        self.begin(ctx);
        let file = self.file(ino)?;
        match whence {
            SEEK_DATA | SEEK_HOLE => block_on(self.client.seek(&file, offset, whence == SEEK_DATA)),
            _ => Err(ErrorCode::Invalid),
        }
    }

    pub(crate) fn do_copy(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        copy: &CopyFileRange,
    ) -> Result<u64, ErrorCode> {
        self.begin(ctx);
        let from = self.file(ino)?;
        let to = self.file(Ino(copy.ino_out))?;
        let length = copy.len.min(COPY_MAX);
        if ctx.uid != 0 {
            // As for fallocate.
            self.before_write(ctx, &to)?;
        }
        let done =
            block_on(
                self.client
                    .copy_range(&from, copy.offset_in, &to, copy.offset_out, length),
            )?;
        self.signal.wake();
        Ok(done)
    }
}
