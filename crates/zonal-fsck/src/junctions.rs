//! Compares first-level directories: the root's entries, the junctions beside the zone map, and the
//! inodes in the zones' shards have to agree.

use std::collections::BTreeMap;
use zonal_types::{Ino, ZoneId};
use zonal_zonemap::junctions::ListedJunction;
use zonal_zonemap::{Junction, ZoneMap};

/// A disagreement between root entry, junction and inode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The root's entry leads to a directory that is not in its zone's shard.
    #[error("/{name} leads to directory {ino}, which is not there")]
    NoDirectory {
        /// The entry's name.
        name: String,
        /// The entry's cookie.
        cookie: u64,
        /// The directory.
        ino: Ino,
    },
    /// A first-level directory has no entry in the root.
    #[error("first-level directory {ino} has no entry in the root")]
    NoEntry {
        /// The directory.
        ino: Ino,
        /// The directory's zone.
        zone: ZoneId,
    },
    /// The junction has another path or zone than the entry, or is missing.
    #[error("no junction lists /{name} as it is")]
    Map {
        /// The entry's name.
        name: String,
        /// The directory.
        ino: Ino,
        /// The directory's zone.
        zone: ZoneId,
    },
    /// A junction names a directory that has no entry.
    #[error("a junction lists {path}, which has no entry in the root")]
    Extra {
        /// The junction's path.
        path: String,
        /// The directory.
        ino: Ino,
    },
}

/// An entry of the root whose inode is in another shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootEntry {
    /// The directory that the entry leads to.
    pub ino: Ino,
    /// The entry's name.
    pub name: String,
    /// The entry's cookie.
    pub cookie: u64,
}

/// A first-level directory, as its zone's shard stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstLevel {
    /// The directory.
    pub ino: Ino,
    /// The directory is detached: its entry in the root is not made yet. The running shard settles
    /// this.
    pub is_detached: bool,
}

/// Compares the three records. `is_known` says whether the store of the shard that owns an inode
/// could be read.
#[must_use]
pub fn compare(
    map: &ZoneMap,
    junctions: &[ListedJunction],
    entries: &[RootEntry],
    directories: &[FirstLevel],
    is_known: &dyn Fn(Ino) -> bool,
) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    let there: BTreeMap<Ino, bool> = directories
        .iter()
        .map(|directory| (directory.ino, directory.is_detached))
        .collect();
    let mut listed: BTreeMap<Ino, Option<&Junction>> = BTreeMap::new();
    for ListedJunction { junction, is_whole } in junctions {
        let one = listed.entry(junction.ino);
        one.and_modify(|one| *one = None)
            .or_insert(is_whole.then_some(junction));
    }
    let named: BTreeMap<Ino, &RootEntry> = entries.iter().map(|entry| (entry.ino, entry)).collect();
    for entry in entries {
        let ino = entry.ino;
        let zone = map.zone_of(ino);
        if !there.contains_key(&ino) && (is_known(ino) || zone.is_none()) {
            mismatches.push(Mismatch::NoDirectory {
                name: entry.name.clone(),
                cookie: entry.cookie,
                ino,
            });
            continue;
        }
        let listed = listed.get(&ino).copied().flatten();
        let path = format!("/{}", entry.name);
        if let Some(zone) = zone
            && listed.is_none_or(|junction| junction.path != path || junction.zone != zone)
        {
            mismatches.push(Mismatch::Map {
                name: entry.name.clone(),
                ino,
                zone,
            });
        }
    }
    for (ino, is_detached) in &there {
        if !named.contains_key(ino)
            && !is_detached
            && let Some(zone) = map.zone_of(*ino)
        {
            mismatches.push(Mismatch::NoEntry { ino: *ino, zone });
        }
    }
    for ListedJunction { junction, .. } in junctions {
        if !named.contains_key(&junction.ino) {
            mismatches.push(Mismatch::Extra {
                path: junction.path.clone(),
                ino: junction.ino,
            });
        }
    }
    mismatches
}

/// Corrects `junctions` as the mismatch requires.
pub fn settle(junctions: &mut BTreeMap<Ino, Junction>, mismatch: &Mismatch) {
    match mismatch {
        Mismatch::NoDirectory { ino, .. } | Mismatch::Extra { ino, .. } => {
            junctions.remove(ino);
        }
        Mismatch::Map { name, ino, zone } => {
            let (ino, zone) = (*ino, *zone);
            let path = format!("/{name}");
            junctions.insert(ino, Junction { ino, path, zone });
        }
        Mismatch::NoEntry { .. } => {}
    }
}
