//! A first-level directory has a partition of its own, and all that is below it has numbers of the
//! same.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use common::*;
use std::collections::BTreeSet;
use zonal_meta::inode::Inode;
use zonal_meta::keys;
use zonal_types::{Ino, PartitionId, ShardId};

fn home(cell: &mut Cell, client: &mut Client, name: &str) -> Ino {
    client.mkdir(cell, Ino::ROOT, name).unwrap()
}

#[test]
fn a_subtree_is_a_partition_and_subtrees_share_none_while_there_are_enough() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let all: BTreeSet<PartitionId> = cell.map.partitions_of(ShardId(1)).into_iter().collect();
    let mut used = BTreeSet::new();
    for number in 0..all.len() {
        let top = home(&mut cell, &mut client, &format!("d{number}"));
        assert!(used.insert(top.partition()), "of {number}");
        let below = client.mkdir(&mut cell, top, "below").unwrap();
        let deep = client.mkdir(&mut cell, below, "deep").unwrap();
        let file = client.create(&mut cell, deep, "f", 0o644).unwrap();
        let stored = cell.stores[1].kv.get(&keys::inode(file)).unwrap();
        let inode = Inode::decode(file, stored).unwrap();
        let data = inode.layout.data_ids().next().unwrap();
        let of = [
            below.partition(),
            deep.partition(),
            file.partition(),
            data.partition(),
        ];
        assert_eq!(of, [top.partition(); 4]);
        // The shard learns from its store which ones are taken.
        if number == 3 {
            cell.restart(1);
            client.holds_nothing(&mut cell, 1);
        }
    }
    assert_eq!(used, all);
    assert!(cell.stores[1].shard.wants_partitions());
    // The manager gives no more here: the next one shares.
    let shared = home(&mut cell, &mut client, "shared");
    assert!(all.contains(&shared.partition()));
    cell.assert_sound();
}

#[test]
fn the_partition_of_a_removed_directory_is_taken_again_with_new_numbers() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let count = cell.map.partitions_of(ShardId(1)).len();
    let tops: Vec<Ino> = (0..count)
        .map(|number| home(&mut cell, &mut client, &format!("d{number}")))
        .collect();
    let file = client.create(&mut cell, tops[5], "f", 0o644).unwrap();
    client.open(&mut cell, file, 0).unwrap();
    client.unlink(&mut cell, tops[5], "f").unwrap();
    for number in [5, 9] {
        let name = format!("d{number}");
        client.rmdir(&mut cell, Ino::ROOT, &name).unwrap();
    }
    // An orphan is still in the first of both.
    let next = home(&mut cell, &mut client, "next");
    assert_eq!(next.partition(), tops[9].partition());
    assert!(next.sequence() > tops[9].sequence());
    client.close(&mut cell, file).unwrap();
    let last = home(&mut cell, &mut client, "last");
    assert_eq!(last.partition(), tops[5].partition());
    assert!(last.sequence() > file.sequence());
    cell.assert_sound();
}
