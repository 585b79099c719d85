//! The log as a member reads it.

use crate::entry::{LogEntry, LogIndex, Membership, Term};

/// The log cannot be read: the medium fails, or the bytes are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the log cannot be read")]
pub struct LogUnread;

/// Entries of one member, as its shell has written them. A shell changes the log only as
/// [`crate::MemberWork`] says, and by dropping entries that were applied from its front.
pub trait EntryLog {
    /// The first entry that can be read; one behind the last where there is none.
    fn first(&self) -> LogIndex;

    /// The last entry; the entry before [`Self::first`] where there is none.
    fn last(&self) -> LogIndex;

    /// The term of an entry from the one before [`Self::first`] to [`Self::last`]; `None` of
    /// others.
    fn term(&self, index: LogIndex) -> Option<Term>;

    /// Entries from `from` up to, not including, `to`, all of which exist. Of more than `max_bytes`
    /// only the first are returned, at least one.
    ///
    /// # Errors
    /// The log cannot be read.
    fn entries(
        &self,
        from: LogIndex,
        to: LogIndex,
        max_bytes: u64,
    ) -> Result<Vec<LogEntry>, LogUnread>;

    /// The newest members that were written down, and the entry that made them so. Later than the
    /// last applied entry after a start: a member must not forget the members that it has acted by.
    fn membership(&self) -> (LogIndex, Membership);
}

impl<L: EntryLog> EntryLog for std::sync::Arc<L> {
    fn first(&self) -> LogIndex {
        (**self).first()
    }
    fn last(&self) -> LogIndex {
        (**self).last()
    }
    fn term(&self, index: LogIndex) -> Option<Term> {
        (**self).term(index)
    }
    fn entries(&self, from: LogIndex, to: LogIndex, max: u64) -> Result<Vec<LogEntry>, LogUnread> {
        (**self).entries(from, to, max)
    }
    fn membership(&self) -> (LogIndex, Membership) {
        (**self).membership()
    }
}
