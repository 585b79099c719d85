//! Space: what is tried where there is none, and what a client is told of it.

use super::{Refused, TargetDriver, TargetHost};
use zonal_types::ErrorCode;
use zonal_wire::StorageReply;

/// How often a change that finds no space looks for it again.
const SPACE_TRIES: usize = 6;

impl<H: TargetHost> TargetDriver<H> {
    /// Runs `attempt` again after a checkpoint, or among the segments that there are, where that
    /// may help.
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
                // Nothing is left to reclaim, for one that was under way has freed it since the
                // attempt.
                ErrorCode::NoSpace if self.checkpoints() > seen => continue,
                ErrorCode::Overloaded => {}
                _ => return Err(refused),
            }
            let made = self.checkpoint_after(seen).await;
            made.map_err(Refused::by_host)?;
        }
        attempt().await.map_err(|refused| match refused.code {
            // Small writes that cannot go anywhere.
            ErrorCode::Overloaded if self.lock().usable_segments().is_some() => {
                ErrorCode::NoSpace.into()
            }
            _ => refused,
        })
    }

    /// Whether other segments can be had than those up to `before`: fewer, as was just found, or
    /// more again.
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

    /// Bytes in all and free, as a client may use them.
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
            // Where the file system below is fuller than the capacity allows for.
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
