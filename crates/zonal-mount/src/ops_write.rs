//! Writing: bypassing the kernel's pages, through them, and writeback of mappings.
//!
//! Pages under a bypassing write are dropped before it is answered, so that the next reader sees
//! it. The kernel drops the pages itself when it sends the write, which is too early where another
//! process reads them meanwhile. For an asynchronous direct write (io_uring, libaio) it does so
//! only then.

use crate::caller::credentials;
use crate::fs::ZonalFs;
use crate::in_flight::KernelCall;
use crate::ops_open::{HANDLE_APPEND, HANDLE_PAGES, HANDLE_SYNC, O_DSYNC};
use crate::page_tails::StalePages;
use std::time::Duration;
use zonal_basics::to_usize;
use zonal_client::{File, Run};
use zonal_fuse::request::Write;
use zonal_fuse::{Context, WriteData};
use zonal_native::RealNet;
use zonal_native::block_on;
use zonal_types::limits::REGION_PAYLOAD_MIN;
use zonal_types::{ErrorCode, Ino};

/// Writes of at least this length keep their memory, without a copy. As it is half of the longest
/// write, gathered bytes take at most about twice their number of memory.
pub const KEEP_MIN: usize = 512 << 10;
/// How long a write through a page waits for its drop. The kernel holds a page locked that it has
/// not filled before; then nobody has it mapped or reads it.
const OWN_PAGE: Duration = Duration::from_millis(20);

/// Pages that the kernel must drop because of a write.
pub(crate) enum PagesToDrop {
    Nothing,
    /// Before the answer.
    Before(StalePages),
    /// After the answer: until then the kernel may hold them locked.
    After(StalePages),
}

/// Whether a write bypasses the kernel's pages, by its handle or by O_DIRECT. (Only the kernel's
/// direct writes name a lock owner.)
fn goes_round(write: &Write) -> bool {
    let is_direct = write.fh & HANDLE_PAGES == 0 || write.lock_owner.is_some();
    is_direct && !write.from_cache
}

fn end_of(write: &Write) -> u64 {
    write.offset.saturating_add(write.size.into())
}

impl ZonalFs {
    /// Writes; returns the bytes written, and the pages to drop.
    pub(crate) fn do_write(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        write: &Write,
        data: WriteData<'_>,
    ) -> Result<(u32, PagesToDrop), ErrorCode> {
        let call = match write.from_cache {
            true => self.begin_write_back(ctx),
            false => self.begin(ctx),
        };
        let file = self.file(ino)?;
        self.is_opened(ino, write.fh);
        if write.kill_suidgid {
            self.before_write(&call, ctx, &file)?;
        }
        // Last: a request to the shard may find that a lock is lost.
        let mut told = self.handle_errors.of(write.fh);
        let lost = file.tell_writer(&mut told);
        self.handle_errors.set(write.fh, told);
        lost?;
        let written = if write.from_cache {
            self.write_back(&call, &file, write, data)
        } else if goes_round(write) {
            self.write_round(&call, ctx, &file, write, data)
        } else {
            self.write_pages(&call, ctx, &file, write, data)
        };
        // Also where it failed: its bytes stay gathered, and housekeeping sends them again.
        self.signal.wake();
        Ok((write.size, written?))
    }

    /// Writes pages that a mapping has changed, except bytes changed by bypassing writes since the
    /// pages were filled.
    fn write_back(
        &self,
        call: &KernelCall<'_>,
        file: &File<RealNet>,
        write: &Write,
        data: WriteData<'_>,
    ) -> Result<PagesToDrop, ErrorCode> {
        let (from, to) = (write.offset, end_of(write));
        let (number, left) = self.page_tails.write_back_begins(file.ino, from, to);
        let written = if left == [(from, to)] {
            self.write_at(call, file, write, data)
        } else {
            left.iter().try_for_each(|&(at, end)| {
                let part = to_usize(at - from)..to_usize(end - from);
                let part = data.bytes().get(part).unwrap_or_default();
                block_on(call.write(file, at, part, write.kill_suidgid))
            })
        };
        self.page_tails.write_back_ends(file.ino, number);
        written?;
        self.sync_written(call, file, write, false)?;
        Ok(self.crossed(file.ino, from, to))
    }

    fn write_pages(
        &self,
        call: &KernelCall<'_>,
        ctx: &Context<'_>,
        file: &File<RealNet>,
        write: &Write,
        data: WriteData<'_>,
    ) -> Result<PagesToDrop, ErrorCode> {
        let (ino, from, to) = (file.ino, write.offset, end_of(write));
        let (gap, asks) = self.page_tails.page_write(ino, from, to);
        if asks {
            self.drop_attributes(ino);
        }
        #[cfg(debug_assertions)]
        crate::write_delay::delay();
        let written = self
            .write_at(call, file, write, data)
            .and_then(|()| self.sync_written(call, file, write, false));
        let stale = gap.and_then(|(mask, range)| self.page_tails.behind_ends(ino, mask, range));
        let stale = self.dropped_unless(ino, stale, written)?;
        let crossed = self.page_tails.page_written(ino, (from, to), ctx.pid);
        if let Some(stale) = stale {
            // The page at the old end: its bytes up to this write are zeros now.
            if stale.to <= from - from % 4096 && crossed.is_none() {
                return Ok(PagesToDrop::Before(stale));
            }
            self.drop_range_within(ino, stale, OWN_PAGE);
        }
        Ok(crossed.map_or(PagesToDrop::Nothing, |pages| self.drop_crossed(ino, pages)))
    }

