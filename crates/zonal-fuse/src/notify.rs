//! Notifications: tell the kernel that a cached name, attribute or page is out of date.
//!
//! | notification | may wait for |
//! | --- | --- |
//! | `inval_inode`, negative offset (attributes only) | nothing |
//! | `inval_inode`, a range | page locks; dirty pages being written |
//! | `inval_entry`, `delete` | the lock of the parent directory |
//! | `store` | page locks |
//! | `prune` | write-back of the inodes that it drops |
//!
//! * `inval_inode` of a range writes dirty pages (mmap, write-back cache) to the file system before
//!   it returns. A thread that must answer those WRITEs must not call it.
//! * The kernel also holds the parent directory's lock around LOOKUP, CREATE, UNLINK and READDIR of
//!   that directory. A thread that serves requests must never call `inval_entry` or `delete`, nor
//!   may a thread that holds a resource needed by these requests.
//! * `inval_entry` that does not only expire removes mounts on the name or below it. So does a
//!   look-up that finds another inode there.

use std::marker::PhantomData;
use std::sync::Arc;

use rustix::io::Errno;

use crate::abi::{self, notify};
use crate::bytes::{Fixed, Put};
use crate::channel::Channel;
use crate::init::KernelInfo;

/// Sends notifications, from any thread.
#[derive(Clone, Debug)]
pub struct Notifier {
    channel: Arc<Channel>,
    kernel: KernelInfo,
}

/// Sends notifications that wait for directories' locks. Bound to the thread that created it.
///
/// A thread that sleeps in one of these calls keeps the descriptors of its table open, also when
/// its process is killed. Only when they are closed does the kernel fail the requests that the
/// process had read, and one of these may hold the lock. So this thread's table has a single
/// descriptor of the mount.
#[derive(Debug)]
pub struct ThreadNotifier {
    notifier: Notifier,
    /// The descriptor is not valid on another thread.
    _here: PhantomData<*const ()>,
}

impl ThreadNotifier {
    /// See [`Notifier::inval_entry`].
    pub fn inval_entry(&self, parent: u64, name: &[u8], expire_only: bool) -> Result<bool, Errno> {
        self.notifier.inval_entry(parent, name, expire_only)
    }

    /// Drops the attributes of an inode.
    pub fn inval_attributes(&self, ino: u64) -> Result<bool, Errno> {
        self.notifier.inval_inode(ino, -1, 0)
    }
}

/// Most node ids in one PRUNE.
const PRUNE_MAX: usize = 512;

/// Ok(false) where the kernel did not have the item.
fn known(result: Result<(), Errno>) -> Result<bool, Errno> {
    match result {
        Ok(()) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(error),
    }
}

impl Notifier {
    pub(crate) fn new(channel: Arc<Channel>, kernel: KernelInfo) -> Self {
        Self { channel, kernel }
    }

    /// Binds this thread, which from now on uses no other descriptor of the process but the
    /// standard streams.
    #[must_use]
    pub fn alone(&self) -> ThreadNotifier {
        ThreadNotifier {
            notifier: Self::new(self.channel.alone(), self.kernel),
            _here: PhantomData,
        }
    }

    /// True where [`Notifier::inval_entry`] can expire a name without dropping it (Linux 6.3).
    #[must_use]
    pub fn has_expire_only(&self) -> bool {
        self.kernel.has_expire_only()
    }

    /// True where [`Notifier::prune`] works (Linux 6.18, protocol 7.45).
    #[must_use]
    pub fn has_prune(&self) -> bool {
        self.kernel.has_prune()
    }

    /// Drops the attributes and, when `offset` is not negative, the pages of `[offset, offset +
    /// len)` (`len` 0: to the end). Ok(false): the kernel does not know the inode.
    pub fn inval_inode(&self, ino: u64, offset: i64, len: i64) -> Result<bool, Errno> {
        let mut out = Fixed::<24>::new();
        out.u64(ino);
        out.i64(offset);
        out.i64(len);
        known(
            self.channel
                .notify(notify::INVAL_INODE, out.as_slice(), &[]),
        )
    }

    /// Drops a name; with `expire_only` the kernel asks again at the name's next use instead.
    pub fn inval_entry(&self, parent: u64, name: &[u8], expire_only: bool) -> Result<bool, Errno> {
        let mut out = Fixed::<16>::new();
        out.u64(parent);
        out.u32(name_len(name)?);
        let expire = expire_only && self.has_expire_only();
        out.u32(if expire { abi::EXPIRE_ONLY } else { 0 });
        known(
            self.channel
                .notify(notify::INVAL_ENTRY, out.as_slice(), &zero_ended(name)),
        )
    }

    /// Drops a name that was removed elsewhere, where it still leads to `child`.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<bool, Errno> {
        let mut out = Fixed::<24>::new();
        out.u64(parent);
        out.u64(child);
        out.u32(name_len(name)?);
        out.u32(0);
        known(
            self.channel
                .notify(notify::DELETE, out.as_slice(), &zero_ended(name)),
        )
    }

    /// Puts data into the page cache of an inode; grows the inode's size where the data end behind
    /// it.
    pub fn store(&self, ino: u64, offset: u64, data: &[u8]) -> Result<bool, Errno> {
        let mut out = Fixed::<24>::new();
        out.u64(ino);
        out.u64(offset);
        out.u32(u32::try_from(data.len()).map_err(|_| Errno::TOOBIG)?);
        out.u32(0);
        known(self.channel.notify(notify::STORE, out.as_slice(), data))
    }

    /// Drops the unused names of inodes, and the inodes where nothing else uses them.
    pub fn prune(&self, inodes: &[u64]) -> Result<(), Errno> {
        if !self.has_prune() {
            return Err(Errno::NOSYS);
        }
        for part in inodes.chunks(PRUNE_MAX) {
            let mut out = Fixed::<16>::new();
            out.u32(u32::try_from(part.len()).map_err(|_| Errno::TOOBIG)?);
            out.u32(0);
            out.u64(0);
            let mut list = Vec::with_capacity(part.len() * 8);
            part.iter().for_each(|&ino| list.u64(ino));
            self.channel.notify(notify::PRUNE, out.as_slice(), &list)?;
        }
        Ok(())
    }
}

fn name_len(name: &[u8]) -> Result<u32, Errno> {
    u32::try_from(name.len()).map_err(|_| Errno::NAMETOOLONG)
}

fn zero_ended(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 1);
    out.put(name);
    out.put(&[0]);
    out
}
