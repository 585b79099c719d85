//! All copies of a column that are not marked as stale have the same bytes, once the cell is
//! quiet.
//!
//! Not where a client was killed or power was lost: then a copy may have bytes that nobody
//! acknowledged.

use crate::checker::placement::Found;
use crate::world::World;
use std::collections::BTreeMap;
use zonal_object::ObjectId;
use zonal_types::{Column, TargetId};

/// Compares the copies of all files.
pub fn check(world: &World) {
    let found = Found::of(world);
    let mut bytes: BTreeMap<(TargetId, ObjectId), Vec<u8>> = BTreeMap::new();
    for node in world.storage_nodes() {
        for (object, stat) in node.objects() {
            let owner = found.owners.get(&object.data_id);
            match node.contents(object) {
                Some(mut contents) => {
                    // A target that has not seen a truncation cuts the object later.
                    if let Some((inode, component)) =
                        owner.filter(|(inode, _)| inode.truncate_seq > stat.truncate_seq)
                    {
                        let size = inode.truncate_size;
                        let end = zonal_layout::object_bytes(component, size, object.column);
                        contents.truncate(usize::try_from(end).unwrap_or(usize::MAX));
                    }
                    // A hole at the end may be there or not.
                    let end = contents.iter().rposition(|byte| *byte != 0);
                    contents.truncate(end.map_or(0, |last| last + 1));
                    drop(bytes.insert((node.id(), object), contents));
                }
                None => world.report(format!("object {object} cannot be read")),
            }
        }
    }
    let empty = Vec::new();
    let map = world.map.borrow().clone();
    for (data_id, (inode, component)) in &found.owners {
        let of = |place: Column| {
            let (data_id, column) = (*data_id, zonal_layout::object_of(component, place));
            let target = map.slot_of_place(component, place).map(|of| of.slot.target);
            let object = target.map(|target| (target, ObjectId { data_id, column }));
            object.and_then(|at| bytes.get(&at)).unwrap_or(&empty)
        };
        for column in 0..component.count {
            let whole = map.whole_places(&inode.layout, component, column, false);
            let Some(first) = whole.first() else {
                world.report(format!("copies: inode {} has no whole copy", inode.ino));
                continue;
            };
            for other in whole.iter().filter(|other| of(**other) != of(*first)) {
                let (one, two) = (of(*first), of(*other));
                let at = one.iter().zip(two).position(|(one, two)| one != two);
                world.report(format!(
                    "copies: places {first} and {other} of inode {} differ: {} and {} bytes, at {at:?}",
                    inode.ino,
                    one.len(),
                    two.len()
                ));
            }
        }
    }
}
