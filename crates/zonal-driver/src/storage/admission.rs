//! Whether a request is carried out at all: what is asked of a target that serves, by a slot that
//! its sender knows as it is.

use super::{Refused, TargetDriver, TargetHost};
use zonal_types::ErrorCode;
use zonal_wire::{Header, StorageReply, StorageRequest};
use zonal_zonemap::{SlotClaim, SlotVerdict};

/// Why a request is not carried out at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAdmitted {
    /// Its sender knows an older entry of the map: the newer one.
    Stale(StorageReply),
    /// Anything else.
    Refused(Refused),
}

impl From<Refused> for NotAdmitted {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl<H: TargetHost> TargetDriver<H> {
    /// Is it one for this target as it is now?
    ///
    /// # Errors
    /// Why not.
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
        self.check_slot(header, request).await?;
        refuse_conditions(request).map_err(Refused::from)?;
        Ok(())
    }

    /// Is this target meant, and does the sender know the slot by which it came as it is?
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
        let claim = SlotClaim {
            set: object.set,
            slot: object.slot,
            epoch: header.epoch,
            map_version: header.map_version,
        };
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
            // It may be right: nobody gives us so new a map.
            SlotVerdict::Newer => Err(Refused::from(ErrorCode::NotReady).into()),
        }
    }
}

/// A conditional write, done as if it had no condition, would be silently wrong.
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
