//! Checkers of the invariants of ARCHITECTURE.md; one file a checker, which names its invariant.
//!
//! | invariant | file |
//! | --- | --- |
//! | 2 names and link counts | `names.rs` (stores), `tree_model.rs` (a client's view) |
//! | 3 what was synced survives | `durability.rs`, `oracle.rs` |
//! | 4 the newest is seen | `cache_coherence.rs`, `close_to_open.rs`, `append_log.rs` |
//! | 4 the newest is seen, one file and several writers | `together.rs` |
//! | 5 nothing false is read | `versions.rs` |
//! | 6 no message ends a process | `survival.rs` |
//! | 8 everything is bounded | `bounds.rs` |
//! | 9 the cell heals, nothing leaks | `healing.rs`, the liveness phase of `scenario.rs` |
//! | 9 nothing leaks (without faults) | `allocated_bytes.rs` |
//! | 9 replies come in time | `reply_deadlines.rs` |
//! | the log of a group | `group_history.rs` |
//! | the map of a group | `map_history.rs` |
//! | 10 everything is in its place | `placement.rs` |
//!
//! `names.rs` checks invariant 1 with each map. A breach of invariant 7 shows in `tree_model.rs`
//! and `together.rs`, as bytes that come back, and in `slot_epochs.rs`.

pub mod allocated_bytes;
pub mod append_log;
pub mod bounds;
pub mod cache_coherence;
pub mod close_to_open;
pub mod copies;
pub mod durability;
pub mod group_history;
pub mod healing;
pub mod map_history;
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
