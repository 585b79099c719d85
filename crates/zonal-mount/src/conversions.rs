//! Conversions between the kernel's types and the core's.

use std::time::Duration;
use zonal_client::names::FoundEntry;
use zonal_fuse::{
    Errno, FuseAttr as KernelAttr, FuseEntry as KernelEntry, FuseTimestamp as KernelTime, TimeOrNow,
};
use zonal_types::{Attr, ErrorCode, Name, Timestamp};
use zonal_wire::SetTime;

/// The errno of an error code.
#[must_use]
pub fn errno(code: ErrorCode) -> Errno {
    Errno::from_raw_os_error(code.errno())
}

/// Checks a name.
///
/// # Errors
/// `NameTooLong` or `Invalid`.
pub fn name(bytes: &[u8]) -> Result<Name, ErrorCode> {
    Name::new(bytes)
}

/// Milliseconds as a time-out for the kernel.
#[must_use]
pub fn valid(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

/// A time for the kernel.
#[must_use]
pub fn kernel_time(time: Timestamp) -> KernelTime {
    KernelTime {
        secs: time.seconds,
        nanos: time.nanos,
    }
}

/// A time from the kernel.
#[must_use]
pub fn core_time(time: KernelTime) -> Timestamp {
    Timestamp {
        seconds: time.secs,
        nanos: time.nanos,
    }
}

/// A time to set.
#[must_use]
pub fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::At(time) => SetTime::At {
            time: core_time(time),
        },
    }
}

/// Attributes for the kernel.
#[must_use]
pub fn kernel_attr(attr: &Attr) -> KernelAttr {
    KernelAttr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: kernel_time(attr.atime),
        mtime: kernel_time(attr.mtime),
        ctime: kernel_time(attr.ctime),
        mode: attr.kind.mode_bits() | attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
    }
}

/// An entry for the kernel. Inode numbers are never reused, so the generation is always 0.
#[must_use]
pub fn kernel_entry(found: &FoundEntry) -> KernelEntry {
    KernelEntry {
        ino: found.attr.ino.0,
        generation: 0,
        attr: kernel_attr(&found.attr),
        entry_valid: valid(found.entry_ms),
        attr_valid: valid(found.attr_ms),
    }
}
