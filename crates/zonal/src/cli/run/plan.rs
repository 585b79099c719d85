//! The plan of a job: its ranks on nodes of one zone, or of all. Pure computation.

use super::agents::AgentNode;
use std::collections::{BTreeMap, BTreeSet};
use zonal_placement::{JobError, JobPlacer, JobPolicy, JobRequest, NodeLoad};
use zonal_types::{NodeId, ZoneId};

/// How the nodes of a job are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeChoice {
    /// In the zone nearest to these bytes; without bytes in the least loaded zone.
    Near(BTreeMap<ZoneId, u64>),
    /// In all zones alike.
    Any,
    /// These nodes.
    Given(Vec<NodeId>),
}

/// Why a job has no plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlanError {
    Placement(JobError),
    NoAgent(NodeId),
    TooFew {
        asked: usize,
        found: usize,
    },
    Full {
        node: NodeId,
        asked: usize,
        room: usize,
    },
    NoRoom {
        asked: usize,
        room: usize,
        /// The zone, where all nodes are of one.
        zone: Option<ZoneId>,
    },
    NoAgents,
}

impl From<JobError> for PlanError {
    fn from(error: JobError) -> Self {
        Self::Placement(error)
    }
}

impl std::fmt::Display for PlanError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Placement(error) => error.fmt(f),
            Self::NoAgent(node) => write!(f, "node {node} has no agent that answers"),
            Self::TooFew { asked, found } => write!(
                f,
                "{asked} nodes are needed, and {found} have an agent that answers"
            ),
            Self::Full { node, asked, room } => write!(
                f,
                "node {node} would get {asked} ranks, and has room for {room}"
            ),
            Self::NoRoom { asked, room, zone } => {
                let place = match zone {
                    Some(zone) => format!("zone {zone} has"),
                    None => "the nodes have".to_owned(),
                };
                write!(
                    f,
                    "{asked} ranks are asked for, and {place} room for {room}"
                )
            }
            Self::NoAgents => f.write_str("no node has an agent that answers"),
        }
    }
}

/// Ranks of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRanks {
    pub agent: AgentNode,
    pub ranks: Vec<u32>,
}

/// Where the ranks of a job run, and why there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlan {
    pub nodes: Vec<NodeRanks>,
    pub explanation: String,
    /// Standby nodes of the plan, as nothing else is left.
    pub standby: Vec<NodeId>,
}

/// Chooses nodes for `ranks` ranks. `per_node`: ranks on each node but the last; `None`: they are
/// spread evenly over the zone, as far as its nodes have room.
pub fn plan(
    choice: &NodeChoice,
    (ranks, per_node): (usize, Option<usize>),
    agents: &[AgentNode],
) -> Result<JobPlan, PlanError> {
    // Nodes without room are left out, but for a plan that is impossible without them.
    let needed = per_node.unwrap_or(1).min(ranks);
    let with_room = agents.iter().filter(|agent| room(agent) >= needed);
    let with_room: Vec<AgentNode> = with_room.cloned().collect();
    match (choice, per_node) {
        (NodeChoice::Given(_), _) => planned(choice, (ranks, per_node), agents),
        (NodeChoice::Near(_), None) => planned(choice, (ranks, per_node), agents),
        _ => planned(choice, (ranks, per_node), &with_room)
            .or_else(|_few| planned(choice, (ranks, per_node), agents)),
    }
}

