//! Invariant 2: every entry leads to a live inode, link counts agree, no inode is in two shards.
//! Also checks invariant 1, by the map's own check.

use crate::world::World;
use std::collections::BTreeMap;
use zonal_meta::keys;
use zonal_types::{Ino, KvRead};

/// Checks the running shards, each by itself and all together.
pub fn check(world: &World) {
    for broken in world.map.borrow().check() {
        world.report(format!("invariant 1: {broken}"));
    }
    let mut owners: BTreeMap<Ino, usize> = BTreeMap::new();
    for (number, node) in world.meta_nodes().iter().enumerate() {
        for broken in node.check() {
            world.report(format!("invariant 2: {broken}"));
        }
        let scanned = node.disk().scan(&[], &[0xff; 8], &mut |key, _value| {
            if key.get(4) == Some(&keys::TAG_INODE)
                && let Some(ino) = keys::ino_of(key)
                && owners.insert(ino, number).is_some()
            {
                world.report(format!("invariant 2: inode {ino} is in two shards"));
            }
            true
        });
        if let Err(code) = scanned {
            world.report(format!("invariant 2: a shard's store: {code}"));
        }
    }
}
