//! What tests of several crates need, and nothing else depends on: numbers from a seed, and a folder that goes away.
//! It knows nothing of Zonal and depends on nothing.
#![forbid(unsafe_code)]

mod rng;
mod scratch;

pub use rng::Rng;
pub use scratch::Scratch;
