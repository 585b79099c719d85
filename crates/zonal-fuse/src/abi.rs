//! Numbers of the kernel's FUSE protocol 7.45: operation codes, flags, sizes of structures.
//!
//! Written by hand from the protocol's definition. The layouts of requests are in `request`, those
//! of replies in `encode`. Names are the kernel's without the prefix `FUSE_`.
#![allow(
    missing_docs,
    reason = "the kernel's own names; its documentation describes them"
)]

/// The protocol's major version.
pub const MAJOR: u32 = 7;
/// The newest minor version this crate speaks.
pub const MINOR: u32 = 45;
/// The oldest minor version accepted (Linux 5.4): the layouts decoded here have not changed since.
pub const MINOR_MIN: u32 = 31;
/// The node id of the mount's root.
pub const ROOT_ID: u64 = 1;

/// Size of the header of a request.
pub const IN_HEADER: usize = 40;
/// Size of the header of a reply.
pub const OUT_HEADER: usize = 16;
/// Size of the fixed part of a WRITE behind the header.
pub const WRITE_IN: usize = 40;
/// The bit of `unique` that distinguishes an INTERRUPT from its request.
pub const INTERRUPT_BIT: u64 = 1;

pub mod op {
    pub const LOOKUP: u32 = 1;
    pub const FORGET: u32 = 2;
    pub const GETATTR: u32 = 3;
    pub const SETATTR: u32 = 4;
    pub const READLINK: u32 = 5;
    pub const SYMLINK: u32 = 6;
    pub const MKNOD: u32 = 8;
    pub const MKDIR: u32 = 9;
    pub const UNLINK: u32 = 10;
    pub const RMDIR: u32 = 11;
    pub const RENAME: u32 = 12;
    pub const LINK: u32 = 13;
    pub const OPEN: u32 = 14;
    pub const READ: u32 = 15;
    pub const WRITE: u32 = 16;
    pub const STATFS: u32 = 17;
    pub const RELEASE: u32 = 18;
    pub const FSYNC: u32 = 20;
    pub const SETXATTR: u32 = 21;
    pub const GETXATTR: u32 = 22;
    pub const LISTXATTR: u32 = 23;
    pub const REMOVEXATTR: u32 = 24;
    pub const FLUSH: u32 = 25;
    pub const INIT: u32 = 26;
    pub const OPENDIR: u32 = 27;
    pub const READDIR: u32 = 28;
    pub const RELEASEDIR: u32 = 29;
    pub const FSYNCDIR: u32 = 30;
    pub const GETLK: u32 = 31;
    pub const SETLK: u32 = 32;
    pub const SETLKW: u32 = 33;
    pub const ACCESS: u32 = 34;
    pub const CREATE: u32 = 35;
    pub const INTERRUPT: u32 = 36;
    pub const BMAP: u32 = 37;
    pub const DESTROY: u32 = 38;
    pub const IOCTL: u32 = 39;
    pub const POLL: u32 = 40;
    pub const NOTIFY_REPLY: u32 = 41;
    pub const BATCH_FORGET: u32 = 42;
    pub const FALLOCATE: u32 = 43;
    pub const READDIRPLUS: u32 = 44;
    pub const RENAME2: u32 = 45;
    pub const LSEEK: u32 = 46;
    pub const COPY_FILE_RANGE: u32 = 47;
    pub const SYNCFS: u32 = 50;
    pub const TMPFILE: u32 = 51;
    pub const STATX: u32 = 52;
    pub const COPY_FILE_RANGE_64: u32 = 53;
}

/// Flags of INIT; the upper half travels in `flags2`.
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const POSIX_LOCKS: u64 = 1 << 1;
    pub const ATOMIC_O_TRUNC: u64 = 1 << 3;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const FLOCK_LOCKS: u64 = 1 << 10;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const ABORT_ERROR: u64 = 1 << 21;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const SECURITY_CTX: u64 = 1 << 32;
    pub const CREATE_SUPP_GROUP: u64 = 1 << 34;
    pub const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const HAS_RESEND: u64 = 1 << 39;
}

/// `valid` of SETATTR.
pub mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const LOCKOWNER: u32 = 1 << 9;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

/// `fuse_getattr_in.getattr_flags`: the file handle is valid.
pub const GETATTR_FH: u32 = 1;
/// `fuse_lk_in.lk_flags`: flock(2), not fcntl(2).
pub const LK_FLOCK: u32 = 1;
/// `fuse_fsync_in.fsync_flags`.
pub const FSYNC_FDATASYNC: u32 = 1;
/// `fuse_open_in.open_flags`: clear set-user-id and set-group-id (open with O_TRUNC).
pub const OPEN_KILL_SUIDGID: u32 = 1;
/// `fuse_read_in.read_flags`: the lock owner is valid.
pub const READ_LOCKOWNER: u32 = 1 << 1;
/// `fuse_release_in.release_flags`.
pub const RELEASE_FLUSH: u32 = 1;
/// `fuse_release_in.release_flags`: drop the handle's flock lock.
pub const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `fuse_write_in.write_flags`: from the page cache, the handle is a guess.
pub const WRITE_CACHE: u32 = 1;
/// `fuse_write_in.write_flags`: the lock owner is valid.
pub const WRITE_LOCKOWNER: u32 = 1 << 1;
/// `fuse_write_in.write_flags`: clear set-user-id and set-group-id.
pub const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// `fuse_setxattr_in.setxattr_flags`: clear set-group-id when the access ACL is set.
pub const SETXATTR_ACL_KILL_SGID: u32 = 1;
/// Bit of open flags: the file is opened to be executed.
pub const FMODE_EXEC: u32 = 0x20;
/// Extension type: supplementary groups (one group matching the parent's).
pub const EXT_GROUPS: u32 = 32;
/// `fuse_notify_inval_entry_out.flags`: only expire the entry.
pub const EXPIRE_ONLY: u32 = 1;

/// Codes of notifications, sent in the header's error field.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const DELETE: i32 = 6;
    pub const PRUNE: i32 = 9;
}
