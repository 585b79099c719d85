//! INIT: negotiates features and sizes with the kernel.

use rustix::io::Errno;

use crate::abi::{self, init};
use crate::bytes::{Fixed, Put};
use crate::channel::Channel;
use crate::encode;
use crate::request::{FuseRequest, Init, Operation, Protocol, RequestHeader};

/// Options of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// Worker threads, each with a descriptor of its own; only as many read as the load needs.
    pub workers: usize,
    /// Pin worker i to processor i modulo their number.
    pub pin_workers: bool,
    /// Largest read-ahead, bytes.
    pub max_readahead: u32,
    /// Largest READ and WRITE, bytes (a multiple of the page size).
    pub max_write: u32,
    /// Read-ahead and write-back requests in flight, at most.
    pub max_background: u16,
    /// Number of those requests from which the kernel holds read-ahead back.
    pub congestion_threshold: u16,
    /// The kernel keeps written data and alone decides size and mtime: only for mounts whose tree
    /// no other client writes.
    pub writeback_cache: bool,
    /// The kernel caches the targets of symbolic links.
    pub cache_symlinks: bool,
    /// Use READDIRPLUS always, rather than when the kernel sees that attributes are used.
    pub readdirplus_always: bool,
    /// The kernel checks permissions, ACLs included, with its cached attributes (implies
    /// default_permissions). Needed where names are cached: the kernel follows a cached name
    /// without a request.
    pub check_permissions: bool,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            workers: 128,
            pin_workers: false,
            max_readahead: 4 << 20,
            max_write: 1 << 20,
            max_background: 128,
            congestion_threshold: 48,
            writeback_cache: false,
            cache_symlinks: false,
            readdirplus_always: false,
            check_permissions: false,
        }
    }
}

/// The outcome of the negotiation with the kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelInfo {
    /// Minor version in use.
    pub minor: u32,
    /// Flags offered by the kernel.
    pub offered: u64,
    /// Flags in use.
    pub flags: u64,
    /// Largest read-ahead in use, bytes.
    pub max_readahead: u32,
    /// Largest WRITE in use, bytes.
    pub max_write: u32,
}

impl KernelInfo {
    /// True where the kernel can expire a cached name (FUSE_EXPIRE_ONLY, Linux 6.3). It then asks
    /// again at the next use, and leaves everything below the name as it is.
    #[must_use]
    pub fn has_expire_only(&self) -> bool {
        self.flags & init::HAS_EXPIRE_ONLY != 0
    }

    /// True where FUSE_NOTIFY_PRUNE exists.
    #[must_use]
    pub fn has_prune(&self) -> bool {
        self.minor >= 45
    }

    pub(crate) fn protocol(&self) -> Protocol {
        Protocol {
            minor: self.minor,
            flags: self.flags,
        }
    }
}

/// Why the negotiation failed.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub enum InitError {
    /// The device failed.
    #[error("the FUSE device failed: {0}")]
    Device(#[from] Errno),
    /// The kernel is too old.
    #[error("the kernel speaks FUSE {0}.{1}, older than {major}.{minor} (Linux 5.4)", major = abi::MAJOR, minor = abi::MINOR_MIN)]
    TooOld(u32, u32),
    /// The first request was not INIT.
    #[error("the kernel did not start with INIT")]
    Unexpected,
}

/// Flags that are always requested. Never AUTO_INVAL_DATA (pages are dropped by notification),
/// never NO_OPEN.
const WANTED: u64 = init::ASYNC_READ
    | init::POSIX_LOCKS
    | init::FLOCK_LOCKS
    | init::ATOMIC_O_TRUNC
    | init::EXPORT_SUPPORT
    | init::BIG_WRITES
    | init::DONT_MASK
    | init::DO_READDIRPLUS
    | init::READDIRPLUS_AUTO
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::EXPLICIT_INVAL_DATA
    | init::HANDLE_KILLPRIV_V2
    | init::SETXATTR_EXT
    | init::INIT_EXT
    | init::CREATE_SUPP_GROUP
    | init::HAS_EXPIRE_ONLY
    | init::DIRECT_IO_ALLOW_MMAP;

/// Pages of 4 KiB.
const PAGE: u32 = 4096;

