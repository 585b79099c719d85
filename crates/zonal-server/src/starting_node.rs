//! A node of one of several managers, from its first moment on. It serves its replica of the root's
//! shard before it joins the cell: the manager that admits it needs a majority.
//!
//! Requests to its other roles get `NotReady` until it has joined.

use crate::node::ServerNode;
use std::sync::{Arc, OnceLock};
use zonal_net::{ClaimOutcome, Handler, Peer, ReplyBuilder, TokenClaim};
use zonal_wire::Header;

/// A node that has not joined, or has.
pub(crate) struct StartingNode {
    first: ServerNode,
    whole: OnceLock<Arc<ServerNode>>,
}

impl StartingNode {
    /// A node that has only its replica of the root's shard yet.
    pub(crate) fn new(first: ServerNode) -> Self {
        Self {
            first,
            whole: OnceLock::new(),
        }
    }

    /// Takes the node with all its roles.
    pub(crate) fn complete(&self, node: &Arc<ServerNode>) {
        // There is one call, at the end of the start.
        let _ = self.whole.set(Arc::clone(node));
    }

    fn node(&self) -> &ServerNode {
        self.whole.get().map_or(&self.first, |node| node)
    }
}

impl Handler for StartingNode {
    fn handle(
        &self,
        peer: &Peer,
        header: &Header,
        body: &[u8],
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) {
        self.node().handle(peer, header, body, payload, reply);
    }

    fn claim(&self, claim: &TokenClaim) -> ClaimOutcome {
        self.node().claim(claim)
    }

    fn stopping(&self) {
        self.node().stopping();
    }
}
