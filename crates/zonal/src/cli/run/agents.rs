//! Agents of a cell: which nodes have one, and their load.

use crate::cell::connection::CellHandle;
use crate::exit::with_causes;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use zonal_net::{Address, NetError, TlsFault};
use zonal_types::{Codec as _, ErrorCode, NodeId, ZoneId};
use zonal_wire::{AgentReply, AgentRequest, Service};
use zonal_zonemap::{NodeState, ZoneMap};

/// Nodes that are asked at the same time.
const ASKED: usize = 32;

/// A node whose agent answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentNode {
    pub node: NodeId,
    pub zone: ZoneId,
    pub address: Address,
    /// Ranks that run there now.
    pub ranks: u32,
    /// Ranks that may run there.
    pub ranks_max: u32,
    pub is_standby: bool,
    /// Used CPU of its machine; 0 where the node does not tell.
    pub cpu_per_mille: u16,
}

/// Answers of all nodes.
#[derive(Debug, Default)]
pub struct CellAgents {
    pub nodes: Vec<AgentNode>,
    /// Nodes that did not answer, or refused this asker, with the reason.
    pub missing: Vec<(NodeId, String)>,
}

/// Sends a request to an agent.
pub fn call(cell: &CellHandle, to: Address, request: &AgentRequest) -> anyhow::Result<AgentReply> {
    cell.call(to, Service::Agent, request.name(), &request.to_bytes())
}

/// Asks the nodes of a map for their agents. Nodes without an agent are left out.
pub fn ask_all(cell: &CellHandle, map: &ZoneMap) -> CellAgents {
    let nodes: Vec<_> = map
        .nodes
        .iter()
        .filter(|node| node.state == NodeState::Up)
        .collect();
    let next = AtomicUsize::new(0);
    let found = Mutex::new(CellAgents::default());
    let work = || {
        while let Some(node) = nodes.get(next.fetch_add(1, Ordering::Relaxed)) {
            let answer = ask(cell, map, node.id, node.zone);
            let mut found = found
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            match answer {
                Ok(Some(agent)) => found.nodes.push(agent),
                Ok(None) => {}
                Err(reason) => found.missing.push((node.id, reason)),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..ASKED.min(nodes.len()) {
            scope.spawn(work);
        }
    });
    let mut found = found
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    found.nodes.sort_by_key(|agent| agent.node);
    found.missing.sort();
    found
}

fn ask(
    cell: &CellHandle,
    map: &ZoneMap,
    node: NodeId,
    zone: ZoneId,
) -> Result<Option<AgentNode>, String> {
    let asked = CellHandle::address(map, node)
        .and_then(|to| Ok((to, call(cell, to, &AgentRequest::Describe)?)));
    match asked {
        Ok((
            address,
            AgentReply::Description {
                ranks,
                ranks_max,
                is_standby,
                cpu_per_mille,
                ..
            },
        )) => Ok(Some(AgentNode {
            node,
            zone,
            address,
            ranks,
            ranks_max,
            is_standby,
            cpu_per_mille: cpu_per_mille.unwrap_or_default(),
        })),
        Ok((_, AgentReply::Failed { code, .. })) if code.0 == ErrorCode::WrongTarget => Ok(None),
        Ok((_, AgentReply::Failed { code, detail })) => Err(format!("{detail} ({})", code.0)),
        Ok((_, other)) => Err(format!("it answers {}", other.name())),
        Err(error) => Err(match error.downcast_ref::<NetError>() {
            // The certificates of servers without an agent do not have the role.
            Some(NetError::Unauthenticated {
                fault: TlsFault::Claim,
                ..
            }) => "it has no agent: its credential does not have that role".to_owned(),
            _ => with_causes(error.as_ref()),
        }),
    }
}
