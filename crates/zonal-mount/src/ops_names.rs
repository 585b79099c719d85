//! Names and attributes.

use crate::attribute_hints::EventMark;
use crate::caller::credentials;
use crate::conversions::{errno, kernel_attr, kernel_entry, kernel_time, name, set_time, valid};
use crate::fs::ZonalFs;
use crate::in_flight::KernelCall;
use zonal_client::data::Capacity;
use zonal_client::names::{FoundEntry, LookupResult, NewFile};
use zonal_fuse::Context;
use zonal_fuse::request::{Mknod, Rename};
use zonal_fuse::{ReplyAttr, ReplyEntry, ReplyStatx, SetAttr, StatFs, StatxReply};
use zonal_native::block_on;
use zonal_types::{Attr, Blob, Credentials, ErrorCode, FileKind, Ino, ZoneId};
use zonal_wire::meta::flags::RENAME_EXCHANGE;
use zonal_wire::{AttrChange, NewKind};

impl ZonalFs {
    /// Answers an entry. `mark`: from before the request.
    pub(crate) fn answer_entry(
        &self,
        mark: EventMark,
        (parent, bytes): (Ino, &[u8]),
        reply: ReplyEntry,
        outcome: Result<FoundEntry, ErrorCode>,
    ) {
        match outcome {
            Ok(mut found) => {
                let attr = &found.attr;
                found.attr_ms = self.hints.note_new(mark, parent, attr, found.attr_ms);
                found.entry_ms = self.note_name(mark, (parent, bytes), found.entry_ms, false);
                self.reply_entry(reply, found);
            }
            Err(code) => reply.err(errno(code)),
        }
    }

    /// How long the kernel may trust a name in an answer about to be sent, ms. `mark`: from before
    /// the request.
    pub(crate) fn note_name(
        &self,
        mark: EventMark,
        (dir, bytes): (Ino, &[u8]),
        ms: u32,
        is_look_up: bool,
    ) -> u32 {
        let ms = self.names.note(dir, bytes, ms, is_look_up);
        // In this order: invariant 2 of the table.
        if ms > 0 && self.hints.is_named_since(mark, dir) {
            return 0;
        }
        ms
    }

    /// Whether the kernel may get a size at once. Where not, the answer omits the attributes.
    pub(crate) fn may_show(&self, attr: &Attr) -> bool {
        !self.page_tails.holds_back(attr.ino, attr.size)
    }

    /// Adds space that only the kernel may know of.
    pub(crate) fn space(&self, attr: &mut Attr) {
        attr.allocated = self.page_tails.space(attr.ino, attr.size, attr.allocated);
    }

    fn reply_entry(&self, reply: ReplyEntry, mut found: FoundEntry) {
        self.space(&mut found.attr);
        self.after_size(found.attr.ino, found.attr.size, move || {
            reply.entry(&kernel_entry(&found));
        });
    }

    pub(crate) fn do_lookup(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
        reply: ReplyEntry,
    ) {
        let call = self.begin_stat(ctx, || Some(parent));
        let mark = self.hints.mark();
        let looked = match bytes {
            b"." => block_on(call.getattr(parent)).map(found_now),
            b".." => block_on(async {
                let above = call.parent(parent).await?;
                call.getattr(above).await
            })
            .map(found_now),
            _ => {
                name(bytes).and_then(|name| block_on(call.lookup(&credentials(ctx), parent, name)))
            }
        };
        match looked {
            Ok(LookupResult::Found(mut found)) => {
                let attr = &found.attr;
                if bytes == b"." || bytes == b".." {
                    found.attr_ms = self.hints.note(mark, attr, found.attr_ms);
                } else {
                    found.attr_ms = self.hints.note_new(mark, parent, attr, found.attr_ms);
                    found.entry_ms = self.note_name(mark, (parent, bytes), found.entry_ms, true);
                    if attr.kind == FileKind::Directory {
                        self.directories.note_parent(attr.ino, parent);
                    }
                }
                self.reply_entry(reply, found);
            }
            Ok(LookupResult::Absent(ms)) => match self.note_name(mark, (parent, bytes), ms, true) {
                0 => reply.err(errno(ErrorCode::NotFound)),
                ms => reply.negative(valid(ms)),
            },
            Err(code) => reply.err(errno(code)),
        }
    }

    pub(crate) fn do_getattr(&self, ctx: &Context<'_>, ino: Ino, reply: ReplyAttr) {
        let call = self.begin_stat(ctx, || self.directories.parent(ino));
        let mark = self.hints.mark();
        match block_on(call.stat(ino)) {
            Ok((mut attr, ms)) => {
                self.space(&mut attr);
                let ms = self.hints.note(mark, &attr, ms);
                self.after_size(ino, attr.size, move || {
                    reply.attr(&kernel_attr(&attr), valid(ms));
                });
            }
            Err(code) => reply.err(errno(code)),
        }
    }

