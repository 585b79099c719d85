//! Racks of nodes with disks, a leaf switch in each, and one upper switch.
//!
//! Each node has three links of the model: its disk, its way to the leaf switch and back. Each rack
//! has two, up and down. The upper switch is one more where its rate is bounded.

use thiserror::Error;
use zonal_types::limits::{NODES_MAX, SLOTS_MAX, ZONES_MAX};

/// Nodes of one rack at most.
pub const NODES_A_RACK_MAX: u32 = 1_024;

/// Rates of links and disks, bytes a second.
const RATE_MIN: f64 = 1.0;
const RATE_MOST: f64 = 1e15;

/// The reason why a model cannot run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ModelError {
    /// Number of racks out of bounds.
    #[error("a data centre has 1 to {} racks", ZONES_MAX - 1)]
    Racks,
    /// Number of nodes out of bounds.
    #[error("a rack has 1 to {NODES_A_RACK_MAX} nodes, all racks together {NODES_MAX} at most")]
    Nodes,
    /// A rate or a size is not above 0, or too large.
    #[error("rates are 1 to 10^15 bytes a second, sizes 1 byte to 10^15 bytes")]
    Rate,
    /// Width of stripe sets out of bounds.
    #[error("a stripe set has 1 to {SLOTS_MAX} slots")]
    Width,
    /// More active nodes or racks than there are.
    #[error("the active nodes and racks are some of those that exist")]
    Active,
    /// The workload reads in another rack, and there is one.
    #[error("this workload needs 2 racks")]
    OneRack,
    /// Copies or blocks out of bounds.
    #[error("copies and blocks are 1 to {NODES_MAX}")]
    Copies,
    /// More bytes than the model moves frame by frame.
    #[error("frame by frame, all files together have 2^40 bytes at most")]
    TooManyFrames,
    /// The placement code refused a file.
    #[error("the placement has no layout for a file")]
    Layout,
}

/// Racks, nodes, links and disks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DataCentre {
    /// Racks; each is a zone.
    pub racks: u32,
    /// Nodes a rack; each serves a target.
    pub nodes: u32,
    /// Rate of a node's link, in each direction.
    pub node_rate: f64,
    /// Rate of a node's disk.
    pub disk_rate: f64,
    /// Rate of a rack's uplink, in each direction.
    pub uplink_rate: f64,
    /// Rate of the upper switch, all racks together; `None`: it never limits.
    pub core_rate: Option<f64>,
    /// Slots of a stripe set at most.
    pub set_width: u16,
}

impl DataCentre {
    /// Checks the bounds.
    ///
    /// # Errors
    /// The field that is out of bounds.
    pub fn check(&self) -> Result<(), ModelError> {
        let racks = usize::try_from(self.racks).unwrap_or(usize::MAX);
        let nodes = u64::from(self.racks) * u64::from(self.nodes);
        let rates = [self.node_rate, self.disk_rate, self.uplink_rate];
        let is_bounded = |rate: &f64| (RATE_MIN..=RATE_MOST).contains(rate);
        if !(1..ZONES_MAX).contains(&racks) {
            return Err(ModelError::Racks);
        }
        if !(1..=NODES_A_RACK_MAX).contains(&self.nodes) || nodes > NODES_MAX as u64 {
            return Err(ModelError::Nodes);
        }
        if !rates.iter().chain(&self.core_rate).all(is_bounded) {
            return Err(ModelError::Rate);
        }
        if !(1..=SLOTS_MAX).contains(&usize::from(self.set_width)) {
            return Err(ModelError::Width);
        }
        Ok(())
    }

    /// Rates of all links. There is one rack more, for storage that stands apart.
    pub(crate) fn links(&self) -> Vec<f64> {
        let mut links = Vec::new();
        for _node in 0..self.all_nodes() {
            links.extend([self.disk_rate, self.node_rate, self.node_rate]);
        }
        for _rack in 0..=self.racks {
            links.extend([self.uplink_rate, self.uplink_rate]);
        }
        links.extend(self.core_rate);
        links
    }

    /// The number of a rack's node among all.
    pub(crate) fn number_of(&self, rack: u32, node: u32) -> usize {
        (rack * self.nodes + node) as usize
    }

    pub(crate) fn all_nodes(&self) -> usize {
        (self.racks as usize + 1) * self.nodes as usize
    }

    /// Calls `add` for each link that bytes cross from one node's memory to another's, in order.
    pub(crate) fn path(&self, from: usize, to: usize, mut add: impl FnMut(usize)) {
        if from == to {
            return;
        }
        add(3 * from + 1);
        let nodes = self.nodes as usize;
        let (out, into) = (from / nodes, to / nodes);
        if out != into {
            let first = 3 * self.all_nodes();
            add(first + 2 * out);
            if self.core_rate.is_some() {
                add(first + 2 * (self.racks as usize + 1));
            }
            add(first + 2 * into + 1);
        }
        add(3 * to + 2);
    }
}
