//! The FUSE session: the kernel's protocol, mounting, notifications.
//!
//! A file system implements [`FileSystem`] and is mounted by [`Session::mount`]; [`Notifier`] tells
//! the kernel what changed elsewhere; [`null`] is a file system in memory, the ceiling that
//! benchmarks compare with. Nothing here knows anything about Zonal's servers.

pub mod abi;
mod bytes;
mod channel;
mod crew;
mod dirbuf;
mod dispatch;
mod encode;
mod fs;
mod init;
mod mount;
mod notify;
pub mod null;
mod operation;
mod reply;
pub mod request;
mod session;
mod types;

pub use dirbuf::DirBuffer;
pub use fs::{Context, FileSystem};
pub use init::{InitError, KernelInfo, SessionConfig};
pub use mount::{MountError, MountOptions, abort, unmount};
pub use notify::Notifier;
pub use reply::{
    ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
pub use rustix::io::Errno;
pub use session::Session;
pub use types::{
    Attr, Entry, FileKind, FileLock, LockKind, OpenFlags, SetAttr, StatFs, StatxReply, TimeOrNow,
    Timestamp,
};
