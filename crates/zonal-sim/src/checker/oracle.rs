//! Oracle of a directory that a single client changes; unknown outcomes stay unknown (invariants 2
//! and 3 for names).
//!
//! The oracle holds every state that the directory may be in. An operation that was answered
//! changes each state. An operation whose client died leaves the states before it possible, too.
//! *Firm* states are those where no power was lost since the last sync; after an answered sync only
//! they are possible. Each listing must fit one of the states.

use std::collections::BTreeMap;
use zonal_types::Ino;

/// Names with inodes; `None` where the answer to the operation that made the name was lost.
pub type DirectoryState = BTreeMap<String, Option<Ino>>;

/// Applies an operation to a state; `None` where it cannot succeed in this state.
pub type DirectoryStep<'a> = &'a dyn Fn(&DirectoryState) -> Option<DirectoryState>;

/// All possible states of a directory.
#[derive(Debug)]
pub struct Oracle {
    firm: Vec<DirectoryState>,
    all: Vec<DirectoryState>,
    /// Power may fail: unsynced changes may be lost.
    power: bool,
}

fn add(states: &mut Vec<DirectoryState>, new: impl IntoIterator<Item = DirectoryState>) {
    for state in new {
        if !states.contains(&state) {
            states.push(state);
        }
    }
}

fn after(states: &[DirectoryState], step: DirectoryStep<'_>) -> Vec<DirectoryState> {
    let mut next = Vec::new();
    add(&mut next, states.iter().filter_map(step));
    next
}

impl Oracle {
    /// An empty directory that is durable.
    #[must_use]
    pub fn new(power: bool) -> Self {
        Self {
            firm: vec![DirectoryState::new()],
            all: vec![DirectoryState::new()],
            power,
        }
    }

    /// The likeliest state.
    #[must_use]
    pub fn newest(&self) -> DirectoryState {
        self.firm.last().cloned().unwrap_or_default()
    }

    /// Number of possible states.
    #[must_use]
    pub fn choices(&self) -> usize {
        self.all.len()
    }

    /// Whether `what` holds in one of the states in which nothing was lost.
    #[must_use]
    pub fn may(&self, what: impl Fn(&DirectoryState) -> bool) -> bool {
        self.firm.iter().any(what)
    }

    /// An operation begins. Returns the states that [`Self::done`] needs.
    #[must_use]
    pub fn begun(&mut self, step: DirectoryStep<'_>) -> Vec<DirectoryState> {
        let before = self.firm.clone();
        let next = after(&self.firm, step);
        add(&mut self.firm, next);
        let next = after(&self.all, step);
        add(&mut self.all, next);
        before
    }

    /// The operation was answered with success.
    ///
    /// # Errors
    /// It cannot have succeeded in any state.
    pub fn done(
        &mut self,
        before: &[DirectoryState],
        step: DirectoryStep<'_>,
    ) -> Result<(), String> {
        let firm = after(before, step);
        let next = after(&self.all, step);
        add(&mut self.all, next);
        match (firm.is_empty(), self.power) {
            (true, false) => Err(format!(
                "invariant 2: the operation succeeded in {before:?}"
            )),
            (true, true) => {
                self.firm = self.all.clone();
                Ok(())
            }
            (false, power) => {
                self.firm = firm;
                if !power {
                    self.all = self.firm.clone();
                }
                Ok(())
            }
        }
    }

    /// A sync was answered: all answered operations are durable.
    pub fn synced(&mut self) {
        self.all = self.firm.clone();
    }

    /// Unsynced changes may be lost, and the client was told so.
    pub fn lost(&mut self) {
        self.firm = self.all.clone();
    }

    /// A client listed the directory.
    ///
    /// # Errors
    /// No possible state fits.
    pub fn seen(&mut self, found: &BTreeMap<String, Ino>) -> Result<(), String> {
        let fits = |state: &DirectoryState| {
            state.len() == found.len()
                && state.iter().all(|(name, ino)| {
                    let there = found.get(name);
                    there.is_some() && ino.is_none_or(|ino| there == Some(&ino))
                })
        };
        if !self.all.iter().any(fits) {
            return Err(format!(
                "invariant 3: a directory has {found:?}, which fits none of the possible states {:?}",
                self.all
            ));
        }
        let known: DirectoryState = found
            .iter()
            .map(|(name, ino)| (name.clone(), Some(*ino)))
            .collect();
        self.firm = vec![known.clone()];
        if self.power {
            add(&mut self.all, [known]);
        } else {
            self.all = self.firm.clone();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[(&str, u64)]) -> BTreeMap<String, Ino> {
        let named = names.iter();
        named
            .map(|(name, ino)| ((*name).to_owned(), Ino(*ino)))
            .collect()
    }

    fn make(name: &str, ino: Option<u64>) -> impl Fn(&DirectoryState) -> Option<DirectoryState> {
        move |state: &DirectoryState| {
            let mut next = state.clone();
            next.insert(name.to_owned(), ino.map(Ino));
            Some(next)
        }
    }

    fn remove(name: &str) -> impl Fn(&DirectoryState) -> Option<DirectoryState> {
        move |state: &DirectoryState| {
            let mut next = state.clone();
            next.remove(name).map(|_| next)
        }
    }

    #[test]
    fn unknown_outcomes_stay_unknown_until_they_are_seen() {
        let mut oracle = Oracle::new(false);
        let before = oracle.begun(&make("a", None));
        assert!(oracle.done(&before, &make("a", Some(1))).is_ok());
        let _crashed = oracle.begun(&make("b", None));
        assert_eq!(oracle.choices(), 2);
        assert!(oracle.seen(&found(&[("b", 2)])).is_err());
        assert!(oracle.seen(&found(&[("a", 1), ("b", 7)])).is_ok());
        assert!(oracle.seen(&found(&[("a", 1)])).is_err(), "b is known");
        let before = oracle.begun(&remove("c"));
        assert!(oracle.done(&before, &remove("c")).is_err());
    }

    #[test]
    fn a_loss_of_power_takes_back_unsynced_changes_and_no_more() {
        let mut oracle = Oracle::new(true);
        for (name, ino) in [("a", 1), ("b", 2)] {
            let before = oracle.begun(&make(name, None));
            assert!(oracle.done(&before, &make(name, Some(ino))).is_ok());
        }
        let before = oracle.begun(&remove("a"));
        assert!(oracle.done(&before, &remove("a")).is_ok());
        assert!(oracle.seen(&found(&[("a", 1)])).is_ok(), "b was taken back");
        assert!(oracle.seen(&found(&[])).is_ok());
        assert!(oracle.seen(&found(&[("c", 1)])).is_err());
        oracle.synced();
        assert!(oracle.seen(&found(&[("a", 1)])).is_err());
    }
}
