//! Orders of changes: a target refuses a change that meets bytes of a higher order. It does so
//! after a restart, too, and where it has filled the bytes from another copy.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test ends where something is not as it should be; its numbers are small"
)]

#[allow(dead_code, reason = "for several test programs")]
mod memory;

use memory::{Driven, NOW_US, Stored, ask_ordered, copied_file, kill, object, open, write_at};
use zonal_driver::at_once;
use zonal_driver::storage::ResyncTasks;
use zonal_types::limits::ORDER_AHEAD_US_MAX;
use zonal_types::{ErrorCode, ShardId, TargetId};
use zonal_wire::{MetaReply, StorageReply, StorageRequest};

const LENGTH: usize = 8_192;

fn change(driven: &Driven, client: u64, order: u64, request: StorageRequest) -> StorageReply {
    let payload = match &request {
        StorageRequest::Write { .. } => vec![client as u8; 100],
        _ => Vec::new(),
    };
    let asked = ask_ordered(driven, (client, order), request, payload);
    at_once(asked).unwrap().unwrap().0
}

fn write(driven: &Driven, client: u64, order: u64, at: u64) -> StorageReply {
    change(driven, client, order, write_at(1, at))
}

fn read(driven: &Driven) -> (Vec<u8>, u64) {
    let request = memory::read_of(1, LENGTH);
    match memory::now(driven, request, &[]).unwrap() {
        (StorageReply::Read { order, .. }, bytes) => (bytes, order),
        other => panic!("{other:?}"),
    }
}

fn is_written(reply: &StorageReply) -> bool {
    matches!(reply, StorageReply::Written { .. })
}

#[test]
fn a_late_change_is_refused_with_the_order_that_it_needs() {
    let driven = open(Stored::default());
    assert!(is_written(&write(&driven, 8, 70, 0)));
    assert_eq!(
        write(&driven, 7, 60, 50),
        StorageReply::Overtaken { order: 70 }
    );
    assert!(is_written(&write(&driven, 7, 60, 100)), "they do not meet");
    assert_eq!(read(&driven).1, 70);
    let (object, offset, length) = (object(1), 90, 20);
    let punch = StorageRequest::Punch {
        object,
        offset,
        length,
    };
    let late = change(&driven, 9, 65, punch.clone());
    assert_eq!(late, StorageReply::Overtaken { order: 70 });
    assert!(is_written(&change(&driven, 9, 80, punch)));
    assert_eq!(
        write(&driven, 8, 79, 0),
        StorageReply::Overtaken { order: 80 }
    );
    let zero = StorageRequest::Allocate {
        object,
        offset: 0,
        length: 20,
        zero: true,
    };
    assert!(is_written(&change(&driven, 9, 90, zero)));
    assert_eq!(
        write(&driven, 8, 85, 0),
        StorageReply::Overtaken { order: 90 }
    );
    driven.lock().check(driven.host()).unwrap();
}

#[test]
fn a_hole_of_an_object_that_is_not_there_has_its_order() {
    let driven = open(Stored::default());
    let (object, offset, length) = (object(1), 0, 4_096);
    let punch = StorageRequest::Punch {
        object,
        offset,
        length,
    };
    assert!(is_written(&change(&driven, 9, 80, punch)));
    let late = write(&driven, 7, 70, 0);
    assert_eq!(late, StorageReply::Overtaken { order: 80 });
    let driven = open(kill(&driven));
    let late = write(&driven, 7, 70, 0);
    assert_eq!(late, StorageReply::Overtaken { order: 80 });
    driven.lock().check(driven.host()).unwrap();
}

#[test]
fn orders_survive_a_kill() {
    let driven = open(Stored::default());
    assert!(is_written(&write(&driven, 8, 70, 0)));
    let driven = open(kill(&driven));
    assert_eq!(
        write(&driven, 7, 60, 0),
        StorageReply::Overtaken { order: 70 }
    );
    assert!(is_written(&write(&driven, 7, 71, 0)));
    assert_eq!(read(&driven).0, [7; 100]);
}

#[test]
fn an_order_far_ahead_of_the_calendar_is_refused() {
    let driven = open(Stored::default());
    for order in [NOW_US + ORDER_AHEAD_US_MAX + 1, u64::MAX] {
        let refused = write(&driven, 8, order, 0);
        assert_eq!(refused, StorageReply::Overtaken { order: NOW_US });
    }
    assert!(is_written(&write(
        &driven,
        8,
        NOW_US + ORDER_AHEAD_US_MAX,
        0
    )));
}

#[test]
fn changes_of_files_with_one_copy_have_no_order() {
    let driven = open(Stored::default());
    for client in [8, 7, 8] {
        assert!(is_written(&write(&driven, client, 0, 0)));
    }
    assert_eq!(read(&driven), (vec![8; 100], 0));
}

/// The copy of a file at this target is stale, and the other one has bytes of order 70.
fn fill(driven: &Driven) {
    let listed = copied_file(driven, vec![b'o'; 200], vec![TargetId(1)]);
    let host = driven.host();
    host.copy_order.set(70);
    host.shard_answers.replace([listed, MetaReply::Done].into());
    let round = at_once(driven.resync(ShardId(1), &ResyncTasks))
        .unwrap()
        .unwrap();
    assert_eq!((round.mended, round.left), (1, 0));
}

#[test]
fn filled_bytes_have_the_order_of_the_copy() {
    let driven = open(Stored::default());
    assert!(is_written(&write(&driven, 8, 30, 4_096)));
    fill(&driven);
    let (bytes, order) = read(&driven);
    assert!(bytes.iter().all(|byte| *byte != 8), "an old byte is left");
    assert_eq!((&bytes[..200], order), (&[b'o'; 200][..], 70));
    assert_eq!(
        write(&driven, 7, 69, 0),
        StorageReply::Overtaken { order: 70 }
    );
    assert!(is_written(&write(&driven, 7, 70, 0)), "the copy had it");
    let driven = open(kill(&driven));
    assert_eq!(
        write(&driven, 7, 70, 150),
        StorageReply::Overtaken { order: 70 }
    );
    let late = memory::now(&driven, write_at(1, 0), b"n");
    assert_ne!(late, Err(ErrorCode::Overtaken), "it has no order");
}