fn planned(
    choice: &NodeChoice,
    (ranks, per_node): (usize, Option<usize>),
    agents: &[AgentNode],
) -> Result<JobPlan, PlanError> {
    let wanted = per_node.map(|per_node| ranks.div_ceil(per_node.max(1)));
    let (nodes, explanation) = match choice {
        NodeChoice::Given(nodes) => (given(nodes, agents)?, "the nodes are given".to_owned()),
        NodeChoice::Any => (
            any(wanted.unwrap_or(ranks), wanted.is_some(), agents)?,
            "zones are ignored".to_owned(),
        ),
        NodeChoice::Near(bytes) => near(bytes, ranks, wanted, agents)?,
    };
    let Some(per_node) = per_node else {
        // A further node is used only where the first ones have no room.
        let mut used = ranks.min(nodes.len());
        while used < nodes.len() && room_of(&nodes[..used]) < ranks {
            used += 1;
        }
        let nodes = nodes.get(..used).unwrap_or(&nodes);
        let counts = even_counts(ranks, nodes)?;
        return Ok(job_plan(nodes, &counts, explanation));
    };
    let wanted = wanted.unwrap_or(ranks);
    if wanted > nodes.len() {
        let found = nodes.len();
        let asked = wanted;
        return Err(PlanError::TooFew { asked, found });
    }
    let nodes = nodes.get(..wanted).unwrap_or(&nodes);
    let mut rest = ranks;
    let mut counts = Vec::new();
    for agent in nodes {
        let (node, asked, room) = (agent.node, rest.min(per_node), room(agent));
        if asked > room {
            return Err(PlanError::Full { node, asked, room });
        }
        rest -= asked;
        counts.push(asked);
    }
    Ok(job_plan(nodes, &counts, explanation))
}

/// Ranks that an agent may still run.
fn room(agent: &AgentNode) -> usize {
    agent.ranks_max.saturating_sub(agent.ranks) as usize
}

fn room_of(agents: &[AgentNode]) -> usize {
    agents.iter().map(room).sum()
}

fn given(nodes: &[NodeId], agents: &[AgentNode]) -> Result<Vec<AgentNode>, PlanError> {
    let find = |node: &NodeId| {
        let found = agents.iter().find(|agent| agent.node == *node);
        found.cloned().ok_or(PlanError::NoAgent(*node))
    };
    nodes.iter().map(find).collect()
}

/// Nodes of all zones in turn, standby nodes last.
fn any(asked: usize, is_must: bool, agents: &[AgentNode]) -> Result<Vec<AgentNode>, PlanError> {
    if agents.is_empty() {
        return Err(PlanError::NoAgents);
    }
    if is_must && agents.len() < asked {
        let found = agents.len();
        return Err(PlanError::TooFew { asked, found });
    }
    let mut sorted: Vec<&AgentNode> = agents.iter().collect();
    sorted.sort_by_key(|agent| (agent.is_standby, agent.ranks, agent.node));
    let mut turns: BTreeMap<(bool, ZoneId), usize> = BTreeMap::new();
    let mut ordered: Vec<(bool, usize, &AgentNode)> = Vec::new();
    for agent in sorted {
        let turn = turns.entry((agent.is_standby, agent.zone)).or_default();
        ordered.push((agent.is_standby, *turn, agent));
        *turn += 1;
    }
    ordered.sort_by_key(|(is_standby, turn, agent)| (*is_standby, *turn, agent.zone));
    let regular = ordered.iter().filter(|of| !of.0).count();
    // Without a number of nodes, standby nodes are not needed while there are others.
    let kept = match is_must || regular == 0 {
        true => ordered.len(),
        false => regular,
    };
    let kept = ordered.into_iter().take(kept);
    Ok(kept.map(|(_, _, agent)| agent.clone()).collect())
}

