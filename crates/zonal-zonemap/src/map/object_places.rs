//! The slots of the places of a component's objects.

use super::{Slot, SlotState, StripeSet, TargetState, ZoneMap};
use zonal_layout::{PlaceUse, place_use, places_of_column, slot_of_place};
use zonal_types::{Column, Component, Layout, MapVersion, Relocation, StripeSetId, TargetId};

/// The slot of a place.
#[derive(Debug, Clone, Copy)]
pub struct PlaceSlot<'a> {
    /// Its set.
    pub set: StripeSetId,
    /// Its number in the set.
    pub number: u16,
    /// The slot.
    pub slot: &'a Slot,
}

impl ZoneMap {
    /// True where the map has all sets on which objects of the component lie.
    #[must_use]
    pub fn knows_sets(&self, component: &Component) -> bool {
        let relocated = component.relocations.iter().map(|of| of.set);
        let mut sets = component.sets().chain(relocated);
        sets.all(|set| self.set(set).is_some())
    }

    /// The slot of a place. `None`: the map does not know the set, or the place is not there.
    #[must_use]
    pub fn slot_of_place(&self, component: &Component, place: Column) -> Option<PlaceSlot<'_>> {
        let width_of = |set| self.set(set).map_or(0, StripeSet::width);
        let (set, number) = slot_of_place(component, place, width_of).ok()?;
        let slot = self.set(set)?.slots.get(usize::from(number))?;
        Some(PlaceSlot { set, number, slot })
    }

    /// The places of a column whose bytes have all changes: main places without a mark.
    /// `in_service`: only those whose slot is not out.
    #[must_use]
    pub fn whole_places(
        &self,
        layout: &Layout,
        component: &Component,
        column: u16,
        in_service: bool,
    ) -> Vec<Column> {
        let is_whole = |place: &Column| {
            let found = self.slot_of_place(component, *place);
            place_use(component, *place) == PlaceUse::Main
                && found.is_some_and(|found| {
                    let is_out = found.slot.state == SlotState::Out;
                    !(layout.is_stale(found.slot.target) || in_service && is_out)
                })
        };
        places_of_column(component, column)
            .filter(is_whole)
            .collect()
    }

    /// True where a layout of this version knows all outages and relocations of a component. No
    /// slot of its set, and none of a relocation, has a newer epoch.
    #[must_use]
    pub fn knows_outages(&self, component: &Component, as_of: MapVersion) -> bool {
        let mut slots = self.slots_near(component);
        slots.all(|slot| slot.slot_epoch.0 <= as_of.0)
    }

    /// True where no target serves a client that does not know a change of the layout made under
    /// this version: all slots have newer epochs.
    #[must_use]
    pub fn is_fenced(&self, component: &Component, as_of: MapVersion) -> bool {
        let mut slots = self.slots_near(component);
        slots.all(|slot| slot.slot_epoch.0 > as_of.0)
    }

    /// The slots of a component's sets, and those of its relocations.
    fn slots_near<'a>(&'a self, component: &'a Component) -> impl Iterator<Item = &'a Slot> {
        let of_set = component.sets().filter_map(|set| self.set(set));
        let relocated = component.relocations.iter();
        let relocated = relocated.filter_map(|of| self.slot_of_relocation(of));
        of_set.flat_map(|set| &set.slots).chain(relocated)
    }

    /// The slot that a relocation names.
    #[must_use]
    pub fn slot_of_relocation(&self, relocation: &Relocation) -> Option<&Slot> {
        let slots = &self.set(relocation.set)?.slots;
        slots.get(usize::from(relocation.slot))
    }

    /// True where a target has something of an object to delete.
    #[must_use]
    pub fn has_leftover(&self, component: &Component, object: Column, target: TargetId) -> bool {
        let mut leftovers = zonal_layout::leftovers(component).filter(|of| of.object == object);
        leftovers.any(|of| {
            let slot = self.slot_of_relocation(of);
            slot.is_some_and(|slot| slot.target == target)
        })
    }

    /// True where nobody needs anything that a target has: it is drained, or left the map.
    #[must_use]
    pub fn is_gone_for_good(&self, target: TargetId) -> bool {
        matches!(self.target_state(target), None | Some(TargetState::Drained))
    }

    /// A slot of an open set that has this target, in the preferred set where it is there.
    #[must_use]
    pub fn open_slot_of(
        &self,
        target: TargetId,
        preferred: StripeSetId,
    ) -> Option<(StripeSetId, u16)> {
        let preferred = self.set(preferred).into_iter();
        let sets = preferred.chain(self.sets.iter().rev());
        sets.filter(|set| set.is_open).find_map(|set| {
            let slot = set.slots.iter().position(|slot| slot.target == target)?;
            Some((set.id, u16::try_from(slot).ok()?))
        })
    }

    /// State of a target; none where it left the map.
    #[must_use]
    pub fn target_state(&self, target: TargetId) -> Option<TargetState> {
        self.target(target).map(|found| found.state)
    }
}
