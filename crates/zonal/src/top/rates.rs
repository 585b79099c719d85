//! Rates of a cell between two samples: the rows that `zonal top` shows.
//!
//! *Invariants*:
//! 1. A node has rates where both samples have its activity, over the time between its own replies.
//! 2. A count that fell began anew with its server, so all of it is new.
//!
//! *Units*: bytes and requests a second; microseconds.

use super::sample::{CellSample, NodeSample};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use zonal_types::{Ino, NodeId, TargetId, ZoneId};
use zonal_wire::{ClientTraffic, NodeActivity, OperationTimes};

/// Slowest operations in the list.
const OPERATIONS_SHOWN: usize = 32;
/// Operations of commands, this one included, say nothing of the cell's work.
const SERVICE_OF_COMMANDS: &str = "admin";

/// Bytes a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ByteRates {
    pub read: f64,
    pub written: f64,
}

/// State of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeHealth {
    Well,
    /// It did not answer in time.
    Silent,
    /// It answers, or refuses, with this problem.
    Unwell(String),
}

/// One zone.
#[derive(Debug, Clone, PartialEq)]
pub struct ZoneRow {
    pub id: ZoneId,
    pub name: String,
    pub nodes: usize,
    pub nodes_well: usize,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Bytes of its targets, for clients of the zone and for others.
    pub in_zone: ByteRates,
    pub cross_zone: ByteRates,
}

/// One node.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    pub id: NodeId,
    pub zone: ZoneId,
    pub address: String,
    pub serves: String,
    pub state: NodeHealth,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// `None`: one of the samples lacks its activity.
    pub bytes: Option<ByteRates>,
    pub requests: Option<f64>,
    /// Used CPU of its machine, in thousandths.
    pub cpu_per_mille: Option<u16>,
}

/// Traffic of one first-level directory. Inode 0: all others.
#[derive(Debug, Clone, PartialEq)]
pub struct DirectoryRow {
    pub inode: Ino,
    pub path: Option<String>,
    pub in_zone: ByteRates,
    pub cross_zone: ByteRates,
}

/// One operation of one node.
#[derive(Debug, Clone, PartialEq)]
pub struct OperationRow {
    pub node: NodeId,
    pub service: String,
    pub operation: String,
    pub per_second: f64,
    pub mean_us: f64,
    /// No request took longer; infinite where no bucket bounds it.
    pub slowest_us: f64,
}

/// A target of which more than nine tenths are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FullTarget {
    pub id: TargetId,
    pub node: NodeId,
    pub zone: ZoneId,
    pub total_bytes: u64,
    pub free_bytes: u64,
}

/// All rows.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CellRates {
    pub cell: String,
    pub map_version: u64,
    pub zones: Vec<ZoneRow>,
    pub nodes: Vec<NodeRow>,
    /// By zone of the clients and zone of the targets. Client zone 0: zones that targets do not
    /// count by themselves.
    pub matrix: BTreeMap<(ZoneId, ZoneId), ByteRates>,
    /// Those with traffic, most first.
    pub directories: Vec<DirectoryRow>,
    /// Slowest first.
    pub operations: Vec<OperationRow>,
    pub full_targets: Vec<FullTarget>,
}

impl ByteRates {
    fn add(&mut self, more: Self) {
        self.read += more.read;
        self.written += more.written;
    }

    /// Both directions together.
    pub fn total(&self) -> f64 {
        self.read + self.written
    }
}

/// Growth of a count.
fn growth(before: u64, now: u64) -> u64 {
    now.checked_sub(before).unwrap_or(now)
}

/// Activity of a node in two samples.
struct NodePair<'a> {
    before: &'a NodeActivity,
    now: &'a NodeActivity,
    seconds: f64,
}

impl<'a> NodePair<'a> {
    fn of(before: &'a CellSample, now: &'a NodeSample) -> Option<Self> {
        let known = before.nodes.iter().find(|node| node.id == now.id)?;
        let passed = now.told_ms.checked_sub(known.told_ms)?;
        (passed > 0).then_some(())?;
        Some(Self {
            before: known.status.activity.as_ref()?,
            now: now.status.activity.as_ref()?,
            seconds: passed as f64 / 1000.0,
        })
    }

    fn rate(&self, before: u64, now: u64) -> f64 {
        growth(before, now) as f64 / self.seconds
    }

