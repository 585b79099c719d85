//! Whether a request is one for this target, by the rule that the server has: `ZoneMap::judge_slot`.

use super::StorageNode;
use crate::plant::Plant;
use zonal_types::ErrorCode;
use zonal_wire::{ErrorNumber, Header, StorageReply, StorageRequest};
use zonal_zonemap::{SlotClaim, SlotVerdict};

impl StorageNode {
    /// The reply where it is not carried out.
    pub(super) fn refusal(
        &self,
        header: &Header,
        request: &StorageRequest,
    ) -> Option<StorageReply> {
        if request.target() != self.id {
            return failed(ErrorCode::WrongTarget);
        }
        let object = request.object()?;
        let claim = SlotClaim {
            set: object.set,
            slot: object.slot,
            epoch: header.epoch,
            map_version: header.map_version,
        };
        let judge = || self.known.borrow().judge_slot(self.id, claim);
        let mut verdict = judge();
        if verdict == SlotVerdict::Newer {
            self.hear_of_map();
            verdict = judge();
        }
        let known = self.known.borrow();
        if self.plant == Plant::EpochsAreMixed {
            let mut slots = known.sets.iter().flat_map(|set| &set.slots);
            if slots.any(|slot| slot.target == self.id && slot.slot_epoch == header.epoch) {
                verdict = SlotVerdict::Current;
            }
        }
        match verdict {
            SlotVerdict::Current => {
                self.carried_out.note(&known, self.id, header, object);
                None
            }
            SlotVerdict::Stale { target, epoch } => Some(StorageReply::Stale {
                map_version: known.version,
                set: object.set,
                slot: object.slot,
                target,
                epoch,
            }),
            SlotVerdict::Absent => failed(ErrorCode::WrongTarget),
            SlotVerdict::Newer => failed(ErrorCode::NotReady),
        }
    }
}

fn failed(code: ErrorCode) -> Option<StorageReply> {
    Some(StorageReply::Failed {
        code: ErrorNumber(code),
        detail: String::new(),
    })
}
