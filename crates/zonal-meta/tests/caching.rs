//! What replies let clients cache, and what a change waits for.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::{Outcome, WaitOn};
use zonal_types::limits::CACHE_TERM_MS;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::meta::{Entry, Event, NewKind};
use zonal_wire::{MetaReply, MetaRequest};

const TERM: u32 = CACHE_TERM_MS as u32;

fn start() -> (Cell, Client, Client, Ino) {
    let mut cell = Cell::with(55, true);
    let mut one = cell.client(1);
    let two = cell.client(2);
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    (cell, one, two, home)
}

fn look(cell: &mut Cell, client: &mut Client, dir: Ino, text: &str) -> Result<Entry, u32> {
    let request = MetaRequest::Lookup {
        who: client.who.clone(),
        parent: dir,
        name: name(text),
    };
    match client.call(cell, dir, &request).unwrap() {
        MetaReply::Entry { entry } => Ok(entry),
        MetaReply::NoEntry { entry_ms } => Err(entry_ms),
        other => panic!("{other:?}"),
    }
}

/// A poll with what it says of our boot and what it acknowledges.
fn poll_as(cell: &mut Cell, client: &Client, boot: u64, acked: u64, wait_ms: u32) -> Outcome {
    let store = &mut cell.stores[1];
    let request = MetaRequest::PollEvents {
        boot,
        acked,
        wait_ms,
    };
    store
        .shard
        .handle(&store.kv, cell.now, client.caller(1), &request, None)
}

fn poll(cell: &mut Cell, client: &Client, acked: u64) -> (Vec<(u64, Event)>, bool) {
    let boot = cell.stores[1].shard.boot();
    match poll_as(cell, client, boot, acked, 0) {
        Outcome::Reply {
            reply: MetaReply::Events { events, .. },
            recheck,
            ..
        } => (events, recheck),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_directorys_lease_covers_may_be_cached() {
    let (mut cell, mut one, _, home) = start();
    let f = one.create(&mut cell, home, "f", 0o644).unwrap();
    let entry = look(&mut cell, &mut one, home, "f").unwrap();
    assert_eq!((entry.entry_ms, entry.attr_ms), (TERM, TERM));
    assert_eq!(look(&mut cell, &mut one, home, "absent"), Err(TERM));
    one.link(&mut cell, f, home, "g").unwrap();
    let entry = look(&mut cell, &mut one, home, "f").unwrap();
    assert_eq!((entry.entry_ms, entry.attr_ms), (TERM, 0), "two links");
    // Who may follow a cached name is the kernel's to check, so a closed directory is cached like any other.
    one.chmod(&mut cell, home, 0o700).unwrap();
    let entry = look(&mut cell, &mut one, home, "f").unwrap();
    assert_eq!(entry.entry_ms, TERM);
}

#[test]
fn a_change_waits_for_those_who_cached_and_no_longer() {
    let (mut cell, mut one, mut two, home) = start();
    one.create(&mut cell, home, "f", 0o644).unwrap();
    look(&mut cell, &mut one, home, "f").unwrap();
    one.create(&mut cell, home, "own", 0o644).unwrap();
    assert_eq!(
        cell.last_waits, 0,
        "one's own caches are one's own business"
    );
    // Unanswered: the change waits until the lease is over.
    let before = cell.now.instant;
    two.create(&mut cell, home, "g", 0o644).unwrap();
    assert!(cell.last_waits > 0);
    let waited = cell.now.instant.ms_since(before);
    assert!((5000..=5600).contains(&waited), "{waited}");
    two.create(&mut cell, home, "h", 0o644).unwrap();
    assert_eq!(cell.last_waits, 0, "only once");
}

#[test]
fn an_acknowledgement_lets_the_change_go_on() {
    let (mut cell, mut one, mut two, home) = start();
    one.create(&mut cell, home, "f", 0o644).unwrap();
    let entry = look(&mut cell, &mut one, home, "f").unwrap();
    two.sequence += 1;
    let request = MetaRequest::Unlink {
        who: two.who.clone(),
        parent: home,
        name: name("f"),
    };
    let caller = two.caller(1);
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &request, None);
    let Outcome::Wait {
        attempt,
        on: WaitOn::Recalls,
        wake,
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!(wake, [one.sessions[1]]);
    let again = look(&mut cell, &mut one, home, "f").unwrap();
    assert_eq!(
        (again.ino, again.entry_ms),
        (entry.ino, 0),
        "nothing new while a change waits"
    );
    let (events, _) = poll(&mut cell, &one, 0);
    assert!(
        matches!(&events[0].1, Event::Invalidate { entries, inodes, .. } if *entries == home && inodes.contains(&entry.ino))
    );
    let (_, recheck) = poll(&mut cell, &one, events[0].0);
    assert!(recheck);
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &request, Some(attempt));
    let Outcome::Reply {
        reply: MetaReply::Done,
        effect,
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    apply(&mut cell.stores[1].kv, &effect);
    assert_eq!(
        look(&mut cell, &mut one, home, "f"),
        Err(TERM),
        "granted again"
    );
    cell.assert_sound();
}

#[test]
fn a_repeat_promises_nothing() {
    let (mut cell, mut one, _, home) = start();
    one.sequence += 1;
    let request = one.create_request(home, "f", NewKind::File, 0o644, false);
    let first = entry_of(cell.send(1, one.caller(1), &request)).unwrap();
    assert_eq!(first.entry_ms, TERM);
    let repeat = entry_of(cell.send(1, one.caller(1), &request)).unwrap();
    assert_eq!(
        (repeat.ino, repeat.entry_ms, repeat.attr_ms),
        (first.ino, 0, 0)
    );
}

#[test]
fn after_a_restart_changes_wait_for_what_was_granted_before() {
    let (mut cell, mut one, mut two, home) = start();
    look(&mut cell, &mut one, home, "f").unwrap_err();
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    let before = cell.now.instant;
    two.create(&mut cell, home, "f", 0o644).unwrap();
    assert!(cell.now.instant.ms_since(before) >= 5500);
}

#[test]
fn after_a_restart_a_change_waits_only_for_those_who_have_not_dropped_what_they_cached() {
    let (mut cell, one, mut two, home) = start();
    let three = cell.client(3);
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    let before = cell.now.instant;
    for client in [&one, &three] {
        let reply = cell.send(1, client.caller(1), &MetaRequest::DropLeases);
        assert_eq!(reply, MetaReply::Done);
    }
    two.create(&mut cell, home, "f", 0o644).unwrap();
    assert_eq!(cell.now.instant, before);

    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    cell.send(1, one.caller(1), &MetaRequest::DropLeases);
    two.create(&mut cell, home, "g", 0o644).unwrap();
    assert!(cell.now.instant.ms_since(before) >= 5500);
}

#[test]
fn a_waiting_change_goes_on_when_the_last_has_dropped_what_it_cached() {
    let (mut cell, one, mut two, home) = start();
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    two.sequence += 1;
    let request = two.create_request(home, "f", NewKind::File, 0o644, false);
    let store = &mut cell.stores[1];
    let caller = two.caller(1);
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &request, None);
    let Outcome::Wait { attempt, .. } = outcome else {
        panic!("{outcome:?}")
    };
    let dropped = MetaRequest::DropLeases;
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, one.caller(1), &dropped, None);
    assert!(matches!(outcome, Outcome::Reply { recheck: true, .. }));
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, caller, &request, Some(attempt));
    assert!(matches!(outcome, Outcome::Reply { .. }), "{outcome:?}");
}

