//! Space: retries changes that found none, and answers `StatFs`.

use super::{Refused, TargetDriver, TargetHost};
use zonal_types::ErrorCode;
use zonal_wire::StorageReply;

/// Number of times that a change without space looks for it again.
const SPACE_TRIES: usize = 6;

impl<H: TargetHost> TargetDriver<H> {
    /// Retries `attempt` after a checkpoint, or within the existing segments, where that may help.
    pub(super) async fn with_space<T>(
        &self,
        mut attempt: impl AsyncFnMut() -> Result<T, Refused>,
    ) -> Result<T, Refused> {
        for _ in 0..SPACE_TRIES {
            let seen = self.checkpoints();
            let limit = self.lock().usable_segments();
            let refused = match attempt().await {
                Err(refused) => refused,
                done => return done,
            };
            match refused.code {
                ErrorCode::NoSpace if self.reach_changed(limit)? => continue,
                ErrorCode::NoSpace if self.lock().reclaimable() > 0 => {}
                // Nothing is left to reclaim, because a checkpoint since the attempt has freed it.
                ErrorCode::NoSpace if self.checkpoints() > seen => continue,
                ErrorCode::Overloaded => {}
                _ => return Err(refused),
            }
            let made = self.checkpoint_after(seen).await;
            made.map_err(Refused::by_host)?;
        }
        attempt().await.map_err(|refused| match refused.code {
            // Small writes that find no segment to go to.
            ErrorCode::Overloaded if self.lock().usable_segments().is_some() => {
                ErrorCode::NoSpace.into()
            }
            _ => refused,
        })
    }

    /// Whether another number of segments can be had than up to `before`: fewer, as was just found,
    /// or more again.
    fn reach_changed(&self, before: Option<u32>) -> Result<bool, Refused> {
        if self.lock().usable_segments() != before {
            return Ok(true);
        }
        let is_lifted = before.is_some() && self.host.space().map_err(Refused::by_host)?.unmade > 0;
        if is_lifted {
            self.lock().limit_segments(None);
        }
        Ok(is_lifted)
    }

    /// Total and free bytes that a client may use.
    pub(super) fn statfs(&self) -> Result<StorageReply, Refused> {
        let below = self.host.space().map_err(Refused::by_host)?;
        let (space, is_limited) = {
            let mut target = self.lock();
            if below.unmade > 0 {
                target.limit_segments(None);
            }
            (target.statfs(), target.usable_segments().is_some())
        };
        let missing = if is_limited {
            0
        } else {
            // The file system below is fuller than the configured capacity allows for.
            let unmade = space.total.saturating_sub(below.made);
            unmade.saturating_sub(below.unmade)
        };
        Ok(StorageReply::StatFs {
            total: space.total,
            free: space.free.saturating_sub(missing),
            objects: space.objects,
        })
    }
}
