//! Planted bugs around a target's driver: they change requests before it, and replies behind it.

use super::StorageNode;
use super::host::Payload;
use crate::planted_bugs::Plant;
use zonal_driver::storage::{NotAdmitted, ReplyRoom, named};
use zonal_types::ErrorCode;
use zonal_types::limits::BLOCK_BYTES;
use zonal_wire::{Header, ObjectRef, StorageReply, StorageRequest};

impl StorageNode {
    /// Applies the planted bug to a request.
    pub(super) fn plant_in(&self, header: &mut Header, request: &mut StorageRequest) {
        match self.plant {
            Plant::AttemptsAreIgnored => header.sequence = 0,
            Plant::OrdersAreIgnored => header.order = 0,
            Plant::TargetIgnoresTruncation => change_object(request, |object| {
                (object.truncate_seq, object.truncate_bytes) = (0, 0);
            }),
            Plant::ColumnsAreMixed => change_object(request, |object| {
                if object.column.0 == 1 {
                    object.column.0 = 200;
                }
            }),
            Plant::CopiesAreShifted => {
                if let StorageRequest::Write { object, offset, .. } = request {
                    let known = self.driver.host().known.borrow();
                    // No component has more columns than its set has slots.
                    let set = known.set(object.set);
                    if set.is_some_and(|set| object.column.0 >= set.width()) {
                        *offset += BLOCK_BYTES as u64;
                    }
                }
            }
            _ => {}
        }
    }

    /// Whether the planted bug executes a request that the driver refuses.
    pub(super) fn is_let_in(&self, header: &Header, refused: &NotAdmitted) -> bool {
        let is_about_slot = match refused {
            NotAdmitted::Stale(_) => true,
            NotAdmitted::Refused(refused) => refused.code == ErrorCode::WrongTarget,
        };
        let known = self.driver.host().known.borrow();
        let mut slots = known.sets.iter().flat_map(|set| &set.slots);
        self.plant == Plant::EpochsAreMixed
            && is_about_slot
            && slots.any(|slot| slot.target == self.driver.id() && slot.slot_epoch == header.epoch)
    }

    /// Reads bytes without comparing checksums, in place of an error about damage.
    pub(super) fn unverified(
        &self,
        request: &StorageRequest,
        payload: &mut Payload,
    ) -> Option<StorageReply> {
        let StorageRequest::Read {
            object,
            offset,
            length,
        } = request
        else {
            return None;
        };
        let (disk, (id, truncation), length) = (self.disk(), named(object), *length as usize);
        let target = self.driver.lock();
        let plan = target
            .plan_read(disk, id, truncation, *offset, length)
            .ok()?;
        let buffer = payload.room(plan.buffer_len());
        for read in plan.reads() {
            let part = &mut buffer[read.buffer];
            disk.read_segment(read.segment, read.offset, part).ok()?;
        }
        let from = (offset % BLOCK_BYTES as u64) as usize;
        let range = plan.finish(buffer);
        let range = range.unwrap_or(from..(from + length).min(buffer.len()));
        let bytes = range.len();
        buffer.copy_within(range, 0);
        payload.cut(bytes);
        let object_bytes = plan.object_bytes();
        let order = plan.order();
        Some(StorageReply::Read {
            object_bytes,
            order,
        })
    }
}

/// Changes the object of a request.
fn change_object(request: &mut StorageRequest, change: impl FnOnce(&mut ObjectRef)) {
    match request {
        StorageRequest::Read { object, .. }
        | StorageRequest::Write { object, .. }
        | StorageRequest::WriteRanges { object, .. }
        | StorageRequest::Truncate { object }
        | StorageRequest::Punch { object, .. }
        | StorageRequest::Allocate { object, .. }
        | StorageRequest::Map { object, .. }
        | StorageRequest::Stat { object } => change(object),
        _ => {}
    }
}
