//! The trait that a file system implements, one method per operation.
//!
//! Methods run on the session's worker threads, many at a time. A reply may be kept and answered
//! later by another thread; [`FileSystem::interrupt`] must know these *parked* requests.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;

use crate::init::KernelInfo;
use crate::notify::Notifier;
use crate::reply::{
    ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use crate::request::{
    CopyFileRange, Create, Fallocate, Forgets, Ioctl, Lock, Mknod, Open, Read, Release, Rename,
    SetXattr, Statx, Write,
};
use crate::types::SetAttr;
use crate::worker_pool::WorkerPool;
use crate::write_data::WriteData;

/// The request of a worker, for interrupts.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Slot {
    /// The request being handled, 0 for none.
    pub(crate) current: AtomicU64,
    /// The last request of this worker that was interrupted while being handled.
    pub(crate) interrupted: AtomicU64,
}

/// The caller of a request.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// Id of the request, as [`FileSystem::interrupt`] gets it.
    pub unique: u64,
    /// Effective file-system user id.
    pub uid: u32,
    /// Effective file-system group id.
    pub gid: u32,
    /// Thread id of the caller; 0 for requests of the kernel's own (write-back, read-ahead).
    pub pid: u32,
    /// For operations that create an inode: the caller's supplementary group that owns the parent
    /// directory, if any.
    pub supplementary_group: Option<u32>,
    pub(crate) slot: &'a Slot,
    pub(crate) pool: &'a WorkerPool,
}

impl Context<'_> {
    /// True where a signal hit the caller since the worker took the request.
    ///
    /// To park a request without losing an interrupt: make it known to `interrupt` first, then
    /// check this; when true, take it back and answer EINTR.
    #[must_use]
    pub fn interrupted(&self) -> bool {
        self.slot.interrupted.load(Ordering::SeqCst) == self.unique
    }

    /// Announces that this request is going to wait for long (milliseconds, or for another
    /// request). When no other worker reads requests, one is woken at once; without the
    /// announcement that takes a few milliseconds. Not worth it for a round trip.
    pub fn will_block(&self) {
        self.pool.will_block();
    }

    /// Workers that are parked because the load does not need them.
    #[must_use]
    pub fn parked_workers(&self) -> u32 {
        self.pool.parked_now()
    }
}

