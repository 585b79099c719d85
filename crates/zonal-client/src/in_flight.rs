//! How many writes of this mount each target has not answered.
//!
//! Each holds a connection. A file that has writes under way waits for its own oldest before it
//! sends more to a target that has [`TARGET_WRITES_MAX`] of this mount; a file that has none sends
//! one batch all the same, as it would wait for others that may not look after theirs. So a target
//! never has more than that of one mount, and a batch of each file that is written. Nobody waits
//! for another file.

use crate::session::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zonal_types::TargetId;

/// Writes of one mount that a target has not answered, from which on a file waits for its own.
pub(crate) const TARGET_WRITES_MAX: usize = 16;

/// Writes under way by target.
#[derive(Debug, Default)]
pub(crate) struct WritesInFlight(Mutex<BTreeMap<TargetId, Arc<AtomicUsize>>>);

/// One of them; its end when it is dropped.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<AtomicUsize>);

impl WritesInFlight {
    fn of(&self, target: TargetId) -> Arc<AtomicUsize> {
        lock(&self.0).entry(target).or_default().clone()
    }

    /// Counts one more.
    pub(crate) fn enter(&self, target: TargetId) -> InFlightGuard {
        let count = self.of(target);
        count.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(count)
    }

    /// Whether the target has as many as it should.
    pub(crate) fn is_full(&self, target: TargetId) -> bool {
        self.of(target).load(Ordering::Relaxed) >= TARGET_WRITES_MAX
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_its_own_count_and_answers_make_room() {
        let under_way = WritesInFlight::default();
        let (one, other) = (TargetId(1), TargetId(2));
        let mut tickets: Vec<InFlightGuard> = (1..TARGET_WRITES_MAX)
            .map(|_| under_way.enter(one))
            .collect();
        assert!(!under_way.is_full(one));
        tickets.push(under_way.enter(one));
        assert!(under_way.is_full(one));
        assert!(!under_way.is_full(other));
        tickets.pop();
        assert!(!under_way.is_full(one));
    }
}
