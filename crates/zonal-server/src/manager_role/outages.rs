//! Outages: leases of nodes, and targets that are taken out of service and put back
//! (docs/rfcs/2026-11-27-outages.md).
//!
//! *Invariant*: no target carries out guarded requests by a map in which it serves, once the map
//! has it out. A server counts its lease from the sending of its question, only after the answer,
//! and only with the map of the answer's version. The argument, for each question:
//!
//! 1. The manager took it in before the edit. Both hold [`NodeLeases`], so that the edit saw its
//!    time, and came [`TARGET_LEASE_WAIT_MS`] later. It was sent before that time: the lease is
//!    over, also where clocks drift by a tenth.
//! 2. The manager took it in after the edit. The answer has the edit's version or a newer one.
//! 3. Another manager answered it, which led before. It led still when the answer left, see
//!    [`ManagerRole::handle`]. So the question was sent before this reign, which waits as long.
//!
//! A manager that does not lead refuses these questions, and relays none of them. The only
//! manager's own server has its lease without a question: it always knows the newest map. Its
//! targets are never taken out.
//!
//! Lock order: [`NodeLeases`], then `ManagerRole::core`. The states of nodes are read before.

use super::{ManagerError, ManagerRole, reply_of};
use crate::clock;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use zonal_types::limits::TARGET_LEASE_WAIT_MS;
use zonal_types::{Instant, MapVersion, NodeId, TargetId};
use zonal_wire::ManagerReply;
use zonal_zonemap::{EditError, MapEdit, ZoneMap};

/// The reason why a target is not taken out.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeOutRefusal {
    /// Its server is the manager's.
    #[error("node {0} is the only manager's own, and serves")]
    OfManager(NodeId),
    /// Its node answers heartbeats, or is only suspect.
    #[error("node {0} is not down")]
    NotDown(NodeId),
    /// Its node may have a lease.
    #[error("node {node} asked for its lease {ms} ms ago; {TARGET_LEASE_WAIT_MS} ms must pass")]
    Leased {
        /// The node.
        node: NodeId,
        /// Time since its question.
        ms: u64,
    },
    /// Its node may have a lease of the manager that led before.
    #[error("this manager has led for {0} ms; {TARGET_LEASE_WAIT_MS} ms must pass")]
    NewReign(u64),
}

/// The last questions of nodes for their leases.
pub(super) struct NodeLeases(Mutex<LeaseTable>);

struct LeaseTable {
    /// Begin of this manager's reign.
    reign: Instant,
    /// Nodes of the map only.
    asked: BTreeMap<NodeId, Instant>,
    /// Version of the map in which a target was taken out last, in this reign.
    last_out: MapVersion,
}

