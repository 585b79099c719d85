//! Bugs planted on purpose, to show that the checkers find them: at least one for each checker.

/// A planted bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plant {
    /// No bug.
    #[default]
    None,
    /// Shards execute repeated requests again (invariant 2, by the exact model).
    ShardForgetsReplies,
    /// Shards lose the last change of some effects (invariant 2).
    ShardLosesChanges,
    /// Targets report a sync that they did not do (invariant 3).
    SyncDoesNothing,
    /// Shards report a sync that they did not do (invariant 3, names).
    ShardSyncDoesNothing,
    /// Clients acknowledge events without acting on them (invariant 4).
    EventsAreIgnored,
    /// Targets return bytes whose checksum is wrong (invariant 5).
    ReadsAreUnverified,
    /// Shards assume that every message can be decoded (invariant 6).
    DecoderTrusts,
    /// Shards believe every size that a writer reports, even where the file was truncated after the
    /// bytes were sent (invariant 7).
    TruncationsAreForgotten,
    /// Targets ignore truncations, so that truncated bytes come back (invariant 7).
    TargetIgnoresTruncation,
    /// Targets execute changes that their senders have sent again since (invariant 7; found by 3).
    AttemptsAreIgnored,
    /// Targets make changes in the order in which they come (copies of concurrent writers).
    OrdersAreIgnored,
    /// Shards never forget requests whose sender has given up (invariant 8).
    WaitsAreKept,
    /// Shards never delete objects at targets (invariant 9).
    DeletionsAreLost,
    /// Shards count a block too much for each write that needs one (invariant 9, allocated bytes;
    /// found in runs without faults).
    AllocatedIsMiscounted,
    /// Targets store column 1 as column 2 (invariant 10).
    ColumnsAreMixed,
    /// Targets write a block behind the place in all copies but the first.
    CopiesAreShifted,
    /// Shards confirm the mark of a stale copy, and do not keep it.
    MarksAreForgotten,
    /// Targets fill their stale copies with nothing.
    FillsAreEmpty,
    /// Shards do not tell clients of the new places of objects that move.
    RelocationsAreHidden,
    /// When a file is closed, shards release all locks of its owner, even those of the next open
    /// file with the same owner's name.
    ClosesNameOwners,
    /// Shards take back all locks of an owner, even the one that its repeated request got.
    TakeBacksNameOwners,
    /// Shards give a client that comes back its old session, and append at whatever end it claims
    /// that it was lent.
    EndsOutliveSessions,
    /// Targets accept an epoch of any of their slots (invariant 7).
    EpochsAreMixed,
    /// Targets report that they have fenced a client, and do not (invariant 7).
    FencesAreForgotten,
    /// Shards give the locks of a session to others before they send its fence to targets
    /// (invariant 7).
    LocksBeforeFences,
    /// Mounts append gathered records again when they do not know whether these were published.
    LostAppendsAreRepeated,
    /// A mount uses lent memory again when its caller is gone, though a request that names it may
    /// be on its way.
    LentIsReused,
    /// Shards make calls that no client waits for before they reply (invariant 9).
    CallsBeforeReply,
    /// Shards let a request wait past its deadline (invariant 9).
    DeadlinesAreIgnored,
    /// Candidates count the vote of a replica that does not answer as given.
    VotesAreAssumed,
    /// Replicas acknowledge entries that a kill takes from them.
    EntriesAreWrittenLate,
    /// Leaders reply before the commit of what the reply depends on.
    RepliesBeforeCommit,
    /// Leaders reply without a look at their lease.
    LeasesAreIgnored,
    /// Replicas vote though they may have lost entries.
    LossesAreUntold,
    /// Replicas report a flush that they did not make.
    FlushesAreForgotten,
    /// Managers of a group answer with a version of the map before its commit.
    MapsBeforeCommit,
}

/// Names of all bugs, for the command line.
pub const PLANTS: [(&str, Plant); 36] = [
    ("replies-forgotten", Plant::ShardForgetsReplies),
    ("changes-lost", Plant::ShardLosesChanges),
    ("sync-nothing", Plant::SyncDoesNothing),
    ("shard-sync-nothing", Plant::ShardSyncDoesNothing),
    ("events-ignored", Plant::EventsAreIgnored),
    ("reads-unverified", Plant::ReadsAreUnverified),
    ("decoder-trusts", Plant::DecoderTrusts),
    ("truncations-forgotten", Plant::TruncationsAreForgotten),
    ("truncation-ignored", Plant::TargetIgnoresTruncation),
    ("attempts-ignored", Plant::AttemptsAreIgnored),
    ("orders-ignored", Plant::OrdersAreIgnored),
    ("waits-kept", Plant::WaitsAreKept),
    ("deletions-lost", Plant::DeletionsAreLost),
    ("allocated-miscounted", Plant::AllocatedIsMiscounted),
    ("columns-mixed", Plant::ColumnsAreMixed),
    ("copies-shifted", Plant::CopiesAreShifted),
    ("marks-forgotten", Plant::MarksAreForgotten),
    ("fills-empty", Plant::FillsAreEmpty),
    ("relocations-hidden", Plant::RelocationsAreHidden),
    ("closes-by-owner", Plant::ClosesNameOwners),
    ("take-backs-by-owner", Plant::TakeBacksNameOwners),
    ("ends-outlive-sessions", Plant::EndsOutliveSessions),
    ("epochs-mixed", Plant::EpochsAreMixed),
    ("fences-forgotten", Plant::FencesAreForgotten),
    ("locks-before-fences", Plant::LocksBeforeFences),
    ("lost-appends-repeated", Plant::LostAppendsAreRepeated),
    ("lent-reused", Plant::LentIsReused),
    ("calls-before-reply", Plant::CallsBeforeReply),
    ("deadlines-ignored", Plant::DeadlinesAreIgnored),
    ("votes-assumed", Plant::VotesAreAssumed),
    ("entries-late", Plant::EntriesAreWrittenLate),
    ("replies-before-commit", Plant::RepliesBeforeCommit),
    ("leases-ignored", Plant::LeasesAreIgnored),
    ("losses-untold", Plant::LossesAreUntold),
    ("flushes-forgotten", Plant::FlushesAreForgotten),
    ("maps-before-commit", Plant::MapsBeforeCommit),
];

impl Plant {
    /// The bug with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = PLANTS.iter().find(|(known, _)| *known == name);
        found.map(|(_, plant)| *plant)
    }

    /// The bug's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = PLANTS.iter().find(|(_, plant)| *plant == self);
        found.map_or("none", |(name, _)| name)
    }
}
