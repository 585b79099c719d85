//! The ranges that one owner holds in one space of one inode: what a shard decides by, and what a
//! client remembers for its restart.
//!
//! Each piece remembers the open file and the request that took it last ([`RangeOrigin`]), so that a
//! release or a take-back that comes late touches nothing that a later request took.
//!
//! *Invariants*: sorted by start, disjoint, and adjacent pieces differ in kind, open file or
//! request. Ends are inclusive.

use crate::meta::{LockKind, LockRange};

/// How a piece was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeOrigin {
    /// Shared or exclusive.
    pub kind: LockKind,
    /// Who asked, for F_GETLK.
    pub pid: u32,
    /// The open file.
    pub handle: u64,
    /// The request.
    pub number: u64,
}

impl From<&LockRange> for RangeOrigin {
    fn from(range: &LockRange) -> Self {
        let LockRange {
            kind,
            pid,
            handle,
            number,
            ..
        } = *range;
        Self {
            kind,
            pid,
            handle,
            number,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    start: u64,
    end: u64,
    by: RangeOrigin,
}

/// A sorted list of disjoint ranges.
#[derive(Debug, Default)]
pub struct LockRanges {
    held: Vec<Held>,
    settled: u64,
}

impl LockRanges {
    /// An empty list that merges all that is alike.
    #[must_use]
    pub fn merging() -> Self {
        Self {
            held: Vec::new(),
            settled: u64::MAX,
        }
    }

    /// Requests below this number are over for their callers: never taken back, so that what they
    /// took may become one with what newer ones take, and not to be granted when they come late.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Requests below `number` are settled.
    pub fn settle(&mut self, number: u64) {
        self.settled = self.settled.max(number);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True where there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The ranges; owner and space are left 0 and false.
    pub fn iter(&self) -> impl Iterator<Item = LockRange> {
        self.held.iter().map(|held| held.to_range())
    }

    /// Puts `new` (or nothing) in place of what is in `start..=end`. It becomes one with a
    /// neighbour of the same kind and open file whose request is settled.
    pub fn replace(&mut self, start: u64, end: u64, new: Option<RangeOrigin>) {
        let first = self.held.partition_point(|held| held.end < start);
        let behind = self.held.partition_point(|held| held.start <= end);
        // Replacing what touches us, too, makes merging with neighbours the same as merging with
        // remainders.
        let (mut from, mut to) = (first, behind.max(first));
        let mut middle = new.map(|by| Held { start, end, by });
        let mut left = None;
        let mut right = None;
        if first < behind {
            let (low, high) = (self.held[first], self.held[behind - 1]);
            if low.start < start {
                left = Some(Held {
                    end: start - 1,
                    ..low
                });
            }
            if high.end > end {
                right = Some(Held {
                    start: end + 1,
                    ..high
                });
            }
        }
        if let Some(middle) = &mut middle {
            let (by, settled) = (middle.by, self.settled);
            let merges = |near: &Held| near.by.merges(&by, settled);
            if left.is_none()
                && from > 0
                && start > 0
                && self.held[from - 1].end == start - 1
                && merges(&self.held[from - 1])
            {
                from -= 1;
                left = Some(self.held[from]);
            }
            if right.is_none()
                && end < u64::MAX
                && let Some(next) = self.held.get(to)
                && next.start == end + 1
                && merges(next)
            {
                right = Some(*next);
                to += 1;
            }
            if let Some(near) = left.take_if(|near| merges(near)) {
                middle.start = near.start;
                middle.by.number = middle.by.number.max(near.by.number);
            }
            if let Some(near) = right.take_if(|near| merges(near)) {
                middle.end = near.end;
                middle.by.number = middle.by.number.max(near.by.number);
            }
        }
        let pieces = [left, middle, right].into_iter().flatten();
        self.held.splice(from..to, pieces);
    }

    /// Puts `new` in its range, but not in place of what a request with a higher number took.
    pub fn reclaim(&mut self, new: &LockRange) {
        let later: Vec<LockRange> = self
            .within(new.start, new.end)
            .filter(|held| held.number > new.number)
            .collect();
        self.replace(new.start, new.end, Some(new.into()));
        for held in later {
            self.replace(held.start, held.end, Some((&held).into()));
        }
    }

    /// Gives up what `is_meant` of `start..=end`.
    pub fn give_up(&mut self, start: u64, end: u64, is_meant: impl Fn(&LockRange) -> bool) {
        if self.within(start, end).all(|held| is_meant(&held)) {
            return self.replace(start, end, None);
        }
        let meant: Vec<LockRange> = self.within(start, end).filter(is_meant).collect();
        for held in meant {
            self.replace(held.start, held.end, None);
        }
    }

    /// The request `number` did not happen: what it holds of `start..=end` is as in `before`, but
    /// never more than it is now.
    pub fn take_back(&mut self, start: u64, end: u64, number: u64, before: &[LockRange]) {
        let taken: Vec<LockRange> = self
            .within(start, end)
            .filter(|held| held.number == number)
            .collect();
        for held in taken {
            self.replace(held.start, held.end, None);
            let before = before
                .iter()
                .filter(|old| old.start <= held.end && held.start <= old.end);
            for old in before {
                let kind = old.kind.min(held.kind);
                let (start, end) = (old.start.max(held.start), old.end.min(held.end));
                let by = RangeOrigin {
                    kind,
                    ..RangeOrigin::from(old)
                };
                self.replace(start, end, Some(by));
            }
        }
    }

    /// What there is of `start..=end`; owner and space are left 0 and false.
    pub fn within(&self, start: u64, end: u64) -> impl Iterator<Item = LockRange> {
        let first = self.held.partition_point(|held| held.end < start);
        let behind = self.held.partition_point(|held| held.start <= end);
        let held = self.held.get(first..behind).unwrap_or_default();
        held.iter().map(move |held| LockRange {
            start: held.start.max(start),
            end: held.end.min(end),
            ..held.to_range()
        })
    }

    /// The first range that stands in the way of `wanted` of another owner.
    #[must_use]
    pub fn conflict(&self, wanted: &LockRange) -> Option<LockRange> {
        let first = self.held.partition_point(|held| held.end < wanted.start);
        let (at, found) = self.held[first..]
            .iter()
            .enumerate()
            .take_while(|(_, held)| held.start <= wanted.end)
            .find(|(_, held)| {
                held.by.kind == LockKind::Exclusive || wanted.kind == LockKind::Exclusive
            })?;
        // One lock for a program, though several requests took it.
        let mut range = found.to_range();
        for next in &self.held[first + at + 1..] {
            if range.end == u64::MAX || next.start != range.end + 1 || next.by.kind != range.kind {
                break;
            }
            range.end = next.end;
        }
        for before in self.held[..first + at].iter().rev() {
            if range.start == 0 || before.end != range.start - 1 || before.by.kind != range.kind {
                break;
            }
            range.start = before.start;
        }
        Some(range)
    }

    /// True where one range reaches beyond both ends, so that a hole there makes two of it.
    #[must_use]
    pub fn contains_inside(&self, start: u64, end: u64) -> bool {
        let first = self.held.partition_point(|held| held.end < start);
        self.held
            .get(first)
            .is_some_and(|held| held.start < start && held.end > end)
    }

    /// True where the invariants hold and there is something.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        let is_apart = |one: &Held, next: &Held| {
            let is_same = RangeOrigin { pid: 0, ..one.by } == RangeOrigin { pid: 0, ..next.by };
            one.end < next.start && (!is_same || one.end + 1 < next.start)
        };
        !self.held.is_empty()
            && self.held.iter().all(|held| held.start <= held.end)
            && self
                .held
                .windows(2)
                .all(|pair| is_apart(&pair[0], &pair[1]))
    }
}

impl RangeOrigin {
    fn merges(&self, newer: &Self, settled: u64) -> bool {
        self.kind == newer.kind
            && self.handle == newer.handle
            && (self.number == newer.number || self.number < settled)
    }
}

impl Held {
    fn to_range(self) -> LockRange {
        let RangeOrigin {
            kind,
            pid,
            handle,
            number,
        } = self.by;
        LockRange {
            whole_file: false,
            owner: 0,
            handle,
            number,
            pid,
            kind,
            start: self.start,
            end: self.end,
        }
    }
}
