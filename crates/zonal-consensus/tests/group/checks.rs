//! Promises of a group, checked in every run.

use std::collections::BTreeMap;

use zonal_consensus::{EntryBody, LogEntry, LogIndex, ReplicaId, Term};

/// A promise that was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault(pub &'static str);

#[derive(Default)]
pub struct Checks {
    leaders: BTreeMap<Term, ReplicaId>,
    /// The committed entry at each place.
    committed: BTreeMap<LogIndex, LogEntry>,
    /// Proposals of a leader that were not answered yet.
    waiting: BTreeMap<(ReplicaId, LogIndex), Term>,
    /// Proposals that were answered.
    acknowledged: BTreeMap<LogIndex, Term>,
    durable: BTreeMap<LogIndex, Term>,
    /// A majority lost its power: what was not durable in terms up to this one may be lost.
    doubtful: Option<Term>,
    newest: Term,
}

impl Checks {
    pub fn leads(&mut self, own: ReplicaId, term: Term) -> Result<(), Fault> {
        self.newest = self.newest.max(term);
        match *self.leaders.entry(term).or_insert(own) == own {
            true => Ok(()),
            false => Err(Fault("two leaders of one term")),
        }
    }

    pub fn proposed(&mut self, own: ReplicaId, (index, term): (LogIndex, Term)) {
        self.waiting.insert((own, index), term);
    }

    pub fn applied(&mut self, own: ReplicaId, entry: &LogEntry) -> Result<(), Fault> {
        if self.waiting.remove(&(own, entry.index)) == Some(entry.term)
            && self.doubtful.is_none_or(|doubtful| entry.term > doubtful)
        {
            self.acknowledged.insert(entry.index, entry.term);
        }
        let known = self
            .committed
            .entry(entry.index)
            .or_insert_with(|| entry.clone());
        if known == entry {
            return Ok(());
        }
        let is_doubtful = self
            .doubtful
            .is_some_and(|doubtful| known.term.min(entry.term) <= doubtful);
        if !is_doubtful {
            return Err(Fault("two entries were committed at one place"));
        }
        if entry.term > known.term {
            *known = entry.clone();
        }
        Ok(())
    }

    /// A majority has flushed `entries` up to `durable`.
    pub fn durable(&mut self, entries: &[LogEntry], durable: LogIndex) {
        let flushed = entries.iter().filter(|entry| entry.index <= durable);
        for entry in flushed.rev().take(50) {
            self.durable.insert(entry.index, entry.term);
        }
    }

    pub fn majority_lost_power(&mut self) {
        self.doubtful = Some(self.newest);
        self.acknowledged = self.durable.clone();
    }

    /// A member's log may contradict another's only after a majority lost its power.
    pub fn may_diverge(&self) -> Result<(), Fault> {
        match self.doubtful {
            Some(_) => Ok(()),
            None => Err(Fault("a member's log contradicts its leader's")),
        }
    }

    /// Everything that was answered, and everything durable, is among `applied`.
    pub fn all_acknowledged_in(&self, applied: &[LogEntry]) -> Result<(), Fault> {
        let has: BTreeMap<LogIndex, Term> = applied
            .iter()
            .map(|entry| (entry.index, entry.term))
            .collect();
        let missing = |(index, term): (&LogIndex, &Term)| has.get(index) != Some(term);
        if self.durable.iter().any(missing) {
            return Err(Fault("a durable entry is lost"));
        }
        if self.acknowledged.iter().any(missing) {
            return Err(Fault("an acknowledged entry is lost"));
        }
        let mut seen = std::collections::BTreeSet::new();
        let effects = applied.iter().filter_map(|entry| match &entry.body {
            EntryBody::Effect { bytes } => Some(&bytes.0),
            _ => None,
        });
        for bytes in effects {
            if !seen.insert(bytes) {
                return Err(Fault("an effect was applied twice"));
            }
        }
        match self.acknowledged.len() {
            0 if self.doubtful.is_none() => Err(Fault("nothing was acknowledged")),
            _ => Ok(()),
        }
    }
}
