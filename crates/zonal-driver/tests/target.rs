//! Requests of a target that are suspended where a host waits, while others run; and hosts that
//! fail.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

#[allow(dead_code, reason = "for several test programs")]
mod memory;

use memory::{
    At, BLOCK, Driven, Stored, ask, ask_guarded, begun, contents, copied_file, delete_of, kill,
    map_with_target, map_with_three_targets, map_with_two_targets, now, object, open, read_of,
    write, write_at,
};
use std::rc::Rc;
use std::sync::Arc;
use zonal_driver::at_once;
use zonal_driver::storage::ResyncTasks;
use zonal_types::{
    ClientId, Column, DataId, Epoch, ErrorCode, Fence, HolderNumber, Incarnation, Ino, MapVersion,
    Redundancy, Relocation, RelocationState, ShardId, TargetId,
};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};
use zonal_zonemap::MapEdit;

const LARGE: usize = 64 << 10;

#[test]
fn a_change_of_a_client_that_is_fenced_before_its_commit_is_not_made() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'o'; LARGE]);
    let (object, offset, length) = (object(1), 0, 100);
    let punch = StorageRequest::Punch {
        object,
        offset,
        length,
    };
    let mut under_way = Vec::new();
    for (request, payload) in [
        (write_at(1, 0), vec![b'n'; LARGE]),
        (write_at(1, 10), vec![b'n'; 100]),
        (punch, Vec::new()),
    ] {
        driven.host().stops_at.set(Some(At::Commit));
        under_way.push(begun(ask(&driven, request, payload)));
    }
    let fence = StorageRequest::Fence {
        target: TargetId(1),
        fences: vec![Fence {
            client: ClientId(5),
            holder: HolderNumber(0),
            lowest: Incarnation(2),
        }],
    };
    now(&driven, fence, &[]).unwrap();
    for change in under_way {
        assert_eq!(at_once(change).unwrap(), Err(ErrorCode::Fenced));
    }
    assert_eq!(driven.lock().units_in_flight(), 0);
    let read = now(&driven, read_of(1, LARGE), &[]);
    assert_eq!(read, Err(ErrorCode::Fenced));
    // After a restart nothing of the write is there, and the fence is.
    let driven = open(kill(&driven));
    let read = now(&driven, read_of(1, LARGE), &[]);
    assert_eq!(read, Err(ErrorCode::Fenced));
    driven.lock().check(driven.host()).unwrap();
}

#[test]
fn a_read_is_planned_again_when_its_place_was_reused_meanwhile() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'1'; LARGE]);
    driven.host().stops_at.set(Some(At::Read));
    let reading = begun(ask(&driven, read_of(1, LARGE), Vec::new()));
    now(&driven, delete_of(1), &[]).unwrap();
    // Freed space is usable from the next checkpoint on.
    at_once(driven.checkpoint()).unwrap().unwrap();
    for id in 2..20 {
        write(&driven, id, 0, &[b'2'; LARGE]);
    }
    // The object is gone: the read returns no byte of another object, and no damage.
    let (_answer, bytes) = at_once(reading).unwrap().unwrap();
    assert_eq!(bytes, b"");
    assert!(driven.host().told.borrow().is_empty());
}

#[test]
fn guarded_requests_are_carried_out_under_the_lease_only() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'1'; LARGE]);
    let guarded = |request, payload: &[u8]| {
        let asked = ask_guarded(&driven, Epoch(0), request, payload.to_vec());
        at_once(asked).unwrap()
    };
    let refused = Err(ErrorCode::NotReady);
    assert_eq!(guarded(write_at(1, 0), b"2"), refused);
    assert_eq!(guarded(read_of(1, 1), b""), refused);
    let sync = StorageRequest::Sync {
        target: TargetId(1),
    };
    assert_eq!(guarded(sync, b""), refused);
    assert_eq!(contents(&driven, 1), [b'1'; LARGE], "without a guard");
    driven.host().lease.set(true);
    guarded(write_at(1, 0), b"2").unwrap();
    assert_eq!(guarded(read_of(1, 1), b"").unwrap().1, b"2");
}

