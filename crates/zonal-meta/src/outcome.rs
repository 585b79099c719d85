//! What a request leads to: a reply with its effect, a wait, or a question to another shard.

use crate::config::Caller;
use std::sync::Arc;
use zonal_types::{
    Attr, ErrorCode, Holder, Ino, Instant, KvChange, Layout, Name, SessionId, ShardId, Timestamp,
    ZoneId,
};
use zonal_wire::{MetaReply, MetaRequest};
pub use zonal_zonemap::JunctionChange;

/// Names a request that waits; given back to `handle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u64);

/// What wakes a waiting request, besides its time running out: an outcome names it in `wake`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitOn {
    /// An event for this session.
    Events(SessionId),
    /// What this session acknowledges: it has cached what is to change.
    Acknowledgement(SessionId),
    /// Places behind the end of this file, which others have.
    End(Ino),
    /// What sessions from before the shard's start have to tell, or nothing but time.
    Recovery,
}

/// What the shell is to do for a request.
#[derive(Debug)]
pub enum Outcome {
    /// Log `effect` and `junctions` in one record (if any), apply it, wake, then send `reply`; then
    /// make the calls in `after` (best effort: housekeeping settles what is lost).
    Reply {
        /// The answer.
        reply: MetaReply,
        /// Changes of the store, empty where nothing is to be logged.
        effect: Vec<KvChange>,
        /// Changes of the cell's junctions (root shard only).
        junctions: Vec<JunctionChange>,
        /// Requests that wait on one of these should be tried again.
        wake: Vec<WaitOn>,
        /// All should that wait for something else than events.
        recheck: bool,
        /// Requests to other shards that nobody waits for; unslotted and idempotent.
        after: Vec<(ShardId, MetaRequest)>,
    },
    /// Wait until woken or until `until`, then call `handle` again with `attempt`.
    Wait {
        /// Names the wait.
        attempt: Attempt,
        /// When to try again at the latest.
        until: Instant,
        /// What to wait for.
        on: WaitOn,
        /// As in `Reply`.
        wake: Vec<WaitOn>,
        /// As in `Reply`.
        recheck: bool,
    },
    /// Send `request` to `shard` (unslotted), then call `resume` with the answer; where there is
    /// none, with `MetaReply::Failed`.
    Call {
        /// The shard that is asked.
        shard: ShardId,
        /// The question.
        request: MetaRequest,
        /// To be given back.
        call: PendingCall,
        /// As in `Reply`.
        wake: Vec<WaitOn>,
    },
}

/// A request that waits for another shard's answer.
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

/// What was asked of another shard.
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

/// What other shards answered so far. The operation runs again from its start with these.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// A directory was made there.
    pub made: Option<(ShardId, Ino)>,
    /// This directory is empty and accepts no entries any more.
    pub detached: Option<(ShardId, Ino)>,
    /// Attributes of inodes elsewhere (`None`: it does not exist).
    pub attrs: Vec<(Ino, Option<Attr>)>,
    /// The root shard has said what the first name of the client's path leads to, perhaps nowhere.
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
    /// For [`crate::MetaShard::deletion_done`].
    pub key: Vec<u8>,
    /// Where they are.
    pub layout: Layout,
}

/// A directory inode whose entry in the root is not settled: ask the root shard `HasEntry`, then
/// send this shard the answer as `SettleDir`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detached {
    /// The directory.
    pub ino: Ino,
    /// Since when.
    pub since: Timestamp,
}

/// What housekeeping found to do: log and apply `effect`, then wake.
#[derive(Debug, Default)]
pub struct Ticked {
    /// Changes of the store.
    pub effect: Vec<KvChange>,
    /// Why an inode that an ended session held could not be read: it stays, until a start of the
    /// shard can read it.
    pub unread: Option<ErrorCode>,
    /// Requests that wait on one of these should be tried again.
    pub wake: Vec<WaitOn>,
    /// All should that wait for something else than events.
    pub recheck: bool,
}
