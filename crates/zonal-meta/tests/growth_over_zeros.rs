//! Files extended over zeros: truncation numbers that disown bytes behind the end
//! (`op/truncate_number.rs`).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_types::{ErrorCode, FileData, Ino, truncation};
use zonal_wire::meta::flags::O_RDWR;
use zonal_wire::{MetaReply, MetaRequest};

/// Two clients, and a file of the first one that no session has open.
fn file(size: u64) -> (Cell, Client, Client, Ino) {
    let mut cell = Cell::new();
    let (mut one, two) = (cell.client(1), cell.client(2));
    let home = one.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let f = one.create(&mut cell, home, "f", 0o644).unwrap();
    one.report(&mut cell, f, size).unwrap();
    (cell, one, two, f)
}

fn data(client: &mut Client, cell: &mut Cell, ino: Ino) -> FileData {
    match client.call(cell, ino, &MetaRequest::GetAttr { ino, data: true }) {
        Ok(MetaReply::Attr { data, .. }) => data.unwrap(),
        other => panic!("{other:?}"),
    }
}

/// Number and size of the last truncation.
fn last(client: &mut Client, cell: &mut Cell, ino: Ino) -> (u64, u64) {
    let data = data(client, cell, ino);
    (data.truncate_seq, data.truncate_size)
}

fn close(client: &mut Client, cell: &mut Cell, ino: Ino) {
    let closed = client.call(cell, ino, &MetaRequest::Close { inos: vec![ino] });
    assert_eq!(closed, Ok(MetaReply::Done));
}

/// True where the session was told that bytes behind the end are disowned.
fn disown(client: &mut Client, cell: &mut Cell, ino: Ino) -> Result<bool, ErrorCode> {
    ask(client, cell, ino, false)
}

fn ask(client: &mut Client, cell: &mut Cell, ino: Ino, reserves: bool) -> Result<bool, ErrorCode> {
    match client.call(cell, ino, &MetaRequest::DisownBehind { ino, reserves })? {
        MetaReply::Attr { data: told, .. } => {
            let now = data(client, cell, ino);
            assert!(told.as_ref().is_none_or(|told| *told == now));
            Ok(told.is_some())
        }
        other => panic!("{other:?}"),
    }
}

fn confirm(client: &mut Client, cell: &mut Cell, ino: Ino) {
    let truncate_seq = data(client, cell, ino).truncate_seq;
    let confirm = MetaRequest::ConfirmTruncate {
        ino,
        truncate_seq,
        allocated_delta: 0,
    };
    client.call(cell, ino, &confirm).unwrap();
}

#[test]
fn growth_disowns_bytes_behind_the_old_end() {
    let (mut cell, mut one, mut two, f) = file(8000);
    assert_eq!(one.truncate(&mut cell, f, 50_000, 0), Ok(false), "no push");
    let (number, at) = last(&mut one, &mut cell, f);
    assert!(truncation::is_disowning(number) && at == 8000);
    // The second number truncates there, too: columns have not seen the first.
    assert_eq!(two.truncate(&mut cell, f, 90_000, 0), Ok(false));
    let (again, at) = last(&mut one, &mut cell, f);
    assert!(again > number && at == 8000);
    assert_eq!(two.truncate(&mut cell, f, 90_000, 0), Ok(false), "the same");
    assert_eq!(last(&mut one, &mut cell, f), (again, 8000));
    cell.assert_sound();
}

#[test]
fn bytes_written_since_the_last_number_are_not_truncated_by_the_next() {
    let (mut cell, mut one, mut two, f) = file(8000);
    one.truncate(&mut cell, f, 50_000, 0).unwrap();
    two.report(&mut cell, f, 20_000).unwrap();
    let before = last(&mut one, &mut cell, f);
    let open = Err(ErrorCode::TruncateUnconfirmed);
    assert_eq!(one.truncate(&mut cell, f, 90_000, 0), open);
    assert_eq!(one.truncate(&mut cell, f, 30_000, 0), open, "down, too");
    assert_eq!(
        disown(&mut one, &mut cell, f),
        Err(ErrorCode::TruncateUnconfirmed)
    );
    assert_eq!(last(&mut one, &mut cell, f), before);
    confirm(&mut one, &mut cell, f);
    assert_eq!(one.truncate(&mut cell, f, 90_000, 0), Ok(false));
    assert_eq!(last(&mut one, &mut cell, f).1, 50_000);
    // A truncation to before all bytes that a column may keep needs no earlier number.
    two.report(&mut cell, f, 70_000).unwrap();
    assert_eq!(one.truncate(&mut cell, f, 50_000, 0), Ok(true));
    assert_eq!(
        one.truncate(&mut cell, f, 10, 0),
        open,
        "pushed, not confirmed"
    );
    confirm(&mut one, &mut cell, f);
    let (number, at) = last(&mut one, &mut cell, f);
    assert!(!truncation::is_disowning(number) && at == 50_000);
    cell.assert_sound();
}

