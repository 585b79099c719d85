//! Layouts of replies and notifications to the kernel.

use std::time::Duration;

use crate::abi;
use crate::bytes::Put;
use crate::types::{FileLock, FuseAttr, FuseEntry, FuseTimestamp, OpenFlags, StatFs, StatxReply};

/// Size of `fuse_entry_out`.
pub(crate) const ENTRY_OUT: usize = 128;
/// The largest fixed reply: header and `fuse_statx_out`.
pub(crate) const FIXED: usize = abi::OUT_HEADER + 32 + 256;

/// The header of a reply or (with unique 0 and a code for `error`) of a notification.
pub(crate) fn header(out: &mut impl Put, payload: usize, error: i32, unique: u64) {
    let len = u32::try_from(abi::OUT_HEADER + payload).unwrap_or(u32::MAX);
    out.u32(len);
    out.i32(error);
    out.u64(unique);
}

#[expect(
    clippy::cast_sign_loss,
    reason = "the kernel reads the 64 bits as signed seconds"
)]
fn secs(time: FuseTimestamp) -> u64 {
    time.secs as u64
}

pub(crate) fn attr(out: &mut impl Put, a: &FuseAttr) {
    out.u64(a.ino);
    out.u64(a.size);
    out.u64(a.blocks);
    out.u64(secs(a.atime));
    out.u64(secs(a.mtime));
    out.u64(secs(a.ctime));
    out.u32(a.atime.nanos);
    out.u32(a.mtime.nanos);
    out.u32(a.ctime.nanos);
    out.u32(a.mode);
    out.u32(a.nlink);
    out.u32(a.uid);
    out.u32(a.gid);
    out.u32(a.rdev);
    out.u32(a.blksize);
    out.u32(0);
}

pub(crate) fn entry(out: &mut impl Put, e: &FuseEntry) {
    out.u64(e.ino);
    out.u64(e.generation);
    out.u64(e.entry_valid.as_secs());
    out.u64(e.attr_valid.as_secs());
    out.u32(e.entry_valid.subsec_nanos());
    out.u32(e.attr_valid.subsec_nanos());
    attr(out, &e.attr);
}

pub(crate) fn attr_out(out: &mut impl Put, a: &FuseAttr, valid: Duration) {
    out.u64(valid.as_secs());
    out.u32(valid.subsec_nanos());
    out.u32(0);
    attr(out, a);
}

pub(crate) fn open_out(out: &mut impl Put, fh: u64, flags: OpenFlags) {
    out.u64(fh);
    out.u32(flags.0);
    out.u32(0);
}

pub(crate) fn statfs(out: &mut impl Put, s: &StatFs) {
    out.u64(s.blocks);
    out.u64(s.bfree);
    out.u64(s.bavail);
    out.u64(s.files);
    out.u64(s.ffree);
    out.u32(s.bsize);
    out.u32(s.namelen);
    out.u32(s.frsize);
    out.put(&[0; 28]);
}

pub(crate) fn lock(out: &mut impl Put, l: &FileLock) {
    out.u64(l.start);
    out.u64(l.end);
    out.u32(l.kind.raw());
    out.u32(l.pid);
}

fn statx_time(out: &mut impl Put, time: FuseTimestamp) {
    out.i64(time.secs);
    out.u32(time.nanos);
    out.u32(0);
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "type and permissions are 16 bits of mode"
)]
pub(crate) fn statx(out: &mut impl Put, s: &StatxReply) {
    let a = &s.attr;
    out.u64(s.attr_valid.as_secs());
    out.u32(s.attr_valid.subsec_nanos());
    out.u32(0);
    out.put(&[0; 16]);
    let birth = if s.btime.is_some() {
        libc::STATX_BTIME
    } else {
        0
    };
    out.u32(libc::STATX_BASIC_STATS | birth);
    out.u32(a.blksize);
    out.u64(s.attributes);
    out.u32(a.nlink);
    out.u32(a.uid);
    out.u32(a.gid);
    out.u16(a.mode as u16);
    out.u16(0);
    out.u64(a.ino);
    out.u64(a.size);
    out.u64(a.blocks);
    out.u64(s.attributes_mask);
    statx_time(out, a.atime);
    statx_time(out, s.btime.unwrap_or_default());
    statx_time(out, a.ctime);
    statx_time(out, a.mtime);
    // The kernel's own 32-bit encoding of a device number (minor in bits 0-7 and 20-31).
    out.u32(a.rdev >> 8 & 0xfff);
    out.u32(a.rdev & 0xff | a.rdev >> 12 & 0xf_ff00);
    out.put(&[0; 8 + 14 * 8]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_sizes_match_the_kernel() {
        let size = |f: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            f(&mut out);
            out.len()
        };
        assert_eq!(size(&|o| header(o, 0, 0, 1)), abi::OUT_HEADER);
        assert_eq!(size(&|o| attr(o, &FuseAttr::default())), 88);
        assert_eq!(size(&|o| entry(o, &FuseEntry::default())), ENTRY_OUT);
        assert_eq!(
            size(&|o| attr_out(o, &FuseAttr::default(), Duration::ZERO)),
            104
        );
        assert_eq!(size(&|o| open_out(o, 0, OpenFlags::NONE)), 16);
        assert_eq!(size(&|o| statfs(o, &StatFs::default())), 80);
        assert_eq!(
            size(&|o| statx(o, &StatxReply::default())),
            FIXED - abi::OUT_HEADER
        );
    }
}
