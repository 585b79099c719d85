//! Attributes for the tests of the cache's parts.

use zonal_types::{Attr, FileKind, Ino, Timestamp};

/// Attributes of an empty directory after its `change`-th change.
pub(crate) fn directory(ino: u64, change: u64) -> Attr {
    let time = Timestamp {
        seconds: 1,
        nanos: 0,
    };
    Attr {
        ino: Ino(ino),
        kind: FileKind::Directory,
        mode: 0o755,
        nlink: 2,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        change,
        xattrs: 0,
    }
}
