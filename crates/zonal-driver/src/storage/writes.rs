//! Writes: planned under the mutex, carried out outside of it, committed with their record.

use super::{ChangeSender, Refused, TargetDriver, TargetHost, named};
use zonal_basics::to_usize;
use zonal_object::{
    ChangeOutcome, Committed, WriteDecision, WritePlan, WriteRequest, ranges_of_one_record,
};
use zonal_types::ErrorCode;
use zonal_types::limits::WRITE_RANGES_MAX;
use zonal_wire::ObjectRef;

/// Retries of a step whose blocks move away under it. Each retry means that another request made
/// progress.
const RETRIES: usize = 100;

impl<H: TargetHost> TargetDriver<H> {
    /// Writes ranges whose bytes lie one behind the other in the payload, few enough for one record
    /// at a time. Where one range fails, those before it stay written. The next reply for the
    /// object then reports what they allocated. Returns the position behind the records.
    ///
    /// # Errors
    /// `Invalid` where there are too many ranges, or they do not add up to the payload. Else the
    /// target's refusal or the medium's failure.
    pub async fn write(
        &self,
        object: &ObjectRef,
        sender: ChangeSender<'_>,
        ranges: &[(u64, u32)],
        payload: &[u8],
    ) -> Result<(ChangeOutcome, H::Position), Refused> {
        let (id, truncation) = named(object);
        let bytes: u64 = ranges.iter().map(|(_at, length)| u64::from(*length)).sum();
        if ranges.len() > WRITE_RANGES_MAX || bytes != payload.len() as u64 {
            return Err(ErrorCode::Invalid.into());
        }
        let config = *self.lock().config();
        let (mut ranges, mut payload, mut before) = (ranges, payload, 0);
        loop {
            let (now, later) = ranges.split_at(ranges_of_one_record(&config, ranges));
            let bytes: u64 = now.iter().map(|(_at, length)| u64::from(*length)).sum();
            let (of_now, of_later) = payload.split_at(to_usize(bytes));
            let request = WriteRequest {
                object: id,
                truncation,
                attempt: sender.attempt,
                ranges: now,
            };
            let written = self.with_space(async || self.try_write(request, sender, of_now).await);
            let (mut outcome, behind) = written
                .await
                .inspect_err(|_refused| self.lock().report_later(id, before))?;
            before += outcome.allocated_delta;
            if later.is_empty() {
                outcome.allocated_delta = before;
                return Ok((outcome, behind));
            }
            (ranges, payload) = (later, of_later);
        }
    }

    async fn try_write(
        &self,
        request: WriteRequest<'_>,
        sender: ChangeSender<'_>,
        payload: &[u8],
    ) -> Result<(ChangeOutcome, H::Position), Refused> {
        let mut plan = loop {
            // A statement of its own: the guard must be dropped before the edit takes the lock.
            let planned = self.lock().plan_write(self.host.store(), request)?;
            match planned {
                WriteDecision::Ready(plan) => break plan,
                WriteDecision::TruncateFirst(mut edit) => {
                    self.run_edit(&mut edit, Some(sender)).await?;
                }
            }
        };
        let result = self
            .carry_out_write(&mut plan, request, sender, payload)
            .await;
        if result.is_err() {
            self.lock().abort_write(&mut plan);
        }
        result
    }

    async fn carry_out_write(
        &self,
        plan: &mut WritePlan,
        request: WriteRequest<'_>,
        sender: ChangeSender<'_>,
        payload: &[u8],
    ) -> Result<(ChangeOutcome, H::Position), Refused> {
        for write in plan.writes() {
            let bytes = payload.get(write.payload).ok_or(ErrorCode::Invalid)?;
            let written = self.write_segment(write.segment, write.offset, bytes);
            written.await.map_err(Refused::by_host)?;
        }
        plan.checksum(payload);
        for _ in 0..RETRIES {
            if let Some(old) = plan.old_blocks() {
                let mut buffer = vec![0; old.buffer_len()];
                self.fill(old, &mut buffer).await?;
                if let Err(damage) = plan.supply(&mut buffer) {
                    if self.lock().refresh_write(self.host.store(), plan)? {
                        continue;
                    }
                    return Err(self.damaged_base(&damage));
                }
            }
            let mut target = self.lock_with_room().await?;
            sender.check()?;
            match target.commit_write(self.host.store(), plan, payload)? {
                Committed::Done { record, outcome } => {
                    if !sender.attempt.is_fill {
                        let ranges = request.ranges.iter();
                        let wide = ranges.map(|(at, length)| *at..*at + u64::from(*length));
                        self.fills.note(request.object, &wide);
                    }
                    let behind = self.append(record).map_err(Refused::by_host)?;
                    self.ask_for_checkpoint(&target);
                    return Ok((outcome, behind));
                }
                Committed::Again => {}
            }
        }
        Err(ErrorCode::Overloaded.into())
    }
}