#[test]
fn a_session_that_knows_all_bytes_behind_the_end_needs_no_new_number() {
    let (mut cell, mut one, mut two, old) = file(8000);
    let home = one.lookup(&mut cell, Ino::ROOT, "home").unwrap();
    let (f, _) = one.create_open(&mut cell, home, "new").unwrap();
    one.report(&mut cell, f, 8000).unwrap();
    one.truncate(&mut cell, f, 50_000, 0).unwrap();
    assert_eq!(disown(&mut one, &mut cell, f), Ok(true));
    assert_eq!(last(&mut one, &mut cell, f).0, 0, "it made the file");
    one.open(&mut cell, old, O_RDWR).unwrap();
    assert_eq!(disown(&mut one, &mut cell, old), Ok(true));
    let numbered = last(&mut one, &mut cell, old);
    assert_eq!(numbered.1, 8000);
    one.report(&mut cell, old, 9000).unwrap();
    one.truncate(&mut cell, old, 50_000, 0).unwrap();
    assert_eq!(last(&mut one, &mut cell, old), numbered, "it has asked");
    // Another session that opened it may have written there.
    two.open(&mut cell, f, O_RDWR).unwrap();
    assert_eq!(disown(&mut one, &mut cell, f), Ok(false));
    one.truncate(&mut cell, f, 60_000, 0).unwrap();
    assert_eq!(last(&mut one, &mut cell, f).0, 0, "or may write there now");
    close(&mut two, &mut cell, f);
    one.truncate(&mut cell, f, 70_000, 0).unwrap();
    assert_eq!(last(&mut one, &mut cell, f).1, 60_000);
    // So may another session once it is closed.
    close(&mut one, &mut cell, old);
    confirm(&mut one, &mut cell, old);
    one.truncate(&mut cell, old, 60_000, 0).unwrap();
    assert_eq!(last(&mut one, &mut cell, old).1, 50_000);
    cell.assert_sound();
}

#[test]
fn no_number_is_given_before_all_sessions_have_told_their_state() {
    let (mut cell, mut one, mut two, f) = file(8000);
    cell.restart(1);
    one.holds_nothing(&mut cell, 1);
    assert_eq!(disown(&mut one, &mut cell, f), Ok(false));
    two.reclaim(&mut cell, 1, vec![f]);
    one.truncate(&mut cell, f, 50_000, 0).unwrap();
    assert_eq!(last(&mut one, &mut cell, f).0, 0);
    close(&mut two, &mut cell, f);
    assert_eq!(disown(&mut one, &mut cell, f), Ok(true));
    assert_eq!(last(&mut one, &mut cell, f).1, 50_000);
}

#[test]
fn reserved_space_is_not_disowned_and_only_files_are_accepted() {
    let (mut cell, mut one, _two, f) = file(8000);
    let report = MetaRequest::ReportWrite {
        ino: f,
        size: 0,
        truncate_seq: 0,
        mtime: None,
        allocated_delta: 1 << 20,
        kill_suid: false,
        inline: None,
        sync: false,
    };
    assert_eq!(ask(&mut one, &mut cell, f, true), Ok(true));
    one.call(&mut cell, f, &report).unwrap();
    let numbered = last(&mut one, &mut cell, f);
    assert_eq!(disown(&mut one, &mut cell, f), Ok(false));
    assert_eq!(ask(&mut one, &mut cell, f, true), Ok(false));
    one.truncate(&mut cell, f, 50_000, 0).unwrap();
    assert_eq!(last(&mut one, &mut cell, f), numbered);
    confirm(&mut one, &mut cell, f);
    one.truncate(&mut cell, f, 2 << 20, 0).unwrap();
    one.truncate(&mut cell, f, 3 << 20, 0).unwrap();
    assert_eq!(
        last(&mut one, &mut cell, f).1,
        2 << 20,
        "all within the file"
    );
    // Bytes that a given-up append counted are no reservation.
    one.truncate(&mut cell, f, 100, 0).unwrap();
    confirm(&mut one, &mut cell, f);
    one.call(&mut cell, f, &report).unwrap();
    assert_eq!(disown(&mut one, &mut cell, f), Ok(true));
    let home = one.lookup(&mut cell, Ino::ROOT, "home").unwrap();
    assert_eq!(disown(&mut one, &mut cell, home), Err(ErrorCode::Invalid));
}

#[test]
fn a_report_from_before_the_number_hears_of_it() {
    let (mut cell, mut one, mut two, f) = file(8000);
    one.truncate(&mut cell, f, 50_000, 0).unwrap();
    let late = MetaRequest::ReportWrite {
        ino: f,
        size: 60_000,
        truncate_seq: 0,
        mtime: None,
        allocated_delta: 4096,
        kill_suid: false,
        inline: None,
        sync: false,
    };
    let told = match two.call(&mut cell, f, &late).unwrap() {
        MetaReply::Attr { attr, data, .. } => (attr.size, data),
        other => panic!("{other:?}"),
    };
    let now = data(&mut one, &mut cell, f);
    assert_eq!(told, (50_000, Some(now)));
}
