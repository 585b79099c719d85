//! What lies between a core and its host: what is asked of the core, logged, awaited and replied, in
//! which order. Written once, driven by the servers (threads, files) and by the simulator.
//!
//! `async fn`s without a runtime. A host whose calls block has futures that are ready when first
//! polled ([`at_once`]); those of the simulator wait for simulated time. No I/O, no clock, no randomness.
#![forbid(unsafe_code)]

mod ready;
pub mod target;

pub use ready::{NotReady, at_once};
