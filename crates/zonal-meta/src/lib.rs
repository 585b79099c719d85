//! The metadata shard: a state machine that turns requests into effects.
#![forbid(unsafe_code)]

pub mod append;
pub mod events;
pub mod leases;
pub mod locks;
