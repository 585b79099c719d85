//! Orphans: an inode without a name lives for each session that has it open, whenever and however
//! the session opened it.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{ErrorNumber, MetaReply, MetaRequest};

/// Longer than a removed inode can be brought back.
const LATER_MS: u64 = 2_000;

fn open_request(client: &Client, ino: Ino) -> MetaRequest {
    MetaRequest::Open {
        who: client.who.clone(),
        ino,
        open_flags: 0,
    }
}

/// A cell with an orphan of `first`, which `second` has opened after its name was removed.
/// `is_small`: the open's reply has its bytes.
fn shared_orphan(is_small: bool) -> (Cell, Client, Client, Ino) {
    let (mut cell, mut first, home) = start();
    let mut second = cell.client(2);
    let (f, _) = first.create_open(&mut cell, home, "f").unwrap();
    if is_small {
        first.write_inline(&mut cell, f, 0, b"bytes").unwrap();
        first.report(&mut cell, f, 5).unwrap();
    }
    first.create(&mut cell, home, "new", 0o644).unwrap();
    first.moved(&mut cell, (home, "new"), (home, "f"));
    cell.pass_ms(LATER_MS);
    second.open(&mut cell, f, 0).unwrap();
    (cell, first, second, f)
}

fn assert_lives(cell: &mut Cell, client: &mut Client, ino: Ino) {
    cell.pass_ms(LATER_MS);
    cell.assert_sound();
    assert_eq!(client.attr(cell, ino).unwrap().nlink, 0);
}

fn assert_goes_with(cell: &mut Cell, client: &mut Client, ino: Ino) {
    client.close(cell, ino).unwrap();
    cell.pass_ms(LATER_MS);
    cell.assert_sound();
    assert_eq!(client.attr(cell, ino), Err(ErrorCode::Stale));
}

#[test]
fn a_session_that_opens_an_orphan_later_holds_it_after_others_close() {
    for is_small in [false, true] {
        let (mut cell, mut first, mut second, f) = shared_orphan(is_small);
        first.close(&mut cell, f).unwrap();
        assert_lives(&mut cell, &mut second, f);
        assert_goes_with(&mut cell, &mut second, f);
    }
}

#[test]
fn each_open_counts() {
    let (mut cell, mut first, mut second, f) = shared_orphan(false);
    second.open(&mut cell, f, 0).unwrap();
    first.close(&mut cell, f).unwrap();
    second.close(&mut cell, f).unwrap();
    assert_lives(&mut cell, &mut second, f);
    assert_goes_with(&mut cell, &mut second, f);
}

#[test]
fn an_orphan_outlives_the_session_of_its_first_holder() {
    let (mut cell, mut first, mut second, f) = shared_orphan(false);
    cell.pass_ms(40_000);
    second.attr(&mut cell, f).unwrap();
    cell.pass_ms(30_000);
    cell.tick();
    assert_eq!(first.attr(&mut cell, f), Err(ErrorCode::UnknownSession));
    assert_lives(&mut cell, &mut second, f);
    assert_goes_with(&mut cell, &mut second, f);
}

#[test]
fn a_restart_forgets_no_later_holder() {
    for first_tells_first in [false, true] {
        let (mut cell, mut first, mut second, f) = shared_orphan(false);
        cell.restart(1);
        if first_tells_first {
            first.holds_nothing(&mut cell, 1);
            second.reclaim(&mut cell, 1, vec![f]);
        } else {
            second.reclaim(&mut cell, 1, vec![f]);
            first.holds_nothing(&mut cell, 1);
        }
        assert_lives(&mut cell, &mut second, f);
        assert_goes_with(&mut cell, &mut second, f);
    }
}

