//! Writes, edits and deletions: planned under the mutex, carried out outside of it, committed with their record.

use super::{Refused, Storage, named};
use crate::storage_io;
use std::sync::atomic::Ordering;
use zonal_disk::{DiskError, Lsn};
use zonal_object::{
    Attempt, Committed, Delete, DeleteStep, Edit, Outcome, Planned, Step, WritePlan, WriteRequest,
    ranges_of_one_record,
};
use zonal_types::ErrorCode;
use zonal_types::limits::WRITE_RANGES_MAX;
use zonal_wire::{ObjectRef, StorageReply};

/// How often a step is tried again when its blocks move away under it. Each retry means that another one went on.
const RETRIES: usize = 100;

/// How often a write that finds no space looks for it again.
const SPACE_TRIES: usize = 6;

/// Who asks for a change of a range.
#[derive(Clone, Copy)]
pub(crate) struct Asker<'a> {
    pub(crate) attempt: Attempt,
    /// Whether who asks has hung up: nobody waits for the change, and it must not be made any more.
    pub(crate) is_gone: &'a dyn Fn() -> bool,
}

impl Asker<'_> {
    /// For tests.
    #[cfg(test)]
    pub(crate) const WAITS: Self = Self {
        attempt: Attempt {
            sender: zonal_object::Sender {
                identity: zonal_types::ClientIdentity {
                    client: zonal_types::ClientId(0),
                    incarnation: zonal_types::Incarnation(0),
                },
                holder: zonal_types::HolderNumber(0),
            },
            number: 0,
        },
        is_gone: &|| false,
    };

    /// The last look before a commit.
    fn check(self) -> Result<(), Refused> {
        if (self.is_gone)() {
            // One that lives asks again: a server that stops ends its connections, too.
            let detail = "who asked has hung up";
            return Err(Refused::new(ErrorCode::NotReady, detail.into()));
        }
        Ok(())
    }
}

impl Storage {
    /// Runs `attempt` again after a checkpoint, or among the segments that there are, where that may help.
    fn with_space<T>(&self, mut attempt: impl FnMut() -> Result<T, Refused>) -> Result<T, Refused> {
        for _ in 0..SPACE_TRIES {
            let seen = self.engine.stats().checkpoints;
            let limit = self.lock().usable_segments();
            let refused = match attempt() {
                Err(refused) => refused,
                done => return done,
            };
            match refused.code {
                ErrorCode::NoSpace if self.reach_changed(limit)? => continue,
                ErrorCode::NoSpace if self.lock().reclaimable() > 0 => {}
                ErrorCode::Overloaded => {}
                _ => return Err(refused),
            }
            storage_io::checkpoint_after(self, seen)?;
        }
        attempt().map_err(|refused| match refused.code {
            // Small writes that cannot go anywhere.
            ErrorCode::Overloaded if self.lock().usable_segments().is_some() => {
                ErrorCode::NoSpace.into()
            }
            _ => refused,
        })
    }

    /// Whether other segments can be had than those up to `before`: fewer, as was just found, or more again.
    fn reach_changed(&self, before: Option<u32>) -> Result<bool, DiskError> {
        if self.lock().usable_segments() != before {
            return Ok(true);
        }
        let is_lifted = before.is_some() && self.segments.space()?.unmade > 0;
        if is_lifted {
            self.lock().limit_segments(None);
        }
        Ok(is_lifted)
    }

    /// Writes ranges whose bytes come one behind the other: few enough for one record at a time. Where one fails those before it are
    /// written, and whoever is answered next for the object is told what they allocated.
    pub(crate) fn write(
        &self,
        object: &ObjectRef,
        asker: Asker<'_>,
        ranges: &[(u64, u32)],
        payload: &[u8],
    ) -> Result<(Outcome, Lsn), Refused> {
        let (id, cut) = named(object);
        let bytes: u64 = ranges.iter().map(|(_at, length)| u64::from(*length)).sum();
        if ranges.len() > WRITE_RANGES_MAX || bytes != payload.len() as u64 {
            return Err(ErrorCode::Invalid.into());
        }
        let config = *self.lock().config();
        let (mut ranges, mut payload, mut before) = (ranges, payload, 0);
        loop {
            let (now, later) = ranges.split_at(ranges_of_one_record(&config, ranges));
            let bytes: u64 = now.iter().map(|(_at, length)| u64::from(*length)).sum();
            let (of_now, of_later) = payload.split_at(bytes as usize);
            let request = WriteRequest {
                object: id,
                cut,
                attempt: asker.attempt,
                ranges: now,
            };
            let (mut outcome, lsn) = self
                .with_space(|| self.try_write(request, asker, of_now))
                .inspect_err(|_refused| self.lock().tell_later(id, before))?;
            before += outcome.allocated_delta;
            if later.is_empty() {
                outcome.allocated_delta = before;
                return Ok((outcome, lsn));
            }
            (ranges, payload) = (later, of_later);
        }
    }

