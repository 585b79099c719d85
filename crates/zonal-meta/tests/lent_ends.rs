//! Lent ends: a session that alone has a file open is lent its end, and others get it back, over
//! restarts and ends of sessions.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::{Attempt, Outcome};
use zonal_types::limits::APPEND_BYTES_MAX;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{AppendPlace, Event, MetaReply, MetaRequest};

fn lend(client: &mut Client, cell: &mut Cell, ino: Ino) -> Result<u64, ErrorCode> {
    match client.call(cell, ino, &MetaRequest::LendEnd { ino })? {
        MetaReply::Appending { offset, .. } => Ok(offset),
        other => panic!("{other:?}"),
    }
}

fn place_at(
    client: &mut Client,
    cell: &mut Cell,
    ino: Ino,
    offset: u64,
    length: u32,
) -> Result<u64, ErrorCode> {
    let request = MetaRequest::AppendAt {
        ino,
        offset,
        length,
    };
    match client.call(cell, ino, &request)? {
        MetaReply::Appending { offset, .. } => Ok(offset),
        other => panic!("{other:?}"),
    }
}

fn end(cell: &Cell, ino: Ino, offset: u64, length: u32) -> MetaRequest {
    MetaRequest::AppendEnd {
        ino,
        offset,
        reserved: length,
        length,
        mtime: cell.now.wall,
        allocated_delta: 0,
        kill_suid: false,
        inline: None,
    }
}

fn publish(client: &mut Client, cell: &mut Cell, ino: Ino, offset: u64, length: u32) {
    assert_eq!(place_at(client, cell, ino, offset, length), Ok(offset));
    let end = end(cell, ino, offset, length);
    client.call(cell, ino, &end).unwrap();
}

fn give_back(client: &mut Client, cell: &mut Cell, ino: Ino) {
    let inos = vec![ino];
    let reply = client.call(cell, ino, &MetaRequest::ReturnEnds { inos });
    assert_eq!(reply, Ok(MetaReply::Done));
}

fn begin(ino: Ino) -> MetaRequest {
    MetaRequest::AppendBegin {
        ino,
        length: 10,
        limit: 0,
    }
}

fn open(client: &Client, ino: Ino) -> MetaRequest {
    MetaRequest::Open {
        who: client.who.clone(),
        ino,
        open_flags: 0,
    }
}

/// Runs one step of a request, without advancing the clock.
fn ask(
    client: &Client,
    cell: &mut Cell,
    request: &MetaRequest,
    attempt: Option<Attempt>,
) -> Result<MetaReply, Attempt> {
    let caller = client.caller(1);
    let store = &mut cell.stores[1];
    match store
        .shard
        .handle(&store.kv, cell.now, caller, request, attempt)
    {
        Outcome::Reply { reply, effect, .. } => {
            apply(&mut store.kv, &effect);
            Ok(reply)
        }
        Outcome::Wait { attempt, .. } => Err(attempt),
        other @ Outcome::Call { .. } => panic!("{other:?}"),
    }
}

fn events(client: &mut Client, cell: &mut Cell) -> Vec<Event> {
    let boot = cell.stores[1].shard.boot();
    let request = MetaRequest::PollEvents {
        boot,
        acked: 0,
        wait_ms: 0,
    };
    match cell.send(1, client.caller(1), &request) {
        MetaReply::Events { events, .. } => events.into_iter().map(|(_n, event)| event).collect(),
        other => panic!("{other:?}"),
    }
}

fn file() -> (Cell, Client, Client, Ino) {
    let mut cell = Cell::new();
    let (mut one, two) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let (ino, _) = one.create_open(&mut cell, home, "f").unwrap();
    one.report(&mut cell, ino, 8000).unwrap();
    (cell, one, two, ino)
}

#[test]
fn an_end_is_lent_only_to_the_only_session_with_the_file_open() {
    let (mut cell, mut one, mut two, f) = file();
    assert_eq!(lend(&mut two, &mut cell, f), Err(ErrorCode::Busy), "closed");
    two.open(&mut cell, f, 0).unwrap();
    assert_eq!(lend(&mut one, &mut cell, f), Err(ErrorCode::Busy), "shared");
    two.close(&mut cell, f).unwrap();
    // An append is in flight.
    let place = one.call(&mut cell, f, &begin(f)).unwrap();
    assert_eq!(lend(&mut one, &mut cell, f), Err(ErrorCode::Busy));
    let MetaReply::Appending { offset, .. } = place else {
        panic!("{place:?}")
    };
    let over = end(&cell, f, offset, 10);
    one.call(&mut cell, f, &over).unwrap();
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8010));
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8010), "the same again");
    publish(&mut one, &mut cell, f, 8010, 20);
    publish(&mut one, &mut cell, f, 8030, 20);
    assert_eq!(one.attr(&mut cell, f).unwrap().size, 8050);
    // Late, or with a gap.
    let gone = Err(ErrorCode::UnknownLease);
    assert_eq!(place_at(&mut one, &mut cell, f, 8030, 5), gone);
    assert_eq!(place_at(&mut one, &mut cell, f, 8051, 5), gone);
    assert_eq!(place_at(&mut two, &mut cell, f, 8050, 5), gone);
    // The last close gives the end back.
    one.close(&mut cell, f).unwrap();
    assert_eq!(place_at(&mut one, &mut cell, f, 8050, 5), gone);
    cell.assert_sound();
}

