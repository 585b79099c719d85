//! Late and repeated releases, cancellations and requests, by owners whose numbers are reused: the
//! table against a plain model in which nothing is late.

use super::*;
use zonal_testkit::Rng;

const INO: Ino = Ino(7);
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);
/// An owner number that the kernel uses again and again.
const OWNER: u64 = 3;

use LockKind::{Exclusive, Shared};

fn range(handle: u64, number: u64, kind: LockKind, start: u64, end: u64) -> LockRange {
    LockRange {
        whole_file: false,
        owner: OWNER,
        handle,
        number,
        pid: 1,
        kind,
        start,
        end,
    }
}

fn lock(table: &mut LockTable, session: SessionId, range: LockRange) -> LockAnswer {
    let (answer, _) = table.lock(session, INO, range, None, range.number).unwrap();
    assert_eq!(table.check(), Vec::<String>::new());
    answer
}

fn held(table: &LockTable) -> Vec<(u64, u64, LockKind)> {
    assert_eq!(table.check(), Vec::<String>::new());
    let ranges = table.files.get(&INO).and_then(|f| f.posix.get(&(A, OWNER)));
    ranges.map_or_else(Vec::new, |r| {
        r.iter().map(|r| (r.start, r.end, r.kind)).collect()
    })
}

#[test]
fn a_late_close_leaves_locks_of_the_next_open_file() {
    let mut table = LockTable::new();
    lock(&mut table, A, range(10, 1, Exclusive, 0, 9));
    lock(&mut table, A, range(10, 2, Exclusive, 50, 59));
    // The kernel gives the next open file the same owner number. The close of the former file
    // arrives later, twice.
    lock(&mut table, A, range(11, 3, Exclusive, 5, 14));
    for number in [4, 9] {
        table.release_owner(A, INO, (OWNER, false), Some(10), number);
        assert_eq!(held(&table), [(5, 14, Exclusive)]);
    }
    assert_eq!(
        lock(&mut table, B, range(1, 1, Exclusive, 14, 14)),
        LockAnswer::Conflict
    );
    table.release_owner(A, INO, (OWNER, false), Some(11), 9);
    assert!(table.files.is_empty() && table.range_count() == 0);
}

/// A client that hears late of a restart asks again for locks that it got in the new life already.
#[test]
fn a_repeated_request_takes_nothing_from_a_later_one() {
    let mut table = LockTable::new();
    let older = range(10, 5, Exclusive, 0, 9);
    assert_eq!(
        table.lock(A, INO, older, Some(1), 0).unwrap().0,
        LockAnswer::Granted
    );
    let newer = range(10, 6, Exclusive, 0, 9);
    assert_eq!(
        table.lock(A, INO, newer, Some(2), 5).unwrap().0,
        LockAnswer::Granted
    );
    assert_eq!(
        table.lock(A, INO, older, Some(1), 0).unwrap().0,
        LockAnswer::Granted
    );
    table.cancel(A, INO, older, Some(1), &[]).unwrap();
    assert_eq!(held(&table), [(0, 9, Exclusive)]);
    table.cancel(A, INO, newer, Some(2), &[]).unwrap();
    assert!(held(&table).is_empty());
}

/// Requests of one owner that arrived in the wrong order are granted together.
#[test]
fn a_late_grant_takes_nothing_from_a_later_request() {
    let mut table = LockTable::new();
    lock(&mut table, B, range(10, 1, Exclusive, 0, 9));
    let older = range(10, 5, Exclusive, 0, 9);
    let newer = range(10, 6, Exclusive, 0, 9);
    for (asked, waiter) in [(newer, 2), (older, 1)] {
        let (answer, _) = table.lock(A, INO, asked, Some(waiter), 0).unwrap();
        assert_eq!(answer, LockAnswer::Queued);
    }
    let granted = table.unlock(B, INO, range(10, 2, Shared, 0, 9)).unwrap();
    assert_eq!(granted.len(), 2);
    table.cancel(A, INO, older, Some(1), &[]).unwrap();
    assert_eq!(held(&table), [(0, 9, Exclusive)]);
}

