//! Single properties of a target: fullness, concurrency, costs, maps.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod harness;
use harness::*;
use zonal_object::*;
use zonal_testkit::Rng;
use zonal_types::ErrorCode;

#[test]
fn a_full_target_still_overwrites_cuts_and_deletes() {
    let mut shell = Shell::new(CONFIG);
    let chunk = Rng(3).bytes(128 * 1024);
    let mut written = 0;
    let error = loop {
        match shell.write(object(written / 4), CUT, written % 4 * 131_072, &chunk) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, ErrorCode::NoSpace);
    assert_eq!(shell.target.reclaimable(), 0);
    assert!(shell.target.statfs().free < 131_072);
    assert_eq!(
        shell.write(object(99), CUT, 0, b"small"),
        Err(ErrorCode::NoSpace)
    );
    shell.check();
    // Overwriting goes on for ever, with a checkpoint now and then.
    for round in 0..40 {
        if shell.write(object(round % 4), CUT, 0, &chunk) == Err(ErrorCode::NoSpace) {
            assert!(shell.target.reclaimable() > 0);
            shell.checkpoint(true);
            shell.write(object(round % 4), CUT, 0, &chunk).unwrap();
        }
        shell.write(object(round % 4), CUT, 4000, b"edge").unwrap();
    }
    let cut = Cut {
        seq: 1,
        bytes: 100_001,
    };
    shell.run_edit(Edit::truncate(object(0), cut)).unwrap();
    shell.check();
    let all: Vec<_> = (0..100).map(object).collect();
    shell.delete(all).unwrap();
    assert_eq!(
        shell.write(object(150), CUT, 0, &chunk),
        Err(ErrorCode::NoSpace),
        "freed space waits for the checkpoint"
    );
    shell.checkpoint(true);
    shell.write(object(150), CUT, 0, &chunk).unwrap();
    shell.delete(vec![object(150)]).unwrap();
    shell.checkpoint(true);
    shell.check();
    assert_eq!(shell.target.statfs(), Shell::new(CONFIG).target.statfs());
}

#[test]
fn small_writes_wait_for_a_checkpoint_when_too_many_are_pending() {
    let mut shell = Shell::new(CONFIG);
    let mut count = 0;
    while shell.write(object(1), CUT, count * 8192, b"x").is_ok() {
        count += 1;
    }
    assert_eq!(count, 128);
    assert!(shell.target.wants_checkpoint());
    assert_eq!(
        shell.write(object(1), CUT, 0, b"y"),
        Err(ErrorCode::Overloaded)
    );
    shell.flush_pending(64);
    shell.write(object(1), CUT, 0, b"y").unwrap();
    assert_eq!(shell.read(object(1), CUT, 0, 2).unwrap(), b"y\0");
    shell.check();
}

#[test]
fn edges_of_one_block_written_at_once_are_merged() {
    let (mut shell, mut want) = filled();
    let request = |offset, length| WriteRequest {
        attempt: Attempt::default(),
        object: object(1),
        cut: CUT,
        offset,
        length,
    };
    let mut first = shell.plan(request(10, 5)).unwrap();
    let mut second = shell.plan(request(20, 5)).unwrap();
    let mut third = shell.plan(request(4096 + 30, 5)).unwrap();
    shell.commit(&mut second, b"22222").unwrap();
    shell.commit(&mut first, b"11111").unwrap();
    // The base of the third moves between its plan and its commit.
    let new = Rng(4).bytes(65_536);
    shell.write(object(1), CUT, 4096, &new).unwrap();
    shell.commit(&mut third, b"33333").unwrap();
    want[10..15].fill(b'1');
    want[20..25].fill(b'2');
    want[4096..4096 + 65_536].copy_from_slice(&new);
    want[4096 + 30..4096 + 35].fill(b'3');
    assert_eq!(shell.read(object(1), CUT, 0, MIB), Ok(want));
    shell.check();
}

#[test]
fn a_write_during_a_checkpoint_wins() {
    let mut shell = Shell::new(CONFIG);
    shell.write(object(1), CUT, 0, &[1; 8192]).unwrap();
    shell.write(object(2), CUT, 0, &[1; 100]).unwrap();
    let plan = shell.target.plan_checkpoint(100);
    shell.write_checkpoint(&plan);
    shell.write(object(1), CUT, 4096, &[2; 4096]).unwrap();
    shell.delete(vec![object(2)]).unwrap();
    shell.commit_flush(plan);
    shell.check();
    assert_eq!(shell.target.units_in_flight(), 0);
    shell.freeze(true);
    shell.kill();
    let want = [[1; 4096], [2; 4096]].concat();
    assert_eq!(shell.read(object(1), CUT, 0, 9000), Ok(want));
    assert_eq!(shell.target.statfs().objects, 1);
    shell.check();
}

