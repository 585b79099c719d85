//! Reasons why a check cannot be made.

use std::io;
use std::path::PathBuf;
use zonal_disk::DiskError;
use zonal_types::{ErrorCode, ShardId};

/// A check could not be made, or failed by itself. Findings are no errors.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// A process has a store open.
    #[error("{} is in use", .0.display())]
    Running(PathBuf),
    /// A store is a replica's.
    #[error("{} is a replica's: it is checked in the running cell only", .0.display())]
    Replica(PathBuf),
    /// A store failed.
    #[error("{}: {source}", dir.display())]
    Store {
        /// The store's folder.
        dir: PathBuf,
        /// The failure.
        source: DiskError,
    },
    /// The cores refuse a store even after its repair.
    #[error("{}: {code}", dir.display())]
    Contents {
        /// The store's folder.
        dir: PathBuf,
        /// The error of the core.
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
    /// Another check uses the scratch folder.
    #[error("another check uses the scratch folder {}", .0.display())]
    ScratchInUse(PathBuf),
    /// The cell has no manager.
    #[error("no store of a manager is named")]
    NoManager,
    /// The zone map cannot be read, so stores cannot be compared.
    #[error("the zone map cannot be read: {0}")]
    NoMap(String),
    /// A server of a running cell does not answer, or refuses.
    #[error("{of}: {why}")]
    NoAnswer {
        /// The server without an answer.
        of: String,
        /// The reason.
        why: String,
    },
    /// A snapshot vanished with its server, or expired.
    #[error("the snapshot of shard {0} is gone")]
    SnapshotGone(ShardId),
    /// [`crate::CheckReporter::goes_on`] returned false.
    #[error("the check was ended")]
    Interrupted,
    /// A thread of the check panicked.
    #[error("a check panicked")]
    Panicked,
}
