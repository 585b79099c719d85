//! Recently deleted objects: a late write must not create one again, because nobody would ever
//! delete it. Data ids are never reused, so every write to one of these objects is late.
//!
//! In memory only: requests from before a restart died with their connections. Bounded by
//! `DELETED_OBJECTS_MAX`: the oldest are forgotten. A write that is later still leaves an object
//! without an owner, which a check of the cell finds.

use crate::ids::ObjectId;
use zonal_basics::BoundedMap;
use zonal_types::limits::DELETED_OBJECTS_MAX;

/// The objects, in the order of their deletion.
#[derive(Debug)]
pub(crate) struct RecentDeletes(BoundedMap<ObjectId, ()>);

impl Default for RecentDeletes {
    fn default() -> Self {
        Self(BoundedMap::new(DELETED_OBJECTS_MAX))
    }
}

impl RecentDeletes {
    /// Adds an object that was deleted, or that did not exist when it was to be deleted.
    pub(crate) fn add(&mut self, object: ObjectId) {
        if !self.has(object) {
            self.0.insert(object, ());
        }
    }

    pub(crate) fn has(&self, object: ObjectId) -> bool {
        self.0.contains_key(&object)
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
        assert_eq!(gone.0.len(), DELETED_OBJECTS_MAX);
    }
}
