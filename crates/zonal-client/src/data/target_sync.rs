//! Sends Sync to several targets in parallel and waits for all of them.

use crate::cell::call::SentRequest;
use crate::cell::placement::TargetPlace;
use crate::client::ClientCall;
use crate::file::File;
use crate::file::unsynced_writes::UnsyncedWrites;
use crate::transport::net::Net;
use crate::transport::retry::{RETRY_MS, is_passing, leaves_gathered};
use zonal_types::{ErrorCode, TargetId};
use zonal_wire::{StorageReply, StorageRequest};

/// A Sync request to one target.
pub(crate) struct PendingSync<N: Net> {
    target: TargetId,
    started: Result<(TargetPlace, SentRequest<N>), ErrorCode>,
}

impl<N: Net> ClientCall<'_, N> {
    /// Makes the acknowledged writes of these targets durable, in parallel. `copies`: files among
    /// them have copies, so that a target that is out is not waited for.
    pub(crate) async fn sync_targets(
        &self,
        unsynced: &mut UnsyncedWrites,
        copies: bool,
    ) -> Result<(), ErrorCode> {
        let started = self.start_sync(&unsynced.targets());
        self.finish_sync(started, unsynced, copies).await
    }

    /// Makes the writes of a file with copies durable whose targets did not answer (`code`). The
    /// copies on those that go out are marked, and owe nothing. The others are asked again until
    /// the deadline.
    pub(crate) async fn sync_copies(
        &self,
        file: &File<N>,
        unsynced: &mut UnsyncedWrites,
        mut code: ErrorCode,
    ) -> Result<(), ErrorCode> {
        let deadline = self.deadline();
        loop {
            self.leave_out_unsynced(file, unsynced).await?;
            if unsynced.targets().is_empty() {
                return Ok(());
            }
            if self.is_over(deadline) || !file.state().data.layout.has_copies() {
                return Err(code);
            }
            self.sleep(RETRY_MS.1).await;
            match self.sync_targets(unsynced, true).await {
                Err(passing) if is_passing(passing) => code = passing,
                synced => return synced,
            }
        }
    }

    /// Sends Sync to targets; [`Self::finish_sync`] takes the replies.
    pub(crate) fn start_sync(&self, targets: &[TargetId]) -> Vec<PendingSync<N>> {
        let start = |target: &TargetId| {
            let started = self.target_place(*target).map(|place| {
                let pending = self.start_storage(&place, &StorageRequest::Sync { target: *target });
                (place, pending)
            });
            PendingSync {
                target: *target,
                started,
            }
        };
        targets.iter().map(start).collect()
    }

    /// Waits for all replies and retries failures until the deadline, with `copies` until the
    /// target is out. Targets that are durable, or
    /// that lost bytes (`Io`, once), leave `unsynced`.
    pub(crate) async fn finish_sync(
        &self,
        started: Vec<PendingSync<N>>,
        unsynced: &mut UnsyncedWrites,
        copies: bool,
    ) -> Result<(), ErrorCode> {
        let mut failed = None;
        for PendingSync { target, started } in started {
            let mut outcome = match started {
                Ok((place, pending)) if copies => self.reply_of_copy(&place, pending, 0).await,
                Ok((place, pending)) => self.storage_reply(&place, pending, None).await,
                Err(code) => Err(code),
            };
            let deadline = self.deadline();
            while matches!(
                outcome,
                Err(ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::NotReady)
            ) && !self.is_over(deadline)
            {
                if copies {
                    self.report_outage(target).await;
                    if self.map().is_out(target) {
                        break;
                    }
                }
                self.sleep(RETRY_MS.1).await;
                outcome = match self.target_place(target) {
                    Ok(place) => {
                        let again = self.start_storage(&place, &StorageRequest::Sync { target });
                        self.storage_reply(&place, again, None).await
                    }
                    Err(code) => Err(code),
                };
            }
            let outcome = match outcome {
                Ok((StorageReply::Synced { verifier }, _)) => {
                    if unsynced.synced(target, verifier) {
                        Ok(())
                    } else {
                        zonal_types::mark!(TargetLostPower);
                        Err(ErrorCode::Io)
                    }
                }
                Ok(_other) => Err(ErrorCode::Protocol),
                Err(code) => Err(code),
            };
            // A loss is reported once, so a passing error must not hide it.
            if let Err(code) = outcome
                && failed.is_none_or(leaves_gathered)
            {
                failed = Some(code);
            }
        }
        failed.map_or(Ok(()), Err)
    }
}
