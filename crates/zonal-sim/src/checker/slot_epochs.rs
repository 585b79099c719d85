//! Invariant 7, as for slots: a target carries out a request on an object only by the slot that the
//! request names, with the epoch that this slot has in the newest map that the target knows. Walks
//! the whole map, unlike the rule that it watches.

use std::cell::RefCell;
use zonal_types::{Epoch, StripeSetId, TargetId};
use zonal_wire::{Header, ObjectRef};
use zonal_zonemap::ZoneMap;

/// What targets carried out and should not have, in words.
#[derive(Default)]
pub struct CarriedOut(RefCell<Vec<String>>);

impl CarriedOut {
    /// A target is about to carry out a request, by the map that it knows.
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
                "invariant 7: target {target} carries out what came by slot {} of set {}, epoch {}, which is not so in map version {}",
                object.slot, object.set, header.epoch, map.version
            ));
        }
    }

    /// What was noted since the last call.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.borrow_mut())
    }
}
