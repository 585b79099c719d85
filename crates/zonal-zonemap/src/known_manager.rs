//! Known manager: in which order the managers of a cell are asked.
//!
//! A process knows addresses of managers from its configuration. Once it has the map, it knows all
//! nodes with a replica of the root's shard. One of them leads and answers; the others refuse
//! with `NotOwner`. The manager that answered last is asked first. One that was silent since is
//! passed over: a caller with little time must get to another one.
//!
//! *Invariant*: each address is in the order once. An address of the configuration that the map
//! does not have comes last: the manager may have moved.

use crate::map::ZoneMap;
use std::sync::{Mutex, PoisonError};
use zonal_types::{ErrorCode, ShardId};
use zonal_wire::ManagerReply;

/// The manager to ask first, by its address: the one that answered last, or the one behind a silent
/// one. Threads share it.
#[derive(Debug, Default)]
pub struct KnownManager(Mutex<Option<String>>);

impl KnownManager {
    /// The managers to ask, in this order.
    #[must_use]
    pub fn order(&self, map: &ZoneMap, configured: &[String]) -> Vec<String> {
        let mut order = manager_addresses(map);
        for address in configured {
            if !order.contains(address) {
                order.push(address.clone());
            }
        }
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let first = known.as_ref();
        if let Some(place) = order.iter().position(|address| Some(address) == first) {
            order.rotate_left(place);
        }
        order
    }

    /// Notes that a manager answered.
    pub fn answered(&self, address: &str) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if first.as_deref() != Some(address) {
            *first = Some(address.to_owned());
        }
    }

    /// Notes that a manager of this order did not answer: the next one is asked first from now on.
    pub fn silent(&self, address: &str, order: &[String]) {
        let mut first = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_first = match first.as_deref() {
            Some(first) => first == address,
            None => order.first().is_some_and(|first| first == address),
        };
        let place = order.iter().position(|known| known == address);
        if let (Some(place), true) = (place, is_first) {
            let next = (place + 1).checked_rem(order.len());
            *first = next.and_then(|next| order.get(next)).cloned();
        }
    }
}

/// The addresses of the managers in the map.
#[must_use]
pub fn manager_addresses(map: &ZoneMap) -> Vec<String> {
    let root = map.shard(ShardId(0));
    let nodes = root.into_iter().flat_map(|root| root.replicas.iter());
    nodes
        .filter_map(|node| map.node(*node))
        .map(|node| node.address.clone())
        .collect()
}

/// True for the refusal of a server that does not lead the managers: another one is to be asked.
#[must_use]
pub fn is_of_follower(reply: &ManagerReply) -> bool {
    matches!(reply, ManagerReply::Failed { code, .. } if code.0 == ErrorCode::NotOwner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::MapEdit;
    use zonal_types::{CellId, NodeId, ZoneId};

    fn known() -> ZoneMap {
        let join = |node: u32, shard| MapEdit::Join {
            node: NodeId(node),
            zone: ZoneId(1),
            zone_name: "zone1".into(),
            address: format!("10.0.0.{node}:7100"),
            shard,
            targets: Vec::new(),
        };
        let replicas = MapEdit::SetReplicas {
            shard: ShardId(0),
            replicas: vec![NodeId(1), NodeId(3)],
        };
        let edits = [
            join(1, Some(ShardId(0))),
            join(2, None),
            join(3, None),
            replicas,
        ];
        let map = ZoneMap::new(CellId([3; 16]));
        let (map, _change) = map.edited_by(&edits).unwrap().unwrap();
        map
    }

    #[test]
    fn the_manager_that_answered_is_asked_first() {
        let manager = KnownManager::default();
        let configured = ["10.0.0.9:7100".to_owned(), "10.0.0.3:7100".to_owned()];
        let unknown = ZoneMap::unknown(CellId([3; 16]));
        assert_eq!(manager.order(&unknown, &configured), configured);
        let all = ["10.0.0.1:7100", "10.0.0.3:7100", "10.0.0.9:7100"];
        assert_eq!(manager.order(&known(), &configured), all);
        manager.answered("10.0.0.3:7100");
        let rotated = ["10.0.0.3:7100", "10.0.0.9:7100", "10.0.0.1:7100"];
        assert_eq!(manager.order(&known(), &configured), rotated);
        manager.answered("10.0.0.77:7100");
        assert_eq!(manager.order(&known(), &configured), all);
    }

    #[test]
    fn a_silent_manager_is_passed_over_until_another_one_is() {
        let manager = KnownManager::default();
        let first = |manager: &KnownManager| manager.order(&known(), &[])[0].clone();
        let order = manager.order(&known(), &[]);
        assert_eq!(order, ["10.0.0.1:7100", "10.0.0.3:7100"]);
        manager.silent("10.0.0.3:7100", &order);
        assert_eq!(first(&manager), "10.0.0.1:7100", "it was not the first");
        manager.silent("10.0.0.1:7100", &order);
        assert_eq!(first(&manager), "10.0.0.3:7100");
        manager.silent("10.0.0.3:7100", &manager.order(&known(), &[]));
        assert_eq!(first(&manager), "10.0.0.1:7100");
        manager.answered("10.0.0.3:7100");
        assert_eq!(first(&manager), "10.0.0.3:7100");
    }
}
