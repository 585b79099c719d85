//! Allocated bytes (invariant 9, nothing leaks): a shard's count for a file is what its targets and
//! the shard itself store.
//!
//! This holds where no reply was lost and no client died before its report:
//! docs/rfcs/2026-11-22-allocated-bytes.md.

use crate::world::World;
use std::collections::BTreeMap;
use zonal_meta::inode::Inode;
use zonal_meta::keys;
use zonal_types::{DataId, Ino, KvRead};

/// Unit in which the shard's own bytes are counted.
const OWN_UNIT: usize = 512;

/// A file: the shard's count, and the places of its bytes.
struct Counted {
    allocated: u64,
    data_ids: Vec<DataId>,
}

/// Checks a quiet cell that had no faults.
pub fn check(world: &World) {
    let mut files: BTreeMap<Ino, Counted> = BTreeMap::new();
    let mut held: BTreeMap<Ino, u64> = BTreeMap::new();
    for node in world.meta_nodes() {
        let scanned = node.disk().scan(&[], &[0xff; 8], &mut |key, value| {
            let tag = key.get(4).copied();
            let Some(ino) = keys::ino_of(key) else {
                return true;
            };
            if tag == Some(keys::TAG_INLINE) {
                *held.entry(ino).or_default() += value.len().next_multiple_of(OWN_UNIT) as u64;
            } else if tag == Some(keys::TAG_INODE)
                && let Ok(inode) = Inode::decode(ino, value)
                && inode.is_file()
            {
                let components = inode.layout.components.iter();
                let counted = Counted {
                    allocated: inode.allocated_bytes(),
                    data_ids: components.map(|component| component.data_id).collect(),
                };
                files.insert(ino, counted);
            }
            true
        });
        if let Err(code) = scanned {
            world.report(format!("invariant 9: a shard's store: {code}"));
        }
    }
    let mut objects: BTreeMap<DataId, u64> = BTreeMap::new();
    for node in world.storage_nodes() {
        for (object, stat) in node.objects() {
            *objects.entry(object.data_id).or_default() += stat.allocated;
        }
    }
    for (ino, counted) in files {
        let own = held.get(&ino).copied().unwrap_or(0);
        let ids = counted.data_ids.iter();
        let at_targets: u64 = ids.filter_map(|id| objects.get(id)).sum();
        if counted.allocated != own + at_targets {
            world.report(format!(
                "invariant 9: inode {ino} counts {} allocated bytes; its targets hold {at_targets}, its shard {own}",
                counted.allocated
            ));
        }
    }
}