#[test]
fn a_map_with_a_limit_says_how_far_it_goes() {
    let mut shell = Shell::new(CONFIG);
    for index in 0..10u64 {
        shell.write(object(1), CUT, index * 8192, b"x").unwrap();
        if index == 5 {
            shell.checkpoint(true);
        }
    }
    let (mut at, mut found) = (0, Vec::new());
    loop {
        let map = shell
            .target
            .map(&shell.store, object(1), CUT, at, u64::MAX, 3)
            .unwrap();
        assert!(map.ranges.len() <= 3);
        found.extend(map.ranges);
        at = map.known_to;
        if at == u64::MAX {
            break;
        }
    }
    assert_eq!(found.len(), 10);
    assert!(
        found
            .iter()
            .zip(0..)
            .all(|((start, _), index)| *start == index * 8192)
    );
}

#[test]
fn the_hot_paths_cost_what_their_comments_say() {
    let (mut shell, payload) = filled();
    let cost = |shell: &mut Shell, offset, bytes: &[u8]| {
        shell.store.gets.set(0);
        shell.write(object(1), CUT, offset, bytes).unwrap();
        let record = shell.log.last().unwrap();
        (
            shell.store.gets.get(),
            record.changes.len(),
            record.note.len(),
        )
    };
    let (gets, puts, note) = cost(&mut shell, 0, &payload);
    assert_eq!((gets, puts), (6, 4));
    assert!(note < 100);
    let (gets, puts, note) = cost(&mut shell, 8192, &payload[..4096]);
    assert_eq!((gets, puts), (3, 0));
    assert!(note < 4096 + 100);
    shell.store.gets.set(0);
    let plan = shell
        .target
        .plan_read(&shell.store, object(1), CUT, 0, MIB)
        .unwrap();
    assert_eq!(shell.store.gets.get(), 5);
    assert_eq!(plan.buffer_len(), MIB);
    assert!(plan.reads().count() <= 3);
}

#[test]
fn a_change_that_was_sent_again_is_refused_when_it_comes_late() {
    let (mut shell, mut want) = filled();
    let request = |number, offset: u64, length| WriteRequest {
        attempt: Attempt { sender: 7, number },
        object: object(1),
        cut: CUT,
        offset,
        length,
    };
    let older = Rng(5).bytes(65_536);
    let newer = Rng(6).bytes(65_536);
    // One that stands still between its plan and its commit, large and small; another that is not even read from its socket.
    let mut large = shell.plan(request(0, 0, older.len())).unwrap();
    shell.carry_out(&mut large, &older);
    let mut small = shell.plan(request(0, 10, 5)).unwrap();
    // Sent again, and written over.
    for bytes in [&older, &newer] {
        let mut again = shell.plan(request(1, 0, bytes.len())).unwrap();
        shell.carry_out(&mut again, bytes);
        shell.commit(&mut again, bytes).unwrap();
    }
    want[..newer.len()].copy_from_slice(&newer);
    let late = Err(ErrorCode::Superseded);
    assert_eq!(shell.commit(&mut large, &older).map(drop), late);
    assert_eq!(shell.commit(&mut small, b"older").map(drop), late);
    assert_eq!(shell.plan(request(0, 0, 5)).map(drop), late);
    let sent_by = |edit: Edit, number| edit.sent_by(Attempt { sender: 7, number });
    let punch = Edit::punch(object(1), CUT, 0, 8192).unwrap();
    assert_eq!(shell.run_edit(sent_by(punch, 0)).map(drop), late);
    let zero = Edit::allocate(object(1), CUT, 0, 8192, true).unwrap();
    assert_eq!(shell.run_edit(sent_by(zero, 0)).map(drop), late);
    assert_eq!(shell.target.units_in_flight(), 0);
    assert_eq!(shell.read(object(1), CUT, 0, MIB), Ok(want));
    shell.check();
    // Requests from before a restart are gone, and so is what was known of them.
    shell.kill();
    let mut plan = shell.plan(request(0, 0, 5)).unwrap();
    shell.commit(&mut plan, b"after").unwrap();
}