#[test]
fn abandoned_changes_block_nothing() {
    let (mut cell, mut one, mut two, home) = start();
    look(&mut cell, &mut one, home, "f").unwrap_err();
    two.sequence += 1;
    let request = two.create_request(home, "f", NewKind::File, 0o644, false);
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, two.caller(1), &request, None);
    let Outcome::Wait { attempt, .. } = outcome else {
        panic!("{outcome:?}")
    };
    store.shard.abandon(attempt);
    assert_eq!(look(&mut cell, &mut one, home, "f"), Err(TERM));
}

#[test]
fn events_wait_and_locks_are_told() {
    let (mut cell, one, two, home) = start();
    let range = whole_file();
    let lock = MetaRequest::Lock {
        ino: home,
        range,
        wait: true,
        waiter: 5,
    };
    assert_eq!(cell.send(1, one.caller(1), &lock), MetaReply::Done);
    let queued = MetaReply::Failed {
        code: zonal_wire::ErrorNumber(ErrorCode::LockQueued),
    };
    assert_eq!(cell.send(1, two.caller(1), &lock), queued);
    let store = &mut cell.stores[1];
    let request = MetaRequest::PollEvents {
        boot: store.shard.boot(),
        acked: 0,
        wait_ms: 10_000,
    };
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, two.caller(1), &request, None);
    let Outcome::Wait {
        attempt,
        on: WaitOn::Events(_),
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    let outcome = store.shard.handle(
        &store.kv,
        cell.now,
        one.caller(1),
        &MetaRequest::CloseSession,
        None,
    );
    let Outcome::Reply { wake, effect, .. } = outcome else {
        panic!()
    };
    assert!(wake.contains(&two.sessions[1]));
    apply(&mut store.kv, &effect);
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, two.caller(1), &request, Some(attempt));
    let Outcome::Reply {
        reply: MetaReply::Events { events, .. },
        ..
    } = outcome
    else {
        panic!()
    };
    assert_eq!(
        events,
        [(
            1,
            Event::LockGranted {
                ino: home,
                waiter: 5
            }
        )]
    );
}

#[test]
fn a_poll_that_has_heard_of_another_boot_is_answered_at_once_and_acknowledges_nothing() {
    let (mut cell, mut one, two, home) = start();
    let waits = |cell: &mut Cell, boot, acked| match poll_as(cell, &two, boot, acked, 10_000) {
        Outcome::Reply {
            reply: MetaReply::Events { events, .. },
            ..
        } => Some(events.len()),
        Outcome::Wait { .. } => None,
        other => panic!("{other:?}"),
    };
    let boot = cell.stores[1].shard.boot();
    assert_eq!(waits(&mut cell, 0, 0), Some(0), "its first poll");
    assert_eq!(waits(&mut cell, boot + 1, 0), Some(0), "before a restart");
    assert_eq!(waits(&mut cell, boot, 0), None);
    let range = whole_file();
    let lock = MetaRequest::Lock {
        ino: home,
        range,
        wait: true,
        waiter: 5,
    };
    assert_eq!(cell.send(1, one.caller(1), &lock), MetaReply::Done);
    cell.send(1, two.caller(1), &lock);
    let release = MetaRequest::Unlock { ino: home, range };
    one.call(&mut cell, home, &release).unwrap();
    assert_eq!(waits(&mut cell, boot, 0), Some(1), "the grant");
    assert_eq!(waits(&mut cell, boot + 1, 57), Some(1), "still there");
    assert_eq!(waits(&mut cell, boot, 1), None);
}

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
