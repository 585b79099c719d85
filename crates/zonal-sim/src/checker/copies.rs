//! All copies of a column that are not marked as stale have the same bytes, once the cell is
//! quiet.
//!
//! Not where a client was killed or power was lost: then a copy may have bytes that nobody
//! acknowledged.

use crate::checker::placement::Found;
use crate::world::World;
use std::collections::BTreeMap;
use zonal_object::ObjectId;
use zonal_types::Column;

/// Compares the copies of all files.
pub fn check(world: &World) {
    let found = Found::of(world);
    let mut bytes: BTreeMap<ObjectId, Vec<u8>> = BTreeMap::new();
    for node in world.storage_nodes() {
        for (object, _stat) in node.objects() {
            match node.contents(object) {
                Some(contents) => drop(bytes.insert(object, contents)),
                None => world.report(format!("object {object} cannot be read")),
            }
        }
    }
    let empty = Vec::new();
    let map = world.map.borrow().clone();
    for (data_id, (inode, component)) in &found.owners {
        let of = |column: Column| {
            let data_id = *data_id;
            bytes.get(&ObjectId { data_id, column }).unwrap_or(&empty)
        };
        let is_whole = |object: &Column| {
            let set = map.set(component.set)?;
            let slot = zonal_layout::slot_of(component, *object, set.width()).ok()?;
            let target = set.slots.get(usize::from(slot))?.target;
            Some(!inode.layout.is_stale(target))
        };
        for column in 0..component.count {
            let copies = zonal_layout::copies_of_column(component, column);
            let whole: Vec<Column> = copies.filter(|of| is_whole(of) == Some(true)).collect();
            let Some(first) = whole.first() else {
                world.report(format!("copies: inode {} has no whole copy", inode.ino));
                continue;
            };
            for other in whole.iter().filter(|other| of(**other) != of(*first)) {
                world.report(format!(
                    "copies: objects {first} and {other} of inode {} differ",
                    inode.ino
                ));
            }
        }
    }
}
