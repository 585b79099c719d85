//! Single properties of a target: damage, fullness, concurrency, costs, hostile stores.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

mod harness;
use harness::*;
use zonal_object::*;
use zonal_testkit::Rng;
use zonal_types::limits::{CHUNK_BYTES, FILE_BYTES_MAX, STORAGE_STEP_BYTES};
use zonal_types::{Codec, ErrorCode, KvChange};

const CONFIG: TargetConfig = TargetConfig {
    segment_units: 512,
    segments: 4,
    pending_blocks_max: 128,
};
const CUT: Cut = Cut { seq: 0, bytes: 0 };
const MIB: usize = 1 << 20;

fn filled() -> (Shell, Vec<u8>) {
    let mut shell = Shell::new(CONFIG);
    let payload = Rng(1).bytes(MIB);
    shell.write(object(1), CUT, 0, &payload).unwrap();
    (shell, payload)
}

#[test]
fn a_flipped_byte_is_an_error_and_never_bytes() {
    let (mut shell, payload) = filled();
    let mut rng = Rng(2);
    for _ in 0..50 {
        let at = rng.below(MIB as u64) as usize;
        let plan = shell
            .target
            .plan_read(&shell.store, object(1), CUT, at as u64, 1)
            .unwrap();
        let read = plan.reads().next().unwrap();
        let place = read.offset as usize + at % BLOCK;
        shell.segments.get_mut(&read.segment).unwrap()[place] ^= 1 << rng.below(8);
        let damage = shell.fetch(&plan).unwrap_err();
        assert_eq!(damage.offset, (at / BLOCK * BLOCK) as u64);
        assert_eq!((damage.segment, damage.object), (read.segment, object(1)));
        assert_eq!(shell.read(object(1), CUT, 0, MIB), Err(ErrorCode::Corrupt));
        // Neither does a write of a part of the block bless it.
        let result = shell.write(object(1), CUT, at as u64 / 4096 * 4096 + 1, b"x");
        assert_eq!(result, Err(ErrorCode::Corrupt));
        let punch = Edit::punch(object(1), CUT, at as u64 / 4096 * 4096 + 1, 1).unwrap();
        assert_eq!(shell.run_edit(punch), Err(ErrorCode::Corrupt));
        let segment = shell.segments.get_mut(&read.segment).unwrap();
        segment[read.offset as usize..][..BLOCK]
            .copy_from_slice(&payload[at / BLOCK * BLOCK..][..BLOCK]);
    }
    assert_eq!(shell.read(object(1), CUT, 0, MIB), Ok(payload));
    assert_eq!(shell.target.units_in_flight(), 0);
}

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
fn older_writes_cannot_bring_cut_bytes_back() {
    let (mut shell, payload) = filled();
    let request = WriteRequest {
        object: object(1),
        cut: CUT,
        offset: 500_000,
        length: 100_000,
    };
    let mut late = shell.plan(request).unwrap();
    let cut = Cut {
        seq: 1,
        bytes: 1000,
    };
    // A reader that knows more than the target sees the cut already.
    assert_eq!(shell.read(object(1), cut, 0, 5000).unwrap().len(), 1000);
    let outcome = shell.run_edit(Edit::truncate(object(1), cut)).unwrap();
    assert_eq!(
        (outcome.object_bytes, outcome.allocated_delta),
        (1000, 4096 - MIB as i64)
    );
    let result = shell.commit(&mut late, &payload[..100_000]);
    assert_eq!(result, Err(ErrorCode::StaleTruncate));
    assert_eq!(shell.target.units_in_flight(), 0);
    // Growing again shows zeros; the cut twice changes nothing.
    shell.write(object(1), cut, 5000, b"z").unwrap();
    let again = shell.run_edit(Edit::truncate(object(1), cut)).unwrap();
    assert_eq!((again.object_bytes, again.allocated_delta), (5001, 0));
    let mut want = payload[..1000].to_vec();
    want.resize(5000, 0);
    want.push(b'z');
    assert_eq!(shell.read(object(1), cut, 0, 9999), Ok(want));
    // An older reader is served.
    assert_eq!(shell.read(object(1), CUT, 0, 10).unwrap().len(), 10);
    shell.check();
}

