//! The null file system: keeps names, attributes and locks in memory and throws data away.
//!
//! Writes only change the size, reads return zeros. So its cost is that of the kernel's protocol:
//! the ceiling of any FUSE file system.

mod locks;
mod ops;
mod tree;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use crate::fs::Context;
use crate::init::SessionConfig;
use crate::mount::{MountError, MountOptions};
use crate::reply::ReplyDirectory;
use crate::request::{Read, Rename};
use crate::session::FuseSession;
use crate::types::{
    FuseAttr, FuseEntry, FuseFileKind, FuseTimestamp, OpenFlags, SetAttr, TimeOrNow,
};
use locks::Locks;
use tree::{Body, Directory, Node, Tree, now};

/// Options of the null file system.
#[derive(Clone, Copy, Debug)]
pub struct NullOptions {
    /// How long the kernel caches names.
    pub entry_valid: Duration,
    /// How long the kernel caches attributes.
    pub attr_valid: Duration,
    /// Open files with direct I/O, around the page cache.
    pub direct_io: bool,
    /// Keep the page cache across opens.
    pub keep_cache: bool,
}

impl Default for NullOptions {
    fn default() -> Self {
        Self {
            entry_valid: Duration::from_secs(60),
            attr_valid: Duration::from_secs(60),
            direct_io: false,
            keep_cache: true,
        }
    }
}

/// The null file system.
#[derive(Debug)]
pub struct NullFs {
    options: NullOptions,
    tree: Tree,
    locks: Locks,
    zeros: Vec<u8>,
}

/// Mounts a new null file system on `path`.
pub fn mount(
    path: &Path,
    options: NullOptions,
    config: &SessionConfig,
) -> Result<FuseSession, MountError> {
    let mount = MountOptions {
        source: "zonal:null".into(),
        ..MountOptions::default()
    };
    FuseSession::mount(Arc::new(NullFs::new(options)), path, &mount, config)
}

const NAME_MAX: usize = 255;
const LINK_MAX: u32 = 1 << 20;

impl NullFs {
    /// An empty file system owned by the caller.
    #[must_use]
    pub fn new(options: NullOptions) -> Self {
        let tree = Tree::new();
        let root = FuseAttr {
            mode: libc::S_IFDIR | 0o755,
            nlink: 2,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            ..blank()
        };
        tree.add(root, Body::Directory(Directory::new(1)));
        Self {
            options,
            tree,
            locks: Locks::default(),
            zeros: vec![0; 1 << 20],
        }
    }

    /// Number of requests that wait for a lock.
    #[must_use]
    pub fn lock_waiters(&self) -> usize {
        self.locks.waiters()
    }

    fn entry(&self, attr: FuseAttr) -> FuseEntry {
        FuseEntry {
            ino: attr.ino,
            generation: 0,
            attr,
            entry_valid: self.options.entry_valid,
            attr_valid: self.options.attr_valid,
        }
    }

    fn open_flags(&self) -> OpenFlags {
        if self.options.direct_io {
            OpenFlags::DIRECT_IO | OpenFlags::PARALLEL_DIRECT_WRITES
        } else if self.options.keep_cache {
            OpenFlags::KEEP_CACHE
        } else {
            OpenFlags::NONE
        }
    }

    /// Creates a node under a name.
    fn make(
        &self,
        ctx: &Context<'_>,
        parent: u64,
        name: &[u8],
        new: NewNode,
    ) -> Result<FuseEntry, Errno> {
        if name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let is_dir = matches!(new.body, Body::Directory(_));
        let attr = self.tree.add(new.attr(ctx), new.body);
        let mode = attr.mode;
        let done = self.in_directory(parent, |node| {
            let directory = node.directory().ok_or(Errno::NOTDIR)?;
            if !directory.insert(name, attr.ino, mode) {
                return Err(Errno::EXIST);
            }
            touched(&mut node.attr);
            node.attr.nlink += u32::from(is_dir);
            Ok(())
        });
        if let Err(error) = done {
            self.tree.remove(attr.ino);
            return Err(error);
        }
        Ok(self.entry(attr))
    }