    /// Drops pages that a read may have filled without this write, before its answer. Where that
    /// takes too long, no open may use them until it is done.
    fn drop_crossed(&self, ino: Ino, pages: StalePages) -> PagesToDrop {
        let is_dropped = self.drop_range_within(ino, pages, OWN_PAGE);
        if !is_dropped {
            self.client.doubt_pages(ino);
        }
        self.page_tails.page_write_ends(ino);
        match is_dropped {
            true => PagesToDrop::Nothing,
            false => PagesToDrop::After(pages),
        }
    }

    fn crossed(&self, ino: Ino, from: u64, to: u64) -> PagesToDrop {
        let crossed = self.page_tails.crossed(ino, from, to);
        crossed.map_or(PagesToDrop::Nothing, PagesToDrop::After)
    }

    fn write_round(
        &self,
        call: &KernelCall<'_>,
        ctx: &Context<'_>,
        file: &File<RealNet>,
        write: &Write,
        data: WriteData<'_>,
    ) -> Result<PagesToDrop, ErrorCode> {
        let (ino, appends) = (file.ino, write.fh & HANDLE_APPEND != 0);
        // The offset of an append is not known yet. It lies behind the end, where the kernel writes
        // no page.
        let known = match appends {
            true => (0, 0),
            false => (write.offset, end_of(write)),
        };
        let mask = self.change_begins(ctx, ino, known)?;
        let written = match appends {
            true => self.append(call, file, write, data),
            false => self
                .write_at(call, file, write, data)
                .map(|()| write.offset),
        };
        let synced = written.and_then(|_at| self.sync_written(call, file, write, true));
        let range = match written {
            Ok(at) => (at, at + u64::from(write.size)),
            Err(_) => known,
        };
        let stale = self
            .page_tails
            .change_ends(ino, mask, range, written.is_ok());
        let stale = self.dropped_unless(ino, stale, synced)?;
        Ok(stale.map_or(PagesToDrop::Nothing, PagesToDrop::Before))
    }

    /// Makes a write durable where its flags demand it and the kernel sends no fsync itself.
    fn sync_written(
        &self,
        call: &KernelCall<'_>,
        file: &File<RealNet>,
        write: &Write,
        is_direct: bool,
    ) -> Result<(), ErrorCode> {
        if write.fh & HANDLE_SYNC != 0 || is_direct && write.flags & O_DSYNC != 0 {
            self.fsync_handle(call, file, write.fh)
        } else {
            Ok(())
        }
    }

    fn write_at(
        &self,
        call: &KernelCall<'_>,
        file: &File<RealNet>,
        write: &Write,
        data: WriteData<'_>,
    ) -> Result<(), ErrorCode> {
        let kill = write.kill_suidgid;
        if data.bytes().len() < KEEP_MIN {
            return block_on(call.write(file, write.offset, data.bytes(), kill));
        }
        let other = self.client.net().pool().memory(data.memory_len());
        let (memory, range) = data.take(other);
        let run = Run::new(Box::new(memory), range);
        block_on(call.write_run(file, write.offset, run, kill))
    }

    /// Appends; returns the offset.
    fn append(
        &self,
        call: &KernelCall<'_>,
        file: &File<RealNet>,
        write: &Write,
        data: WriteData<'_>,
    ) -> Result<u64, ErrorCode> {
        let kill = write.kill_suidgid;
        let append = |bytes| block_on(call.append(file, bytes, kill));
        // Durable writes are not gathered.
        let is_synced = write.fh & HANDLE_SYNC != 0 || write.flags & O_DSYNC != 0;
        let appended = if data.bytes().len() < REGION_PAYLOAD_MIN && !is_synced {
            block_on(call.append_gathered(file, data.bytes(), kill))
        } else if data.bytes().len() < REGION_PAYLOAD_MIN {
            append(data.bytes())
        } else {
            // In memory of its own: after a cancellation a target may still take bytes from there,
            // and they must not be another request's.
            let other = self.client.net().pool().memory(data.memory_len());
            let (memory, range) = data.take(other);
            append(memory.get(range).unwrap_or_default())
        };
        // The shard must hear of an abandoned append.
        let at = appended.inspect_err(|_| self.signal.wake())?;
        if at != write.offset
            && let Some(notifier) = self.notifier.get()
        {
            // The kernel dropped the pages at its guess of the offset; drop those at the true one.
            self.signal.later(notifier, file.ino.0);
        }
        Ok(at)
    }

    /// Clears set-id bits and capabilities, also in the kernel, before a write by a user without
    /// the right to keep them.
    pub(crate) fn before_write(
        &self,
        call: &KernelCall<'_>,
        ctx: &Context<'_>,
        file: &File<RealNet>,
    ) -> Result<(), ErrorCode> {
        if self.client.has_no_privileges(file) {
            return Ok(());
        }
        self.take_privileges(call, ctx, file)
    }

    /// As [`Self::before_write`], where there may be some.
    pub(crate) fn take_privileges(
        &self,
        call: &KernelCall<'_>,
        ctx: &Context<'_>,
        file: &File<RealNet>,
    ) -> Result<(), ErrorCode> {
        if block_on(call.take_privileges(&credentials(ctx), file))? {
            self.hints.forget(&[file.ino]);
            self.drop_attributes(file.ino);
        }
        Ok(())
    }
}
