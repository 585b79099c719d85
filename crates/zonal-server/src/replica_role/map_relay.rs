//! Map relay: a manager that does not lead gives the map to those that know no other manager.
//!
//! It fetches the newest map from the manager that leads, and answers with that. So its answers are
//! as new as the leader's, and a caller learns the addresses of all managers. Other requests are
//! refused, and all requests of managers: two that do not lead would wait for one another.

use crate::map_cache::MapCache;
use std::sync::{Mutex, PoisonError};
use zonal_net::{Peer, Role};
use zonal_types::{ErrorCode, MapVersion, ShardId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::Manager;

/// The map that was given last, encoded for those that fetch it in parts.
#[derive(Default)]
pub(super) struct MapRelay(Mutex<Option<Manager>>);

impl MapRelay {
    /// Answers a request for the map.
    pub(super) fn answer(
        &self,
        map: &MapCache,
        peer: &Peer,
        request: &ManagerRequest,
    ) -> ManagerReply {
        let is_of_map = matches!(
            request,
            ManagerRequest::GetMap { .. } | ManagerRequest::GetMapPart { .. }
        );
        let known = map.current();
        let managers = known.shard(ShardId(0)).map(|root| &root.replicas);
        let is_others =
            managers.is_some_and(|all| peer.role != Role::Server || !all.contains(&peer.node));
        let newest = (is_of_map && is_others).then(|| map.newest()).flatten();
        // It has none yet where it found no other manager since its start.
        let newest = newest.filter(|newest| newest.version > MapVersion(0));
        let Some(newest) = newest else {
            return refusal();
        };
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match &mut *kept {
            Some(kept) if kept.durable().version == newest.version => kept,
            kept => kept.insert(Manager::of(newest)),
        };
        kept.answer_of_map(request).unwrap_or_else(refusal)
    }
}

fn refusal() -> ManagerReply {
    ManagerReply::Failed {
        code: ErrorNumber(ErrorCode::NotOwner),
        detail: "another manager leads, or none at the moment".into(),
    }
}
