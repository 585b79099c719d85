//! Replies: each answers one request once, at once or later, from any thread.
//!
//! A reply owns all it needs; answering consumes it. A reply dropped without an answer (a panic, a
//! forgotten branch) answers EIO, so that no caller waits for ever.

use std::cell::Cell;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::abi;
use crate::bytes::{Fixed, Put};
use crate::channel::Channel;
use crate::dirbuf::DirBuffer;
use crate::encode;
use crate::types::{FileLock, FuseAttr, FuseEntry, OpenFlags, StatFs, StatxReply};
use crate::worker_pool::LONG;

/// The obligation to answer one request.
#[derive(Debug)]
pub(crate) struct PendingReply {
    channel: Arc<Channel>,
    unique: u64,
    open: bool,
}

/// The worker's observation when it was about to answer its request. It checks for waiting requests
/// before the answer and not after it: the caller queues its next request at once, which needs no
/// other worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AnswerTiming {
    /// The request took little time, or another thread answered it.
    #[default]
    Short,
    /// The request took long.
    Long { others_waited: bool },
    /// The request had much data.
    Bulk { others_waited: bool },
}

thread_local! {
    static BEGAN: Cell<Option<(Instant, bool)>> = const { Cell::new(None) };
    static ANSWER: Cell<AnswerTiming> = const { Cell::new(AnswerTiming::Short) };
}

/// Notes that this thread took a request from the kernel; `is_bulk`: with much data.
pub(crate) fn began(is_bulk: bool) {
    ANSWER.set(AnswerTiming::Short);
    BEGAN.set(Some((Instant::now(), is_bulk)));
}

/// The observation for the request that this thread took last.
pub(crate) fn answer() -> AnswerTiming {
    ANSWER.take()
}

impl PendingReply {
    pub(crate) fn new(channel: Arc<Channel>, unique: u64) -> Self {
        Self {
            channel,
            unique,
            open: true,
        }
    }

    fn sent(&mut self, result: Result<(), Errno>) {
        self.open = false;
        match result {
            // ENOENT: the caller gave up; ENODEV: unmounted meanwhile.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV) => {}
            Err(error) => {
                tracing::warn!(%error, unique = self.unique, "the kernel refused a reply");
                // The caller still waits for an answer (EINVAL leaves the request unanswered).
                let _ = self.channel.status(self.unique, Errno::IO.raw_os_error());
            }
        }
    }

    fn sending(&self) {
        let Some((began, is_bulk)) = BEGAN.take() else {
            return;
        };
        if is_bulk || began.elapsed() >= LONG {
            let others_waited = self.channel.has_request();
            ANSWER.set(match is_bulk {
                true => AnswerTiming::Bulk { others_waited },
                false => AnswerTiming::Long { others_waited },
            });
        }
    }

    fn status(mut self, error: i32) {
        self.sending();
        let result = self.channel.status(self.unique, error);
        self.sent(result);
    }

    /// Sends a small structure in one piece.
    fn fixed(mut self, fill: impl FnOnce(&mut Fixed<{ encode::FIXED }>)) {
        let mut body = Fixed::new();
        fill(&mut body);
        let payload = body.as_slice();
        let mut out = Fixed::<{ encode::FIXED }>::new();
        encode::header(&mut out, payload.len(), 0, self.unique);
        out.put(payload);
        self.sending();
        let result = self.channel.write(out.as_slice());
        self.sent(result);
    }

    fn bytes(mut self, payload: &[u8]) {
        let mut head = Fixed::<{ abi::OUT_HEADER }>::new();
        encode::header(&mut head, payload.len(), 0, self.unique);
        self.sending();
        let result = if payload.is_empty() {
            self.channel.write(head.as_slice())
        } else {
            self.channel
                .write_vectored(&[IoSlice::new(head.as_slice()), IoSlice::new(payload)])
        };
        self.sent(result);
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if self.open {
            self.open = false;
            let _ = self.channel.status(self.unique, Errno::IO.raw_os_error());
        }
    }
}

