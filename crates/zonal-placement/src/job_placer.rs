//! The choice of a zone and of nodes for a job.
//!
//! 1. Zones qualify that have enough nodes. Standby nodes count only if no zone has enough others.
//! 2. Policy `near`: of these the zones stay whose cost is the least, or more by at most
//!    one part in [`NEARNESS`] of all bytes. Policy `spread`: all stay.
//! 3. The least loaded zone is taken: jobs a node, then mean CPU, then cost, then number.
//! 4. In it the least loaded nodes are taken: jobs, then CPU, then number.
//!
//! CPU counts in steps of [`CPU_STEP`], as it never stands still: a smaller difference decides
//! nothing.
//!
//! Nodes with a reservation or a running job count as nodes with one job more for each.

use crate::cost::{UPLINK_WEIGHT, ZoneCost, costs};
use crate::reservations::{RESERVATION_MS_MAX, Reservation, ReservationTable};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use zonal_types::{NodeId, ZoneId};

/// Zones are equally near if their costs differ by at most this part of all bytes.
pub const NEARNESS: u64 = 8;

/// Thousandths of CPU in which loads are compared.
pub const CPU_STEP: u16 = 100;

/// A node's load as its observer reports it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeLoad {
    /// Running jobs.
    pub jobs: u32,
    /// Used CPU, in thousandths.
    pub cpu_per_mille: u16,
    /// Whether it is kept for the time when nothing else is left.
    pub is_standby: bool,
}

/// A zone's load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZoneLoad {
    /// The zone.
    pub zone: ZoneId,
    /// Its nodes for jobs.
    pub nodes: usize,
    /// Jobs on them, reservations among them.
    pub jobs: u64,
    /// Mean of their used CPU, in thousandths.
    pub cpu_per_mille: u64,
}

/// How a zone is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum JobPolicy {
    /// Near the bytes; of equally near zones the least loaded.
    #[default]
    Near,
    /// The least loaded zone, wherever the bytes are.
    Spread,
}

impl JobPolicy {
    /// Its name in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Near => "near",
            Self::Spread => "spread",
        }
    }
}

/// A request for nodes.
#[derive(Debug, Clone, Default)]
pub struct JobRequest {
    /// Bytes that the job uses, by zone.
    pub bytes: BTreeMap<ZoneId, u64>,
    /// How many nodes it runs on.
    pub nodes: usize,
    /// How its zone is chosen.
    pub policy: JobPolicy,
    /// How long the nodes are reserved; 0: not at all.
    pub reserve_ms: u64,
}

/// The nodes for a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlacement {
    /// The zone.
    pub zone: ZoneId,
    /// The nodes, least loaded first.
    pub nodes: Vec<NodeId>,
    /// Cost of running there.
    pub cost: u64,
    /// Costs of the other zones.
    pub elsewhere: Vec<ZoneCost>,
    /// The reservation, if one was asked for.
    pub reservation: Option<u64>,
    /// When the reservation ends.
    pub end_ms: u64,
    /// The reason in words.
    pub explanation: String,
}

/// Why there are no nodes for a job.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JobError {
    /// No zone has so many nodes.
    #[error("no zone has {asked} nodes for a job: zone {zone} has most, {most}")]
    TooManyNodes {
        /// Nodes in the request.
        asked: usize,
        /// The zone with most nodes.
        zone: ZoneId,
        /// Its nodes.
        most: usize,
    },
    /// The request is for no node at all.
    #[error("a job needs at least one node")]
    NoNodes,
    /// There is no zone with a node.
    #[error("no zone has a node for jobs")]
    NoZones,
}

#[derive(Debug)]
struct LoadedNode {
    id: NodeId,
    load: NodeLoad,
    /// Reservations and running jobs.
    counted: u32,
}

impl LoadedNode {
    fn jobs(&self) -> u64 {
        u64::from(self.load.jobs) + u64::from(self.counted)
    }

    fn order(&self) -> (bool, u64, u16, NodeId) {
        let standby = self.load.is_standby;
        let cpu = self.load.cpu_per_mille / CPU_STEP;
        (standby, self.jobs(), cpu, self.id)
    }
}

#[derive(Debug, Default)]
struct LoadedZone {
    weight: u32,
    nodes: Vec<LoadedNode>,
    regular: usize,
    jobs: u64,
    cpu: u64,
}

impl LoadedZone {
    fn jobs_per_mille(&self) -> u64 {
        self.jobs.saturating_mul(1_000) / (self.nodes.len().max(1) as u64)
    }

    fn cpu_per_mille(&self) -> u64 {
        self.cpu / (self.nodes.len().max(1) as u64)
    }

    fn sum(&mut self) {
        self.regular = self.nodes.iter().filter(|of| !of.load.is_standby).count();
        self.jobs = self.nodes.iter().map(LoadedNode::jobs).sum();
        let cpu = self.nodes.iter().map(|of| u64::from(of.load.cpu_per_mille));
        self.cpu = cpu.sum();
    }
}

