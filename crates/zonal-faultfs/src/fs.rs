//! The disk as a FUSE file system.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use zonal_fuse::request::{Create, Fallocate, Lock, Mknod, Open, Read, Release, Rename, Write};
use zonal_fuse::{
    Context, Errno, FileSystem, FuseAttr, FuseEntry, FuseFileKind, FuseLockKind, FuseSession,
    FuseTimestamp, MountError, MountOptions, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, SessionConfig,
    SetAttr, StatFs, WriteData,
};

use crate::disk::FaultDisk;

/// Mounts `disk` on `path`.
///
/// # Errors
/// Where the machine cannot mount.
pub fn mount(disk: &Arc<FaultDisk>, path: &Path) -> Result<FuseSession, MountError> {
    let options = MountOptions {
        source: "zonal:faults".into(),
        subtype: "zonal-faultfs".into(),
        ..MountOptions::default()
    };
    let fs = Arc::new(Faulty(Arc::clone(disk)));
    FuseSession::mount(fs, path, &options, &SessionConfig::default())
}

struct Faulty(Arc<FaultDisk>);

fn name(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.err(error),
    }
}

impl Faulty {
    fn attr(&self, node: u64) -> Result<FuseAttr, Errno> {
        let metadata = self.0.metadata(node)?;
        let time = |secs: i64, nanos: i64| FuseTimestamp {
            secs,
            nanos: u32::try_from(nanos).unwrap_or(0),
        };
        Ok(FuseAttr {
            ino: node,
            size: metadata.len(),
            blocks: metadata.blocks(),
            atime: time(metadata.atime(), metadata.atime_nsec()),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ctime: time(metadata.ctime(), metadata.ctime_nsec()),
            mode: metadata.mode(),
            nlink: u32::try_from(metadata.nlink()).unwrap_or(1),
            uid: metadata.uid(),
            gid: metadata.gid(),
            rdev: 0,
            blksize: 4096,
        })
    }

    fn entry(&self, node: u64) -> Result<FuseEntry, Errno> {
        Ok(FuseEntry {
            ino: node,
            attr: self.attr(node)?,
            ..FuseEntry::default()
        })
    }

    /// A directory listing; the kernel looks up each name by itself.
    fn list(&self, ino: u64, read: &Read, plus: bool, reply: ReplyDirectory) {
        let entries = match self.0.list(ino) {
            Ok(entries) => entries,
            Err(error) => return reply.err(error),
        };
        let mut buffer = reply.buffer();
        for (cookie, (found, node, mode)) in (1..).zip(entries) {
            let (kind, bytes) = (FuseFileKind::from_mode(mode), found.as_bytes());
            if cookie <= read.offset {
                continue;
            }
            let fits = if plus {
                buffer.add_plus(&FuseEntry::default(), node, cookie, kind, bytes)
            } else {
                buffer.add(node, cookie, kind, bytes)
            };
            if !fits {
                break;
            }
        }
        reply.entries(&buffer);
    }

    fn made(&self, parent: u64, name: &Path, folder: bool) -> Result<FuseEntry, Errno> {
        let node = self.0.make(parent, name, folder)?;
        self.entry(node)
    }
}

fn answer_entry(reply: ReplyEntry, result: Result<FuseEntry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(error) => reply.err(error),
    }
}

impl FileSystem for Faulty {
    fn lookup(&self, _: &Context<'_>, parent: u64, bytes: &[u8], reply: ReplyEntry) {
        let found = self.0.node_of(parent, name(bytes));
        answer_entry(reply, found.and_then(|node| self.entry(node)));
    }

    fn getattr(&self, _: &Context<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        match self.attr(ino) {
            Ok(attr) => reply.attr(&attr, Duration::ZERO),
            Err(error) => reply.err(error),
        }
    }

    fn setattr(&self, _: &Context<'_>, ino: u64, change: &SetAttr, reply: ReplyAttr) {
        let resized = change.size.map_or(Ok(()), |size| self.0.resize(ino, size));
        match resized.and_then(|()| self.attr(ino)) {
            Ok(attr) => reply.attr(&attr, Duration::ZERO),
            Err(error) => reply.err(error),
        }
    }

    fn mknod(&self, _: &Context<'_>, parent: u64, bytes: &[u8], _: &Mknod, reply: ReplyEntry) {
        answer_entry(reply, self.made(parent, name(bytes), false));
    }

