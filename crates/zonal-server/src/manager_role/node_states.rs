//! The manager's states of nodes, with the log of their changes.
//!
//! States live in memory. A manager that starts has the last ones from the log of events, until the
//! first digests arrive. Lock order: `StateTable::table` is taken alone, then the engine's own.

use super::event_log::EventLog;
use super::{ManagerError, ManagerRole};
use crate::clock;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_disk::Engine;
use zonal_types::limits::{EVENT_NAME_BYTES_MAX, NODE_STATES_LISTED_MAX};
use zonal_types::{ClientId, Instant, NodeId, Timestamp};
use zonal_wire::{
    CellChange, CellEvent, KnownState, ManagerReply, ManagerRequest, NodeState, StateCause,
};
use zonal_zonemap::watch::{NodeStates, ZoneDigest, ZoneMembers};
use zonal_zonemap::{Node, ZoneMap};

/// Nodes that `/health` names.
const HEALTH_LINES: usize = 20;

struct Table {
    states: NodeStates,
    members: ZoneMembers,
    events: EventLog,
    digests: u64,
    lost: RecentlyLost,
}

/// Clients that were lost last, with the time.
#[derive(Default)]
struct RecentlyLost(VecDeque<(ClientId, Instant)>);

/// Clients that are remembered as lost.
const RECENT_MAX: usize = 256;
/// How long the loss of a client is told once.
const RECENT_MS: u64 = 60_000;

impl RecentlyLost {
    /// Remembers a client; false where it was lost just before.
    fn is_new(&mut self, client: ClientId) -> bool {
        let now = clock::instant();
        self.0.retain(|(_, at)| now.ms_since(*at) < RECENT_MS);
        if self.0.iter().any(|(known, _)| *known == client) {
            return false;
        }
        if self.0.len() >= RECENT_MAX {
            self.0.pop_front();
        }
        self.0.push_back((client, now));
        true
    }
}

/// The states, and the log of events.
pub(super) struct StateTable(Mutex<Table>);

impl StateTable {
    /// Loads the numbers of events, and the last states from them.
    pub(super) fn open(engine: &Engine) -> Result<Self, ManagerError> {
        let mut states = NodeStates::new(clock::instant());
        let events = EventLog::open(engine, &mut |event: CellEvent| {
            if let CellChange::NodeState {
                node,
                zone,
                state,
                cause,
                by,
                ..
            } = event.change
            {
                let since = event.at;
                let known = KnownState {
                    node,
                    state,
                    since,
                    cause,
                    by,
                };
                states.restore(zone, known);
            }
        })?;
        Ok(Self(Mutex::new(Table {
            states,
            members: ZoneMembers::default(),
            events,
            digests: 0,
            lost: RecentlyLost::default(),
        })))
    }

    /// The table, with the members of this map.
    fn at(&self, map: &ZoneMap) -> MutexGuard<'_, Table> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = &mut *table;
        if known.members.follow(map) {
            known.states.follow(&known.members, clock::wall());
        }
        table
    }
}

/// The state of a node as it is shown: an admin's order counts before heartbeats.
fn shown(states: &NodeStates, node: &Node) -> KnownState {
    let ordered = match node.state {
        NodeState::Draining | NodeState::Out => Some(node.state),
        NodeState::Up | NodeState::Suspect | NodeState::Down => None,
    };
    let known = states.known(node.id);
    match (ordered, known) {
        (None, Some(known)) => known,
        (ordered, known) => KnownState {
            node: node.id,
            state: ordered.unwrap_or(NodeState::Up),
            since: known.map_or(Timestamp::default(), |known| known.since),
            cause: match ordered {
                Some(_) => StateCause::Ordered,
                None => StateCause::Serves,
            },
            by: Vec::new(),
        },
    }
}

/// The longest part of a name that an event takes.
fn cut(mut name: String) -> String {
    let mut end = name.len().min(EVENT_NAME_BYTES_MAX);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    name
}

