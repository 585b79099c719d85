//! What tests of several crates need, and nothing else depends on: numbers from a seed, garbage, a folder that goes away, and what
//! a loss of power may leave of files.
//! It knows nothing of Zonal and depends on nothing.
#![forbid(unsafe_code)]

mod garbage;
mod hex;
pub mod power_cut;
mod rng;
mod scratch;

pub use garbage::{GARBAGE, mangled, refused};
pub use hex::{from_hex, to_hex};
pub use rng::Rng;
pub use scratch::Scratch;
