//! Bytes of each object that truncations freed and no reply has reported to the shard yet.
//!
//! A truncation goes by steps, each of them durable. The news of a truncation may also come with a
//! write, which may fail after the truncation was applied. So each step notes here how much it
//! freed. The next reply for the object reports it, whether to a write, a truncation or an edit.
//!
//! In memory only, and bounded by `UNREPORTED_TRUNCATIONS_MAX`. Forgotten bytes stay counted at the
//! shard until the file is removed, which is harmless.

use crate::ids::ObjectId;
use std::collections::BTreeMap;
use zonal_types::limits::UNREPORTED_TRUNCATIONS_MAX;

/// Changes of allocated bytes.
#[derive(Debug, Default)]
pub(crate) struct UnreportedTruncations(BTreeMap<ObjectId, i64>);

impl UnreportedTruncations {
    /// Adds the change that a step of a truncation made.
    pub(crate) fn add(&mut self, object: ObjectId, delta: i64) {
        if delta == 0 {
            return;
        }
        let sum = self.0.entry(object).or_default();
        *sum = sum.saturating_add(delta);
        if self.0.len() > UNREPORTED_TRUNCATIONS_MAX {
            self.0.pop_first();
        }
    }

    /// Takes the amount to report now; also clears it when the object is deleted.
    pub(crate) fn take(&mut self, object: ObjectId) -> i64 {
        self.0.remove(&object).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Column, DataId};

    #[test]
    fn each_change_is_reported_once_and_the_list_is_bounded() {
        let object = |number: usize| ObjectId {
            data_id: DataId(number as u64),
            column: Column(0),
        };
        let mut untold = UnreportedTruncations::default();
        untold.add(object(7), -4096);
        untold.add(object(7), -8192);
        assert_eq!(
            (untold.take(object(7)), untold.take(object(7))),
            (-12288, 0)
        );
        for number in 0..=UNREPORTED_TRUNCATIONS_MAX {
            untold.add(object(number), -1);
        }
        assert_eq!(untold.0.len(), UNREPORTED_TRUNCATIONS_MAX);
        assert_eq!(untold.take(object(UNREPORTED_TRUNCATIONS_MAX)), -1);
        untold.add(object(0), 0);
        assert_eq!(untold.0.len(), UNREPORTED_TRUNCATIONS_MAX - 1);
    }
}