impl ManagerRole {
    /// Answers requests about states of nodes and events.
    pub(super) fn answer_of_states(
        &self,
        request: ManagerRequest,
    ) -> Result<ManagerReply, ManagerError> {
        let map = self.parts.published.current();
        let mut table = self.states.at(&map);
        let table = &mut *table;
        Ok(match request {
            ManagerRequest::Digest {
                zone,
                reporter,
                suspicions,
                unknown,
            } => {
                let digest = ZoneDigest {
                    suspicions,
                    unknown,
                };
                table.digests += 1;
                let now = (clock::instant(), clock::wall());
                let from = (zone, reporter);
                let changes = table.states.take(from, digest, &table.members, now);
                self.log_changes(&mut table.events, changes);
                let next_ms = NodeStates::period_ms(table.members.count());
                ManagerReply::DigestTaken {
                    next_ms: u32::try_from(next_ms).unwrap_or(u32::MAX),
                }
            }
            ManagerRequest::NodeStates { after } => {
                let behind = map.nodes.partition_point(|node| node.id <= after);
                let nodes = &map.nodes[behind..];
                let listed = nodes.iter().take(NODE_STATES_LISTED_MAX);
                ManagerReply::NodeStates {
                    states: listed.map(|node| shown(&table.states, node)).collect(),
                    end: nodes.len() <= NODE_STATES_LISTED_MAX,
                }
            }
            ManagerRequest::Events { after, limit } => {
                let (first, last) = table.events.numbers();
                let events = EventLog::listed(&**self.log.engine(), after, limit)?;
                ManagerReply::Events {
                    first,
                    last,
                    events,
                }
            }
            ManagerRequest::ClientLost {
                shard,
                zone,
                client,
                name,
            } => {
                // A client has a session at several shards.
                if table.lost.is_new(client) {
                    let lost = CellChange::ClientLost {
                        shard,
                        zone,
                        client,
                        name: cut(name),
                    };
                    self.log_changes(&mut table.events, vec![lost]);
                }
                super::reply_of(&map)
            }
            other => {
                tracing::error!(request = other.name(), "not about states of nodes");
                super::reply_of(&map)
            }
        })
    }

    /// True where heartbeats have a node as down.
    pub(super) fn is_down(&self, node: NodeId) -> bool {
        let table = self.states.at(&self.parts.published.current());
        table.states.state(node) == Some(NodeState::Down)
    }

    fn log_changes(&self, events: &mut EventLog, changes: Vec<CellChange>) {
        for change in &changes {
            log_change(change);
        }
        if let Err(error) = events.append(&self.log, changes) {
            tracing::warn!(%error, "events are not kept");
        }
    }

    /// Looks for zones without digests; returns the nodes to which the manager sends heartbeats.
    pub(crate) fn watch_zones(&self) -> Vec<NodeId> {
        let map = self.parts.published.current();
        let mut table = self.states.at(&map);
        let table = &mut *table;
        let now = (clock::instant(), clock::wall());
        let orders = table.states.tick(&table.members, now);
        self.log_changes(&mut table.events, orders.changes);
        orders.heartbeats
    }

    /// Takes the result of a heartbeat of the manager's own.
    pub(crate) fn heartbeat_answered(&self, node: NodeId, result: StateCause) {
        let mut table = self.states.at(&self.parts.published.current());
        table.states.answered(node, result, clock::instant());
    }

    /// A heartbeat of the manager's own was not sent.
    pub(crate) fn heartbeat_unsent(&self, node: NodeId) {
        let mut table = self.states.at(&self.parts.published.current());
        table.states.unsent(node);
    }

    /// Lines about nodes that are not up, for `/health`.
    pub(crate) fn cell_health(&self) -> String {
        let map = self.parts.published.current();
        let table = self.states.at(&map);
        let mut lines = String::new();
        for (zone, known) in table.states.not_up().take(HEALTH_LINES) {
            let (node, state, cause) = (known.node, known.state.word(), known.cause.text());
            lines += &format!("degraded: node {node} in zone {zone} is {state}: {cause}\n");
        }
        let more = table.states.not_up().count().saturating_sub(HEALTH_LINES);
        if more > 0 {
            lines += &format!("degraded: {more} more nodes are not up\n");
        }
        lines
    }

