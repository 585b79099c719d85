//! Epochs of slots (invariant 7).
//!
//! A target executes a request on an object only by the slot that the request names. The slot's
//! epoch must be that in the newest map that the target knows. The checker searches the whole map,
//! unlike the rule that it checks.

use std::cell::RefCell;
use zonal_types::{Epoch, StripeSetId, TargetId};
use zonal_wire::{Header, ObjectRef};
use zonal_zonemap::ZoneMap;

/// Collects requests that targets executed and should have refused, in words.
#[derive(Default)]
pub struct ExecutedRequests(RefCell<Vec<String>>);

impl ExecutedRequests {
    /// A target is about to execute a request, with the map that it knows.
    pub fn note(&self, map: &ZoneMap, target: TargetId, header: &Header, object: &ObjectRef) {
        if (object.set, header.epoch) == (StripeSetId(0), Epoch(0)) {
            return;
        }
        let sets = map.sets.iter().filter(|set| set.id == object.set);
        let slots = sets.flat_map(|set| set.slots.iter().zip(0_u16..));
        let is_its_own = slots
            .filter(|(_slot, number)| *number == object.slot)
            .any(|(slot, _number)| slot.target == target && slot.slot_epoch == header.epoch);
        let mut told = self.0.borrow_mut();
        if !is_its_own && told.is_empty() {
            told.push(format!(
                "invariant 7: target {target} executes a request by slot {} of set {} with epoch {}, against map version {}",
                object.slot, object.set, header.epoch, map.version
            ));
        }
    }

    /// The wrong requests since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}
