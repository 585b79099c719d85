//! Reads: planned under the mutex, filled from segments outside of it, compared with checksums.

use super::{Refused, Storage, named};
use crate::storage_io;
use std::sync::atomic::Ordering;
use zonal_net::ReplyBuilder;
use zonal_types::ErrorCode;
use zonal_types::limits::{PAYLOAD_BYTES_MAX, STORAGE_IO_BYTES_MAX};
use zonal_wire::{ObjectRef, StorageReply};

impl Storage {
    /// Reads what a plan wants; a failure of the medium is told with target, object and offset.
    pub(super) fn fill(
        &self,
        plan: &zonal_object::ReadPlan,
        buffer: &mut [u8],
    ) -> Result<(), Refused> {
        storage_io::fill_from(&self.segments, plan, buffer).map_err(|(at, error)| {
            let (object, offset) = (plan.object(), plan.offset_of(at));
            self.unreadable.fetch_add(1, Ordering::Relaxed);
            tracing::error!(target_id = self.id.0, %object, offset, %error, "stored data cannot be read");
            let detail = format!("object {object} byte {offset}: {error}");
            Refused::new(error.code(), detail)
        })
    }

    pub(super) fn read(
        &self,
        object: &ObjectRef,
        offset: u64,
        length: u32,
        reply: &mut ReplyBuilder,
    ) -> Result<StorageReply, Refused> {
        let (id, cut) = named(object);
        let length = length as usize;
        if length > STORAGE_IO_BYTES_MAX {
            return Err(ErrorCode::Invalid.into());
        }
        let mut before = None;
        loop {
            let plan = self
                .lock()
                .plan_read(&*self.engine, id, cut, offset, length)?;
            if before.as_ref() == Some(&plan) {
                return Err(self.damaged(&plan));
            }
            let object_bytes = plan.object_bytes();
            // A ragged range of the longest length takes more than a payload holds; it is copied once.
            if plan.buffer_len() > PAYLOAD_BYTES_MAX {
                let mut buffer = vec![0; plan.buffer_len()];
                self.fill(&plan, &mut buffer)?;
                if let Ok(range) = plan.finish(&mut buffer) {
                    reply
                        .payload_mut(range.len())
                        .copy_from_slice(&buffer[range]);
                    return Ok(StorageReply::Read { object_bytes });
                }
            } else {
                let buffer = reply.payload_mut(plan.buffer_len());
                self.fill(&plan, buffer)?;
                if let Ok(range) = plan.finish(buffer) {
                    let count = range.len();
                    if range.start > 0 {
                        buffer.copy_within(range, 0);
                    }
                    reply.truncate_payload(count);
                    return Ok(StorageReply::Read { object_bytes });
                }
            }
            before = Some(plan);
            // In the client's memory others may have changed them meanwhile: only what is wrong here is damage.
            reply.leave_room();
        }
    }

    /// The same plan failed twice: tells which block.
    fn damaged(&self, plan: &zonal_object::ReadPlan) -> Refused {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        let mut buffer = vec![0; plan.buffer_len()];
        let detail = match storage_io::fill(&self.segments, plan, &mut buffer) {
            Err(error) => error.to_string(),
            Ok(()) => match plan.finish(&mut buffer) {
                Err(damage) => damage.to_string(),
                Ok(_) => "a read failed its checksum twice, then passed".into(),
            },
        };
        tracing::error!(target_id = self.id.0, detail, "stored data is damaged");
        Refused::new(ErrorCode::Corrupt, detail)
    }
}
