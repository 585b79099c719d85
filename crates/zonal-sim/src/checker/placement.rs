//! Invariant 10: every object lies where its inode's layout says, and junctions of the map agree
//! with first-level directories.
//!
//! Also invariant 9: every object has an owner; and invariant 2: no object has bytes behind its
//! file's end.

use crate::checker::healing;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use zonal_meta::dentry::Dentry;
use zonal_meta::inode::Inode;
use zonal_meta::keys;
use zonal_object::{ObjectId, ObjectStat};
use zonal_types::{Codec, Component, DataId, FileKind, Ino, KvRead, Layout, ShardId, TargetId};
use zonal_zonemap::ZoneMap;
use zonal_zonemap::junctions::JunctionListing;

/// Contents of the shards.
#[derive(Default)]
pub(super) struct Found {
    pub(super) owners: BTreeMap<DataId, (Inode, Component)>,
    /// Data ids with a deletion that is not done.
    going: BTreeSet<DataId>,
    directories: BTreeSet<Ino>,
    /// Directories in the root, by name.
    roots: BTreeMap<String, Ino>,
}

impl Found {
    /// Reads the stores of all shards.
    pub(super) fn of(world: &World) -> Self {
        let mut found = Self::default();
        for (number, node) in world.meta_nodes().iter().enumerate() {
            let scanned = node.disk().scan(&[], &[0xff; 8], &mut |key, value| {
                // The first process is the root shard's.
                found.take(number == 0, key, value);
                true
            });
            if let Err(code) = scanned {
                world.report(format!("invariant 10: a shard's store: {code}"));
            }
        }
        found
    }

    fn take(&mut self, is_root: bool, key: &[u8], value: &[u8]) -> Option<()> {
        let ino = keys::ino_of(key)?;
        match *key.get(4)? {
            keys::TAG_INODE => {
                let inode = Inode::decode(ino, value).ok()?;
                if inode.is_dir() {
                    self.directories.insert(ino);
                }
                for component in inode.layout.components.clone() {
                    let id = component.data_id;
                    self.owners.insert(id, (inode.clone(), component));
                }
            }
            keys::TAG_DELETION => {
                let layout = Layout::from_bytes(value).ok()?;
                let ids = layout.components.iter().map(|component| component.data_id);
                self.going.extend(ids);
            }
            keys::TAG_DENTRY if is_root && ino == Ino::ROOT => {
                let entry = Dentry::decode(value).ok()?;
                if !entry.is_mark() && entry.kind == FileKind::Directory {
                    self.roots.insert(format!("/{}", entry.name), entry.ino);
                }
            }
            _ => {}
        }
        Some(())
    }
}

/// The files of a cell.
#[must_use]
pub fn files(world: &World) -> Vec<Ino> {
    let found = Found::of(world);
    found.owners.values().map(|(inode, _)| inode.ino).collect()
}

/// The files of a cell that have names, each with a directory that has or had one of them.
#[must_use]
pub fn files_with_directories(world: &World) -> Vec<(Ino, Ino)> {
    let found = Found::of(world);
    let inodes = found.owners.values().map(|(inode, _)| inode);
    let named = inodes.filter(|inode| inode.nlink > 0);
    named.map(|inode| (inode.ino, inode.parent)).collect()
}

/// Files with an object of which something is to be deleted at a target that serves, or with copies
/// that go.
#[must_use]
pub fn files_with_leftovers(world: &World) -> Vec<Ino> {
    let map = world.map.borrow().clone();
    let found = Found::of(world);
    let is_left = |component: &Component| {
        component.relocations.iter().any(|of| {
            let slot = map.slot_of_relocation(of);
            of.state.is_leaving()
                || of.state.is_left() && slot.is_some_and(|slot| !map.is_gone_for_good(slot.target))
        })
    };
    let owners = found.owners.values();
    let with = owners.filter(|(_, component)| is_left(component));
    with.map(|(inode, _)| inode.ino).collect()
}

/// Whether the object lies where its owner's layout says.
fn in_its_place(map: &ZoneMap, component: &Component, object: ObjectId, at: TargetId) -> bool {
    let mut places = zonal_layout::places(component);
    places.any(|place| {
        let found = map.slot_of_place(component, place);
        zonal_layout::object_of(component, place) == object.column
            && found.is_some_and(|found| found.slot.target == at)
    })
}

fn behind_its_end(
    inode: &Inode,
    component: &Component,
    object: ObjectId,
    stat: ObjectStat,
) -> bool {
    // The shard's own bytes are a hole in the objects, of any length.
    let end = inode.size.max(inode.layout.inline_bytes().into());
    stat.object_bytes > zonal_layout::object_bytes(component, end, object.column)
}

/// Checks a quiet cell. `may_lack_owner`: metadata lost power. `may_be_longer`: a mount was killed,
/// or a loss of power took its reports.
pub fn check(world: &World, may_lack_owner: bool, may_be_longer: bool) {
    let map = world.map.borrow().clone();
    let found = Found::of(world);
    for node in world.storage_nodes() {
        let may_be_old = healing::may_have_old_objects(world, node.id());
        for (object, stat) in node.objects() {
            match found.owners.get(&object.data_id) {
                Some((inode, component)) => {
                    if !in_its_place(&map, component, object, node.id()) {
                        if may_be_old {
                            continue;
                        }
                        world.report(format!(
                            "invariant 10: object {object} of inode {} lies on target {}",
                            inode.ino,
                            node.id()
                        ));
                    } else if !may_be_longer
                        && !may_be_old
                        && !inode.layout.is_stale(node.id())
                        && behind_its_end(inode, component, object, stat)
                    {
                        world.report(format!(
                            "invariant 2: inode {} has {} bytes; object {object} has {}",
                            inode.ino, inode.size, stat.object_bytes
                        ));
                    }
                }
                None if found.going.contains(&object.data_id) || may_lack_owner || may_be_old => {}
                None => world.report(format!(
                    "invariant 9: object {object} on target {} has no owner",
                    node.id()
                )),
            }
        }
    }
    check_junctions(world, &map, &found);
}

fn check_junctions(world: &World, map: &ZoneMap, found: &Found) {
    let Some(disk) = world.disk_of(0) else {
        return;
    };
    let listed = match JunctionListing::read(disk) {
        Ok(listed) => listed,
        Err(code) => return world.report(format!("invariant 10: junctions: {code}")),
    };
    if let Some(half) = listed.iter().find(|of| !of.is_whole) {
        let junction = &half.junction;
        world.report(format!("invariant 10: two keys of {junction:?} disagree"));
    }
    let all = listed.iter().map(|of| &of.junction);
    let junctions: BTreeMap<&str, Ino> = all.clone().map(|of| (of.path.as_str(), of.ino)).collect();
    let entries: BTreeMap<&str, Ino> = found
        .roots
        .iter()
        .map(|(path, ino)| (path.as_str(), *ino))
        .collect();
    if junctions != entries {
        world.report(format!(
            "invariant 10: there are junctions {junctions:?}, the root has {entries:?}"
        ));
    }
    for junction in all {
        let shard = map.shard_of(junction.ino.partition());
        let is_home =
            shard.is_some_and(|shard| shard.zone == junction.zone && shard.id != ShardId(0));
        if !is_home || !found.directories.contains(&junction.ino) {
            world.report(format!(
                "invariant 10: junction {} leads to {}, which is no directory of zone {}",
                junction.path, junction.ino, junction.zone
            ));
        }
    }
}
