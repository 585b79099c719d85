//! Requests of the kernel, decoded from bytes with every bound checked.
//!
//! A request is a header, a fixed part that depends on the operation, then names or data. An area
//! of extensions may follow, whose size is in the header. No length is trusted.

use crate::abi::{self, op};
use crate::bytes::Reader;
pub use crate::operation::{
    CopyFileRange, Create, Fallocate, Forgets, Init, Ioctl, Lock, Mknod, Open, Operation, Read,
    Release, Rename, SetXattr, Statx, Write,
};
use crate::types::{FuseLockKind, FuseTimestamp, SetAttr, TimeOrNow};

/// Why bytes are not a valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Fewer bytes than the operation needs.
    #[error("request ends too early")]
    Truncated,
    /// A name without its terminating zero.
    #[error("name without an end")]
    NameWithoutEnd,
    /// The length in the header is impossible.
    #[error("length in the header does not fit what was read")]
    BadLength,
    /// The area of extensions is malformed.
    #[error("malformed extensions")]
    BadExtension,
    /// An unknown kind of lock.
    #[error("unknown kind of lock {0}")]
    BadLock(u32),
}

/// The header every request starts with.
#[derive(Clone, Copy, Debug)]
pub struct RequestHeader {
    /// Length with header, bytes.
    pub len: u32,
    /// Operation code.
    pub opcode: u32,
    /// Id of the request; the reply quotes it.
    pub unique: u64,
    /// The request's inode.
    pub nodeid: u64,
    /// Effective file-system user id of the caller.
    pub uid: u32,
    /// Effective file-system group id of the caller.
    pub gid: u32,
    /// Thread id of the caller; 0 for requests of the kernel's own.
    pub pid: u32,
    extensions: usize,
}

/// Negotiated features that change layouts.
#[derive(Clone, Copy, Debug)]
pub struct Protocol {
    /// Minor version in use.
    pub minor: u32,
    /// Flags of INIT in use.
    pub flags: u64,
}

impl Protocol {
    /// True where a flag of INIT is in use.
    #[must_use]
    pub fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }
}

/// A decoded request.
#[derive(Debug)]
pub struct FuseRequest<'a> {
    /// Its header.
    pub header: RequestHeader,
    /// The caller's supplementary group that owns the parent directory, if the kernel sent it
    /// (`FUSE_CREATE_SUPP_GROUP`).
    pub supplementary_group: Option<u32>,
    /// The operation.
    pub operation: Operation<'a>,
}

impl RequestHeader {
    /// Decodes the header of a message read from the device.
    pub fn decode(data: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(data);
        let header = Self {
            len: r.u32()?,
            opcode: r.u32()?,
            unique: r.u64()?,
            nodeid: r.u64()?,
            uid: r.u32()?,
            gid: r.u32()?,
            pid: r.u32()?,
            extensions: usize::from(r.u16()?) * 8,
        };
        r.u16()?;
        let len = header.len as usize;
        if len > data.len() || len < abi::IN_HEADER + header.extensions {
            return Err(DecodeError::BadLength);
        }
        Ok(header)
    }
}

impl<'a> FuseRequest<'a> {
    /// Decodes a message read from the device, whose header was decoded before.
    pub fn decode(
        header: RequestHeader,
        data: &'a [u8],
        protocol: &Protocol,
    ) -> Result<FuseRequest<'a>, DecodeError> {
        let end = header.len as usize;
        let body_end = end
            .checked_sub(header.extensions)
            .ok_or(DecodeError::BadLength)?;
        let body = data
            .get(abi::IN_HEADER..body_end)
            .ok_or(DecodeError::BadLength)?;
        let supplementary_group = match header.extensions {
            0 => None,
            _ => extensions(data.get(body_end..end).ok_or(DecodeError::BadLength)?)?,
        };
        let operation = operation(header.opcode, &mut Reader::new(body), protocol)?;
        Ok(FuseRequest {
            header,
            supplementary_group,
            operation,
        })
    }
}

