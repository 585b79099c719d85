//! Truncations, holes, reservations and deletions, carried out step by step.

use super::{ChangeSender, Refused, TargetDriver, TargetHost};
use zonal_object::{ChangeOutcome, Delete, DeleteStep, Edit, EditStep};

impl<H: TargetHost> TargetDriver<H> {
    /// Makes a hole or a reservation.
    ///
    /// # Errors
    /// The target's refusal, or the medium's failure.
    pub async fn edit_range(
        &self,
        edit: Edit,
        sender: ChangeSender<'_>,
    ) -> Result<ChangeOutcome, Refused> {
        let mut edit = edit.sent_by(sender.attempt);
        self.with_space(async || self.run_edit(&mut edit, Some(sender)).await)
            .await
    }

    /// Carries out a truncation, which is as right late as in time, so nobody needs to wait for it.
    /// An edit that ran into a bound goes on where it stopped.
    ///
    /// # Errors
    /// The target's refusal, or the medium's failure.
    pub async fn edit(
        &self,
        mut edit: Edit,
        sender: ChangeSender<'_>,
    ) -> Result<ChangeOutcome, Refused> {
        self.with_space(async || self.run_edit(&mut edit, Some(sender)).await)
            .await
    }

    pub(super) async fn run_edit(
        &self,
        edit: &mut Edit,
        sender: Option<ChangeSender<'_>>,
    ) -> Result<ChangeOutcome, Refused> {
        let mut damage = None;
        loop {
            let step = {
                let mut target = self.lock_with_room().await?;
                sender.map_or(Ok(()), ChangeSender::check)?;
                match target.edit_step(self.host.store(), edit)? {
                    EditStep::Done(outcome) => return Ok(outcome),
                    EditStep::Log { record, done } => {
                        if sender.is_none_or(|sender| !sender.attempt.is_fill) {
                            self.fills
                                .note(edit.object(), &std::iter::once(0..u64::MAX));
                        }
                        self.append(record).map_err(Refused::by_host)?;
                        if let Some(outcome) = done {
                            self.ask_for_checkpoint(&target);
                            return Ok(outcome);
                        }
                        damage = None;
                        None
                    }
                    EditStep::Read => edit.old_blocks().cloned(),
                }
            };
            let Some(old) = step else {
                continue;
            };
            let mut buffer = vec![0; old.buffer_len()];
            self.fill(&old, &mut buffer).await?;
            if let Err(found) = edit.supply(&mut buffer) {
                if damage.as_ref() == Some(&old) {
                    return Err(self.damaged_base(&found));
                }
                damage = Some(old);
            }
        }
    }

    /// Deletes objects.
    ///
    /// # Errors
    /// A damaged index, or a failed append.
    pub async fn delete(&self, mut delete: Delete) -> Result<(), Refused> {
        loop {
            let mut target = self.lock_with_room().await?;
            match target.delete_step(self.host.store(), &mut delete)? {
                DeleteStep::Log(record) => {
                    self.append(record).map_err(Refused::by_host)?;
                    self.ask_for_checkpoint(&target);
                }
                DeleteStep::Again => {}
                DeleteStep::Done => return Ok(()),
            }
        }
    }

    /// Resumes deletions that were begun before a restart.
    ///
    /// # Errors
    /// As [`Self::delete`].
    pub async fn resume(&self) -> Result<(), Refused> {
        let unfinished = self.lock().unfinished_deletes();
        self.delete(Delete::new(unfinished)).await
    }
}
