//! Data ids: none is given twice, each leads to the inode that has its bytes, and none is an inode
//! number.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod common;

use common::{Cell, Client, apply};
use std::collections::BTreeSet;
use zonal_meta::check::Broken;
use zonal_meta::inode::Inode;
use zonal_meta::repair::AdoptedFile;
use zonal_meta::{keys, restore};
use zonal_types::{Codec, DataId, ErrorCode, Ino, KvChange, Name};
use zonal_wire::{MetaReply, MetaRequest};

fn start() -> (Cell, Client, Ino) {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    (cell, client, home)
}

fn stored(cell: &Cell, ino: Ino) -> Inode {
    Inode::decode(ino, cell.stores[1].kv.get(&keys::inode(ino)).unwrap()).unwrap()
}

fn data_of(cell: &Cell, ino: Ino) -> DataId {
    let inode = stored(cell, ino);
    let mut ids = inode.layout.data_ids();
    let id = ids.next().unwrap();
    assert_eq!(ids.next(), None);
    id
}

fn leads_to(cell: &Cell, id: DataId) -> Option<Ino> {
    let found = cell.stores[1].kv.get(&keys::data(id));
    found.map(|bytes| Ino::from_bytes(bytes).unwrap())
}

/// All numbers given so far.
#[derive(Default)]
struct Given {
    numbers: BTreeSet<u64>,
}

impl Given {
    /// Makes files, a third of which are removed.
    fn more(&mut self, cell: &mut Cell, client: &mut Client, home: Ino, count: u64) {
        for number in 0..count {
            let name = format!("f{}", self.numbers.len());
            let ino = client.create(cell, home, &name, 0o644).unwrap();
            let id = data_of(cell, ino);
            assert!(self.numbers.insert(ino.0), "inode {ino} is given twice");
            assert!(self.numbers.insert(id.0), "{id} is given twice");
            assert_eq!(id.partition(), ino.partition());
            if number % 3 == 0 {
                client.unlink(cell, home, &name).unwrap();
            }
        }
    }
}

#[test]
fn no_data_id_is_given_twice_over_kills_and_restores() {
    let (mut cell, mut client, home) = start();
    let mut given = Given::default();
    given.more(&mut cell, &mut client, home, 20);
    // More than one range, over kills of the process.
    for _ in 0..5 {
        cell.restart(1);
        client.holds_nothing(&mut cell, 1);
        given.more(&mut cell, &mut client, home, 1_100);
    }
    let backup = cell.stores[1].kv.clone();
    given.more(&mut cell, &mut client, home, 50);
    // Numbers given since the backup, which it does not know.
    let kept = &mut cell.stores[1].kv;
    *kept = backup
        .into_iter()
        .map(|(key, value)| (key.clone(), restore::value(&key, value).unwrap()))
        .collect();
    let partitions = cell.map.partitions_of(zonal_types::ShardId(1));
    let missing = restore::missing(&partitions, |key| kept.contains_key(key)).unwrap();
    apply(kept, &missing);
    cell.restart(1);
    let mut client = cell.client(2);
    given.more(&mut cell, &mut client, home, 20);
    cell.assert_sound();
}

#[test]
fn a_data_id_leads_to_its_inode_as_long_as_that_has_the_bytes() {
    let (mut cell, mut client, home) = start();
    let dir = client.mkdir(&mut cell, home, "d").unwrap();
    assert_eq!(stored(&cell, dir).layout.components, []);
    let ino = client.create(&mut cell, home, "f", 0o644).unwrap();
    let id = data_of(&cell, ino);
    assert_ne!(id.0, ino.0);
    assert_eq!(leads_to(&cell, id), Some(ino));
    let asked = MetaRequest::FileOf { data_id: id };
    let file = client.call(&mut cell, ino, &asked).unwrap();
    assert_eq!(file, MetaReply::File { ino });
    // Without a name, open.
    client.open(&mut cell, ino, 0).unwrap();
    client.unlink(&mut cell, home, "f").unwrap();
    assert_eq!(leads_to(&cell, id), Some(ino));
    client.close(&mut cell, ino).unwrap();
    assert_eq!(leads_to(&cell, id), None);
    assert_eq!(client.call(&mut cell, ino, &asked), Err(ErrorCode::Stale));
    // Opened by its number, a moment after it was removed: it is back.
    client.open(&mut cell, ino, 0).unwrap();
    assert_eq!((leads_to(&cell, id), data_of(&cell, ino)), (Some(ino), id));
    cell.assert_sound();
    client.close(&mut cell, ino).unwrap();
    assert_eq!(leads_to(&cell, id), None);
    cell.assert_sound();
    let elsewhere = MetaRequest::FileOf {
        data_id: DataId::new(zonal_types::PartitionId(60_000), 5),
    };
    assert_eq!(
        client.call(&mut cell, ino, &elsewhere),
        Err(ErrorCode::NotOwner)
    );
}

