//! Attributes of an inode as `stat` returns them, and the credentials of a caller.

use crate::ids::Ino;
use crate::time::Timestamp;
use crate::{codec_enum, codec_struct};

codec_enum! {
    /// The type of an inode.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
    pub enum FileKind {
        /// A regular file.
        File = 1,
        /// A directory.
        Directory = 2,
        /// A symbolic link.
        Symlink = 3,
        /// A named pipe.
        Fifo = 4,
        /// A Unix socket.
        Socket = 5,
        /// A character device.
        CharDevice = 6,
        /// A block device.
        BlockDevice = 7,
    }
}

impl FileKind {
    /// The `S_IFMT` bits of `st_mode`.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::File => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }

    /// The type in `st_mode`; `None` for an unknown type.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & 0o170_000 {
            0o010_000 => Self::Fifo,
            0o020_000 => Self::CharDevice,
            0o040_000 => Self::Directory,
            0o060_000 => Self::BlockDevice,
            0o100_000 => Self::File,
            0o120_000 => Self::Symlink,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// The `d_type` of a directory entry.
    #[must_use]
    pub fn dirent_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

codec_struct! {
    /// Attributes of an inode, as `stat` gives them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Attr {
        /// Inode number.
        ino: Ino,
        /// Type.
        kind: FileKind,
        /// Permission bits, set-id and sticky bits (0o7777).
        mode: u32,
        /// Number of hard links.
        nlink: u32,
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
        /// Device number of a device node, as Linux encodes it.
        rdev: u32,
        /// Size in bytes.
        size: u64,
        /// Allocated bytes in all targets (`st_blocks` * 512).
        allocated: u64,
        /// Last access (relatime).
        atime: Timestamp,
        /// Last change of the contents.
        mtime: Timestamp,
        /// Last change of the inode (status change).
        ctime: Timestamp,
        /// Time of creation.
        btime: Timestamp,
        /// Change counter: rises with every change of the inode, of its entries, or of its data as
        /// reported to the shard.
        change: u64,
        /// Bit set of [`crate::limits::xattr_flags`]: which kinds of extended attribute exist.
        xattrs: u8,
    }
}

codec_struct! {
    /// Credentials of a caller: the file-system ids of the calling thread.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct Credentials {
        /// User id; 0 may do everything.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Supplementary groups (left empty when uid is 0).
        groups: Vec<u32>,
    }
}

impl Credentials {
    /// Credentials of the superuser.
    #[must_use]
    pub fn root() -> Self {
        Self::default()
    }

    /// True where `gid` is the caller's group or one of its supplementary groups.
    #[must_use]
    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }
}
