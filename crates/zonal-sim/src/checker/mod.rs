//! What must hold. One file a checker; each names the invariant (DESIGN's numbers) that it watches.

pub mod append_log;
pub mod close_to_open;
pub mod durable;
pub mod servers;
pub mod strict;
pub mod tree_model;
