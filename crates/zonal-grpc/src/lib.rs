//! The placement service over gRPC: messages and service of docs/placement.proto, and the thread
//! that serves them.
//!
//! This crate knows nothing of placing jobs. It carries calls to an implementation of
//! [`PlacementCalls`], which never waits. The async runtime has one thread and is in this crate
//! alone: no request of the path of data runs on it.
#![forbid(unsafe_code)]

mod bounded_incoming;
mod calls;
mod server;

/// Messages and service of docs/placement.proto.
#[allow(
    missing_docs,
    unused_qualifications,
    clippy::allow_attributes_without_reason,
    clippy::pedantic,
    clippy::semicolon_if_nothing_returned,
    clippy::too_many_lines,
    reason = "made from docs/placement.proto, which describes each of them"
)]
pub mod proto {
    tonic::include_proto!("zonal.placement.v1");
}

pub use calls::PlacementCalls;
pub use server::{PlacementCallServer, TokenCheck};
pub use tonic::{Code, Status};