/// Zones with their nodes, load and reservations.
#[derive(Debug, Default)]
pub struct JobPlacer {
    zones: BTreeMap<ZoneId, LoadedZone>,
    homes: BTreeMap<NodeId, ZoneId>,
    weights: Vec<(ZoneId, u32)>,
    reservations: ReservationTable,
}

impl JobPlacer {
    /// Makes a placer of nodes with their zones. Each uplink has the usual rate, each node is idle.
    #[must_use]
    pub fn new(nodes: impl IntoIterator<Item = (ZoneId, NodeId)>) -> Self {
        let mut placer = Self::default();
        for (zone, id) in nodes {
            if placer.homes.insert(id, zone).is_some() {
                continue;
            }
            let of_zone = placer.zones.entry(zone).or_default();
            of_zone.weight = UPLINK_WEIGHT;
            of_zone.nodes.push(LoadedNode {
                id,
                load: NodeLoad::default(),
                counted: 0,
            });
        }
        placer.zones.values_mut().for_each(LoadedZone::sum);
        placer.note_weights();
        placer
    }

    /// Takes an empty table of reservations.
    #[must_use]
    pub fn with_reservations(mut self, reservations: ReservationTable) -> Self {
        self.reservations = reservations;
        self
    }

    /// Takes other nodes, as the zone map has changed. Loads, weights and reservations of nodes
    /// that stay are kept.
    pub fn set_nodes(&mut self, nodes: impl IntoIterator<Item = (ZoneId, NodeId)>) {
        let before = std::mem::replace(self, Self::new(nodes));
        self.reservations = before.reservations;
        for (id, zone) in before.zones {
            let Some(now) = self.zones.get_mut(&id) else {
                continue;
            };
            now.weight = zone.weight;
            let mut known: BTreeMap<NodeId, LoadedNode> =
                zone.nodes.into_iter().map(|node| (node.id, node)).collect();
            for node in &mut now.nodes {
                if let Some(before) = known.remove(&node.id) {
                    *node = before;
                }
            }
            now.sum();
        }
        self.note_weights();
    }

    /// Releases reservations that have ended, and returns them.
    pub fn release_ended(&mut self, now_ms: u64) -> Vec<Reservation> {
        let mut all = Vec::new();
        while let Some(ended) = self.reservations.pop_ended(now_ms) {
            self.count_job(&ended.nodes, -1);
            all.push(ended);
        }
        all
    }

    /// Counts a job that begins on nodes (1), or ends there (-1). Unknown nodes are left out.
    pub fn count_job(&mut self, nodes: &[NodeId], by: i32) {
        let mut by_zone: BTreeMap<ZoneId, BTreeSet<NodeId>> = BTreeMap::new();
        for node in nodes {
            if let Some(zone) = self.homes.get(node) {
                by_zone.entry(*zone).or_default().insert(*node);
            }
        }
        for (id, nodes) in by_zone {
            let Some(zone) = self.zones.get_mut(&id) else {
                continue;
            };
            for node in zone.nodes.iter_mut().filter(|of| nodes.contains(&of.id)) {
                node.counted = node.counted.saturating_add_signed(by);
            }
            zone.sum();
        }
    }

    /// Sets the weight of a zone's uplink; 0 counts as 1. Unknown zones are left out.
    pub fn set_uplink(&mut self, zone: ZoneId, weight: u32) {
        if let Some(found) = self.zones.get_mut(&zone) {
            found.weight = weight.max(1);
        }
        self.note_weights();
    }

    /// Sets the load of a node. Unknown nodes are left out.
    pub fn set_load(&mut self, node: NodeId, load: NodeLoad) {
        let home = self.homes.get(&node);
        let Some(zone) = home.and_then(|zone| self.zones.get_mut(zone)) else {
            return;
        };
        if let Some(found) = zone.nodes.iter_mut().find(|of| of.id == node) {
            found.load = load;
        }
        zone.sum();
    }

    /// The reservations.
    #[must_use]
    pub fn reservations(&self) -> &ReservationTable {
        &self.reservations
    }

    /// All zones with their load.
    pub fn zones(&self) -> impl Iterator<Item = ZoneLoad> {
        let zones = self.zones.iter();
        zones.map(|(id, zone)| ZoneLoad {
            zone: *id,
            nodes: zone.nodes.len(),
            jobs: zone.jobs,
            cpu_per_mille: zone.cpu_per_mille(),
        })
    }

    /// Ends a reservation early; `None` where there is none of this number.
    pub fn release(&mut self, id: u64) -> Option<Reservation> {
        let released = self.reservations.release(id)?;
        self.count_job(&released.nodes, -1);
        Some(released)
    }

    /// Weights of the uplinks of all zones.
    #[must_use]
    pub fn weights(&self) -> &[(ZoneId, u32)] {
        &self.weights
    }

