//! Errors of a call: an error code of the cell with its errno, or a misuse by this process.

use zonal_types::ErrorCode;
use zonal_types::error::errno;

/// Why a call failed.
///
/// ```
/// use zonal_native::{Error, ErrorCode};
/// let error = Error::from(ErrorCode::NotFound);
/// assert_eq!(error.errno(), 2);
/// assert_eq!(error.to_string(), "no such file or directory");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// An error of a server or of the client core; most have the errno that a mount would give.
    #[error("{0}")]
    Cell(ErrorCode),
    /// This process is a child of the one that connected, which owns the sockets and threads. It
    /// has to connect itself.
    #[error("this process was forked from the one that connected: connect again")]
    Forked,
    /// The connection was closed.
    #[error("the connection to the cell is closed")]
    Closed,
    /// The handle was not opened for this operation.
    #[error("the file is not open for this")]
    NotOpenFor,
}

impl Error {
    /// The errno (Linux, x86-64 and arm64 numbers).
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::Cell(code) => code.errno(),
            Self::Forked => errno::EINVAL,
            Self::Closed | Self::NotOpenFor => errno::EBADF,
        }
    }

    /// The cell's error code, if there is one.
    #[must_use]
    pub fn code(self) -> Option<ErrorCode> {
        match self {
            Self::Cell(code) => Some(code),
            Self::Forked | Self::Closed | Self::NotOpenFor => None,
        }
    }

    /// True where the name, or a directory on its path, does not exist.
    #[must_use]
    pub fn is_absent(self) -> bool {
        self.code() == Some(ErrorCode::NotFound)
    }
}

impl From<ErrorCode> for Error {
    fn from(code: ErrorCode) -> Self {
        Self::Cell(code)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        Self::from_raw_os_error(error.errno())
    }
}

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No manager answers, or one refuses.
    #[error("fetching the zone map: {0}")]
    Refused(#[source] ErrorCode),
    /// The cell does not have this zone.
    #[error("the cell has no zone {0}")]
    NoZone(zonal_types::ZoneId),
    /// The system cannot start a thread.
    #[error("starting threads")]
    Threads(#[source] std::io::Error),
}
