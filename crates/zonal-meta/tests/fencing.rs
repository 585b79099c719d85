//! A session that ends keeps its locks until targets have acknowledged the fence of its client, or
//! their time is over.
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod common;

use common::{Cell, Client, name, whole_file};
use zonal_meta::Caller;
use zonal_types::limits::{FENCE_WAIT_MS, SESSION_TERM_MS};
use zonal_types::{ClientId, ErrorCode, HolderNumber, Ino, ZoneId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{MetaReply, MetaRequest, NO_SLOT};

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}

fn ask(cell: &mut Cell, client: &Client, request: &MetaRequest) -> MetaReply {
    let caller = Caller {
        slot: NO_SLOT,
        ..client.caller(1)
    };
    cell.send(1, caller, request)
}

fn lock(cell: &mut Cell, client: &Client, ino: Ino) -> MetaReply {
    let request = MetaRequest::Lock {
        ino,
        range: whole_file(),
        wait: false,
        waiter: 0,
        settled: 0,
    };
    ask(cell, client, &request)
}

fn get(ino: Ino) -> MetaRequest {
    MetaRequest::GetAttr { ino, data: false }
}

/// A client with a locked file, whose term is over, and another client.
fn expired() -> (Cell, Client, Client, Ino) {
    let mut cell = Cell::new();
    let mut one = cell.client(1);
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let file = one.create(&mut cell, home, "f", 0o644).unwrap();
    assert_eq!(lock(&mut cell, &one, file), MetaReply::Done);
    cell.pass_ms(SESSION_TERM_MS);
    let two = cell.client(2);
    cell.tick_without_targets();
    (cell, one, two, file)
}

#[test]
fn locks_are_kept_until_every_target_has_acknowledged_the_fence() {
    let (mut cell, one, two, file) = expired();
    let fences = cell.stores[1].shard.fences();
    assert!(!fences.is_empty());
    for fences in fences.values() {
        assert_eq!(fences.len(), 1);
        assert_eq!(fences[0].client, one.identity.client);
        assert_eq!(fences[0].lowest, one.identity.incarnation.next());
    }
    // It gets no answer, and cannot come back as it was.
    let gone = failed(ErrorCode::UnknownSession);
    assert_eq!(ask(&mut cell, &one, &get(file)), gone);
    let open = MetaRequest::OpenSession {
        zone: ZoneId(1),
        name: name("one").to_string(),
    };
    let as_it_was = Caller {
        identity: one.identity,
        ..common::none()
    };
    let fenced = failed(ErrorCode::Fenced);
    assert_eq!(cell.send(1, as_it_was, &open), fenced);
    let mut last = None;
    for (target, fences) in &fences {
        let blocked = failed(ErrorCode::WouldBlock);
        assert_eq!(lock(&mut cell, &two, file), blocked, "{last:?}");
        let store = &mut cell.stores[1];
        let changes = store.shard.fenced(*target, fences);
        common::apply(&mut store.kv, &changes);
        cell.tick_without_targets();
        last = Some(*target);
    }
    assert_eq!(lock(&mut cell, &two, file), MetaReply::Done);
    assert!(cell.stores[1].shard.fences().is_empty());
    cell.assert_sound();
}

#[test]
fn a_session_waits_for_a_silent_target_for_a_limited_time_and_the_target_is_fenced_later() {
    let (mut cell, _one, two, file) = expired();
    // Over a restart, too: the session is still ending.
    cell.restart(1);
    two.clone().holds_nothing(&mut cell, 1);
    cell.tick_without_targets();
    assert_eq!(
        ask(&mut cell, &_one, &get(file)),
        failed(ErrorCode::UnknownSession)
    );
    assert!(!cell.stores[1].shard.fences().is_empty());
    cell.pass_ms(FENCE_WAIT_MS);
    let due = cell.stores[1].shard.poll_deadline().unwrap();
    assert!(due <= cell.now.instant);
    cell.tick_without_targets();
    assert_eq!(lock(&mut cell, &two, file), MetaReply::Done);
    cell.restart(1);
    let waiting = cell.stores[1].shard.fences();
    assert!(!waiting.is_empty(), "told later");
    // A starting target asks the shard itself.
    for (target, expected) in waiting {
        let none = (ClientId(0), HolderNumber(0));
        let told = cell.stores[1].shard.fences_of(target, none);
        let last = (expected[0].client, expected[0].holder);
        let (fences, end) = (expected, true);
        assert_eq!(told, MetaReply::Fences { fences, end });
        let more = cell.stores[1].shard.fences_of(target, last);
        let fences = Vec::new();
        assert_eq!(more, MetaReply::Fences { fences, end });
    }
    cell.acknowledge_fences();
    cell.restart(1);
    assert!(cell.stores[1].shard.fences().is_empty());
    cell.assert_sound();
}

#[test]
fn a_session_that_holds_nothing_or_is_closed_is_not_fenced() {
    let mut cell = Cell::new();
    let mut one = cell.client(1);
    let idle = cell.client(2);
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let file = one.create(&mut cell, home, "f", 0o644).unwrap();
    assert_eq!(lock(&mut cell, &one, file), MetaReply::Done);
    let closed = ask(&mut cell, &one, &MetaRequest::CloseSession);
    assert_eq!(closed, MetaReply::Done);
    cell.pass_ms(SESSION_TERM_MS);
    cell.tick_without_targets();
    assert!(cell.stores[1].shard.fences().is_empty());
    let gone = failed(ErrorCode::UnknownSession);
    assert_eq!(ask(&mut cell, &idle, &get(file)), gone);
}

