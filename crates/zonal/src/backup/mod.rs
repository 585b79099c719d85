//! Backups of metadata: snapshots of all shards in one stream, and back.

pub mod format;
mod restore;
mod snapshots;
mod take;

pub use restore::restore;
pub use snapshots::{Snapshot, fix_all};
pub use take::{take, wall_seconds};
