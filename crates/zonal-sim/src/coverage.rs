//! Coverage of runs: faults by kind, and marks of the cores that were reached.

use std::collections::{BTreeMap, BTreeSet};

/// Kinds of faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// A message was lost.
    Loss,
    /// A message arrived twice.
    Duplicate,
    /// A message took fifty times as long, so that others overtook it.
    Slow,
    /// A change arrived at a target after its sender had given it up.
    LateChange,
    /// A client and a server could not reach one another.
    CutClient,
    /// Two servers could not reach one another.
    CutServers,
    /// Messages went one way only.
    CutOneWay,
    /// A server was cut off from everybody.
    Isolated,
    /// A server's process stood still.
    PauseServer,
    /// A client's process stood still.
    PauseClient,
    /// A server's process was killed.
    Kill,
    /// A server lost power.
    PowerLoss,
    /// A loss of power left an unsynced write half done.
    TornWrite,
    /// A client was killed, and another one came.
    ClientCrash,
    /// A caller was killed while it waited for a server; its client goes on.
    CallerKilled,
    /// A server read lent memory after its client had dropped it.
    LentReadLate,
    /// A process's clock ran fast or slow.
    Drift,
    /// A process's calendar jumped.
    CalendarJump,
    /// A partition began to move to another shard.
    Move,
    /// A target's objects began to move to others.
    Drain,
    /// A drain was ended before its time.
    DrainEnded,
    /// A target is to give objects to others.
    Rebalance,
    /// That was cancelled.
    RebalanceEnded,
    /// A file got one copy more.
    CopiesAdded,
    /// A file was striped anew.
    FileRestriped,
    /// A file began to get fewer copies.
    CopiesLowered,
    /// A target was lost for good.
    TargetLost,
    /// All storage servers of a zone ended for a while.
    ZoneAway,
    /// A bit of a segment was flipped.
    FlippedBit,
    /// A write to a segment went to another place.
    MisdirectedWrite,
    /// A write to a segment was acknowledged and not done.
    LostWrite,
    /// A read of a segment came from another place, once.
    MisdirectedRead,
    /// A read of a segment failed.
    ReadError,
    /// A target had no space.
    FullDisk,
    /// A shard had no space.
    FullShard,
    /// Slots of a target got a new epoch.
    SlotsRenewed,
    /// A message that no client should send arrived at a server.
    HostileRequest,
    /// A reply arrived at a client with changed bytes.
    HostileReply,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [Self; 38] = [
        Self::Loss,
        Self::Duplicate,
        Self::Slow,
        Self::LateChange,
        Self::CutClient,
        Self::CutServers,
        Self::CutOneWay,
        Self::Isolated,
        Self::PauseServer,
        Self::PauseClient,
        Self::Kill,
        Self::PowerLoss,
        Self::TornWrite,
        Self::ClientCrash,
        Self::CallerKilled,
        Self::LentReadLate,
        Self::Drift,
        Self::CalendarJump,
        Self::Move,
        Self::Drain,
        Self::DrainEnded,
        Self::Rebalance,
        Self::RebalanceEnded,
        Self::CopiesAdded,
        Self::FileRestriped,
        Self::CopiesLowered,
        Self::TargetLost,
        Self::ZoneAway,
        Self::FlippedBit,
        Self::MisdirectedWrite,
        Self::LostWrite,
        Self::MisdirectedRead,
        Self::ReadError,
        Self::FullDisk,
        Self::FullShard,
        Self::SlotsRenewed,
        Self::HostileRequest,
        Self::HostileReply,
    ];

    /// Name of the kind, for people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loss => "messages lost",
            Self::Duplicate => "messages doubled",
            Self::Slow => "messages late",
            Self::LateChange => "changes given up and late",
            Self::CutClient => "client cut from server",
            Self::CutServers => "server cut from server",
            Self::CutOneWay => "one-way cut",
            Self::Isolated => "server isolated",
            Self::PauseServer => "server paused",
            Self::PauseClient => "client paused",
            Self::Kill => "server killed",
            Self::PowerLoss => "power lost",
            Self::TornWrite => "writes torn",
            Self::ClientCrash => "client killed",
            Self::CallerKilled => "callers killed",
            Self::LentReadLate => "lent memory read late",
            Self::Drift => "clock drifts",
            Self::CalendarJump => "calendar jumps",
            Self::Drain => "drains",
            Self::DrainEnded => "drains ended",
            Self::Rebalance => "rebalances",
            Self::RebalanceEnded => "rebalances ended",
            Self::CopiesAdded => "files with more copies",
            Self::FileRestriped => "files striped anew",
            Self::CopiesLowered => "files with fewer copies",
            Self::ZoneAway => "zones away",
            Self::TargetLost => "targets lost",
            Self::Move => "partitions moved",
            Self::FlippedBit => "bits flipped",
            Self::MisdirectedWrite => "writes misdirected",
            Self::LostWrite => "writes lost",
            Self::MisdirectedRead => "reads misdirected",
            Self::ReadError => "read errors",
            Self::FullDisk => "no space",
            Self::FullShard => "no space for names",
            Self::SlotsRenewed => "slots renewed",
            Self::HostileRequest => "hostile requests",
            Self::HostileReply => "hostile replies",
        }
    }
}

/// Faults and marks of one or more runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Coverage {
    faults: BTreeMap<FaultKind, u64>,
    /// Names of the reached marks.
    pub marks: BTreeSet<&'static str>,
}

impl Coverage {
    /// Counts a fault.
    pub fn count(&mut self, fault: FaultKind) {
        *self.faults.entry(fault).or_default() += 1;
    }

    /// How often a kind of fault happened.
    #[must_use]
    pub fn of(&self, fault: FaultKind) -> u64 {
        self.faults.get(&fault).copied().unwrap_or(0)
    }

    /// Number of faults of all kinds.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Adds the coverage of another run.
    pub fn add(&mut self, other: &Self) {
        for (fault, count) in &other.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.marks.extend(&other.marks);
    }
}
