//! Whether a request is one for this target, by the rule that the server has: `ZoneMap::judge_slot`.

use super::StorageNode;
use crate::net::Request;
use crate::plant::Plant;
use zonal_types::{ClientId, Codec, ErrorCode, HolderNumber};
use zonal_wire::{
    ErrorNumber, Header, MetaReply, MetaRequest, Service, StorageReply, StorageRequest,
};
use zonal_zonemap::{SlotClaim, SlotVerdict};

impl StorageNode {
    /// The reply where it is not carried out.
    pub(super) fn refusal(
        &self,
        header: &Header,
        request: &StorageRequest,
    ) -> Option<StorageReply> {
        if request.target() != self.id {
            return failed(ErrorCode::WrongTarget);
        }
        let object = request.object()?;
        let claim = SlotClaim {
            set: object.set,
            slot: object.slot,
            epoch: header.epoch,
            map_version: header.map_version,
        };
        let judge = || self.known.borrow().judge_slot(self.id, claim);
        let mut verdict = judge();
        if verdict == SlotVerdict::Newer {
            self.hear_of_map();
            verdict = judge();
        }
        let known = self.known.borrow();
        if self.plant == Plant::EpochsAreMixed {
            let mut slots = known.sets.iter().flat_map(|set| &set.slots);
            if slots.any(|slot| slot.target == self.id && slot.slot_epoch == header.epoch) {
                verdict = SlotVerdict::Current;
            }
        }
        match verdict {
            SlotVerdict::Current => {
                self.carried_out.note(&known, self.id, header, object);
                None
            }
            SlotVerdict::Stale { target, epoch } => Some(StorageReply::Stale {
                map_version: known.version,
                set: object.set,
                slot: object.slot,
                target,
                epoch,
            }),
            SlotVerdict::Absent => failed(ErrorCode::WrongTarget),
            SlotVerdict::Newer => failed(ErrorCode::NotReady),
        }
    }
}

impl StorageNode {
    /// As `FenceGate` of the server: before the first change of a shard's files since the start that shard has to say who is fenced. False: it
    /// has not.
    pub(super) async fn knows_fences(&self, request: &StorageRequest) -> bool {
        let is_change =
            request.changes_range() || matches!(request, StorageRequest::Truncate { .. });
        let Some(object) = request.object().filter(|_| is_change) else {
            return true;
        };
        let map = self.known.borrow().clone();
        let Some(shard) = map.shard_of(object.data_id.partition()) else {
            return true;
        };
        if self.heard.borrow().contains(&shard.id) {
            return true;
        }
        let address_of = |node| map.node(node).map(|node| node.address.clone());
        let own = map.target(self.id).and_then(|own| address_of(own.node));
        let (Some(own), Some(to)) = (own, address_of(shard.node)) else {
            return false;
        };
        let mut after = (ClientId(0), HolderNumber(0));
        loop {
            let mut header = Header::request(Service::Meta, map.cell);
            header.deadline_ms = 1_000;
            let asked = MetaRequest::FencesOf {
                target: self.id,
                after: after.0,
                holder: after.1,
            };
            let request = Request {
                header,
                body: asked.to_bytes(),
                payload: Vec::new(),
            };
            let pending = self.network.start(&own, &to, &request);
            let answer = pending.receive().await.ok();
            let reply = answer.and_then(|(_header, of)| MetaReply::from_bytes(&of.body).ok());
            let Some(MetaReply::Fences { fences, end }) = reply else {
                return false;
            };
            if let Some(last) = fences.last()
                && self.plant != Plant::FencesAreForgotten
            {
                after = (last.client, last.holder);
                let record = self.target.borrow_mut().fence(&fences);
                self.log(record);
                self.disk.sync();
            }
            if end || fences.is_empty() {
                self.heard.borrow_mut().insert(shard.id);
                return true;
            }
        }
    }
}

fn failed(code: ErrorCode) -> Option<StorageReply> {
    Some(StorageReply::Failed {
        code: ErrorNumber(code),
        detail: String::new(),
    })
}
