//! Jobs as flows. Each file gets its layout from the shard's placement code over a real zone map.
//! Its bytes go over the links between the client and the nodes of its columns.

use crate::data_centre::{DataCentre, ModelError};
use crate::fair_rates::{FlowClass, FlowTimes, merged, run_flows};
use crate::request_windows::{FilePart, REQUEST_BYTES_MAX};
use std::collections::BTreeMap;
use zonal_layout::{object_bytes, pieces};
use zonal_meta::layout_of_new_file;
use zonal_types::limits::NODES_MAX;
use zonal_types::{
    CellId, Component, DataId, Layout, NodeId, PartitionId, Placement, StripePolicy, TargetId,
    ZoneId,
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
    pub(crate) fn check(&self, centre: &DataCentre) -> Result<(), ModelError> {
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
pub(crate) struct Files<'a> {
    centre: &'a DataCentre,
    job: &'a Job,
    map: ZoneMap,
    /// Files that each zone had before.
    before: u64,
    made: BTreeMap<ZoneId, u64>,
    /// Copies and blocks that several nodes read.
    common: Vec<Layout>,
}

impl<'a> Files<'a> {
    pub(crate) fn new(centre: &'a DataCentre, job: &'a Job) -> Result<Self, ModelError> {
        let mut files = Self {
            centre,
            job,
            map: zone_map(centre, job.architecture)?,
            before: 0,
            made: BTreeMap::new(),
            common: Vec::new(),
        };
        files.begin(0)?;
        Ok(files)
    }

    /// Begins anew, where each zone has made so many files before.
    pub(crate) fn begin(&mut self, before: u64) -> Result<(), ModelError> {
        self.before = before;
        self.made.clear();
        self.common.clear();
        let shared = match self.job.workload {
            Workload::OneFile { copies } => copies,
            Workload::Image { blocks, copies } => blocks * copies,
            _ => 0,
        };
        let (nodes, all) = (self.centre.nodes, self.centre.racks * self.centre.nodes);
        for number in 0..shared {
            let at = number % all;
            let layout = self.make((at / nodes, at % nodes))?;
            self.common.push(layout);
        }
        Ok(())
    }

    /// Makes a file by a client at this place.
    fn make(&mut self, (rack, node): Place) -> Result<Layout, ModelError> {
        let (placement, home) = match self.job.architecture {
            Architecture::Placed(placement) => (placement, zone_of(rack)),
            Architecture::Separate => (Placement::Zone, zone_of(self.centre.racks)),
        };
        let number = self.made.entry(home).or_insert(self.before);
        *number += 1;
        let data_id = DataId::new(PartitionId(u32::from(home.0)), *number);
        let policy = StripePolicy {
            placement,
            ..StripePolicy::default()
        };
        let site = (home, NodeId(rack * self.centre.nodes + node + 1));
        let layout = layout_of_new_file(&self.map, &policy, site, data_id);
        layout.map_err(|_error| ModelError::Layout)
    }

    /// The node of a slot of the layout's stripe set.
    fn node_of(&self, component: &Component, slot: u16) -> Result<usize, ModelError> {
        let set = self.map.set(component.set).ok_or(ModelError::Layout)?;
        let slot = set.slots.get(usize::from(slot)).ok_or(ModelError::Layout)?;
        self.node_with(slot.target)
    }

    fn node_with(&self, target: TargetId) -> Result<usize, ModelError> {
        let target = self.map.target(target).ok_or(ModelError::Layout)?;
        Ok(target.node.0 as usize - 1)
    }

    /// The nodes of a file's objects, with their parts of its bytes.
    fn columns(&self, layout: &Layout) -> Result<Columns, ModelError> {
        let [component] = layout.components.as_slice() else {
            return Err(ModelError::Layout);
        };
        let mut columns = Vec::new();
        for column in zonal_layout::objects(component) {
            let bytes = object_bytes(component, self.job.bytes, column);
            let found = self.map.slot_of_place(component, column);
            let found = found.ok_or(ModelError::Layout)?;
            if bytes > 0 {
                let part = bytes as f64 / self.job.bytes as f64;
                columns.push((self.node_with(found.slot.target)?, part));
            }
        }
        Ok(columns)
    }

    /// A file's first bytes in file order, in parts of one request each.
    fn parts(&self, layout: &Layout, bytes: u64) -> Result<Vec<FilePart>, ModelError> {
        let width_of = |component: &Component| {
            let set = self.map.set(component.set);
            set.map_or(0, |set| set.width())
        };
        let pieces = pieces(layout, 0, bytes, width_of).map_err(|_error| ModelError::Layout)?;
        let mut parts = Vec::new();
        for piece in pieces {
            let component = layout.components.get(piece.component);
            let node = self.node_of(component.ok_or(ModelError::Layout)?, piece.slot)?;
            let mut left = piece.length;
            while left > 0 {
                let bytes = left.min(REQUEST_BYTES_MAX);
                parts.push(FilePart { node, bytes });
                left -= bytes;
            }
        }
        Ok(parts)
    }

    /// The files of the active node at a place. An image is many, the others are one.
    fn of_client(&mut self, rack: u32, node: u32) -> Result<Vec<Layout>, ModelError> {
        let (racks, nodes) = (self.centre.racks, self.centre.nodes);
        let number = rack * self.job.active_nodes + node;
        Ok(match self.job.workload {
            Workload::Own => vec![self.make((rack, node))?],
            Workload::NextRack => vec![self.make(((rack + 1) % racks, node))?],
            Workload::Shared => {
                let step = if racks > 1 { 1 + node % (racks - 1) } else { 0 };
                vec![self.make(((rack + step) % racks, (node + 1) % nodes))?]
            }
            Workload::OneWriter => vec![self.make((0, 0))?],
            Workload::OneFile { copies } => {
                let copy = self.common.get((number % copies) as usize);
                copy.cloned().into_iter().collect()
            }
            Workload::Image { blocks, copies } => {
                let copy = |block| block * copies + (number + block) % copies;
                let blocks_read =
                    (0..blocks).filter_map(|block| self.common.get(copy(block) as usize));
                blocks_read.cloned().collect()
            }
        })
    }

    /// The bytes of the active node at a place, in file order, in parts of one request each.
    pub(crate) fn parts_of_client(
        &mut self,
        rack: u32,
        node: u32,
    ) -> Result<Vec<FilePart>, ModelError> {
        let layouts = self.of_client(rack, node)?;
        let bytes = self.job.bytes / (layouts.len() as u64).max(1);
        let mut parts = Vec::new();
        for layout in &layouts {
            parts.extend(self.parts(layout, bytes.max(1))?);
        }
        Ok(parts)
    }

    /// The flow of the active node at a place.
    fn flow(&mut self, rack: u32, node: u32) -> Result<FlowClass, ModelError> {
        let layouts = self.of_client(rack, node)?;
        let client = self.centre.number_of(rack, node);
        let mut parts: BTreeMap<usize, f64> = BTreeMap::new();
        for layout in &layouts {
            for (at, part) in self.columns(layout)? {
                let part = part / layouts.len() as f64;
                *parts.entry(3 * at).or_default() += part;
                let (from, to) = match self.job.direction {
                    Direction::Read => (at, client),
                    Direction::Write => (client, at),
                };
                self.centre
                    .path(from, to, |link| *parts.entry(link).or_default() += part);
            }
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
