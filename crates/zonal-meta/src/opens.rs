//! Which session has which file open, how often; and the inodes that live only because of it.
//!
//! Counts are volatile (clients tell them again after a restart); the sessions of an orphan are durable.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{Ino, SessionId};

/// Open counts and orphans.
#[derive(Debug, Default)]
pub(crate) struct Opens {
    counts: BTreeMap<Ino, BTreeMap<SessionId, u32>>,
    entries: usize,
    /// Inodes without a name, with the sessions that hold them.
    pub orphans: BTreeMap<Ino, BTreeSet<SessionId>>,
}

impl Opens {
    /// Pairs of file and session.
    pub fn len(&self) -> usize {
        self.entries
    }

    pub fn open(&mut self, ino: Ino, session: SessionId) {
        let of = self.counts.entry(ino).or_default();
        let count = of.entry(session).or_insert_with(|| {
            self.entries += 1;
            0
        });
        *count = count.saturating_add(1);
    }

    /// One open less; true where that was the session's last.
    pub fn close(&mut self, ino: Ino, session: SessionId) -> bool {
        let Some(of) = self.counts.get_mut(&ino) else {
            return true;
        };
        let Some(count) = of.get_mut(&session) else {
            return true;
        };
        *count -= 1;
        if *count > 0 {
            return false;
        }
        of.remove(&session);
        self.entries -= 1;
        if of.is_empty() {
            self.counts.remove(&ino);
        }
        true
    }

    /// How often the session has it open.
    pub fn count(&self, ino: Ino, session: SessionId) -> u32 {
        let of = self.counts.get(&ino);
        of.and_then(|of| of.get(&session)).copied().unwrap_or(0)
    }

    /// Sessions that have it open.
    pub fn holders(&self, ino: Ino) -> BTreeSet<SessionId> {
        let of = self.counts.get(&ino);
        of.map(|of| of.keys().copied().collect())
            .unwrap_or_default()
    }

    /// For each open file the sessions that have it open.
    pub fn open_by(&self) -> impl Iterator<Item = impl Iterator<Item = SessionId> + '_> + '_ {
        self.counts.values().map(|of| of.keys().copied())
    }

    /// Forgets a session. Its orphans are left for the caller.
    pub fn drop_session(&mut self, session: SessionId) {
        let entries = &mut self.entries;
        self.counts.retain(|_ino, of| {
            if of.remove(&session).is_some() {
                *entries -= 1;
            }
            !of.is_empty()
        });
    }

    /// Orphans that the session holds.
    pub fn orphans_of(&self, session: SessionId) -> Vec<Ino> {
        let held = self.orphans.iter();
        held.filter(|(_, sessions)| sessions.contains(&session))
            .map(|(ino, _)| *ino)
            .collect()
    }
}
