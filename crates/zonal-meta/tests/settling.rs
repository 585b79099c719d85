//! First-level directories that nobody settled, while the root shard still works on them.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::Outcome;
use zonal_types::{ErrorCode, Ino};
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
    // The root shard's request was cut off, and is repeated: the entry is about to be made.
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
fn nobody_is_told_of_an_entry_that_is_being_removed() {
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
fn a_session_that_cannot_be_ended_keeps_no_other_from_it() {
    let mut cell = Cell::new();
    let (mut one, other) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let orphan = one.create(&mut cell, home, "f", 0o644).unwrap();
    one.open(&mut cell, orphan, 0).unwrap();
    one.unlink(&mut cell, home, "f").unwrap();
    let inode = zonal_meta::keys::inode(orphan);
    let whole = cell.stores[1].kv.insert(inode.clone(), vec![1]).unwrap();
    cell.pass_ms(zonal_types::limits::SESSION_TERM_MS);
    let [first, second] = [&one, &other].map(|of| zonal_meta::keys::session(of.sessions[1]));
    let now = cell.now;
    let store = &mut cell.stores[1];
    let ticked = store.shard.tick(&store.kv, now).unwrap();
    apply(&mut store.kv, &ticked.effect);
    assert!(store.kv.contains_key(&first) && !store.kv.contains_key(&second));
    assert_eq!(
        store.shard.tick(&store.kv, now).err(),
        Some(ErrorCode::Corrupt)
    );
    assert!(store.shard.poll_deadline().is_some(), "it stays due");
    store.kv.insert(inode, whole);
    let ticked = store.shard.tick(&store.kv, now).unwrap();
    apply(&mut store.kv, &ticked.effect);
    assert!(!store.kv.contains_key(&first));
    cell.assert_sound();
}
