//! Clock of a joining node: it must agree with the manager's.
//!
//! Files get their times from the clocks of shards, and certificates and tokens end by a clock. So
//! a node whose clock is off by more than [`CLOCK_SKEW_MAX_MS`] does not join. Nothing else
//! compares clocks of machines: terms of leases and sessions are measured on one machine each.

use crate::peers::{PeerError, Peers};
use std::time::{SystemTime, UNIX_EPOCH};
use zonal_types::NodeId;
use zonal_types::limits::CLOCK_SKEW_MAX_MS;
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::ZoneMap;

/// The clocks of a node and of the manager differ too much.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the clock of node {node} is {seconds} s {direction} the manager's, at most {} s are allowed. Hint: set both clocks (NTP), then start the server again",
    CLOCK_SKEW_MAX_MS / 1000
)]
pub struct ClockRefusal {
    /// The node.
    pub node: NodeId,
    /// The difference.
    pub seconds: u64,
    /// `ahead of` or `behind`.
    pub direction: &'static str,
}

/// This machine's clock, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    })
}

/// Compares a node's clock with the manager's.
pub(crate) fn judge(node: NodeId, clock_ms: u64, now_ms: u64) -> Result<(), ClockRefusal> {
    let difference = clock_ms.abs_diff(now_ms);
    match difference > CLOCK_SKEW_MAX_MS {
        true => Err(ClockRefusal {
            node,
            seconds: difference / 1000,
            direction: match clock_ms > now_ms {
                true => "ahead of",
                false => "behind",
            },
        }),
        false => Ok(()),
    }
}

/// Shows the manager this node's clock; `None` where the manager is content with it.
pub(crate) fn check(
    node: NodeId,
    peers: &Peers,
    map: &ZoneMap,
) -> Option<Result<ManagerReply, PeerError>> {
    let request = ManagerRequest::CheckClock {
        node,
        clock_ms: now_ms(),
    };
    let reply = peers.manager(map, &request);
    let is_content = matches!(reply, Ok(ManagerReply::At { .. }));
    (!is_content).then_some(reply)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_far_off_is_refused_with_the_difference() {
        let now = 1_800_000_000_000;
        for near in [now, now - CLOCK_SKEW_MAX_MS, now + CLOCK_SKEW_MAX_MS] {
            assert_eq!(judge(NodeId(4), near, now), Ok(()));
        }
        let skew = |clock| judge(NodeId(4), clock, now).unwrap_err().to_string();
        assert!(skew(now - 300_000).contains("node 4 is 300 s behind the manager's"));
        assert!(skew(now + 121_000).contains("121 s ahead of the manager's, at most 120 s"));
        assert!(skew(0).contains("behind") && skew(u64::MAX).contains("ahead"));
    }
}