/// Nodes of the zone that the placement chooses.
fn near(
    bytes: &BTreeMap<ZoneId, u64>,
    ranks: usize,
    wanted: Option<usize>,
    agents: &[AgentNode],
) -> Result<(Vec<AgentNode>, String), PlanError> {
    if agents.is_empty() {
        return Err(PlanError::NoAgents);
    }
    let policy = match bytes.is_empty() {
        true => JobPolicy::Spread,
        false => JobPolicy::Near,
    };
    let place = |agents: &mut dyn Iterator<Item = &AgentNode>, nodes| {
        let agents: Vec<&AgentNode> = agents.collect();
        let mut placer = JobPlacer::new(agents.iter().map(|agent| (agent.zone, agent.node)));
        for agent in agents {
            let load = NodeLoad {
                jobs: agent.ranks,
                cpu_per_mille: agent.cpu_per_mille,
                is_standby: agent.is_standby,
            };
            placer.set_load(agent.node, load);
        }
        let bytes = bytes.clone();
        let request = JobRequest {
            bytes,
            nodes,
            policy,
            reserve_ms: 0,
        };
        placer.place(&request, 0)
    };
    if wanted.is_some() {
        let placed = place(&mut agents.iter(), wanted.unwrap_or(1))?;
        let nodes = given(&placed.nodes, agents)?;
        return Ok((nodes, placed.explanation));
    }
    // Without bytes all zones are as near, so one with room is taken.
    let of_zone = |zone| agents.iter().filter(move |agent| agent.zone == zone);
    let has_room = |agent: &&AgentNode| of_zone(agent.zone).map(room).sum::<usize>() >= ranks;
    let first = match bytes.is_empty() && agents.iter().any(|agent| has_room(&agent)) {
        true => place(&mut agents.iter().filter(has_room), 1)?,
        false => place(&mut agents.iter(), 1)?,
    };
    // In the order of the placement: free nodes, then standby nodes if the others lack room.
    let mut nodes = Vec::new();
    for is_standby in [false, true] {
        let free = || {
            let free = of_zone(first.zone).filter(|agent| room(agent) > 0);
            free.filter(move |agent| agent.is_standby == is_standby)
        };
        let count = free().count();
        if count == 0 || room_of(&nodes) >= ranks {
            continue;
        }
        // Few ranks go to the nodes that the placement prefers.
        let preferred = place(&mut free(), ranks.min(count))?;
        let mut placed = given(&preferred.nodes, agents)?;
        let rest = free().filter(|agent| !preferred.nodes.contains(&agent.node));
        placed.extend(rest.cloned());
        nodes.extend(placed);
    }
    if room_of(&nodes) < ranks {
        return Err(PlanError::NoRoom {
            asked: ranks,
            room: room_of(&nodes),
            zone: Some(first.zone),
        });
    }
    Ok((nodes, first.explanation))
}

/// Ranks of each node: as even as the nodes have room.
fn even_counts(ranks: usize, nodes: &[AgentNode]) -> Result<Vec<usize>, PlanError> {
    if room_of(nodes) < ranks {
        return Err(PlanError::NoRoom {
            asked: ranks,
            room: room_of(nodes),
            zone: None,
        });
    }
    let count = nodes.len().max(1);
    let shares = (0..count).map(|at| ranks * (at + 1) / count - ranks * at / count);
    let shares = nodes.iter().zip(shares);
    let mut counts: Vec<usize> = shares
        .map(|(agent, share)| share.min(room(agent)))
        .collect();
    let mut rest = ranks - counts.iter().sum::<usize>();
    while rest > 0 {
        let free = counts.iter().zip(nodes).enumerate();
        let free = free.filter(|(_, (count, agent))| **count < room(agent));
        let Some((least, _)) = free.min_by_key(|(_, (count, _))| **count) else {
            break;
        };
        counts[least] += 1;
        rest -= 1;
    }
    Ok(counts)
}

/// Gives each node its ranks, in order.
fn job_plan(nodes: &[AgentNode], counts: &[usize], explanation: String) -> JobPlan {
    let mut plan = JobPlan {
        nodes: Vec::new(),
        explanation,
        standby: Vec::new(),
    };
    let mut next = 0;
    for (agent, count) in nodes.iter().zip(counts).filter(|(_, count)| **count > 0) {
        if agent.is_standby {
            plan.standby.push(agent.node);
        }
        let own = next..next + count;
        next = own.end;
        plan.nodes.push(NodeRanks {
            agent: agent.clone(),
            ranks: own.filter_map(|rank| u32::try_from(rank).ok()).collect(),
        });
    }
    plan
}