fn extensions(mut area: &[u8]) -> Result<Option<u32>, DecodeError> {
    let mut group = None;
    while !area.is_empty() {
        let mut r = Reader::new(area);
        let size = r.u32()? as usize;
        let kind = r.u32()?;
        if size < 8 || size > area.len() {
            return Err(DecodeError::BadExtension);
        }
        if kind == abi::EXT_GROUPS {
            let count = r.u32()?;
            if (count as usize).saturating_mul(4) > size - 12.min(size) {
                return Err(DecodeError::BadExtension);
            }
            if count > 0 {
                group = Some(r.u32()?);
            }
        }
        // Any other kind is a security context (kind = number of contexts) or newer than this
        // program: skipped.
        area = area.get(size.next_multiple_of(8)..).unwrap_or_default();
    }
    Ok(group)
}

#[expect(
    clippy::too_many_lines,
    reason = "a table of operation codes and their fields"
)]
fn operation<'a>(
    opcode: u32,
    r: &mut Reader<'a>,
    protocol: &Protocol,
) -> Result<Operation<'a>, DecodeError> {
    use Operation as O;
    Ok(match opcode {
        op::LOOKUP => O::Lookup { name: r.name()? },
        op::FORGET => O::Forget { nlookup: r.u64()? },
        op::BATCH_FORGET => forgets(r)?,
        op::GETATTR => {
            let flags = r.u32()?;
            r.u32()?;
            let fh = r.u64()?;
            O::Getattr {
                fh: (flags & abi::GETATTR_FH != 0).then_some(fh),
            }
        }
        op::SETATTR => O::Setattr(setattr(r)?),
        op::READLINK => O::Readlink,
        op::SYMLINK => O::Symlink {
            name: r.name()?,
            target: r.name()?,
        },
        op::MKNOD => {
            let node = Mknod {
                mode: r.u32()?,
                rdev: r.u32()?,
                umask: r.u32()?,
            };
            r.u32()?;
            O::Mknod(node, r.name()?)
        }
        op::MKDIR => O::Mkdir {
            mode: r.u32()?,
            umask: r.u32()?,
            name: r.name()?,
        },
        op::UNLINK => O::Unlink { name: r.name()? },
        op::RMDIR => O::Rmdir { name: r.name()? },
        op::RENAME | op::RENAME2 => O::Rename(rename(opcode, r)?),
        op::LINK => O::Link {
            ino: r.u64()?,
            name: r.name()?,
        },
        op::STATFS => O::Statfs,
        op::ACCESS => O::Access { mask: r.u32()? },
        op::GETXATTR => {
            let size = r.u32()?;
            r.u32()?;
            O::Getxattr {
                name: r.name()?,
                size,
            }
        }
        op::LISTXATTR => O::Listxattr { size: r.u32()? },
        op::REMOVEXATTR => O::Removexattr { name: r.name()? },
        op::SETXATTR => O::Setxattr(setxattr(r, protocol)?),
        op::INTERRUPT => O::Interrupt { unique: r.u64()? },
        op::SYNCFS => O::Syncfs,
        op::DESTROY => O::Destroy,
        op::NOTIFY_REPLY => O::NotifyReply,
        op::STATX => {
            let flags = r.u32()?;
            r.u32()?;
            let fh = r.u64()?;
            let fh = (flags & abi::GETATTR_FH != 0).then_some(fh);
            O::Statx(Statx {
                fh,
                flags: r.u32()?,
                mask: r.u32()?,
            })
        }
        op::INIT => O::Init(init(r)?),
        _ => return handle_operation(opcode, r),
    })
}

