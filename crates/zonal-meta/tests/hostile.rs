//! No request, and no content of the store, makes a shard panic; damage is detected.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod common;
mod random_requests;

use common::*;
use random_requests::Noise;
use zonal_meta::{Caller, MetaShard, Outcome};
use zonal_testkit::Rng;
use zonal_types::{Codec, Ino, SessionId};
use zonal_wire::MetaReply;

fn prepared() -> (Cell, Client, Vec<Ino>) {
    let mut cell = Cell::with(3, true);
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let mut inos = vec![Ino::ROOT, home];
    for index in 0..6 {
        let dir = client.mkdir(&mut cell, home, &format!("d{index}")).unwrap();
        inos.push(dir);
        let (file, _) = client.create_open(&mut cell, dir, "f").unwrap();
        client.setxattr(&mut cell, file, "user.a", b"1", 0).unwrap();
        client.report(&mut cell, file, 1000).unwrap();
        inos.push(file);
    }
    (cell, client, inos)
}

#[test]
fn random_requests_never_panic_nor_break_the_store() {
    for seed in 0..12 {
        let (mut cell, mut client, inos) = prepared();
        let mut noise = Noise {
            random: Rng(seed),
            inos,
        };
        for step in 0..400 {
            cell.pass_ms(3);
            let request = noise.request();
            client.sequence += 1;
            let shard = noise.random.below(2) as usize;
            let reply = cell.send(shard, client.caller(shard), &request);
            if let MetaReply::Entry { entry } = reply {
                noise.inos.push(entry.ino);
            }
            if step % 50 == 0 {
                cell.assert_sound();
            }
        }
        cell.assert_sound();
        cell.restart(1);
        cell.assert_sound();
    }
}

#[test]
fn unknown_sessions_slots_and_inodes_are_refused() {
    let (mut cell, mut client, _) = prepared();
    let mut noise = Noise {
        random: Rng(5),
        inos: vec![Ino(u64::MAX), Ino(0), Ino(9 << 43 | 1), Ino(99)],
    };
    for _ in 0..300 {
        let request = noise.request();
        let caller = Caller {
            identity: client.identity,
            session: SessionId(99),
            slot: 3,
            sequence: 1,
        };
        assert!(matches!(
            cell.send(1, caller, &request),
            MetaReply::Failed { .. }
        ));
        let caller = Caller {
            slot: 64,
            ..client.caller(1)
        };
        if request.is_mutation() {
            assert!(matches!(
                cell.send(1, caller, &request),
                MetaReply::Failed { .. }
            ));
        }
        client.sequence += 1;
        let _ = cell.send(1, client.caller(1), &request);
    }
    cell.assert_sound();
}

#[test]
fn damaged_values_are_errors() {
    let (cell, client, inos) = prepared();
    let mut random = Rng(77);
    for _ in 0..1500 {
        let store = &cell.stores[1];
        let mut kv = store.kv.clone();
        let index = random.index(kv.len());
        let value = kv.values_mut().nth(index).unwrap();
        match random.below(3) {
            0 => value.truncate(random.below(value.len() as u64 + 1) as usize),
            1 => value.push(7),
            _ => {
                let at = random.below(value.len().max(1) as u64) as usize;
                if let Some(byte) = value.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
        let Ok(mut shard) = MetaShard::load(
            store.config.clone(),
            cell.map.clone(),
            &kv,
            cell.now.instant,
        ) else {
            continue;
        };
        let _ = shard.check(&kv);
        let _ = shard.deletions(&kv, zonal_types::Instant(0), 10);
        let mut noise = Noise {
            random: Rng(random.bits()),
            inos: inos.clone(),
        };
        for sequence in 100..112 {
            let caller = Caller {
                identity: client.identity,
                session: client.sessions[1],
                slot: 1,
                sequence,
            };
            let request = noise.request();
            if let Outcome::Reply { effect, .. } =
                shard.handle(&kv, cell.now, caller, &request, None)
            {
                apply(&mut kv, &effect);
            }
        }
    }
}

#[test]
fn stored_inodes_come_back_whole_and_prefixes_are_refused() {
    let (cell, _, inos) = prepared();
    let key = zonal_meta::keys::inode(inos[3]);
    let bytes = cell.stores[1].kv.get(&key).unwrap();
    let inode = zonal_meta::inode::Inode::decode(inos[3], bytes).unwrap();
    assert_eq!(&inode.to_bytes(), bytes);
    assert!(zonal_meta::inode::Inode::decode(inos[2], bytes).is_err());
    for end in 0..bytes.len() {
        assert!(zonal_meta::inode::Inode::decode(inos[3], &bytes[..end]).is_err());
    }
}

#[test]
fn the_checker_finds_planted_damage() {
    let (cell, _, inos) = prepared();
    let store = &cell.stores[1];
    let (dir, file) = (inos[2], inos[3]);
    let is_found = |plant: &dyn Fn(&mut MemKv)| {
        let mut kv = store.kv.clone();
        plant(&mut kv);
        !store.shard.check(&kv).is_empty()
    };
    assert!(!is_found(&|_kv| {}));
    let inode = |kv: &MemKv, ino| {
        let bytes = kv.get(&zonal_meta::keys::inode(ino)).unwrap();
        zonal_meta::inode::Inode::decode(ino, bytes).unwrap()
    };
    let change = |ino: Ino, change: &dyn Fn(&mut zonal_meta::inode::Inode)| {
        is_found(&|kv: &mut MemKv| {
            let mut found = inode(kv, ino);
            change(&mut found);
            kv.insert(zonal_meta::keys::inode(ino), found.to_bytes());
        })
    };
    assert!(change(file, &|inode| inode.nlink = 2));
    assert!(change(file, &|inode| inode.xattrs = 0));
    assert!(change(file, &|inode| inode.flags |= zonal_meta::inode::FLAG_ORPHAN));
    assert!(change(dir, &|inode| inode.size += 1));
    assert!(change(dir, &|inode| inode.nlink += 1));
    assert!(change(dir, &|inode| inode.parent = Ino::ROOT));
    assert!(is_found(&|kv| {
        kv.remove(&zonal_meta::keys::inode(file));
    }));
    assert!(is_found(&|kv| {
        let layout = inode(kv, file).layout.to_bytes();
        kv.insert(zonal_meta::keys::deletion(file), layout);
    }));
}
