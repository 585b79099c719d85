//! What repairs are to do, gathered while a pass finds what is wrong; bounded.

use super::known::KnownStore;
use crate::cell::StoreSpec;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use zonal_fsck::junctions::Mismatch;
use zonal_fsck::objects::Lonely;
use zonal_fsck::{StoreFault, What};
use zonal_meta::check::Broken as MetaBroken;
use zonal_object::{ObjectId, TargetDefect as ObjectBroken};
use zonal_types::{DataId, Ino};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::junctions::Listed;

/// Most repairs that one pass gathers; what is beyond is found by the next.
pub(super) const WORK_MAX: usize = 1 << 19;

/// What a target is to do about its blocks.
#[derive(Debug, Default)]
pub(crate) struct TargetWork {
    pub broken: Vec<ObjectBroken>,
    /// Blocks to be marked as lost.
    pub lose: Vec<(ObjectId, u64)>,
    /// Objects to be removed.
    pub remove: Vec<ObjectId>,
    /// Objects of which something is missing that was there, with the bytes that they should have.
    pub missing: Vec<(ObjectId, u64)>,
    /// Segments that are cut.
    pub segments: BTreeSet<u32>,
}

impl TargetWork {
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

/// What repairs are to do. Stores are named by their place in [`crate::cell::Cell::stores`].
#[derive(Debug, Default)]
pub(crate) struct Work {
    pub map: Option<ZoneMap>,
    pub files: BTreeMap<usize, Vec<StoreFault>>,
    pub shards: BTreeMap<usize, Vec<MetaBroken>>,
    pub targets: BTreeMap<usize, TargetWork>,
    pub lonely: Vec<(DataId, Vec<Lonely>)>,
    pub corrections: BTreeMap<Ino, Correction>,
    pub junctions: Vec<Mismatch>,
    /// Junctions as the manager's store has them.
    pub listed: Vec<Listed>,
    /// Names of first-level directories.
    pub root: BTreeMap<Ino, String>,
    /// What the manager knows of stores, by their folders.
    pub known: BTreeMap<PathBuf, KnownStore>,
    count: usize,
}

impl Work {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
            && self.shards.is_empty()
            && self.targets.values().all(TargetWork::is_empty)
            && self.lonely.is_empty()
            && self.corrections.is_empty()
            && self.junctions.is_empty()
    }

    /// A store's own number, as the manager knows it.
    pub(super) fn uuid(&self, spec: &StoreSpec) -> Option<[u8; 16]> {
        self.known.get(&spec.dir).map(|known| known.uuid)
    }

    pub(super) fn has_room(&mut self) -> bool {
        self.count += 1;
        self.count <= WORK_MAX
    }

    /// Notes what a repair can do about a finding.
    pub(super) fn note(&mut self, at: Option<usize>, what: &What) {
        if !self.has_room() {
            return;
        }
        match (at, what) {
            (Some(at), What::Store(StoreFault::Segment(segment))) => {
                self.targets
                    .entry(at)
                    .or_default()
                    .segments
                    .insert(*segment);
            }
            (
                Some(_),
                What::Store(
                    StoreFault::Missing(_) | StoreFault::Stranger(_) | StoreFault::Foreign(_),
                ),
            ) => {}
            (Some(at), What::Store(fault)) => {
                self.files.entry(at).or_default().push(fault.clone());
            }
            (Some(at), What::Shard(broken)) => {
                self.shards.entry(at).or_default().push(broken.clone());
            }
            (Some(_), What::Target(ObjectBroken::Geometry { .. })) => {}
            (Some(at), What::Target(broken)) => {
                self.targets
                    .entry(at)
                    .or_default()
                    .broken
                    .push(broken.clone());
            }
            (
                Some(at),
                What::Misplaced {
                    object,
                    is_copy: true,
                    ..
                },
            ) => {
                self.targets.entry(at).or_default().remove.push(*object);
            }
            (_, What::Shrinks { ino, found, .. }) => {
                self.corrections.entry(*ino).or_default().truncate_seq = Some(*found);
            }
            (_, What::BehindSize { ino, end, .. }) => {
                self.corrections.entry(*ino).or_default().size = Some(*end);
            }
            (_, What::Allocated { ino, found, .. }) => {
                self.corrections.entry(*ino).or_default().allocated = Some(*found);
            }
            (_, What::Junction(mismatch)) => self.junctions.push(mismatch.clone()),
            _ => {}
        }
    }
}