    /// Rates of the node's targets by the clients' zone.
    fn by_zone(&self) -> Vec<(ZoneId, ByteRates)> {
        let rates = self.now.clients.iter().map(|now| {
            let mut known = self.before.clients.iter();
            let known = known.find(|known| (known.target, known.zone) == (now.target, now.zone));
            let (read, written) = known.map_or((0, 0), |known| (known.read, known.written));
            let rates = ByteRates {
                read: self.rate(read, now.read),
                written: self.rate(written, now.written),
            };
            (now.zone, rates)
        });
        rates.collect()
    }

    /// Rates of directories in-zone and cross-zone.
    fn by_directory(&self) -> Vec<(Ino, [ByteRates; 2])> {
        let rates = self.now.directories.iter().map(|now| {
            let mut known = self.before.directories.iter();
            let known = known.find(|known| known.dir == now.dir);
            let known = known.map_or(ClientTraffic::default(), |known| known.traffic);
            let in_zone = ByteRates {
                read: self.rate(known.read_in_zone, now.traffic.read_in_zone),
                written: self.rate(known.written_in_zone, now.traffic.written_in_zone),
            };
            let cross_zone = ByteRates {
                read: self.rate(known.read_cross_zone, now.traffic.read_cross_zone),
                written: self.rate(known.written_cross_zone, now.traffic.written_cross_zone),
            };
            (now.dir, [in_zone, cross_zone])
        });
        rates.collect()
    }

    /// Operations that ended between the samples.
    fn operations(&self, node: NodeId) -> Vec<OperationRow> {
        let rows = self.now.operations.iter().filter_map(|now| {
            let mut known = self.before.operations.iter();
            let known = known
                .find(|known| (&known.service, &known.operation) == (&now.service, &now.operation));
            self.operation(node, known, now)
        });
        rows.collect()
    }

    fn operation(
        &self,
        node: NodeId,
        before: Option<&OperationTimes>,
        now: &OperationTimes,
    ) -> Option<OperationRow> {
        let known = |bucket: usize| before.and_then(|before| before.buckets.get(bucket).copied());
        let buckets = now.buckets.iter().enumerate();
        let buckets = buckets.map(|(index, count)| growth(known(index).unwrap_or(0), *count));
        let buckets: Vec<u64> = buckets.collect();
        let count = buckets
            .iter()
            .fold(0_u64, |sum, count| sum.saturating_add(*count));
        let slowest = buckets.iter().rposition(|count| *count > 0)?;
        let is_bounded = slowest + 1 < buckets.len();
        let sum_us = growth(before.map_or(0, |before| before.sum_us), now.sum_us);
        Some(OperationRow {
            node,
            service: now.service.clone(),
            operation: now.operation.clone(),
            per_second: count as f64 / self.seconds,
            mean_us: sum_us as f64 / count as f64,
            slowest_us: match i32::try_from(slowest) {
                Ok(power) if is_bounded => 2_f64.powi(power),
                _ => f64::INFINITY,
            },
        })
    }
}

/// State of a node by its status.
fn state(node: &NodeSample) -> NodeHealth {
    match &node.status.error {
        None => NodeHealth::Well,
        Some(_) if node.status.is_silent => NodeHealth::Silent,
        Some(problem) => NodeHealth::Unwell(problem.clone()),
    }
}

impl CellRates {
    /// Compares two samples; without an earlier one there are no rates.
    pub fn between(before: Option<&CellSample>, now: &CellSample) -> Self {
        let mut rates = Self {
            cell: now.cell.clone(),
            map_version: now.map_version,
            ..Self::default()
        };
        let mut by_directory = BTreeMap::<Ino, [ByteRates; 2]>::new();
        for node in &now.nodes {
            let pair = before.and_then(|before| NodePair::of(before, node));
            rates.add_node(node, pair.as_ref());
            let Some(pair) = pair else { continue };
            for (zone, bytes) in pair.by_zone() {
                rates
                    .matrix
                    .entry((zone, node.zone))
                    .or_default()
                    .add(bytes);
            }
            for (dir, [in_zone, cross_zone]) in pair.by_directory() {
                let sums = by_directory.entry(dir).or_default();
                sums[0].add(in_zone);
                sums[1].add(cross_zone);
            }
            let operations = pair.operations(node.id).into_iter();
            let own = operations.filter(|row| row.service != SERVICE_OF_COMMANDS);
            rates.operations.extend(own);
        }
        rates.add_directories(by_directory, now);
        rates.add_zones(now);
        rates.operations.sort_by(|one, other| {
            let key = |row: &OperationRow| (row.slowest_us, row.mean_us);
            let (one, other) = (key(one), key(other));
            other.0.total_cmp(&one.0).then(other.1.total_cmp(&one.1))
        });
        rates.operations.truncate(OPERATIONS_SHOWN);
        rates
    }

