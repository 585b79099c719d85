//! Marks: named points of the cores that are reached seldom. With the feature `marks` (tests and
//! the simulator) a thread remembers which it passed; without it, as in any release, a mark is
//! nothing at all.
//!
//! `mark!(AppendPassedOver)` stands where the thing happens. [`NAMES`] lists all, so that a summary
//! can say what no run reached.

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A point.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mark {
            $($(#[$doc])* $name,)*
        }

        /// Names of all points.
        pub const NAMES: &[&str] = &[$(stringify!($name),)*];

        impl Mark {
            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

marks! {
    /// A slot's request was repeated and got its stored reply.
    SlotRepeated,
    /// The same, after a restart of the shard.
    SlotRepeatedAfterRestart,
    /// A request of a slot came later than its successor.
    SlotLate,
    /// A request of another incarnation than its session's was refused.
    IncarnationRefused,
    /// A session waits for its client's fence.
    SessionEnding,
    /// A target refused a client that is fenced.
    FencedRefused,
    /// A change waited for a caching client.
    RecallWaited,
    /// An append waited for one before it.
    AppendWaited,
    /// An append was told that its ticket is unknown.
    AppendUnknown,
    /// An unfinished append was passed over.
    AppendPassedOver,
    /// A report of what was written before a shrink that its writer did not know.
    ReportAfterCut,
    /// A place that was given to an append was kept where the file was cut behind its beginning.
    AppendKeptAfterCut,
    /// A restarted shard got an append's ticket back.
    AppendReclaimed,
    /// An append waited for clients that had not told a restarted shard what they hold.
    AppendHeldBack,
    /// The end of a file was lent.
    EndLent,
    /// A lent end was wanted by another client.
    EndRecalled,
    /// A lent end that was not given back was taken away.
    EndTakenAway,
    /// A restarted shard was told of an end that is lent.
    EndReclaimed,
    /// Gathered appends were lost with the end that had been lent.
    AppendsLost,
    /// The end of gathered appends was not answered, and was asked for again.
    AppendsUnconfirmed,
    /// A first-level directory that nobody had settled was asked for again meanwhile.
    SettledMeanwhile,
    /// A client from before a restart was sent to tell what it holds first.
    SilentRefused,
    /// A lock waited for such clients.
    LockHeldBack,
    /// A client asked for a lock again, since its shard was restarted while the answer was on its
    /// way.
    LockAskedAgain,
    /// A session ended because its client gave no sign.
    SessionExpired,
    /// An inode without a name went with its last close.
    OrphanGone,
    /// A shrink was refused because another is not confirmed.
    TruncateUnconfirmed,
    /// A client asked the shard to make nobody's what lies behind a file's end.
    BehindAsked,
    /// A target cut an object first, since the writer knew a later shrink.
    CutFirst,
    /// A target refused a write that did not know the last shrink.
    CutStale,
    /// A write to a target was merged anew, since its base had changed.
    CommitAgain,
    /// A write to a deleted object was refused.
    WriteAfterDelete,
    /// A target refused a change that its sender had sent again.
    LateChange,
    /// A deletion took several records.
    DeleteInParts,
    /// A target was full.
    TargetFull,
    /// A client heard that a target lost what it had acknowledged.
    TargetLostPower,
    /// A client heard that a shard lost what it had acknowledged.
    ShardLostPower,
    /// A client told a restarted shard a size again.
    SizeToldAgain,
    /// A client told a restarted shard what it holds.
    Reclaimed,
    /// A client opened a new session, since the shard had forgotten the old one.
    SessionLost,
    /// A client that used nothing of a shard ended its session.
    SessionLeft,
    /// A client took the manager's map for its own, which was not older.
    MapReplaced,
    /// A write was sent again.
    WriteRepeated,
    /// A caller asked a server that is silent, with little patience.
    SilentServerMet,
    /// An operation was over before the deadline of its request: a server that it needs did not
    /// answer.
    OperationOver,
    /// A cut of bytes of which it is not known whether targets have them.
    CutOfUnsure,
    /// An operation was given up while it waited.
    OperationGivenUp,
}

#[cfg(feature = "marks")]
mod kept {
    use super::Mark;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    std::thread_local! {
        static REACHED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// The point was reached.
    pub fn reach(mark: Mark) {
        REACHED.with_borrow_mut(|reached| reached.insert(mark.name()));
    }

    /// Names of the points that this thread reached since it was asked last.
    #[must_use]
    pub fn take() -> BTreeSet<&'static str> {
        REACHED.take()
    }
}

#[cfg(feature = "marks")]
pub use kept::{reach, take};

/// Without the feature: nothing is known.
#[cfg(not(feature = "marks"))]
#[must_use]
pub fn take() -> std::collections::BTreeSet<&'static str> {
    std::collections::BTreeSet::new()
}

/// True where points are remembered.
#[must_use]
pub const fn are_kept() -> bool {
    cfg!(feature = "marks")
}

/// This point was reached.
#[cfg(feature = "marks")]
#[macro_export]
macro_rules! mark {
    ($name:ident) => {
        $crate::coverage_marks::reach($crate::coverage_marks::Mark::$name)
    };
}

/// This point was reached: nothing, but the name must be known.
#[cfg(not(feature = "marks"))]
#[macro_export]
macro_rules! mark {
    ($name:ident) => {{
        const _: $crate::coverage_marks::Mark = $crate::coverage_marks::Mark::$name;
    }};
}
