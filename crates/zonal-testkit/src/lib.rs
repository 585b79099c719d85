//! What tests of several crates need, and nothing else depends on: numbers from a seed, garbage, and a folder that goes away.
//! It knows nothing of Zonal and depends on nothing.
#![forbid(unsafe_code)]

mod garbage;
mod rng;
mod scratch;

pub use garbage::{GARBAGE, refused};
pub use rng::Rng;
pub use scratch::Scratch;
