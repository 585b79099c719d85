//! Node probe: checks whether a server with a node's number still answers, before another server
//! gets the number.
//!
//! The probe also announces the claim: a node that hears that its number is claimed elsewhere logs
//! both addresses.
//!
//! | at the address | the node counts as |
//! | --- | --- |
//! | the node | there |
//! | a process that accepts and stays silent | there: it may be stopped, and go on later |
//! | a machine that does not accept | gone |
//! | a refused connection, any other server | gone |

use std::net::SocketAddr;
use std::time::Duration;
use zonal_net::{Address, Identity, NetError, PayloadInto, Pool, PoolConfig, Request};
use zonal_types::limits::HOLDER_ASKED_MS;
use zonal_types::{CellId, Codec, NodeId};
use zonal_wire::{AdminRequest, Header, Service};

/// Result of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeResult {
    /// The node itself, or a silent process.
    Holder,
    /// Another node of the cell.
    Other(NodeId),
    /// Neither of them.
    Nobody,
}

/// Probes servers.
pub trait NodeProbe: Send + Sync {
    /// Probes `address`. If the server there is `node`, it learns that `claimed_by` claims its
    /// number.
    fn probe(&self, node: NodeId, address: SocketAddr, claimed_by: SocketAddr) -> ProbeResult;
}

/// Probes over the network. Each of at most two attempts takes at most [`HOLDER_ASKED_MS`].
pub struct NetNodeProbe {
    pool: Pool,
    cell: CellId,
}

impl NetNodeProbe {
    /// Probes with this identity.
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

    fn probe_once(&self, to: Address, body: &[u8]) -> Result<(), NetError> {
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
    fn probe(&self, node: NodeId, address: SocketAddr, claimed_by: SocketAddr) -> ProbeResult {
        let claimed_by = claimed_by.to_string();
        let body = AdminRequest::NumberClaimed { node, claimed_by }.to_bytes();
        let to = Address::new(address, node);
        let mut outcome = self.probe_once(to, &body);
        if matches!(outcome, Err(NetError::Lost { .. })) {
            // The server may have been about to end.
            outcome = self.probe_once(to, &body);
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
    fn a_probe_takes_a_silent_process_as_there_and_a_closed_port_as_gone() {
        let cell = CellId([7; 16]);
        let me = Identity::new(cell, zonal_net::Role::Server, NodeId(1), None);
        let probe = NetNodeProbe::new(me, cell);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let claimed_by = "127.0.0.9:7000".parse().unwrap();
        // This listener accepts connections and never answers.
        assert_eq!(
            probe.probe(NodeId(3), address, claimed_by),
            ProbeResult::Holder
        );
        drop(listener);
        assert_eq!(
            probe.probe(NodeId(3), address, claimed_by),
            ProbeResult::Nobody
        );
    }
}
