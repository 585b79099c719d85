//! Helpers for tests of several crates: seeded random numbers, garbage, scratch folders, power
//! cuts, and a message where nothing can be mounted. Only tests depend on it. It depends on nothing
//! of Zonal but `zonal-basics`.
#![forbid(unsafe_code)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    clippy::cast_lossless,
    reason = "for tests: numbers are small, or any bits of them will do"
)]

mod fuse_device;
mod garbage;
mod hex;
pub mod power_cut;
mod rng;
mod scratch;

pub use fuse_device::skip_mount;
pub use garbage::{GARBAGE, mangled, refused};
pub use hex::from_hex;
pub use rng::Rng;
pub use scratch::Scratch;
pub use zonal_basics::to_hex;
