//! Files below a shard or a target: log, key-value store, segments.
//!
//! [`Engine`] is one durable ordered store: a circular log of effects, an overlay of recent changes
//! in memory, and an index into which checkpoints write the overlay. [`Segments`] are the large
//! files that hold a target's bytes. The byte formats are in `docs/on-disk-format.md`.
//!
//! Costs: an append is one `pwrite` into the page cache (two at the end of a lap); a sync is one
//! `fdatasync` shared by all who wait for it, plus one a dirty segment in parallel.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod disk;
pub mod engine;
pub mod error;
pub mod files;
mod group;
mod guarded;
pub mod identity;
pub mod index;
mod index_copy;
mod inside;
pub mod log;
mod medium;
pub mod mend;
mod misses;
mod overlay;
pub mod power;
mod probe;
mod raw_index;
mod read;
pub mod read_only;
pub mod record;
mod recorder;
pub mod recording;
pub mod replay;
pub mod segments;
pub mod starts;
pub mod store;
pub mod stream;
pub mod sums;
pub mod trusted;
pub mod view;

pub use checkpoint::{Checkpoint, Checkpointer, spawn_checkpointer};
pub use disk::{DataSync, LogFile};
pub use engine::{Config, Engine, Room, Stats};
pub use error::DiskError;
pub use files::StoreDir;
pub use guarded::is_guarded;
pub use identity::{Identity, StoreKind};
pub use index_copy::{CopyFound, walk_copy};
pub use power::Past;
pub use raw_index::{Found, walk_index};
pub use read_only::{LogEnd, ReadStore, StoreDamage};
pub use record::{Lsn, Record};
pub use segments::{Segments, SegmentsConfig, Space};
pub use view::View;
