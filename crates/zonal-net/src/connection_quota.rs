//! Quota of a server's connections: how many each client may hold.
//!
//! A client is a process on this machine, or a credential at an address. Several mounts of another
//! machine with the same credential are one client.
//!
//! | part of the bound | who may use it |
//! | --- | --- |
//! | a quarter | each client, at most |
//! | the last eighth | clients that hold fewer than [`FEW`], servers, commands |
//! | the last sixteenth | servers and commands alone |
//!
//! So `zonal status` is answered and a new mount starts, however many connections others hold. Past
//! its quota a client gets `Overloaded` in the handshake, and waits for one of its own connections.
//! A server with a bound below [`SHARED_FROM`] has no quotas.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::address::Endpoint;
use crate::credential::Serial;
use crate::identity::{Peer, Role};

/// Smallest bound with quotas.
const SHARED_FROM: usize = 64;
/// A client with fewer connections than this may use the last eighth.
const FEW: usize = 4;

/// The party that a connection counts for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// A server or a command: has no quota.
    Own,
    /// A client on this machine, by its process id.
    Process(i32),
    /// A client connected by TCP, with the serial number of its certificate.
    Machine(IpAddr, Option<Serial>),
}

impl Party {
    pub(crate) fn of(peer: &Peer) -> Self {
        match (peer.role, peer.endpoint) {
            (Role::Server | Role::Tool, _) => Self::Own,
            (Role::Client, Endpoint::Local { pid, .. }) => Self::Process(pid),
            (Role::Client, Endpoint::Tcp(address) | Endpoint::Unix(address)) => {
                let certified = peer.certified.as_ref();
                Self::Machine(address.ip(), certified.map(|certified| certified.serial))
            }
        }
    }
}

/// Connections of each party. At most as many entries as there are connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionQuota(BTreeMap<Party, usize>);

impl ConnectionQuota {
    /// Counts a new connection of a party; false where its quota refuses it. `open` connections
    /// exist in all, with this one, of at most `max`.
    pub(crate) fn join(&mut self, party: Party, open: usize, max: usize) -> bool {
        let held = self.0.get(&party).copied().unwrap_or(0);
        let left = max.saturating_sub(open);
        let may = match party {
            _ if max < SHARED_FROM => true,
            Party::Own => true,
            _ if left < max / 16 => false,
            _ if left < max / 8 => held < FEW,
            _ => held < max / 4,
        };
        if may {
            *self.0.entry(party).or_default() += 1;
        }
        may
    }

    /// Counts a closed connection of a party.
    pub(crate) fn leave(&mut self, party: Party) {
        if let Some(held) = self.0.get_mut(&party) {
            *held -= 1;
            if *held == 0 {
                self.0.remove(&party);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_keep_connections_for_other_clients() {
        let mut shares = ConnectionQuota::default();
        let max = 1024;
        let mut open = 0;
        let mut join = |party, wanted: usize| {
            let mut got = 0;
            for _connection in 0..wanted {
                if shares.join(party, open + 1, max) {
                    open += 1;
                    got += 1;
                }
            }
            got
        };
        // A client gets a quarter, however many it wants.
        for pid in 1..=3 {
            assert_eq!(join(Party::Process(pid), 10_000), 256);
        }
        let elsewhere = Party::Machine([10, 0, 0, 1].into(), Some(Serial(1)));
        // The fourth client gets what is left before the reserve.
        assert_eq!(join(elsewhere, 10_000), 128);
        // New clients get a few from the reserve; the last part is for servers and commands alone.
        let few: usize = (10..100).map(|pid| join(Party::Process(pid), 100)).sum();
        assert_eq!(few, 64);
        assert_eq!(join(Party::Own, 64), 64);
        assert_eq!(join(Party::Process(500), 1), 0);
    }

    #[test]
    fn returned_connections_count_again_and_small_servers_have_no_quotas() {
        let mut shares = ConnectionQuota::default();
        let one = Party::Process(1);
        for open in 1..=16 {
            assert!(shares.join(one, open, 64));
        }
        assert!(!shares.join(one, 17, 64));
        shares.leave(one);
        assert!(shares.join(one, 17, 64));
        for _connection in 0..17 {
            shares.leave(one);
        }
        assert!(shares.0.is_empty());
        assert!((1..=63).all(|open| shares.join(one, open, 63)));
    }
}
