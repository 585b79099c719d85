//! States of nodes and events of the cell, as neighbours, reporters and managers exchange them.

#![expect(missing_docs, reason = "fields are described with their variant")]

use zonal_types::{ClientId, NodeId, ShardId, Timestamp, ZoneId, codec_enum, codec_struct};

codec_enum! {
    /// State of a node.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum NodeState {
        /// It serves.
        Up = 1,
        /// A watcher gets no answer from it, or its zone is silent.
        Suspect = 2,
        /// It answers none of its watchers.
        Down = 3,
        /// It is being emptied.
        Draining = 4,
        /// It was taken out of the cell.
        Out = 5,
    }
}

codec_enum! {
    /// Result of a heartbeat, and cause of a node's state.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum StateCause {
        /// It answers, and its roles serve.
        Serves = 1,
        /// It answers, and one of its roles does not serve.
        RoleStopped = 2,
        /// Its machine refuses the connection: no process listens.
        NoProcess = 3,
        /// No connection can be made, and nothing refuses it.
        Unreachable = 4,
        /// A connection is there, and no answer comes.
        Hung = 5,
        /// Some watchers get answers, others do not.
        Disagreement = 6,
        /// No digest comes from its zone.
        ZoneSilent = 7,
        /// An admin ordered it.
        Ordered = 8,
    }
}

impl NodeState {
    /// The state as commands and pages show it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Draining => "draining",
            Self::Out => "out",
        }
    }
}

impl StateCause {
    /// The cause in words.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Serves => "it answers",
            Self::RoleStopped => "one of its roles does not serve",
            Self::NoProcess => "no process listens at its address",
            Self::Unreachable => "its address cannot be reached",
            Self::Hung => "it accepts connections and does not answer",
            Self::Disagreement => "some of its watchers get answers, others do not",
            Self::ZoneSilent => "no digest comes from its zone",
            Self::Ordered => "an admin ordered it",
        }
    }
}

codec_struct! {
    /// Results of a node's last heartbeats to a neighbour.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Sighting {
        /// The neighbour.
        node: NodeId,
        /// Result of the last heartbeat.
        result: StateCause,
        /// Age of the first heartbeat that has no answer; 0: there is none.
        silent_ms: u32,
    }
}

codec_struct! {
    /// A node of a digest that is not up.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Suspicion {
        /// The node.
        node: NodeId,
        /// `Suspect` or `Down`.
        state: NodeState,
        /// Its cause.
        cause: StateCause,
        /// Watchers that say so, two at most.
        by: Vec<NodeId>,
    }
}

codec_struct! {
    /// State of a node, as the manager knows it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct KnownState {
        /// The node.
        node: NodeId,
        /// Its state.
        state: NodeState,
        /// Calendar time of the change to it; of a state that did not change since the manager
        /// started, that start.
        since: Timestamp,
        /// Its cause.
        cause: StateCause,
        /// Watchers that say so.
        by: Vec<NodeId>,
    }
}

codec_enum! {
    /// A change that operators see.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub enum CellChange {
        /// A node has another state.
        NodeState = 1 { node: NodeId, zone: ZoneId, was: NodeState, state: NodeState, cause: StateCause, by: Vec<NodeId> },
        /// Digests of a zone no longer arrive, or arrive again.
        ZoneReports = 2 { zone: ZoneId, reports: bool },
        /// A client was silent past the term of its session at a shard.
        ClientLost = 3 { shard: ShardId, zone: ZoneId, client: ClientId, name: String },
    }
}

codec_struct! {
    /// An event of the cell.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct CellEvent {
        /// Its number; they rise without gaps.
        number: u64,
        /// Calendar time at the manager.
        at: Timestamp,
        /// The change.
        change: CellChange,
    }
}
