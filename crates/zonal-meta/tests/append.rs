//! Appends of several sessions to one file.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::Outcome;
use zonal_types::Ino;
use zonal_wire::{MetaReply, MetaRequest};

#[test]
fn appends_of_two_sessions_do_not_overlap() {
    let mut cell = Cell::new();
    let (mut one, mut two) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let (f, _) = one.create_open(&mut cell, home, "f").unwrap();
    let begin = |client: &mut Client, cell: &mut Cell| {
        let request = MetaRequest::AppendBegin {
            ino: f,
            length: 10,
            limit: 0,
        };
        match client.call(cell, f, &request).unwrap() {
            MetaReply::Appending { offset, .. } => offset,
            other => panic!("{other:?}"),
        }
    };
    let (a, b) = (begin(&mut one, &mut cell), begin(&mut two, &mut cell));
    assert_eq!((a, b), (0, 10));
    let mtime = cell.now.wall;
    let end = |offset| MetaRequest::AppendEnd {
        ino: f,
        offset,
        reserved: 10,
        length: 10,
        mtime,
        allocated_delta: 0,
        kill_suid: false,
        inline: None,
    };
    two.sequence += 1;
    let caller = two.caller(1);
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &end(b), None);
    let Outcome::Wait { attempt, .. } = outcome else {
        panic!("bytes before it are not there yet: {outcome:?}")
    };
    assert_eq!(one.attr(&mut cell, f).unwrap().size, 0);
    one.call(&mut cell, f, &end(a)).unwrap();
    assert_eq!(
        one.attr(&mut cell, f).unwrap().size,
        10,
        "each append publishes its own bytes"
    );
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &end(b), Some(attempt));
    let Outcome::Reply {
        reply: MetaReply::Attr { attr, .. },
        effect,
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!(attr.size, 20);
    apply(&mut cell.stores[1].kv, &effect);
    cell.assert_sound();
}
