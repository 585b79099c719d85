//! Outcome of a request: a reply with its effect, a wait, or a call to another shard.

use crate::config::Caller;
use std::sync::Arc;
use zonal_types::{
    Attr, ClientId, ErrorCode, Holder, Ino, Instant, KvChange, Layout, Name, SessionId, ShardId,
    Timestamp, ZoneId,
};
use zonal_wire::{MetaReply, MetaRequest};
pub use zonal_zonemap::JunctionChange;

/// Identifies a waiting request; the driver passes it back to `handle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// An event that wakes a waiting request before its time is over: an outcome names it in `wake`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitOn {
    /// An event for this session.
    Events(SessionId),
    /// An acknowledgement of this session, which has cached data that is to change.
    Acknowledgement(SessionId),
    /// Places behind the end of this file, held by other sessions.
    End(Ino),
    /// Sessions from before the shard's start have reclaimed their state, or their time is over.
    Recovery,
}

/// The step that the driver has to take for a request.
#[derive(Debug)]
pub enum Outcome {
    /// Log `effect` and `junctions` in one record (if any), apply it, wake, then send `reply`. Then
    /// make the calls in `after` (best effort: housekeeping settles lost ones).
    Reply {
        /// The reply.
        reply: MetaReply,
        /// Changes of the store; empty: nothing to log.
        effect: Vec<KvChange>,
        /// Changes of the cell's junctions (root shard only).
        junctions: Vec<JunctionChange>,
        /// Retry requests that wait for one of these.
        wake: Vec<WaitOn>,
        /// Retry all requests that wait for something else than events.
        recheck: bool,
        /// Requests to other shards for which nobody waits; unslotted and idempotent.
        after: Vec<(ShardId, MetaRequest)>,
    },
    /// Wait until woken or until `until`, then call `handle` again with `attempt`.
    Wait {
        /// Identifies the wait.
        attempt: Attempt,
        /// Latest time of the retry.
        until: Instant,
        /// The event to wait for.
        on: WaitOn,
        /// As in `Reply`.
        wake: Vec<WaitOn>,
        /// As in `Reply`.
        recheck: bool,
    },
    /// Send `request` to `shard` (unslotted), then call `resume` with the reply, or with
    /// `MetaReply::Failed` where there is none.
    Call {
        /// The shard to call.
        shard: ShardId,
        /// The request.
        request: MetaRequest,
        /// Passed back to `resume`.
        call: PendingCall,
        /// As in `Reply`.
        wake: Vec<WaitOn>,
    },
}

/// A request that waits for another shard's reply.
#[derive(Debug, Clone)]
pub struct PendingCall {
    pub(crate) caller: Caller,
    pub(crate) from: Option<Arc<Holder>>,
    pub(crate) request: MetaRequest,
    pub(crate) asked: Question,
    pub(crate) facts: Facts,
}

impl PendingCall {
    /// First-level directories that the request is about.
    pub(crate) fn directories(&self) -> Vec<Ino> {
        let asked = match &self.asked {
            Question::Detach(_shard, ino) => Some(*ino),
            Question::Make(_) | Question::Attr(_) | Question::Open(_) | Question::FirstLevel(_) => {
                None
            }
        };
        self.facts.directories().chain(asked).collect()
    }
}

/// The question that another shard has to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Question {
    /// Make a detached directory.
    Make(ShardId),
    /// Detach this directory.
    Detach(ShardId, Ino),
    /// Attributes of this inode.
    Attr(Ino),
    /// Open the default sets of this zone.
    Open(ZoneId),
    /// The first-level directory of this name.
    FirstLevel(Name),
}

/// Answers of other shards so far. The operation runs again from its start with them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// The shard that made a directory, and its inode.
    pub made: Option<(ShardId, Ino)>,
    /// This directory is empty and accepts no more entries.
    pub detached: Option<(ShardId, Ino)>,
    /// Attributes of inodes elsewhere (`None`: the inode does not exist).
    pub attrs: Vec<(Ino, Option<Attr>)>,
    /// True once the root shard has answered where the first name of the client's path leads,
    /// perhaps nowhere.
    pub has_asked_first: bool,
}

impl Facts {
    /// First-level directories that the operation is about.
    pub fn directories(&self) -> impl Iterator<Item = Ino> + use<> {
        let both = [self.made, self.detached];
        both.into_iter().flatten().map(|(_shard, ino)| ino)
    }
}

/// Objects to delete at the targets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// Key to pass to [`crate::MetaShard::deletion_done`].
    pub key: Vec<u8>,
    /// Layout of the objects.
    pub layout: Layout,
}

/// A directory inode whose entry in the root is not settled. The driver asks the root shard
/// `HasEntry`, then sends this shard the answer as `SettleDir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detached {
    /// The directory.
    pub ino: Ino,
    /// The time since which it is detached.
    pub since: Timestamp,
}

/// Result of housekeeping: log and apply `effect`, then wake.
#[derive(Debug, Default)]
pub struct Ticked {
    /// Changes of the store.
    pub effect: Vec<KvChange>,
    /// The reason why an inode that an ended session held could not be read. It stays until a start
    /// of the shard can read it.
    pub unread: Option<ErrorCode>,
    /// Clients that sent nothing for the term of their session.
    pub lost: Vec<LostClient>,
    /// Retry requests that wait for one of these.
    pub wake: Vec<WaitOn>,
    /// Retry all requests that wait for something else than events.
    pub recheck: bool,
}

/// A client whose session expired.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostClient {
    /// The client.
    pub client: ClientId,
    /// The zone that it claimed.
    pub zone: ZoneId,
    /// The name that it claimed.
    pub name: String,
}
