//! First-level directories: the root's entries, the junctions of the zone map, and the inodes in the zones' shards have
//! to agree. All three are as small as the zone map, which lists every junction.

use std::collections::BTreeMap;
use zonal_types::{Ino, ZoneId};
use zonal_zonemap::{MapEdit, ZoneMap};

/// Where the three disagree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The root's entry leads to a directory that its zone's shard does not have.
    #[error("/{name} leads to directory {ino}, which is not there")]
    NoDirectory {
        /// The entry's name.
        name: String,
        /// Its cookie.
        cookie: u64,
        /// The directory.
        ino: Ino,
    },
    /// A first-level directory without an entry in the root.
    #[error("first-level directory {ino} has no entry in the root")]
    NoEntry {
        /// The directory.
        ino: Ino,
        /// Its zone.
        zone: ZoneId,
    },
    /// The map lists another path or zone than the entry, or nothing.
    #[error("the zone map does not list /{name} as it is")]
    Map {
        /// The entry's name.
        name: String,
        /// The directory.
        ino: Ino,
        /// Its zone.
        zone: ZoneId,
    },
    /// The map lists a directory that has no entry.
    #[error("the zone map lists {path}, which has no entry in the root")]
    Extra {
        /// What it lists.
        path: String,
        /// The directory.
        ino: Ino,
    },
}

/// An entry of the root that leads to another shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootEntry {
    /// Where it leads.
    pub ino: Ino,
    /// Its name.
    pub name: String,
    /// Its cookie.
    pub cookie: u64,
}

/// A first-level directory, as its zone's shard has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstLevel {
    /// The directory.
    pub ino: Ino,
    /// Its entry is not settled; the running shard does that.
    pub is_detached: bool,
}

/// Compares the three. `is_known`: whether the store of the shard that owns an inode could be read.
#[must_use]
pub fn compare(
    map: &ZoneMap,
    entries: &[RootEntry],
    directories: &[FirstLevel],
    is_known: &dyn Fn(Ino) -> bool,
) -> Vec<Mismatch> {
    let mut mismatches = Vec::new();
    let there: BTreeMap<Ino, bool> = directories
        .iter()
        .map(|directory| (directory.ino, directory.is_detached))
        .collect();
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
        let listed = map.junctions.iter().find(|junction| junction.ino == ino);
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
    for junction in &map.junctions {
        if !named.contains_key(&junction.ino) {
            mismatches.push(Mismatch::Extra {
                path: junction.path.clone(),
                ino: junction.ino,
            });
        }
    }
    mismatches
}

/// The changes of the map that a mismatch asks for.
#[must_use]
pub fn edits(map: &ZoneMap, mismatch: &Mismatch) -> Vec<MapEdit> {
    let listed = |ino: Ino| map.junctions.iter().any(|junction| junction.ino == ino);
    match mismatch {
        Mismatch::NoDirectory { ino, .. } | Mismatch::Extra { ino, .. } if listed(*ino) => {
            vec![MapEdit::RemoveJunction { ino: *ino }]
        }
        Mismatch::Map { name, ino, zone } => {
            let mut edits = Vec::new();
            if listed(*ino) {
                edits.push(MapEdit::RemoveJunction { ino: *ino });
            }
            edits.push(MapEdit::AddJunction {
                ino: *ino,
                path: format!("/{name}"),
                zone: *zone,
            });
            edits
        }
        _ => Vec::new(),
    }
}
