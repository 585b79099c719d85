//! Detached directories: first-level directories that are not settled, while the root shard still
//! works on them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::Outcome;
use zonal_types::{Codec, ErrorCode, Ino};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{MetaReply, MetaRequest};

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}

fn settle(cell: &mut Cell, ino: Ino, since: zonal_types::Timestamp, has_entry: bool) -> MetaReply {
    let request = MetaRequest::SettleDir {
        ino,
        since,
        has_entry,
    };
    cell.send(1, none(), &request)
}

#[test]
fn a_directory_that_is_asked_for_again_is_not_dropped() {
    let mut cell = Cell::new();
    let make = MetaRequest::MakeDetachedDir {
        uid: 0,
        gid: 0,
        mode: 0o755,
        default_acl: None,
        token: 7,
    };
    let made = cell.send(1, none(), &make);
    let MetaReply::Detached { ino } = made else {
        panic!("{made:?}");
    };
    let first = cell.now.wall;
    cell.pass_ms(61_000);
    // The root shard's request was cut off, and is repeated: it is about to make the entry.
    assert_eq!(cell.send(1, none(), &make), made);
    let store = &cell.stores[1];
    let due = store.shard.detached(&store.kv, cell.now, 9).unwrap();
    assert!(due.is_empty(), "its time begins anew");
    assert_eq!(settle(&mut cell, ino, first, false), MetaReply::Done);
    assert_eq!(
        cell.send(1, none(), &MetaRequest::AttachDir { ino }),
        MetaReply::Done,
        "it is there"
    );
}

#[test]
fn has_entry_is_refused_while_the_entry_is_being_removed() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let rmdir = MetaRequest::Rmdir {
        who: client.who.clone(),
        parent: Ino::ROOT,
        name: name("home"),
    };
    client.sequence += 1;
    let now = cell.now;
    let store = &mut cell.stores[0];
    let caller = client.caller(0);
    let outcome = store.shard.handle(&store.kv, now, caller, &rmdir, None);
    let Outcome::Call { request, call, .. } = outcome else {
        panic!("{outcome:?}");
    };
    let ask = MetaRequest::HasEntry { ino: home };
    assert_eq!(cell.send(0, none(), &ask), failed(ErrorCode::NotReady));
    let detached = cell.send(1, none(), &request);
    assert_eq!(cell.send(0, none(), &ask), failed(ErrorCode::NotReady));
    let store = &mut cell.stores[0];
    let outcome = store.shard.resume(&store.kv, now, call, detached);
    let Outcome::Reply { effect, .. } = outcome else {
        panic!("{outcome:?}");
    };
    apply(&mut store.kv, &effect);
    assert_eq!(cell.send(0, none(), &ask), MetaReply::Yes { yes: false });
    assert_eq!(settle(&mut cell, home, now.wall, false), MetaReply::Done);
    cell.assert_sound();
}

#[test]
fn a_session_with_an_unreadable_orphan_ends_and_a_later_start_releases_the_orphan() {
    let mut cell = Cell::new();
    let [mut expires, mut closes] = [1, 2].map(|number| cell.client(number));
    let home = expires.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let [first, second] = ["f", "g"].map(|name| {
        let ino = expires.create(&mut cell, home, name, 0o644).unwrap();
        let who = if name == "f" {
            &mut expires
        } else {
            &mut closes
        };
        who.open(&mut cell, ino, 0).unwrap();
        expires.unlink(&mut cell, home, name).unwrap();
        ino
    });
    let keys = [first, second].map(zonal_meta::keys::inode);
    let whole = keys
        .clone()
        .map(|key| cell.stores[1].kv.insert(key, vec![1]).unwrap());
    let reply = cell.send(1, closes.caller(1), &MetaRequest::CloseSession);
    assert_eq!(reply, MetaReply::Done, "closed");
    cell.pass_ms(zonal_types::limits::SESSION_TERM_MS);
    cell.tick_without_targets();
    cell.acknowledge_fences();
    let now = cell.now;
    let store = &mut cell.stores[1];
    let ticked = store.shard.tick(&store.kv, now);
    apply(&mut store.kv, &ticked.effect);
    assert_eq!(ticked.unread, Some(ErrorCode::Corrupt), "it is told");
    for ended in [&expires, &closes] {
        let session = zonal_meta::keys::session(ended.sessions[1]);
        assert!(!store.kv.contains_key(&session));
    }
    assert_eq!(store.shard.poll_deadline(), None, "nothing is due");

    // Repaired in between: one directory gets its inode back, the other is removed.
    let [first_whole, _gone] = whole;
    store.kv.insert(keys[0].clone(), first_whole);
    cell.restart(1);
    cell.tick();
    let store = &mut cell.stores[1].kv;
    store.remove(&keys[1]);
    store.retain(|key, value| key[4] != zonal_meta::keys::TAG_DATA || *value != second.to_bytes());
    cell.restart(1);
    cell.tick();
    let kv = &cell.stores[1].kv;
    for ino in [first, second] {
        assert!(!kv.contains_key(&zonal_meta::keys::orphan(ino)), "{ino}");
    }
    assert!(kv.contains_key(&zonal_meta::keys::deletion(first)));
    cell.assert_consistent();
}

#[test]
fn a_late_attach_does_not_keep_a_directory_that_is_being_removed() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let ino = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    // Another client removes it while the message of its maker is in flight.
    let detach = MetaRequest::DetachDir { ino };
    assert_eq!(cell.send(1, none(), &detach), MetaReply::Done);
    cell.send(1, none(), &MetaRequest::AttachDir { ino });
    let drop = MetaRequest::DropDir { ino };
    assert_eq!(cell.send(1, none(), &drop), MetaReply::Done);
    let key = zonal_meta::keys::inode(ino);
    assert!(!cell.stores[1].kv.contains_key(&key), "it stays for ever");
}

#[test]
fn a_removal_that_is_given_up_leaves_the_directory_in_use() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let ino = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    cell.send(1, none(), &MetaRequest::DetachDir { ino });
    let since = cell.now.wall;
    cell.send(1, none(), &MetaRequest::AttachDir { ino });
    assert_eq!(settle(&mut cell, ino, since, true), MetaReply::Done);
    client.create(&mut cell, ino, "f", 0o644).unwrap();
    cell.assert_sound();
}