    fn in_directory<T>(
        &self,
        ino: u64,
        f: impl FnOnce(&mut Node) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.tree.with_mut(ino, f).ok_or(Errno::NOENT)?
    }

    fn find(&self, parent: u64, name: &[u8]) -> Result<FuseAttr, Errno> {
        let ino = self.tree.with(parent, |node| match (&node.body, name) {
            (Body::Directory(_), b".") => Ok(parent),
            (Body::Directory(directory), b"..") => Ok(directory.parent),
            (Body::Directory(directory), _) => directory.get(name).ok_or(Errno::NOENT),
            _ => Err(Errno::NOTDIR),
        });
        self.tree
            .attr(ino.ok_or(Errno::NOENT)??)
            .ok_or(Errno::NOENT)
    }

    /// Removes a name of a node. A node without names stays until the kernel forgets it, as it may
    /// be open.
    fn unlinked(&self, ino: u64) {
        self.tree.with_mut(ino, |node| {
            node.attr.ctime = now();
            let links = match node.body {
                Body::Directory(_) => 2,
                _ => 1,
            };
            node.attr.nlink = node.attr.nlink.saturating_sub(links);
        });
    }

    fn remove(&self, parent: u64, name: &[u8], want_dir: bool) -> Result<(), Errno> {
        let ino = self.find(parent, name)?.ino;
        let state = self.tree.with(ino, |node| match &node.body {
            Body::Directory(directory) => (true, directory.is_empty()),
            _ => (false, true),
        });
        match (state.ok_or(Errno::NOENT)?, want_dir) {
            ((true, _), false) => return Err(Errno::ISDIR),
            ((false, _), true) => return Err(Errno::NOTDIR),
            ((true, false), true) => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.in_directory(parent, |node| {
            let removed = node
                .directory()
                .and_then(|directory| directory.remove(name));
            touched(&mut node.attr);
            node.attr.nlink -= u32::from(want_dir);
            removed.ok_or(Errno::NOENT)
        })?;
        self.unlinked(ino);
        Ok(())
    }

    fn do_rename(&self, parent: u64, r: &Rename<'_>) -> Result<(), Errno> {
        if r.flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::INVAL);
        }
        if r.new_name.len() > NAME_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        let moved = self.find(parent, r.name)?;
        let is_dir = moved.mode & libc::S_IFMT == libc::S_IFDIR;
        if let Ok(old) = self.find(r.new_parent, r.new_name) {
            if r.flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EXIST);
            }
            if old.ino == moved.ino {
                return Ok(());
            }
            match (is_dir, old.mode & libc::S_IFMT == libc::S_IFDIR) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                _ => self.remove(r.new_parent, r.new_name, is_dir)?,
            }
        }
        let step = |ino: u64, add: bool| {
            self.in_directory(ino, |node| {
                let directory = node.directory().ok_or(Errno::NOTDIR)?;
                if add {
                    directory.insert(r.new_name, moved.ino, moved.mode);
                    node.attr.nlink += u32::from(is_dir);
                } else {
                    directory.remove(r.name);
                    node.attr.nlink -= u32::from(is_dir);
                }
                touched(&mut node.attr);
                Ok(())
            })
        };
        step(parent, false)?;
        step(r.new_parent, true)?;
        self.tree.with_mut(moved.ino, |node| {
            node.attr.ctime = now();
            if let Some(directory) = node.directory() {
                directory.parent = r.new_parent;
            }
        });
        Ok(())
    }

    fn do_link(&self, ino: u64, parent: u64, name: &[u8]) -> Result<FuseEntry, Errno> {
        let attr = self.tree.attr(ino).ok_or(Errno::NOENT)?;
        if attr.nlink >= LINK_MAX {
            return Err(Errno::MLINK);
        }
        self.in_directory(parent, |node| {
            let directory = node.directory().ok_or(Errno::NOTDIR)?;
            if !directory.insert(name, ino, attr.mode) {
                return Err(Errno::EXIST);
            }
            touched(&mut node.attr);
            Ok(())
        })?;
        let linked = self.tree.with_mut(ino, |node| {
            node.attr.nlink += 1;
            node.attr.ctime = now();
            node.attr
        });
        linked.map(|attr| self.entry(attr)).ok_or(Errno::NOENT)
    }

    fn list(&self, ino: u64, read: &Read, plus: bool, reply: ReplyDirectory) {
        let mut buffer = reply.buffer();
        let directory = FuseFileKind::from_mode(libc::S_IFDIR);
        let found = self.tree.with(ino, |node| {
            let Body::Directory(entries) = &node.body else {
                return Err(Errno::NOTDIR);
            };
            let mut fits = true;
            for (cookie, name, ino) in [(1, &b"."[..], ino), (2, &b".."[..], entries.parent)] {
                if fits && read.offset < cookie {
                    fits = if plus {
                        buffer.add_plus(&FuseEntry::default(), ino, cookie, directory, name)
                    } else {
                        buffer.add(ino, cookie, directory, name)
                    };
                }
            }
            let mut picked = Vec::new();
            if !fits {
                return Ok(picked);
            }
            // Attributes are behind other locks: copy the names out first.
            let mut room = read.size as usize;
            for (cookie, name, ino, mode) in entries.after(read.offset) {
                let kind = FuseFileKind::from_mode(mode);
                if plus {
                    let need = 152 + name.len();
                    if need > room {
                        break;
                    }
                    room -= need;
                    picked.push((cookie, name.clone(), ino, kind));
                } else if !buffer.add(ino, cookie, kind, name) {
                    break;
                }
            }
            Ok(picked)
        });
        match found.unwrap_or(Err(Errno::NOENT)) {
            Err(error) => reply.err(error),
            Ok(picked) => {
                for (cookie, name, ino, kind) in picked {
                    let entry = self
                        .tree
                        .attr(ino)
                        .map(|a| self.entry(a))
                        .unwrap_or_default();
                    if !buffer.add_plus(&entry, ino, cookie, kind, &name) {
                        break;
                    }
                }
                reply.entries(&buffer);
            }
        }
    }
}

