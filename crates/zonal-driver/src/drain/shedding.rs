//! One step of a target that gives objects to emptier ones (docs/rfcs/2026-11-27-rebalance.md).
//!
//! | phase | what is looked at | next |
//! | --- | --- | --- |
//! | choose | all files: objects go; once none more does, a fence | fill |
//! | fill | unfinished files; once nothing is to be filled or deleted, a fence | settle |
//! | settle | a lease after the fence, all files: filled stay | fill, while something changed |
//! | | nothing is left: the target is full enough still | choose, with a larger share |
//! | | else | serves |
//!
//! *Bounds*: the share rises to all objects in [`SHARE_RAISES`] steps at most. An object that went
//! is at a target that gives none away.

use super::rooms::Rooms;
use super::{DrainCounts, DrainHost, look};
use zonal_types::{ErrorCode, Instant, MapVersion, TargetId};
use zonal_wire::RelocationPlan;
use zonal_zonemap::MapEdit;

/// All of a target's objects, or of its capacity.
const ALL: u16 = 10_000;
/// The least step of the share.
const SHARE_STEP: u16 = 100;
/// Steps of the share until all objects go.
pub const SHARE_RAISES: u32 = 16;
/// Ten-thousandths of the capacity above the mean that are even enough.
const NEAR: u64 = 50;

#[derive(Debug, Default)]
enum Phase {
    #[default]
    Choose,
    Fill,
    Settle(Instant, MapVersion),
}

/// A target that sheds, as this manager knows it.
#[derive(Debug, Default)]
pub(super) struct Shedding {
    phase: Phase,
    share: u16,
    raises: u32,
}

impl Shedding {
    /// The next step.
    pub(super) async fn step<H: DrainHost>(
        &mut self,
        host: &H,
        (target, is_ending): (TargetId, bool),
        rooms: &mut Rooms,
    ) -> Result<DrainCounts, ErrorCode> {
        match self.phase {
            Phase::Choose => self.choose(host, (target, is_ending), rooms).await,
            Phase::Fill => self.fill(host, target).await,
            Phase::Settle(at, _) if host.now().ms_since(at) < host.lease_ms() => {
                Ok(DrainCounts::default())
            }
            Phase::Settle(_, fence) => self.settle(host, (target, is_ending, fence), rooms).await,
        }
    }

    async fn choose<H: DrainHost>(
        &mut self,
        host: &H,
        (target, is_ending): (TargetId, bool),
        rooms: &mut Rooms,
    ) -> Result<DrainCounts, ErrorCode> {
        let map = host.map();
        let (excess, used) = rooms.excess(&map, target).ok_or(ErrorCode::NotReady)?;
        let needed = u128::from(excess) * u128::from(ALL) / u128::from(used.max(1));
        let needed = u16::try_from(needed).unwrap_or(ALL).min(ALL);
        self.share = self.share.max(needed);
        let mut plan = RelocationPlan::default();
        if !is_ending && excess > 0 {
            plan.share = self.share;
            plan.room = rooms.below_mean(&map, target);
        }
        let counts = look(host, (target, MapVersion(0)), false, plan, rooms).await?;
        if counts.begun == 0 {
            host.edit(MapEdit::RenewEpochs { target }).await?;
            self.phase = Phase::Fill;
        }
        Ok(counts)
    }

    async fn fill<H: DrainHost>(
        &mut self,
        host: &H,
        target: TargetId,
    ) -> Result<DrainCounts, ErrorCode> {
        let (plan, mut none) = (RelocationPlan::default(), Rooms::default());
        let counts = look(host, (target, MapVersion(0)), true, plan, &mut none).await?;
        if counts.unfenced > 0 {
            host.edit(MapEdit::RenewEpochs { target }).await?;
        } else if counts.filling == 0 && counts.begun == 0 {
            let fence = host.edit(MapEdit::RenewEpochs { target }).await?;
            self.phase = Phase::Settle(host.now(), fence);
        }
        Ok(counts)
    }

    async fn settle<H: DrainHost>(
        &mut self,
        host: &H,
        (target, is_ending, fence): (TargetId, bool, MapVersion),
        rooms: &Rooms,
    ) -> Result<DrainCounts, ErrorCode> {
        let (plan, mut none) = (RelocationPlan::default(), Rooms::default());
        let counts = look(host, (target, fence), false, plan, &mut none).await?;
        if counts.begun > 0 || counts.filling > 0 {
            self.phase = Phase::Fill;
            return Ok(counts);
        }
        let map = host.map();
        let (excess, _used) = rooms.excess(&map, target).ok_or(ErrorCode::NotReady)?;
        let near = rooms.total(target) / u64::from(ALL) * NEAR;
        if !is_ending && excess > near {
            let mut room = rooms.below_mean(&map, target).into_iter();
            if room.any(|room| room.bytes > near) {
                if self.raise() {
                    self.phase = Phase::Choose;
                    return Ok(counts);
                }
            } else if rooms.has_promises() {
                // Objects from others count twice until they have come.
                self.phase = Phase::Fill;
                return Ok(counts);
            }
        }
        host.edit(MapEdit::EndReturn { target }).await?;
        Ok(counts)
    }

    /// Raises the share. False where all objects went that may.
    fn raise(&mut self) -> bool {
        let more = self.share.saturating_add((self.share / 2).max(SHARE_STEP));
        let can = self.share < ALL && self.raises < SHARE_RAISES;
        self.share = more.min(ALL);
        self.raises += 1;
        can
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_comes_to_all_objects_in_bounded_steps() {
        let mut shedding = Shedding::default();
        let mut raises = 0;
        while shedding.raise() {
            raises += 1;
        }
        assert_eq!(shedding.share, ALL);
        assert!(raises <= SHARE_RAISES, "{raises}");
    }
}
