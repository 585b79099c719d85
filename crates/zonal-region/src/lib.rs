//! Shared memory of a client and the servers on its machine, so that payloads between them are not
//! copied through a socket.
//!
//! A client has [`Regions`]: at any time one memfd ([`region`]), divided into buffers. [`Memory`]
//! is a buffer, or ordinary memory where there is none. A request names a part of a buffer and
//! takes a [`Hold`] of it. A server has a [`Mapping`] of each region that it was sent.
//!
//! *Invariants*:
//!
//! 1. A buffer is reused only after its owner and all holds have released it.
//! 2. A hold that is dropped without [`Hold::release`] keeps its buffer for ever and retires the
//!    region, because a server may still use it.
//! 3. A server maps only memory that cannot shrink.
//!
//! Reasons and alternatives: docs/rfcs/2026-11-24-regions.md.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of tests are small"
    )
)]

pub mod client_mappings;
pub mod memory;
pub mod region;
mod shared_mmap;
mod unsent_bytes;

pub use client_mappings::{MapError, Mapping, Mappings, RegionPart};
pub use memory::{Memory, Regions};
pub use region::{Hold, Region};
pub use unsent_bytes::unsent_bytes;
