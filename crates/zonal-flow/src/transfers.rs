//! Jobs as flows. Each file gets its layout from the shard's placement code over a real zone map.
//! Its bytes go over the links between the client and the nodes of its columns.

use crate::data_centre::{DataCentre, ModelError};
use crate::fair_rates::{FlowClass, FlowTimes, merged, run_flows};
use std::collections::BTreeMap;
use zonal_layout::{object_bytes, slot_of};
use zonal_meta::layout_of_new_file;
use zonal_types::limits::NODES_MAX;
use zonal_types::{
    CellId, Column, DataId, Layout, NodeId, PartitionId, Placement, StripePolicy, TargetId, ZoneId,
};
use zonal_wire::JoinTarget;
use zonal_zonemap::{MapEdit, ZoneMap};

/// Bytes of a file at most.
const BYTES_OF_A_FILE_MAX: u64 = 1_000_000_000_000_000;

/// Where files lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// On the nodes, by a placement of the file system.
    Placed(Placement),
    /// In a rack of its own behind an uplink, striped over it.
    Separate,
}

/// Reading or writing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Clients read.
    Read,
    /// Clients write.
    Write,
}

/// The files that the active nodes read or write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workload {
    /// A file of its own for each node, in its rack.
    Own,
    /// A file of its own for each node, in the next rack.
    NextRack,
    /// A file for each node, in the other racks in turn, made by another node.
    Shared,
    /// One file for all, in so many copies.
    OneFile {
        /// Copies, which readers take in turn.
        copies: u32,
    },
    /// A file of its own for each node, all made by one node.
    OneWriter,
    /// One image for all in blocks, each block on so many nodes.
    Image {
        /// Blocks.
        blocks: u32,
        /// Copies of each.
        copies: u32,
    },
}

/// Nodes that read or write at the same time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// Where files lie.
    pub architecture: Architecture,
    /// Which files.
    pub workload: Workload,
    /// Reading or writing.
    pub direction: Direction,
    /// Bytes of each file.
    pub bytes: u64,
    /// Racks with active nodes: the first ones.
    pub active_racks: u32,
    /// Active nodes in each: the first ones.
    pub active_nodes: u32,
}

impl Job {
    fn check(&self, centre: &DataCentre) -> Result<(), ModelError> {
        centre.check()?;
        let racks_ok = (1..=centre.racks).contains(&self.active_racks);
        if !racks_ok || !(1..=centre.nodes).contains(&self.active_nodes) {
            return Err(ModelError::Active);
        }
        if !(1..=BYTES_OF_A_FILE_MAX).contains(&self.bytes) {
            return Err(ModelError::Rate);
        }
        let (blocks, copies) = match self.workload {
            Workload::NextRack if centre.racks < 2 => return Err(ModelError::OneRack),
            Workload::OneFile { copies } => (1, copies),
            Workload::Image { blocks, copies } => (blocks, copies),
            _ => (1, 1),
        };
        let most = u64::try_from(NODES_MAX).unwrap_or(u64::MAX);
        let all = u64::from(blocks) * u64::from(copies);
        if (1..=most).contains(&all) {
            Ok(())
        } else {
            Err(ModelError::Copies)
        }
    }
}

/// Runs a job until its last flow has ended.
///
/// # Errors
/// Each [`ModelError`].
pub fn run_job(centre: &DataCentre, job: &Job) -> Result<FlowTimes, ModelError> {
    job.check(centre)?;
    let mut files = Files::new(centre, job)?;
    let mut flows = Vec::new();
    for rack in 0..job.active_racks {
        for node in 0..job.active_nodes {
            flows.push(files.flow(rack, node)?);
        }
    }
    run_flows(&centre.links(), &merged(flows))
}

/// A rack and a node in it, from 0.
type Place = (u32, u32);

/// The columns of a file: nodes with their part of the bytes.
type Columns = Vec<(usize, f64)>;

/// The zone map of the data centre, and the files made so far.
struct Files<'a> {
    centre: &'a DataCentre,
    job: &'a Job,
    map: ZoneMap,
    made: BTreeMap<ZoneId, u64>,
    /// Copies and blocks that several nodes read.
    common: Vec<Columns>,
}

impl<'a> Files<'a> {
    fn new(centre: &'a DataCentre, job: &'a Job) -> Result<Self, ModelError> {
        let (map, common) = (zone_map(centre, job.architecture)?, Vec::new());
        let made = BTreeMap::new();
        let mut files = Self {
            centre,
            job,
            map,
            made,
            common,
        };
        let shared = match job.workload {
            Workload::OneFile { copies } => copies,
            Workload::Image { blocks, copies } => blocks * copies,
            _ => 0,
        };
        for number in 0..shared {
            let all = centre.racks * centre.nodes;
            let at = number % all;
            let columns = files.make((at / centre.nodes, at % centre.nodes))?;
            files.common.push(columns);
        }
        Ok(files)
    }