#[test]
fn an_open_a_truncation_and_an_append_of_another_session_wait_for_a_lent_end() {
    let (mut cell, mut one, mut two, f) = file();
    let cut = MetaRequest::Truncate {
        who: two.who.clone(),
        ino: f,
        size: 100,
        by_handle: false,
        confirmed_seq: 0,
        kill_suid: false,
    };
    let opens = open(&two, f);
    let mut at = 8000;
    for request in [opens, begin(f), cut] {
        assert_eq!(lend(&mut one, &mut cell, f), Ok(at));
        two.sequence += 1;
        let waits = ask(&two, &mut cell, &request, None).unwrap_err();
        let told = events(&mut one, &mut cell);
        let recalled = Event::EndRecalled { ino: f };
        assert_eq!(told.last(), Some(&recalled), "{request:?}");
        assert_eq!(lend(&mut one, &mut cell, f), Err(ErrorCode::Busy));
        let waits = ask(&two, &mut cell, &request, Some(waits)).unwrap_err();
        publish(&mut one, &mut cell, f, at, 10);
        at += 10;
        give_back(&mut one, &mut cell, f);
        let reply = ask(&two, &mut cell, &request, Some(waits)).unwrap();
        match reply {
            MetaReply::OpenedSmall { entry, .. } | MetaReply::Opened { entry, .. } => {
                assert_eq!(entry.attr.unwrap().size, at);
                two.close(&mut cell, f).unwrap();
            }
            MetaReply::Appending { offset, .. } => {
                assert_eq!(offset, at);
                let over = end(&cell, f, at, 10);
                two.call(&mut cell, f, &over).unwrap();
                at += 10;
            }
            MetaReply::Truncated { attr, .. } => assert_eq!(attr.size, 100),
            other => panic!("{other:?}"),
        }
    }
    cell.assert_sound();
}

#[test]
fn an_append_waits_longer_for_a_lent_end_than_an_open() {
    let (mut cell, mut one, mut two, f) = file();
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8000));
    let before = cell.now.instant;
    two.open(&mut cell, f, 2).unwrap();
    let waited = cell.now.instant.ms_since(before);
    assert!((5_500..6_000).contains(&waited), "{waited} ms");
    two.sequence += 1;
    assert_eq!(place_at(&mut one, &mut cell, f, 8000, 10), Ok(8000));
    let waits = ask(&two, &mut cell, &begin(f), None).unwrap_err();
    cell.pass_ms(40_000);
    let waits = ask(&two, &mut cell, &begin(f), Some(waits)).unwrap_err();
    // It comes after all: its records have their place.
    publish(&mut one, &mut cell, f, 8000, 10);
    give_back(&mut one, &mut cell, f);
    let reply = ask(&two, &mut cell, &begin(f), Some(waits)).unwrap();
    let MetaReply::Appending { offset, .. } = reply else {
        panic!("{reply:?}")
    };
    assert_eq!(offset, 8010);
    let over = end(&cell, f, 8010, 10);
    two.call(&mut cell, f, &over).unwrap();

    // Nothing is being written behind the end: it is taken away after a while.
    two.close(&mut cell, f).unwrap();
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8020));
    let before = cell.now.instant;
    let place = two.call(&mut cell, f, &begin(f)).unwrap();
    assert!(matches!(place, MetaReply::Appending { offset: 8020, .. }));
    let waited = cell.now.instant.ms_since(before);
    assert!((8_000..9_000).contains(&waited), "{waited} ms");
    let gone = Err(ErrorCode::UnknownLease);
    assert_eq!(place_at(&mut one, &mut cell, f, 8020, 10), gone);
}

