//! Locks: conflicts, queues, deadlocks, bounds.

use super::*;

const INO: Ino = Ino(7);
const A: SessionId = SessionId(1);
const B: SessionId = SessionId(2);

fn range(owner: u64, kind: LockKind, start: u64, end: u64) -> LockRange {
    LockRange {
        whole_file: false,
        owner,
        handle: 0,
        number: 0,
        pid: owner as u32,
        kind,
        start,
        end,
    }
}

/// Request `number`, through open file `handle`.
fn by(handle: u64, number: u64, range: LockRange) -> LockRange {
    LockRange {
        handle,
        number,
        ..range
    }
}

impl LockTable {
    /// A request before which all is settled.
    fn ask(
        &mut self,
        session: SessionId,
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    ) -> Result<(LockAnswer, Vec<Granted>), ErrorCode> {
        self.lock(session, ino, range, waiter, range.number)
    }

    fn give(&mut self, session: SessionId, range: LockRange) -> Result<Vec<Granted>, ErrorCode> {
        let number = u64::MAX;
        self.unlock(session, INO, LockRange { number, ..range })
    }

    fn take_back(&mut self, session: SessionId, waiter: u64, range: LockRange) -> Vec<Granted> {
        let taken = self.cancel(session, INO, range, Some(waiter), &[]);
        taken.unwrap()
    }
}

fn flock(owner: u64, kind: LockKind) -> LockRange {
    LockRange {
        whole_file: true,
        ..range(owner, kind, 0, u64::MAX)
    }
}

use LockKind::{Exclusive, Shared};

fn granted(session: SessionId, waiter: u64) -> Granted {
    (session, Event::LockGranted { ino: INO, waiter })
}

#[track_caller]
fn held(table: &LockTable, owner: LockOwner) -> Vec<(u64, u64, LockKind)> {
    assert_eq!(table.check(), Vec::<String>::new());
    let ranges = table.files.get(&INO).and_then(|f| f.posix.get(&owner));
    ranges.map_or_else(Vec::new, |r| {
        r.iter().map(|r| (r.start, r.end, r.kind)).collect()
    })
}

#[test]
fn own_ranges_split_merge_and_change_kind() {
    let mut table = LockTable::new();
    let mut lock = |kind, start, end| {
        let (answer, _) = table.ask(A, INO, range(1, kind, start, end), None).unwrap();
        assert_eq!(answer, LockAnswer::Granted);
        held(&table, (A, 1))
    };
    assert_eq!(lock(Shared, 0, 99), [(0, 99, Shared)]);
    assert_eq!(lock(Shared, 100, 199), [(0, 199, Shared)]);
    assert_eq!(
        lock(Exclusive, 50, 59),
        [(0, 49, Shared), (50, 59, Exclusive), (60, 199, Shared)]
    );
    assert_eq!(lock(Shared, 50, 59), [(0, 199, Shared)]);
    assert_eq!(
        lock(Shared, 300, u64::MAX),
        [(0, 199, Shared), (300, u64::MAX, Shared)]
    );
    assert_eq!(lock(Shared, 200, 299), [(0, u64::MAX, Shared)]);
    table.give(A, range(1, Shared, 10, 19)).unwrap();
    assert_eq!(
        held(&table, (A, 1)),
        [(0, 9, Shared), (20, u64::MAX, Shared)]
    );
    table.give(A, range(1, Shared, 0, u64::MAX)).unwrap();
    assert_eq!(held(&table, (A, 1)), []);
    assert!(table.files.is_empty() && table.sessions.is_empty());
}

