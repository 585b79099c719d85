//! The FUSE session: the kernel's protocol, mounting, notifications.
//!
//! A file system implements [`FileSystem`], and [`FuseSession::mount`] mounts it. [`Notifier`]
//! tells the kernel about changes made elsewhere. [`null`] is a file system in memory, the ceiling
//! that benchmarks compare with. This crate knows nothing about Zonal's servers.
//!
//! # Workers
//!
//! Each worker has a descriptor of its own (FUSE_DEV_IOC_CLONE) and carries a request to its end.
//! Usually all workers wait in read(2), which is bad for few clients: the kernel wakes the worker
//! that has waited longest, mostly on another core. Measured with the null file system on two
//! cores, one client, time-outs 0, workers all reading (two runs, other programs running):
//!
//! | workers | fstat | stat by path | create+close |
//! | --- | --- | --- | --- |
//! | 1 | 1 | 1 | 1 |
//! | 2 | 0.7 to 0.9 | 0.2 to 0.8 | 0.2 to 1 |
//! | 4 | 0.3 to 0.4 | 0.2 to 0.4 | 0.2 to 1.3 |
//! | 8 | 0.2 to 0.5 | 0.1 to 0.5 | 0.1 to 0.4 |
//! | 2, pinned to a core each | 0.2 to 0.4 | 0.1 to 0.2 | 0.2 to 0.4 |
//!
//! With two clients on two cores, two workers made 0.7 to 1.7 times the rates of one: noise, not a
//! reason. Several workers are needed all the same, since requests wait for servers, locks and
//! leases. So only as many read as the load needs (`worker_pool`), and a stuck one is replaced.
//! With one client, one worker then does nearly all the work (2 of 108,000 requests called another
//! in).
//!
//! That cures the rotation, not the placement: the one worker may still sit on another core than
//! its client. Rates in slices alternating between four mounts (median, one client, a worker alone
//! = 1):
//!
//! | mount | rate |
//! | --- | --- |
//! | `worker_pool` of 16, one run | 0.5 to 0.8 |
//! | `worker_pool` of 16, another run | 0.1 to 0.2 |
//! | `worker_pool` of 16, best tenth of both runs | 0.8 to 1.1 |
//! | eight all reading | 0.4 to 0.6 |
//! | two all reading | 0.6 to 0.8 |
//!
//! Letting the worker follow its caller's core was not tried yet.
//!
//! A parked worker costs a thread and a descriptor, and no buffer before its first request: the
//! default is 128. Every request holds a worker while it waits (unless its reply is parked). So the
//! number of workers bounds the requests in flight, including the INTERRUPT that would free a
//! worker. With 16 workers as many opens that waited for a mount that stood still stopped all other
//! requests, those for other zones too.
//!
//! With time-outs of 60 s, stat and fstat never leave the kernel (10 to 40 times the rate of
//! asking). In calls of 1 MiB, direct_io moves 3 to 4 times the bytes of the page cache.

pub mod abi;
mod bytes;
mod channel;
mod connection_abort;
mod dirbuf;
mod dispatch;
mod encode;
mod fs;
mod init;
mod mount;
mod mount_flags;
mod notify;
pub mod null;
mod operation;
mod readahead;
mod reply;
pub mod request;
mod session;
mod types;
mod worker_pool;
mod write_data;

pub use connection_abort::Abort;
pub use dirbuf::DirBuffer;
pub use fs::{Context, FileSystem};
pub use init::{InitError, KernelInfo, SessionConfig};
pub use mount::{MountError, MountOptions, abort, end_connection, unmount};
pub use mount_flags::Flags;
pub use notify::{Notifier, ThreadNotifier};
pub use reply::{
    ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr,
};
pub use rustix::io::Errno;
pub use session::FuseSession;
pub use types::{
    FileLock, FuseAttr, FuseEntry, FuseFileKind, FuseLockKind, FuseTimestamp, OpenFlags, SetAttr,
    StatFs, StatxReply, TimeOrNow,
};
pub use write_data::WriteData;