fn agree(kernel: &Init, config: &SessionConfig) -> KernelInfo {
    let mut wanted = WANTED;
    if config.writeback_cache {
        wanted |= init::WRITEBACK_CACHE;
    }
    if config.cache_symlinks {
        wanted |= init::CACHE_SYMLINKS;
    }
    if config.check_permissions {
        wanted |= init::POSIX_ACL;
    }
    if config.readdirplus_always {
        wanted &= !init::READDIRPLUS_AUTO;
    }
    let flags = wanted & kernel.flags;
    // Without MAX_PAGES a request has at most 32 pages.
    let most = if flags & init::MAX_PAGES == 0 {
        32 * PAGE
    } else {
        256 * PAGE
    };
    KernelInfo {
        minor: kernel.minor.min(abi::MINOR),
        offered: kernel.flags,
        flags,
        max_readahead: kernel.max_readahead.min(config.max_readahead),
        max_write: config.max_write.clamp(PAGE, most),
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the two halves of 64 flags; pages <= 256"
)]
fn answer(info: &KernelInfo, config: &SessionConfig, unique: u64) -> Fixed<80> {
    let mut out = Fixed::new();
    encode::header(&mut out, 64, 0, unique);
    out.u32(abi::MAJOR);
    out.u32(info.minor);
    out.u32(info.max_readahead);
    out.u32(info.flags as u32);
    out.u16(config.max_background);
    out.u16(config.congestion_threshold);
    out.u32(info.max_write);
    out.u32(1); // time granularity, ns
    out.u16(info.max_write.div_ceil(PAGE) as u16);
    out.u16(0);
    out.u32((info.flags >> 32) as u32);
    out.put(&[0; 28]);
    out
}

/// Answers the kernel's INIT on a fresh mount.
pub(crate) fn negotiate(
    channel: &Channel,
    config: &SessionConfig,
) -> Result<KernelInfo, InitError> {
    // The device accepts no smaller buffer for its first read.
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let count = match channel.read(&mut buffer) {
            Ok(count) => count,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            Err(error) => return Err(error.into()),
        };
        let data = buffer.get(..count).unwrap_or_default();
        let protocol = Protocol {
            minor: abi::MINOR,
            flags: 0,
        };
        let request = RequestHeader::decode(data)
            .and_then(|header| FuseRequest::decode(header, data, &protocol))
            .map_err(|_| InitError::Unexpected)?;
        let Operation::Init(kernel) = request.operation else {
            return Err(InitError::Unexpected);
        };
        let unique = request.header.unique;
        if kernel.major > abi::MAJOR {
            // The kernel sends INIT again with this major version.
            let mut out = Fixed::<80>::new();
            encode::header(&mut out, 64, 0, unique);
            out.u32(abi::MAJOR);
            out.u32(abi::MINOR);
            out.put(&[0; 56]);
            channel.write(out.as_slice())?;
            continue;
        }
        if kernel.major < abi::MAJOR || kernel.minor < abi::MINOR_MIN {
            channel.status(unique, Errno::PROTO.raw_os_error())?;
            return Err(InitError::TooOld(kernel.major, kernel.minor));
        }
        let info = agree(&kernel, config);
        channel.write(answer(&info, config, unique).as_slice())?;
        return Ok(info);
    }
}

/// Bytes of a worker's buffer after the start of a message.
pub(crate) fn buffer_size(info: &KernelInfo) -> usize {
    // Header, fixed part, data; extensions and long names of small requests fit in the slack.
    (abi::IN_HEADER + abi::WRITE_IN + info.max_write as usize + PAGE as usize).max(64 * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_kernel_gets_only_flags_it_knows() {
        let old = Init {
            major: 7,
            minor: 31,
            max_readahead: 128 << 10,
            flags: init::ASYNC_READ,
        };
        let info = agree(&old, &SessionConfig::default());
        assert_eq!((info.minor, info.flags), (31, init::ASYNC_READ));
        assert_eq!((info.max_readahead, info.max_write), (128 << 10, 128 << 10));
        assert!(!info.has_expire_only());
        assert_eq!(
            answer(&info, &SessionConfig::default(), 1).as_slice().len(),
            80
        );
    }

    #[test]
    fn unrequested_flags_stay_off() {
        let new = Init {
            major: 7,
            minor: 45,
            max_readahead: 8 << 20,
            flags: u64::MAX,
        };
        let info = agree(&new, &SessionConfig::default());
        for flag in [
            init::WRITEBACK_CACHE,
            init::POSIX_ACL,
            init::AUTO_INVAL_DATA,
            init::NO_OPEN_SUPPORT,
            init::SECURITY_CTX,
        ] {
            assert_eq!(info.flags & flag, 0);
        }
        assert!(info.has_expire_only() && info.has_prune());
        assert_eq!(info.max_write, 1 << 20);
        assert_eq!(info.max_readahead, 4 << 20);
    }
}