/// A node to create.
struct NewNode {
    mode: u32,
    rdev: u32,
    body: Body,
}

impl NewNode {
    fn attr(&self, ctx: &Context<'_>) -> FuseAttr {
        let size = if let Body::Symlink(target) = &self.body {
            target.len() as u64
        } else {
            0
        };
        FuseAttr {
            mode: self.mode,
            rdev: self.rdev,
            nlink: if matches!(self.body, Body::Directory(_)) {
                2
            } else {
                1
            },
            uid: ctx.uid,
            gid: ctx.gid,
            size,
            ..blank()
        }
    }
}

fn blank() -> FuseAttr {
    let now = now();
    FuseAttr {
        atime: now,
        mtime: now,
        ctime: now,
        blksize: 1 << 20,
        ..FuseAttr::default()
    }
}

fn touched(attr: &mut FuseAttr) {
    attr.mtime = now();
    attr.ctime = attr.mtime;
}

fn resized(attr: &mut FuseAttr, size: u64) {
    attr.size = size;
    attr.blocks = size.div_ceil(512);
    touched(attr);
}

fn time(value: TimeOrNow) -> FuseTimestamp {
    match value {
        TimeOrNow::Now => now(),
        TimeOrNow::At(time) => time,
    }
}

fn apply(attr: &mut FuseAttr, change: &SetAttr) {
    if let Some(size) = change.size {
        resized(attr, size);
    }
    if let Some(mode) = change.mode {
        attr.mode = attr.mode & libc::S_IFMT | mode & 0o7777;
    }
    attr.uid = change.uid.unwrap_or(attr.uid);
    attr.gid = change.gid.unwrap_or(attr.gid);
    attr.atime = change.atime.map_or(attr.atime, time);
    attr.mtime = change.mtime.map_or(attr.mtime, time);
    attr.ctime = change.ctime.unwrap_or_else(now);
}
