//! Single properties of a target: fullness, concurrency, costs, maps.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod harness;
use harness::*;
use zonal_object::*;
use zonal_testkit::Rng;
use zonal_types::{ClientId, ClientIdentity, ErrorCode, Fence, HolderNumber, Incarnation};

#[test]
fn a_full_target_still_overwrites_truncates_and_deletes() {
    let mut shell = Shell::new(CONFIG);
    let chunk = Rng(3).bytes(128 * 1024);
    let mut written = 0;
    let error = loop {
        match shell.write(
            object(written / 4),
            UNTRUNCATED,
            written % 4 * 131_072,
            &chunk,
        ) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error, ErrorCode::NoSpace);
    assert_eq!(shell.target.reclaimable(), 0);
    assert!(shell.target.statfs().free < 131_072);
    assert_eq!(
        shell.write(object(99), UNTRUNCATED, 0, b"small"),
        Err(ErrorCode::NoSpace)
    );
    shell.check();
    // Overwriting goes on for ever, with occasional checkpoints.
    for round in 0..40 {
        if shell.write(object(round % 4), UNTRUNCATED, 0, &chunk) == Err(ErrorCode::NoSpace) {
            assert!(shell.target.reclaimable() > 0);
            shell.checkpoint(true);
            shell
                .write(object(round % 4), UNTRUNCATED, 0, &chunk)
                .unwrap();
        }
        shell
            .write(object(round % 4), UNTRUNCATED, 4000, b"edge")
            .unwrap();
    }
    let truncation = Truncation {
        seq: 1,
        bytes: 100_001,
    };
    shell
        .run_edit(Edit::truncate(object(0), truncation))
        .unwrap();
    shell.check();
    let all: Vec<_> = (0..100).map(object).collect();
    shell.delete(all).unwrap();
    assert_eq!(
        shell.write(object(150), UNTRUNCATED, 0, &chunk),
        Err(ErrorCode::NoSpace),
        "freed space waits for the checkpoint"
    );
    shell.checkpoint(true);
    shell.write(object(150), UNTRUNCATED, 0, &chunk).unwrap();
    shell.delete(vec![object(150)]).unwrap();
    shell.checkpoint(true);
    shell.check();
    assert_eq!(shell.target.statfs(), Shell::new(CONFIG).target.statfs());
}

#[test]
fn small_writes_wait_for_a_checkpoint_when_too_many_are_pending() {
    let mut shell = Shell::new(CONFIG);
    let mut count = 0;
    while shell
        .write(object(1), UNTRUNCATED, count * 8192, b"x")
        .is_ok()
    {
        count += 1;
    }
    assert_eq!(count, 128);
    assert!(shell.target.wants_checkpoint());
    assert_eq!(
        shell.write(object(1), UNTRUNCATED, 0, b"y"),
        Err(ErrorCode::Overloaded)
    );
    shell.flush_pending(64);
    shell.write(object(1), UNTRUNCATED, 0, b"y").unwrap();
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, 2).unwrap(), b"y\0");
    shell.check();
}

#[test]
fn concurrent_writes_to_one_block_are_merged() {
    let (mut shell, mut want) = filled();
    let mut plan = |offset| {
        let request = WriteRequest {
            attempt: ChangeAttempt::default(),
            object: object(1),
            truncation: UNTRUNCATED,
            ranges: &[(offset, 5)],
        };
        shell.plan(request).unwrap()
    };
    let (mut first, mut second, mut third) = (plan(10), plan(20), plan(4096 + 30));
    shell.commit(&mut second, b"22222").unwrap();
    shell.commit(&mut first, b"11111").unwrap();
    // The base of the third moves between its plan and its commit.
    let new = Rng(4).bytes(65_536);
    shell.write(object(1), UNTRUNCATED, 4096, &new).unwrap();
    shell.commit(&mut third, b"33333").unwrap();
    want[10..15].fill(b'1');
    want[20..25].fill(b'2');
    want[4096..4096 + 65_536].copy_from_slice(&new);
    want[4096 + 30..4096 + 35].fill(b'3');
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, MIB), Ok(want));
    shell.check();
}

