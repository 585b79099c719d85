//! Values that requests and replies share: attributes, times, entries, locks.

use std::ops::BitOr;
use std::time::Duration;

/// A time: seconds since 1970 (negative before) and nanoseconds below 1e9.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FuseTimestamp {
    /// Seconds.
    pub secs: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

/// A time to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeOrNow {
    /// The present time of the side that keeps the attributes.
    Now,
    /// This time.
    At(FuseTimestamp),
}

/// SETATTR: the attributes to change.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetAttr {
    /// The handle of the call (ftruncate).
    pub fh: Option<u64>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size, bytes.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<TimeOrNow>,
    /// Modification time.
    pub mtime: Option<TimeOrNow>,
    /// Change time (sent with the write-back cache only).
    pub ctime: Option<FuseTimestamp>,
    /// Lock owner (truncation).
    pub lock_owner: Option<u64>,
    /// Clear set-user-id and set-group-id.
    pub kill_suidgid: bool,
}

/// Attributes of an inode in the kernel's form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FuseAttr {
    /// Inode number.
    pub ino: u64,
    /// Size, bytes.
    pub size: u64,
    /// Allocated blocks of 512 bytes.
    pub blocks: u64,
    /// Access time.
    pub atime: FuseTimestamp,
    /// Modification time.
    pub mtime: FuseTimestamp,
    /// Change time.
    pub ctime: FuseTimestamp,
    /// Type and permission bits.
    pub mode: u32,
    /// Links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Preferred size of I/O, bytes.
    pub blksize: u32,
}

/// The answer to a look-up: the inode behind the name, and how long the kernel may cache it.
#[derive(Clone, Copy, Debug, Default)]
pub struct FuseEntry {
    /// Node id; 0 means that the name does not exist, cached for `entry_valid`.
    pub ino: u64,
    /// Generation: (ino, generation) is never reused.
    pub generation: u64,
    /// Attributes.
    pub attr: FuseAttr,
    /// How long the name is cached.
    pub entry_valid: Duration,
    /// How long the attributes are cached.
    pub attr_valid: Duration,
}

/// The answer to STATX: attributes beyond [`FuseAttr`].
#[derive(Clone, Copy, Debug, Default)]
pub struct StatxReply {
    /// The basic attributes.
    pub attr: FuseAttr,
    /// Birth time, when known.
    pub btime: Option<FuseTimestamp>,
    /// STATX_ATTR_* set.
    pub attributes: u64,
    /// STATX_ATTR_* known.
    pub attributes_mask: u64,
    /// How long the attributes are cached.
    pub attr_valid: Duration,
}

/// The answer to STATFS.
#[derive(Clone, Copy, Debug, Default)]
pub struct StatFs {
    /// Blocks of `frsize` bytes.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for ordinary users.
    pub bavail: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// Preferred size of I/O.
    pub bsize: u32,
    /// Longest name.
    pub namelen: u32,
    /// Unit of the block counts.
    pub frsize: u32,
}

/// Kind of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseLockKind {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
    /// None.
    Unlock,
}

impl FuseLockKind {
    /// From F_RDLCK, F_WRLCK, F_UNLCK.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        match i32::try_from(raw).ok()? {
            libc::F_RDLCK => Some(Self::Read),
            libc::F_WRLCK => Some(Self::Write),
            libc::F_UNLCK => Some(Self::Unlock),
            _ => None,
        }
    }

    pub(crate) fn raw(self) -> u32 {
        let raw = match self {
            Self::Read => libc::F_RDLCK,
            Self::Write => libc::F_WRLCK,
            Self::Unlock => libc::F_UNLCK,
        };
        raw.unsigned_abs()
    }
}

/// A lock as GETLK reports it.
#[derive(Clone, Copy, Debug)]
pub struct FileLock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive.
    pub end: u64,
    /// Kind; [`FuseLockKind::Unlock`]: no lock conflicts.
    pub kind: FuseLockKind,
    /// Process that owns it.
    pub pid: u32,
}

/// Type of a directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseFileKind(pub(crate) u32);

impl FuseFileKind {
    /// From the type bits of a mode.
    #[must_use]
    pub fn from_mode(mode: u32) -> Self {
        Self((mode & libc::S_IFMT) >> 12)
    }
}

/// Flags of a reply to OPEN, CREATE, OPENDIR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    /// No flags: the page cache of the file is dropped.
    pub const NONE: Self = Self(0);
    /// Go around the page cache.
    pub const DIRECT_IO: Self = Self(1 << 0);
    /// Do not drop the page cache of the file.
    pub const KEEP_CACHE: Self = Self(1 << 1);
    /// The handle cannot seek.
    pub const NONSEEKABLE: Self = Self(1 << 2);
    /// The entries of this directory may be cached.
    pub const CACHE_DIR: Self = Self(1 << 3);
    /// No FLUSH at close of this handle.
    pub const NOFLUSH: Self = Self(1 << 5);
    /// Direct writes of one file may run in parallel.
    pub const PARALLEL_DIRECT_WRITES: Self = Self(1 << 6);

    /// True where all flags of `other` are set.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for OpenFlags {
    type Output = Self;
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}
