//! Tells shards of abandoned appends (`cell/session/abandoned_appends.rs`).

use crate::cell::session::Link;
use crate::cell::session::abandoned_appends::{ASKED_MAX, AbandonedPlace, UnansweredAppend};
use crate::client::ClientCall;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::{is_passing, is_unsure};
use zonal_types::{Codec, ErrorCode, Ino};
use zonal_wire::{MetaReply, MetaRequest, Service};

impl<N: Net> ClientCall<'_, N> {
    /// Requests a place for an append. Housekeeping waits for an answer that does not come in time.
    pub(crate) async fn ask_for_place(
        &self,
        link: &Link,
        ino: Ino,
        request: MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        let mut place = self.take_slot(link).await?.keep();
        let reply = self.meta_at(link, &request, Some(&mut place)).await;
        let is_unsure = reply.as_ref().is_err_and(|code| is_unsure(*code));
        let mut given_up = lock(&link.given_up);
        if is_unsure && place.was_sent() && given_up.asked.len() < ASKED_MAX {
            given_up.asked.push(UnansweredAppend {
                ino,
                request,
                place,
            });
        } else {
            drop(given_up);
            link.free_slot(&place);
        }
        reply
    }

    /// Reports abandoned appends to the shard; true where some remain.
    pub(crate) async fn send_given_up(&self, link: &Link) -> bool {
        // One at a time: otherwise a second call could end a place while the first one reports it.
        // A late report would then name the next append there.
        let Some(_turn) = link.giving_up.try_lock() else {
            return true;
        };
        let asked = std::mem::take(&mut lock(&link.given_up).asked);
        for one in asked {
            self.another().hear(link, one).await;
        }
        self.another().tell_given_up(link).await;
        let places = lock(&link.given_up).places.clone();
        for place in places {
            if self.another().end(link, place).await.is_ok() {
                lock(&link.given_up).places.retain(|known| *known != place);
            }
        }
        link.given_up() > 0
    }

    /// Tells the shard that no caller waits for these places.
    async fn tell_given_up(&self, link: &Link) {
        let mut header = self.header(Service::Meta);
        let untold: Vec<AbandonedPlace> = {
            let life = {
                let state = lock(&link.state);
                (header.session, header.epoch) = (state.session, state.epoch);
                header.identity = self.identity_at(link);
                (state.boot, state.session)
            };
            let mut given_up = lock(&link.given_up);
            given_up.places.retain(|place| place.life() == life);
            let places = given_up.places.iter();
            places.filter(|place| !place.is_told).copied().collect()
        };
        if untold.is_empty() {
            return;
        }
        let appends = untold.iter().map(|place| (place.ino, place.offset));
        let request = MetaRequest::GiveUpAppends {
            appends: appends.collect(),
        };
        // Sent in this boot or not at all: a later boot may have assigned the same places to
        // others.
        let (body, name) = (request.to_bytes(), request.name());
        if let Ok(MetaReply::Done) = self.send(link, header, &body, name, 0).await {
            for place in &mut lock(&link.given_up).places {
                place.is_told |= untold.contains(place);
            }
        }
    }

    /// Repeats an unanswered request, and abandons the place that it got.
    async fn hear(&self, link: &Link, mut asked: UnansweredAppend) {
        let session = lock(&link.state).session;
        if !asked.place.was_sent_in(session) {
            // The place went with its session.
            link.free_slot(&asked.place);
            return;
        }
        let place = Some(&mut asked.place);
        match self.meta_at(link, &asked.request, place).await {
            Err(code) if is_unsure(code) => lock(&link.given_up).asked.push(asked),
            Ok(MetaReply::Appending { offset, .. }) => {
                link.free_slot(&asked.place);
                if let MetaRequest::AppendBegin { length, .. } = asked.request {
                    link.give_up_place(asked.ino, offset, length, session);
                }
            }
            _refused => link.free_slot(&asked.place),
        }
    }

    /// Ends an abandoned place with no bytes; an error means later.
    async fn end(&self, link: &Link, place: AbandonedPlace) -> Result<(), ErrorCode> {
        if link.life() != place.life() {
            return Ok(());
        }
        let file = self.file(place.ino);
        // Own unreported writes also lie behind the end.
        let _gate = match &file {
            Some(file) => Some(file.gate.try_lock().ok_or(ErrorCode::Busy)?),
            None => None,
        };
        if let Some(file) = &file {
            match self.settle_gated(file).await {
                Err(code) if is_passing(code) => return Err(code),
                _settled => {}
            }
        }
        let end = MetaRequest::AppendEnd {
            ino: place.ino,
            offset: place.offset,
            reserved: place.reserved,
            length: 0,
            mtime: self.net.wall(),
            allocated_delta: 0,
            kill_suid: false,
            inline: None,
        };
        let reply = self.meta(link, &end).await;
        if let Some(file) = &file {
            // The bytes behind the end are disowned, and have a new truncation number.
            file.state().outdate();
        }
        match reply {
            Err(code) if is_passing(code) => Err(code),
            _over => Ok(()),
        }
    }
}