#[test]
fn a_write_during_a_checkpoint_wins() {
    let mut shell = Shell::new(CONFIG);
    shell.write(object(1), UNTRUNCATED, 0, &[1; 8192]).unwrap();
    shell.write(object(2), UNTRUNCATED, 0, &[1; 100]).unwrap();
    let plan = shell.target.plan_checkpoint(100);
    shell.write_checkpoint(&plan);
    shell
        .write(object(1), UNTRUNCATED, 4096, &[2; 4096])
        .unwrap();
    shell.delete(vec![object(2)]).unwrap();
    shell.commit_flush(plan);
    shell.check();
    assert_eq!(shell.target.units_in_flight(), 0);
    shell.freeze(true);
    shell.kill();
    let want = [[1; 4096], [2; 4096]].concat();
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, 9000), Ok(want));
    assert_eq!(shell.target.statfs().objects, 1);
    shell.check();
}

#[test]
fn a_map_with_a_limit_says_how_far_it_goes() {
    let mut shell = Shell::new(CONFIG);
    for index in 0..10u64 {
        shell
            .write(object(1), UNTRUNCATED, index * 8192, b"x")
            .unwrap();
        if index == 5 {
            shell.checkpoint(true);
        }
    }
    let (mut at, mut found) = (0, Vec::new());
    loop {
        let map = shell
            .target
            .map(&shell.store, object(1), UNTRUNCATED, at, u64::MAX, 3)
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
        shell.write(object(1), UNTRUNCATED, offset, bytes).unwrap();
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
        .plan_read(&shell.store, object(1), UNTRUNCATED, 0, MIB)
        .unwrap();
    assert_eq!(shell.store.gets.get(), 5);
    assert_eq!(plan.buffer_len(), MIB);
    assert!(plan.reads().count() <= 3);
}

fn attempt(number: u32) -> ChangeAttempt {
    let sender = Sender {
        identity: ClientIdentity::first(ClientId(7)),
        ..Sender::default()
    };
    ChangeAttempt {
        sender,
        number,
        ..ChangeAttempt::default()
    }
}

#[test]
fn a_superseded_attempt_is_refused_when_it_arrives_late() {
    let (mut shell, mut want) = filled();
    let plan = |shell: &mut Shell, number, offset: u64, length: usize| {
        shell.plan(WriteRequest {
            attempt: attempt(number),
            object: object(1),
            truncation: UNTRUNCATED,
            ranges: &[(offset, length as u32)],
        })
    };
    let older = Rng(5).bytes(65_536);
    let newer = Rng(6).bytes(65_536);
    // Two writes stand still between plan and commit, a large and a small one; another is not even
    // read from its socket.
    let mut large = plan(&mut shell, 0, 0, older.len()).unwrap();
    shell.carry_out(&mut large, &older);
    let mut small = plan(&mut shell, 0, 10, 5).unwrap();
    // Sent again, and overwritten.
    for bytes in [&older, &newer] {
        let mut again = plan(&mut shell, 1, 0, bytes.len()).unwrap();
        shell.carry_out(&mut again, bytes);
        shell.commit(&mut again, bytes).unwrap();
    }
    want[..newer.len()].copy_from_slice(&newer);
    let late = Err(ErrorCode::Superseded);
    assert_eq!(shell.commit(&mut large, &older).map(drop), late);
    assert_eq!(shell.commit(&mut small, b"older").map(drop), late);
    assert_eq!(plan(&mut shell, 0, 0, 5).map(drop), late);
    let sent_by = |edit: Edit, number| edit.sent_by(attempt(number));
    let punch = Edit::punch(object(1), UNTRUNCATED, 0, 8192).unwrap();
    assert_eq!(shell.run_edit(sent_by(punch, 0)).map(drop), late);
    let zero = Edit::allocate(object(1), UNTRUNCATED, 0, 8192, true).unwrap();
    assert_eq!(shell.run_edit(sent_by(zero, 0)).map(drop), late);
    assert_eq!(shell.target.units_in_flight(), 0);
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, MIB), Ok(want));
    shell.check();
    // Requests from before a restart are gone, and so is the record of their attempts.
    shell.kill();
    let mut plan = plan(&mut shell, 0, 0, 5).unwrap();
    shell.commit(&mut plan, b"after").unwrap();
}

fn many(ranges: &[(u64, u32)]) -> WriteRequest<'_> {
    WriteRequest {
        attempt: attempt(0),
        object: object(1),
        truncation: UNTRUNCATED,
        ranges,
    }
}

