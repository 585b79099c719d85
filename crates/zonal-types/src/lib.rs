//! Identifiers, attributes, limits, errors and the byte codec that every crate shares.
#![forbid(unsafe_code)]

pub mod error;
pub mod store;

pub use error::ErrorCode;
pub use store::{KvChange, KvRead};
