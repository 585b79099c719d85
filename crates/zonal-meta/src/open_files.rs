//! Open files: how often each session has each file open, and the orphans that live only because of
//! it.
//!
//! Counts are volatile: clients tell them again after a restart. The holders of an orphan are
//! durable.

use std::collections::{BTreeMap, BTreeSet};
use zonal_types::{Ino, PartitionId, SessionId};

/// The ways in which a session has a file open.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenModes {
    pub reads: bool,
    pub writes: bool,
}

/// Why the shard takes a file for open in some ways. A client that may not speak for everybody uses
/// a file only in ways that were granted.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OpenClaims {
    /// By opens whose user had the right.
    pub granted: OpenModes,
    /// By what the client tells after a restart, when nobody checks the right of a user.
    pub told: OpenModes,
}

impl OpenModes {
    /// Every way, where the shard does not know which.
    pub const ALL: Self = Self {
        reads: true,
        writes: true,
    };

    fn add(&mut self, more: Self) {
        self.reads |= more.reads;
        self.writes |= more.writes;
    }

    /// The ways of both.
    pub fn or(mut self, other: Self) -> Self {
        self.add(other);
        self
    }
}

/// Open counts and orphans.
#[derive(Debug, Default)]
pub(crate) struct OpenFiles {
    counts: BTreeMap<Ino, BTreeMap<SessionId, u32>>,
    entries: usize,
    /// Number of files that each session has open, where it has any.
    files: BTreeMap<SessionId, u32>,
    /// Files whose bytes behind the end are known to one session alone: it has the file open, and
    /// nobody else had since.
    owners: BTreeMap<Ino, SessionId>,
    /// How, of sessions that have proved whose they are.
    ways: BTreeMap<(Ino, SessionId), OpenClaims>,
    /// Inodes without a name, with the sessions that hold them.
    pub orphans: BTreeMap<Ino, BTreeSet<SessionId>>,
}

impl OpenFiles {
    /// Number of {file, session} pairs.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Sessions that have files of a partition open, or held orphans of it.
    pub fn sessions_in(&self, partition: PartitionId) -> BTreeSet<SessionId> {
        let range = partition.inos();
        let open = self.counts.range(range.clone());
        let open = open.flat_map(|(_ino, of)| of.keys().copied());
        let orphans = self.orphans.range(range);
        let orphans = orphans.flat_map(|(_ino, of)| of.iter().copied());
        open.chain(orphans).collect()
    }

    pub fn open(&mut self, ino: Ino, session: SessionId) {
        if self.owner(ino).is_some_and(|owner| owner != session) {
            self.owners.remove(&ino);
        }
        let of = self.counts.entry(ino).or_default();
        let count = of.entry(session).or_insert_with(|| {
            self.entries += 1;
            *self.files.entry(session).or_default() += 1;
            0
        });
        *count = count.saturating_add(1);
    }

    /// Counts one open less; true where that was the session's last.
    pub fn close(&mut self, ino: Ino, session: SessionId) -> bool {
        let Some(of) = self.counts.get_mut(&ino) else {
            return true;
        };
        let Some(count) = of.get_mut(&session) else {
            return true;
        };
        assert!(*count > 0, "{session:?} has {ino} open no times");
        *count -= 1;
        if *count > 0 {
            return false;
        }
        of.remove(&session);
        self.ways.remove(&(ino, session));
        if of.is_empty() {
            self.counts.remove(&ino);
        }
        if self.owners.get(&ino) == Some(&session) {
            self.owners.remove(&ino);
        }
        self.entries -= 1;
        let files = self.files.get_mut(&session);
        assert!(files.is_some(), "no open file of {session:?} is counted");
        if let Some(files) = files {
            *files -= 1;
            if *files == 0 {
                self.files.remove(&session);
            }
        }
        true
    }

    /// Notes that only this session, which has the file open, knows the bytes behind its end.
    pub fn own(&mut self, ino: Ino, session: SessionId) {
        if self.count(ino, session) > 0 {
            self.owners.insert(ino, session);
        }
    }

