//! Files of a shard or a target: log, key-value store, segments.
//!
//! [`Engine`] is one durable ordered store. It has a circular log of effects, an overlay of recent
//! changes in memory, and an index into which checkpoints write the overlay. [`Segments`] are the
//! large files that hold a target's bytes. The byte formats are in `docs/on-disk-format.md`.
//!
//! Layers, each of which uses only itself and those above:
//!
//! 1. `files`: a store's folder and files, whose they are, their flushes; recordings; the errors.
//! 2. `log`: records, and where they lie in the circular log.
//! 3. `index`: the checkpointed state, its checksums and its copy; the overlay of changes above it.
//! 4. `engine`: the open store: appends, reads, views, checkpoints.
//! 5. `segments`: the large files of a target.
//! 6. `store`: formatting, opening, replay; stopped stores read and repaired.
//! 7. `replica`: the log of a group's member, as records of a store; its vote.
//!
//! Costs: an append is one `pwrite` into the page cache (two at the end of a lap). A sync is one
//! `fdatasync` shared by all waiting calls, plus one for each dirty segment in parallel.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "numbers of tests are small"
    )
)]
#![forbid(unsafe_code)]

pub mod engine;
pub mod files;
pub mod index;
pub mod log;
pub mod replica;
pub mod segments;
pub mod store;

pub use engine::checkpoint::{Checkpoint, Checkpointer, spawn_checkpointer};
pub use engine::held_records::RecordPlace;
pub use engine::view::View;
pub use engine::{Engine, EngineConfig, LogRoom, Stats};
pub use files::disk::{DataSync, LogFile};
pub use files::error::DiskError;
pub use files::identity::{StoreIdentity, StoreKind};
pub use files::power_loss::UnflushedWrites;
pub use files::{
    StoreDir, disk, error, identity, power_loss, recording, start_marks, stream, trusted_paths,
};
pub use index::index_checksums;
pub use index::index_copy::{CopyItem, walk_copy};
pub use index::panic_guard::is_guarded;
pub use index::raw_index::{IndexItem, walk_index};
pub use log::record::{self, Lsn, Record};
pub use replica::{ReplicaProgress, ReplicaStore, effect_of};
pub use segments::{Segments, SegmentsConfig, Space};
pub use store::read_only::{LogEnd, ReadStore, StoreDamage};
pub use store::{read_only, repair, replay};
