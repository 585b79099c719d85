//! Truncations, punches, allocations and deletions: in steps, at the limits, and against late
//! writes.
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod harness;
use harness::*;
use zonal_object::*;
use zonal_types::ErrorCode;
use zonal_types::limits::{CHUNK_BYTES, FILE_BYTES_MAX, STORAGE_STEP_BYTES, TRUNCATION_NUMBER_MAX};

/// A shell with an object of `chunks` chunks with one block each.
fn scattered(chunks: u64) -> Shell {
    let mut shell = Shell::new(CONFIG);
    for index in 0..chunks {
        if shell.target.wants_checkpoint() {
            shell.checkpoint(true);
        }
        shell
            .write(object(1), UNTRUNCATED, index << 18, b"x")
            .unwrap();
    }
    shell
}

#[test]
fn older_writes_cannot_bring_truncated_bytes_back() {
    let (mut shell, payload) = filled();
    let request = WriteRequest {
        attempt: ChangeAttempt::default(),
        object: object(1),
        truncation: UNTRUNCATED,
        ranges: &[(500_000, 100_000)],
    };
    let mut late = shell.plan(request).unwrap();
    let truncation = Truncation {
        seq: 2,
        bytes: 1000,
    };
    // A reader that knows of a later truncation than the target sees it already.
    assert_eq!(
        shell.read(object(1), truncation, 0, 5000).unwrap().len(),
        1000
    );
    let outcome = shell
        .run_edit(Edit::truncate(object(1), truncation))
        .unwrap();
    assert_eq!(
        (outcome.object_bytes, outcome.allocated_delta),
        (1000, 4096 - MIB as i64)
    );
    let result = shell.commit(&mut late, &payload[..100_000]);
    assert_eq!(result, Err(ErrorCode::StaleTruncate));
    assert_eq!(shell.target.units_in_flight(), 0);
    // Growing again shows zeros; repeating the truncation changes nothing.
    shell.write(object(1), truncation, 5000, b"z").unwrap();
    let again = shell
        .run_edit(Edit::truncate(object(1), truncation))
        .unwrap();
    assert_eq!((again.object_bytes, again.allocated_delta), (5001, 0));
    let mut want = payload[..1000].to_vec();
    want.resize(5000, 0);
    want.push(b'z');
    assert_eq!(shell.read(object(1), truncation, 0, 9999), Ok(want));
    // An older reader is served.
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, 10).unwrap().len(), 10);
    shell.check();
}

/// Otherwise one message would use up the numbers of a file's truncations, and make its own last
/// one the newest for ever.
#[test]
fn a_number_behind_the_last_is_not_taken() {
    let (mut shell, _payload) = filled();
    for seq in [TRUNCATION_NUMBER_MAX + 1, u64::MAX] {
        let truncation = Truncation { seq, bytes: 1000 };
        for object in [object(1), object(7)] {
            let refused = shell.run_edit(Edit::truncate(object, truncation)).map(drop);
            assert_eq!(refused, Err(ErrorCode::Invalid));
            let refused = shell.write(object, truncation, 0, b"z").map(drop);
            assert_eq!(refused, Err(ErrorCode::Invalid));
        }
    }
    let seq = TRUNCATION_NUMBER_MAX;
    let truncation = Truncation { seq, bytes: 1000 };
    let outcome = shell
        .run_edit(Edit::truncate(object(1), truncation))
        .unwrap();
    assert_eq!(outcome.object_bytes, 1000);
    shell.check();
}