    /// Notes that no session alone knows the bytes behind the end.
    pub fn disown(&mut self, ino: Ino) {
        self.owners.remove(&ino);
    }

    /// The session that alone knows the bytes behind a file's end.
    pub fn owner(&self, ino: Ino) -> Option<SessionId> {
        self.owners.get(&ino).copied()
    }

    /// The session opened it in these ways, for a user who may, if it has it open.
    pub fn grant(&mut self, ino: Ino, session: SessionId, more: OpenModes) {
        if self.count(ino, session) > 0 {
            self.ways
                .entry((ino, session))
                .or_default()
                .granted
                .add(more);
        }
    }

    /// The session tells that it has it open, if it has; in which ways is not told.
    pub fn tell(&mut self, ino: Ino, session: SessionId) {
        if self.count(ino, session) > 0 {
            self.ways.entry((ino, session)).or_default().told = OpenModes::ALL;
        }
    }

    /// In which ways the session has it open, as far as that was noted; `None`: in none.
    pub fn ways(&self, ino: Ino, session: SessionId) -> Option<OpenClaims> {
        (self.count(ino, session) > 0)
            .then(|| self.ways.get(&(ino, session)).copied().unwrap_or_default())
    }

    /// Number of opens of the session.
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

    /// Number of files that the session has open.
    pub fn files_of(&self, session: SessionId) -> u32 {
        self.files.get(&session).copied().unwrap_or(0)
    }

    /// Forgets a session. The caller handles its orphans.
    pub fn drop_session(&mut self, session: SessionId) {
        let Some(files) = self.files.remove(&session) else {
            return;
        };
        let before = self.entries;
        self.owners.retain(|_ino, owner| *owner != session);
        self.ways.retain(|(_ino, of), _ways| *of != session);
        let entries = &mut self.entries;
        self.counts.retain(|_ino, of| {
            if of.remove(&session).is_some() {
                *entries -= 1;
            }
            !of.is_empty()
        });
        assert_eq!(
            before - self.entries,
            files as usize,
            "the open files of {session:?} are counted wrongly"
        );
    }

    /// Orphans that the session holds.
    pub fn orphans_of(&self, session: SessionId) -> Vec<Ino> {
        let held = self.orphans.iter();
        held.filter(|(_, sessions)| sessions.contains(&session))
            .map(|(ino, _)| *ino)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_testkit::Rng;

    #[test]
    fn files_open_are_counted_as_a_walk_finds_them() {
        let mut rng = Rng(7);
        let mut opens = OpenFiles::default();
        for _ in 0..20_000 {
            let (ino, session) = (Ino(rng.below(40)), SessionId(rng.below(6)));
            match rng.below(200) {
                0 => opens.drop_session(session),
                1..=100 => opens.open(ino, session),
                _ => drop(opens.close(ino, session)),
            }
            let mut walked = BTreeMap::<SessionId, u32>::new();
            for session in opens.counts.values().flat_map(BTreeMap::keys) {
                *walked.entry(*session).or_default() += 1;
            }
            assert_eq!(opens.files, walked);
            assert_eq!(opens.len(), walked.values().sum::<u32>() as usize);
        }
    }

    #[test]
    #[should_panic(expected = "open no times")]
    fn a_file_that_is_open_no_times_cannot_be_closed() {
        let mut opens = OpenFiles::default();
        let (ino, session) = (Ino(1), SessionId(1));
        opens.open(ino, session);
        opens.counts.get_mut(&ino).unwrap().insert(session, 0);
        opens.close(ino, session);
    }

    #[test]
    #[should_panic(expected = "counted wrongly")]
    fn the_files_of_a_dropped_session_agree_with_their_count() {
        let mut opens = OpenFiles::default();
        opens.open(Ino(1), SessionId(1));
        opens.files.insert(SessionId(1), 2);
        opens.drop_session(SessionId(1));
    }
}