/// Measures how long another session's append waits. The holder repeats its request for a place
/// from time to time, as a client does whose target does not answer. It never ends the append;
/// housekeeping runs meanwhile.
fn held_up(step_ms: u64, renews: impl Fn(&mut Client, &mut Cell, Ino)) -> u64 {
    let (mut cell, mut one, mut two, f) = file();
    two.open(&mut cell, f, 2).unwrap();
    two.close(&mut cell, f).unwrap();
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8000));
    assert_eq!(place_at(&mut one, &mut cell, f, 8000, 10), Ok(8000));
    two.sequence += 1;
    let before = cell.now.instant;
    let mut waits = ask(&two, &mut cell, &begin(f), None).unwrap_err();
    for _ in 0..1_000 {
        cell.pass_ms(step_ms);
        cell.send(1, two.caller(1), &MetaRequest::StatFs);
        renews(&mut one, &mut cell, f);
        let reply = ask(&two, &mut cell, &begin(f), Some(waits));
        cell.tick();
        match reply {
            Err(again) => waits = again,
            Ok(reply) => {
                assert!(matches!(reply, MetaReply::Appending { offset: 8000, .. }));
                let waited = cell.now.instant.ms_since(before);
                // Its place is gone, and its bytes are disowned.
                let late = end(&cell, f, 8000, 10);
                let gone = Err(ErrorCode::UnknownSession);
                assert_eq!(one.call(&mut cell, f, &late), gone);
                let over = end(&cell, f, 8000, 10);
                two.call(&mut cell, f, &over).unwrap();
                assert_eq!(two.attr(&mut cell, f).unwrap().size, 8010);
                cell.assert_sound();
                return waited;
            }
        }
    }
    panic!("held up for ever")
}

#[test]
fn a_lent_place_that_is_never_ended_is_taken_away() {
    // It does not mention the place, but is alive.
    let waited = held_up(5_000, |one, cell, f| {
        one.attr(cell, f).ok();
    });
    assert!((65_000..80_000).contains(&waited), "{waited} ms");
    // It asks for its place again and again.
    let waited = held_up(5_000, |one, cell, f| {
        if let Err(code) = place_at(one, cell, f, 8000, 10) {
            assert_eq!(code, ErrorCode::UnknownSession);
        }
    });
    assert!((300_000..315_000).contains(&waited), "{waited} ms");
    let waited = held_up(5_000, |one, cell, f| {
        let place = AppendPlace {
            offset: 8000,
            length: 10,
            truncate_seq: 0,
        };
        let appends = vec![(f, place)];
        one.call(cell, f, &MetaRequest::ReclaimAppends { appends })
            .ok();
    });
    assert!((300_000..315_000).contains(&waited), "{waited} ms");
}

#[test]
fn a_holder_recalled_for_long_gets_no_new_place() {
    let (mut cell, mut one, two, f) = file();
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8000));
    publish(&mut one, &mut cell, f, 8000, 10);
    let mut waits = ask(&two, &mut cell, &open(&two, f), None).unwrap_err();
    let mut at = 8010;
    for _ in 0..13 {
        publish(&mut one, &mut cell, f, at, 10);
        at += 10;
        assert_eq!(place_at(&mut one, &mut cell, f, at, 10), Ok(at));
        cell.pass_ms(5_000);
        match ask(&two, &mut cell, &begin(f), Some(waits)) {
            Err(again) => waits = again,
            Ok(reply) => panic!("{reply:?}"),
        }
    }
    // It may end the append that it has.
    publish(&mut one, &mut cell, f, at, 10);
    at += 10;
    let gone = Err(ErrorCode::UnknownLease);
    assert_eq!(place_at(&mut one, &mut cell, f, at, 10), gone);
    let reply = ask(&two, &mut cell, &begin(f), Some(waits)).unwrap();
    assert!(matches!(reply, MetaReply::Appending { offset, .. } if offset == at));
}

#[test]
fn a_place_has_a_largest_length() {
    let (mut cell, mut one, _two, f) = file();
    let length = APPEND_BYTES_MAX as u32 + 1;
    let (ino, limit) = (f, 0);
    let long = MetaRequest::AppendBegin { ino, length, limit };
    assert_eq!(one.call(&mut cell, f, &long), Err(ErrorCode::Invalid));
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8000));
    let refused = Err(ErrorCode::Invalid);
    assert_eq!(place_at(&mut one, &mut cell, f, 8000, length), refused);
    assert_eq!(place_at(&mut one, &mut cell, f, 8000, length - 1), Ok(8000));
    cell.restart(1);
    let place = AppendPlace {
        offset: 8000,
        length,
        truncate_seq: 0,
    };
    let appends = vec![(f, place)];
    let told = MetaRequest::ReclaimAppends { appends };
    let refused = Err(ErrorCode::UnknownLease);
    assert_eq!(one.call(&mut cell, f, &told), refused);
}

