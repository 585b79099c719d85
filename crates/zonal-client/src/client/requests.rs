//! Requests to shards, with what the caches must know of a change before and after it.

use crate::cell::session::{CloseRequest, Link, SlotPlace};
use crate::client::ClientCall;
use crate::transport::net::Net;
use zonal_types::{ErrorCode, MapVersion};
use zonal_wire::{MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Sends a request and retries it until the deadline. `Failed` replies become errors.
    pub(crate) async fn meta(
        &self,
        link: &Link,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        let slot = if request.is_mutation() {
            Some(self.take_slot(link).await?)
        } else {
            None
        };
        let mut place = slot.as_ref().map(|slot| SlotPlace::new(slot.index));
        self.meta_at(link, request, place.as_mut()).await
    }

    /// Sends closes in the slot that they keep.
    pub(crate) async fn close_inos(
        &self,
        link: &Link,
        closes: &mut CloseRequest,
    ) -> Result<(), ErrorCode> {
        let inos = closes.inos.clone();
        let request = MetaRequest::Close { inos };
        let place = Some(&mut closes.place);
        self.meta_at(link, &request, place).await.map(|_done| ())
    }

    /// As [`Self::meta`], in a slot of the caller.
    pub(crate) async fn meta_at(
        &self,
        link: &Link,
        request: &MetaRequest,
        place: Option<&mut SlotPlace>,
    ) -> Result<MetaReply, ErrorCode> {
        let own_change = self.inode_cache.own_change(self, request);
        let leased_change = self.inode_cache.leased_change(self, link, request);
        let changing = self.inode_cache.changing(self, link, request);
        let known = self.map().version;
        let mut reply = self.ask(link, request, place, self.deadline()).await;
        if let Ok(reply) = &mut reply {
            know_relocations(reply, known);
        }
        if let Some(changing) = changing {
            reply = self.inode_cache.changed(self, link, &changing, reply);
        }
        if let Some(leased_change) = leased_change {
            leased_change.end(&reply);
        }
        if let Some(own_change) = own_change {
            own_change.end(&reply);
        }
        reply
    }
}

/// Notes the map known before a request in a file's state of the reply, where the file has no
/// relocation. Those are durable before the map has the epochs by which targets know them: so the
/// file has none up to that map.
fn know_relocations(reply: &mut MetaReply, known: MapVersion) {
    let data = match reply {
        MetaReply::Attr { data, .. } => data.as_mut(),
        MetaReply::Opened { data, .. }
        | MetaReply::OpenedSmall { data, .. }
        | MetaReply::Truncated { data, .. }
        | MetaReply::Appending { data, .. }
        | MetaReply::MadeOpen { data, .. } => Some(data),
        _ => None,
    };
    if let Some(data) = data.filter(|data| !data.layout.has_copies()) {
        data.as_of = known;
    }
}