/// The operations on an open handle.
fn handle_operation<'a>(opcode: u32, r: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    use Operation as O;
    Ok(match opcode {
        op::OPEN => O::Open(Open {
            flags: r.u32()?,
            kill_suidgid: r.u32()? & abi::OPEN_KILL_SUIDGID != 0,
        }),
        op::OPENDIR => O::Opendir { flags: r.u32()? },
        op::CREATE => O::Create(create(r)?, r.name()?),
        op::TMPFILE => O::Tmpfile(create(r)?),
        op::READ => O::Read(read(r)?),
        op::READDIR => O::Readdir(read(r)?),
        op::READDIRPLUS => O::Readdirplus(read(r)?),
        op::WRITE => O::Write(write(r)?),
        op::RELEASE => O::Release(release(r)?),
        op::RELEASEDIR => O::Releasedir(release(r)?),
        op::FSYNC => O::Fsync {
            fh: r.u64()?,
            datasync: r.u32()? & abi::FSYNC_FDATASYNC != 0,
        },
        op::FSYNCDIR => O::Fsyncdir {
            fh: r.u64()?,
            datasync: r.u32()? & abi::FSYNC_FDATASYNC != 0,
        },
        op::FLUSH => {
            let fh = r.u64()?;
            r.u64()?;
            O::Flush {
                fh,
                lock_owner: r.u64()?,
            }
        }
        op::GETLK => O::Getlk(lock(r)?),
        op::SETLK => O::Setlk(lock(r)?),
        op::SETLKW => O::Setlkw(lock(r)?),
        op::IOCTL => O::Ioctl(ioctl(r)?),
        op::FALLOCATE => O::Fallocate(Fallocate {
            fh: r.u64()?,
            offset: r.u64()?,
            length: r.u64()?,
            mode: r.u32()?,
        }),
        op::LSEEK => O::Lseek {
            fh: r.u64()?,
            offset: r.u64()?,
            whence: r.u32()?,
        },
        op::COPY_FILE_RANGE | op::COPY_FILE_RANGE_64 => O::CopyFileRange(CopyFileRange {
            fh_in: r.u64()?,
            offset_in: r.u64()?,
            ino_out: r.u64()?,
            fh_out: r.u64()?,
            offset_out: r.u64()?,
            len: r.u64()?,
            flags: r.u64()?,
            wide: opcode == op::COPY_FILE_RANGE_64,
        }),
        _ => O::Unknown,
    })
}

fn init(r: &mut Reader<'_>) -> Result<Init, DecodeError> {
    let major = r.u32()?;
    let minor = r.u32()?;
    let max_readahead = r.u32()?;
    let low = u64::from(r.u32()?);
    // Older kernels end the structure here.
    let high = if low & abi::init::INIT_EXT == 0 {
        0
    } else {
        u64::from(r.u32()?)
    };
    Ok(Init {
        major,
        minor,
        max_readahead,
        flags: low | high << 32,
    })
}

fn forgets<'a>(r: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    let count = r.u32()?;
    r.u32()?;
    if r.rest().len() / 16 < count as usize {
        return Err(DecodeError::Truncated);
    }
    Ok(Operation::BatchForget(Forgets { count, items: *r }))
}

fn setattr(r: &mut Reader<'_>) -> Result<SetAttr, DecodeError> {
    use abi::fattr;
    let valid = r.u32()?;
    r.u32()?;
    let fh = r.u64()?;
    let size = r.u64()?;
    let lock_owner = r.u64()?;
    let (atime, mtime, ctime) = (r.i64()?, r.i64()?, r.i64()?);
    let (atime_ns, mtime_ns, ctime_ns) = (r.u32()?, r.u32()?, r.u32()?);
    let mode = r.u32()?;
    r.u32()?;
    let (uid, gid) = (r.u32()?, r.u32()?);
    r.u32()?;
    let has = |bit: u32| valid & bit != 0;
    let time = |set: u32, now: u32, secs: i64, nanos: u32| {
        if has(now) {
            Some(TimeOrNow::Now)
        } else {
            has(set).then_some(TimeOrNow::At(FuseTimestamp { secs, nanos }))
        }
    };
    Ok(SetAttr {
        fh: has(fattr::FH).then_some(fh),
        mode: has(fattr::MODE).then_some(mode),
        uid: has(fattr::UID).then_some(uid),
        gid: has(fattr::GID).then_some(gid),
        size: has(fattr::SIZE).then_some(size),
        atime: time(fattr::ATIME, fattr::ATIME_NOW, atime, atime_ns),
        mtime: time(fattr::MTIME, fattr::MTIME_NOW, mtime, mtime_ns),
        ctime: has(fattr::CTIME).then_some(FuseTimestamp {
            secs: ctime,
            nanos: ctime_ns,
        }),
        lock_owner: has(fattr::LOCKOWNER).then_some(lock_owner),
        kill_suidgid: has(fattr::KILL_SUIDGID),
    })
}