/// Checks and repairs the shard; returns the findings. A second check must find nothing.
fn put_right(cell: &mut Cell, damage: &[KvChange]) -> Vec<Broken> {
    apply(&mut cell.stores[1].kv, damage);
    let now = cell.now;
    let store = &mut cell.stores[1];
    let found = store.shard.check_store(&store.kv, &mut Vec::new());
    for broken in &found {
        let changes = store
            .shard
            .repair(&store.kv, now, None, &|_dir| false, broken)
            .unwrap();
        apply(&mut store.kv, &changes);
        let again = store
            .shard
            .repair(&store.kv, now, None, &|_dir| false, broken)
            .unwrap();
        apply(&mut store.kv, &again);
    }
    found
}

#[test]
fn the_index_of_data_ids_is_checked_and_put_right() {
    let (mut cell, mut client, home) = start();
    let ino = client.create(&mut cell, home, "f", 0o644).unwrap();
    let other = client.create(&mut cell, home, "g", 0o644).unwrap();
    let (data_id, of_other) = (data_of(&cell, ino), data_of(&cell, other));
    let key = keys::data(data_id);
    let found = put_right(&mut cell, &[KvChange::remove(key.clone())]);
    assert_eq!(found, [Broken::Unindexed { ino, data_id }]);
    cell.assert_sound();
    // It leads to another file.
    let found = put_right(&mut cell, &[KvChange::put(key.clone(), other.to_bytes())]);
    assert_eq!(found.len(), 2, "{found:?}");
    cell.assert_sound();
    assert_eq!(leads_to(&cell, data_id), Some(ino));
    assert_eq!(leads_to(&cell, of_other), Some(other));
    // It leads nowhere.
    let stray = DataId::new(ino.partition(), data_id.sequence() + 7);
    let nobody = Ino(ino.0 + 500);
    let damage = KvChange::put(keys::data(stray), nobody.to_bytes());
    let found = put_right(&mut cell, &[damage]);
    assert!(matches!(found[..], [Broken::StrayData { data_id, .. }] if data_id == stray));
    cell.assert_sound();
    // The counter is lost.
    let damage = KvChange::remove(keys::data_ids(ino.partition()));
    let found = put_right(&mut cell, &[damage]);
    assert!(matches!(found[..], [Broken::DataIds { .. }]), "{found:?}");
    cell.assert_sound();
    cell.restart(1);
    let mut client = cell.client(2);
    let new = client.create(&mut cell, home, "h", 0o644).unwrap();
    assert!(data_of(&cell, new) > of_other);
}

#[test]
fn bytes_without_an_inode_become_a_file_once_and_first_bytes_keep_the_others() {
    let (mut cell, mut client, home) = start();
    let ino = client.create(&mut cell, home, "f", 0o644).unwrap();
    let layout = stored(&cell, ino).layout;
    let data_id = data_of(&cell, ino);
    client.write_inline(&mut cell, ino, 0, b"abc").unwrap();
    // The inode is lost: its first bytes become a file again, and the index names the other bytes.
    let lost = KvChange::remove(keys::inode(ino));
    let found = put_right(&mut cell, &[lost]);
    let data = Some(data_id);
    assert!(found.contains(&Broken::Homeless { ino, data_id: data }));
    assert_eq!(
        (data_of(&cell, ino), leads_to(&cell, data_id)),
        (data_id, Some(ino))
    );
    // Bytes without a file.
    let nobody = DataId::new(ino.partition(), data_id.sequence() + 900);
    let found = AdoptedFile {
        data_id: nobody,
        name: Name::new(b"data").unwrap(),
        layout: {
            let mut layout = layout;
            layout.components[0].data_id = nobody;
            layout
        },
        size: 5,
        allocated: 4096,
        truncate_seq: 0,
    };
    let now = cell.now;
    let store = &mut cell.stores[1];
    let adopt = |kv: &common::MemKv| store.shard.adopt(kv, now, home, &found).unwrap();
    let changes = adopt(&store.kv);
    assert!(!changes.is_empty());
    apply(&mut store.kv, &changes);
    assert_eq!(adopt(&store.kv), [], "it has an inode now");
    let made = leads_to(&cell, nobody).unwrap();
    assert_ne!(made.0, nobody.0);
    assert_eq!(stored(&cell, made).size, 5);
}
