//! Dispatch: from a decoded request to the file system's method.

use crate::fs::{Context, FileSystem};
use crate::reply::{
    PendingReply, ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyXattr,
};
use crate::request::Operation;
use rustix::io::Errno;

/// The kernel takes a link target of less than a page.
const LINK_MAX: usize = 4095;

/// Hands a request that wants a reply to the file system; except WRITE, which comes with memory.
pub(crate) fn dispatch<F: FileSystem + ?Sized>(
    fs: &F,
    c: &Context<'_>,
    ino: u64,
    operation: Operation<'_>,
    raw: PendingReply,
) {
    use Operation as O;
    match operation {
        O::Lookup { name } => fs.lookup(c, ino, name, ReplyEntry::new(raw)),
        O::Getattr { fh } => fs.getattr(c, ino, fh, ReplyAttr::new(raw)),
        O::Setattr(change) => fs.setattr(c, ino, &change, ReplyAttr::new(raw)),
        O::Statx(a) => fs.statx(c, ino, &a, ReplyStatx::new(raw)),
        O::Readlink => fs.readlink(c, ino, ReplyData::new(raw, LINK_MAX)),
        O::Symlink { name, target } => fs.symlink(c, ino, name, target, ReplyEntry::new(raw)),
        O::Mknod(node, name) => fs.mknod(c, ino, name, &node, ReplyEntry::new(raw)),
        O::Mkdir { mode, umask, name } => {
            fs.mkdir(c, ino, name, mode, umask, ReplyEntry::new(raw));
        }
        O::Unlink { name } => fs.unlink(c, ino, name, ReplyEmpty::new(raw)),
        O::Rmdir { name } => fs.rmdir(c, ino, name, ReplyEmpty::new(raw)),
        O::Rename(a) => fs.rename(c, ino, &a, ReplyEmpty::new(raw)),
        O::Link { ino: old, name } => fs.link(c, old, ino, name, ReplyEntry::new(raw)),
        O::Statfs => fs.statfs(c, ino, ReplyStatfs::new(raw)),
        O::Access { mask } => fs.access(c, ino, mask, ReplyEmpty::new(raw)),
        O::Setxattr(a) => fs.setxattr(c, ino, &a, ReplyEmpty::new(raw)),
        O::Getxattr { name, size } => fs.getxattr(c, ino, name, ReplyXattr::new(raw, size)),
        O::Listxattr { size } => fs.listxattr(c, ino, ReplyXattr::new(raw, size)),
        O::Removexattr { name } => fs.removexattr(c, ino, name, ReplyEmpty::new(raw)),
        O::Syncfs => fs.syncfs(c, ino, ReplyEmpty::new(raw)),
        O::Destroy => ReplyEmpty::new(raw).ok(),
        other => handle(fs, c, ino, other, raw),
    }
}

/// The operations on an open handle.
#[expect(clippy::needless_pass_by_value, reason = "a request is handled once")]
fn handle<F: FileSystem + ?Sized>(
    fs: &F,
    c: &Context<'_>,
    ino: u64,
    operation: Operation<'_>,
    raw: PendingReply,
) {
    use Operation as O;
    match operation {
        O::Open(a) => fs.open(c, ino, &a, ReplyOpen::new(raw)),
        O::Create(a, name) => fs.create(c, ino, name, &a, ReplyCreate::new(raw)),
        O::Tmpfile(a) => fs.tmpfile(c, ino, &a, ReplyCreate::new(raw)),
        O::Read(a) => fs.read(c, ino, &a, ReplyData::new(raw, a.size as usize)),
        O::Release(a) => fs.release(c, ino, &a, ReplyEmpty::new(raw)),
        O::Fsync { fh, datasync } => fs.fsync(c, ino, fh, datasync, ReplyEmpty::new(raw)),
        O::Flush { fh, lock_owner } => fs.flush(c, ino, fh, lock_owner, ReplyEmpty::new(raw)),
        O::Opendir { flags } => fs.opendir(c, ino, flags, ReplyOpen::new(raw)),
        O::Readdir(a) => fs.readdir(c, ino, &a, ReplyDirectory::new(raw, a.size)),
        O::Readdirplus(a) => fs.readdirplus(c, ino, &a, ReplyDirectory::new(raw, a.size)),
        O::Releasedir(a) => fs.releasedir(c, ino, &a, ReplyEmpty::new(raw)),
        O::Fsyncdir { fh, datasync } => fs.fsyncdir(c, ino, fh, datasync, ReplyEmpty::new(raw)),
        O::Getlk(a) => fs.getlk(c, ino, &a, ReplyLock::new(raw)),
        O::Setlk(a) => fs.setlk(c, ino, &a, ReplyEmpty::new(raw)),
        O::Setlkw(a) => fs.setlkw(c, ino, &a, ReplyEmpty::new(raw)),
        O::Ioctl(a) => fs.ioctl(c, ino, &a, ReplyIoctl::new(raw, a.out_size as usize)),
        O::Fallocate(a) => fs.fallocate(c, ino, &a, ReplyEmpty::new(raw)),
        O::Lseek { fh, offset, whence } => {
            fs.lseek(c, ino, fh, offset, whence, ReplyLseek::new(raw));
        }
        O::CopyFileRange(a) => fs.copy_file_range(c, ino, &a, ReplyCopy::new(raw, a.wide)),
        _ => ReplyEmpty::new(raw).err(Errno::NOSYS),
    }
}
