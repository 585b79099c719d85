//! The list of repairs that a pass gathers from its findings; bounded.

use super::store_registry::KnownStore;
use crate::cell::StoreSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use zonal_fsck::junctions::Mismatch;
use zonal_fsck::objects::UnownedObject;
use zonal_fsck::{FindingKind, StoreFault};
use zonal_meta::check::Broken as MetaBroken;
use zonal_object::{ObjectId, TargetDefect as ObjectBroken};
use zonal_types::{Column, DataId, Ino};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::junctions::ListedJunction;

/// Most repairs gathered in a pass. The next pass finds the rest.
pub(super) const WORK_MAX: usize = 1 << 19;

/// Repairs of a target's objects and blocks.
#[derive(Debug, Default)]
pub(crate) struct TargetRepairs {
    pub broken: Vec<ObjectBroken>,
    /// Blocks to mark as lost.
    pub lose: Vec<(ObjectId, u64)>,
    /// Objects to remove.
    pub remove: Vec<ObjectId>,
    /// Objects with missing bytes that were there once, with the length that they should have.
    pub missing: Vec<(ObjectId, u64)>,
    /// Segments whose file is too short.
    pub segments: BTreeSet<u32>,
}

impl TargetRepairs {
    fn is_empty(&self) -> bool {
        self.broken.is_empty()
            && self.lose.is_empty()
            && self.remove.is_empty()
            && self.missing.is_empty()
            && self.segments.is_empty()
    }
}

/// A correction of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Correction {
    pub size: Option<u64>,
    pub allocated: Option<u64>,
    pub truncate_seq: Option<u64>,
}

/// Repairs of a cell. Stores are numbered by their place in [`crate::cell::CellStores::stores`].
#[derive(Debug, Default)]
pub(crate) struct RepairList {
    pub map: Option<ZoneMap>,
    pub files: BTreeMap<usize, Vec<StoreFault>>,
    pub shards: BTreeMap<usize, Vec<MetaBroken>>,
    pub targets: BTreeMap<usize, TargetRepairs>,
    pub unowned: Vec<(DataId, Vec<UnownedObject>)>,
    pub corrections: BTreeMap<Ino, Correction>,
    /// Copies that their targets are to fill again: object and blocks.
    pub refilled: BTreeMap<(Ino, DataId), Vec<(Column, u64)>>,
    pub junctions: Vec<Mismatch>,
    /// Junctions in the manager's store.
    pub listed: Vec<ListedJunction>,
    /// Names of first-level directories.
    pub root: BTreeMap<Ino, String>,
    /// The manager's records of stores, by their folders.
    pub known: BTreeMap<PathBuf, KnownStore>,
    count: usize,
}

impl RepairList {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.shards.is_empty()
            && self.targets.values().all(TargetRepairs::is_empty)
            && self.unowned.is_empty()
            && self.corrections.is_empty()
            && self.refilled.is_empty()
            && self.junctions.is_empty()
    }

    /// The uuid of a store, as the manager recorded it.
    pub(super) fn uuid(&self, spec: &StoreSpec) -> Option<[u8; 16]> {
        self.known.get(&spec.dir).map(|known| known.uuid)
    }

    pub(super) fn has_room(&mut self) -> bool {
        self.count += 1;
        self.count <= WORK_MAX
    }

    /// Adds the repair of a finding, where there is one.
    pub(super) fn note(&mut self, at: Option<usize>, what: &FindingKind) {
        if !self.has_room() {
            return;
        }
        match (at, what) {
            (Some(at), FindingKind::Store(StoreFault::Segment(segment))) => {
                self.targets
                    .entry(at)
                    .or_default()
                    .segments
                    .insert(*segment);
            }
            (
                Some(_),
                FindingKind::Store(
                    StoreFault::Missing(_) | StoreFault::Stranger(_) | StoreFault::Foreign(_),
                ),
            ) => {}
            (Some(at), FindingKind::Store(fault)) => {
                self.files.entry(at).or_default().push(fault.clone());
            }
            (Some(at), FindingKind::Shard(broken)) => {
                self.shards.entry(at).or_default().push(broken.clone());
            }
            (Some(_), FindingKind::Target(ObjectBroken::Geometry { .. })) => {}
            (Some(at), FindingKind::Target(broken)) => {
                self.targets
                    .entry(at)
                    .or_default()
                    .broken
                    .push(broken.clone());
            }
            (
                Some(at),
                FindingKind::Misplaced {
                    object,
                    is_copy: true,
                    ..
                },
            ) => {
                self.targets.entry(at).or_default().remove.push(*object);
            }
            (_, FindingKind::Shrinks { ino, found, .. }) => {
                self.corrections.entry(*ino).or_default().truncate_seq = Some(*found);
            }
            (_, FindingKind::BehindSize { ino, end, .. }) => {
                self.corrections.entry(*ino).or_default().size = Some(*end);
            }
            (_, FindingKind::Allocated { ino, found, .. }) => {
                self.corrections.entry(*ino).or_default().allocated = Some(*found);
            }
            (
                _,
                FindingKind::CopiesDiffer {
                    ino,
                    data_id,
                    wrong,
                    ..
                },
            ) => {
                let copies = wrong.iter().map(|copy| (copy.object, copy.blocks));
                let of_file = self.refilled.entry((*ino, *data_id)).or_default();
                of_file.extend(copies);
            }
            (_, FindingKind::Junction(mismatch)) => self.junctions.push(mismatch.clone()),
            _ => {}
        }
    }
}