#[test]
fn a_large_object_goes_in_steps_and_survives_a_kill_between() {
    let mut shell = Shell::new(CONFIG);
    // 700 chunks of one block each, far apart.
    for index in 0..700u64 {
        if shell.target.wants_checkpoint() {
            shell.checkpoint(true);
        }
        shell.write(object(1), CUT, index << 18, b"x").unwrap();
    }
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
    assert_eq!(shell.write(object(1), CUT, 0, b"x"), Err(ErrorCode::Stale));
    assert_eq!(shell.read(object(1), CUT, 0, 10), Ok(vec![]));
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
    let mut shell = Shell::new(CONFIG);
    for index in 0..600u64 {
        if shell.target.wants_checkpoint() {
            shell.checkpoint(true);
        }
        shell.write(object(1), CUT, index << 18, b"x").unwrap();
    }
    let outcome = shell
        .run_edit(Edit::punch(object(1), CUT, 0, 300 << 18).unwrap())
        .unwrap();
    assert_eq!(outcome.allocated_delta, -300 * 4096);
    let cut = Cut { seq: 1, bytes: 1 };
    let outcome = shell.run_edit(Edit::truncate(object(1), cut)).unwrap();
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
        .write(object(1), CUT, FILE_BYTES_MAX - 3, b"end")
        .unwrap();
    assert_eq!(
        shell.read(object(1), CUT, FILE_BYTES_MAX - 3, 100).unwrap(),
        b"end"
    );
    shell.checkpoint(true);
    assert_eq!(
        shell.read(object(1), CUT, FILE_BYTES_MAX - 3, 100).unwrap(),
        b"end"
    );
    let map = shell
        .target
        .map(&shell.store, object(1), CUT, 0, u64::MAX, 9)
        .unwrap();
    assert_eq!(map.ranges, vec![(FILE_BYTES_MAX - 4095, 4095)]);
    for offset in [FILE_BYTES_MAX - 2, FILE_BYTES_MAX, u64::MAX] {
        let result = shell.write(object(1), CUT, offset, b"end");
        assert_eq!(result, Err(ErrorCode::FileTooBig));
        assert!(shell.read(object(1), CUT, offset, 10).is_ok() || offset == u64::MAX);
        assert!(Edit::allocate(object(1), CUT, offset, 3, false).is_err());
    }
    shell
        .run_edit(Edit::punch(object(1), CUT, 0, FILE_BYTES_MAX).unwrap())
        .unwrap();
    shell
        .run_edit(Edit::truncate(
            object(1),
            Cut {
                seq: 9,
                bytes: u64::MAX,
            },
        ))
        .unwrap();
    shell.check();
    let too_much = Edit::allocate(object(1), CUT, 0, 1 << 40, false).unwrap();
    assert_eq!(shell.run_edit(too_much), Err(ErrorCode::StaleTruncate));
}

#[test]
fn a_chunk_less_than_a_step_is_reserved_at_once_wherever_it_begins() {
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
        let mut edit = Edit::allocate(object(1), CUT, chunk - 4096, length, false).unwrap();
        let step = shell.target.edit_step(&shell.store, &mut edit).unwrap();
        let Step::Log { done, .. } = step else {
            panic!("{step:?}");
        };
        assert_eq!(done.is_some(), is_whole, "{length}");
    }
}

