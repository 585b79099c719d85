//! Outages: targets that are out of service for files with copies
//! (docs/rfcs/2026-11-27-outages.md).

use super::EditError;
use crate::map::{Slot, SlotState, Target, TargetState, ZoneMap};
use zonal_types::{Epoch, TargetId};

impl ZoneMap {
    /// True where a slot of this target is out.
    #[must_use]
    pub fn is_out(&self, target: TargetId) -> bool {
        let mut slots = self.sets.iter().flat_map(|set| &set.slots);
        slots.any(|slot| slot.target == target && slot.state == SlotState::Out)
    }

    /// Takes a target out of all its slots. Their epochs rise, so that the target itself refuses
    /// requests of clients that do not know it.
    pub(super) fn take_out(&mut self, id: TargetId) -> Result<(), EditError> {
        self.target(id)
            .ok_or(EditError::Unknown { what: "target" })?;
        let slot_epoch = Epoch(self.version.0);
        let slots = self.sets.iter_mut().flat_map(|set| &mut set.slots);
        let is_serving = |slot: &&mut Slot| slot.target == id && slot.state == SlotState::Serving;
        for slot in slots.filter(is_serving) {
            slot.state = SlotState::Out;
            slot.slot_epoch = slot_epoch;
        }
        Ok(())
    }

    /// Puts a target back into its slots, and renews all epochs of its zone.
    pub(super) fn put_back(&mut self, id: TargetId) -> Result<(), EditError> {
        self.target(id)
            .ok_or(EditError::Unknown { what: "target" })?;
        self.refuse_drained(id)?;
        if !self.is_out(id) {
            return Ok(());
        }
        let slots = self.sets.iter_mut().flat_map(|set| &mut set.slots);
        let is_out = |slot: &&mut Slot| slot.target == id && slot.state == SlotState::Out;
        for slot in slots.filter(is_out) {
            slot.state = SlotState::Serving;
        }
        let rebuilt =
            |target: &&mut Target| target.id == id && target.state == TargetState::Rebuilding;
        for target in self.targets.iter_mut().filter(rebuilt) {
            target.state = TargetState::Returning;
        }
        self.renew_epochs(id)
    }

    /// Renews the epochs of all slots: those of any zone may have copies of the target's files.
    pub(super) fn renew_epochs(&mut self, id: TargetId) -> Result<(), EditError> {
        self.target(id)
            .ok_or(EditError::Unknown { what: "target" })?;
        let slot_epoch = Epoch(self.version.0);
        for slot in self.sets.iter_mut().flat_map(|set| &mut set.slots) {
            slot.slot_epoch = slot_epoch;
        }
        Ok(())
    }

    /// Takes a draining target out of its slots for good.
    pub(super) fn retire(&mut self, id: TargetId) -> Result<(), EditError> {
        let found = self.targets.iter_mut().find(|target| target.id == id);
        let found = found.ok_or(EditError::Unknown { what: "target" })?;
        if !found.state.is_leaving() {
            return Err(EditError::NotDraining { target: id });
        }
        found.state = TargetState::Drained;
        self.take_out(id)
    }

    /// Refuses the number of a drained target that was removed. Its slots stay, and layouts name
    /// them: another target would get changes of objects that have left.
    pub(super) fn refuse_number_of_removed(&self, id: TargetId) -> Result<(), EditError> {
        let mut slots = self.sets.iter().flat_map(|set| &set.slots);
        match self.target(id).is_none() && slots.any(|slot| slot.target == id) {
            true => Err(EditError::Drained { target: id }),
            false => Ok(()),
        }
    }