/// A part of the range is a later request's (`zonal sim --scenario replicas --seed 523235`).
#[test]
fn a_repeated_request_takes_no_part_from_a_later_one() {
    let mut table = LockTable::new();
    let mut lock = |range: LockRange, waiter| {
        let asked = table.lock(A, INO, range, Some(waiter), 0);
        assert_eq!(asked.unwrap().0, LockAnswer::Granted);
    };
    let older = range(10, 5, Exclusive, 0, 9);
    lock(range(10, 6, Exclusive, 4, 6), 2);
    lock(older, 1);
    table.cancel(A, INO, older, Some(1), &[]).unwrap();
    assert_eq!(held(&table), [(4, 6, Exclusive)]);
}

/// Where the older request needs more than the later one has, it takes it.
#[test]
fn a_late_request_makes_the_lock_of_a_later_one_stronger() {
    let mut table = LockTable::new();
    for (asked, waiter) in [
        (range(10, 8, Shared, 0, 9), 2),
        (range(10, 7, Exclusive, 4, 6), 1),
    ] {
        let answer = table.lock(A, INO, asked, Some(waiter), 0);
        assert_eq!(answer.unwrap().0, LockAnswer::Granted);
    }
    assert_eq!(
        held(&table),
        [(0, 3, Shared), (4, 6, Exclusive), (7, 9, Shared)]
    );
}

#[test]
fn a_late_close_of_a_process_leaves_locks_of_the_next_process() {
    let mut table = LockTable::new();
    lock(&mut table, A, range(10, 1, Exclusive, 0, 9));
    lock(&mut table, A, range(11, 3, Shared, 5, 9));
    table.release_owner(A, INO, (OWNER, false), None, 2);
    assert_eq!(held(&table), [(5, 9, Shared)]);
}

#[test]
fn a_late_cancellation_leaves_ranges_of_the_repeated_request() {
    let mut table = LockTable::new();
    let (first, again) = (range(10, 1, Exclusive, 0, 9), range(10, 2, Exclusive, 0, 9));
    lock(&mut table, A, first);
    lock(&mut table, A, again);
    for _ in 0..2 {
        assert_eq!(table.cancel(A, INO, first, Some(70), &[]), Ok(vec![]));
        assert_eq!(held(&table), [(0, 9, Exclusive)]);
    }
    // The request arrives after its cancellation.
    let late = table.lock(
        A,
        INO,
        LockRange {
            kind: Shared,
            ..first
        },
        None,
        1,
    );
    assert_eq!(late, Err(ErrorCode::UnknownLease));
    assert_eq!(held(&table), [(0, 9, Exclusive)]);
}

#[test]
fn a_late_unlock_leaves_later_locks() {
    let mut table = LockTable::new();
    lock(&mut table, A, range(10, 1, Exclusive, 0, 9));
    let unlock = range(10, 2, Shared, 0, u64::MAX);
    table.unlock(A, INO, unlock).unwrap();
    lock(&mut table, A, range(10, 3, Exclusive, 0, 9));
    table.unlock(A, INO, unlock).unwrap();
    assert_eq!(held(&table), [(0, 9, Exclusive)]);
}

#[test]
fn cancelling_a_request_restores_the_ranges_held_before() {
    let mut table = LockTable::new();
    let before = range(10, 1, Shared, 0, 99);
    lock(&mut table, A, before);
    let upgrade = range(10, 2, Exclusive, 40, 59);
    lock(&mut table, A, upgrade);
    assert_eq!(
        lock(&mut table, B, range(1, 1, Shared, 50, 50)),
        LockAnswer::Conflict
    );
    let before = LockRange {
        start: 40,
        end: 59,
        ..before
    };
    table.cancel(A, INO, upgrade, None, &[before]).unwrap();
    assert_eq!(held(&table), [(0, 99, Shared)]);
    assert_eq!(
        lock(&mut table, B, range(1, 2, Shared, 50, 50)),
        LockAnswer::Granted
    );
    // A range that was granted to others meanwhile is not restored.
    let downgrade = range(10, 3, Shared, 0, 99);
    lock(&mut table, A, downgrade);
    let exclusive = range(10, 1, Exclusive, 0, 99);
    table.cancel(A, INO, downgrade, None, &[exclusive]).unwrap();
    assert_eq!(held(&table), [(0, 99, Shared)]);
}

