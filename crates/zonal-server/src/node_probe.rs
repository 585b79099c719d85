//! Whether a server is still there that has a node's number, asked before another one gets it.
//!
//! The question is at the same time the news: a node that hears that its number is claimed
//! elsewhere logs both addresses. A process that takes the connection and then says nothing counts
//! as there: it may be stopped, and go on later. A machine that does not take the connection, a
//! refused connection, and any other server at that address count as gone.

use std::net::SocketAddr;
use std::time::Duration;
use zonal_net::{Address, Identity, NetError, PayloadInto, Pool, PoolConfig, Request};
use zonal_types::limits::HOLDER_ASKED_MS;
use zonal_types::{CellId, Codec, NodeId};
use zonal_wire::{AdminRequest, Header, Service};

/// What is found at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeResult {
    /// The node that was asked for, or a process that is silent.
    Holder,
    /// Another node of the cell.
    Other(NodeId),
    /// Neither.
    Nobody,
}

/// Asks servers whether they are there.
pub trait NodeProbe: Send + Sync {
    /// Tells the server at `address`, if it is `node`, that `claimed_by` says to be that node.
    fn ask(&self, node: NodeId, address: SocketAddr, claimed_by: SocketAddr) -> ProbeResult;
}

/// Over the network, within [`HOLDER_ASKED_MS`] for each of at most two tries.
pub struct NetNodeProbe {
    pool: Pool,
    cell: CellId,
}

impl NetNodeProbe {
    /// As `me`.
    #[must_use]
    pub fn new(me: Identity, cell: CellId) -> Self {
        let limit = Duration::from_millis(HOLDER_ASKED_MS);
        let config = PoolConfig {
            deadline: limit,
            connect_limit: limit,
            backoff: Duration::ZERO,
            idle_limit: Duration::ZERO,
            ..PoolConfig::default()
        };
        let pool = Pool::new(me, config);
        Self { pool, cell }
    }

    fn ask_once(&self, to: Address, body: &[u8]) -> Result<(), NetError> {
        let request = Request {
            operation: "NumberClaimed",
            header: Header::request(Service::Admin, self.cell),
            body,
            payload: &[],
            room: 0,
        };
        self.pool.call(to, request, PayloadInto::Owned).map(drop)
    }
}

impl NodeProbe for NetNodeProbe {
    fn ask(&self, node: NodeId, address: SocketAddr, claimed_by: SocketAddr) -> ProbeResult {
        let claimed_by = claimed_by.to_string();
        let body = AdminRequest::NumberClaimed { node, claimed_by }.to_bytes();
        let to = Address::new(address, node);
        let mut outcome = self.ask_once(to, &body);
        if matches!(outcome, Err(NetError::Lost { .. })) {
            // It was about to end, perhaps.
            outcome = self.ask_once(to, &body);
        }
        judge(&outcome)
    }
}

fn judge(outcome: &Result<(), NetError>) -> ProbeResult {
    match outcome {
        Ok(()) | Err(NetError::Refused { .. } | NetError::Lost { .. }) => ProbeResult::Holder,
        Err(NetError::TimedOut { operation, .. }) if *operation != zonal_net::CONNECTING => {
            ProbeResult::Holder
        }
        Err(NetError::WrongNode { found, .. }) => ProbeResult::Other(*found),
        Err(_) => ProbeResult::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn a_silent_process_is_there_and_a_closed_port_is_not() {
        let cell = CellId([7; 16]);
        let me = Identity::new(cell, zonal_net::Role::Server, NodeId(1), None);
        let holders = NetNodeProbe::new(me, cell);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let claimed_by = "127.0.0.9:7000".parse().unwrap();
        // It takes connections and never answers.
        assert_eq!(
            holders.ask(NodeId(3), address, claimed_by),
            ProbeResult::Holder
        );
        drop(listener);
        assert_eq!(
            holders.ask(NodeId(3), address, claimed_by),
            ProbeResult::Nobody
        );
    }
}