macro_rules! reply {
    ($(#[$doc:meta])* $name:ident $(, $extra:ident: $type:ty)?) => {
        $(#[$doc])*
        #[derive(Debug)]
        #[must_use = "a dropped reply answers EIO"]
        pub struct $name { raw: PendingReply $(, $extra: $type)? }

        impl $name {
            pub(crate) fn new(raw: PendingReply $(, $extra: $type)?) -> Self {
                Self { raw $(, $extra)? }
            }

            /// Answers with an error.
            pub fn err(self, error: Errno) {
                self.raw.status(error.raw_os_error());
            }

            /// Id of the request, as [`crate::FileSystem::interrupt`] gets it.
            #[must_use]
            pub fn unique(&self) -> u64 {
                self.raw.unique
            }
        }
    };
}

reply!(/// Success without contents.
    ReplyEmpty);
reply!(/// A name: LOOKUP, MKNOD, MKDIR, SYMLINK, LINK.
    ReplyEntry);
reply!(/// Attributes: GETATTR, SETATTR.
    ReplyAttr);
reply!(/// STATX.
    ReplyStatx);
reply!(/// OPEN, OPENDIR.
    ReplyOpen);
reply!(/// CREATE, TMPFILE.
    ReplyCreate);
reply!(/// READ, READLINK: never more than was asked for, the excess is cut.
    ReplyData, size: usize);
reply!(/// WRITE.
    ReplyWrite);
reply!(/// COPY_FILE_RANGE.
    ReplyCopy, wide: bool);
reply!(/// STATFS.
    ReplyStatfs);
reply!(/// GETXATTR, LISTXATTR.
    ReplyXattr, size: u32);
reply!(/// GETLK.
    ReplyLock);
reply!(/// LSEEK.
    ReplyLseek);
reply!(/// READDIR, READDIRPLUS.
    ReplyDirectory, size: u32);
reply!(/// IOCTL.
    ReplyIoctl, size: usize);

impl ReplyEmpty {
    /// Answers with success.
    pub fn ok(self) {
        self.raw.status(0);
    }
}

impl ReplyEntry {
    /// Answers with the inode behind the name. Node 0 means that the name does not exist; the
    /// kernel caches that for `entry_valid`.
    pub fn entry(self, entry: &FuseEntry) {
        self.raw.fixed(|out| encode::entry(out, entry));
    }

    /// Answers that the name does not exist, cached for `valid` (a negative entry). Answer ENOENT
    /// when it must not be cached.
    pub fn negative(self, valid: Duration) {
        self.entry(&FuseEntry {
            entry_valid: valid,
            ..FuseEntry::default()
        });
    }
}

impl ReplyAttr {
    /// Answers with attributes, cached for `valid`.
    pub fn attr(self, attr: &FuseAttr, valid: Duration) {
        self.raw.fixed(|out| encode::attr_out(out, attr, valid));
    }
}

impl ReplyStatx {
    /// Answers with attributes.
    pub fn statx(self, statx: &StatxReply) {
        self.raw.fixed(|out| encode::statx(out, statx));
    }
}

impl ReplyOpen {
    /// Answers with the handle of an opened file.
    pub fn opened(self, fh: u64, flags: OpenFlags) {
        self.raw.fixed(|out| encode::open_out(out, fh, flags));
    }
}

impl ReplyCreate {
    /// Answers with the entry and handle of a created file.
    pub fn created(self, entry: &FuseEntry, fh: u64, flags: OpenFlags) {
        self.raw.fixed(|out| {
            encode::entry(out, entry);
            encode::open_out(out, fh, flags);
        });
    }
}

impl ReplyData {
    /// Bytes that the kernel takes at most.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Answers with data in one piece, sent from its place in memory. Fewer bytes than requested
    /// mean the end of the file: the kernel fills the page with zeros.
    pub fn data(self, data: &[u8]) {
        let data = data.get(..self.size).unwrap_or(data);
        self.raw.bytes(data);
    }
}

impl ReplyWrite {
    /// Answers with the number of bytes written.
    pub fn written(self, size: u32) {
        self.raw.fixed(|out| {
            out.u32(size);
            out.u32(0);
        });
    }
}

impl ReplyCopy {
    /// Answers with the number of bytes copied. (The older form has 32 bits; a copy must stay
    /// below.)
    pub fn copied(self, size: u64) {
        let wide = self.wide;
        self.raw.fixed(|out| {
            if wide {
                out.u64(size);
            } else {
                out.u32(u32::try_from(size).unwrap_or(u32::MAX));
                out.u32(0);
            }
        });
    }
}

impl ReplyStatfs {
    /// Answers with the figures.
    pub fn statfs(self, figures: &StatFs) {
        self.raw.fixed(|out| encode::statfs(out, figures));
    }
}

impl ReplyXattr {
    /// Size of the caller's buffer; 0 asks for the size of the value only.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Answers with the value (or the list of names, each ended by a zero byte). Where only the
    /// size was requested it answers the size; ERANGE where the value does not fit.
    pub fn value(self, value: &[u8]) {
        if self.size == 0 {
            let size = u32::try_from(value.len()).unwrap_or(u32::MAX);
            self.raw.fixed(|out| {
                out.u32(size);
                out.u32(0);
            });
        } else if value.len() > self.size as usize {
            self.err(Errno::RANGE);
        } else {
            self.raw.bytes(value);
        }
    }
}

impl ReplyLock {
    /// Answers with a conflicting lock, or one of kind `Unlock`.
    pub fn lock(self, lock: &FileLock) {
        self.raw.fixed(|out| encode::lock(out, lock));
    }
}

impl ReplyLseek {
    /// Answers with the position found.
    pub fn offset(self, offset: u64) {
        self.raw.fixed(|out| out.u64(offset));
    }
}

impl ReplyDirectory {
    /// An empty buffer of the requested size.
    #[must_use]
    pub fn buffer(&self) -> DirBuffer {
        DirBuffer::new(self.size)
    }

    /// Answers with entries; an empty buffer ends the listing.
    pub fn entries(self, buffer: &DirBuffer) {
        self.raw.bytes(buffer.as_bytes());
    }
}

impl ReplyIoctl {
    /// Answers with result and output.
    pub fn done(self, result: i32, data: &[u8]) {
        let data = data.get(..self.size).unwrap_or(data);
        let mut body = Vec::with_capacity(16 + data.len());
        body.i32(result);
        body.put(&[0; 12]);
        body.put(data);
        self.raw.bytes(&body);
    }
}
