//! What keeps a check from being made.

use std::io;
use std::path::PathBuf;
use zonal_disk::DiskError;
use zonal_types::{ErrorCode, ShardId};

/// A check that could not be made or went wrong itself; what it found is no error.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A process has a store open.
    #[error("{} is in use", .0.display())]
    Running(PathBuf),
    /// A store failed.
    #[error("{}: {source}", dir.display())]
    Store {
        /// Its folder.
        dir: PathBuf,
        /// The failure.
        source: DiskError,
    },
    /// A store cannot be used by the cores even after it was repaired.
    #[error("{}: {code}", dir.display())]
    Contents {
        /// Its folder.
        dir: PathBuf,
        /// What they say.
        code: ErrorCode,
    },
    /// The scratch folder failed.
    #[error("scratch folder {}: {source}", dir.display())]
    Scratch {
        /// The folder.
        dir: PathBuf,
        /// The failure.
        source: io::Error,
    },
    /// Another check sorts there.
    #[error("another check uses the scratch folder {}", .0.display())]
    ScratchInUse(PathBuf),
    /// The cell has no manager.
    #[error("no store of a manager is named")]
    NoManager,
    /// The zone map cannot be read, and nothing between stores can be checked.
    #[error("the zone map cannot be read: {0}")]
    NoMap(String),
    /// A server of a running cell does not answer, or refuses.
    #[error("{of}: {why}")]
    NoAnswer {
        /// Whose answer is missing.
        of: String,
        /// Why.
        why: String,
    },
    /// A snapshot went with its server, or was given up.
    #[error("the snapshot of shard {0} is gone")]
    SnapshotGone(ShardId),
    /// [`crate::CheckReporter::goes_on`] said so.
    #[error("the check was ended")]
    Interrupted,
    /// A thread failed.
    #[error("a check panicked")]
    Panicked,
}
