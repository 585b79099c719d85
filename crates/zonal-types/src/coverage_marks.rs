//! Coverage marks: named points in the cores that are rarely reached.
//!
//! With the feature `marks` (tests and the simulator) each thread remembers the marks it passed.
//! Without it, as in every release, a mark compiles to nothing.
//!
//! `mark!(AppendPassedOver)` stands where the event happens. [`NAMES`] lists all marks, so that a
//! summary can name those that no run reached.

macro_rules! marks {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A coverage mark.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Mark {
            $($(#[$doc])* $name,)*
        }

        /// Names of all marks.
        pub const NAMES: &[&str] = &[$(stringify!($name),)*];

        impl Mark {
            /// The mark's name.
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
    /// A request of a session slot was repeated and got its stored reply.
    SlotRepeated,
    /// A request was repeated after a restart of the shard and got its stored reply.
    SlotRepeatedAfterRestart,
    /// A request of a session slot arrived after its successor.
    SlotLate,
    /// A shard began to serve a partition that another shard had.
    PartitionArrived,
    /// A shard learned that its partition is another shard's now.
    PartitionDeparted,
    /// A client sent a request to the shard that has the inode's partition now.
    OwnerFollowed,
    /// A shard refused a request whose incarnation differs from that of its session.
    IncarnationRefused,
    /// A session waits until targets know its client's fence.
    SessionEnding,
    /// A target refused a fenced client.
    FencedRefused,
    /// A change waited for the recall of a caching lease.
    RecallWaited,
    /// An append waited for an earlier append.
    AppendWaited,
    /// A shard refused an append with an unknown ticket.
    AppendUnknown,
    /// A shard skipped an unfinished append.
    AppendPassedOver,
    /// A client reported a write that was made before a truncation it did not know.
    ReportAfterTruncation,
    /// An append kept its place although the file was truncated behind the start of that place.
    AppendKeptAfterTruncation,
    /// A client gave a restarted shard its append ticket back.
    AppendReclaimed,
    /// An append waited for clients that had not yet reported to a restarted shard what they hold.
    AppendHeldBack,
    /// A shard lent the end of a file.
    EndLent,
    /// A shard recalled a lent end for another client.
    EndRecalled,
    /// A shard revoked a lent end that its client did not give back.
    EndTakenAway,
    /// A client reported a lent end to a restarted shard.
    EndReclaimed,
    /// Gathered appends were lost together with the lent end.
    AppendsLost,
    /// The end of gathered appends got no answer and was requested again.
    AppendsUnconfirmed,
    /// A pending first-level directory was requested again before it was settled.
    SettledMeanwhile,
    /// A shard told a client from before its restart to report what it holds first.
    SilentRefused,
    /// A lock waited for clients that had not yet reported to a restarted shard what they hold.
    LockHeldBack,
    /// A client requested a lock again, because its shard restarted before the answer arrived.
    LockAskedAgain,
    /// A session expired without a sign of its client.
    SessionExpired,
    /// The last close of an orphan removed its inode.
    OrphanGone,
    /// A shard refused a truncation because an earlier one is not confirmed.
    TruncateUnconfirmed,
    /// A client asked the shard to disown the bytes behind a file's end.
    BehindAsked,
    /// A target truncated an object before a write, because the writer knew a later truncation.
    TruncateFirst,
    /// A target refused a write whose sender did not know the last truncation.
    StaleTruncation,
    /// A target refused a change that met bytes of a higher order.
    ChangeOvertaken,
    /// A client sent to all copies again what one of them refused by its order.
    OvertakenSentAgain,
    /// A target planned a write again, because its base had changed.
    CommitAgain,
    /// A target refused a write to a deleted object.
    WriteAfterDelete,
    /// A target refused a change that its sender had sent again.
    LateChange,
    /// A deletion took several log records.
    DeleteInParts,
    /// A target was full.
    TargetFull,
    /// A client learned that a target lost changes it had acknowledged.
    TargetLostPower,
    /// A client learned that a shard lost changes it had acknowledged.
    ShardLostPower,
    /// A client reported a size to a restarted shard again.
    SizeToldAgain,
    /// A client reported to a restarted shard what it holds.
    Reclaimed,
    /// A client opened a new session, because the shard had forgotten the old one.
    SessionLost,
    /// A client ended a session that it no longer used.
    SessionLeft,
    /// A client replaced its map by the manager's, which was not newer.
    MapReplaced,
    /// A client sent a write again.
    WriteRepeated,
    /// A read went on to another copy.
    OtherCopyAsked,
    /// A client's report took a target out.
    TargetTakenOut,
    /// A shard marked a copy as stale.
    CopyMarkedStale,
    /// A client changed a copy that its target was filling.
    FillingCopyChanged,
    /// A shard removed the mark of a copy that its target had filled.
    CopyMended,
    /// A shard gave an object a relocation.
    ObjectRelocated,
    /// A change reached a place that came after its pieces were made.
    LatePlaceChanged,
    /// A relocated object was filled.
    RelocationFilled,
    /// A shard gave an object of a full target to an emptier one.
    ObjectShed,
    /// A relocation to a target that ran full was dropped.
    FullPlaceGivenUp,
    /// An object left a place, where something is to be deleted.
    ObjectLeft,
    /// A target deleted what was left of an object.
    LeftoverDeleted,
    /// A shard had a file's copies go.
    CopyLeaves,
    /// A shard took copies out of a layout.
    CopiesDropped,
    /// A copy that was to go stayed, as no other one was whole.
    LeavingCopyKept,
    /// A target took a part of a copy from another one.
    CopyFilled,
    /// A client changed a part of a copy while its target took it from another one.
    FillOvertaken,
    /// A target replaced a damaged block by that of another copy.
    DamageRepaired,
    /// A read was asked of a second copy, as the first one did not answer soon.
    SecondCopyAsked,
    /// A caller with a short limit called a server that had been silent.
    SilentServerMet,
    /// An operation ended before the deadline of its request, because a server it needs did not
    /// answer.
    OperationOver,
    /// A client read a name of the root in the mirror of its zone.
    MirrorAsked,
    /// A truncation covered bytes that targets may or may not have.
    TruncationOfUnsure,
    /// A caller gave up an operation while it waited.
    OperationGivenUp,
    /// A file got the bytes of its copy with another layout.
    BytesSwapped,
    /// A file that is to get other bytes is in use, or was changed while they were copied.
    SwapRefused,
}

#[cfg(feature = "marks")]
mod kept {
    use super::Mark;
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    std::thread_local! {
        static REACHED: RefCell<BTreeSet<&'static str>> = const { RefCell::new(BTreeSet::new()) };
    }

    /// Records that this thread reached the mark.
    pub fn reach(mark: Mark) {
        REACHED.with_borrow_mut(|reached| reached.insert(mark.name()));
    }

    /// Takes the names of the marks that this thread reached since the last call.
    #[must_use]
    pub fn take() -> BTreeSet<&'static str> {
        REACHED.take()
    }
}

#[cfg(feature = "marks")]
pub use kept::{reach, take};

/// Without the feature nothing is recorded.
#[cfg(not(feature = "marks"))]
#[must_use]
pub fn take() -> std::collections::BTreeSet<&'static str> {
    std::collections::BTreeSet::new()
}

/// True where marks are recorded.
#[must_use]
pub const fn are_kept() -> bool {
    cfg!(feature = "marks")
}

/// Records that the mark was reached.
#[cfg(feature = "marks")]
#[macro_export]
macro_rules! mark {
    ($name:ident) => {
        $crate::coverage_marks::reach($crate::coverage_marks::Mark::$name)
    };
}

/// Without the feature: only checks that the name exists.
#[cfg(not(feature = "marks"))]
#[macro_export]
macro_rules! mark {
    ($name:ident) => {{
        const _: $crate::coverage_marks::Mark = $crate::coverage_marks::Mark::$name;
    }};
}