#[test]
fn a_client_returns_in_its_next_incarnation_while_the_former_one_ends() {
    let (mut cell, one, two, file) = expired();
    let mut identity = one.identity;
    identity.incarnation = identity.incarnation.next();
    let again = cell.client_as(identity);
    assert_ne!(again.sessions[1], one.sessions[1]);
    assert_eq!(lock(&mut cell, &again, file), failed(ErrorCode::WouldBlock));
    cell.tick();
    assert_eq!(lock(&mut cell, &again, file), MetaReply::Done);
    assert_eq!(lock(&mut cell, &two, file), failed(ErrorCode::WouldBlock));
    // It has the newer session.
    assert_eq!(cell.client_as(identity).sessions, again.sessions);
}

/// Reclaims the session's state, as a client does in a new session; returns the files whose locks
/// are lost.
fn reclaim(cell: &mut Cell, client: &Client, file: Ino) -> Vec<Ino> {
    let locks = vec![(file, whole_file())];
    let opens = Vec::new();
    match ask(cell, client, &MetaRequest::Reclaim { opens, locks }) {
        MetaReply::Done => Vec::new(),
        MetaReply::Reclaimed { lost } => lost,
        other => panic!("{other:?}"),
    }
}

#[test]
fn locks_of_an_ended_session_are_lost_even_where_nobody_holds_them_now() {
    let (mut cell, one, two, file) = expired();
    let mut identity = one.identity;
    identity.incarnation = identity.incarnation.next();
    cell.tick();
    // Another client had it meanwhile.
    assert_eq!(lock(&mut cell, &two, file), MetaReply::Done);
    cell.evict(1, two.caller(1));
    let again = cell.client_as(identity);
    assert_eq!(reclaim(&mut cell, &again, file), [file]);
    assert_eq!(
        reclaim(&mut cell, &again, file),
        [file],
        "its answer was lost"
    );
    let third = cell.client(3);
    assert_eq!(lock(&mut cell, &third, file), MetaReply::Done);
    let closed = ask(&mut cell, &third, &MetaRequest::CloseSession);
    assert_eq!(closed, MetaReply::Done);
    // It keeps locks from now on, over reclaims and over restarts of the shard.
    assert_eq!(lock(&mut cell, &again, file), MetaReply::Done);
    assert_eq!(reclaim(&mut cell, &again, file), []);
    cell.restart(1);
    for _answer_is_lost in 0..2 {
        assert_eq!(reclaim(&mut cell, &again, file), []);
    }
    let third = cell.client(4);
    assert_eq!(lock(&mut cell, &third, file), failed(ErrorCode::WouldBlock));
}

#[test]
fn a_session_silent_after_a_restart_is_fenced_before_others_get_locks() {
    let mut cell = Cell::new();
    let (mut one, two) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let file = one.create(&mut cell, home, "f", 0o644).unwrap();
    assert_eq!(lock(&mut cell, &one, file), MetaReply::Done);
    cell.restart(1);
    two.clone().holds_nothing(&mut cell, 1);
    let before = cell.now.instant;
    assert_eq!(lock(&mut cell, &two, file), MetaReply::Done);
    let waited = cell.now.instant.ms_since(before);
    assert!((8_000..9_000).contains(&waited), "{waited} ms");
    assert_eq!(cell.fenced, [one.identity.client]);
    // Over another restart, and even where the other client has released the lock, it does not get
    // it again.
    let closed = ask(&mut cell, &two, &MetaRequest::CloseSession);
    assert_eq!(closed, MetaReply::Done);
    cell.restart(1);
    let gone = failed(ErrorCode::UnknownSession);
    assert_eq!(ask(&mut cell, &one, &get(file)), gone);
    let mut identity = one.identity;
    identity.incarnation = identity.incarnation.next();
    let again = cell.client_as(identity);
    assert_eq!(reclaim(&mut cell, &again, file), [file]);
    cell.assert_sound();
}

#[test]
fn a_silent_session_without_locks_stays_after_a_restart() {
    let mut cell = Cell::new();
    let (mut one, two) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let file = one.create(&mut cell, home, "f", 0o644).unwrap();
    cell.restart(1);
    two.clone().holds_nothing(&mut cell, 1);
    let before = cell.now.instant;
    assert_eq!(lock(&mut cell, &two, file), MetaReply::Done);
    let waited = cell.now.instant.ms_since(before);
    assert!((5_500..6_000).contains(&waited), "{waited} ms");
    assert_eq!(cell.fenced, []);
    assert_eq!(reclaim(&mut cell, &one, file), [file]);
    assert!(one.attr(&mut cell, file).is_ok());
}

#[test]
fn a_shard_with_files_in_other_zones_fences_their_targets_too() {
    for (placement, targets) in [("zone", 3), ("cell", 5)] {
        let mut cell = Cell::new();
        let mut one = cell.client(1);
        let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
        let value = format!("placement={placement}");
        one.setxattr(&mut cell, home, "zonal.layout", value.as_bytes(), 0)
            .unwrap();
        let file = one.create(&mut cell, home, "f", 0o644).unwrap();
        assert_eq!(lock(&mut cell, &one, file), MetaReply::Done);
        // The shard knows it after a restart as well.
        cell.restart(1);
        cell.pass_ms(2 * SESSION_TERM_MS);
        cell.tick_without_targets();
        let fences = cell.stores[1].shard.fences();
        assert_eq!(fences.len(), targets, "{placement}");
    }
}
