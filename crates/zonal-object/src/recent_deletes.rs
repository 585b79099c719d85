//! Recently deleted objects: a late write must not create one again, because nobody would ever
//! delete it. Data ids are never reused, so every write to one of these objects is late.
//!
//! In memory only: requests from before a restart died with their connections. Bounded by
//! `DELETED_OBJECTS_MAX`: the oldest are forgotten. A write that is later still leaves an object
//! without an owner, which a check of the cell finds.

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
    /// Adds an object that was deleted, or that did not exist when it was to be deleted.
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
        assert_eq!(
            self.order.len(),
            self.objects.len(),
            "each deleted object has one place in the order of deletions"
        );
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
    fn the_newest_deletes_are_remembered() {
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
