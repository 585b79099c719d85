//! Writes in flight: how many writes of this mount each target has not answered.
//!
//! Each holds a connection.
//!
//! | the file | the target has [`TARGET_WRITES_MAX`] writes in flight |
//! | --- | --- |
//! | has writes in flight | waits for its own oldest write before it sends more |
//! | has none | sends one batch, because waiting for other files could take for ever |
//!
//! So a target has at most that many writes of one mount, plus one batch of each file. No file
//! waits for another.

use crate::transport::mutex::lock;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zonal_types::TargetId;

/// Writes of one mount in flight at a target, from which on a file waits for its own.
pub(crate) const TARGET_WRITES_MAX: usize = 16;

/// Writes in flight by target.
#[derive(Debug, Default)]
pub(crate) struct WritesInFlight(Mutex<BTreeMap<TargetId, Arc<AtomicUsize>>>);

/// One write in flight; dropping it ends the count.
#[derive(Debug)]
pub(crate) struct InFlightGuard(Arc<AtomicUsize>);

impl WritesInFlight {
    fn of(&self, target: TargetId) -> Arc<AtomicUsize> {
        lock(&self.0).entry(target).or_default().clone()
    }

    /// Counts one more write.
    pub(crate) fn enter(&self, target: TargetId) -> InFlightGuard {
        let count = self.of(target);
        count.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(count)
    }

    /// Whether the target has enough writes in flight.
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
