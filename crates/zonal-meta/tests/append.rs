//! Appends of several sessions to one file.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::Outcome;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{AppendPlace, MetaReply, MetaRequest};

/// Begins an append of ten bytes behind the end of a file.
fn begin(client: &mut Client, cell: &mut Cell, ino: Ino) -> AppendPlace {
    let request = MetaRequest::AppendBegin {
        ino,
        length: 10,
        limit: 0,
    };
    match client.call(cell, ino, &request).unwrap() {
        MetaReply::Appending { offset, data } => AppendPlace {
            offset,
            length: 10,
            truncate_seq: data.truncate_seq,
        },
        other => panic!("{other:?}"),
    }
}

/// The request that ends it, with the bytes written.
fn end(cell: &Cell, ino: Ino, offset: u64) -> MetaRequest {
    MetaRequest::AppendEnd {
        ino,
        offset,
        reserved: 10,
        length: 10,
        mtime: cell.now.wall,
        allocated_delta: 0,
        kill_suid: false,
        inline: None,
    }
}

fn tell(
    client: &mut Client,
    cell: &mut Cell,
    ino: Ino,
    place: AppendPlace,
) -> Result<MetaReply, ErrorCode> {
    let appends = vec![(ino, place)];
    client.call(cell, ino, &MetaRequest::ReclaimAppends { appends })
}

#[test]
fn a_place_from_before_a_truncation_is_not_reclaimed_after_a_restart() {
    let mut cell = Cell::new();
    let (mut one, mut two) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let mut file = |cell: &mut Cell, text: &str| {
        let (ino, _) = one.create_open(cell, home, text).unwrap();
        one.report(cell, ino, 8000).unwrap();
        ino
    };
    let (cut, whole) = (file(&mut cell, "cut"), file(&mut cell, "whole"));
    let before = begin(&mut one, &mut cell, cut);
    assert_eq!(before.offset, 8000);
    let kept = begin(&mut one, &mut cell, whole);
    two.truncate(&mut cell, cut, 100, 0).unwrap();
    let old_end = end(&cell, cut, before.offset);
    let after = begin(&mut one, &mut cell, cut);
    assert_eq!(after.offset, 100);
    assert!(after.truncate_seq > before.truncate_seq);

    cell.restart(1);
    let gone = tell(&mut one, &mut cell, cut, before);
    assert_eq!(gone, Err(ErrorCode::UnknownLease));
    for (ino, place) in [(cut, after), (whole, kept)] {
        let told = tell(&mut one, &mut cell, ino, place);
        assert_eq!(told, Ok(MetaReply::Done));
    }
    // A truncation after the restart ends places reclaimed before it, and places reclaimed again.
    two.holds_nothing(&mut cell, 1);
    two.truncate(&mut cell, whole, 7000, 0).unwrap();
    let gone = tell(&mut one, &mut cell, whole, kept);
    assert_eq!(gone, Err(ErrorCode::UnknownLease));
    one.reclaim(&mut cell, 1, vec![cut, whole]);
    let refused = one.call(&mut cell, cut, &old_end);
    assert_eq!(refused, Err(ErrorCode::UnknownLease));
    let new_end = end(&cell, cut, after.offset);
    one.call(&mut cell, cut, &new_end).unwrap();
    assert_eq!(one.attr(&mut cell, cut).unwrap().size, 110);
    assert_eq!(one.attr(&mut cell, whole).unwrap().size, 7000);
    assert_eq!(begin(&mut two, &mut cell, whole).offset, 7000);
    cell.assert_sound();
}

#[test]
fn truncating_an_empty_file_with_space_ends_its_places() {
    let (mut cell, mut one, home) = start();
    let mut two = cell.client(2);
    let (f, _) = one.create_open(&mut cell, home, "f").unwrap();
    // Space is taken, and it has no data.
    one.report(&mut cell, f, 0).unwrap();
    let place = begin(&mut one, &mut cell, f);
    assert_eq!(place.offset, 0);
    assert!(two.truncate(&mut cell, f, 0, 0).unwrap(), "targets cut");
    let end = end(&cell, f, place.offset);
    let refused = one.call(&mut cell, f, &end);
    assert_eq!(refused, Err(ErrorCode::UnknownLease));
    assert_eq!(one.attr(&mut cell, f).unwrap().size, 0);
    assert!(begin(&mut one, &mut cell, f).truncate_seq > place.truncate_seq);
}

#[test]
fn appends_of_two_sessions_do_not_overlap() {
    let mut cell = Cell::new();
    let (mut one, mut two) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let (f, _) = one.create_open(&mut cell, home, "f").unwrap();
    let a = begin(&mut one, &mut cell, f).offset;
    let b = begin(&mut two, &mut cell, f).offset;
    assert_eq!((a, b), (0, 10));
    let (end_a, end_b) = (end(&cell, f, a), end(&cell, f, b));
    two.sequence += 1;
    let caller = two.caller(1);
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &end_b, None);
    let Outcome::Wait { attempt, .. } = outcome else {
        panic!("bytes before it are not there yet: {outcome:?}")
    };
    assert_eq!(one.attr(&mut cell, f).unwrap().size, 0);
    one.call(&mut cell, f, &end_a).unwrap();
    assert_eq!(
        one.attr(&mut cell, f).unwrap().size,
        10,
        "each append publishes its own bytes"
    );
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &end_b, Some(attempt));
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