    pub(crate) fn do_statx(&self, ctx: &Context<'_>, ino: Ino, reply: ReplyStatx) {
        let call = self.begin_stat(ctx, || self.directories.parent(ino));
        match block_on(call.stat(ino)) {
            Ok((mut attr, ms)) => {
                self.space(&mut attr);
                let ms = self.hints.note_term(ino, ms);
                let answer = StatxReply {
                    attr: kernel_attr(&attr),
                    btime: Some(kernel_time(attr.btime)),
                    attributes: 0,
                    attributes_mask: 0,
                    attr_valid: valid(ms),
                };
                self.after_size(ino, attr.size, move || reply.statx(&answer));
            }
            Err(code) => reply.err(errno(code)),
        }
    }

    pub(crate) fn do_setattr(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        set: &SetAttr,
    ) -> Result<(Attr, u32), ErrorCode> {
        let call = self.begin(ctx);
        let _changing = self.expiries.change(ino);
        let who = credentials(ctx);
        let mut attr = None;
        if let Some(size) = set.size {
            let by_handle = set.fh.is_some();
            let done = block_on(call.truncate(&who, ino, size, by_handle, set.kill_suidgid));
            // Bytes from before it may be gathered again.
            self.signal.wake();
            let done = done.inspect_err(|_| self.doubt_size(ino, false))?;
            attr = Some((done, 0));
        }
        let change = AttrChange {
            mode: set.mode.map(|mode| mode & 0o7777),
            uid: set.uid,
            gid: set.gid,
            atime: set.atime.map(set_time),
            mtime: set.mtime.map(set_time),
            ctime: None,
        };
        match attr {
            Some(done) if change == AttrChange::default() => Ok(done),
            _ => match block_on(call.setattr(&who, ino, change)) {
                Err(ErrorCode::NotPermitted)
                    if change == AttrChange::default() && self.write_handles.has(ino, ctx.uid) =>
                {
                    // The handle was opened when its user was allowed to write.
                    self.take_privileges(&call, ctx, &*self.file(ino)?)?;
                    block_on(call.getattr(ino))
                }
                done => done,
            },
        }
    }

    pub(crate) fn do_symlink(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
        target: &[u8],
    ) -> Result<FoundEntry, ErrorCode> {
        let kind = NewKind::Symlink {
            text: Blob(target.to_vec()),
        };
        self.make(
            ctx,
            parent,
            bytes,
            NewFile {
                kind,
                mode: 0o777,
                umask: 0,
            },
        )
    }

    pub(crate) fn do_mknod(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
        node: &Mknod,
    ) -> Result<FoundEntry, ErrorCode> {
        let kind = match FileKind::from_mode(node.mode) {
            None | Some(FileKind::File) => NewKind::File,
            Some(FileKind::Fifo) => NewKind::Fifo,
            Some(FileKind::Socket) => NewKind::Socket,
            Some(FileKind::CharDevice) => NewKind::CharDevice { rdev: node.rdev },
            Some(FileKind::BlockDevice) => NewKind::BlockDevice { rdev: node.rdev },
            Some(FileKind::Directory | FileKind::Symlink) => return Err(ErrorCode::Invalid),
        };
        self.make(
            ctx,
            parent,
            bytes,
            NewFile {
                kind,
                mode: node.mode & 0o7777,
                umask: node.umask,
            },
        )
    }

    fn make(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
        new: NewFile,
    ) -> Result<FoundEntry, ErrorCode> {
        let call = self.begin(ctx);
        block_on(call.make(&credentials(ctx), parent, name(bytes)?, new))
    }

    pub(crate) fn do_mkdir(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
        (mode, umask): (u32, u32),
    ) -> Result<FoundEntry, ErrorCode> {
        let call = self.begin(ctx);
        block_on(call.mkdir(
            &credentials(ctx),
            parent,
            name(bytes)?,
            (mode & 0o7777, umask),
            None,
        ))
    }

