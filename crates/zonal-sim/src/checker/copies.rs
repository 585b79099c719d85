//! All copies of a column have the same bytes, once the cell is quiet.
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
    for (data_id, (inode, component)) in &found.owners {
        let of = |column: Column| {
            let data_id = *data_id;
            bytes.get(&ObjectId { data_id, column }).unwrap_or(&empty)
        };
        for column in zonal_layout::objects(component).skip(component.count.into()) {
            let first = Column(column.0 % component.count);
            if of(first) != of(column) {
                world.report(format!(
                    "copies: objects {first} and {column} of inode {} differ",
                    inode.ino
                ));
            }
        }
    }
}
