//! Outages: targets that are out of service for files with copies
//! (docs/rfcs/2026-11-27-outages.md).

use super::EditError;
use crate::map::{Slot, SlotState, ZoneMap};
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

    /// Puts a target back into its slots, with a new epoch for each slot of these sets.
    pub(super) fn put_back(&mut self, id: TargetId) -> Result<(), EditError> {
        self.target(id)
            .ok_or(EditError::Unknown { what: "target" })?;
        let slot_epoch = Epoch(self.version.0);
        let is_out = |slot: &Slot| slot.target == id && slot.state == SlotState::Out;
        for set in &mut self.sets {
            if !set.slots.iter().any(is_out) {
                continue;
            }
            for slot in &mut set.slots {
                if is_out(slot) {
                    slot.state = SlotState::Serving;
                }
                slot.slot_epoch = slot_epoch;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::edit::{EditError, MapEdit};
    use crate::map::{SlotState, ZoneMap};
    use zonal_types::{CellId, Epoch, NodeId, TargetId, ZoneId};
    use zonal_wire::JoinTarget;

    fn three_targets() -> ZoneMap {
        let join = |id: u32| MapEdit::Join {
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
        };
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
}
