//! Reads: planned under the mutex, filled from segments outside of it, compared with checksums.

use super::{Refused, ReplyRoom, TargetDriver, TargetHost, TargetNote, named};
use zonal_object::{Damage, ReadPlan};
use zonal_types::ErrorCode;
use zonal_types::limits::{PAYLOAD_BYTES_MAX, STORAGE_IO_BYTES_MAX};
use zonal_wire::{ObjectRef, StorageReply};

impl<H: TargetHost> TargetDriver<H> {
    /// Reads the segment ranges of `plan` into `buffer`. An error comes with the first byte of the
    /// object that it concerns.
    async fn read_parts(
        &self,
        plan: &ReadPlan,
        buffer: &mut [u8],
    ) -> Result<(), (usize, H::Error)> {
        for read in plan.reads() {
            let at = read.buffer.start;
            // `ReadPlan::finish` rejects a buffer that is too short.
            let part = buffer.get_mut(read.buffer).unwrap_or_default();
            let filled = self.host.read_segment(read.segment, read.offset, part);
            filled.await.map_err(|error| (at, error))?;
        }
        Ok(())
    }

    /// As [`Self::read_parts`]; reports a failure of the medium with object and offset.
    pub(super) async fn fill(&self, plan: &ReadPlan, buffer: &mut [u8]) -> Result<(), Refused> {
        let filled = self.read_parts(plan, buffer).await;
        filled.map_err(|(at, error)| {
            let (object, offset) = (plan.object(), plan.offset_of(at));
            self.note_damage(object, offset);
            self.host.note(TargetNote::Unreadable {
                object,
                offset,
                error: &error,
            });
            let detail = format!("object {object} byte {offset}: {error}");
            Refused::new(error.into(), detail)
        })
    }

    pub(super) async fn read(
        &self,
        object: &ObjectRef,
        offset: u64,
        length: u32,
        reply: &mut impl ReplyRoom,
    ) -> Result<StorageReply, Refused> {
        let (id, truncation) = named(object);
        let length = length as usize;
        if length > STORAGE_IO_BYTES_MAX {
            return Err(ErrorCode::Invalid.into());
        }
        let mut before = None;
        loop {
            let planned = self
                .lock()
                .plan_read(self.host.store(), id, truncation, offset, length);
            let plan = planned?;
            if before.as_ref() == Some(&plan) {
                return Err(self.damaged_twice(&plan).await);
            }
            let (object_bytes, order) = (plan.object_bytes(), plan.order());
            // A range of the largest length that is not aligned needs more than a payload holds.
            // Its bytes are copied once.
            if plan.buffer_len() > PAYLOAD_BYTES_MAX {
                let mut buffer = vec![0; plan.buffer_len()];
                self.fill(&plan, &mut buffer).await?;
                if let Ok(range) = plan.finish(&mut buffer) {
                    reply.room(range.len()).copy_from_slice(&buffer[range]);
                    return Ok(StorageReply::Read {
                        object_bytes,
                        order,
                    });
                }
            } else {
                let buffer = reply.room(plan.buffer_len());
                self.fill(&plan, buffer).await?;
                if let Ok(range) = plan.finish(buffer) {
                    let count = range.len();
                    if range.start > 0 {
                        buffer.copy_within(range, 0);
                    }
                    reply.cut(count);
                    return Ok(StorageReply::Read {
                        object_bytes,
                        order,
                    });
                }
            }
            before = Some(plan);
            // The buffer is the client's memory, which others may have changed meanwhile. Only a
            // mismatch in memory of our own is damage.
            reply.leave_shared();
        }
    }

    /// The same plan failed twice: reports the damaged block.
    async fn damaged_twice(&self, plan: &ReadPlan) -> Refused {
        let mut buffer = vec![0; plan.buffer_len()];
        let detail = match self.read_parts(plan, &mut buffer).await {
            Err((_at, error)) => error.to_string(),
            Ok(()) => match plan.finish(&mut buffer) {
                Err(damage) => {
                    self.note_damage(plan.object(), damage.offset);
                    damage.to_string()
                }
                Ok(_) => "a read failed its checksum twice, then passed".into(),
            },
        };
        self.host.note(TargetNote::Damaged { detail: &detail });
        Refused::new(ErrorCode::Corrupt, detail)
    }

    /// Reports a damaged block of which a change needs the old bytes.
    pub(super) fn damaged_base(&self, damage: &Damage) -> Refused {
        let detail = damage.to_string();
        self.note_damage(damage.object, damage.offset);
        self.host.note(TargetNote::Damaged { detail: &detail });
        Refused::new(damage.code(), detail)
    }
}
