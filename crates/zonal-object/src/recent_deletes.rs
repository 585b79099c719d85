//! Objects that were deleted a moment ago: a write of them that was long on its way must not make
//! them again, for nobody would ever delete them. Data ids are never used twice, so whoever writes
//! to one of these is late.
//!
//! In memory only: requests from before a restart died with their connections. Bounded: the oldest
//! are forgotten, and what a later write than that leaves is an object without an owner, which a
//! check of the cell finds.

use crate::ids::ObjectId;
use std::collections::{BTreeSet, VecDeque};
use zonal_types::limits::DELETED_OBJECTS_MAX;

/// The objects, in the order of their deletion.
#[derive(Debug, Default)]
pub(crate) struct RecentDeletes {
    order: VecDeque<ObjectId>,
    objects: BTreeSet<ObjectId>,
}

impl RecentDeletes {
    /// This one was deleted, or was not there when it was to be.
    pub(crate) fn add(&mut self, object: ObjectId) {
        if !self.objects.insert(object) {
            return;
        }
        self.order.push_back(object);
        if self.order.len() > DELETED_OBJECTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.objects.remove(&oldest);
        }
    }

    pub(crate) fn has(&self, object: ObjectId) -> bool {
        self.objects.contains(&object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{Column, DataId};

    #[test]
    fn the_newest_are_known() {
        let object = |number: usize| ObjectId {
            data_id: DataId(number as u64),
            column: Column(0),
        };
        let mut gone = RecentDeletes::default();
        for number in 0..=DELETED_OBJECTS_MAX {
            gone.add(object(number));
            gone.add(object(number));
        }
        assert!(!gone.has(object(0)) && gone.has(object(1)));
        assert!(gone.has(object(DELETED_OBJECTS_MAX)));
        assert_eq!(gone.order.len(), gone.objects.len());
    }
}
