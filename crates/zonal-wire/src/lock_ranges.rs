//! The ranges that one owner holds in one space of one inode: what a shard decides by, and what a client remembers for its restart.
//!
//! *Invariants*: sorted by start, disjoint, and adjacent ranges differ in kind. Ends are inclusive.

use crate::meta::{LockKind, LockRange};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    start: u64,
    end: u64,
    kind: LockKind,
    pid: u32,
}

/// A sorted list of disjoint ranges.
#[derive(Debug, Default)]
pub struct LockRanges {
    held: Vec<Held>,
}

impl LockRanges {
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

    /// Puts `new` (or nothing) in place of what is in `start..=end`.
    pub fn replace(&mut self, start: u64, end: u64, new: Option<(LockKind, u32)>) {
        let first = self.held.partition_point(|held| held.end < start);
        let behind = self.held.partition_point(|held| held.start <= end);
        // Replacing what touches us, too, makes merging with neighbours the same as merging with remainders.
        let (mut from, mut to) = (first, behind.max(first));
        let mut middle = new.map(|(kind, pid)| Held {
            start,
            end,
            kind,
            pid,
        });
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
            if left.is_none()
                && from > 0
                && start > 0
                && self.held[from - 1].end == start - 1
                && self.held[from - 1].kind == middle.kind
            {
                from -= 1;
                left = Some(self.held[from]);
            }
            if right.is_none()
                && end < u64::MAX
                && let Some(next) = self.held.get(to)
                && next.start == end + 1
                && next.kind == middle.kind
            {
                right = Some(*next);
                to += 1;
            }
            if let Some(near) = left.take_if(|near| near.kind == middle.kind) {
                middle.start = near.start;
            }
            if let Some(near) = right.take_if(|near| near.kind == middle.kind) {
                middle.end = near.end;
            }
        }
        let pieces = [left, middle, right].into_iter().flatten();
        self.held.splice(from..to, pieces);
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

    /// True where one range of this kind has all of `wanted`.
    #[must_use]
    pub fn covers(&self, wanted: &LockRange) -> bool {
        let first = self.held.partition_point(|held| held.end < wanted.start);
        self.held.get(first).is_some_and(|held| {
            held.start <= wanted.start && held.end >= wanted.end && held.kind == wanted.kind
        })
    }

    /// The first range that stands in the way of `wanted` of another owner.
    #[must_use]
    pub fn conflict(&self, wanted: &LockRange) -> Option<LockRange> {
        let first = self.held.partition_point(|held| held.end < wanted.start);
        self.held[first..]
            .iter()
            .take_while(|held| held.start <= wanted.end)
            .find(|held| held.kind == LockKind::Exclusive || wanted.kind == LockKind::Exclusive)
            .map(|held| held.to_range())
    }

    /// True where one range reaches beyond both ends, so that a hole there makes two of it.
    #[must_use]
    pub fn contains_inside(&self, start: u64, end: u64) -> bool {
        let first = self.held.partition_point(|held| held.end < start);
        self.held
            .get(first)
            .is_some_and(|held| held.start < start && held.end > end)
    }

    /// True where there is something, and the invariants hold.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        !self.held.is_empty()
            && self.held.iter().all(|held| held.start <= held.end)
            && self.held.windows(2).all(|pair| {
                pair[0].end < pair[1].start
                    && (pair[0].kind != pair[1].kind || pair[0].end + 1 < pair[1].start)
            })
    }
}

impl Held {
    fn to_range(self) -> LockRange {
        LockRange {
            whole_file: false,
            owner: 0,
            pid: self.pid,
            kind: self.kind,
            start: self.start,
            end: self.end,
        }
    }
}
