//! Caching: the terms that replies grant, and the recalls that a change waits for.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::{Outcome, WaitOn};
use zonal_types::Ino;
use zonal_types::limits::CACHE_TERM_MS;
use zonal_wire::meta::{Entry, Event, NewKind};
use zonal_wire::{MetaReply, MetaRequest};

const TERM: u32 = CACHE_TERM_MS as u32;

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

fn poll(cell: &mut Cell, client: &Client, acked: u64) -> (Vec<(u64, Event)>, Vec<WaitOn>) {
    let boot = cell.stores[1].shard.boot();
    match poll_as(cell, client, boot, acked, 0) {
        Outcome::Reply {
            reply: MetaReply::Events { events, .. },
            wake,
            ..
        } => (events, wake),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directorys_lease_covers_its_entries_and_their_attributes() {
    let (mut cell, mut one, _, home) = start_two();
    let f = one.create(&mut cell, home, "f", 0o644).unwrap();
    let entry = look(&mut cell, &mut one, home, "f").unwrap();
    assert_eq!((entry.entry_ms, entry.attr_ms), (TERM, TERM));
    assert_eq!(look(&mut cell, &mut one, home, "absent"), Err(TERM));
    one.link(&mut cell, f, home, "g").unwrap();
    let entry = look(&mut cell, &mut one, home, "f").unwrap();
    assert_eq!((entry.entry_ms, entry.attr_ms), (TERM, 0), "two links");
    // The kernel checks who may follow a cached name, so a closed directory is cached like any
    // other.
    one.chmod(&mut cell, home, 0o700).unwrap();
    let entry = look(&mut cell, &mut one, home, "f").unwrap();
    assert_eq!(entry.entry_ms, TERM);
}

#[test]
fn a_change_waits_only_for_sessions_that_cache() {
    let (mut cell, mut one, mut two, home) = start_two();
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
fn a_waiting_change_runs_after_the_acknowledgement() {
    let (mut cell, mut one, mut two, home) = start_two();
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
        on: WaitOn::Acknowledgement(_),
        wake,
        ..
    } = outcome
    else {
        panic!("{outcome:?}")
    };
    assert_eq!(wake, [WaitOn::Events(one.sessions[1])]);
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
    let (_, wake) = poll(&mut cell, &one, events[0].0);
    assert_eq!(wake, [WaitOn::Acknowledgement(one.sessions[1])]);
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
fn a_repeated_reply_grants_no_caching() {
    let (mut cell, mut one, _, home) = start_two();
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
fn a_reply_to_a_change_of_entries_has_the_directorys_new_attributes() {
    let (mut cell, mut one, mut two, first) = start_two();
    let who = one.who.clone();
    let kind = NewKind::File;
    one.sequence += 1;
    let make = one.create_request(first, "f", kind.clone(), 0o644, true);
    let reply = cell.send(1, one.caller(1), &make);
    assert_eq!(reply.split_directory().1, None, "a first-level directory");
    let home = one.mkdir(&mut cell, first, "home").unwrap();
    let make = one.create_request(home, "f", kind, 0o644, true);
    let requests = [
        make,
        MetaRequest::Mkdir {
            who: who.clone(),
            parent: home,
            name: name("d"),
            mode: 0o755,
            umask: 0,
            zone: zonal_types::ZoneId(1),
        },
        MetaRequest::Unlink {
            who: who.clone(),
            parent: home,
            name: name("f"),
        },
        MetaRequest::Rmdir {
            who,
            parent: home,
            name: name("d"),
        },
    ];
    for request in &requests {
        one.sequence += 1;
        let reply = cell.send(1, one.caller(1), request);
        let (_plain, dir) = reply.split_directory();
        let asked = MetaRequest::GetAttr {
            ino: home,
            data: false,
        };
        let MetaReply::Attr { attr, attr_ms, .. } = cell.send(1, one.caller(1), &asked) else {
            panic!("no attributes")
        };
        assert_eq!(dir, Some(zonal_wire::DirAfter { attr, attr_ms }));
        assert_eq!(attr_ms, TERM);
        let repeated = cell.send(1, one.caller(1), request);
        assert_eq!(repeated.split_directory().1, None, "it may be older");
    }
    // The attributes in the reply are recalled, too.
    let before = cell.now.instant;
    two.create(&mut cell, home, "g", 0o644).unwrap();
    assert!(cell.now.instant.ms_since(before) >= 5_000);
}

#[test]
fn an_append_changes_data_whatever_its_clock_says() {
    let (mut cell, mut one, mut two, home) = start_two();
    let f = one.create(&mut cell, home, "f", 0o644).unwrap();
    look(&mut cell, &mut one, home, "f").unwrap();
    let begin = MetaRequest::AppendBegin {
        ino: f,
        length: 10,
        limit: 0,
    };
    let MetaReply::Appending { offset, .. } = two.call(&mut cell, f, &begin).unwrap() else {
        panic!("no place")
    };
    let end = MetaRequest::AppendEnd {
        ino: f,
        offset,
        reserved: 10,
        length: 10,
        mtime: zonal_types::Timestamp {
            seconds: 1,
            nanos: 0,
        },
        allocated_delta: 0,
        kill_suid: false,
        inline: None,
    };
    two.sequence += 1;
    let store = &mut cell.stores[1];
    let outcome = store
        .shard
        .handle(&store.kv, cell.now, two.caller(1), &end, None);
    assert!(matches!(outcome, Outcome::Wait { .. }), "{outcome:?}");
    let (events, _) = poll(&mut cell, &one, 0);
    let is_told = |event: &Event| matches!(event, Event::Invalidate { inodes, data: true, .. } if inodes.contains(&f));
    assert!(events.iter().any(|(_, event)| is_told(event)), "{events:?}");
}

#[test]
fn after_a_restart_changes_wait_for_what_was_granted_before() {
    let (mut cell, mut one, mut two, home) = start_two();
    look(&mut cell, &mut one, home, "f").unwrap_err();
    cell.restart(1);
    two.holds_nothing(&mut cell, 1);
    let before = cell.now.instant;
    two.create(&mut cell, home, "f", 0o644).unwrap();
    assert!(cell.now.instant.ms_since(before) >= 5500);
}

#[test]
fn after_a_restart_a_change_waits_only_for_sessions_that_have_not_dropped_their_caches() {
    let (mut cell, one, mut two, home) = start_two();
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
fn a_waiting_change_runs_once_the_last_session_has_dropped_its_cache() {
    let (mut cell, one, mut two, home) = start_two();
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
    let (mut cell, mut one, mut two, home) = start_two();
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
fn a_session_that_is_ended_for_its_client_leaves_what_it_may_have_cached() {
    for (end, waits) in [
        (MetaRequest::CloseSession, false),
        (MetaRequest::EvictSession, true),
    ] {
        let (mut cell, mut one, mut two, home) = start_two();
        look(&mut cell, &mut one, home, "f").unwrap_err();
        let reply = cell.send(1, one.caller(1), &end);
        assert_eq!(reply, MetaReply::Done);
        let before = cell.now.instant;
        two.create(&mut cell, home, "f", 0o644).unwrap();
        let waited = cell.now.instant.ms_since(before);
        assert_eq!(waited >= 5000, waits, "{end:?}: {waited} ms");
        let request = MetaRequest::GetAttr {
            ino: home,
            data: false,
        };
        let reply = cell.send(1, one.caller(1), &request);
        assert!(matches!(reply, MetaReply::Failed { .. }), "{reply:?}");
    }
}
