//! Decoded operations of the kernel: one structure for each.

use crate::bytes::Reader;
use crate::types::{FuseLockKind, SetAttr};

macro_rules! fields {
    ($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name $(<$life>)? { $($(#[$fdoc])* pub $field: $type),* }
    };
}

fields!(/// MKNOD.
Mknod {
    /// Type and permission bits.
    mode: u32,
    /// Device number.
    rdev: u32,
    /// The caller's umask, not yet applied.
    umask: u32,
});
fields!(/// RENAME and RENAME2.
Rename<'a> {
    /// Name in the request's directory.
    name: &'a [u8],
    /// Directory of the new name.
    new_parent: u64,
    /// The new name.
    new_name: &'a [u8],
    /// RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT.
    flags: u32,
});
fields!(/// OPEN.
Open {
    /// Flags of open(2), with [`crate::abi::FMODE_EXEC`] when opened for execution.
    flags: u32,
    /// Clear set-user-id and set-group-id (with O_TRUNC).
    kill_suidgid: bool,
});
fields!(/// CREATE and TMPFILE.
Create {
    /// Flags of open(2).
    flags: u32,
    /// Type and permission bits.
    mode: u32,
    /// The caller's umask, not yet applied.
    umask: u32,
    /// Clear set-user-id and set-group-id (with O_TRUNC).
    kill_suidgid: bool,
});
fields!(/// READ, READDIR, READDIRPLUS.
Read {
    /// File handle.
    fh: u64,
    /// Position in bytes, or the cookie of a directory.
    offset: u64,
    /// Bytes to return, at most.
    size: u32,
    /// Flags of open(2) of the handle.
    flags: u32,
    /// Lock owner, when valid.
    lock_owner: Option<u64>,
});
fields!(/// WRITE.
Write {
    /// File handle (a guess when `from_cache`).
    fh: u64,
    /// Position in bytes.
    offset: u64,
    /// Bytes that follow: a [`crate::WriteData`].
    size: u32,
    /// Flags of open(2) of the handle.
    flags: u32,
    /// Lock owner, when valid.
    lock_owner: Option<u64>,
    /// Written back from the page cache (mmap, write-back cache).
    from_cache: bool,
    /// Clear set-user-id and set-group-id.
    kill_suidgid: bool,
});
fields!(/// RELEASE and RELEASEDIR.
Release {
    /// File handle.
    fh: u64,
    /// Flags of open(2) of the handle.
    flags: u32,
    /// The release includes a flush.
    flush: bool,
    /// Drop the flock(2) lock of `lock_owner`.
    flock_unlock: bool,
    /// Lock owner.
    lock_owner: u64,
});
fields!(/// SETXATTR.
SetXattr<'a> {
    /// Name with its namespace.
    name: &'a [u8],
    /// Value.
    value: &'a [u8],
    /// XATTR_CREATE, XATTR_REPLACE.
    flags: u32,
    /// Clear set-group-id (setting the access ACL).
    kill_sgid: bool,
});
fields!(/// GETLK, SETLK, SETLKW.
Lock {
    /// File handle.
    fh: u64,
    /// Lock owner: for fcntl the process's file table, for flock the open file.
    owner: u64,
    /// First byte.
    start: u64,
    /// Last byte, inclusive; `i64::MAX` is the end of the file.
    end: u64,
    /// Kind.
    kind: FuseLockKind,
    /// Process.
    pid: u32,
    /// flock(2) rather than fcntl(2).
    flock: bool,
});
fields!(/// IOCTL.
Ioctl<'a> {
    /// File handle.
    fh: u64,
    /// `FUSE_IOCTL_*`.
    flags: u32,
    /// Command.
    cmd: u32,
    /// Argument as passed.
    arg: u64,
    /// Input.
    data: &'a [u8],
    /// Bytes available for output.
    out_size: u32,
});
fields!(/// FALLOCATE.
Fallocate {
    /// File handle.
    fh: u64,
    /// First byte.
    offset: u64,
    /// Number of bytes.
    length: u64,
    /// `FALLOC_FL_*`.
    mode: u32,
});
fields!(/// COPY_FILE_RANGE.
CopyFileRange {
    /// Handle copied from, of the request's inode.
    fh_in: u64,
    /// Position copied from.
    offset_in: u64,
    /// Inode copied to.
    ino_out: u64,
    /// Handle copied to.
    fh_out: u64,
    /// Position copied to.
    offset_out: u64,
    /// Number of bytes.
    len: u64,
    /// Flags of copy_file_range(2).
    flags: u64,
    /// The 64-bit form: the reply carries 64 bits.
    wide: bool,
});
fields!(/// STATX.
Statx {
    /// File handle, when valid.
    fh: Option<u64>,
    /// AT_STATX_*.
    flags: u32,
    /// STATX_* wanted.
    mask: u32,
});
fields!(/// INIT.
Init {
    /// Major version of the kernel.
    major: u32,
    /// Minor version of the kernel.
    minor: u32,
    /// Largest read-ahead, bytes.
    max_readahead: u32,
    /// Flags offered.
    flags: u64,
});

/// The inodes of a FORGET or BATCH_FORGET.
#[derive(Clone, Copy, Debug)]
pub struct Forgets<'a> {
    pub(crate) count: u32,
    pub(crate) items: Reader<'a>,
}

impl Iterator for Forgets<'_> {
    /// Inode, number of look-ups to forget.
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        self.count = self.count.checked_sub(1)?;
        Some((self.items.u64().ok()?, self.items.u64().ok()?))
    }
}

/// The operation of a request.
#[derive(Debug)]
#[expect(
    missing_docs,
    reason = "the names are the operations; the contents document themselves"
)]
pub enum Operation<'a> {
    Init(Init),
    Lookup {
        name: &'a [u8],
    },
    Forget {
        nlookup: u64,
    },
    BatchForget(Forgets<'a>),
    Getattr {
        fh: Option<u64>,
    },
    Setattr(SetAttr),
    Readlink,
    Symlink {
        name: &'a [u8],
        target: &'a [u8],
    },
    Mknod(Mknod, &'a [u8]),
    Mkdir {
        mode: u32,
        umask: u32,
        name: &'a [u8],
    },
    Unlink {
        name: &'a [u8],
    },
    Rmdir {
        name: &'a [u8],
    },
    Rename(Rename<'a>),
    Link {
        ino: u64,
        name: &'a [u8],
    },
    Open(Open),
    Create(Create, &'a [u8]),
    Tmpfile(Create),
    Read(Read),
    Write(Write),
    Statfs,
    Release(Release),
    Fsync {
        fh: u64,
        datasync: bool,
    },
    Flush {
        fh: u64,
        lock_owner: u64,
    },
    Opendir {
        flags: u32,
    },
    Readdir(Read),
    Readdirplus(Read),
    Releasedir(Release),
    Fsyncdir {
        fh: u64,
        datasync: bool,
    },
    Setxattr(SetXattr<'a>),
    Getxattr {
        name: &'a [u8],
        size: u32,
    },
    Listxattr {
        size: u32,
    },
    Removexattr {
        name: &'a [u8],
    },
    Access {
        mask: u32,
    },
    Getlk(Lock),
    Setlk(Lock),
    Setlkw(Lock),
    Interrupt {
        unique: u64,
    },
    Ioctl(Ioctl<'a>),
    Fallocate(Fallocate),
    Lseek {
        fh: u64,
        offset: u64,
        whence: u32,
    },
    CopyFileRange(CopyFileRange),
    Statx(Statx),
    Syncfs,
    Destroy,
    NotifyReply,
    Unknown,
}