    fn mkdir(&self, _: &Context<'_>, parent: u64, bytes: &[u8], _: u32, _: u32, reply: ReplyEntry) {
        answer_entry(reply, self.made(parent, name(bytes), true));
    }

    fn unlink(&self, _: &Context<'_>, parent: u64, bytes: &[u8], reply: ReplyEmpty) {
        answer(reply, self.0.remove(parent, name(bytes), false));
    }

    fn rmdir(&self, _: &Context<'_>, parent: u64, bytes: &[u8], reply: ReplyEmpty) {
        answer(reply, self.0.remove(parent, name(bytes), true));
    }

    fn rename(&self, _: &Context<'_>, parent: u64, rename: &Rename<'_>, reply: ReplyEmpty) {
        if rename.flags != 0 {
            return reply.err(Errno::INVAL);
        }
        let to = (rename.new_parent, name(rename.new_name));
        answer(reply, self.0.rename(parent, name(rename.name), to));
    }

    fn open(&self, _: &Context<'_>, ino: u64, open: &Open, reply: ReplyOpen) {
        match self
            .0
            .open(ino, open.flags & libc::O_TRUNC.unsigned_abs() != 0)
        {
            Ok(()) => reply.opened(0, OpenFlags::DIRECT_IO),
            Err(error) => reply.err(error),
        }
    }

    fn create(
        &self,
        _: &Context<'_>,
        parent: u64,
        bytes: &[u8],
        create: &Create,
        reply: ReplyCreate,
    ) {
        let made = match self.made(parent, name(bytes), false) {
            Err(Errno::EXIST) if create.flags & libc::O_EXCL.unsigned_abs() == 0 => {
                let found = self.0.node_of(parent, name(bytes));
                found.and_then(|node| self.entry(node))
            }
            made => made,
        };
        match made {
            Ok(entry) => reply.created(&entry, 0, OpenFlags::DIRECT_IO),
            Err(error) => reply.err(error),
        }
    }

    fn read(&self, _: &Context<'_>, ino: u64, read: &Read, reply: ReplyData) {
        match self.0.read(ino, read.offset, read.size as usize) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.err(error),
        }
    }

    fn write(
        &self,
        _: &Context<'_>,
        ino: u64,
        write: &Write,
        data: WriteData<'_>,
        reply: ReplyWrite,
    ) {
        match self.0.write(ino, write.offset, data.bytes()) {
            Ok(()) => reply.written(write.size),
            Err(error) => reply.err(error),
        }
    }

    fn fallocate(&self, _: &Context<'_>, ino: u64, change: &Fallocate, reply: ReplyEmpty) {
        answer(
            reply,
            self.0
                .allocate(ino, change.mode, change.offset, change.length),
        );
    }

    fn fsync(&self, _: &Context<'_>, ino: u64, _: u64, _: bool, reply: ReplyEmpty) {
        answer(reply, self.0.sync(ino));
    }

    fn fsyncdir(&self, _: &Context<'_>, ino: u64, _: u64, _: bool, reply: ReplyEmpty) {
        answer(reply, self.0.sync_names(ino));
    }

    fn statfs(&self, _: &Context<'_>, _: u64, reply: ReplyStatfs) {
        match self.0.space() {
            Ok((total, free)) => reply.statfs(&StatFs {
                blocks: total / 4096,
                bfree: free / 4096,
                bavail: free / 4096,
                files: 1 << 20,
                ffree: 1 << 19,
                bsize: 4096,
                namelen: 255,
                frsize: 4096,
            }),
            Err(error) => reply.err(error),
        }
    }

    fn setlk(&self, _: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyEmpty) {
        let takes = lock.kind != FuseLockKind::Unlock;
        answer(reply, self.0.lock_file(ino, lock.owner, takes));
    }

    fn release(&self, _: &Context<'_>, ino: u64, release: &Release, reply: ReplyEmpty) {
        if release.flock_unlock {
            // A lock that is not held counts as released.
            let _ = self.0.lock_file(ino, release.lock_owner, false);
        }
        reply.ok();
    }

    fn readdir(&self, _: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        self.list(ino, read, false, reply);
    }

    fn readdirplus(&self, _: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        self.list(ino, read, true, reply);
    }
}
