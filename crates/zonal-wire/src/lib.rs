//! Frames and messages between clients, managers, shards and targets.
#![forbid(unsafe_code)]

pub mod frame;
pub mod storage;

pub use frame::{HEADER_BYTES, Header, NO_SLOT, Service};
pub use storage::{ErrorNumber, ObjectRef, StorageReply, StorageRequest};