/// The node for ranks of a dead one: of its zone, the least loaded, standby nodes last.
pub fn replacement<'a>(
    agents: &'a [AgentNode],
    zone: ZoneId,
    dead: &BTreeSet<NodeId>,
    ranks: usize,
) -> Option<&'a AgentNode> {
    let fit = agents.iter().filter(|agent| {
        let room = agent.ranks_max.saturating_sub(agent.ranks);
        agent.zone == zone && !dead.contains(&agent.node) && room as usize >= ranks
    });
    fit.min_by_key(|agent| (agent.is_standby, agent.ranks, agent.node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_net::Address;

    fn agent(node: u32, zone: u16, ranks: u32, is_standby: bool) -> AgentNode {
        AgentNode {
            node: NodeId(node),
            zone: ZoneId(zone),
            address: Address::new(([127, 0, 0, 1], 1).into(), NodeId(node)),
            ranks,
            ranks_max: 8,
            is_standby,
            cpu_per_mille: 0,
        }
    }

    /// Zone 1: nodes 1 to 3, the last on standby. Zone 2: nodes 4 and 5.
    fn agents() -> Vec<AgentNode> {
        vec![
            agent(1, 1, 0, false),
            agent(2, 1, 0, false),
            agent(3, 1, 0, true),
            agent(4, 2, 0, false),
            agent(5, 2, 0, false),
        ]
    }

    fn in_zone(zone: u16) -> NodeChoice {
        NodeChoice::Near(BTreeMap::from([(ZoneId(zone), 1 << 30)]))
    }

    /// `node:rank,rank node:rank`
    fn shown(plan: &JobPlan) -> String {
        let nodes = plan.nodes.iter().map(|node| {
            let ranks: Vec<String> = node.ranks.iter().map(u32::to_string).collect();
            format!("{}:{}", node.agent.node, ranks.join(","))
        });
        nodes.collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn planned(choice: &NodeChoice, ranks: usize, per_node: Option<usize>, expected: &str) {
        let plan = plan(choice, (ranks, per_node), &agents()).unwrap();
        assert_eq!(shown(&plan), expected);
    }

    #[test]
    fn ranks_are_spread_evenly_over_the_zone_of_the_bytes() {
        planned(&in_zone(2), 1, None, "4:0");
        planned(&in_zone(2), 5, None, "4:0,1 5:2,3,4");
        planned(&in_zone(1), 2, None, "1:0 2:1");
        planned(&in_zone(2), 4, Some(2), "4:0,1 5:2,3");
        planned(&in_zone(2), 3, Some(2), "4:0,1 5:2");
        planned(&in_zone(2), 3, Some(4), "4:0,1,2");
    }

    #[test]
    fn nodes_with_idle_processors_are_taken_first() {
        let mut agents = agents();
        agents[0].cpu_per_mille = 800;
        agents[3].cpu_per_mille = 300;
        let planned = |ranks| shown(&plan(&in_zone(1), (ranks, Some(1)), &agents).unwrap());
        assert_eq!(planned(1), "2:0");
        assert_eq!(planned(2), "2:0 1:1");
        let plan = plan(&NodeChoice::Near(BTreeMap::new()), (1, Some(1)), &agents).unwrap();
        assert_eq!(shown(&plan), "5:0");
    }

    #[test]
    fn standby_nodes_are_used_only_where_no_zone_has_enough_others() {
        planned(&in_zone(1), 4, None, "1:0,1 2:2,3");
        let plan_of = |ranks| plan(&in_zone(1), (ranks, Some(1)), &agents());
        assert_eq!(plan_of(2).unwrap().standby, []);
        let forced = plan_of(3).unwrap();
        assert_eq!(shown(&forced), "1:0 2:1 3:2");
        assert_eq!(forced.standby, [NodeId(3)]);
        assert!(forced.explanation.contains("standby"), "{forced:?}");
        assert!(matches!(plan_of(4), Err(PlanError::Placement(_))));
    }

    #[test]
    fn any_takes_zones_in_turn_and_given_nodes_are_kept() {
        planned(&NodeChoice::Any, 3, None, "1:0 4:1 2:2");
        planned(&NodeChoice::Any, 5, Some(1), "1:0 4:1 2:2 5:3 3:4");
        planned(
            &NodeChoice::Given(vec![NodeId(5), NodeId(1)]),
            2,
            None,
            "5:0 1:1",
        );
        planned(&NodeChoice::Given(vec![NodeId(5)]), 2, None, "5:0,1");
        let refused = |choice: NodeChoice, ranks, per_node| {
            plan(&choice, (ranks, per_node), &agents()).unwrap_err()
        };
        let unknown = NodeChoice::Given(vec![NodeId(9)]);
        assert_eq!(refused(unknown, 1, None), PlanError::NoAgent(NodeId(9)));
        let error = refused(NodeChoice::Any, 6, Some(1));
        assert_eq!(error, PlanError::TooFew { asked: 6, found: 5 });
        let one = NodeChoice::Given(vec![NodeId(4)]);
        let error = PlanError::NoRoom {
            asked: 9,
            room: 8,
            zone: None,
        };
        assert_eq!(refused(one.clone(), 9, None), error);
        let error = PlanError::Full {
            node: NodeId(4),
            asked: 9,
            room: 8,
        };
        assert_eq!(refused(one.clone(), 9, Some(9)), error);
        let error = refused(one, 4, Some(2));
        assert_eq!(error, PlanError::TooFew { asked: 2, found: 1 });
        assert_eq!(plan(&in_zone(1), (1, None), &[]), Err(PlanError::NoAgents));
    }

    #[test]
    fn ranks_are_spread_within_the_room_of_each_node() {
        let mut agents = agents();
        agents[3].ranks_max = 2;
        let shown = |choice: &NodeChoice, ranks, per_node, agents: &[AgentNode]| {
            shown(&plan(choice, (ranks, per_node), agents).unwrap())
        };
        let two = in_zone(2);
        let both = NodeChoice::Given(vec![NodeId(4), NodeId(5)]);
        for choice in [&two, &both] {
            let found = shown(choice, 7, None, &agents);
            assert_eq!(found, "4:0,1 5:2,3,4,5,6");
        }
        let found = plan(&two, (11, None), &agents).unwrap_err().to_string();
        assert_eq!(found, "11 ranks are asked for, and zone 2 has room for 10");
        let found = plan(&both, (11, None), &agents).unwrap_err().to_string();
        assert_eq!(
            found,
            "11 ranks are asked for, and the nodes have room for 10"
        );
        // A full node is passed over.
        agents[3].ranks = 2;
        assert_eq!(shown(&two, 2, None, &agents), "5:0,1");
        assert_eq!(shown(&two, 1, Some(1), &agents), "5:0");
        assert_eq!(shown(&NodeChoice::Any, 2, None, &agents), "1:0 5:1");
        // Standby nodes are used where the others have no room, and another zone without bytes.
        assert_eq!(
            shown(&in_zone(1), 17, None, &agents),
            "1:0,1,2,3,4 2:5,6,7,8,9,10 3:11,12,13,14,15,16"
        );
        let anywhere = NodeChoice::Near(BTreeMap::new());
        let found = plan(&anywhere, (9, None), &agents).unwrap();
        assert!(found.nodes.iter().all(|node| node.agent.zone == ZoneId(1)));
    }

    #[test]
    fn ranks_of_a_dead_node_move_within_the_zone() {
        let agents = agents();
        let mut dead = BTreeSet::from([NodeId(1)]);
        let moved = |dead: &BTreeSet<NodeId>, ranks| {
            replacement(&agents, ZoneId(1), dead, ranks).map(|agent| agent.node.0)
        };
        assert_eq!(moved(&dead, 1), Some(2));
        dead.insert(NodeId(2));
        assert_eq!(moved(&dead, 1), Some(3));
        assert_eq!(moved(&dead, 9), None);
        dead.insert(NodeId(3));
        assert_eq!(moved(&dead, 1), None);
    }
}