    /// `zonal mkdir --zone`: "ZONE MODE NAME" set as an attribute of the parent.
    pub(crate) fn mkdir_by_text(
        &self,
        call: &KernelCall<'_>,
        who: &Credentials,
        parent: Ino,
        text: &[u8],
    ) -> Result<(), ErrorCode> {
        let mut parts = text.splitn(3, |byte| *byte == b' ');
        let mut number = |radix| {
            let part = parts.next().and_then(|part| std::str::from_utf8(part).ok());
            part.and_then(|part| u32::from_str_radix(part, radix).ok())
                .ok_or(ErrorCode::Invalid)
        };
        let zone = u16::try_from(number(10)?).map_err(|_error| ErrorCode::Invalid)?;
        let mode = number(8)? & 0o7777;
        if self.client.map().zone(ZoneId(zone)).is_none() {
            // The zone may have joined since.
            block_on(call.refresh_map())?;
        }
        let map = self.client.map();
        if map.zone(ZoneId(zone)).is_none() {
            return Err(ErrorCode::NoDevice);
        }
        if parent != Ino::ROOT && map.zone_of(parent) != Some(ZoneId(zone)) {
            // Only first-level directories have a home of their own.
            return Err(ErrorCode::CrossShard);
        }
        let bytes = parts.next().unwrap_or_default();
        let name = name(bytes)?;
        block_on(call.mkdir(who, parent, name, (mode, 0), Some(ZoneId(zone))))?;
        // The kernel did not look the name up, and may cache its absence. It holds the directory's
        // lock until the answer; then the caller looks the name up afresh.
        self.expiries.expire(parent, vec![bytes.into()], Vec::new());
        self.drop_listing(parent);
        Ok(())
    }

    pub(crate) fn do_unlink(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
    ) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        let _changing = self.expiries.change(parent);
        block_on(call.unlink(&credentials(ctx), parent, name(bytes)?))?;
        self.names.removed(parent, bytes);
        Ok(())
    }

    pub(crate) fn do_rmdir(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        bytes: &[u8],
    ) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        let _changing = self.expiries.move_between(parent, parent);
        block_on(call.rmdir(&credentials(ctx), parent, name(bytes)?))?;
        self.names.removed(parent, bytes);
        Ok(())
    }

    pub(crate) fn do_rename(
        &self,
        ctx: &Context<'_>,
        parent: Ino,
        rename: &Rename<'_>,
    ) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        let from = (parent, name(rename.name)?);
        let new_parent = Ino(rename.new_parent);
        let to = (new_parent, name(rename.new_name)?);
        let _changing = self.expiries.move_between(parent, new_parent);
        let ends = [(parent, rename.name), (new_parent, rename.new_name)];
        let is_exchange = rename.flags & RENAME_EXCHANGE != 0;
        let is_believed = self.names.will_rename(ends, is_exchange);
        block_on(call.rename(&credentials(ctx), from, to, rename.flags))?;
        if !is_exchange {
            self.names.removed(parent, rename.name);
        }
        if is_believed && parent != new_parent {
            // These names came under the other directory's lease: no event would name them.
            for (dir, bytes) in ends {
                self.expiries.expire(dir, vec![bytes.into()], Vec::new());
            }
        }
        Ok(())
    }

    pub(crate) fn do_link(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        parent: Ino,
        bytes: &[u8],
    ) -> Result<FoundEntry, ErrorCode> {
        let call = self.begin(ctx);
        block_on(call.hard_link(&credentials(ctx), ino, parent, name(bytes)?))
    }

    /// Drops attributes and ACL of an inode that no lease covers any more: it has a second name.
    /// This takes no lock of the kernel's that a request may hold.
    pub(crate) fn forget_attributes(&self, ino: Ino) {
        self.hints.forget(&[ino]);
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.inval_inode(ino.0, -1, 0)
        {
            tracing::debug!(%ino, %error, "the kernel refused to drop attributes");
        }
    }

    pub(crate) fn do_access(
        &self,
        ctx: &Context<'_>,
        ino: Ino,
        mask: u32,
    ) -> Result<(), ErrorCode> {
        let call = self.begin(ctx);
        block_on(call.access(&credentials(ctx), ino, mask))
    }

    pub(crate) fn do_statfs(&self, ctx: &Context<'_>, ino: Ino) -> Result<StatFs, ErrorCode> {
        let call = self.begin(ctx);
        let Capacity {
            total,
            free,
            inodes,
            names_left,
        } = block_on(call.statfs(ino))?;
        // 32-bit programs fail with a larger number.
        let ffree = names_left.min(u32::MAX.into());
        Ok(StatFs {
            blocks: total / 4096,
            bfree: free / 4096,
            bavail: free / 4096,
            files: inodes.saturating_add(ffree),
            ffree,
            bsize: 1 << 20,
            namelen: 255,
            frsize: 4096,
        })
    }
}

fn found_now((attr, attr_ms): (Attr, u32)) -> LookupResult {
    LookupResult::Found(FoundEntry {
        attr,
        entry_ms: 0,
        attr_ms,
    })
}
