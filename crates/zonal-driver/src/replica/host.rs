//! Host of a replica: its store, its messages and its flushes, as the server and the simulator
//! provide them.

use zonal_consensus::{EntryLog, LogEntry, LogIndex, Membership, PeerMessage, Term, Vote};
use zonal_types::{ErrorCode, KvChange};

/// Everything that a [`super::ReplicaDriver`] runs on. Its methods are called under the replica's
/// mutex: none of them may call the driver back or wait.
pub trait ReplicaHost {
    /// The log, as the member reads it.
    type Log: EntryLog;

    /// The log.
    fn log(&self) -> Self::Log;

    /// Ticks since the replica was opened, by the host's clock. It goes on where the process stands
    /// still.
    fn ticks(&self) -> u64;

    /// The stored vote.
    fn vote(&self) -> Vote;

    /// The last applied entry and its term.
    fn applied(&self) -> (LogIndex, Term);

    /// Writes and flushes the vote.
    ///
    /// # Errors
    /// The medium fails.
    fn save_vote(&self, vote: Vote) -> Result<(), ErrorCode>;

    /// Writes entries; those from the place of the first one on are void. They survive the kill of
    /// the process.
    ///
    /// # Errors
    /// The medium fails, or the log has no room.
    fn append(&self, entries: &[LogEntry]) -> Result<(), ErrorCode>;

    /// Applies an entry, which follows the last applied one, with its changes.
    fn apply(&self, entry: &LogEntry, changes: Vec<KvChange>);

    /// Notes durably the members since an applied entry.
    ///
    /// # Errors
    /// The medium fails.
    fn note_members(&self, since: LogIndex, members: Membership) -> Result<(), ErrorCode>;

    /// The bytes of an effect.
    ///
    /// # Errors
    /// It is too large.
    fn encode(&self, effect: &[KvChange]) -> Result<Vec<u8>, ErrorCode>;

    /// The effect in these bytes.
    ///
    /// # Errors
    /// They are none.
    fn decode(&self, bytes: &[u8]) -> Result<Vec<KvChange>, ErrorCode>;

    /// Sends messages soon; any may be lost.
    fn send(&self, messages: Vec<PeerMessage>);

    /// Soon takes the order of a flush ([`super::ReplicaDriver::take_flush`]).
    fn request_flush(&self);

    /// Notes durably that the member has everything that it may have lost.
    ///
    /// # Errors
    /// The medium fails.
    fn end_quarantine(&self) -> Result<(), ErrorCode>;

    /// The reign has changed, or the replica has ended and is to be opened anew.
    fn note_change(&self);
}
