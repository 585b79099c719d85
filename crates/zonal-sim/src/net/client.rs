//! The network as a client core uses it.

use super::{Lender, Network, PendingReply, SimReply, SimRequest};
use crate::coverage::FaultKind;
use crate::rng::SimRng;
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::task::Poll;
use zonal_client::transport::ClientNotice;
use zonal_client::transport::ShellMemory;
use zonal_client::{Message, Net, NetFailure, OperationContext, ServerReply};
use zonal_types::limits::REGION_PAYLOAD_MIN;
use zonal_types::{ErrorCode, Instant, NodeId, Timestamp};
use zonal_wire::Header;

/// One client's access to the network.
pub struct SimNet {
    network: Rc<Network>,
    name: String,
    rng: RefCell<SimRng>,
    lender: Lender,
}

impl SimNet {
    /// Access for the process with this name.
    #[must_use]
    pub fn new(network: Rc<Network>, name: &str, rng: SimRng) -> Self {
        Self {
            lender: Lender::new(network.lent_is_reused.get()),
            network,
            name: name.to_owned(),
            rng: RefCell::new(rng),
        }
    }

    async fn receive(
        &self,
        context: &OperationContext,
        pending: PendingReply,
    ) -> Result<(Header, SimReply), NetFailure> {
        let received = until_given_up(context, pending.receive()).await;
        if received.is_err() {
            self.network.count(FaultKind::CallerKilled);
        }
        received?
    }
}

impl Net for SimNet {
    type Pending = PendingReply;
    type Sink = Vec<u8>;

    fn memory(&self, bytes: usize) -> Option<Box<dyn ShellMemory>> {
        // As a mount: shorter ones are copied.
        (bytes >= REGION_PAYLOAD_MIN)
            .then(|| Box::new(self.lender.lend(bytes)) as Box<dyn ShellMemory>)
    }

    fn now(&self) -> Instant {
        self.network.instant(&self.name)
    }

    fn wall(&self) -> Timestamp {
        self.network.wall(&self.name)
    }

    fn random(&self) -> u64 {
        self.rng.borrow_mut().bits()
    }

    async fn sleep(&self, context: &OperationContext, ms: u64) {
        let sleep = self.network.clock.sleep(ms * 1_000_000);
        until_given_up(context, sleep).await.ok();
    }

    fn start(
        &self,
        _context: &OperationContext,
        address: &str,
        message: &Message<'_>,
    ) -> Result<PendingReply, NetFailure> {
        let mut lent = Vec::new();
        let mut at = 0;
        for piece in message.payload {
            lent.extend(self.lender.name(piece).map(|named| (at, named)));
            at += piece.len();
        }
        let request = SimRequest {
            header: message.header,
            body: message.body.to_vec(),
            payload: message.payload.concat(),
            lent,
        };
        Ok(self.network.start(&self.name, address, &request))
    }

    async fn finish(
        &self,
        context: &OperationContext,
        pending: PendingReply,
        payload: Option<&mut [u8]>,
    ) -> Result<ServerReply, NetFailure> {
        let (header, answer) = self.receive(context, pending).await?;
        let out = payload.unwrap_or_default();
        let count = answer.payload.len();
        let Some(place) = out.get_mut(..count) else {
            return Err(NetFailure::Refused(ErrorCode::Protocol));
        };
        place.copy_from_slice(&answer.payload);
        Ok(ServerReply {
            header,
            body: answer.body,
            payload_bytes: count,
        })
    }

    async fn await_first(
        &self,
        context: &OperationContext,
        pending: &[&PendingReply],
        ms: u64,
    ) -> Option<usize> {
        let first = PendingReply::await_first(pending, self.network.clock.sleep(ms * 1_000_000));
        until_given_up(context, first).await.unwrap_or(Some(0))
    }

    fn suits_sink(&self, _address: &str, _node: NodeId) -> bool {
        true
    }

    async fn finish_into(
        &self,
        context: &OperationContext,
        pending: PendingReply,
        sink: &mut Vec<u8>,
        bytes: usize,
    ) -> Result<ServerReply, NetFailure> {
        let (header, answer) = self.receive(context, pending).await?;
        let payload_bytes = answer.payload.len();
        if payload_bytes == bytes {
            sink.extend_from_slice(&answer.payload);
        }
        Ok(ServerReply {
            header,
            body: answer.body,
            payload_bytes,
        })
    }

    fn complain(&self, _: &OperationContext, _server: &str, _doing: &str, _failure: NetFailure) {}

    fn tell(&self, news: ClientNotice) {
        if let ClientNotice::Forfeited(ino) = news {
            self.network.forfeited.borrow_mut().insert(ino);
        }
    }
}

/// Waits for a future until the operation is given up.
async fn until_given_up<T>(
    context: &OperationContext,
    future: impl Future<Output = T>,
) -> Result<T, NetFailure> {
    let mut future = std::pin::pin!(future);
    let outcome = std::future::poll_fn(|task| match context.waits(task.waker()) {
        Err(given_up) => Poll::Ready(Err(given_up)),
        Ok(()) => future.as_mut().poll(task).map(Ok),
    });
    let outcome = outcome.await;
    context.waits_no_more();
    outcome
}