#[test]
fn a_guarded_read_that_waited_past_its_lease_gives_no_bytes() {
    let driven = open(Stored::default());
    let map = map_with_target();
    let (set, epoch) = (map.sets[0].id, map.sets[0].slots[0].slot_epoch);
    let take_out = MapEdit::TakeOut {
        target: TargetId(1),
    };
    let out = map.edited(&[take_out]).unwrap().unwrap();
    let host = driven.host();
    host.map.replace(Some(Arc::new(map)));
    host.lease.set(true);
    write(&driven, 1, 0, &[b'1'; LARGE]);
    let read = || {
        let mut object = object(1);
        object.set = set;
        let (offset, length) = (0, 100);
        let read = StorageRequest::Read {
            object,
            offset,
            length,
        };
        ask_guarded(&driven, epoch, read, Vec::new())
    };
    assert_eq!(at_once(read()).unwrap().unwrap().1, [b'1'; 100]);

    host.stops_at.set(Some(At::Read));
    let paused = begun(read());
    host.lease.set(false);
    assert_eq!(at_once(paused).unwrap(), Err(ErrorCode::NotReady));

    host.lease.set(true);
    host.stops_at.set(Some(At::Read));
    let paused = begun(read());
    host.map.replace(Some(Arc::new(out)));
    assert_eq!(at_once(paused).unwrap(), Err(ErrorCode::NotReady));
    assert_eq!(at_once(read()).unwrap(), Err(ErrorCode::StaleEpoch));
}

/// A file whose copy on this target is stale.
fn stale_file(driven: &Driven, copy: Vec<u8>) {
    let files = copied_file(driven, copy, vec![TargetId(1)]);
    let host = driven.host();
    host.shard_answers.replace([files, MetaReply::Done].into());
}

