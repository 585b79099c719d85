//! Members of a group that keep one log, and agree on it by Raft (Ongaro and Ousterhout 2014). No
//! clock, no socket, no file: a shell ticks a member, brings it messages and carries out its work.
//!
//! Reading order:
//! * [`entry`]: entries of the log, and the members
//! * [`entry_log`]: the log as a member reads it
//! * [`peer_message`]: messages between members
//! * [`member`]: the member; [`MemberWork`] is what its shell does, in which order
//! * `message_guard`: refuses messages that no sane member sends
//! * `quarantine`: a member that may have lost entries promises nothing
//! * `leader_lease`: how long a leader may answer reads by itself
//! * `flush_progress`: what a majority has flushed
//! * `raft_bridge`: this crate's types as those of the library
//!
//! Invariants, held by `tests/group_seeds.rs` over seeds of lost messages, kills and losses of
//! power:
//! * One leader a term.
//! * A committed entry stays at its index.
//! * Entries that a majority has flushed survive the loss of power of all.
//! * A leader with a lease is the newest leader.
#![forbid(unsafe_code)]

pub mod entry;
pub mod entry_log;
pub mod error;
mod flush_progress;
mod leader_lease;
pub mod member;
mod message_guard;
pub mod peer_message;
mod quarantine;
mod raft_bridge;

pub use entry::{EntryBody, LogEntry, LogIndex, MemberChange, Membership, ReplicaId, Term};
pub use entry_log::{EntryLog, LogUnread};
pub use error::ConsensusError;
pub use member::{
    FlushOrder, GroupMember, MemberConfig, MemberRole, MemberWork, SnapshotOffer, Vote,
};
pub use peer_message::{PeerMessage, RaftPart, SnapshotPoint};
