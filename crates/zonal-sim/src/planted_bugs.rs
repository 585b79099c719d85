//! Bugs put in on purpose, to show that the checkers find them: at least one for each checker.

/// A bug.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plant {
    /// None.
    #[default]
    None,
    /// Shards execute repeated requests again (invariant 2, by the exact model).
    ShardForgetsReplies,
    /// Shards lose the last change of some effects (invariant 2).
    ShardLosesChanges,
    /// Targets say that they synced and do not (invariant 3).
    SyncDoesNothing,
    /// Shards say that they synced and do not (invariant 3, names).
    ShardSyncDoesNothing,
    /// Clients acknowledge events without acting on them (invariant 4).
    EventsAreIgnored,
    /// Targets return bytes whose checksum is wrong (invariant 5).
    ReadsAreUnverified,
    /// Shards trust that what arrives can be decoded (invariant 6).
    DecoderTrusts,
    /// Shards believe every size that a writer tells, also where the file was cut after its bytes
    /// were sent (invariant 7).
    CutsAreForgotten,
    /// Targets ignore truncations, so that cut bytes come back (invariant 7).
    TargetIgnoresTruncation,
    /// Targets carry out changes that their senders have sent again since (invariant 7; found by
    /// 3).
    AttemptsAreIgnored,
    /// Shards never forget requests whose sender has given up (invariant 8).
    WaitsAreKept,
    /// Shards never delete objects at targets (invariant 9).
    DeletionsAreLost,
    /// Shards count a block too much of each write that takes some (invariant 9, allocated bytes;
    /// found where there are no faults).
    AllocatedIsMiscounted,
    /// Targets keep column 1 as column 2 (invariant 10).
    ColumnsAreMixed,
    /// Shards release all locks of an owner when one of its open files is closed, also those of the
    /// next open file with its name.
    ClosesNameOwners,
    /// Shards take back whatever an owner holds, also what its repeated request got.
    TakeBacksNameOwners,
    /// Shards give a client that comes back its old session, and places at whatever end it says
    /// that it was lent.
    EndsOutliveSessions,
    /// Targets accept an epoch that any of their slots has (invariant 7).
    EpochsAreMixed,
    /// Targets say that they have fenced a client, and do not (invariant 7).
    FencesAreForgotten,
    /// Shards give the locks of a session to others, and tell targets of its fence later (invariant
    /// 7).
    LocksBeforeFences,
    /// Mounts append again what they gathered and do not know to be published.
    LostAppendsAreRepeated,
    /// What a mount lends to targets is used again when its caller is gone, though a request that
    /// names it may be on its way.
    LentIsReused,
    /// Shards make the calls that nobody waits for before they reply (invariant 9).
    CallsBeforeReply,
    /// Shards let a request wait past its deadline (invariant 9).
    DeadlinesAreIgnored,
}

/// Names of all bugs, as they are typed.
pub const PLANTS: [(&str, Plant); 24] = [
    ("replies-forgotten", Plant::ShardForgetsReplies),
    ("changes-lost", Plant::ShardLosesChanges),
    ("sync-nothing", Plant::SyncDoesNothing),
    ("shard-sync-nothing", Plant::ShardSyncDoesNothing),
    ("events-ignored", Plant::EventsAreIgnored),
    ("reads-unverified", Plant::ReadsAreUnverified),
    ("decoder-trusts", Plant::DecoderTrusts),
    ("cuts-forgotten", Plant::CutsAreForgotten),
    ("truncation-ignored", Plant::TargetIgnoresTruncation),
    ("attempts-ignored", Plant::AttemptsAreIgnored),
    ("waits-kept", Plant::WaitsAreKept),
    ("deletions-lost", Plant::DeletionsAreLost),
    ("allocated-miscounted", Plant::AllocatedIsMiscounted),
    ("columns-mixed", Plant::ColumnsAreMixed),
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
];

impl Plant {
    /// The bug with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let found = PLANTS.iter().find(|(known, _)| *known == name);
        found.map(|(_, plant)| *plant)
    }

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        let found = PLANTS.iter().find(|(_, plant)| *plant == self);
        found.map_or("none", |(name, _)| name)
    }
}