#[test]
fn nothing_of_a_fenced_client_is_carried_out_after_the_fence() {
    let (mut shell, want) = filled();
    let plan = |shell: &mut Shell| {
        shell.plan(WriteRequest {
            attempt: attempt(0),
            object: object(1),
            truncation: UNTRUNCATED,
            ranges: &[(0, 65_536)],
        })
    };
    let bytes = Rng(5).bytes(65_536);
    // A write stands still between its plan and its commit.
    let mut late = plan(&mut shell).unwrap();
    shell.carry_out(&mut late, &bytes);
    let fence = Fence {
        client: ClientId(7),
        holder: HolderNumber(0),
        lowest: Incarnation(2),
    };
    let record = shell.target.fence(&[fence]);
    shell.append(record);
    shell.sync();
    let fenced = Err(ErrorCode::Fenced);
    assert_eq!(shell.commit(&mut late, &bytes).map(drop), fenced);
    for life in 0..2 {
        let sender = attempt(0).sender;
        assert_eq!(shell.target.admit(sender), fenced, "life {life}");
        assert_eq!(plan(&mut shell).map(drop), fenced);
        let punch = Edit::punch(object(1), UNTRUNCATED, 0, 8192).unwrap();
        let punch = punch.sent_by(attempt(0));
        assert_eq!(shell.run_edit(punch).map(drop), fenced);
        assert_eq!(shell.target.units_in_flight(), 0);
        assert_eq!(shell.read(object(1), UNTRUNCATED, 0, MIB), Ok(want.clone()));
        shell.check();
        shell.kill();
    }
    let mut next = attempt(0);
    next.sender.identity.incarnation = Incarnation(2);
    let mut plan = shell
        .plan(WriteRequest {
            attempt: next,
            object: object(1),
            truncation: UNTRUNCATED,
            ranges: &[(0, 5)],
        })
        .unwrap();
    shell.commit(&mut plan, b"after").unwrap();
}

#[test]
fn many_ranges_are_one_record_and_each_block_is_in_it_once() {
    let (mut shell, mut want) = filled();
    // Three pieces of each of forty blocks, one of them across its end.
    let places = (0..40_u64).flat_map(|block| [10, 2000, 4000].map(|at| (block * 8192 + at, 200)));
    let ranges: Vec<(u64, u32)> = places.collect();
    let payload = Rng(9).bytes(ranges.len() * 200);
    let records = shell.log.len();
    let outcome = shell
        .write_ranges(object(1), UNTRUNCATED, &ranges, &payload)
        .unwrap();
    assert_eq!(outcome.allocated_delta, 0);
    assert_eq!(shell.log.len(), records + 1);
    let note = shell.log[records].note.len();
    assert!((80 * BLOCK..81 * BLOCK).contains(&note), "{note} bytes");
    for ((at, length), bytes) in ranges.iter().zip(payload.chunks(200)) {
        want[*at as usize..*at as usize + *length as usize].copy_from_slice(bytes);
    }
    assert_eq!(
        shell.read(object(1), UNTRUNCATED, 0, MIB).as_ref(),
        Ok(&want)
    );
    shell.check();
    shell.kill();
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, MIB), Ok(want));
    shell.check();
}

#[test]
fn whole_blocks_of_many_ranges_are_one_write_of_a_segment() {
    let (mut shell, mut want) = filled();
    // Every other block, and an unaligned edge that goes through the log.
    let mut ranges: Vec<(u64, u32)> = (0..32).map(|step| (step * 8192, 4096)).collect();
    ranges.push((32 * 8192, 4100));
    let payload = Rng(11).bytes(33 * BLOCK + 4);
    let mut plan = shell.plan(many(&ranges)).unwrap();
    let writes: Vec<_> = plan.writes().map(|write| write.payload).collect();
    assert_eq!(writes, vec![0..33 * BLOCK]);
    shell.carry_out(&mut plan, &payload);
    shell.commit(&mut plan, &payload).unwrap();
    assert_eq!(shell.target.pending_bytes().0, BLOCK as u64);
    for (step, bytes) in payload.chunks(BLOCK).enumerate() {
        // The last is the byte behind the last whole block.
        let at = if step == 33 {
            65 * BLOCK
        } else {
            step * 2 * BLOCK
        };
        want[at..at + bytes.len()].copy_from_slice(bytes);
    }
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, MIB), Ok(want));
    shell.check();
}

