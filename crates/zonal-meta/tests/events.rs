//! Polls for events: which wait, which get events, and how a client learns of another boot.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::{Outcome, WaitOn};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::meta::Event;
use zonal_wire::{LockRange, MetaReply, MetaRequest};

/// Requests a lock of the whole file, as waiter 5.
fn waiting_lock(ino: Ino) -> MetaRequest {
    MetaRequest::Lock {
        ino,
        range: whole_file(),
        wait: true,
        waiter: 5,
        settled: 0,
    }
}

#[test]
fn a_poll_waits_for_events_and_reports_granted_locks() {
    let (mut cell, one, two, home) = start_two();
    let lock = waiting_lock(home);
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
    assert!(wake.contains(&WaitOn::Events(two.sessions[1])));
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
    let (mut cell, mut one, two, home) = start_two();
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
    let lock = waiting_lock(home);
    assert_eq!(cell.send(1, one.caller(1), &lock), MetaReply::Done);
    cell.send(1, two.caller(1), &lock);
    let range = LockRange {
        number: 1,
        ..whole_file()
    };
    let release = MetaRequest::Unlock { ino: home, range };
    one.call(&mut cell, home, &release).unwrap();
    assert_eq!(waits(&mut cell, boot, 0), Some(1), "the grant");
    assert_eq!(waits(&mut cell, boot + 1, 57), Some(1), "still there");
    assert_eq!(waits(&mut cell, boot, 1), None);
}