#[test]
fn a_large_object_is_deleted_in_steps_and_survives_a_kill_between() {
    let mut shell = scattered(700);
    shell.checkpoint(true);
    let mut delete = Delete::new(vec![object(1), object(2)]);
    let DeleteStep::Log(record) = shell.target.delete_step(&shell.store, &mut delete).unwrap()
    else {
        panic!("a record");
    };
    assert!(record.changes.len() < 300);
    shell.append(record);
    let stat = shell.target.stat(&shell.store, object(1));
    assert_eq!(stat, Ok(ObjectStat::default()));
    assert_eq!(
        shell.write(object(1), UNTRUNCATED, 0, b"x"),
        Err(ErrorCode::Stale)
    );
    assert_eq!(shell.read(object(1), UNTRUNCATED, 0, 10), Ok(vec![]));
    shell.check();
    shell.kill();
    assert_eq!(shell.target.unfinished_deletes(), vec![object(1)]);
    let unfinished = shell.target.unfinished_deletes();
    assert_eq!(shell.delete(unfinished), Ok(2));
    assert!(shell.target.unfinished_deletes().is_empty());
    shell.checkpoint(true);
    shell.kill();
    shell.check();
    assert_eq!(shell.target.statfs(), Shell::new(CONFIG).target.statfs());
}

#[test]
fn a_large_truncation_and_punch_go_in_steps() {
    let mut shell = scattered(600);
    let outcome = shell
        .run_edit(Edit::punch(object(1), UNTRUNCATED, 0, 300 << 18).unwrap())
        .unwrap();
    assert_eq!(outcome.allocated_delta, -300 * 4096);
    let truncation = Truncation { seq: 2, bytes: 1 };
    let outcome = shell
        .run_edit(Edit::truncate(object(1), truncation))
        .unwrap();
    assert_eq!(
        (outcome.allocated_delta, outcome.object_bytes),
        (-300 * 4096, 1)
    );
    shell.check();
}

#[test]
fn offsets_at_the_limit_work_and_past_it_are_refused() {
    let mut shell = Shell::new(CONFIG);
    shell
        .write(object(1), UNTRUNCATED, FILE_BYTES_MAX - 3, b"end")
        .unwrap();
    assert_eq!(
        shell
            .read(object(1), UNTRUNCATED, FILE_BYTES_MAX - 3, 100)
            .unwrap(),
        b"end"
    );
    shell.checkpoint(true);
    assert_eq!(
        shell
            .read(object(1), UNTRUNCATED, FILE_BYTES_MAX - 3, 100)
            .unwrap(),
        b"end"
    );
    let map = shell
        .target
        .map(&shell.store, object(1), UNTRUNCATED, 0, u64::MAX, 9)
        .unwrap();
    assert_eq!(map.ranges, vec![(FILE_BYTES_MAX - 4095, 4095)]);
    for offset in [FILE_BYTES_MAX - 2, FILE_BYTES_MAX, u64::MAX] {
        let result = shell.write(object(1), UNTRUNCATED, offset, b"end");
        assert_eq!(result, Err(ErrorCode::FileTooBig));
        assert!(shell.read(object(1), UNTRUNCATED, offset, 10).is_ok() || offset == u64::MAX);
        assert!(Edit::allocate(object(1), UNTRUNCATED, offset, 3, false).is_err());
    }
    shell
        .run_edit(Edit::punch(object(1), UNTRUNCATED, 0, FILE_BYTES_MAX).unwrap())
        .unwrap();
    shell
        .run_edit(Edit::truncate(
            object(1),
            Truncation {
                seq: 9,
                bytes: u64::MAX,
            },
        ))
        .unwrap();
    shell.check();
    let too_much = Edit::allocate(object(1), UNTRUNCATED, 0, 1 << 40, false).unwrap();
    assert_eq!(shell.run_edit(too_much), Err(ErrorCode::StaleTruncate));
}

