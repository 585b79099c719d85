//! Files of a shard or a target: log, key-value store, segments.
//!
//! [`Engine`] is one durable ordered store. It has a circular log of effects, an overlay of recent
//! changes in memory, and an index into which checkpoints write the overlay. [`Segments`] are the
//! large files that hold a target's bytes. The byte formats are in `docs/on-disk-format.md`.
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

mod cache_misses;
pub mod checkpoint;
mod direct_read;
pub mod disk;
pub mod engine;
pub mod error;
pub mod files;
mod free_space;
mod group_commit;
pub mod identity;
pub mod index;
pub mod index_checksums;
mod index_copy;
pub mod log;
mod overlay;
mod panic_guard;
pub mod power_loss;
mod probe;
mod raw_index;
mod read;
pub mod read_only;
pub mod record;
mod recorder;
pub mod recording;
pub mod repair;
pub mod replay;
pub mod segments;
pub mod start_marks;
pub mod store;
pub mod stream;
pub mod trusted_paths;
pub mod view;

pub use checkpoint::{Checkpoint, Checkpointer, spawn_checkpointer};
pub use disk::{DataSync, LogFile};
pub use engine::{Engine, EngineConfig, LogRoom, Stats};
pub use error::DiskError;
pub use files::StoreDir;
pub use identity::{StoreIdentity, StoreKind};
pub use index_copy::{CopyItem, walk_copy};
pub use panic_guard::is_guarded;
pub use power_loss::UnflushedWrites;
pub use raw_index::{IndexItem, walk_index};
pub use read_only::{LogEnd, ReadStore, StoreDamage};
pub use record::{Lsn, Record};
pub use segments::{Segments, SegmentsConfig, Space};
pub use view::View;