#[test]
fn waiters_are_granted_in_order_and_can_be_cancelled() {
    let mut table = LockTable::new();
    let ask = |t: &mut LockTable, s, owner, kind, waiter| {
        t.ask(s, INO, range(owner, kind, 0, 9), Some(waiter))
            .unwrap()
            .0
    };
    assert_eq!(ask(&mut table, A, 1, Exclusive, 1), LockAnswer::Granted);
    assert_eq!(ask(&mut table, B, 2, Exclusive, 2), LockAnswer::Queued);
    assert_eq!(
        ask(&mut table, B, 2, Exclusive, 2),
        LockAnswer::Queued,
        "repeat"
    );
    assert_eq!(ask(&mut table, B, 3, Shared, 3), LockAnswer::Queued);
    assert_eq!(ask(&mut table, B, 4, Shared, 4), LockAnswer::Queued);
    let second = by(0, 2, range(2, Exclusive, 0, 9));
    assert_eq!(table.take_back(B, 2, second), []);
    assert_eq!(table.take_back(B, 2, second), []);
    let woken = table.give(A, range(1, Shared, 0, 9)).unwrap();
    assert_eq!(woken, [granted(B, 3), granted(B, 4)]);
    assert_eq!(table.check(), Vec::<String>::new());
    assert_eq!(table.release_session(B), []);
    assert_eq!((table.range_count(), table.waiter_count()), (0, 0));
}

#[test]
fn a_downgrade_lets_readers_in() {
    let mut table = LockTable::new();
    table.ask(A, INO, range(1, Exclusive, 0, 9), None).unwrap();
    table.ask(B, INO, range(2, Shared, 0, 9), Some(5)).unwrap();
    let (answer, woken) = table.ask(A, INO, range(1, Shared, 0, 9), None).unwrap();
    assert_eq!((answer, woken), (LockAnswer::Granted, vec![granted(B, 5)]));
}

#[test]
fn flock_and_posix_locks_do_not_see_one_another() {
    let mut table = LockTable::new();
    table
        .ask(A, INO, range(1, Exclusive, 0, u64::MAX), None)
        .unwrap();
    let (answer, _) = table.ask(B, INO, flock(2, Exclusive), None).unwrap();
    assert_eq!(answer, LockAnswer::Granted);
    let (answer, _) = table.ask(A, INO, flock(1, Shared), None).unwrap();
    assert_eq!(answer, LockAnswer::Conflict);
    assert_eq!(
        table.get(A, INO, flock(1, Shared)),
        Some(flock(2, Exclusive))
    );
    assert_eq!(
        table.get(B, INO, range(2, Shared, 5, 5)),
        Some(range(1, Exclusive, 0, u64::MAX))
    );
    assert_eq!(table.release_owner(B, INO, (2, true), None, 1), []);
    assert_eq!(table.get(A, INO, flock(1, Shared)), None);
}

#[test]
fn converting_a_flock_releases_the_old_lock_first() {
    let mut table = LockTable::new();
    table.ask(A, INO, flock(1, Shared), None).unwrap();
    table.ask(B, INO, flock(2, Shared), None).unwrap();
    // Both want to convert: the first waits without its shared lock, so the second gets the
    // exclusive lock. No deadlock.
    let (one, two) = (by(0, 1, flock(1, Exclusive)), by(0, 1, flock(2, Exclusive)));
    let first = table.ask(A, INO, one, Some(1)).unwrap();
    assert_eq!(first, (LockAnswer::Queued, vec![]));
    let second = table.ask(B, INO, two, Some(2)).unwrap();
    assert_eq!(second, (LockAnswer::Queued, vec![granted(A, 1)]));
    assert_eq!(table.check(), Vec::<String>::new());
}

#[test]
fn rings_of_waiting_owners_are_refused() {
    let mut table = LockTable::new();
    for owner in 0..4 {
        table
            .ask(A, Ino(10 + owner), range(owner, Exclusive, 0, 0), None)
            .unwrap();
    }
    for owner in 0..3 {
        let next = Ino(10 + owner + 1);
        let (answer, _) = table
            .ask(A, next, range(owner, Exclusive, 0, 0), Some(owner))
            .unwrap();
        assert_eq!(answer, LockAnswer::Queued);
    }
    let closing = table.ask(A, Ino(10), range(3, Exclusive, 0, 0), Some(3));
    assert_eq!(closing, Err(ErrorCode::Deadlock));
    // Two readers that both want to write.
    table.ask(A, INO, range(1, Shared, 0, 0), None).unwrap();
    table.ask(B, INO, range(1, Shared, 0, 0), None).unwrap();
    let waiting = by(0, 9, range(1, Exclusive, 0, 0));
    table.cancel(A, Ino(12), waiting, Some(1), &[]).unwrap();
    table
        .ask(A, INO, range(1, Exclusive, 0, 0), Some(7))
        .unwrap();
    let closing = table.ask(B, INO, range(1, Exclusive, 0, 0), Some(8));
    assert_eq!(closing, Err(ErrorCode::Deadlock));
    assert_eq!(table.check(), Vec::<String>::new());
}

