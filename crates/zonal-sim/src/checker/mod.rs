//! What must hold. One file a checker; each names the invariant (DESIGN's numbers) that it watches.
//!
//! | invariant | file |
//! | --- | --- |
//! | 2 names and link counts | `names.rs` (stores), `tree_model.rs` (what a client sees) |
//! | 3 what was synced survives | `durability.rs`, `oracle.rs` |
//! | 4 the newest is seen | `cache_coherence.rs`, `close_to_open.rs`, `append_log.rs`, `together.rs` |
//! | 5 nothing false is read | `versions.rs` |
//! | 6 no message ends a process | `survival.rs` |
//! | 8 everything is bounded | `bounds.rs` |
//! | 9 the cell heals, nothing leaks | `healing.rs`, `allocated_bytes.rs` (without faults), and the liveness phase of `scenario.rs` |
//! | 10 everything is in its place | `placement.rs` |
//!
//! Invariant 1 is checked with each map (`names.rs`); 7 shows in `tree_model.rs` and `together.rs`,
//! as bytes that come back, and in `slot_epochs.rs`.

pub mod allocated_bytes;
pub mod append_log;
pub mod bounds;
pub mod cache_coherence;
pub mod close_to_open;
pub mod durability;
pub mod healing;
pub mod names;
pub mod oracle;
pub mod placement;
pub mod records;
pub mod reply_deadlines;
pub mod slot_epochs;
pub mod survival;
pub mod together;
pub mod tree_model;
pub mod versions;