    fn try_write(
        &self,
        request: WriteRequest<'_>,
        asker: Asker<'_>,
        payload: &[u8],
    ) -> Result<(Outcome, Lsn), Refused> {
        let mut plan = loop {
            // A statement of its own: the guard must be gone before the edit takes the lock.
            let planned = self.lock().plan_write(&*self.engine, request)?;
            match planned {
                Planned::Ready(plan) => break plan,
                Planned::CutFirst(mut edit) => self.run_edit(&mut edit, None).map(drop)?,
            }
        };
        let result = self.carry_out(&mut plan, asker, payload);
        if result.is_err() {
            self.lock().abort_write(&mut plan);
        }
        result
    }

    fn carry_out(
        &self,
        plan: &mut WritePlan,
        asker: Asker<'_>,
        payload: &[u8],
    ) -> Result<(Outcome, Lsn), Refused> {
        for write in plan.writes() {
            let bytes = payload.get(write.payload).ok_or(ErrorCode::Invalid)?;
            self.write_segment(write.segment, write.offset, bytes)?;
        }
        plan.checksum(payload);
        for _ in 0..RETRIES {
            if let Some(old) = plan.old_blocks() {
                let mut buffer = vec![0; old.buffer_len()];
                self.fill(old, &mut buffer)?;
                if let Err(damage) = plan.supply(&mut buffer) {
                    if self.lock().refresh_write(&*self.engine, plan)? {
                        continue;
                    }
                    return Err(self.damaged_base(&damage));
                }
            }
            let mut target = self.lock_with_room()?;
            asker.check()?;
            match target.commit_write(&*self.engine, plan, payload)? {
                Committed::Done { record, outcome } => {
                    let lsn = self.append(record)?;
                    storage_io::ask_for_checkpoint(self, &target);
                    return Ok((outcome, lsn));
                }
                Committed::Again => {}
            }
        }
        Err(ErrorCode::Overloaded.into())
    }

    fn damaged_base(&self, damage: &zonal_object::Damage) -> Refused {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(target_id = self.id.0, %damage, "stored data is damaged");
        Refused::new(damage.code(), damage.to_string())
    }

    /// A hole or a reservation.
    pub(crate) fn edit_range(&self, edit: Edit, asker: Asker<'_>) -> Result<Outcome, Refused> {
        let mut edit = edit.sent_by(asker.attempt);
        self.with_space(|| self.run_edit(&mut edit, Some(asker)))
    }

    /// A truncation, which is as right late as in time, whoever asked for it.
    ///
    /// An edit goes on where it stopped, so one that ran into a bound is not begun anew.
    pub(crate) fn edit(&self, mut edit: Edit) -> Result<Outcome, Refused> {
        self.with_space(|| self.run_edit(&mut edit, None))
    }

    fn run_edit(&self, edit: &mut Edit, asker: Option<Asker<'_>>) -> Result<Outcome, Refused> {
        let mut damage = None;
        loop {
            let mut target = self.lock_with_room()?;
            asker.map_or(Ok(()), Asker::check)?;
            match target.edit_step(&*self.engine, edit)? {
                Step::Done(outcome) => return Ok(outcome),
                Step::Log { record, done } => {
                    self.append(record)?;
                    if let Some(outcome) = done {
                        storage_io::ask_for_checkpoint(self, &target);
                        return Ok(outcome);
                    }
                    damage = None;
                }
                Step::Read => {
                    drop(target);
                    let Some(old) = edit.old_blocks().cloned() else {
                        continue;
                    };
                    let mut buffer = vec![0; old.buffer_len()];
                    self.fill(&old, &mut buffer)?;
                    if let Err(found) = edit.supply(&mut buffer) {
                        if damage.as_ref() == Some(&old) {
                            return Err(self.damaged_base(&found));
                        }
                        damage = Some(old);
                    }
                }
            }
        }
    }

    pub(crate) fn delete(&self, mut delete: Delete) -> Result<(), Refused> {
        loop {
            let mut target = self.lock_with_room()?;
            match target.delete_step(&*self.engine, &mut delete)? {
                DeleteStep::Log(record) => {
                    self.append(record)?;
                    storage_io::ask_for_checkpoint(self, &target);
                }
                DeleteStep::Again => {}
                DeleteStep::Done => return Ok(()),
            }
        }
    }

    pub(super) fn written(&self, outcome: Outcome) -> StorageReply {
        StorageReply::Written {
            allocated_delta: outcome.allocated_delta,
            object_bytes: outcome.object_bytes,
            verifier: self.engine.verifier(),
        }
    }
}