fn rename<'a>(opcode: u32, r: &mut Reader<'a>) -> Result<Rename<'a>, DecodeError> {
    let new_parent = r.u64()?;
    let mut flags = 0;
    if opcode == op::RENAME2 {
        flags = r.u32()?;
        r.u32()?;
    }
    Ok(Rename {
        name: r.name()?,
        new_parent,
        new_name: r.name()?,
        flags,
    })
}

fn setxattr<'a>(r: &mut Reader<'a>, protocol: &Protocol) -> Result<SetXattr<'a>, DecodeError> {
    let size = r.u32()? as usize;
    let flags = r.u32()?;
    let mut kill_sgid = false;
    if protocol.has(abi::init::SETXATTR_EXT) {
        kill_sgid = r.u32()? & abi::SETXATTR_ACL_KILL_SGID != 0;
        r.u32()?;
    }
    Ok(SetXattr {
        name: r.name()?,
        value: r.take(size)?,
        flags,
        kill_sgid,
    })
}

fn create(r: &mut Reader<'_>) -> Result<Create, DecodeError> {
    Ok(Create {
        flags: r.u32()?,
        mode: r.u32()?,
        umask: r.u32()?,
        kill_suidgid: r.u32()? & abi::OPEN_KILL_SUIDGID != 0,
    })
}

fn read(r: &mut Reader<'_>) -> Result<Read, DecodeError> {
    let (fh, offset, size, read_flags) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
    let lock_owner = r.u64()?;
    let flags = r.u32()?;
    r.u32()?;
    let lock_owner = (read_flags & abi::READ_LOCKOWNER != 0).then_some(lock_owner);
    Ok(Read {
        fh,
        offset,
        size,
        flags,
        lock_owner,
    })
}

fn write(r: &mut Reader<'_>) -> Result<Write, DecodeError> {
    let (fh, offset, size, write_flags) = (r.u64()?, r.u64()?, r.u32()?, r.u32()?);
    let lock_owner = r.u64()?;
    let flags = r.u32()?;
    r.u32()?;
    r.take(size as usize)?;
    Ok(Write {
        fh,
        offset,
        size,
        flags,
        lock_owner: (write_flags & abi::WRITE_LOCKOWNER != 0).then_some(lock_owner),
        from_cache: write_flags & abi::WRITE_CACHE != 0,
        kill_suidgid: write_flags & abi::WRITE_KILL_SUIDGID != 0,
    })
}

fn release(r: &mut Reader<'_>) -> Result<Release, DecodeError> {
    let (fh, flags, release_flags) = (r.u64()?, r.u32()?, r.u32()?);
    Ok(Release {
        fh,
        flags,
        flush: release_flags & abi::RELEASE_FLUSH != 0,
        flock_unlock: release_flags & abi::RELEASE_FLOCK_UNLOCK != 0,
        lock_owner: r.u64()?,
    })
}

fn lock(r: &mut Reader<'_>) -> Result<Lock, DecodeError> {
    let (fh, owner, start, end) = (r.u64()?, r.u64()?, r.u64()?, r.u64()?);
    let kind = r.u32()?;
    let kind = FuseLockKind::from_raw(kind).ok_or(DecodeError::BadLock(kind))?;
    let pid = r.u32()?;
    let flock = r.u32()? & abi::LK_FLOCK != 0;
    Ok(Lock {
        fh,
        owner,
        start,
        end,
        kind,
        pid,
        flock,
    })
}

fn ioctl<'a>(r: &mut Reader<'a>) -> Result<Ioctl<'a>, DecodeError> {
    let (fh, flags, cmd, arg) = (r.u64()?, r.u32()?, r.u32()?, r.u64()?);
    let (in_size, out_size) = (r.u32()? as usize, r.u32()?);
    Ok(Ioctl {
        fh,
        flags,
        cmd,
        arg,
        data: r.take(in_size)?,
        out_size,
    })
}
