//! The network as a client core sees it.

use super::{Network, Pending, Request};
use crate::rng::Rng;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use zonal_client::net::News;
use zonal_client::{Message, Net, NetFailure, Reply};
use zonal_types::{Instant, NodeId, Timestamp};

/// The network as one client sees it.
pub struct SimNet {
    network: Rc<Network>,
    name: String,
    rng: RefCell<Rng>,
}

impl SimNet {
    /// For the process with this name.
    #[must_use]
    pub fn new(network: Rc<Network>, name: &str, rng: Rng) -> Self {
        Self {
            network,
            name: name.to_owned(),
            rng: RefCell::new(rng),
        }
    }
}

impl Net for SimNet {
    type Pending = Pending;
    type Sink = Vec<u8>;

    fn now(&self) -> Instant {
        self.network.instant(&self.name)
    }

    fn wall(&self) -> Timestamp {
        self.network.wall(&self.name)
    }

    fn random(&self) -> u64 {
        self.rng.borrow_mut().bits()
    }

    fn sleep(&self, ms: u64) -> impl Future<Output = ()> {
        self.network.clock.sleep(ms * 1_000_000)
    }

    fn start(&self, address: &str, message: &Message<'_>) -> Pending {
        let request = Request {
            header: message.header,
            body: message.body.to_vec(),
            payload: message.payload.concat(),
        };
        self.network.start(&self.name, address, &request)
    }

    async fn finish(
        &self,
        pending: Pending,
        payload: Option<&mut [u8]>,
    ) -> Result<Reply, NetFailure> {
        let (header, answer) = pending.receive().await?;
        let out = payload.unwrap_or_default();
        let count = answer.payload.len();
        let Some(place) = out.get_mut(..count) else {
            return Err(NetFailure::Refused(zonal_types::ErrorCode::Protocol));
        };
        place.copy_from_slice(&answer.payload);
        Ok(Reply {
            header,
            body: answer.body,
            payload_bytes: count,
        })
    }

    fn suits_sink(&self, _address: &str, _node: NodeId) -> bool {
        true
    }

    async fn finish_into(
        &self,
        pending: Pending,
        sink: &mut Vec<u8>,
        bytes: usize,
    ) -> Result<Reply, NetFailure> {
        let (header, answer) = pending.receive().await?;
        let payload_bytes = answer.payload.len();
        if payload_bytes == bytes {
            sink.extend_from_slice(&answer.payload);
        }
        Ok(Reply {
            header,
            body: answer.body,
            payload_bytes,
        })
    }

    fn complain(&self, _server: &str, _doing: &str, _failure: NetFailure) {}

    fn tell(&self, news: News) {
        if let News::Forfeited(ino) = news {
            self.network.forfeited.borrow_mut().insert(ino);
        }
    }
}
