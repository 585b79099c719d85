//! The operations of the null file system.

use rustix::io::Errno;

use super::tree::{Body, Directory};
use super::{NewNode, NullFs, apply, resized, touched};
use crate::fs::{Context, FileSystem};
use crate::reply::{
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLock,
    ReplyOpen, ReplyStatfs, ReplyWrite,
};
use crate::request::{Create, Fallocate, Forgets, Lock, Mknod, Open, Read, Release, Rename, Write};
use crate::types::{FuseEntry, SetAttr, StatFs};
use crate::write_data::WriteData;

fn answer_entry(reply: ReplyEntry, result: Result<FuseEntry, Errno>) {
    match result {
        Ok(entry) => reply.entry(&entry),
        Err(error) => reply.err(error),
    }
}

fn answer(reply: ReplyEmpty, result: Result<(), Errno>) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.err(error),
    }
}

impl FileSystem for NullFs {
    fn interrupt(&self, unique: u64) -> bool {
        self.locks.interrupt(unique)
    }

    fn forget(&self, ino: u64, _: u64) {
        if self.tree.attr(ino).is_some_and(|attr| attr.nlink == 0) {
            self.tree.remove(ino);
        }
    }

    fn batch_forget(&self, forgets: Forgets<'_>) {
        forgets.for_each(|(ino, count)| self.forget(ino, count));
    }

    fn lookup(&self, _: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        match self.find(parent, name) {
            Ok(attr) => reply.entry(&self.entry(attr)),
            Err(Errno::NOENT) if !self.options.entry_valid.is_zero() => {
                reply.negative(self.options.entry_valid);
            }
            Err(error) => reply.err(error),
        }
    }

    fn getattr(&self, _: &Context<'_>, ino: u64, _: Option<u64>, reply: ReplyAttr) {
        match self.tree.attr(ino) {
            Some(attr) => reply.attr(&attr, self.options.attr_valid),
            None => reply.err(Errno::NOENT),
        }
    }

    fn setattr(&self, _: &Context<'_>, ino: u64, change: &SetAttr, reply: ReplyAttr) {
        let changed = self.tree.with_mut(ino, |node| {
            apply(&mut node.attr, change);
            node.attr
        });
        match changed {
            Some(attr) => reply.attr(&attr, self.options.attr_valid),
            None => reply.err(Errno::NOENT),
        }
    }

    fn readlink(&self, _: &Context<'_>, ino: u64, reply: ReplyData) {
        let target = self.tree.with(ino, |node| match &node.body {
            Body::Symlink(target) => Some(target.clone()),
            _ => None,
        });
        match target.flatten() {
            Some(target) => reply.data(&target),
            None => reply.err(Errno::INVAL),
        }
    }

    fn symlink(&self, c: &Context<'_>, parent: u64, name: &[u8], target: &[u8], r: ReplyEntry) {
        let body = Body::Symlink(target.to_vec());
        let new = NewNode {
            mode: libc::S_IFLNK | 0o777,
            rdev: 0,
            body,
        };
        answer_entry(r, self.make(c, parent, name, new));
    }

    fn mknod(&self, c: &Context<'_>, parent: u64, name: &[u8], node: &Mknod, r: ReplyEntry) {
        let new = NewNode {
            mode: node.mode & !node.umask,
            rdev: node.rdev,
            body: Body::Other,
        };
        answer_entry(r, self.make(c, parent, name, new));
    }

    fn mkdir(&self, c: &Context<'_>, dir: u64, name: &[u8], mode: u32, umask: u32, r: ReplyEntry) {
        let mode = libc::S_IFDIR | mode & 0o7777 & !umask;
        let new = NewNode {
            mode,
            rdev: 0,
            body: Body::Directory(Directory::new(dir)),
        };
        answer_entry(r, self.make(c, dir, name, new));
    }

    fn unlink(&self, _: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        answer(reply, self.remove(parent, name, false));
    }

    fn rmdir(&self, _: &Context<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        answer(reply, self.remove(parent, name, true));
    }

    fn rename(&self, _: &Context<'_>, parent: u64, rename: &Rename<'_>, reply: ReplyEmpty) {
        answer(reply, self.do_rename(parent, rename));
    }

    fn link(&self, _: &Context<'_>, ino: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        answer_entry(reply, self.do_link(ino, parent, name));
    }

