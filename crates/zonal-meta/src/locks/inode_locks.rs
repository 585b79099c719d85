//! Locks on one inode: the holders in each of the two spaces, and the queue of waiters.

use super::{LockOwner, OVERTAKEN_MAX};
use std::collections::{BTreeMap, VecDeque};
use zonal_types::SessionId;
use zonal_wire::LockRanges;
use zonal_wire::meta::{LockKind, LockRange};

#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) session: SessionId,
    pub(super) waiter: u64,
    pub(super) range: LockRange,
    pub(super) settled: u64,
    pub(super) overtaken: u32,
}

impl Waiter {
    pub(super) fn owner(&self) -> LockOwner {
        (self.session, self.range.owner)
    }
}

/// Holders in one space of one inode.
pub(super) type Space = BTreeMap<LockOwner, LockRanges>;

#[derive(Debug, Default)]
pub(super) struct FileLocks {
    pub(super) posix: Space,
    pub(super) flock: Space,
    pub(super) queue: VecDeque<Waiter>,
}

impl FileLocks {
    pub(super) fn space(&self, whole_file: bool) -> &Space {
        if whole_file { &self.flock } else { &self.posix }
    }

    pub(super) fn space_mut(&mut self, whole_file: bool) -> &mut Space {
        if whole_file {
            &mut self.flock
        } else {
            &mut self.posix
        }
    }

    /// Owners whose locks conflict with `range`.
    pub(super) fn blockers<'a>(
        &'a self,
        owner: LockOwner,
        range: &'a LockRange,
    ) -> impl Iterator<Item = (LockOwner, LockRange)> + 'a {
        self.space(range.whole_file)
            .iter()
            .filter(move |(other, _ranges)| **other != owner)
            .filter_map(move |(other, ranges)| {
                let held = ranges.conflict(range)?;
                Some((
                    *other,
                    LockRange {
                        whole_file: range.whole_file,
                        owner: other.1,
                        ..held
                    },
                ))
            })
    }

    /// True where a waiter among the first `before` was overtaken too often for `range` to pass it.
    pub(super) fn must_queue(&self, owner: LockOwner, range: &LockRange, before: usize) -> bool {
        if self.space(range.whole_file).contains_key(&owner) {
            return false;
        }
        self.queue.iter().take(before).any(|waiter| {
            waiter.overtaken >= OVERTAKEN_MAX
                && waiter.owner() != owner
                && conflicts(&waiter.range, range)
        })
    }

    pub(super) fn concerns(&self, session: SessionId) -> bool {
        let owners = (session, 0)..=(session, u64::MAX);
        self.posix.range(owners.clone()).next().is_some()
            || self.flock.range(owners).next().is_some()
            || self.queue.iter().any(|waiter| waiter.session == session)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posix.is_empty() && self.flock.is_empty() && self.queue.is_empty()
    }
}

pub(super) fn conflicts(one: &LockRange, other: &LockRange) -> bool {
    one.whole_file == other.whole_file
        && one.start <= other.end
        && other.start <= one.end
        && (one.kind == LockKind::Exclusive || other.kind == LockKind::Exclusive)
}
