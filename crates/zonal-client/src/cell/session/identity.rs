//! The client's identity in the cell, and the incarnation that each shard has acknowledged.
//!
//! A request names the incarnation that the shard of its file has acknowledged; so does a request
//! to a target. So the shard never knows a lower one than its files' targets. When it fences the
//! incarnation that it knows, no request passes.
//!
//! Requests to targets use a new incarnation only after the shard has listed the locks lost with
//! the earlier session. Until then they may carry writes under those locks.
//!
//! The incarnation rises once for the whole cell when a shard has forgotten a session. Each other
//! shard hears of it when it, or a target for its file, refuses the earlier one. See
//! docs/rfcs/2026-11-25-client-identity.md.

use super::link::Link;
use crate::cell::Cell;
use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::transport::mutex::lock;
use crate::transport::net::{ClientNotice, Net};
use std::sync::atomic::Ordering;
use zonal_types::{ClientIdentity, Codec, ErrorCode, Incarnation, Ino};
use zonal_wire::{MetaReply, MetaRequest, Service};

impl<N: Net> Cell<N> {
    /// The present identity.
    #[must_use]
    pub fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            client: self.options.client,
            incarnation: Incarnation(self.incarnation.load(Ordering::SeqCst)),
        }
    }

    /// The identity that a shard knows; before the first session, the present one.
    pub(crate) fn identity_at(&self, link: &Link) -> ClientIdentity {
        self.identity_of(link.opened())
    }

    /// The identity for requests to targets of a file.
    pub(crate) fn identity_for(&self, ino: Ino) -> ClientIdentity {
        match self.link_of(ino) {
            Ok(link) => self.identity_of(link.acknowledged()),
            Err(_unknown) => self.identity(),
        }
    }

    fn identity_of(&self, incarnation: Incarnation) -> ClientIdentity {
        let now = self.identity();
        match incarnation {
            Incarnation(0) => now,
            incarnation => ClientIdentity { incarnation, ..now },
        }
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// Begins the next incarnation, unless a concurrent call already did.
    pub(crate) fn begin_anew(&self, over: Incarnation) {
        let next = over.next().0;
        let of_now = &self.cell().incarnation;
        let raised = of_now.compare_exchange(over.0, next, Ordering::SeqCst, Ordering::SeqCst);
        if raised.is_ok() {
            self.cell()
                .net
                .tell(ClientNotice::Incarnation(self.cell().identity()));
        }
    }

    /// The request that opens a session.
    pub(crate) fn opening_request(&self) -> MetaRequest {
        MetaRequest::OpenSession {
            zone: self.cell().options.zone,
            name: self.cell().options.name.clone(),
        }
    }

    /// Tells the shard a newer incarnation after `Fenced`. The refusal came from the shard, or from
    /// a target for one of its files (`is_over`).
    ///
    /// # Errors
    /// Those of the shard, or a shard that does not answer.
    pub(crate) async fn renew(
        &self,
        link: &Link,
        refused: Incarnation,
        is_over: bool,
    ) -> Result<(), ErrorCode> {
        let _guard = self.wait_for(&link.opening).await?;
        if link.acknowledged() != refused || !link.is_open() {
            return Ok(());
        }
        if is_over {
            self.begin_anew(refused);
        }
        let identity = self.cell().identity();
        let mut header = self.header(Service::Meta);
        header.identity = identity;
        let request = self.opening_request();
        let body = request.to_bytes();
        match self.send(link, header, &body, request.name(), 0).await? {
            MetaReply::Session { session, .. } => {
                let known = lock(&link.state).session;
                if session == known {
                    link.acknowledge(identity.incarnation);
                } else {
                    // The shard has forgotten the earlier session.
                    self.lose_session(link, known, refused);
                }
                Ok(())
            }
            MetaReply::Failed { code } if code.0 == ErrorCode::Fenced => {
                self.begin_anew(identity.incarnation);
                Ok(())
            }
            MetaReply::Failed { code } => Err(code.0),
            _other => Err(ErrorCode::Protocol),
        }
    }
}
