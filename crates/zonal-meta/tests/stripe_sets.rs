//! Stripe sets of new files are open: the first file of a zone, a zone that grows, a manager that
//! is away.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::*;
use std::sync::Arc;
use zonal_types::{ErrorCode, Ino, NodeId, StripeSetId, TargetId, ZoneId};
use zonal_wire::JoinTarget;
use zonal_zonemap::MapEdit;

fn join(cell: &mut Cell, target: u32) {
    let edit = MapEdit::Join {
        node: NodeId(target),
        zone: ZoneId(1),
        zone_name: String::new(),
        address: format!("127.0.0.1:{target}"),
        shard: None,
        targets: vec![JoinTarget {
            target: TargetId(target),
            uuid: [target as u8; 16],
            capacity: 1 << 30,
        }],
    };
    cell.map = Arc::new(cell.map.edited(&[edit]).unwrap().unwrap());
    let map = cell.map.clone();
    cell.stores
        .iter_mut()
        .for_each(|store| store.shard.set_map(map.clone()));
}

fn default_set(cell: &Cell) -> (StripeSetId, bool) {
    let set = cell.map.default_sets(ZoneId(1)).next().unwrap();
    (set.id, set.is_open)
}

fn set_of_new(cell: &mut Cell, client: &mut Client, dir: Ino, name: &str) -> Reply<StripeSetId> {
    let (_, data) = client.create_open(cell, dir, name)?;
    Ok(data.layout.components[0].set)
}

#[test]
fn the_first_file_has_the_zones_new_set_opened() {
    let (mut cell, mut client, home) = start();
    let (old, is_open) = default_set(&cell);
    assert!(is_open);
    assert_eq!(set_of_new(&mut cell, &mut client, home, "a"), Ok(old));
    join(&mut cell, 77);
    let (new, is_open) = default_set(&cell);
    assert!(new > old && !is_open);
    // Only a file opens a set.
    client.mkdir(&mut cell, home, "d").unwrap();
    assert_eq!(default_set(&cell), (new, false));
    assert_eq!(set_of_new(&mut cell, &mut client, home, "b"), Ok(new));
    assert_eq!(default_set(&cell), (new, true));
    // The shard's own map does not show it yet, and nobody need be asked again.
    cell.is_manager_away = true;
    assert_eq!(set_of_new(&mut cell, &mut client, home, "c"), Ok(new));
    cell.is_manager_away = false;
    // The root shard stores a file in the root, and asks its own process.
    join(&mut cell, 78);
    let newer = set_of_new(&mut cell, &mut client, Ino::ROOT, "e").unwrap();
    assert_eq!(default_set(&cell), (newer, true));
    cell.assert_sound();
}

#[test]
fn a_zone_gets_its_first_targets_before_its_shard_has_the_new_map() {
    let (mut cell, mut client, home) = start();
    let whole = cell.map.clone();
    let mut map = (*whole).clone();
    map.sets.clear();
    map.zones
        .iter_mut()
        .for_each(|zone| zone.default_sets.clear());
    cell.map = Arc::new(map);
    let map = cell.map.clone();
    cell.stores
        .iter_mut()
        .for_each(|store| store.shard.set_map(map.clone()));
    let refused = set_of_new(&mut cell, &mut client, home, "a");
    assert_eq!(refused, Err(ErrorCode::NoSpace));
    // The targets have joined; the shard does not know it yet.
    cell.map = whole;
    let (set, _) = default_set(&cell);
    assert_eq!(set_of_new(&mut cell, &mut client, home, "b"), Ok(set));
}

#[test]
fn while_the_manager_is_away_files_use_sets_that_are_open() {
    let (mut cell, mut client, home) = start();
    let (old, _) = default_set(&cell);
    join(&mut cell, 77);
    let (new, _) = default_set(&cell);
    cell.is_manager_away = true;
    assert_eq!(set_of_new(&mut cell, &mut client, home, "a"), Ok(old));
    // The manager is back, and is asked again after a while.
    cell.is_manager_away = false;
    assert_eq!(set_of_new(&mut cell, &mut client, home, "b"), Ok(old));
    cell.pass_ms(6_000);
    assert_eq!(set_of_new(&mut cell, &mut client, home, "c"), Ok(new));
    cell.assert_sound();
}

#[test]
fn the_first_file_of_a_zone_waits_for_the_manager() {
    let (mut cell, mut client, home) = start();
    let mut map = (*cell.map).clone();
    map.sets.iter_mut().for_each(|set| set.is_open = false);
    cell.map = Arc::new(map);
    let map = cell.map.clone();
    cell.stores
        .iter_mut()
        .for_each(|store| store.shard.set_map(map.clone()));
    cell.is_manager_away = true;
    let refused = set_of_new(&mut cell, &mut client, home, "a");
    assert_eq!(refused, Err(ErrorCode::NotReady));
    cell.is_manager_away = false;
    cell.pass_ms(6_000);
    let (set, _) = default_set(&cell);
    assert_eq!(set_of_new(&mut cell, &mut client, home, "a"), Ok(set));
    cell.assert_sound();
}