impl NodeLeases {
    pub(super) fn begin(reign: Instant) -> Self {
        Self(Mutex::new(LeaseTable {
            reign,
            asked: BTreeMap::new(),
            last_out: MapVersion(0),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, LeaseTable> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LeaseTable {
    fn ask(&mut self, map: &ZoneMap, node: NodeId, now: Instant) -> Result<(), ManagerError> {
        map.node(node).ok_or(ManagerError::UnknownNode(node))?;
        self.asked.insert(node, now);
        if self.asked.len() > map.nodes.len() {
            self.asked.retain(|known, _| map.node(*known).is_some());
        }
        Ok(())
    }

    /// Refuses while the node may have a lease.
    fn check_over(&self, node: NodeId, now: Instant) -> Result<(), TakeOutRefusal> {
        if let Some(asked) = self.asked.get(&node) {
            let ms = now.ms_since(*asked);
            if ms < TARGET_LEASE_WAIT_MS {
                return Err(TakeOutRefusal::Leased { node, ms });
            }
        }
        match now.ms_since(self.reign) {
            ms if ms < TARGET_LEASE_WAIT_MS => Err(TakeOutRefusal::NewReign(ms)),
            _ => Ok(()),
        }
    }
}

impl ManagerRole {
    /// Gives a node its lease.
    pub(super) fn renew_lease(&self, node: NodeId) -> Result<ManagerReply, ManagerError> {
        let map = self.newest_map();
        let last_out = {
            let mut leases = self.leases.lock();
            leases.ask(&map, node, clock::instant())?;
            leases.last_out
        };
        if self.core().durable().version < last_out {
            self.settle(self.newest_map())?;
        }
        Ok(reply_of(self.core().durable()))
    }

    /// Takes a target out of service, where it serves no more.
    pub(super) fn take_out(&self, target: TargetId) -> Result<ManagerReply, ManagerError> {
        let known = self.newest_map();
        let known = known.target(target);
        let node = known.ok_or(EditError::Unknown { what: "target" })?.node;
        let is_down = self.is_down(node);
        let map = {
            let mut leases = self.leases.lock();
            let map = self.newest_map();
            if map.is_out(target) {
                map
            } else {
                if self.parts.alone_on == Some(node) {
                    return Err(TakeOutRefusal::OfManager(node).into());
                }
                if !is_down {
                    return Err(TakeOutRefusal::NotDown(node).into());
                }
                leases.check_over(node, clock::instant())?;
                let map = self.append(Vec::new(), &[MapEdit::TakeOut { target }], None)?;
                leases.last_out = map.version;
                tracing::warn!(target_id = target.0, node = node.0, "a target is taken out");
                map
            }
        };
        let reply = reply_of(&map);
        self.settle(map)?;
        Ok(reply)
    }

    /// Renews the epochs of a target's zone, where they are not newer than the map that its server
    /// knows.
    pub(super) fn renew_epochs(
        &self,
        target: TargetId,
        known: MapVersion,
    ) -> Result<ManagerReply, ManagerError> {
        let map = self.newest_map();
        let mut slots = map.sets.iter().flat_map(|set| &set.slots);
        if slots.any(|slot| slot.target == target && slot.slot_epoch.0 > known.0) {
            return Ok(reply_of(&map));
        }
        let map = self.append(Vec::new(), &[MapEdit::RenewEpochs { target }], None)?;
        let reply = reply_of(&map);
        self.settle(map)?;
        Ok(reply)
    }

    /// Takes a target out whose node is down, where that is allowed now.
    pub(crate) fn take_out_down(&self, target: TargetId) {
        let known = self.newest_map();
        let node = known.target(target).map(|target| target.node);
        if node.is_some_and(|node| self.is_down(node) && self.parts.alone_on != Some(node)) {
            // The next round asks again.
            self.take_out(target).ok();
        }
    }

    /// Puts a target back into service.
    pub(super) fn put_back(&self, target: TargetId) -> Result<ManagerReply, ManagerError> {
        let was_out = self.newest_map().is_out(target);
        let map = self.append(Vec::new(), &[MapEdit::PutBack { target }], None)?;
        if was_out {
            tracing::info!(target_id = target.0, "a target is back");
        }
        let reply = reply_of(&map);
        self.settle(map)?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager_tests::{failed, join, manager, manager_joins};
    use std::sync::Arc;
    use std::time::Duration;
    use zonal_testkit::Scratch;
    use zonal_types::{ErrorCode, ZoneId};
    use zonal_wire::{ManagerRequest, NodeState, StateCause, Suspicion};

    const TARGET: TargetId = TargetId(3);
    const TAKE_OUT: ManagerRequest = ManagerRequest::TakeOut { target: TARGET };
    const RENEWAL: ManagerRequest = ManagerRequest::RenewLease { node: NodeId(3) };

    /// A manager with nodes 2 and 3, each with a target of its number.
    fn with_targets(scratch: &Scratch) -> ManagerRole {
        let (manager, _) = manager(scratch);
        manager_joins(&manager);
        for node in [2, 3] {
            let joined = manager.handle(join(node, 2, false, Some((node, 1))));
            assert_eq!(failed(&joined), None);
        }
        manager
    }

    fn node_3_is_down(manager: &ManagerRole) {
        let _ = manager.handle(ManagerRequest::Digest {
            zone: ZoneId(2),
            reporter: NodeId(2),
            suspicions: vec![Suspicion {
                node: NodeId(3),
                state: NodeState::Down,
                cause: StateCause::NoProcess,
                by: vec![NodeId(2)],
            }],
            unknown: Vec::new(),
        });
    }

    fn why_not(manager: &ManagerRole) -> String {
        match manager.handle(TAKE_OUT) {
            ManagerReply::Failed { code, detail } => {
                assert_eq!(code.0, ErrorCode::NotReady);
                detail
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn leases_and_reigns_are_waited_for() {
        let wait = TARGET_LEASE_WAIT_MS;
        let at = |ms| Instant(0).plus_ms(ms);
        let leases = NodeLeases::begin(at(10_000));
        let mut leases = leases.lock();
        let node = NodeId(1);
        let refused = leases.check_over(node, at(10_000 + wait - 1));
        assert_eq!(refused, Err(TakeOutRefusal::NewReign(wait - 1)));
        assert_eq!(leases.check_over(node, at(10_000 + wait)), Ok(()));
        leases.asked.insert(node, at(20_000));
        let refused = leases.check_over(node, at(20_000 + wait - 1));
        let ms = wait - 1;
        assert_eq!(refused, Err(TakeOutRefusal::Leased { node, ms }));
        assert_eq!(leases.check_over(node, at(20_000 + wait)), Ok(()));
    }

    #[test]
    fn a_target_goes_out_once_its_node_is_down_and_without_a_lease() {
        let scratch = Scratch::new("outages");
        let manager = with_targets(&scratch);
        assert!(why_not(&manager).contains("node 3 is not down"));
        node_3_is_down(&manager);
        assert!(why_not(&manager).contains("this manager has led for"));
        assert_eq!(failed(&manager.handle(RENEWAL)), None);
        assert!(why_not(&manager).contains("node 3 asked for its lease"));
        {
            let mut leases = manager.leases.lock();
            leases.reign = Instant(0);
            leases.asked = BTreeMap::from([(NodeId(3), Instant(0))]);
        }
        let before = manager.newest_map().version;
        let reply = loop {
            let reply = manager.handle(TAKE_OUT);
            if failed(&reply) != Some(ErrorCode::NotReady) {
                break reply;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(clock::instant().0 >= TARGET_LEASE_WAIT_MS * 1_000_000);
        let version = MapVersion(before.0 + 1);
        assert_eq!(reply, ManagerReply::At { version });
        let map = Arc::clone(manager.core().durable());
        assert!(map.is_out(TARGET) && !map.is_out(TargetId(2)));
        assert_eq!(manager.handle(TAKE_OUT), reply, "it is out already");
        // Its server learns of that with its next lease.
        assert_eq!(manager.handle(RENEWAL), reply);
        let back = ManagerRequest::PutBack { target: TARGET };
        assert_eq!(failed(&manager.handle(back.clone())), None);
        let map = Arc::clone(manager.core().durable());
        assert!(!map.is_out(TARGET) && map.version.0 == version.0 + 1);
        assert_eq!(failed(&manager.handle(back)), None);
        assert_eq!(manager.newest_map().version, map.version);
        assert!(why_not(&manager).contains("node 3 asked for its lease"));
    }
}
