//! Directory listings, with or without attributes.

use crate::attribute_hints::EventMark;
use crate::caller::credentials;
use crate::conversions::{errno, kernel_entry};
use crate::fs::ZonalFs;
use crate::in_flight::KernelCall;
use std::sync::atomic::Ordering;
use zonal_client::names::FoundEntry;
use zonal_client::names::ListingPage;
use zonal_fuse::ReplyDirectory;
use zonal_fuse::{
    Context, DirBuffer, FuseEntry as KernelEntry, FuseFileKind as KernelKind, OpenFlags,
};
use zonal_native::block_on;
use zonal_types::{Credentials, ErrorCode, FileKind, Ino};
use zonal_wire::DirEntry;
use zonal_wire::meta::flags::R_OK;

/// Cookies of `.` and `..`; the shard's are above.
const DOT: u64 = 1;
/// Cookie of `..`.
const DOT_DOT: u64 = 2;

impl ZonalFs {
    /// Opens a directory. The superuser may read any directory, so no check is needed where this
    /// mount may act for it.
    ///
    /// Only the sole handle of a directory fills the kernel's kept listing: of two concurrent
    /// listings the kernel would mix the pages.
    pub(crate) fn do_opendir(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
    ) -> Result<(u64, OpenFlags), ErrorCode> {
        let call = self.begin(ctx);
        if ctx.uid != 0 || !self.client.options().lists_as_root {
            block_on(call.access(&credentials(ctx), ino, R_OK))?;
        }
        let number = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let fills = self.directories.open(ino) && self.client.caches();
        let flags = match (fills, self.client.keeps_listing(ino)) {
            (true, true) => OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE,
            (true, false) => OpenFlags::CACHE_DIR,
            (false, _) => OpenFlags::NONE,
        };
        let fh = number << 1 | u64::from(fills);
        if ino == Ino::ROOT {
            self.root_listings.open(fh, ctx.pid);
        }
        Ok((fh, flags))
    }

    pub(crate) fn do_readdir(
        &self,
        ctx: &Context<'_>,
        dir: Ino,
        read: &zonal_fuse::request::Read,
        plus: bool,
        reply: ReplyDirectory,
    ) {
        let call = self.begin(ctx);
        let mut buffer = reply.buffer();
        if read.offset == 0 {
            // A listing from the start, or rewound: its earlier end is void.
            self.directories.forget_end(read.fh);
        }
        let outcome = if self.directories.is_at_end(read.fh, read.offset) {
            Ok(())
        } else {
            self.fill(&call, ctx, dir, read, plus, &mut buffer)
        };
        match outcome {
            Ok(()) => {
                if plus {
                    self.listings.note();
                }
                reply.entries(&buffer);
            }
            Err(code) => reply.err(errno(code)),
        }
    }

    fn fill(
        &self,
        call: &KernelCall<'_>,
        ctx: &Context<'_>,
        dir: Ino,
        read: &zonal_fuse::request::Read,
        plus: bool,
        buffer: &mut DirBuffer,
    ) -> Result<(), ErrorCode> {
        let (offset, size) = (read.offset, read.size);
        if !self.fill_dots(call, dir, offset, plus, buffer)? {
            return Ok(());
        }
        let mark = self.hints.mark();
        // An entry takes 24 bytes and its name, 128 more with attributes.
        let entries = (size / if plus { 160 } else { 32 }).clamp(1, 4096);
        let cookie = if offset <= DOT_DOT { 0 } else { offset };
        let client = &self.client;
        let fills = read.fh & 1 == 1;
        // The handle has the right to list: it was checked at the open, and may be gone since.
        // Where this mount may not act for root, the shard checks again.
        let who = match client.options().lists_as_root {
            true => Credentials::root(),
            false => credentials(ctx),
        };
        let part = ListingPage {
            is_kept: fills,
            ..ListingPage::new(cookie, entries, plus)
        };
        let (entries, end) = block_on(call.readdir(&who, dir, part))?;
        if fills && cookie == 0 {
            self.listings.keep(dir, client.listing_left_ms(dir));
        }
        let last = entries
            .last()
            .map_or(offset.max(DOT_DOT), |item| item.cookie);
        for item in entries {
            if plus && item.entry.kind == FileKind::Directory {
                self.directories.note_parent(item.entry.ino, dir);
            }
            let fits = match plus {
                true => self.add_with_attributes(mark, dir, &item, buffer),
                false => {
                    let kind = KernelKind::from_mode(item.entry.kind.mode_bits());
                    buffer.add(item.entry.ino.0, item.cookie, kind, item.name.as_bytes())
                }
            };
            if !fits {
                return Ok(());
            }
        }
        if end {
            self.directories.note_end(read.fh, last);
        }
        Ok(())
    }

    /// Adds `.` and `..` where the listing begins before them; false where the buffer is full.
    fn fill_dots(
        &self,
        call: &KernelCall<'_>,
        dir: Ino,
        offset: u64,
        plus: bool,
        buffer: &mut DirBuffer,
    ) -> Result<bool, ErrorCode> {
        let directory = KernelKind::from_mode(FileKind::Directory.mode_bits());
        let mut dot = |ino: Ino, cookie: u64, text: &[u8]| {
            if plus {
                buffer.add_plus(&KernelEntry::default(), ino.0, cookie, directory, text)
            } else {
                buffer.add(ino.0, cookie, directory, text)
            }
        };
        if offset < DOT && !dot(dir, DOT, b".") {
            return Ok(false);
        }
        if offset < DOT_DOT {
            let above = match self.directories.parent(dir) {
                Some(above) => above,
                None => block_on(call.parent(dir))?,
            };
            return Ok(dot(above, DOT_DOT, b".."));
        }
        Ok(true)
    }

    /// Adds an entry with its attributes, where the kernel may have them; false where the buffer is
    /// full.
    fn add_with_attributes(
        &self,
        mark: EventMark,
        dir: Ino,
        item: &DirEntry,
        buffer: &mut DirBuffer,
    ) -> bool {
        let kind = KernelKind::from_mode(item.entry.kind.mode_bits());
        let (name, cookie) = (item.name.as_bytes(), item.cookie);
        match item.entry.attr {
            // Its size must wait for pages to be dropped: the kernel asks when it needs the
            // attributes.
            Some(attr) if !self.may_show(&attr) => {
                buffer.add_plus(&KernelEntry::default(), attr.ino.0, cookie, kind, name)
            }
            Some(mut attr) => {
                self.space(&mut attr);
                let entry_ms = self.note_name(mark, (dir, name), item.entry.entry_ms, false);
                let attr_ms = self.hints.note_new(mark, dir, &attr, item.entry.attr_ms);
                let found = FoundEntry {
                    attr,
                    entry_ms,
                    attr_ms,
                };
                buffer.add_plus(&kernel_entry(&found), attr.ino.0, cookie, kind, name)
            }
            // Listed without attributes: the kernel takes only the inode number.
            None => {
                let ino = item.entry.ino.0;
                buffer.add_plus(&KernelEntry::default(), ino, cookie, kind, name)
            }
        }
    }
}
