//! A client of a cell that needs no kernel: the client core with real sockets, its background threads, lock waiters,
//! and what it does about silent servers. A mount puts FUSE before it.

pub mod background;
mod block;
mod silence;
mod sink;
pub mod waiters;
mod wire;

pub use background::{Background, Listener, Signal};
pub use block::block_on;
pub use sink::Sink;
pub use wire::{RealNet, RealPending};
