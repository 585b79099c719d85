//! Frames over TCP and Unix sockets: pools of connections, deadlines, handshake, server loop.
//!
//! Blocking calls on the calling thread, no runtime, no hand-over between threads: a client's call is
//! `sendmsg` and `recvmsg`, a server's is the same the other way round, on the thread that owns the connection.
//! [`Pool`] is the client, [`serve`] the server, [`handshake`] what both say first, [`frame_io`] the bytes.
#![forbid(unsafe_code)]

pub mod address;
pub mod buffer;
mod conversation;
pub mod error;
pub mod flight;
pub mod frame_io;
pub mod handler;
pub mod handshake;
pub mod identity;
pub mod listen;
pub mod metrics;
pub mod pool;
pub mod server;
pub mod stream;

pub use address::{Address, Endpoint};
pub use buffer::AlignedBuf;
pub use error::{Fault, NetError};
pub use flight::{Canceller, Flight, InFlight, PayloadInto, Reply, Request};
pub use handler::{Handler, PayloadBuf, ReplyBuilder};
pub use identity::{CellKey, Identity, Peer, Role};
pub use listen::{ListenConfig, Listeners};
pub use metrics::{PoolMetrics, ServerMetrics};
pub use pool::{Pool, PoolConfig};
pub use server::{ServerConfig, ServerHandle, serve};
