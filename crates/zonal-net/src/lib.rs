//! Frames over TCP and Unix sockets: pools of connections, deadlines, handshake, server loop.
//!
//! Calls block the calling thread: there is no runtime and no hand-over between threads. A client's
//! call is `sendmsg` and `recvmsg`; a server's is the reverse, on the thread that owns the
//! connection. Measured with `--example net_rate` on two cores of a virtual machine that other work
//! kept busy, best of three in one run. Between runs the rates move by a factor of two, the ratio
//! less.
//!
//! | one connection | TCP | Unix socket | ratio |
//! | --- | --- | --- | --- |
//! | empty call | 82,000/s | 104,000/s | 1.3 |
//! | read of 4 KiB | 86,000/s | 129,000/s | 1.5 |
//! | read of 1 MiB | 5.5 GB/s | 7.0 GB/s | 1.3 (1.3 to 2.8 in other runs) |
//! | write of 1 MiB | 2.6 GB/s | 3.8 GB/s | 1.5 |
//!
//! System calls of a call, counted with strace: `sendmsg` and `recvmsg` on each side. The side that
//! receives a payload of more than 8 KiB needs one more `recvmsg`. A payload in memory that client
//! and server share ([`zonal_region`]) is not sent at all.
//!
//! Begin at [`Pool`] (the client), [`serve`] (the server), [`handshake`] (the first frames),
//! [`frame_io`] (frames as bytes) or [`credential`] (identities).
#![forbid(unsafe_code)]

pub mod address;
pub mod authority;
pub mod buffer;
mod connection_quota;
pub mod credential;
mod delay_line;
pub mod error;
pub mod frame_io;
pub mod handler;
pub mod handshake;
pub mod identity;
mod idle_connections;
pub mod in_flight;
pub mod join_token;
pub mod link_condition;
pub mod listeners;
pub mod metrics;
pub mod pool;
mod region_loan;
pub mod server;
mod server_connection;
mod strangers;
pub mod stream;
pub mod subject;
pub mod unix_socket;

pub use address::{Address, Endpoint};
pub use authority::{Authority, IssuedCredential};
pub use buffer::AlignedBuf;
pub use credential::{Credential, CredentialError, Serial};
pub use error::{Fault, NetError, RegionFault, TlsFault};
pub use handler::{Handler, ParkedState, ReplyBuilder};
pub use identity::{Identity, Peer, PeerCertificate, Role, Transport};
pub use idle_connections::Resumer;
pub use in_flight::{Canceller, DetachedCall, InFlight, PayloadInto, Reply, Request};
pub use join_token::{ClaimOutcome, JoinToken, TokenClaim};
pub use link_condition::{CONDITION_VARIABLE, ConditionTable, LinkCondition};
pub use listeners::{ListenConfig, Listeners};
pub use metrics::{PoolMetrics, ServerMetrics};
pub use pool::{CONNECTING, Pool, PoolConfig};
pub use server::{Revoker, STRANGERS_MAX, ServerConfig, ServerHandle, serve};
pub use subject::{ServerRoles, Subject, SubjectKind};
