//! Invariant 4 for names and attributes under call-back leases, and mutual exclusion under locks.

use std::cell::Cell;

/// A value that a single client changes, version by version, and other clients watch.
#[derive(Default)]
pub struct Versions {
    /// The newest change that was begun.
    pub begun: Cell<u64>,
    /// The newest change that was answered.
    pub done: Cell<u64>,
}

impl Versions {
    /// Returns what is wrong where a client saw a value after the change `done` was answered.
    /// `fits` says whether a version has the value that the client saw.
    #[must_use]
    pub fn check(&self, done: u64, what: &str, fits: impl Fn(u64) -> bool) -> Option<String> {
        let begun = self.begun.get();
        if (done..=begun).any(fits) {
            return None;
        }
        Some(format!(
            "invariant 4: {what} is of no version from {done} (answered before the request) to {begun}"
        ))
    }
}

/// Checks that an exclusive lock has one holder at a time.
#[derive(Default)]
pub struct LockExclusion(Cell<Option<u64>>);

impl LockExclusion {
    /// A client got the lock. Returns what is wrong.
    #[must_use]
    pub fn take(&self, who: u64) -> Option<String> {
        let before = self.0.replace(Some(who));
        before.map(|other| format!("locks: {who} got the lock that {other} holds"))
    }

    /// The holder is about to release the lock. Returns what is wrong.
    #[must_use]
    pub fn give(&self, who: u64) -> Option<String> {
        let before = self.0.take();
        (before != Some(who))
            .then(|| format!("locks: {who} releases the lock, which {before:?} holds"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_values_and_two_holders_are_found() {
        let versions = Versions::default();
        versions.begun.set(5);
        assert_eq!(versions.check(4, "x", |version| version == 5), None);
        assert!(versions.check(4, "x", |version| version == 3).is_some());
        let holder = LockExclusion::default();
        assert_eq!(holder.take(1), None);
        assert!(holder.take(2).is_some());
        assert!(holder.give(1).is_some());
    }
}
