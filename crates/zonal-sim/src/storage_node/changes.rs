//! Changes of objects, step by step as the server makes them: plan, segments, commit, checkpoint.

use super::StorageNode;
use crate::coverage::Fault;
use zonal_object::{
    Attempt, Committed, Delete, DeleteStep, Edit, ObjectId, Outcome, Planned, Step, WriteRequest,
    ranges_of_one_record,
};
use zonal_types::ErrorCode;
use zonal_types::limits::WRITE_RANGES_MAX;
use zonal_wire::{ObjectRef, StorageReply};

impl StorageNode {
    /// As the server does: so many ranges at a time as go into one record.
    pub(super) async fn write(
        &self,
        object: &ObjectRef,
        attempt: Attempt,
        ranges: &[(u64, u32)],
        payload: &[u8],
    ) -> Result<StorageReply, ErrorCode> {
        let bytes: u64 = ranges.iter().map(|(_at, length)| u64::from(*length)).sum();
        if ranges.len() > WRITE_RANGES_MAX || bytes != payload.len() as u64 {
            return Err(ErrorCode::Invalid);
        }
        let config = *self.target.borrow().config();
        let (mut ranges, mut payload, mut before) = (ranges, payload, 0);
        loop {
            let (now, later) = ranges.split_at(ranges_of_one_record(&config, ranges));
            let bytes: u64 = now.iter().map(|(_at, length)| u64::from(*length)).sum();
            let (of_now, of_later) = payload.split_at(bytes as usize);
            let request = WriteRequest {
                object: self.id_of(object),
                cut: self.cut(object),
                attempt,
                ranges: now,
            };
            let wrote = self.write_once(request, of_now).await;
            let mut outcome = wrote.inspect_err(|_code| {
                let mut target = self.target.borrow_mut();
                target.tell_later(request.object, before);
            })?;
            before += outcome.allocated_delta;
            if later.is_empty() {
                outcome.allocated_delta = before;
                return Ok(self.written(outcome));
            }
            (ranges, payload) = (later, of_later);
            self.pause().await;
        }
    }

    async fn write_once(
        &self,
        request: WriteRequest<'_>,
        payload: &[u8],
    ) -> Result<Outcome, ErrorCode> {
        let mut tries = 0;
        let mut plan = loop {
            let planned = self
                .target
                .borrow_mut()
                .plan_write(self.disk.as_ref(), request);
            match planned {
                Ok(Planned::Ready(plan)) => break plan,
                Ok(Planned::CutFirst(edit)) => {
                    self.run_edit(edit).await?;
                }
                Err(ErrorCode::NoSpace | ErrorCode::Overloaded) if tries < 3 => {
                    tries += 1;
                    self.checkpoint()?;
                }
                Err(code) => {
                    if code == ErrorCode::NoSpace {
                        self.network.count(Fault::FullDisk);
                    }
                    return Err(code);
                }
            }
        };
        for write in plan.writes() {
            let bytes = payload.get(write.payload).unwrap_or_default();
            self.disk.write_segment(write.segment, write.offset, bytes);
        }
        plan.checksum(payload);
        loop {
            let old = plan.old_blocks().map(|old| self.fill(old)).transpose();
            let supplied = match old {
                Ok(None) => Ok(()),
                Ok(Some(mut buffer)) => plan.supply(&mut buffer).map_err(|damage| damage.code()),
                Err(code) => Err(code),
            };
            if let Err(code) = supplied {
                let mut target = self.target.borrow_mut();
                if !target.refresh_write(self.disk.as_ref(), &mut plan)? {
                    target.abort_write(&mut plan);
                    return Err(code);
                }
                continue;
            }
            self.pause().await;
            let committed = {
                let mut target = self.target.borrow_mut();
                target.commit_write(self.disk.as_ref(), &mut plan, payload)?
            };
            if let Committed::Done { record, outcome } = committed {
                self.log(record);
                self.maybe_checkpoint()?;
                return Ok(outcome);
            }
        }
    }

    pub(super) async fn edit(
        &self,
        make: impl Fn() -> Result<Edit, ErrorCode>,
    ) -> Result<StorageReply, ErrorCode> {
        for _ in 0..3 {
            match self.run_edit(make()?).await {
                Err(ErrorCode::NoSpace | ErrorCode::Overloaded) => self.checkpoint()?,
                other => return other.map(|outcome| self.written(outcome)),
            }
        }
        let outcome = self.run_edit(make()?).await?;
        Ok(self.written(outcome))
    }

    async fn run_edit(&self, mut edit: Edit) -> Result<Outcome, ErrorCode> {
        loop {
            let step = self
                .target
                .borrow_mut()
                .edit_step(self.disk.as_ref(), &mut edit)?;
            match step {
                Step::Read => {
                    let old = edit.old_blocks().map(|old| self.fill(old));
                    if let Some(mut buffer) = old.transpose()? {
                        edit.supply(&mut buffer).map_err(|damage| damage.code())?;
                    }
                    self.pause().await;
                }
                Step::Log { record, done } => {
                    self.log(record);
                    if let Some(outcome) = done {
                        return Ok(outcome);
                    }
                }
                Step::Done(outcome) => return Ok(outcome),
            }
        }
    }

    pub(super) fn delete(&self, objects: Vec<ObjectId>) -> Result<(), ErrorCode> {
        let mut delete = Delete::new(objects);
        loop {
            let step = self
                .target
                .borrow_mut()
                .delete_step(self.disk.as_ref(), &mut delete)?;
            match step {
                DeleteStep::Log(record) => self.log(record),
                DeleteStep::Again => {}
                DeleteStep::Done => return Ok(()),
            }
        }
    }

    fn maybe_checkpoint(&self) -> Result<(), ErrorCode> {
        if self.target.borrow().wants_checkpoint() {
            self.checkpoint()?;
        }
        Ok(())
    }

    /// Moves pending blocks to segments and makes everything durable, in one step.
    ///
    /// # Errors
    /// What the target says.
    pub fn checkpoint(&self) -> Result<(), ErrorCode> {
        let mut target = self.target.borrow_mut();
        let plan = target.plan_checkpoint(usize::MAX);
        if !plan.is_empty() {
            let mut buffer = Vec::new();
            for run in plan.runs() {
                run.copy_to(&mut buffer);
                let place = run.place();
                self.disk
                    .write_segment(place.segment, place.offset(), &buffer);
            }
            for record in target.commit_checkpoint(self.disk.as_ref(), plan)? {
                self.disk.append(record, true);
            }
        }
        let changes = target.freeze();
        self.disk.checkpoint(&changes);
        target.checkpoint_done();
        Ok(())
    }
}