    fn open(&self, _: &Context<'_>, ino: u64, open: &Open, reply: ReplyOpen) {
        if open.flags & libc::O_TRUNC.unsigned_abs() != 0 {
            self.tree.with_mut(ino, |node| resized(&mut node.attr, 0));
        }
        reply.opened(0, self.open_flags());
    }

    fn create(&self, c: &Context<'_>, parent: u64, name: &[u8], a: &Create, r: ReplyCreate) {
        let new = NewNode {
            mode: a.mode & !a.umask,
            rdev: 0,
            body: Body::Other,
        };
        let made = match self.make(c, parent, name, new) {
            Err(Errno::EXIST) if a.flags & libc::O_EXCL.unsigned_abs() == 0 => {
                self.find(parent, name).map(|attr| self.entry(attr))
            }
            made => made,
        };
        match made {
            Ok(entry) => r.created(&entry, 0, self.open_flags()),
            Err(error) => r.err(error),
        }
    }

    fn tmpfile(&self, c: &Context<'_>, _: u64, a: &Create, reply: ReplyCreate) {
        let new = NewNode {
            mode: a.mode & !a.umask,
            rdev: 0,
            body: Body::Other,
        };
        let mut attr = new.attr(c);
        attr.nlink = 0;
        let attr = self.tree.add(attr, new.body);
        reply.created(&self.entry(attr), 0, self.open_flags());
    }

    fn read(&self, _: &Context<'_>, ino: u64, read: &Read, reply: ReplyData) {
        let Some(attr) = self.tree.attr(ino) else {
            return reply.err(Errno::NOENT);
        };
        let left = attr
            .size
            .saturating_sub(read.offset)
            .min(u64::from(read.size));
        let left = usize::try_from(left).unwrap_or(0);
        match self.zeros.get(..left) {
            Some(zeros) => reply.data(zeros),
            None => reply.data(&vec![0; left]),
        }
    }

    fn write(&self, _: &Context<'_>, ino: u64, write: &Write, _: WriteData<'_>, reply: ReplyWrite) {
        let end = write.offset.saturating_add(u64::from(write.size));
        let known = self.tree.with_mut(ino, |node| {
            if end > node.attr.size {
                resized(&mut node.attr, end);
            } else {
                touched(&mut node.attr);
            }
        });
        match known {
            Some(()) => reply.written(write.size),
            None => reply.err(Errno::NOENT),
        }
    }

    fn statfs(&self, _: &Context<'_>, _: u64, reply: ReplyStatfs) {
        let free = 1 << 30;
        reply.statfs(&StatFs {
            blocks: free,
            bfree: free,
            bavail: free,
            files: free,
            ffree: free,
            bsize: 1 << 20,
            namelen: 255,
            frsize: 4096,
        });
    }

    fn release(&self, _: &Context<'_>, ino: u64, release: &Release, reply: ReplyEmpty) {
        if release.flock_unlock {
            self.locks.drop_owner(ino, true, release.lock_owner);
        }
        reply.ok();
    }

    fn flush(&self, _: &Context<'_>, ino: u64, _: u64, lock_owner: u64, reply: ReplyEmpty) {
        self.locks.drop_owner(ino, false, lock_owner);
        reply.ok();
    }

    fn fsync(&self, _: &Context<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsyncdir(&self, _: &Context<'_>, _: u64, _: u64, _: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(&self, _: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        self.list(ino, read, false, reply);
    }

    fn readdirplus(&self, _: &Context<'_>, ino: u64, read: &Read, reply: ReplyDirectory) {
        self.list(ino, read, true, reply);
    }

    fn getlk(&self, _: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyLock) {
        reply.lock(&self.locks.get(ino, lock));
    }

    fn setlk(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyEmpty) {
        self.locks.set(ctx, ino, lock, false, reply);
    }

    fn setlkw(&self, ctx: &Context<'_>, ino: u64, lock: &Lock, reply: ReplyEmpty) {
        self.locks.set(ctx, ino, lock, true, reply);
    }

    fn fallocate(&self, _: &Context<'_>, ino: u64, change: &Fallocate, reply: ReplyEmpty) {
        let end = change.offset.saturating_add(change.length);
        let grows = change.mode & libc::FALLOC_FL_KEEP_SIZE.unsigned_abs() == 0;
        self.tree.with_mut(ino, |node| {
            if grows && end > node.attr.size {
                resized(&mut node.attr, end);
            }
        });
        reply.ok();
    }
}