#[test]
fn reserved_space_reads_as_zeros_and_counts() {
    let mut shell = Shell::new(CONFIG);
    let edit = Edit::allocate(object(1), CUT, 100, 300_000, false).unwrap();
    let outcome = shell.run_edit(edit).unwrap();
    assert_eq!(
        (outcome.allocated_delta, outcome.object_bytes),
        (74 * 4096, 0)
    );
    shell.write(object(1), CUT, 299_999, b"x").unwrap();
    assert!(
        shell
            .read(object(1), CUT, 0, 299_999)
            .unwrap()
            .iter()
            .all(|byte| *byte == 0)
    );
    let stat = shell.target.stat(&shell.store, object(1)).unwrap();
    assert_eq!((stat.allocated, stat.object_bytes), (74 * 4096, 300_000));
    let map = shell
        .target
        .map(&shell.store, object(1), CUT, 0, u64::MAX, 9)
        .unwrap();
    assert_eq!(map.ranges, vec![(73 * 4096, 300_000 - 73 * 4096)]);
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
fn what_a_plan_read_before_a_reuse_is_told_from_damage() {
    let (mut shell, _) = filled();
    let plan = shell
        .target
        .plan_read(&shell.store, object(1), CUT, 0, 65_536)
        .unwrap();
    let read = plan.reads().next().unwrap();
    shell.delete(vec![object(1)]).unwrap();
    shell.checkpoint(true);
    shell.pwrite(read.segment, read.offset, &[9; 4096]);
    assert!(shell.fetch(&plan).is_err());
    let again = shell
        .target
        .plan_read(&shell.store, object(1), CUT, 0, 65_536)
        .unwrap();
    assert_ne!(plan, again);
}

/// Whatever the store holds, nothing panics and nothing that fails its checks is served as bytes.
#[test]
fn hostile_values_are_errors() {
    let mut rng = Rng(7);
    for round in 0..160 {
        let (mut shell, payload) = filled();
        shell.write(object(1), CUT, 100, b"pending").unwrap();
        shell.write(object(2), CUT, 0, b"other").unwrap();
        shell.flush_pending(1);
        shell.freeze(false);
        let keys: Vec<Vec<u8>> = shell.store.now.keys().cloned().collect();
        let key = keys[rng.index(keys.len())].clone();
        let mut value = shell.store.now[&key].clone();
        match round % 4 {
            0 => {
                let at = rng.index(value.len());
                value[at] ^= 1 << rng.below(8);
            }
            1 => value.truncate(rng.index(value.len())),
            2 => value = rng.bytes(64),
            _ => {
                // Nonsense with a right checksum.
                let end = value.len() - 4;
                let at = 1 + rng.below(end as u64 - 1) as usize;
                value[at] = rng.byte();
                value.truncate(end);
                let sum = crc_fast::checksum(
                    crc_fast::CrcAlgorithm::Crc32Iscsi,
                    &[value.as_slice(), &key].concat(),
                );
                (sum as u32).put(&mut value);
            }
        }
        shell.store.apply(&[KvChange::put(key, value)]);
        if let Ok(bytes) = shell.read(object(1), CUT, 8192, 65_536) {
            assert!(
                bytes.len() < 65_536
                    || bytes == payload[8192..][..65_536]
                    || bytes.iter().filter(|byte| **byte == 0).count() >= 4096
            );
        }
        let _ = shell.write(object(1), CUT, 70_000, &payload[..200_000]);
        let _ = shell
            .target
            .map(&shell.store, object(1), CUT, 0, u64::MAX, 100);
        let _ = shell.target.check(&shell.store);
        let _ = shell.delete(vec![object(1)]);
        let notes: Vec<&[u8]> = shell
            .log
            .iter()
            .map(|record| record.note.as_slice())
            .collect();
        let _ = Target::open(CONFIG, &shell.store, notes);
        let mut note = rng.bytes(100);
        note[0] = 1;
        assert!(Target::open(CONFIG, &Store::default(), [note.as_slice()]).is_err());
    }
}

#[test]
fn a_late_write_does_not_make_a_deleted_object_again() {
    let mut shell = Shell::new(CONFIG);
    shell.write(object(1), CUT, 0, b"here").unwrap();
    let request = WriteRequest {
        object: object(1),
        cut: CUT,
        offset: 0,
        length: 5000,
    };
    let payload = [7; 5000];
    let mut late = shell.plan(request).unwrap();
    shell.carry_out(&mut late, &payload);
    // The second one does not exist yet: its first write is the one that is late.
    shell.delete(vec![object(1), object(2)]).unwrap();
    assert_eq!(shell.commit(&mut late, &payload), Err(ErrorCode::Stale));
    for gone in [1, 2] {
        let wrote = shell.write(object(gone), CUT, 0, b"late");
        assert_eq!(wrote, Err(ErrorCode::Stale));
        let reserve = Edit::allocate(object(gone), CUT, 0, 4096, false).unwrap();
        assert_eq!(shell.run_edit(reserve), Err(ErrorCode::Stale));
    }
    shell.delete(vec![object(1)]).unwrap();
    assert_eq!(shell.target.statfs().objects, 0);
    assert_eq!(shell.target.units_in_flight(), 0);
    shell.write(object(3), CUT, 0, b"other").unwrap();
    shell.check();
}
