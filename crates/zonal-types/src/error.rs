//! The closed, numbered set of errors that crosses the wire, and its mapping to errno.
//!
//! Numbers are part of the wire protocol: never reuse one. POSIX outcomes are 1 to 199. Errors from
//! 200 on are for the client itself to handle; they never reach a program as they are.

use crate::codec::{Codec, CodecError, Reader};

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = $number:literal, $errno:ident, $text:literal;)*) => {
        /// An error as it crosses the wire.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u16)]
        pub enum ErrorCode { $($(#[$doc])* $name = $number,)* }

        impl ErrorCode {
            /// Every code, in number order.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code with this number.
            #[must_use]
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// The number on the wire.
            #[must_use]
            pub fn number(self) -> u16 { self as u16 }

            /// The errno a program sees (Linux, x86-64 and arm64 numbers).
            #[must_use]
            pub fn errno(self) -> i32 {
                match self { $(Self::$name => errno::$errno,)* }
            }

            /// A short description.
            #[must_use]
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

/// Linux errno values, written out so that cores need no libc.
pub mod errno {
    #![expect(missing_docs, reason = "the names are the documentation")]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EINTR: i32 = 4;
    pub const EIO: i32 = 5;
    pub const ENXIO: i32 = 6;
    pub const E2BIG: i32 = 7;
    pub const EBADF: i32 = 9;
    pub const EAGAIN: i32 = 11;
    pub const ENOMEM: i32 = 12;
    pub const EACCES: i32 = 13;
    pub const EBUSY: i32 = 16;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENFILE: i32 = 23;
    pub const ETXTBSY: i32 = 26;
    pub const EFBIG: i32 = 27;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const EMLINK: i32 = 31;
    pub const ERANGE: i32 = 34;
    pub const EDEADLK: i32 = 35;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOLCK: i32 = 37;
    pub const ENOSYS: i32 = 38;
    pub const ENOTEMPTY: i32 = 39;
    pub const ELOOP: i32 = 40;
    pub const ENODATA: i32 = 61;
    pub const EOVERFLOW: i32 = 75;
    pub const EOPNOTSUPP: i32 = 95;
    pub const ETIMEDOUT: i32 = 110;
    pub const ESTALE: i32 = 116;
    pub const EDQUOT: i32 = 122;
}

error_codes! {
    /// Operation not permitted.
    NotPermitted = 1, EPERM, "operation not permitted";
    /// ENOENT: the file or directory does not exist.
    NotFound = 2, ENOENT, "no such file or directory";
    /// Interrupted.
    Interrupted = 4, EINTR, "interrupted";
    /// The medium failed.
    Io = 5, EIO, "input/output error";
    /// ENXIO: the device or address does not exist (also: SEEK_DATA past the end).
    NoDevice = 6, ENXIO, "no such device or address";
    /// Argument list too long (xattr value too big).
    TooBig = 7, E2BIG, "too big";
    /// Bad handle.
    BadHandle = 9, EBADF, "bad file handle";
    /// Try again (a lock is held by another).
    WouldBlock = 11, EAGAIN, "resource temporarily unavailable";
    /// A bound of memory or of a queue is reached.
    NoMemory = 12, ENOMEM, "a limit of memory is reached";
    /// Permission denied.
    Access = 13, EACCES, "permission denied";
    /// Busy.
    Busy = 16, EBUSY, "busy";
    /// Exists.
    Exists = 17, EEXIST, "file exists";
    /// The two ends of a rename or link lie in different shards.
    CrossShard = 18, EXDEV, "the two names lie in different shards";
    /// Not a directory.
    NotDirectory = 20, ENOTDIR, "not a directory";
    /// Is a directory.
    IsDirectory = 21, EISDIR, "is a directory";
    /// Invalid argument.
    Invalid = 22, EINVAL, "invalid argument";
    /// Text file busy.
    TextBusy = 26, ETXTBSY, "text file busy";
    /// File too large.
    FileTooBig = 27, EFBIG, "file too large";
    /// No space left.
    NoSpace = 28, ENOSPC, "no space left";
    /// Read-only.
    ReadOnly = 30, EROFS, "read-only";
    /// Too many links.
    TooManyLinks = 31, EMLINK, "too many links";
    /// Result does not fit (xattr buffer).
    Range = 34, ERANGE, "result does not fit";
    /// A lock would deadlock.
    Deadlock = 35, EDEADLK, "locking would deadlock";
    /// Name too long.
    NameTooLong = 36, ENAMETOOLONG, "name too long";
    /// No more locks.
    NoLocks = 37, ENOLCK, "no locks available";
    /// Directory not empty.
    NotEmpty = 39, ENOTEMPTY, "directory not empty";
    /// Too many symbolic links.
    Loop = 40, ELOOP, "too many symbolic links";
    /// ENODATA: the extended attribute does not exist.
    NoData = 61, ENODATA, "no such attribute";
    /// Value too large for its type.
    Overflow = 75, EOVERFLOW, "value too large";
    /// Not supported.
    NotSupported = 95, EOPNOTSUPP, "not supported";
    /// A server did not answer within the deadline.
    TimedOut = 110, ETIMEDOUT, "the server did not answer within the deadline";
    /// The inode does not exist (any more).
    Stale = 116, ESTALE, "stale file handle";
    /// Stored bytes or a store's structure fail their checksum.
    Corrupt = 150, EIO, "stored data is damaged";
    /// The peer could not be reached.
    Unreachable = 151, EIO, "the server cannot be reached";

    /// A frame or message that breaks the protocol; the connection is closed.
    Protocol = 200, EIO, "protocol violation";
    /// Another cell.
    WrongCell = 201, EIO, "wrong cell";
    /// A protocol or format version that this program does not speak.
    WrongVersion = 202, EIO, "unsupported version";
    /// The sender's credential is missing or wrong.
    Unauthenticated = 203, EACCES, "not authenticated";
    /// The request names another slot epoch than the target's and no newer map; the reply carries
    /// the target's entry.
    StaleEpoch = 204, ESTALE, "stale epoch";
    /// This server does not own the partition, or no longer owns the shard; refresh the map.
    NotOwner = 205, ESTALE, "not the owner of the partition";
    /// The session is unknown or expired; open a new one.
    UnknownSession = 206, EIO, "unknown session";
    /// A slot sequence that is neither the next nor the last.
    BadSequence = 207, EIO, "bad slot sequence";
    /// A truncation is not yet confirmed by all columns; push it, then retry.
    TruncateUnconfirmed = 208, EIO, "an earlier truncation is not confirmed";
    /// The write was made before a truncation that the target has seen; refresh and retry.
    StaleTruncate = 209, EIO, "older than the last truncation";
    /// The lease or lock is not held.
    UnknownLease = 210, EIO, "unknown lease";
    /// The server is starting, stopping or not ready for this role.
    NotReady = 211, EAGAIN, "server not ready";
    /// The blocking lock request is queued; an event announces the grant.
    LockQueued = 212, EAGAIN, "lock queued";
    /// The target or shard named is not served here.
    WrongTarget = 213, EIO, "not served here";
    /// A bound on connections, sessions or queues is reached; retry later.
    Overloaded = 214, EAGAIN, "server overloaded";
    /// A later attempt of the sender to change the object exists, because an earlier one got no
    /// answer. Send the change again with that attempt's number.
    Superseded = 215, EIO, "a later attempt was made";
    /// The sender's incarnation is over, and others may hold what it held. It opens its sessions
    /// again.
    Fenced = 216, EIO, "the client is fenced";
    /// The change meets bytes of a change with a higher order. Send it to all copies again, with an
    /// order above the target's.
    Overtaken = 217, EIO, "a change of these bytes came first";
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.text())
    }
}

impl std::error::Error for ErrorCode {}

impl Codec for ErrorCode {
    fn put(&self, out: &mut Vec<u8>) {
        self.number().put(out);
    }
    fn get(from: &mut Reader<'_>) -> Result<Self, CodecError> {
        Self::from_number(u16::get(from)?).ok_or(CodecError::BadValue)
    }
}