#[test]
fn a_stale_copy_is_made_equal_to_the_other_one() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'o'; 8 * LARGE]);
    let mut copy = vec![b'n'; 5 * LARGE + 10];
    copy[LARGE..2 * LARGE].fill(0);
    stale_file(&driven, copy.clone());
    let round = at_once(driven.resync(ShardId(1), &ResyncTasks))
        .unwrap()
        .unwrap();
    assert_eq!((round.mended, round.left), (1, 0));
    assert_eq!(round.bytes, copy.len() as u64);
    let mut found = contents(&driven, 1);
    assert!(found.drain(copy.len()..).all(|byte| byte == 0));
    assert_eq!(found, copy);
    let asked = driven.host().asked.take();
    let as_of = driven.host().map.borrow().as_ref().unwrap().version;
    match asked.as_slice() {
        [
            MetaRequest::StaleFiles { .. },
            MetaRequest::MendCopy {
                ino: Ino(5),
                target: TargetId(1),
                as_of: by,
                allocated_delta,
                ..
            },
        ] => {
            assert_eq!(*by, as_of);
            // Four of eight times 64 KiB stay, and one block of the end.
            assert!(*allocated_delta < 0);
            let freed = allocated_delta.unsigned_abs();
            assert_eq!(freed, (4 * LARGE - BLOCK) as u64);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_with_one_whole_copy_are_filled_before_others() {
    let driven = open(Stored::default());
    let MetaReply::Files { files, .. } = copied_file(&driven, vec![b'n'; LARGE], vec![]) else {
        panic!("files");
    };
    let map = map_with_three_targets();
    let set = map.sets.iter().find(|set| set.width() == 3).unwrap();
    let file = |ino: u64, copies: u16| {
        let mut data = files[0].1.clone();
        let component = &mut data.layout.components[0];
        component.data_id = DataId(ino);
        (component.set, component.start_column) = (set.id, Column(0));
        component.redundancy = Redundancy::Copies { copies, step: 1 };
        (data.layout.stale, data.as_of) = (vec![TargetId(1)], map.version);
        (Ino(ino), data)
    };
    let answer = || MetaReply::Files {
        files: vec![file(4, 3), file(5, 2)],
        next: None,
    };
    let host = driven.host();
    host.map.replace(Some(Arc::new(map.clone())));
    let answers = [answer(), MetaReply::Done, answer(), MetaReply::Done];
    host.shard_answers.replace(answers.into());
    let round = at_once(driven.resync(ShardId(1), &ResyncTasks))
        .unwrap()
        .unwrap();
    assert_eq!((round.mended, round.left), (2, 0));
    let mended = host
        .asked
        .take()
        .into_iter()
        .filter_map(|asked| match asked {
            MetaRequest::MendCopy { ino, .. } => Some(ino),
            _ => None,
        });
    assert_eq!(mended.collect::<Vec<_>>(), [Ino(5), Ino(4)]);
}

#[test]
fn a_change_of_a_client_is_not_replaced_by_older_bytes_of_the_other_copy() {
    let driven = open(Stored::default());
    stale_file(&driven, vec![b'o'; LARGE]);
    let host = driven.host();
    host.stops_at.set(Some(At::ReadCopy));
    let filling = begun(driven.resync(ShardId(1), &ResyncTasks));
    // The client changes the other copy first.
    host.copy.borrow_mut()[10..20].fill(b'n');
    write(&driven, 1, 10, &[b'n'; 10]);
    let round = at_once(filling).unwrap().unwrap();
    assert_eq!((round.mended, round.left), (1, 0));
    assert_eq!(contents(&driven, 1), *host.copy.borrow());
}

/// The answer of a shard about a file whose object has left this target for the other one.
fn left_file(driven: &Driven, as_of: MapVersion) -> MetaReply {
    let MetaReply::Files { mut files, next } = copied_file(driven, Vec::new(), Vec::new()) else {
        panic!("files");
    };
    let data = &mut files[0].1;
    let component = &mut data.layout.components[0];
    let own = component.start_column;
    component.start_column = Column(1 - own.0);
    component.redundancy = Redundancy::Copies { copies: 1, step: 0 };
    component.relocations = vec![Relocation {
        object: Column(0),
        set: component.set,
        slot: own.0,
        state: RelocationState::Leftover,
        as_of: data.as_of,
    }];
    data.as_of = as_of;
    MetaReply::Files { files, next }
}

#[test]
fn what_is_left_of_an_object_is_deleted_once_no_client_uses_it() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'o'; 8 * LARGE]);
    let host = driven.host();
    let map = map_with_two_targets();
    let early = left_file(&driven, map.version);
    host.shard_answers.replace([early].into());
    let round = at_once(driven.resync(ShardId(1), &ResyncTasks))
        .unwrap()
        .unwrap();
    assert_eq!((round.mended, round.left, round.unfenced), (0, 1, 1));
    assert_eq!(contents(&driven, 1), [b'o'; 8 * LARGE]);

    let target = TargetId(1);
    let fenced = map.edited(&[MapEdit::RenewEpochs { target }]);
    let fenced = Arc::new(fenced.unwrap().unwrap());
    // A layout that is older than the fence may lack a relocation that brings the object back.
    for (as_of, counts) in [(map.version, (0, 1)), (fenced.version, (1, 0))] {
        let answer = left_file(&driven, as_of);
        host.map.replace(Some(fenced.clone()));
        let answers = [answer, MetaReply::Done].into();
        host.shard_answers.replace(answers);
        host.asked.take();
        let round = at_once(driven.resync(ShardId(1), &ResyncTasks))
            .unwrap()
            .unwrap();
        assert_eq!((round.mended, round.left), counts);
    }
    assert_eq!(contents(&driven, 1), []);
    let asked = host.asked.take();
    let Some(MetaRequest::MendCopy { relocated, .. }) = asked.last() else {
        panic!("{asked:?}");
    };
    assert_eq!(*relocated, [(DataId(1), Column(0))]);
    // It may come back.
    write(&driven, 1, 0, &[b'n'; 100]);
    assert_eq!(contents(&driven, 1), [b'n'; 100]);
}

#[test]
fn a_target_that_is_full_gives_up_what_moves_to_it() {
    let driven = open(Stored::default());
    let mut object = 2;
    while now(&driven, write_at(object, 0), &[b'o'; LARGE]).is_ok() {
        object += 1;
    }
    stale_file(&driven, vec![b'n'; 64 * LARGE]);
    let answers = [MetaReply::Done];
    driven.host().shard_answers.borrow_mut().extend(answers);
    let round = at_once(driven.resync(ShardId(1), &ResyncTasks))
        .unwrap()
        .unwrap();
    assert_eq!((round.mended, round.left), (0, 1));
    let asked = driven.host().asked.take();
    let is_given_up = matches!(
        asked.as_slice(),
        [_, MetaRequest::MendCopy { full: true, .. }]
    );
    assert!(is_given_up, "{asked:?}");
}

