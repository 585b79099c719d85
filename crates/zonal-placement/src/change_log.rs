//! The last changes that watchers hear of, each with a version.
//!
//! Invariant, held by the tests: a watcher that asks again with the version of its last answer
//! misses no change unnoticed. Where changes behind its version are forgotten, the answer says so.

use std::collections::VecDeque;
use zonal_types::{NodeId, ZoneId};

/// Most changes that are kept.
pub const CHANGES_MAX: usize = 4_096;

/// A change that concerns placing jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlacementChange {
    /// A zone has its first node for jobs.
    ZoneAdded(ZoneId),
    /// A zone has no node for jobs any more.
    ZoneRemoved(ZoneId),
    /// A node takes jobs.
    NodeAdded(ZoneId, NodeId),
    /// A node takes no jobs any more.
    NodeRemoved(ZoneId, NodeId),
    /// Homes of first-level directories changed.
    Junctions,
    /// Nodes of a zone were reserved.
    Reserved(ZoneId, u64),
    /// A reservation ended.
    Released(ZoneId, u64),
    /// A job began.
    JobStarted(ZoneId, u64),
    /// A job ended.
    JobEnded(u64),
}

/// Changes behind a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogChanges {
    /// The newest version.
    pub version: u64,
    /// Whether these are all changes behind the version that was asked for.
    pub is_complete: bool,
    /// The changes with their versions, the oldest first.
    pub changes: Vec<(u64, PlacementChange)>,
}

/// The log of changes.
#[derive(Debug)]
pub struct ChangeLog {
    first: u64,
    changes: VecDeque<PlacementChange>,
}

impl ChangeLog {
    /// Makes an empty log at a version. A process that starts later begins with a higher one.
    #[must_use]
    pub fn new(version: u64) -> Self {
        Self {
            first: version,
            changes: VecDeque::new(),
        }
    }

    /// The newest version.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.first.saturating_add(self.changes.len() as u64)
    }

    /// Adds a change.
    pub fn add(&mut self, change: PlacementChange) {
        if self.changes.len() >= CHANGES_MAX {
            self.changes.pop_front();
            self.first += 1;
        }
        self.changes.push_back(change);
    }

    /// The changes behind a version; `None` where there is nothing new.
    #[must_use]
    pub fn since(&self, version: u64) -> Option<LogChanges> {
        let newest = self.version();
        if version == newest {
            return None;
        }
        // A version above the newest is of another process, whose clock was ahead.
        let is_complete = (self.first..newest).contains(&version);
        let skipped = match is_complete {
            true => usize::try_from(version - self.first).unwrap_or(usize::MAX),
            false => self.changes.len(),
        };
        let changes = (self.first + 1..).zip(self.changes.iter().copied());
        Some(LogChanges {
            version: newest,
            is_complete,
            changes: changes.skip(skipped).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watcher_hears_of_each_change_once() {
        let mut log = ChangeLog::new(100);
        assert_eq!(log.since(100), None);
        log.add(PlacementChange::Junctions);
        log.add(PlacementChange::JobEnded(3));
        let all = log.since(100).unwrap();
        assert_eq!((all.version, all.is_complete), (102, true));
        let expected = [
            (101, PlacementChange::Junctions),
            (102, PlacementChange::JobEnded(3)),
        ];
        assert_eq!(all.changes, expected);
        assert_eq!(log.since(101).unwrap().changes, &expected[1..]);
        assert_eq!(log.since(102), None);
    }

    #[test]
    fn a_watcher_that_was_away_too_long_is_told_so() {
        let mut log = ChangeLog::new(0);
        for job in 0..CHANGES_MAX as u64 + 10 {
            log.add(PlacementChange::JobEnded(job));
        }
        let late = log.since(9).unwrap();
        assert!(!late.is_complete && late.changes.is_empty(), "{late:?}");
        let just = log.since(10).unwrap();
        assert!(just.is_complete);
        assert_eq!(just.changes.len(), CHANGES_MAX);
        // Of another process.
        assert!(!log.since(u64::MAX).unwrap().is_complete);
    }
}