    /// Refuses an edit by which a drained target would serve again.
    pub(super) fn refuse_drained(&self, id: TargetId) -> Result<(), EditError> {
        match self.target(id).map(|target| target.state) {
            Some(TargetState::Drained) => Err(EditError::Drained { target: id }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::edit::{EditError, MapEdit};
    use crate::map::{SlotState, TargetState, ZoneMap};
    use zonal_types::{CellId, Epoch, NodeId, TargetId, ZoneId};
    use zonal_wire::JoinTarget;

    fn join(id: u32) -> MapEdit {
        MapEdit::Join {
            node: NodeId(id),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: format!("127.0.0.1:{}", 7000 + id),
            shard: None,
            targets: vec![JoinTarget {
                target: TargetId(id),
                uuid: [7; 16],
                capacity: 1 << 30,
            }],
        }
    }

    fn three_targets() -> ZoneMap {
        let edits: Vec<MapEdit> = (1..=3).map(join).collect();
        let map = ZoneMap::new(CellId([1; 16])).edited(&edits);
        map.expect("joins").expect("a change")
    }

    fn slots(map: &ZoneMap) -> Vec<(SlotState, u64)> {
        let set = map.sets.last().expect("a set");
        let of = |slot: &crate::map::Slot| (slot.state, slot.slot_epoch.0);
        set.slots.iter().map(of).collect()
    }

    #[test]
    fn a_target_goes_out_alone_and_its_return_renews_all_epochs_of_its_sets() {
        let before = three_targets();
        let born = before.version.0;
        let edit = MapEdit::TakeOut {
            target: TargetId(2),
        };
        let out = before.edited(std::slice::from_ref(&edit)).unwrap().unwrap();
        let serving = (SlotState::Serving, born);
        assert_eq!(slots(&out), [serving, (SlotState::Out, born + 1), serving]);
        assert!(out.is_out(TargetId(2)) && !out.is_out(TargetId(1)));
        assert_eq!(out.edited(&[edit]), Ok(None), "twice");
        let edit = MapEdit::PutBack {
            target: TargetId(2),
        };
        let back = out.edited(std::slice::from_ref(&edit)).unwrap().unwrap();
        assert_eq!(slots(&back), [(SlotState::Serving, born + 2); 3]);
        assert_eq!(back.edited(&[edit]), Ok(None), "twice");
        assert_eq!(back.check(), Vec::<String>::new());
        assert_eq!(back.sets[0].slots[0].slot_epoch, Epoch(born + 2));
        for edit in [
            MapEdit::RenewEpochs {
                target: TargetId(9),
            },
            MapEdit::Retire {
                target: TargetId(9),
            },
            MapEdit::TakeOut {
                target: TargetId(9),
            },
            MapEdit::PutBack {
                target: TargetId(9),
            },
        ] {
            let unknown = Err(EditError::Unknown { what: "target" });
            assert_eq!(back.edited(&[edit]), unknown);
        }
    }

    #[test]
    fn a_drained_target_is_out_for_good_and_its_removal_keeps_its_sets() {
        let target = TargetId(2);
        let edited = |map: &ZoneMap, edit| map.edited(&[edit]).map(|map| map.expect("a change"));
        let map = edited(&three_targets(), MapEdit::OpenSets { zone: ZoneId(1) }).unwrap();
        let not_draining = Err(EditError::NotDraining { target });
        assert_eq!(edited(&map, MapEdit::Retire { target }), not_draining);
        let state = TargetState::Draining;
        let draining = edited(&map, MapEdit::UseTarget { target, state }).unwrap();
        let set = draining.zones[0].default_sets[0];
        let new = draining.set(set).unwrap();
        assert!(new.slots.iter().all(|slot| slot.target != target));
        let renewed = edited(&draining, MapEdit::RenewEpochs { target }).unwrap();
        let epoch = Epoch(renewed.version.0);
        assert!(
            renewed.sets[0]
                .slots
                .iter()
                .all(|slot| slot.slot_epoch == epoch)
        );
        let drained = edited(&renewed, MapEdit::Retire { target }).unwrap();
        assert!(drained.is_out(target));
        let again = Err(EditError::Drained { target });
        assert_eq!(edited(&drained, MapEdit::PutBack { target }), again);
        let state = TargetState::Serving;
        assert_eq!(
            edited(&drained, MapEdit::UseTarget { target, state }),
            again
        );
        let left = edited(&drained, MapEdit::RemoveTarget { target }).unwrap();
        assert_eq!(left.target(target), None);
        assert_eq!(left.sets[0].width(), 3, "files lie over the others");
        assert_eq!(left.check(), Vec::<String>::new());
        assert_eq!(edited(&left, join(2)), again, "its number is in slots");
        assert!(edited(&left, join(4)).is_ok());
    }
}