    /// Makes a file by a client at this place.
    fn make(&mut self, (rack, node): Place) -> Result<Columns, ModelError> {
        let (placement, home) = match self.job.architecture {
            Architecture::Placed(placement) => (placement, zone_of(rack)),
            Architecture::Separate => (Placement::Zone, zone_of(self.centre.racks)),
        };
        let number = self.made.entry(home).or_default();
        *number += 1;
        let data_id = DataId::new(PartitionId(u32::from(home.0)), *number);
        let policy = StripePolicy {
            placement,
            ..StripePolicy::default()
        };
        let site = (home, NodeId(rack * self.centre.nodes + node + 1));
        let layout = layout_of_new_file(&self.map, &policy, site, data_id);
        self.columns(&layout.map_err(|_error| ModelError::Layout)?)
    }

    /// The nodes of a file's objects, with their parts of its bytes.
    fn columns(&self, layout: &Layout) -> Result<Columns, ModelError> {
        let [component] = layout.components.as_slice() else {
            return Err(ModelError::Layout);
        };
        let set = self.map.set(component.set).ok_or(ModelError::Layout)?;
        let mut columns = Vec::new();
        for column in (0..component.count).map(Column) {
            let bytes = object_bytes(component, self.job.bytes, column);
            let slot =
                slot_of(component, column, set.width()).map_err(|_error| ModelError::Layout)?;
            let slot = set.slots.get(usize::from(slot)).ok_or(ModelError::Layout)?;
            let target = self.map.target(slot.target).ok_or(ModelError::Layout)?;
            if bytes > 0 {
                let part = bytes as f64 / self.job.bytes as f64;
                columns.push((target.node.0 as usize - 1, part));
            }
        }
        Ok(columns)
    }

    /// The flow of the active node at a place.
    fn flow(&mut self, rack: u32, node: u32) -> Result<FlowClass, ModelError> {
        let (racks, nodes) = (self.centre.racks, self.centre.nodes);
        let number = rack * self.job.active_nodes + node;
        let columns = match self.job.workload {
            Workload::Own => self.make((rack, node))?,
            Workload::NextRack => self.make(((rack + 1) % racks, node))?,
            Workload::Shared => {
                let step = if racks > 1 { 1 + node % (racks - 1) } else { 0 };
                self.make(((rack + step) % racks, (node + 1) % nodes))?
            }
            Workload::OneWriter => self.make((0, 0))?,
            Workload::OneFile { copies } => {
                let copy = self.common.get((number % copies) as usize);
                copy.cloned().unwrap_or_default()
            }
            Workload::Image { blocks, copies } => {
                let copy = |block| block * copies + (number + block) % copies;
                let blocks_read =
                    (0..blocks).filter_map(|block| self.common.get(copy(block) as usize));
                let parts = blocks_read.flatten();
                parts
                    .map(|(node, part)| (*node, part / f64::from(blocks)))
                    .collect()
            }
        };
        let client = (rack * nodes + node) as usize;
        let mut parts: BTreeMap<usize, f64> = BTreeMap::new();
        for (at, part) in columns {
            *parts.entry(3 * at).or_default() += part;
            let (from, to) = match self.job.direction {
                Direction::Read => (at, client),
                Direction::Write => (client, at),
            };
            self.centre
                .path(from, to, |link| *parts.entry(link).or_default() += part);
        }
        Ok(FlowClass {
            parts: parts.into_iter().collect(),
            count: 1,
            bytes: self.job.bytes as f64,
        })
    }
}

/// The zone of a rack, from 0.
fn zone_of(rack: u32) -> ZoneId {
    ZoneId(u16::try_from(rack + 1).unwrap_or(u16::MAX))
}

/// The map that a manager makes as the nodes join, with its sets opened.
fn zone_map(centre: &DataCentre, architecture: Architecture) -> Result<ZoneMap, ModelError> {
    let racks = match architecture {
        Architecture::Placed(_) => 0..centre.racks,
        Architecture::Separate => centre.racks..centre.racks + 1,
    };
    let mut edits = vec![MapEdit::SetWidth {
        slots: centre.set_width,
    }];
    for rack in racks.clone() {
        for node in 0..centre.nodes {
            let id = rack * centre.nodes + node + 1;
            let mut uuid = [0; 16];
            uuid[..4].copy_from_slice(&id.to_le_bytes());
            edits.push(MapEdit::Join {
                node: NodeId(id),
                zone: zone_of(rack),
                zone_name: String::new(),
                address: format!("node{id}"),
                shard: None,
                targets: vec![JoinTarget {
                    target: TargetId(id),
                    uuid,
                    capacity: 1 << 40,
                }],
            });
        }
    }
    edits.extend(racks.map(|rack| MapEdit::OpenSets {
        zone: zone_of(rack),
    }));
    if architecture == Architecture::Placed(Placement::Cell) {
        edits.push(MapEdit::OpenSets { zone: ZoneId::CELL });
    }
    let map = ZoneMap::new(CellId::default()).edited(&edits);
    map.ok().flatten().ok_or(ModelError::Layout)
}