#[test]
fn a_change_that_waited_past_a_fence_is_not_made() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'o'; LARGE]);
    let map = Arc::new(map_with_two_targets());
    let set = map.sets.iter().find(|set| set.width() == 2).unwrap();
    let own = set.slots.iter().position(|slot| slot.target == TargetId(1));
    let own = own.unwrap();
    let epoch = set.slots[own].slot_epoch;
    let host = driven.host();
    host.map.replace(Some(map.clone()));
    host.fences.replace(Some((Vec::new(), true)));
    host.lease.set(true);
    let mut request = write_at(1, 0);
    if let StorageRequest::Write { object, .. } = &mut request {
        (object.set, object.slot) = (set.id, own as u16);
    }
    let again = request.clone();
    host.stops_at.set(Some(At::Commit));
    let paused = begun(ask_guarded(&driven, epoch, request, vec![b'n'; LARGE]));
    let target = TargetId(1);
    let fenced = map.edited(&[MapEdit::RenewEpochs { target }]);
    host.map.replace(Some(Arc::new(fenced.unwrap().unwrap())));
    assert_eq!(at_once(paused).unwrap(), Err(ErrorCode::NotReady));
    assert_eq!(contents(&driven, 1), [b'o'; LARGE]);
    let again = at_once(ask_guarded(&driven, epoch, again, vec![b'n'; LARGE]));
    assert_eq!(again.unwrap(), Err(ErrorCode::StaleEpoch));
}

#[test]
fn a_layout_that_may_lack_marks_fills_nothing() {
    let driven = open(Stored::default());
    stale_file(&driven, vec![b'o'; LARGE]);
    let out = MapEdit::TakeOut {
        target: TargetId(2),
    };
    let back = MapEdit::PutBack {
        target: TargetId(2),
    };
    let host = driven.host();
    let map = host.map.take().unwrap();
    let map = map.edited(&[out]).unwrap().unwrap();
    let map = map.edited(&[back]).unwrap().unwrap();
    assert!(map.version > MapVersion(0));
    host.map.replace(Some(Arc::new(map)));
    let round = at_once(driven.resync(ShardId(1), &ResyncTasks))
        .unwrap()
        .unwrap();
    assert_eq!((round.mended, round.left), (0, 1));
    assert!(contents(&driven, 1).is_empty());
}

#[test]
fn damaged_blocks_are_replaced_by_those_of_another_copy() {
    let driven = open(Stored::default());
    let length = LARGE + 100;
    write(&driven, 1, 0, &vec![b'a'; length]);
    at_once(driven.checkpoint()).unwrap().unwrap();
    let answer = copied_file(&driven, vec![b'a'; length], Vec::new());
    let host = driven.host();
    host.damage();
    let read = |offset| {
        let (object, length) = (object(1), BLOCK as u32);
        let read = StorageRequest::Read {
            object,
            offset,
            length,
        };
        now(&driven, read, &[])
    };
    let last = LARGE as u64;
    for offset in [0, last] {
        assert_eq!(read(offset), Err(ErrorCode::Corrupt));
    }
    // Clients replace one of them, and damage that nobody has met stays.
    write(&driven, 1, 0, &[b'n'; BLOCK]);
    host.shard_answers.replace([answer.clone(), answer].into());
    assert_eq!(at_once(driven.repair_damage()).unwrap(), 1);
    assert_eq!(read(0).unwrap().1, [b'n'; BLOCK]);
    assert_eq!(read(last).unwrap().1, [b'a'; 100]);
    assert_eq!(read(BLOCK as u64), Err(ErrorCode::Corrupt));
    driven.lock().check(driven.host()).unwrap();
}

#[test]
fn damaged_blocks_fail_the_read_and_are_reported_once() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'1'; LARGE]);
    driven.host().damage();
    let read = now(&driven, read_of(1, LARGE), &[]);
    assert_eq!(read, Err(ErrorCode::Corrupt));
    // A write that needs the damaged block.
    let wrote = now(&driven, write_at(1, 10), b"n");
    assert_eq!(wrote, Err(ErrorCode::Corrupt));
    let told = driven.host().told.borrow();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|text| text.starts_with("damaged: ")));
    assert_eq!(driven.lock().units_in_flight(), 0);
}

