//! Errors of the files below a shard or a target, and their codes on the wire.

use std::io;
use std::path::PathBuf;
use zonal_basics::Hex;

use zonal_types::ErrorCode;

use crate::files::identity::StoreKind;
use crate::files::trusted_paths::PathRefusal;

/// A failure of a store.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The medium or the file system below failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// The file system below is full, or a capacity limit is reached.
    #[error("no space: {0}")]
    NoSpace(String),
    /// Stored bytes fail a check.
    #[error("damaged: {0}")]
    Corrupt(String),
    /// There is no store in the directory.
    #[error("{} holds no store: format it first", .0.display())]
    NotFormatted(PathBuf),
    /// The directory holds files that are not a store's.
    #[error("{} is not empty and not a store of this file system", .0.display())]
    NotOurs(PathBuf),
    /// Other users could have written there.
    #[error(transparent)]
    Untrusted(#[from] PathRefusal),
    /// Formatting would destroy an existing store.
    #[error("{} already holds a store", .0.display())]
    AlreadyFormatted(PathBuf),
    /// Another process has the store open.
    #[error("{} is in use by another process", .0.display())]
    Locked(PathBuf),
    /// The store belongs to another cell.
    #[error("the store belongs to cell {}, not to {}", Hex(.found), Hex(.expected))]
    WrongCell {
        /// The cell of the store.
        found: [u8; 16],
        /// The cell expected.
        expected: [u8; 16],
    },
    /// The store is of another kind.
    #[error("the store is that of a {found}, not of a {expected}")]
    WrongKind {
        /// The kind of the store.
        found: StoreKind,
        /// The kind expected.
        expected: StoreKind,
    },
    /// The store has another number.
    #[error("the store is number {found}, not {expected}")]
    WrongId {
        /// The number of the store.
        found: u32,
        /// The number expected.
        expected: u32,
    },
    /// The store has a format that this program does not know.
    #[error("the store has format version {found}, this program knows {known}")]
    WrongVersion {
        /// The version of the store.
        found: u32,
        /// The version known.
        known: u32,
    },
    /// A setting is out of its range or contradicts what is stored.
    #[error("setting: {0}")]
    Config(String),
    /// The log is full, and a checkpoint could not free any space.
    #[error("the log is full")]
    LogFull,
    /// A record is larger than the log takes.
    #[error("a record of {size} bytes exceeds the limit of {limit}")]
    TooBig {
        /// Bytes of the record.
        size: usize,
        /// The largest record that fits.
        limit: usize,
    },
    /// An offset or a length lies outside of the file.
    #[error("out of range: {0}")]
    Range(String),
    /// The store failed earlier and takes no more changes until it is opened again.
    #[error("the store failed earlier; restart to recover")]
    Failed,
}

impl DiskError {
    /// Wraps an error of the file system below; a full one becomes `NoSpace`.
    pub fn io(what: impl Into<String>, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace(what.into()),
            _ => Self::Io {
                what: what.into(),
                source,
            },
        }
    }

    /// The code that crosses the wire for this failure.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::Io { .. } | Self::Failed => ErrorCode::Io,
            Self::NoSpace(_) | Self::LogFull => ErrorCode::NoSpace,
            Self::Corrupt(_) => ErrorCode::Corrupt,
            Self::NotFormatted(_)
            | Self::NotOurs(_)
            | Self::Untrusted(_)
            | Self::AlreadyFormatted(_)
            | Self::Locked(_)
            | Self::Config(_) => ErrorCode::NotReady,
            Self::WrongCell { .. } => ErrorCode::WrongCell,
            Self::WrongKind { .. } | Self::WrongId { .. } => ErrorCode::WrongTarget,
            Self::WrongVersion { .. } => ErrorCode::WrongVersion,
            Self::TooBig { .. } => ErrorCode::TooBig,
            Self::Range(_) => ErrorCode::Invalid,
        }
    }
}

impl From<DiskError> for ErrorCode {
    fn from(error: DiskError) -> Self {
        error.code()
    }
}