/// A file system. Methods that are not implemented answer ENOSYS. For several operations the kernel
/// takes that as "never ask again" (access, flush, fsync, xattrs, locks, statx and more).
#[expect(
    unused_variables,
    reason = "defaults ignore their arguments, whose names document"
)]
pub trait FileSystem: Send + Sync + 'static {
    /// Called when the mount is up, before the first request.
    fn init(&self, kernel: &KernelInfo, notifier: &Notifier) {}

    /// Called when the mount is gone and every worker has ended.
    fn destroy(&self) {}

    /// Called when a signal hit the caller of a request. For a parked request, answer it EINTR and
    /// return true. For an unknown request return false; the session then tells the worker that
    /// handles it, or lets the kernel repeat the interrupt. Runs beside everything else; must not
    /// wait.
    fn interrupt(&self, unique: u64) -> bool {
        false
    }

    /// Called about four times a second while a worker has had a request for a while. The caller
    /// may be about to die, and where all workers wait, none of them reads the kernel's INTERRUPT.
    /// Runs beside everything else; must not wait.
    fn lingers(&self, unique: u64) {}

    /// Called about four times a second after the mount is gone, while workers are in requests. The
    /// callers have their errors already. Must not wait.
    fn connection_ended(&self) {}

    /// The kernel dropped `nlookup` references to a node.
    fn forget(&self, ino: u64, nlookup: u64) {}

    /// Several FORGETs.
    fn batch_forget(&self, forgets: Forgets<'_>) {}

    /// Looks up a name. File handles (NFS export) look up "." and "..".
    fn lookup(&self, ctx: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        reply.err(Errno::NOSYS);
    }

    /// Returns attributes.
    fn getattr(&self, ctx: &Context<'_>, ino: u64, fh: Option<u64>, reply: ReplyAttr) {
        reply.err(Errno::NOSYS);
    }

    /// Changes attributes: chmod, chown, truncate, utimes.
    fn setattr(&self, ctx: &Context<'_>, ino: u64, change: &SetAttr, reply: ReplyAttr) {
        reply.err(Errno::NOSYS);
    }

    /// Extended attributes of statx(2); ENOSYS makes the kernel use GETATTR.
    fn statx(&self, ctx: &Context<'_>, ino: u64, statx: &Statx, reply: ReplyStatx) {
        reply.err(Errno::NOSYS);
    }

    /// Returns the target of a symbolic link.
    fn readlink(&self, ctx: &Context<'_>, ino: u64, reply: ReplyData) {
        reply.err(Errno::NOSYS);
    }

    /// Creates a symbolic link.
    fn symlink(
        &self,
        ctx: &Context<'_>,
        parent: u64,
        name: &[u8],
        target: &[u8],
        reply: ReplyEntry,
    ) {
        reply.err(Errno::NOSYS);
    }

    /// Creates a file that is neither a directory nor a symbolic link.
    fn mknod(&self, ctx: &Context<'_>, parent: u64, name: &[u8], node: &Mknod, reply: ReplyEntry) {
        reply.err(Errno::NOSYS);
    }

    /// Creates a directory; `umask` is not applied to `mode` yet.
    fn mkdir(
        &self,
        ctx: &Context<'_>,
        parent: u64,
        name: &[u8],
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        reply.err(Errno::NOSYS);
    }

    /// Removes a name of a file.
    fn unlink(&self, ctx: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Removes an empty directory.
    fn rmdir(&self, ctx: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Renames within the mount.
    fn rename(&self, ctx: &Context<'_>, parent: u64, rename: &Rename<'_>, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Adds a name to a file.
    fn link(
        &self,
        ctx: &Context<'_>,
        ino: u64,
        new_parent: u64,
        new_name: &[u8],
        reply: ReplyEntry,
    ) {
        reply.err(Errno::NOSYS);
    }

    /// Opens a file; truncates it when `flags` has O_TRUNC (no SETATTR is sent for it).
    fn open(&self, ctx: &Context<'_>, ino: u64, open: &Open, reply: ReplyOpen) {
        reply.opened(0, crate::types::OpenFlags::NONE);
    }

    /// Creates (when missing) and opens a file.
    fn create(
        &self,
        ctx: &Context<'_>,
        parent: u64,
        name: &[u8],
        create: &Create,
        reply: ReplyCreate,
    ) {
        reply.err(Errno::NOSYS);
    }

    /// Creates and opens a file without a name in the file system of `parent` (O_TMPFILE).
    fn tmpfile(&self, ctx: &Context<'_>, parent: u64, create: &Create, reply: ReplyCreate) {
        reply.err(Errno::NOSYS);
    }

    /// Reads.
    fn read(&self, ctx: &Context<'_>, ino: u64, read: &Read, reply: ReplyData) {
        reply.err(Errno::NOSYS);
    }

    /// Writes.
    fn write(
        &self,
        ctx: &Context<'_>,
        ino: u64,
        write: &Write,
        data: WriteData<'_>,
        reply: ReplyWrite,
    ) {
        reply.err(Errno::NOSYS);
    }

    /// Returns the figures of the file system.
    fn statfs(&self, ctx: &Context<'_>, ino: u64, reply: ReplyStatfs) {
        reply.err(Errno::NOSYS);
    }

    /// The last descriptor of a handle was closed. The kernel does not wait for the answer.
    fn release(&self, ctx: &Context<'_>, ino: u64, release: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes a file durable.
    fn fsync(&self, ctx: &Context<'_>, ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// A descriptor is closed: report errors of earlier writes, drop the owner's fcntl locks.
    fn flush(&self, ctx: &Context<'_>, ino: u64, fh: u64, lock_owner: u64, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Opens a directory.
    fn opendir(&self, ctx: &Context<'_>, ino: u64, flags: u32, reply: ReplyOpen) {
        reply.opened(0, crate::types::OpenFlags::NONE);
    }

    /// Lists a directory after the cookie `read.offset`.
    fn readdir(&self, ctx: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        reply.err(Errno::NOSYS);
    }

    /// Lists a directory with the entries' attributes.
    fn readdirplus(&self, ctx: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        reply.err(Errno::NOSYS);
    }

    /// Closes a directory.
    fn releasedir(&self, ctx: &Context<'_>, ino: u64, release: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes a directory durable.
    fn fsyncdir(&self, ctx: &Context<'_>, ino: u64, fh: u64, datasync: bool, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Sets an extended attribute.
    fn setxattr(&self, ctx: &Context<'_>, ino: u64, set: &SetXattr<'_>, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Returns the value of an extended attribute.
    fn getxattr(&self, ctx: &Context<'_>, ino: u64, name: &[u8], reply: ReplyXattr) {
        reply.err(Errno::NOSYS);
    }

    /// Returns the names of extended attributes.
    fn listxattr(&self, ctx: &Context<'_>, ino: u64, reply: ReplyXattr) {
        reply.err(Errno::NOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, ctx: &Context<'_>, ino: u64, name: &[u8], reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// access(2), chdir(2).
    fn access(&self, ctx: &Context<'_>, ino: u64, mask: u32, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Returns a conflicting lock.
    fn getlk(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyLock) {
        reply.err(Errno::NOSYS);
    }

    /// Takes or drops a lock at once, or answers EAGAIN.
    fn setlk(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// Takes a lock; the reply is parked until the lock is granted or the request interrupted
    /// (EINTR).
    fn setlkw(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }

    /// ioctl(2).
    fn ioctl(&self, ctx: &Context<'_>, ino: u64, ioctl: &Ioctl<'_>, reply: ReplyIoctl) {
        reply.err(Errno::NOTTY);
    }

    /// Reserves space, punches holes, zeroes ranges.
    fn fallocate(&self, ctx: &Context<'_>, ino: u64, change: &Fallocate, reply: ReplyEmpty) {
        reply.err(Errno::OPNOTSUPP);
    }

    /// SEEK_DATA, SEEK_HOLE; ENOSYS makes the kernel treat the whole file as data.
    fn lseek(
        &self,
        ctx: &Context<'_>,
        ino: u64,
        fh: u64,
        offset: u64,
        whence: u32,
        reply: ReplyLseek,
    ) {
        reply.err(Errno::NOSYS);
    }

    /// Copies between files; ENOSYS makes the kernel read and write instead.
    fn copy_file_range(&self, ctx: &Context<'_>, ino: u64, copy: &CopyFileRange, reply: ReplyCopy) {
        reply.err(Errno::NOSYS);
    }

    /// syncfs(2) (not sent to a server on /dev/fuse by the kernels seen so far).
    fn syncfs(&self, ctx: &Context<'_>, ino: u64, reply: ReplyEmpty) {
        reply.err(Errno::NOSYS);
    }
}
