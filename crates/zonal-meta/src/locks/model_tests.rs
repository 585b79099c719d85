//! The lock table against a plain model: a lock for each byte, with the open file and the request
//! that took it. A sequence of requests that fails shrinks to a short one.
//!
//! Requests come late, too: an unlock or a close may name an earlier request, and a cancellation (a
//! signal) names any earlier request.

use super::*;
use proptest::prelude::*;
use proptest::sample::Index;

const INO: Ino = Ino(7);
/// The last byte of the model stands for all bytes from there on.
const LAST: u64 = 11;
/// Owners, in two sessions.
const OWNERS: u64 = 6;
/// Too few for a waiter to be overtaken so often that it stops newcomers.
const STEPS: usize = 48;

#[derive(Debug, Clone, Copy)]
struct Part {
    owner: u64,
    whole_file: bool,
    from: u64,
    to: u64,
}

#[derive(Debug, Clone)]
enum Step {
    Lock {
        part: Part,
        handle: u64,
        is_shared: bool,
        waits: bool,
    },
    Unlock {
        part: Part,
        is_late: bool,
    },
    Close {
        part: Part,
        handle: Option<u64>,
        is_late: bool,
    },
    Signal {
        request: Index,
    },
    EndSession {
        second: bool,
    },
}

fn part() -> impl Strategy<Value = Part> {
    let whole_file = prop::bool::weighted(0.2);
    (0..OWNERS, whole_file, 0..=LAST, 0..=LAST).prop_map(|(owner, whole_file, one, other)| Part {
        owner,
        whole_file,
        from: one.min(other),
        to: one.max(other),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let late = || prop::bool::weighted(0.3);
    prop_oneof![
        8 => (part(), 1..4_u64, any::<bool>(), any::<bool>()).prop_map(
            |(part, handle, is_shared, waits)| Step::Lock { part, handle, is_shared, waits }
        ),
        4 => (part(), late()).prop_map(|(part, is_late)| Step::Unlock { part, is_late }),
        2 => (part(), prop::option::of(1..4_u64), late()).prop_map(
            |(part, handle, is_late)| Step::Close { part, handle, is_late }
        ),
        3 => any::<Index>().prop_map(|request| Step::Signal { request }),
        1 => any::<bool>().prop_map(|second| Step::EndSession { second }),
    ]
}

impl Part {
    fn owner(self) -> LockOwner {
        (SessionId(1 + self.owner % 2), self.owner / 2)
    }

    fn range(self, handle: u64, number: u64, is_shared: bool) -> LockRange {
        let end = if self.to == LAST { u64::MAX } else { self.to };
        let (start, end) = match self.whole_file {
            true => (0, u64::MAX),
            false => (self.from, end),
        };
        LockRange {
            whole_file: self.whole_file,
            owner: self.owner().1,
            handle,
            number,
            pid: 0,
            kind: match is_shared {
                true => LockKind::Shared,
                false => LockKind::Exclusive,
            },
            start,
            end,
        }
    }
}

/// A lock of one byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ByteLock {
    kind: LockKind,
    handle: u64,
    number: u64,
}

type ByteLocks = BTreeMap<(bool, LockOwner, u64), ByteLock>;

#[derive(Debug, Clone, Copy)]
struct QueuedRequest {
    session: SessionId,
    waiter: u64,
    range: LockRange,
}

/// A request of the sequence, and what its owner held in its range before.
#[derive(Debug)]
struct PastRequest {
    session: SessionId,
    range: LockRange,
    before: Vec<LockRange>,
}

#[derive(Debug, Default)]
struct Model {
    bytes: ByteLocks,
    queue: Vec<QueuedRequest>,
}

fn bytes_of(range: &LockRange) -> std::ops::RangeInclusive<u64> {
    range.start..=range.end.min(LAST)
}

impl Model {
    fn blockers(&self, owner: LockOwner, want: &LockRange) -> BTreeSet<LockOwner> {
        let is_shared = want.kind == LockKind::Shared;
        let mut blockers = BTreeSet::new();
        for ((whole_file, other, at), held) in &self.bytes {
            let overlaps = *whole_file == want.whole_file && bytes_of(want).contains(at);
            if *other != owner && overlaps && !(is_shared && held.kind == LockKind::Shared) {
                blockers.insert(*other);
            }
        }
        blockers
    }

    fn is_free(&self, owner: LockOwner, want: &LockRange) -> bool {
        self.blockers(owner, want).is_empty()
    }

    /// Whether the owner would wait for itself, by way of the owners that wait now.
    fn closes_a_ring(&self, owner: LockOwner, want: &LockRange) -> bool {
        let mut reached = self.blockers(owner, want);
        loop {
            let before = reached.len();
            for waiter in self.queue.iter().filter(|waiter| !waiter.range.whole_file) {
                let waits = (waiter.session, waiter.range.owner);
                if reached.contains(&waits) {
                    reached.extend(self.blockers(waits, &waiter.range));
                }
            }
            if reached.len() == before {
                return reached.contains(&owner);
            }
        }
    }

    fn take(&mut self, owner: LockOwner, range: &LockRange) {
        let LockRange {
            kind,
            handle,
            number,
            ..
        } = *range;
        let lock = ByteLock {
            kind,
            handle,
            number,
        };
        for at in bytes_of(range) {
            let held = self
                .bytes
                .entry((range.whole_file, owner, at))
                .or_insert(lock);
            if held.number <= number || held.kind < kind {
                *held = lock;
            }
        }
    }

    fn give_up(&mut self, owner: LockOwner, range: &LockRange, gone: impl Fn(&ByteLock) -> bool) {
        self.bytes.retain(|(whole_file, other, at), held| {
            let is_meant = *other == owner && *whole_file == range.whole_file;
            !(is_meant && bytes_of(range).contains(at) && gone(held))
        });
    }

    fn take_back(&mut self, request: &PastRequest) {
        let (owner, range) = ((request.session, request.range.owner), &request.range);
        for at in bytes_of(range) {
            let key = (range.whole_file, owner, at);
            let Some(held) = self.bytes.get(&key).copied() else {
                continue;
            };
            if held.number != range.number {
                continue;
            }
            self.bytes.remove(&key);
            if let Some(old) = request
                .before
                .iter()
                .find(|old| bytes_of(old).contains(&at))
            {
                let restored = ByteLock {
                    kind: old.kind.min(held.kind),
                    handle: old.handle,
                    number: old.number,
                };
                self.bytes.insert(key, restored);
            }
        }
    }

    /// Grants waiters in order of arrival, from the first one anew after each grant.
    fn serve(&mut self) -> Vec<Granted> {
        let mut woken = Vec::new();
        while let Some(at) = self
            .queue
            .iter()
            .position(|queued| self.is_free((queued.session, queued.range.owner), &queued.range))
        {
            let queued = self.queue.remove(at);
            self.take((queued.session, queued.range.owner), &queued.range);
            let waiter = queued.waiter;
            let granted = Event::LockGranted { ino: INO, waiter };
            woken.push((queued.session, granted));
        }
        woken
    }

    /// The owner's ranges within a range: byte by byte, or the one of flock.
    fn held_within(&self, owner: LockOwner, range: &LockRange) -> Vec<LockRange> {
        let held = bytes_of(range).filter_map(|at| {
            let held = self.bytes.get(&(range.whole_file, owner, at))?;
            let end = if at == LAST { u64::MAX } else { at };
            let (start, end) = match range.whole_file {
                true => (0, u64::MAX),
                false => (at, end),
            };
            Some(LockRange {
                kind: held.kind,
                handle: held.handle,
                number: held.number,
                start,
                end,
                ..*range
            })
        });
        let most = if range.whole_file { 1 } else { usize::MAX };
        held.take(most).collect()
    }

    /// The model's answer to a lock request, with the waiters that it lets in.
    fn lock(
        &mut self,
        session: SessionId,
        range: LockRange,
        waiter: Option<u64>,
    ) -> Result<(LockAnswer, Vec<Granted>), ErrorCode> {
        let owner = (session, range.owner);
        let mut woken = Vec::new();
        let held = self.held_within(owner, &range);
        if range.whole_file && held.first().is_some_and(|held| held.kind != range.kind) {
            // A conversion by flock gives up the old lock first.
            self.give_up(owner, &range, |_held| true);
            if range.kind == LockKind::Shared {
                self.take(owner, &range);
            }
            woken = self.serve();
        }
        if self.is_free(owner, &range) {
            self.take(owner, &range);
            woken.extend(self.serve());
            return Ok((LockAnswer::Granted, woken));
        }
        let Some(waiter) = waiter else {
            return Ok((LockAnswer::Conflict, woken));
        };
        if !range.whole_file && self.closes_a_ring(owner, &range) {
            return Err(ErrorCode::Deadlock);
        }
        self.queue.push(QueuedRequest {
            session,
            waiter,
            range,
        });
        Ok((LockAnswer::Queued, woken))
    }
}

/// The locks of the table, byte by byte.
fn bytes_of_table(table: &LockTable) -> ByteLocks {
    let mut bytes = ByteLocks::new();
    let Some(file) = table.files.get(&INO) else {
        return bytes;
    };
    for (whole_file, space) in [(false, &file.posix), (true, &file.flock)] {
        for (owner, ranges) in space {
            for held in ranges.iter() {
                let lock = ByteLock {
                    kind: held.kind,
                    handle: held.handle,
                    number: held.number,
                };
                bytes.extend(bytes_of(&held).map(|at| ((whole_file, *owner, at), lock)));
            }
        }
    }
    bytes
}

/// Makes a step at both, and compares their answers.
fn make(
    step: &Step,
    number: u64,
    (table, model): (&mut LockTable, &mut Model),
    past: &mut Vec<PastRequest>,
) -> Result<(), TestCaseError> {
    let before = |is_late: bool| if is_late { number / 2 } else { number };
    match step {
        Step::Lock {
            part,
            handle,
            is_shared,
            waits,
        } => {
            let (session, _) = part.owner();
            let range = part.range(*handle, number, *is_shared);
            past.push(PastRequest {
                session,
                range,
                before: model.held_within(part.owner(), &range),
            });
            let waiter = waits.then_some(number);
            let answer = table.lock(session, INO, range, waiter, 0);
            prop_assert_eq!(answer, model.lock(session, range, waiter));
        }
        Step::Unlock { part, is_late } => {
            let range = part.range(0, before(*is_late), true);
            let woken = table.unlock(part.owner().0, INO, range);
            model.give_up(part.owner(), &range, |held| held.number < range.number);
            prop_assert_eq!(woken, Ok(model.serve()));
        }
        Step::Close {
            part,
            handle,
            is_late,
        } => {
            let ((session, owner), number) = (part.owner(), before(*is_late));
            let owner = (owner, part.whole_file);
            let woken = table.release_owner(session, INO, owner, *handle, number);
            let whole = Part {
                from: 0,
                to: LAST,
                ..*part
            };
            model.give_up(part.owner(), &whole.range(0, 0, true), |held| {
                held.number < number && handle.is_none_or(|handle| held.handle == handle)
            });
            prop_assert_eq!(woken, model.serve());
        }
        Step::Signal { request } => {
            if past.is_empty() {
                return Ok(());
            }
            let request = request.get(past.as_slice());
            let PastRequest {
                session,
                range,
                before,
            } = request;
            let woken = table.cancel(*session, INO, *range, Some(range.number), before);
            let is_it = |one: &QueuedRequest| one.waiter == range.number;
            model.queue.retain(|queued| !is_it(queued));
            model.take_back(request);
            prop_assert_eq!(woken, Ok(model.serve()));
        }
        Step::EndSession { second } => {
            let session = SessionId(1 + u64::from(*second));
            let woken = table.release_session(session);
            model.bytes.retain(|(_, owner, _), _| owner.0 != session);
            model.queue.retain(|queued| queued.session != session);
            prop_assert_eq!(woken, model.serve());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_table_holds_what_a_lock_for_each_byte_holds(
        steps in prop::collection::vec(step(), 1..STEPS),
    ) {
        let (mut table, mut model) = (LockTable::new(), Model::default());
        let mut past = Vec::new();
        for (number, step) in (1..).zip(&steps) {
            make(step, number, (&mut table, &mut model), &mut past)?;
            prop_assert_eq!(bytes_of_table(&table), model.bytes.clone());
            prop_assert_eq!(table.waiter_count(), model.queue.len());
            prop_assert_eq!(table.check(), Vec::<String>::new());
        }
    }
}
