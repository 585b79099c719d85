//! Admission: whether the target carries a request out at all. The target must serve, and the
//! sender must know the slot as it is.
//!
//! A guarded request also needs the host's lease. The lease is looked at before the slot: the host
//! has it only with a map that is as new. A request that is sent to a paused target arrives after
//! the pause, and finds no lease. A read that is paused itself is checked again at its end.

use super::{Refused, TargetDriver, TargetHost};
use zonal_types::ErrorCode;
use zonal_wire::{Header, ObjectRef, StorageReply, StorageRequest};
use zonal_zonemap::{SlotClaim, SlotVerdict};

/// The reason why a request is not carried out at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAdmitted {
    /// The sender knows an older map entry; the reply has the newer one.
    Stale(StorageReply),
    /// Any other reason.
    Refused(Refused),
}

impl From<Refused> for NotAdmitted {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl<H: TargetHost> TargetDriver<H> {
    /// Checks that a request is for this target as it is now.
    ///
    /// # Errors
    /// The reason why it is not.
    pub async fn admit(
        &self,
        header: &Header,
        request: &StorageRequest,
    ) -> Result<(), NotAdmitted> {
        if let Some(why) = self.failure() {
            let id = self.id;
            let detail = format!("target {id} does not serve until it is restarted: {why}");
            return Err(Refused::new(ErrorCode::Io, detail).into());
        }
        self.check_lease(header)?;
        self.check_slot(header, request).await?;
        refuse_conditions(request).map_err(Refused::from)?;
        Ok(())
    }

    /// Refuses a guarded request while the host has no lease.
    fn check_lease(&self, header: &Header) -> Result<(), Refused> {
        if !header.is_guarded || self.host.has_lease() {
            return Ok(());
        }
        let detail = format!(
            "target {} has no lease of the manager to serve files with copies",
            self.id
        );
        Err(Refused::new(ErrorCode::NotReady, detail))
    }

    /// Checks a request again when its reply is made, as it may have waited for long. The target
    /// may have been taken out meanwhile, and even have a new lease. Or the object was deleted
    /// here, as it lies elsewhere now.
    pub(super) fn check_again(
        &self,
        header: &Header,
        request: &StorageRequest,
    ) -> Result<(), Refused> {
        self.check_lease(header)?;
        match self.has_moved(header, request) {
            false => Ok(()),
            true => {
                let detail = "the slot has changed while the request was carried out";
                Err(Refused::new(ErrorCode::NotReady, detail))
            }
        }
    }

    /// True where the slot of a request has changed since it was admitted. Looked at with each
    /// commit, under the target's mutex: what is deleted after that stays deleted.
    pub(super) fn has_moved(&self, header: &Header, request: &StorageRequest) -> bool {
        request.object().is_some_and(|object| {
            let verdict = self.host.map().judge_slot(self.id, claim(header, object));
            verdict != SlotVerdict::Current
        })
    }

    /// Checks that the request means this target, and that its sender knows the slot's present
    /// epoch.
    async fn check_slot(
        &self,
        header: &Header,
        request: &StorageRequest,
    ) -> Result<(), NotAdmitted> {
        if request.target() != self.id {
            let detail = format!("this is target {}", self.id);
            return Err(Refused::new(ErrorCode::WrongTarget, detail).into());
        }
        let Some(object) = request.object() else {
            return Ok(());
        };
        let claim = claim(header, object);
        let mut map = self.host.map();
        let mut verdict = map.judge_slot(self.id, claim);
        if verdict == SlotVerdict::Newer {
            map = self.host.map_at_least(header.map_version).await;
            verdict = map.judge_slot(self.id, claim);
        }
        match verdict {
            SlotVerdict::Current => Ok(()),
            SlotVerdict::Stale { target, epoch } => Err(NotAdmitted::Stale(StorageReply::Stale {
                map_version: map.version,
                set: object.set,
                slot: object.slot,
                target,
                epoch,
            })),
            SlotVerdict::Absent => {
                let detail = format!(
                    "slot {} of set {} is not target {}'s in map version {}",
                    object.slot, object.set, self.id, map.version
                );
                Err(Refused::new(ErrorCode::WrongTarget, detail).into())
            }
            // The sender may be right, but nobody gives us a map that new.
            SlotVerdict::Newer => Err(Refused::from(ErrorCode::NotReady).into()),
        }
    }
}

/// The slot as the sender knows it.
fn claim(header: &Header, object: &ObjectRef) -> SlotClaim {
    SlotClaim {
        set: object.set,
        slot: object.slot,
        epoch: header.epoch,
        map_version: header.map_version,
    }
}

/// Refuses conditional writes: carried out without their condition they would be silently wrong.
fn refuse_conditions(request: &StorageRequest) -> Result<(), ErrorCode> {
    match request {
        StorageRequest::Write {
            expected_version,
            txn,
            snap_epoch,
            ..
        } if (*expected_version, *txn, *snap_epoch) != (0, 0, 0) => Err(ErrorCode::NotSupported),
        _ => Ok(()),
    }
}