#[test]
fn a_file_survives_the_loss_of_the_record_of_its_open() {
    for first_tells_first in [false, true] {
        let (mut cell, mut first, home) = start();
        let mut second = cell.client(2);
        let (f, _) = first.create_open(&mut cell, home, "f").unwrap();
        first.unlink(&mut cell, home, "f").unwrap();
        let kept = cell.stores[1].kv.clone();
        second.open(&mut cell, f, 0).unwrap();
        first.close(&mut cell, f).unwrap();
        cell.stores[1].kv = kept;
        cell.restart(1);
        if first_tells_first {
            first.holds_nothing(&mut cell, 1);
            second.reclaim(&mut cell, 1, vec![f]);
        } else {
            second.reclaim(&mut cell, 1, vec![f]);
            first.holds_nothing(&mut cell, 1);
        }
        assert_lives(&mut cell, &mut second, f);
        assert_goes_with(&mut cell, &mut second, f);
    }
}

#[test]
fn a_client_that_opens_its_session_anew_holds_what_it_has_open() {
    let (mut cell, mut first, second, f) = shared_orphan(false);
    cell.evict(1, second.caller(1));
    let mut second = cell.client(2);
    second.reclaim(&mut cell, 1, vec![f]);
    first.close(&mut cell, f).unwrap();
    assert_lives(&mut cell, &mut second, f);
    // The last holder's session ends, too, and its client reclaims at once.
    cell.evict(1, second.caller(1));
    let mut second = cell.client(2);
    second.reclaim(&mut cell, 1, vec![f]);
    assert_lives(&mut cell, &mut second, f);
    assert_goes_with(&mut cell, &mut second, f);
}

#[test]
fn an_open_repeated_after_a_restart_holds_the_orphan() {
    let (mut cell, mut first, home) = start();
    let mut second = cell.client(2);
    let (f, _) = first.create_open(&mut cell, home, "f").unwrap();
    first.unlink(&mut cell, home, "f").unwrap();
    let request = open_request(&second, f);
    second.sequence += 1;
    let answer = cell.send(1, second.caller(1), &request);
    cell.restart(1);
    first.holds_nothing(&mut cell, 1);
    let refused = cell.send(1, second.caller(1), &request);
    let untold = ErrorNumber(ErrorCode::UnknownSession);
    assert_eq!(refused, MetaReply::Failed { code: untold });
    second.holds_nothing(&mut cell, 1);
    cell.pass_ms(LATER_MS);
    assert_eq!(cell.send(1, second.caller(1), &request), answer);
    assert_lives(&mut cell, &mut second, f);
    assert_goes_with(&mut cell, &mut second, f);
}

#[test]
fn a_tmpfile_created_again_after_a_restart_exists() {
    let (mut cell, mut client, home) = start();
    let request = MetaRequest::Tmpfile {
        who: client.who.clone(),
        parent: home,
        mode: 0o600,
        umask: 0,
        zone: client.zone,
        node: zonal_types::NodeId(0),
        exclusive: false,
    };
    client.sequence += 1;
    let answer = cell.send(1, client.caller(1), &request);
    let MetaReply::Opened { entry, .. } = &answer else {
        panic!("{answer:?}");
    };
    cell.restart(1);
    client.holds_nothing(&mut cell, 1);
    cell.pass_ms(LATER_MS);
    assert_eq!(cell.send(1, client.caller(1), &request), answer);
    assert_lives(&mut cell, &mut client, entry.ino);
    assert_goes_with(&mut cell, &mut client, entry.ino);
}

#[test]
fn a_repeated_open_counts_besides_reclaimed_opens() {
    let (mut cell, mut first, home) = start();
    let mut second = cell.client(2);
    let f = first.create(&mut cell, home, "f", 0o644).unwrap();
    first.report(&mut cell, f, 10_000).unwrap();
    second.open(&mut cell, f, 0).unwrap();
    let request = MetaRequest::Open {
        who: second.who.clone(),
        ino: f,
        open_flags: zonal_wire::meta::flags::O_TRUNC | 2,
    };
    second.sequence += 1;
    let answer = cell.send(1, second.caller(1), &request);
    cell.restart(1);
    first.holds_nothing(&mut cell, 1);
    second.reclaim(&mut cell, 1, vec![f]);
    assert_eq!(cell.send(1, second.caller(1), &request), answer);
    second.close(&mut cell, f).unwrap();
    first.unlink(&mut cell, home, "f").unwrap();
    assert_lives(&mut cell, &mut second, f);
    assert_goes_with(&mut cell, &mut second, f);
}
