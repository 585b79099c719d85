//! Backups of metadata: snapshots of all shards written to one stream, and restored from it.

mod create;
pub mod format;
mod restore;
mod snapshots;

pub use create::{take, wall_seconds};
pub use restore::restore;
pub use snapshots::{ShardBackup, fix_all};