#[test]
fn writes_during_a_checkpoint_survive_a_kill_before_and_after_its_end() {
    for ends in [false, true] {
        let driven = open(Stored::default());
        for block in 0..8 {
            write(&driven, 1, block * BLOCK as u64, &[b'o'; 1000]);
        }
        driven.host().stops_at.set(Some(At::Checkpoint));
        let checkpoint = begun(driven.checkpoint());
        write(&driven, 1, 100, &[b'n'; 1000]);
        write(&driven, 2, 0, &[b'2'; LARGE]);
        now(&driven, delete_of(2), &[]).unwrap();
        write(&driven, 3, 0, &[b'3'; LARGE]);
        let before = [contents(&driven, 1), contents(&driven, 3)];
        if ends {
            at_once(checkpoint).unwrap().unwrap();
        } else {
            drop(checkpoint);
        }
        let driven = open(kill(&driven));
        driven.lock().check(driven.host()).unwrap();
        let after = [contents(&driven, 1), contents(&driven, 3)];
        assert!(after == before, "the checkpoint ends: {ends}");
        assert_eq!(contents(&driven, 2), b"");
    }
}

#[test]
fn many_small_writes_pass_their_bound_by_checkpoints() {
    let driven = open(Stored::default());
    for step in 0..200_u64 {
        write(&driven, 1, step % 100 * BLOCK as u64, &[step as u8; 10]);
    }
    let (pending, most) = driven.lock().pending_bytes();
    assert!(pending <= most);
    assert!(contents(&driven, 1)[99 * BLOCK..].starts_with(&[199; 10]));
}

#[test]
fn after_an_append_that_failed_nothing_is_served() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, b"one");
    driven.host().log_fails.set(true);
    assert_eq!(now(&driven, write_at(1, 0), b"two"), Err(ErrorCode::Io));
    driven.host().log_fails.set(false);
    // The target is ahead of its log.
    assert_eq!(now(&driven, read_of(1, 3), &[]), Err(ErrorCode::Io));
    let target = TargetId(1);
    let synced = now(&driven, StorageRequest::Sync { target }, &[]);
    assert_eq!(synced, Err(ErrorCode::Io));
    assert!(driven.failure().unwrap().contains("takes no record"));
    assert_eq!(contents(&open(kill(&driven)), 1), b"one");
}

#[test]
fn existing_segments_are_filled_where_no_new_one_can_be_made() {
    let driven = open(Stored::default());
    write(&driven, 1, 0, &[b'1'; LARGE]);
    driven.host().full_from.set(Some(1));
    let written = (2..100).take_while(|id| now(&driven, write_at(*id, 0), &[b'x'; LARGE]).is_ok());
    let count = written.count();
    assert!((8..16).contains(&count), "{count}");
    assert_eq!(driven.failure(), None, "a full disk does not end service");
    // Holes of 64 KiB: longer writes would need the segment that cannot be made.
    for id in (1..=8).step_by(2) {
        now(&driven, delete_of(id), &[]).unwrap();
    }
    at_once(driven.checkpoint()).unwrap().unwrap();
    write(&driven, 150, 0, &[b'y'; 2 * LARGE]);
    // There is room again.
    driven.host().full_from.set(None);
    write(&driven, 200, 0, &[b'x'; 4 * LARGE]);
    assert_eq!(contents(&driven, 2), [b'x'; LARGE]);
    assert_eq!(driven.lock().units_in_flight(), 0);
}

#[test]
fn a_write_without_space_uses_space_that_a_concurrent_checkpoint_frees() {
    let driven = Rc::new(open(Stored::default()));
    driven.host().full_from.set(Some(1));
    let fits = |id: u64| now(&driven, write_at(id, 0), &[b'x'; LARGE]).is_ok();
    let full = (1..100).find(|id| !fits(*id)).unwrap();
    for id in 1..full {
        now(&driven, delete_of(id), &[]).unwrap();
    }
    let other = Rc::downgrade(&driven);
    let beside = move || {
        at_once(other.upgrade().unwrap().checkpoint())
            .unwrap()
            .unwrap();
    };
    driven.host().beside_space.replace(Some(Box::new(beside)));
    write(&driven, 200, 0, &[b'n'; LARGE]);
    assert!(driven.host().beside_space.borrow().is_none(), "it was run");
}