#[test]
fn a_waiting_writer_is_overtaken_a_bounded_number_of_times() {
    let mut table = LockTable::new();
    table.ask(A, INO, range(0, Shared, 0, 9), None).unwrap();
    table
        .ask(B, INO, range(1, Exclusive, 0, 9), Some(1))
        .unwrap();
    let mut woken = Vec::new();
    for reader in 1..1000_u64 {
        let (answer, _) = table
            .ask(A, INO, range(100 + reader, Shared, 0, 9), Some(reader))
            .unwrap();
        // The previous reader leaves only now, so that readers overlap all the time.
        let last = if reader == 1 { 0 } else { 99 + reader };
        woken = table.release_owner(A, INO, (last, false), None, 1);
        if answer == LockAnswer::Queued {
            break;
        }
    }
    assert_eq!(woken, [granted(B, 1)]);
}

#[test]
fn bounds_hold() {
    let mut table = LockTable::with_limits(10, 2);
    table
        .ask(A, INO, range(1, Exclusive, 0, 1000), None)
        .unwrap();
    for waiter in 0..2 {
        table
            .ask(B, INO, range(2, Shared, 5, 5), Some(waiter))
            .unwrap();
    }
    let third = table.ask(B, INO, range(2, Shared, 5, 5), Some(9));
    assert_eq!(third, Err(ErrorCode::NoLocks));
    let mut at = 10;
    while table.give(A, range(1, Shared, at, at)).is_ok() {
        at += 10;
        assert!(at < 1000, "a split is never refused");
    }
    assert_eq!(table.check(), Vec::<String>::new());
    let empty = range(1, Shared, 5, 4);
    assert_eq!(table.ask(A, INO, empty, None), Err(ErrorCode::Invalid));
}

#[test]
fn reclaimed_locks_must_not_conflict() {
    let mut table = LockTable::new();
    assert_eq!(table.reclaim(A, INO, range(1, Exclusive, 0, 9)), Ok(()));
    assert_eq!(table.reclaim(A, INO, range(1, Exclusive, 0, 9)), Ok(()));
    let other = table.reclaim(B, INO, range(1, Shared, 9, 9));
    assert_eq!(other, Err(ErrorCode::WouldBlock));
}

#[test]
fn thousands_of_ranges_are_quick() {
    let mut table = LockTable::new();
    for index in 0..20_000_u64 {
        let one = by(0, index, range(1, Exclusive, index * 2, index * 2));
        table.ask(A, INO, one, None).unwrap();
    }
    assert_eq!(table.range_count(), 20_000);
    let (answer, _) = table
        .ask(B, INO, range(1, Exclusive, 20_001, 20_001), None)
        .unwrap();
    assert_eq!(answer, LockAnswer::Granted);
    let all = range(1, Exclusive, 0, u64::MAX);
    table.give(A, all).unwrap();
    assert_eq!(table.range_count(), 1);
}

#[test]
#[should_panic(expected = "is not in the index")]
fn a_waiter_leaves_the_queue_and_the_index_together() {
    let mut table = LockTable::new();
    table.ask(A, INO, range(1, Exclusive, 0, 9), None).unwrap();
    table
        .ask(B, INO, range(2, Exclusive, 0, 9), Some(5))
        .unwrap();
    table.waiters.clear();
    table.release_session(B);
}

#[test]
#[should_panic(expected = "lock ranges are counted")]
fn the_count_of_ranges_covers_those_of_each_owner() {
    let mut table = LockTable::new();
    table.ask(A, INO, range(1, Exclusive, 0, 9), None).unwrap();
    table.ranges = 0;
    table.give(A, range(1, Exclusive, 0, 9)).unwrap();
}