    /// Chooses nodes for a job.
    ///
    /// # Errors
    /// Where no zone has enough nodes.
    pub fn place(&mut self, request: &JobRequest, now_ms: u64) -> Result<JobPlacement, JobError> {
        self.release_ended(now_ms);
        let with_standby = self.needs_standby(request.nodes)?;
        let costs = costs(&request.bytes, &self.weights);
        let qualified = |zone: &LoadedZone| match with_standby {
            true => zone.nodes.len() >= request.nodes,
            false => zone.regular >= request.nodes,
        };
        let candidates = || {
            let pairs = self.zones.values().zip(&costs);
            pairs.filter(|(zone, _)| qualified(zone))
        };
        let total = request
            .bytes
            .values()
            .fold(0, |sum: u64, held| sum.saturating_add(*held));
        let least = candidates().map(|(_, cost)| cost.bytes).min().unwrap_or(0);
        let limit = match request.policy {
            JobPolicy::Near => least.saturating_add(total / NEARNESS),
            JobPolicy::Spread => u64::MAX,
        };
        let near = || candidates().filter(|(_, cost)| cost.bytes <= limit);
        let order = |zone: &LoadedZone, cost: &ZoneCost| {
            (
                zone.jobs_per_mille(),
                zone.cpu_per_mille() / u64::from(CPU_STEP),
                cost.bytes,
                cost.zone,
            )
        };
        let chosen = near().min_by_key(|(zone, cost)| order(zone, cost));
        let (zone, cost) = chosen.ok_or(JobError::NoZones)?;
        let nodes = least_loaded(zone, request.nodes, with_standby);
        let mut explanation = explanation(request, cost, total, near().count());
        explanation.push_str(&format!(
            "; its nodes have {} jobs, with reservations",
            zone.jobs
        ));
        if zone.cpu > 0 {
            let percent = zone.cpu_per_mille().div_ceil(10);
            explanation.push_str(&format!(", and use {percent} percent of their CPU"));
        }
        if with_standby {
            explanation.push_str("; standby nodes count, as no zone has enough others");
        }
        let (zone, cost) = (cost.zone, cost.bytes);
        let elsewhere = costs.into_iter().filter(|other| other.zone != zone);
        let mut placement = JobPlacement {
            zone,
            nodes,
            cost,
            elsewhere: elsewhere.collect(),
            reservation: None,
            end_ms: 0,
            explanation,
        };
        if request.reserve_ms > 0 {
            self.reserve(&mut placement, request.reserve_ms, now_ms);
        }
        Ok(placement)
    }

    fn note_weights(&mut self) {
        let zones = self.zones.iter();
        self.weights = zones.map(|(id, zone)| (*id, zone.weight)).collect();
    }

    /// Whether only standby nodes make a zone large enough.
    fn needs_standby(&self, asked: usize) -> Result<bool, JobError> {
        if asked == 0 {
            return Err(JobError::NoNodes);
        }
        let zones = self.zones.iter();
        let largest = zones.max_by_key(|(_, zone)| zone.nodes.len());
        let (id, zone) = largest.ok_or(JobError::NoZones)?;
        if zone.nodes.len() < asked {
            return Err(JobError::TooManyNodes {
                asked,
                zone: *id,
                most: zone.nodes.len(),
            });
        }
        Ok(!self.zones.values().any(|zone| zone.regular >= asked))
    }

    fn reserve(&mut self, placement: &mut JobPlacement, reserve_ms: u64, now_ms: u64) {
        let end_ms = now_ms.saturating_add(reserve_ms.min(RESERVATION_MS_MAX));
        let nodes = placement.nodes.clone();
        let (id, released) = self.reservations.add(end_ms, placement.zone, nodes);
        placement.reservation = Some(id);
        placement.end_ms = end_ms;
        if let Some(released) = released {
            self.count_job(&released.nodes, -1);
        }
        self.count_job(&placement.nodes, 1);
    }
}

fn least_loaded(zone: &LoadedZone, count: usize, with_standby: bool) -> Vec<NodeId> {
    let nodes = zone.nodes.iter();
    let mut found: Vec<&LoadedNode> = nodes
        .filter(|node| with_standby || !node.load.is_standby)
        .collect();
    found.sort_unstable_by_key(|node| node.order());
    found.iter().take(count).map(|node| node.id).collect()
}

fn explanation(request: &JobRequest, cost: &ZoneCost, total: u64, near: usize) -> String {
    let zone = cost.zone;
    let held = request.bytes.get(&zone).copied().unwrap_or(0);
    let data = match total {
        0 => "no bytes are to be read".to_owned(),
        total => format!(
            "zone {zone} holds {} percent of the bytes",
            u128::from(held) * 100 / u128::from(total)
        ),
    };
    match (request.policy, near) {
        (JobPolicy::Near, 1) => format!("{data}; no other zone with enough nodes is as near"),
        (JobPolicy::Near, near) => {
            format!("{data}; it is the least loaded of {near} equally near zones")
        }
        (JobPolicy::Spread, near) => {
            format!("{data}; it is the least loaded of {near} zones with enough nodes")
        }
    }
}
