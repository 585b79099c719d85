//! Who this client is: its identity in the cell, and what of it each shard has acknowledged.
//!
//! A request names the incarnation that the shard of its file has acknowledged, a request to a
//! target too. What a shard knows is thus never lower than what goes to its files, and when it
//! fences what it knows, nothing passes. What goes to targets has a new incarnation only when the
//! shard has said which locks were lost with the session before: until then it may be something
//! that was written under them. The incarnation rises once for the whole cell when a shard has
//! forgotten our session; each other shard is told when it, or a target for its file, refuses the
//! one before. See docs/rfcs/2026-11-25-client-identity.md.

use super::link::{Link, lock};
use crate::client::Client;
use crate::net::{ClientNotice, Net};
use crate::operation::ClientCall;
use std::sync::atomic::Ordering;
use zonal_types::{ClientIdentity, Codec, ErrorCode, Incarnation, Ino};
use zonal_wire::{MetaReply, MetaRequest, Service};

impl<N: Net> Client<N> {
    /// Who this client is now.
    #[must_use]
    pub fn identity(&self) -> ClientIdentity {
        ClientIdentity {
            client: self.options.client,
            incarnation: Incarnation(self.incarnation.load(Ordering::SeqCst)),
        }
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// As a shard knows it; before it does, as it is now.
    pub(crate) fn identity_at(&self, link: &Link) -> ClientIdentity {
        self.identity_of(link.opened())
    }

    /// As targets may know it that have a file's bytes.
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

    /// An incarnation is over: the next one begins, unless another one found that before us.
    pub(super) fn begin_anew(&self, over: Incarnation) {
        let next = over.next().0;
        let of_now = &self.incarnation;
        let raised = of_now.compare_exchange(over.0, next, Ordering::SeqCst, Ordering::SeqCst);
        if raised.is_ok() {
            self.net.tell(ClientNotice::Incarnation(self.identity()));
        }
    }

    /// Others have got the locks that were held here on a file: what was gathered under them is
    /// dropped, and each open of the file is told.
    pub(super) fn forfeit(&self, ino: Ino) {
        lock(&self.locks).held.forget_inode(ino);
        self.net.tell(ClientNotice::Forfeited(ino));
        let Some(file) = self.file(ino) else {
            return;
        };
        let mut state = file.state();
        let gone = state.dirty.bytes();
        state.dirty.cut(0, u64::MAX);
        let gone = gone - state.dirty.bytes();
        if let Some(aside) = &mut state.aside {
            aside.forget();
        }
        state.failures.forfeit();
        if gone > 0 {
            state.failures.note(ErrorCode::Io);
        }
        drop(state);
        self.dirty_bytes.fetch_sub(gone, Ordering::Relaxed);
    }

    /// What asks a shard for a session.
    pub(super) fn opening_request(&self) -> MetaRequest {
        MetaRequest::OpenSession {
            zone: self.options.zone,
            name: self.options.name.clone(),
        }
    }

    /// A request with this incarnation was refused with `Fenced`, by the shard or, where it
    /// `is_over`, by a target for one of its files: the shard hears of a newer one.
    ///
    /// # Errors
    /// What the shard answers; that it does not.
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
        let identity = self.identity();
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
                    // It has forgotten the one that we had.
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