#[test]
fn a_range_one_chunk_short_of_a_step_is_allocated_in_one_step() {
    let chunk = CHUNK_BYTES as u64;
    let config = TargetConfig {
        segments: 40,
        ..CONFIG
    };
    for (length, is_whole) in [
        (STORAGE_STEP_BYTES - chunk, true),
        (STORAGE_STEP_BYTES, false),
    ] {
        let mut shell = Shell::new(config);
        let mut edit = Edit::allocate(object(1), UNTRUNCATED, chunk - 4096, length, false).unwrap();
        let step = shell.target.edit_step(&shell.store, &mut edit).unwrap();
        let EditStep::Log { done, .. } = step else {
            panic!("{step:?}");
        };
        assert_eq!(done.is_some(), is_whole, "{length}");
    }
}

#[test]
fn reserved_space_reads_as_zeros_and_counts() {
    let mut shell = Shell::new(CONFIG);
    let edit = Edit::allocate(object(1), UNTRUNCATED, 100, 300_000, false).unwrap();
    let outcome = shell.run_edit(edit).unwrap();
    assert_eq!(
        (outcome.allocated_delta, outcome.object_bytes),
        (74 * 4096, 0)
    );
    shell.write(object(1), UNTRUNCATED, 299_999, b"x").unwrap();
    assert!(
        shell
            .read(object(1), UNTRUNCATED, 0, 299_999)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
    let stat = shell.target.stat(&shell.store, object(1)).unwrap();
    assert_eq!((stat.allocated, stat.object_bytes), (74 * 4096, 300_000));
    let map = shell
        .target
        .map(&shell.store, object(1), UNTRUNCATED, 0, u64::MAX, 9)
        .unwrap();
    assert_eq!(map.ranges, vec![(73 * 4096, 300_000 - 73 * 4096)]);
    shell.check();
}

#[test]
fn a_late_write_does_not_make_a_deleted_object_again() {
    let mut shell = Shell::new(CONFIG);
    shell.write(object(1), UNTRUNCATED, 0, b"here").unwrap();
    let request = WriteRequest {
        attempt: ChangeAttempt::default(),
        object: object(1),
        truncation: UNTRUNCATED,
        ranges: &[(0, 5000)],
    };
    let payload = [7; 5000];
    let mut late = shell.plan(request).unwrap();
    shell.carry_out(&mut late, &payload);
    // The second object does not exist yet: its first write is the late one.
    shell.delete(vec![object(1), object(2)]).unwrap();
    assert_eq!(shell.commit(&mut late, &payload), Err(ErrorCode::Stale));
    for gone in [1, 2] {
        let wrote = shell.write(object(gone), UNTRUNCATED, 0, b"late");
        assert_eq!(wrote, Err(ErrorCode::Stale));
        let reserve = Edit::allocate(object(gone), UNTRUNCATED, 0, 4096, false).unwrap();
        assert_eq!(shell.run_edit(reserve), Err(ErrorCode::Stale));
    }
    shell.delete(vec![object(1)]).unwrap();
    assert_eq!(shell.target.statfs().objects, 0);
    assert_eq!(shell.target.units_in_flight(), 0);
    shell.write(object(3), UNTRUNCATED, 0, b"other").unwrap();
    shell.check();
}

/// A truncation that first arrives with a write, and then by itself.
fn truncated_to(bytes: u64) -> Truncation {
    Truncation { seq: 2, bytes }
}

#[test]
fn a_write_reports_bytes_freed_by_its_truncation() {
    let (mut shell, _) = filled();
    let wrote = shell
        .write(object(1), truncated_to(0), 0, &[7; 8192])
        .unwrap();
    assert_eq!(wrote.allocated_delta, 8192 - MIB as i64);
    let pushed = shell.run_edit(Edit::truncate(object(1), truncated_to(0)));
    assert_eq!(pushed.unwrap().allocated_delta, 0);
    let stat = shell.target.stat(&shell.store, object(1)).unwrap();
    assert_eq!(stat.allocated, 8192);
    shell.check();
}

#[test]
fn a_disowning_truncation_reports_no_freed_bytes() {
    // Bytes behind the end belonged to nobody when the file was extended.
    let nobodys = Truncation {
        seq: 3,
        bytes: 8192,
    };
    let (mut shell, _) = filled();
    let wrote = shell.write(object(1), nobodys, 65_536, &[7; 8192]).unwrap();
    assert_eq!(wrote.allocated_delta, 8192);
    let stat = shell.target.stat(&shell.store, object(1)).unwrap();
    assert_eq!(stat.allocated, 16_384);
    let (mut shell, _) = filled();
    let pushed = shell.run_edit(Edit::truncate(object(1), nobodys));
    assert_eq!(pushed.unwrap().allocated_delta, 0);
    let (mut shell, _) = filled();
    let reserve = Edit::allocate(object(1), nobodys, 0, 16_384, false).unwrap();
    assert_eq!(shell.run_edit(reserve).unwrap().allocated_delta, 8192);
    let punched = Edit::punch(object(1), nobodys, 0, 4096).unwrap();
    assert_eq!(shell.run_edit(punched).unwrap().allocated_delta, -4096);
    // The next truncation's bytes are reported again.
    let truncation = Truncation { seq: 4, bytes: 0 };
    let truncation = shell
        .run_edit(Edit::truncate(object(1), truncation))
        .unwrap();
    assert_eq!(truncation.allocated_delta, -12_288);
    shell.check();
}

#[test]
fn bytes_freed_by_a_failed_write_are_reported_by_the_next_reply() {
    let freed = -(MIB as i64);
    for who in 0..3 {
        let (mut shell, payload) = filled();
        let request = WriteRequest {
            attempt: ChangeAttempt::default(),
            object: object(1),
            truncation: truncated_to(0),
            ranges: &[(0, payload.len() as u32)],
        };
        let mut plan = shell.plan(request).unwrap();
        shell.target.abort_write(&mut plan);
        let told = match who {
            0 => shell.run_edit(Edit::truncate(object(1), truncated_to(0))),
            1 => shell.run_edit(Edit::punch(object(1), truncated_to(0), 0, 4096).unwrap()),
            _ => shell.write(object(1), truncated_to(0), 4096, &[1; 4096]),
        };
        let own = if who == 2 { 4096 } else { 0 };
        assert_eq!(told.unwrap().allocated_delta, freed + own, "by {who}");
        let again = shell
            .write(object(1), truncated_to(0), 4096, &[2; 4096])
            .unwrap();
        assert_eq!(again.allocated_delta, 4096 - own, "by {who}");
        shell.check();
    }
}

#[test]
fn a_truncation_repeated_after_some_steps_reports_all_freed_bytes() {
    let mut shell = scattered(700);
    shell.checkpoint(true);
    let before = shell.target.stat(&shell.store, object(1)).unwrap();
    let mut edit = Edit::truncate(object(1), truncated_to(1));
    let EditStep::Log { record, done: None } =
        shell.target.edit_step(&shell.store, &mut edit).unwrap()
    else {
        panic!("a step of several");
    };
    shell.append(record);
    drop(edit);
    let told = shell
        .run_edit(Edit::truncate(object(1), truncated_to(1)))
        .unwrap();
    let left = shell.target.stat(&shell.store, object(1)).unwrap();
    let freed = left.allocated.cast_signed() - before.allocated.cast_signed();
    assert_eq!(told.allocated_delta, freed);
    shell.check();
}

#[test]
fn a_deleted_object_reports_no_freed_bytes() {
    let (mut shell, _) = filled();
    let request = WriteRequest {
        attempt: ChangeAttempt::default(),
        object: object(1),
        truncation: truncated_to(4096),
        ranges: &[(0, 4096)],
    };
    let mut plan = shell.plan(request).unwrap();
    shell.target.abort_write(&mut plan);
    shell.delete(vec![object(1)]).unwrap();
    shell.kill();
    let wrote = shell.write(object(1), truncated_to(4096), 0, b"x").unwrap();
    assert_eq!(wrote.allocated_delta, 4096);
}
