//! Survival of files: which have columns without a whole copy in service, or with too few of them.
//!
//! | a copy's target | without a mark | marked |
//! | --- | --- | --- |
//! | serves | whole | stale |
//! | is out, or does not answer | away: whole once the target is back | stale |
//! | is not in the map, or assumed to be lost | lost | lost |
//!
//! Invariants:
//! 1. A column without a byte of the file cannot be lost.
//! 2. A file is as its worst column.
//! 3. An object is judged by its main place: one that is not filled yet, and one that it has left,
//!    do not count.
//!
//! Units: bytes. A file's size is what its shard knows; an open file may have more.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use zonal_layout::{PlaceUse, object_bytes, place_use, places_of_column};
use zonal_types::{Column, Component, ComponentKind, Layout, NodeId, TargetId};
use zonal_zonemap::{Slot, SlotState, ZoneMap};

/// The condition of a file, the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Survival {
    /// No target of the map has a whole copy of some column.
    Lost,
    /// A column has whole copies only on targets that are out or do not answer.
    Unavailable,
    /// Each column has a whole copy in service, and some have fewer than they should.
    Endangered,
    /// Each column has all its copies.
    Whole,
}

/// The condition of a file, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSurvival {
    /// The condition.
    pub survival: Survival,
    /// Whole copies in service of the worst column.
    pub whole: u16,
    /// Copies that its layout asks for; 0 for a file without bytes on targets.
    pub copies: u16,
    /// Targets that should have a whole copy of a worst column and do not, in rising order. A
    /// target that the map does not have is missing here.
    pub targets: BTreeSet<TargetId>,
}

/// Single points of failure of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SoleHolders {
    /// Targets that have the only whole copy in service of a column.
    pub targets: BTreeSet<TargetId>,
    /// Nodes that have all whole copies in service of a column.
    pub nodes: BTreeSet<NodeId>,
}

/// The targets of a cell, and which of them are not in service.
#[derive(Debug)]
pub struct TargetService<'a> {
    /// The zone map, at least as new as the layouts that are judged.
    map: &'a ZoneMap,
    /// Targets that do not answer, whatever the map says.
    silent: BTreeSet<TargetId>,
    /// Targets that are assumed to be lost.
    lost: BTreeSet<TargetId>,
}

/// One copy of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyCondition {
    Whole,
    Away,
    Stale,
    Lost,
}

/// The copies of one column.
struct ColumnCopies {
    whole: Vec<TargetId>,
    away: usize,
    not_whole: Vec<TargetId>,
}

/// Whether a column has bytes of a file of this size on targets.
fn has_bytes(component: &Component, size: u64, column: u16) -> bool {
    let inline = match component.kind {
        ComponentKind::Striped => 0,
        ComponentKind::StripedInline { bytes } => u64::from(bytes),
    };
    let column = Column(column);
    object_bytes(component, size, column) > object_bytes(component, inline, column)
}

impl<'a> TargetService<'a> {
    /// The targets of a map; `silent` do not answer, and `lost` are assumed to be lost.
    #[must_use]
    pub fn new(map: &'a ZoneMap, silent: BTreeSet<TargetId>, lost: BTreeSet<TargetId>) -> Self {
        Self { map, silent, lost }
    }

    /// Judges a file of this size.
    #[must_use]
    pub fn judge(&self, layout: &Layout, size: u64) -> FileSurvival {
        let mut worst = FileSurvival {
            survival: Survival::Whole,
            whole: 0,
            copies: 0,
            targets: BTreeSet::new(),
        };
        for (component, copies) in self.columns(layout, size) {
            let asked = zonal_layout::staying_copies(component);
            let whole = u16::try_from(copies.whole.len()).unwrap_or(u16::MAX);
            let survival = match (whole, copies.away) {
                (0, 0) => Survival::Lost,
                (0, _) => Survival::Unavailable,
                (some, _) if some < asked => Survival::Endangered,
                _ => Survival::Whole,
            };
            let is_worse = (survival, whole) < (worst.survival, worst.whole);
            if is_worse || worst.copies == 0 {
                worst = FileSurvival {
                    survival,
                    whole,
                    copies: asked,
                    targets: BTreeSet::new(),
                };
            }
            if (survival, whole) == (worst.survival, worst.whole) {
                worst.targets.extend(copies.not_whole);
            }
        }
        worst
    }

    /// The targets and nodes whose loss would leave a column of the file without a whole copy in
    /// service.
    #[must_use]
    pub fn sole_holders(&self, layout: &Layout, size: u64) -> SoleHolders {
        let mut sole = SoleHolders::default();
        for (_, copies) in self.columns(layout, size) {
            if let [target] = copies.whole.as_slice() {
                sole.targets.insert(*target);
            }
            let node_of = |target: &TargetId| self.map.target(*target).map(|known| known.node);
            let nodes: BTreeSet<NodeId> = copies.whole.iter().filter_map(node_of).collect();
            if nodes.len() == 1 {
                sole.nodes.extend(nodes);
            }
        }
        sole
    }

    /// The copies of each column that has bytes of the file.
    fn columns<'f>(
        &'f self,
        layout: &'f Layout,
        size: u64,
    ) -> impl Iterator<Item = (&'f Component, ColumnCopies)> {
        layout.components.iter().flat_map(move |component| {
            let columns = 0..component.count;
            let used = columns.filter(move |column| has_bytes(component, size, *column));
            used.map(move |column| (component, self.copies(layout, component, column)))
        })
    }

    fn copies(&self, layout: &Layout, component: &Component, column: u16) -> ColumnCopies {
        let mut copies = ColumnCopies {
            whole: Vec::new(),
            away: 0,
            not_whole: Vec::new(),
        };
        let places = places_of_column(component, column);
        for place in places.filter(|place| place_use(component, *place) == PlaceUse::Main) {
            let found = self.map.slot_of_place(component, place);
            let slot = found.map(|found| found.slot);
            let Some(slot) = slot.filter(|slot| self.map.target(slot.target).is_some()) else {
                continue;
            };
            match self.condition(layout, slot) {
                CopyCondition::Whole => copies.whole.push(slot.target),
                CopyCondition::Away => {
                    copies.away += 1;
                    copies.not_whole.push(slot.target);
                }
                CopyCondition::Stale | CopyCondition::Lost => copies.not_whole.push(slot.target),
            }
        }
        copies
    }

    /// The condition of the copy of a file in a slot, whose target is in the map.
    fn condition(&self, layout: &Layout, slot: &Slot) -> CopyCondition {
        if self.lost.contains(&slot.target) {
            return CopyCondition::Lost;
        }
        if layout.is_stale(slot.target) {
            return CopyCondition::Stale;
        }
        match slot.state {
            SlotState::Serving if self.silent.contains(&slot.target) => CopyCondition::Away,
            SlotState::Serving => CopyCondition::Whole,
            SlotState::Out => CopyCondition::Away,
            // It fills a slot whose data another target had.
            SlotState::Rebuilding => CopyCondition::Stale,
        }
    }
}
