//! Lock ranges that an owner holds in one space of one inode. Shards decide by them; clients keep
//! a copy to reclaim after a restart of the shard.
//!
//! Each piece remembers the open file and the request that took it last ([`RangeOrigin`]). So a
//! late release or cancellation does not touch a piece that a later request took.
//!
//! *Invariants*: pieces are sorted by start and disjoint; adjacent ones differ in kind, open file
//! or request. Ends are inclusive.

use crate::meta::{LockKind, LockRange};

/// The request that took a piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeOrigin {
    /// Shared or exclusive.
    pub kind: LockKind,
    /// The requesting process, for F_GETLK.
    pub pid: u32,
    /// The open file.
    pub handle: u64,
    /// The request's number.
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
    /// An empty list that merges all pieces of the same kind and open file.
    #[must_use]
    pub fn merging() -> Self {
        Self {
            held: Vec::new(),
            settled: u64::MAX,
        }
    }

    /// Requests below this number are settled: they are never cancelled, and not granted when they
    /// come late. So their pieces may be merged with those of newer requests.
    #[must_use]
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// Settles the requests below `number`.
    pub fn settle(&mut self, number: u64) {
        self.settled = self.settled.max(number);
    }

    /// Number of pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// True where there is no piece.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The pieces as ranges; their owner and space are left 0 and false.
    pub fn iter(&self) -> impl Iterator<Item = LockRange> {
        self.held.iter().map(|held| held.to_range())
    }

    /// Replaces the pieces in `start..=end` by `new` (or nothing). Merges it with a neighbour of
    /// the same kind and open file whose request is settled.
    pub fn replace(&mut self, start: u64, end: u64, new: Option<RangeOrigin>) {
        let first = self.held.partition_point(|held| held.end < start);
        let behind = self.held.partition_point(|held| held.start <= end);
        // Replaces touching pieces, too: then merging with neighbours is the same as merging with
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

    /// Takes `new`, except where a request with a higher number took the range.
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

    /// Takes `new`, except parts that a later request holds, at least as strongly: an older request
    /// that is withdrawn late must not end them. Where there would be more than `room` pieces, it
    /// takes all of it.
    pub fn take(&mut self, new: &LockRange, room: usize) {
        let later: Vec<LockRange> = self
            .within(new.start, new.end)
            .filter(|held| held.number > new.number && held.kind >= new.kind)
            .collect();
        self.replace(new.start, new.end, Some(new.into()));
        for held in later {
            if self.len() + 2 <= room {
                self.replace(held.start, held.end, Some((&held).into()));
            }
        }
    }

    /// Releases the pieces of `start..=end` for which `is_meant` holds.
    pub fn give_up(&mut self, start: u64, end: u64, is_meant: impl Fn(&LockRange) -> bool) {
        if self.within(start, end).all(|held| is_meant(&held)) {
            return self.replace(start, end, None);
        }
        let meant: Vec<LockRange> = self.within(start, end).filter(is_meant).collect();
        for held in meant {
            self.replace(held.start, held.end, None);
        }
    }

    /// Cancels the request `number`: restores its part of `start..=end` from `before`, but never to
    /// more than it is now.
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

    /// The pieces within `start..=end`; their owner and space are left 0 and false.
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

    /// The first piece that conflicts with `wanted` of another owner.
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
        // One lock for the program, even though several requests took it.
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

    /// True where one piece reaches beyond both ends, so that a hole there splits it in two.
    #[must_use]
    pub fn contains_inside(&self, start: u64, end: u64) -> bool {
        let first = self.held.partition_point(|held| held.end < start);
        self.held
            .get(first)
            .is_some_and(|held| held.start < start && held.end > end)
    }

    /// True where the invariants hold and the list is not empty.
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