#[test]
fn reclaimed_ranges_keep_their_open_file_and_request() {
    let mut table = LockTable::new();
    lock(&mut table, A, range(11, 5, Exclusive, 5, 9));
    table.reclaim(A, INO, range(10, 1, Shared, 0, 9)).unwrap();
    assert_eq!(held(&table), [(0, 4, Shared), (5, 9, Exclusive)]);
    table.release_owner(A, INO, (OWNER, false), Some(10), 9);
    assert_eq!(held(&table), [(5, 9, Exclusive)]);
    let taken = range(11, 5, Exclusive, 5, 9);
    table.cancel(A, INO, taken, None, &[]).unwrap();
    assert_eq!(held(&table), []);
}

#[test]
fn a_cancellation_with_ranges_of_another_owner_is_refused() {
    let mut table = LockTable::new();
    let mine = range(10, 1, Exclusive, 0, 9);
    let others = LockRange { owner: 4, ..mine };
    let refused = table.cancel(A, INO, mine, None, &[others]);
    assert_eq!(refused, Err(ErrorCode::Invalid));
}

/// Messages may be late and repeated. A lock holds from when its caller hears of it until the
/// caller gives it up.
#[test]
fn no_two_owners_hold_a_lock_whatever_message_is_late() {
    let mut turns = 0;
    for seed in 0..400 {
        let mut rng = Rng(seed);
        let mut table = LockTable::new();
        let mut number = 0;
        // Per session: the open file that holds the lock, as its program knows.
        let mut inside = [None; 2];
        let mut late: Vec<(SessionId, Late)> = Vec::new();
        for step in 0..400 {
            let which = rng.below(2) as usize;
            let session = [A, B][which];
            if rng.below(3) == 0 && !late.is_empty() {
                // Half of the time the message stays in the list and arrives once more.
                let at = rng.below(late.len() as u64) as usize;
                let (session, message) = late[at];
                if rng.below(2) == 0 {
                    late.remove(at);
                }
                message.arrive(&mut table, session);
                continue;
            }
            number += 1;
            if let Some(handle) = inside[which].take() {
                late.push((session, Late::Close(handle, number)));
                continue;
            }
            let wanted = range(number, number, Exclusive, 0, 9);
            late.push((session, Late::Request(wanted)));
            let answer = table.lock(session, INO, wanted, None, number);
            assert_eq!(table.check(), Vec::<String>::new());
            if !matches!(answer, Ok((LockAnswer::Granted, _))) {
                continue;
            }
            if rng.below(4) == 0 {
                // A signal: the caller has heard that it does not hold the lock, and its
                // cancellation is late.
                late.push((session, Late::TakeBack(wanted)));
                continue;
            }
            assert_eq!(inside[1 - which], None, "seed {seed} step {step}");
            inside[which] = Some(number);
            turns += 1;
        }
    }
    assert!(turns > 1_000, "{turns}");
}

#[derive(Clone, Copy)]
enum Late {
    Request(LockRange),
    TakeBack(LockRange),
    Close(u64, u64),
}

impl Late {
    fn arrive(self, table: &mut LockTable, session: SessionId) {
        match self {
            Self::Request(range) => drop(table.lock(session, INO, range, None, 0)),
            Self::TakeBack(range) => drop(table.cancel(session, INO, range, None, &[])),
            Self::Close(handle, number) => {
                let owner = (OWNER, false);
                drop(table.release_owner(session, INO, owner, Some(handle), number));
            }
        }
        assert_eq!(table.check(), Vec::<String>::new());
    }
}