    fn add_node(&mut self, node: &NodeSample, pair: Option<&NodePair<'_>>) {
        let (mut total_bytes, mut free_bytes) = (0_u64, 0_u64);
        for (id, capacity) in &node.status.targets {
            let Some(capacity) = capacity else { continue };
            total_bytes = total_bytes.saturating_add(capacity.total_bytes);
            free_bytes = free_bytes.saturating_add(capacity.free_bytes);
            if capacity.free_bytes < capacity.total_bytes / 10 {
                self.full_targets.push(FullTarget {
                    id: *id,
                    node: node.id,
                    zone: node.zone,
                    total_bytes: capacity.total_bytes,
                    free_bytes: capacity.free_bytes,
                });
            }
        }
        let bytes = pair.map(|pair| {
            let mut sum = ByteRates::default();
            let zones = pair.by_zone().into_iter();
            zones.for_each(|(_zone, rates)| sum.add(rates));
            sum
        });
        let requests = pair.map(|pair| {
            let operations = pair.operations(node.id);
            operations.iter().map(|row| row.per_second).sum()
        });
        self.nodes.push(NodeRow {
            id: node.id,
            zone: node.zone,
            address: node.address.clone(),
            serves: node.serves.clone(),
            state: state(node),
            total_bytes,
            free_bytes,
            bytes,
            requests,
            cpu_per_mille: node
                .status
                .activity
                .as_ref()
                .and_then(|of| of.cpu_per_mille),
        });
    }

    fn add_directories(&mut self, rates: BTreeMap<Ino, [ByteRates; 2]>, now: &CellSample) {
        let rows = rates
            .into_iter()
            .map(|(inode, [in_zone, cross_zone])| DirectoryRow {
                inode,
                path: now.paths.get(&inode).cloned(),
                in_zone,
                cross_zone,
            });
        let total = |row: &DirectoryRow| row.in_zone.total() + row.cross_zone.total();
        self.directories = rows.filter(|row| total(row) > 0.0).collect();
        self.directories
            .sort_by(|one, other| total(other).total_cmp(&total(one)));
    }

    fn add_zones(&mut self, now: &CellSample) {
        let rows = now.zones.iter().map(|(id, name)| {
            let own = self.nodes.iter().filter(|node| node.zone == *id);
            let own: Vec<&NodeRow> = own.collect();
            let sum = |of: fn(&NodeRow) -> u64| {
                let bytes = own.iter().map(|node| of(node));
                bytes.fold(0_u64, u64::saturating_add)
            };
            let mut row = ZoneRow {
                id: *id,
                name: name.clone(),
                nodes: own.len(),
                nodes_well: own
                    .iter()
                    .filter(|node| node.state == NodeHealth::Well)
                    .count(),
                total_bytes: sum(|node| node.total_bytes),
                free_bytes: sum(|node| node.free_bytes),
                in_zone: ByteRates::default(),
                cross_zone: ByteRates::default(),
            };
            for ((client, target), rates) in &self.matrix {
                if target == id {
                    let of = match client == id {
                        true => &mut row.in_zone,
                        false => &mut row.cross_zone,
                    };
                    of.add(*rates);
                }
            }
            row
        });
        self.zones = rows.collect();
    }

    /// Zones of the matrix: rows of clients, and columns of targets.
    pub fn matrix_zones(&self) -> (Vec<ZoneId>, Vec<ZoneId>) {
        let zones: Vec<ZoneId> = self.zones.iter().map(|zone| zone.id).collect();
        let mut clients = zones.clone();
        let foreign = self.matrix.iter().filter(|(_, rates)| rates.total() > 0.0);
        clients.extend(foreign.map(|((client, _target), _rates)| *client));
        // Known zones come in the order of their numbers, too; 0 comes last.
        clients.sort_by_key(|zone| (Reverse(zone.0 > 0), *zone));
        clients.dedup();
        (clients, zones)
    }
}

#[cfg(test)]
pub mod tests;
