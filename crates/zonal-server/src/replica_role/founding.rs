//! The founding of the managers' group, which no map can tell about.
//!
//! The first manager of the list in its config founds the group, where its store is untouched. Each
//! of the others must first say that it has nothing of a group either. While one of them is silent,
//! it waits; where one has a group, it joins that. So a first manager that has lost its disk makes
//! no second cell beside the first.

use super::ReplicaRole;
use crate::rate_limited_log::RateLimit;
use std::net::SocketAddr;
use std::time::Duration;
use zonal_wire::{ReplicaPart, ReplicaReply, ReplicaRequest};

/// Pause between two rounds of questions.
const PAUSE: Duration = Duration::from_millis(200);

/// The answer of another manager.
enum Answer {
    HasNothing,
    HasGroup,
    Unknown(String),
}

/// Waits until all others have answered; true where none has a group.
pub(super) fn is_first(role: &ReplicaRole, others: &[SocketAddr]) -> bool {
    let complained = RateLimit::default();
    while !role.news.is_stopping() {
        let mut is_sure = true;
        for other in others {
            match ask(role, *other) {
                Answer::HasNothing => {}
                Answer::HasGroup => return false,
                Answer::Unknown(reason) => {
                    is_sure = false;
                    if complained.is_due() {
                        tracing::warn!(manager = %other, reason, "waiting for all managers before the first start");
                    }
                }
            }
        }
        if is_sure {
            return true;
        }
        role.news.sleep(PAUSE);
    }
    false
}

fn ask(role: &ReplicaRole, other: SocketAddr) -> Answer {
    let shard = role.shard();
    let asked = ReplicaRequest::Status { shard };
    match role.parts.peers.replica_at(other, &asked) {
        Ok(ReplicaReply::Status { part, .. }) => match part {
            ReplicaPart::Empty => Answer::HasNothing,
            ReplicaPart::Starts => Answer::Unknown("it opens its store".into()),
            ReplicaPart::Leads
            | ReplicaPart::Follows
            | ReplicaPart::Seeks
            | ReplicaPart::Superseded => Answer::HasGroup,
        },
        Ok(other) => Answer::Unknown(format!("it answers {}", other.name())),
        Err(error) => Answer::Unknown(crate::join::chain(&error)),
    }
}