#[test]
fn a_lent_end_is_lost_with_its_session_or_by_a_truncation() {
    let (mut cell, mut one, mut two, f) = file();
    let gone = Err(ErrorCode::UnknownLease);
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8000));
    assert_eq!(place_at(&mut one, &mut cell, f, 8000, 50), Ok(8000));
    cell.evict(1, one.caller(1));
    let mut again = cell.client(1);
    assert_eq!(place_at(&mut again, &mut cell, f, 8000, 50), gone);
    let place = two.call(&mut cell, f, &begin(f)).unwrap();
    assert!(matches!(place, MetaReply::Appending { offset: 8000, .. }));
    let over = end(&cell, f, 8000, 10);
    two.call(&mut cell, f, &over).unwrap();

    two.open(&mut cell, f, 2).unwrap();
    assert_eq!(lend(&mut two, &mut cell, f), Ok(8010));
    // Nobody answers: the file is truncated all the same.
    again.truncate(&mut cell, f, 100, 0).unwrap();
    assert_eq!(place_at(&mut two, &mut cell, f, 8010, 5), gone);
    cell.assert_sound();
}

#[test]
fn after_a_restart_a_lent_end_is_reclaimed_before_others_get_places() {
    let (mut cell, mut one, mut two, f) = file();
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8000));
    publish(&mut one, &mut cell, f, 8000, 10);
    let truncate_seq = 0;
    let told = |offset| MetaRequest::ReclaimAppends {
        appends: vec![(
            f,
            AppendPlace {
                offset,
                length: 0,
                truncate_seq,
            },
        )],
    };
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    two.sequence += 1;
    let waits = ask(&two, &mut cell, &begin(f), None).unwrap_err();
    let reply = one.call(&mut cell, f, &told(8010));
    assert_eq!(reply, Ok(MetaReply::Done));
    one.reclaim(&mut cell, 1, vec![f]);
    let waits = ask(&two, &mut cell, &begin(f), Some(waits)).unwrap_err();
    let recalled = Event::EndRecalled { ino: f };
    assert!(events(&mut one, &mut cell).contains(&recalled));
    publish(&mut one, &mut cell, f, 8010, 10);
    give_back(&mut one, &mut cell, f);
    let reply = ask(&two, &mut cell, &begin(f), Some(waits)).unwrap();
    assert!(matches!(reply, MetaReply::Appending { offset: 8020, .. }));
    let over = end(&cell, f, 8020, 10);
    two.call(&mut cell, f, &over).unwrap();

    // A session that reclaims its end too late does not get it back.
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8030));
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    let place = two.call(&mut cell, f, &begin(f)).unwrap();
    assert!(matches!(place, MetaReply::Appending { offset: 8030, .. }));
    let over = end(&cell, f, 8030, 10);
    two.call(&mut cell, f, &over).unwrap();
    let refused = one.call(&mut cell, f, &told(8030));
    assert_eq!(refused, Err(ErrorCode::UnknownLease));
    one.reclaim(&mut cell, 1, vec![f]);

    // Others opened it meanwhile: it is recalled at once.
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8040));
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    two.open(&mut cell, f, 0).unwrap();
    let reply = one.call(&mut cell, f, &told(8040));
    assert_eq!(reply, Ok(MetaReply::Done));
    assert!(events(&mut one, &mut cell).contains(&recalled));
    one.reclaim(&mut cell, 1, vec![f]);
    publish(&mut one, &mut cell, f, 8040, 10);

    // The same after others appended in a life of which it did not hear, which is forgotten.
    give_back(&mut one, &mut cell, f);
    two.close(&mut cell, f).unwrap();
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8050));
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    let place = two.call(&mut cell, f, &begin(f)).unwrap();
    assert!(matches!(place, MetaReply::Appending { offset: 8050, .. }));
    let over = end(&cell, f, 8050, 10);
    two.call(&mut cell, f, &over).unwrap();
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    let refused = one.call(&mut cell, f, &told(8050));
    assert_eq!(refused, Err(ErrorCode::UnknownLease));
    one.reclaim(&mut cell, 1, vec![f]);

    // A truncation that it has not heard of ends the loan.
    assert_eq!(lend(&mut one, &mut cell, f), Ok(8060));
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    two.truncate(&mut cell, f, 100, 0).unwrap();
    let refused = one.call(&mut cell, f, &told(100));
    assert_eq!(refused, Err(ErrorCode::UnknownLease));
    cell.assert_sound();
}