    /// Gauges of states and events.
    pub(crate) fn state_gauges(&self) -> Vec<(String, u64)> {
        let map = self.parts.published.current();
        let table = self.states.at(&map);
        let states = [
            ("up", NodeState::Up),
            ("suspect", NodeState::Suspect),
            ("down", NodeState::Down),
        ];
        let nodes = states.map(|(name, state)| {
            let count = table.states.count(state) as u64;
            (format!("nodes{{state=\"{name}\"}}"), count)
        });
        let (first, last) = table.events.numbers();
        let others = [
            ("silent_zones", table.states.silent_zones() as u64),
            ("digests_total", table.digests),
            ("events", (last + 1).saturating_sub(first.max(1))),
            ("events_max", zonal_types::limits::EVENTS_MAX),
        ];
        let others = others.map(|(name, value)| (name.to_owned(), value));
        nodes.into_iter().chain(others).collect()
    }
}

fn log_change(change: &CellChange) {
    match change {
        CellChange::NodeState {
            node,
            zone,
            was,
            state,
            cause,
            ..
        } => {
            let (was, state, cause) = (was.name(), state.name(), cause.name());
            tracing::info!(
                node = node.0,
                zone = zone.0,
                was,
                state,
                cause,
                "a node changed"
            );
        }
        CellChange::ZoneReports { zone, reports } => {
            tracing::info!(zone = zone.0, reports, "digests of a zone");
        }
        CellChange::ClientLost { shard, name, .. } => {
            tracing::info!(shard = shard.0, name, "a client is lost");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager_tests::{join, manager, manager_joins};
    use zonal_testkit::Scratch;
    use zonal_types::{ShardId, ZoneId};
    use zonal_wire::Suspicion;

    fn digest(down: &[u32]) -> ManagerRequest {
        let suspicions = down.iter().map(|node| Suspicion {
            node: NodeId(*node),
            state: NodeState::Down,
            cause: StateCause::NoProcess,
            by: vec![NodeId(2)],
        });
        ManagerRequest::Digest {
            zone: ZoneId(2),
            reporter: NodeId(2),
            suspicions: suspicions.collect(),
            unknown: Vec::new(),
        }
    }

    fn states(manager: &ManagerRole) -> Vec<(u32, NodeState)> {
        match manager.handle(ManagerRequest::NodeStates { after: NodeId(1) }) {
            ManagerReply::NodeStates { states, end: true } => {
                let states = states.iter();
                states.map(|known| (known.node.0, known.state)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn events(manager: &ManagerRole) -> Vec<CellEvent> {
        let asked = ManagerRequest::Events {
            after: 0,
            limit: 10,
        };
        match manager.handle(asked) {
            ManagerReply::Events { events, .. } => events,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn states_outlive_the_manager_by_their_events() {
        let scratch = Scratch::new("states");
        {
            let (manager, _) = manager(&scratch);
            manager_joins(&manager);
            for node in [2, 3] {
                let target = Some((node, 1));
                let _ = manager.handle(join(node, 2, false, target));
            }
            assert!(matches!(
                manager.handle(digest(&[3])),
                ManagerReply::DigestTaken { next_ms: 1_000 }
            ));
            assert_eq!(states(&manager), [(2, NodeState::Up), (3, NodeState::Down)]);
            assert!(manager.cell_health().contains("node 3 in zone 2 is down"));
        }
        let (again, _) = manager(&scratch);
        assert_eq!(states(&again), [(2, NodeState::Up), (3, NodeState::Down)]);
        let _ = again.handle(digest(&[]));
        let told = events(&again);
        assert_eq!(
            told.iter().map(|event| event.number).collect::<Vec<_>>(),
            [1, 2]
        );
        assert!(matches!(
            told[1].change,
            CellChange::NodeState {
                was: NodeState::Down,
                state: NodeState::Up,
                ..
            }
        ));
        assert_eq!(again.cell_health(), "");
    }

    #[test]
    fn the_loss_of_a_client_is_one_event_for_all_shards() {
        let scratch = Scratch::new("lost");
        let (manager, _) = manager(&scratch);
        manager_joins(&manager);
        for (shard, client) in [(1, 7), (2, 7), (1, 8)] {
            let _ = manager.handle(ManagerRequest::ClientLost {
                shard: ShardId(shard),
                zone: ZoneId(1),
                client: ClientId(client),
                name: "ä".repeat(200),
            });
        }
        let told = events(&manager);
        assert_eq!(told.len(), 2);
        let CellChange::ClientLost { name, .. } = &told[0].change else {
            panic!("{told:?}");
        };
        assert_eq!(name.len(), EVENT_NAME_BYTES_MAX);
    }
}
