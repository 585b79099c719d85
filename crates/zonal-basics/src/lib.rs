//! Small tools that several crates need and that know nothing of a file system. One file each:
//! back-off, random numbers from a seed, hexadecimal digits, sizes in bytes, conversions of
//! numbers, a map with a bound, patterns for names.
//!
//! It depends on the standard library only. A tool comes here with its second user, not before.
#![forbid(unsafe_code)]

pub mod backoff;
pub mod bounded_map;
pub mod byte_size;
pub mod glob;
pub mod hex;
pub mod numbers;
pub mod splitmix;

pub use backoff::BackOff;
pub use bounded_map::BoundedMap;
pub use hex::{Hex, HexError, from_hex, to_hex};
pub use numbers::{const_u32, to_usize};
pub use splitmix::SplitMix64;