#[test]
fn ranges_without_meaning_are_refused_and_hold_nothing() {
    let (mut shell, want) = filled();
    let bound = zonal_types::limits::WRITE_RANGES_MAX as u64;
    let too_many: Vec<(u64, u32)> = (0..=bound).map(|at| (at * 2, 1)).collect();
    let bad: [&[(u64, u32)]; 9] = [
        &[],
        &[(0, 0)],
        &[(0, 5), (10, 0)],
        &[(0, 5), (4, 5)],
        &[(10, 5), (0, 5)],
        &[(0, 3 << 20), (3 << 20, 2 << 20)],
        &[(0, u32::MAX)],
        &too_many,
        &[(0, 4097), (4096, 4096), (1 << 40, 1)],
    ];
    for ranges in bad {
        assert_eq!(shell.plan(many(ranges)).map(drop), Err(ErrorCode::Invalid));
    }
    let too_far: [&[(u64, u32)]; 3] = [
        &[(u64::MAX, 1)],
        &[(0, 1), (u64::MAX - 3, 100)],
        &[(i64::MAX as u64, 2)],
    ];
    for ranges in too_far {
        assert_eq!(
            shell.plan(many(ranges)).map(drop),
            Err(ErrorCode::FileTooBig)
        );
    }
    // A payload of another length is not written to the object.
    for length in [99, 101, 0] {
        let mut plan = shell.plan(many(&[(0, 50), (70_000, 50)])).unwrap();
        let payload = vec![1; length];
        shell.carry_out(&mut plan, &payload);
        assert_eq!(
            shell.commit(&mut plan, &payload).map(drop),
            Err(ErrorCode::Invalid)
        );
    }
    assert_eq!(shell.target.units_in_flight(), 0);
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, MIB), Ok(want));
    shell.check();
}

#[test]
fn a_write_of_many_ranges_meets_a_truncation_between_plan_and_commit() {
    let (mut shell, _) = filled();
    let ranges: Vec<(u64, u32)> = (0..20).map(|step| (step * 50_000, 5000)).collect();
    let payload = Rng(12).bytes(100_000);
    let mut plan = shell.plan(many(&ranges)).unwrap();
    shell.carry_out(&mut plan, &payload);
    let truncation = Truncation {
        seq: 2,
        bytes: 60_000,
    };
    shell
        .run_edit(Edit::truncate(object(1), truncation))
        .unwrap();
    let late = shell.commit(&mut plan, &payload).map(drop);
    assert_eq!(late, Err(ErrorCode::StaleTruncate));
    assert_eq!(shell.target.units_in_flight(), 0);
    assert_eq!(
        shell
            .target
            .plan_read(&shell.store, object(1), truncation, 0, MIB)
            .unwrap()
            .object_bytes(),
        60_000
    );
    // Sent again with the sender's current knowledge, and repeated.
    for _time in 0..2 {
        shell
            .write_ranges(object(1), truncation, &ranges, &payload)
            .unwrap();
    }
    for ((at, length), bytes) in ranges.iter().zip(payload.chunks(5000)) {
        let read = shell.read(object(1), truncation, *at, *length as usize);
        assert_eq!(read.as_deref(), Ok(bytes));
    }
    assert_eq!(
        shell.read(object(1), truncation, 60_000, 30_000),
        Ok(vec![0; 30_000])
    );
    shell.check();
}

#[test]
fn records_of_many_ranges_are_bounded() {
    let ranges: Vec<(u64, u32)> = (0..1000).map(|step| (step * 4096 + 4000, 200)).collect();
    let large = TargetConfig {
        pending_blocks_max: 4096,
        ..CONFIG
    };
    // Two blocks each.
    assert_eq!(ranges_of_one_record(&large, &ranges), 128);
    assert_eq!(ranges_of_one_record(&CONFIG, &ranges), 16);
    assert_eq!(ranges_of_one_record(&CONFIG, &ranges[..3]), 3);
    assert_eq!(
        ranges_of_one_record(&CONFIG, &[(0, 4 << 20), (5 << 20, 1)]),
        1
    );
    assert_eq!(ranges_of_one_record(&CONFIG, &[]), 0);
}

#[test]
#[should_panic(expected = "a write plan is committed after it was committed or aborted")]
fn a_plan_committed_twice_is_refused() {
    let (mut shell, _) = filled();
    let request = WriteRequest {
        attempt: ChangeAttempt::default(),
        object: object(1),
        truncation: UNTRUNCATED,
        ranges: &[(10, 5)],
    };
    let mut plan = shell.plan(request).unwrap();
    shell.commit(&mut plan, b"11111").unwrap();
    let _ = shell.target.commit_write(&shell.store, &mut plan, b"11111");
}
