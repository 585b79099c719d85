//! What tests of several crates need, and nothing else depends on: numbers from a seed, garbage, a
//! folder that goes away, what a loss of power may leave of files, and a word where nothing can be
//! mounted. It knows nothing of Zonal but its generator of numbers.
#![forbid(unsafe_code)]

mod fuse_device;
mod garbage;
mod hex;
pub mod power_cut;
mod rng;
mod scratch;

pub use fuse_device::skip_mount;
pub use garbage::{GARBAGE, mangled, refused};
pub use hex::{from_hex, to_hex};
pub use rng::Rng;
pub use scratch::Scratch;
