//! Backups of metadata: snapshots of all shards in one stream, and back.

mod create;
pub mod format;
mod restore;
mod snapshots;

pub use create::{take, wall_seconds};
pub use restore::restore;
pub use snapshots::{ShardSnapshot, fix_all};
