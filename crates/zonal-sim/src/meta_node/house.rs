//! What a simulated metadata process does by itself.

use super::MetaNode;
use super::calls::CALL_MS;
use crate::plant::Plant;
use std::collections::BTreeMap;
use std::rc::Rc;
use zonal_layout::slot_of;
use zonal_meta::Caller;
use zonal_types::{ClientIdentity, Codec, Column, DataId, Layout, SessionId, ShardId, TargetId};
use zonal_wire::{MetaReply, MetaRequest, NO_SLOT, Service, StorageReply, StorageRequest};

/// Objects of one target.
type Objects = Vec<(DataId, Column)>;

/// How much later targets hear of a fence, by a bug, ns.
const LATE_FENCE: u64 = 25_000_000_000;

/// Deletions pushed in one round.
pub(super) const DELETIONS: usize = 64;

impl MetaNode {
    /// Expiry of sessions, deletions at targets, directories whose making was cut short.
    pub(super) async fn keep_house(self: Rc<Self>) {
        let clock = self.network.clock.clone();
        loop {
            let soon = clock.now().plus_ms(1_000);
            let due = self.shard.borrow().poll_deadline();
            let due = due.map(|due| self.network.clock_of(&self.address).world(due));
            let next = due.map_or(soon, |due| due.min(soon));
            clock.sleep_until(next.max(clock.now().plus_ms(10))).await;
            self.refresh_map();
            let ticked = {
                let now = self.now();
                self.shard.borrow_mut().tick(self.disk.as_ref(), now)
            };
            if !ticked.effect.is_empty() {
                self.disk.append_changes(ticked.effect);
            }
            self.wake(&ticked.wake, ticked.recheck);
            self.clone().push_fences().await;
            self.push_deletions().await;
            self.settle_detached().await;
        }
    }

    /// Tells targets of clients that are fenced; sessions that wait for it end in the next round.
    async fn push_fences(self: Rc<Self>) {
        let fences = self.shard.borrow().fences();
        for (target, fences) in fences {
            let map = self.map.borrow().clone();
            let node = map.target(target).and_then(|known| map.node(known.node));
            let is_told = match node.map(|node| node.address.clone()) {
                None => true,
                Some(address) => {
                    let fences = fences.clone();
                    let request = StorageRequest::Fence { target, fences };
                    let body = request.to_bytes();
                    if self.plant == Plant::LocksBeforeFences {
                        self.clone().tell_late(target, address, request);
                        continue;
                    }
                    let reply = self.send(Service::Storage, &address, body).await;
                    let reply = reply.and_then(|body| StorageReply::from_bytes(&body).ok());
                    reply == Some(StorageReply::Done)
                }
            };
            if is_told {
                let changes = self.shard.borrow_mut().fenced(target, &fences);
                self.disk.append_changes(changes);
            }
        }
    }

    /// A bug: the fence counts as acknowledged before it is sent.
    fn tell_late(self: Rc<Self>, target: TargetId, address: String, request: StorageRequest) {
        if let StorageRequest::Fence { fences, .. } = &request {
            let changes = self.shard.borrow_mut().fenced(target, fences);
            self.disk.append_changes(changes);
        }
        let clock = self.network.clock.clone();
        let (later, group) = (clock.clone(), self.group);
        clock.spawn(group, async move {
            later.sleep(LATE_FENCE).await;
            let body = request.to_bytes();
            self.send(Service::Storage, &address, body).await;
        });
    }

    async fn push_deletions(&self) {
        if self.plant == Plant::DeletionsAreLost {
            return;
        }
        let deletions =
            self.shard
                .borrow_mut()
                .deletions(self.disk.as_ref(), self.now().instant, DELETIONS);
        let deletions = deletions.unwrap_or_default();
        if !deletions.is_empty() {
            // A loss of power must not bring a name back whose bytes are gone.
            self.disk.sync();
        }
        for deletion in deletions {
            let mut is_done = true;
            for (address, target, objects) in self.objects_of(&deletion.layout) {
                let request = StorageRequest::Delete { target, objects };
                let reply = self
                    .send(Service::Storage, &address, request.to_bytes())
                    .await;
                let reply = reply.and_then(|body| StorageReply::from_bytes(&body).ok());
                is_done &= reply == Some(StorageReply::Done);
            }
            if is_done {
                let changes = self.shard.borrow_mut().deletion_done(vec![deletion.key]);
                self.disk.append_changes(changes);
            }
        }
    }

    fn objects_of(&self, layout: &Layout) -> Vec<(String, TargetId, Objects)> {
        let map = self.map.borrow();
        let mut by_target: BTreeMap<TargetId, Objects> = BTreeMap::new();
        for component in &layout.components {
            let Some(set) = map.set(component.set) else {
                continue;
            };
            for column in (0..component.count).map(Column) {
                let slot = slot_of(component, column, set.slots.len() as u16);
                if let Ok(slot) = slot
                    && let Some(slot) = set.slots.get(usize::from(slot))
                {
                    let objects = by_target.entry(slot.target).or_default();
                    objects.push((component.data_id, column));
                }
            }
        }
        by_target
            .into_iter()
            .filter_map(|(target, objects)| {
                let node = map.node(map.target(target)?.node)?;
                Some((node.address.clone(), target, objects))
            })
            .collect()
    }

    async fn settle_detached(self: &Rc<Self>) {
        let now = self.now();
        let detached = self
            .shard
            .borrow()
            .detached(self.disk.as_ref(), now, DELETIONS);
        for detached in detached.unwrap_or_default() {
            let ino = detached.ino;
            let request = match self.ask(ShardId(0), &MetaRequest::HasEntry { ino }).await {
                MetaReply::Yes { yes } => MetaRequest::SettleDir {
                    ino,
                    since: detached.since,
                    has_entry: yes,
                },
                _other => continue,
            };
            let nobody = Caller {
                identity: ClientIdentity::default(),
                session: SessionId(0),
                slot: NO_SLOT,
                sequence: 0,
            };
            let deadline = self.network.clock.now().plus_ms(u64::from(CALL_MS));
            self.clone().run(nobody, request, deadline).await;
        }
    }
}
