//! States of nodes and events, as the manager tells them.

use super::connection::CellHandle;
use crate::exit::{Failure, UNREACHABLE};
use std::collections::{BTreeMap, BTreeSet};
use zonal_basics::const_u32;
use zonal_types::limits::EVENTS_LISTED_MAX;
use zonal_types::{NodeId, TargetId};
use zonal_wire::{CellEvent, KnownState, ManagerReply, ManagerRequest, NodeState, StateCause};
use zonal_zonemap::ZoneMap;

/// States of all nodes; none of a manager that does not tell them.
pub fn node_states(cell: &CellHandle) -> BTreeMap<NodeId, KnownState> {
    let mut states = BTreeMap::new();
    let mut after = NodeId(0);
    loop {
        let request = ManagerRequest::NodeStates { after };
        let Ok(ManagerReply::NodeStates { states: page, end }) = cell.ask_manager(&request) else {
            return states;
        };
        let last = page.last().map(|known| known.node);
        states.extend(page.into_iter().map(|known| (known.node, known)));
        match last {
            Some(last) if !end && last > after => after = last,
            _ => return states,
        }
    }
}

/// Nodes that the manager knows as down: their targets do not answer, whether they are out in the
/// map or not.
pub fn down_nodes(states: &BTreeMap<NodeId, KnownState>) -> BTreeSet<NodeId> {
    let down = states.values().filter(|of| of.state == NodeState::Down);
    down.map(|known| known.node).collect()
}

/// Targets of these nodes.
pub fn targets_of(map: &ZoneMap, nodes: &BTreeSet<NodeId>) -> BTreeSet<TargetId> {
    let of_nodes = map.targets.iter();
    let of_nodes = of_nodes.filter(|target| nodes.contains(&target.node));
    of_nodes.map(|target| target.id).collect()
}

/// Events behind a number, with the number of the oldest one that the manager keeps.
pub fn events_behind(cell: &CellHandle, after: u64) -> anyhow::Result<(Vec<CellEvent>, u64)> {
    let limit = const { const_u32(EVENTS_LISTED_MAX as u64) };
    match cell.ask_manager(&ManagerRequest::Events { after, limit })? {
        ManagerReply::Events { events, first, .. } => Ok((events, first)),
        other => {
            let text = format!("the manager answers {other:?}");
            Err(Failure::new(UNREACHABLE, text).into())
        }
    }
}

/// The cause of a state in words.
pub fn cause_text(cause: StateCause, by: &[NodeId]) -> String {
    let text = cause.text();
    let by: Vec<String> = by.iter().map(NodeId::to_string).collect();
    match (by.len(), cause) {
        (0, _) | (_, StateCause::Serves) => text.to_owned(),
        (1, _) => format!("{text} (seen by node {})", by.join(", ")),
        _ => format!("{text} (seen by nodes {})", by.join(", ")),
    }
}
