//! Who may hold how many of a server's connections.
//!
//! A client is a process on this machine, or a credential at an address: several mounts of one
//! other machine with one credential are one. It holds a quarter of the bound at most. The last
//! eighth is for clients that hold few, and for servers and commands; the last sixteenth for
//! servers and commands alone: `zonal status` is answered and a new mount begins, however many
//! connections others hold. Past its share a client is told `Overloaded` in the handshake, and
//! waits for one of its own. A server with a bound below [`SHARED_FROM`] has no shares.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::address::Endpoint;
use crate::credential::Serial;
use crate::identity::{Peer, Role};

/// From this bound on connections are shared out.
const SHARED_FROM: usize = 64;
/// Connections with which a client is new.
const FEW: usize = 4;

/// Whose a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Party {
    /// A server or a command: has no share.
    Own,
    /// A client on this machine: its process.
    Process(i32),
    /// A client that came by TCP, with the serial number of its certificate.
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

/// Connections of each party. At most as many as there are connections.
#[derive(Debug, Default)]
pub(crate) struct ConnectionQuota(BTreeMap<Party, usize>);

impl ConnectionQuota {
    /// Counts one more connection of a party, where it may have one: `open` are there in all, with
    /// this one, of at most `max`.
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

    /// One fewer.
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
    fn nobody_takes_what_others_need() {
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
        // However many one wants it gets a quarter.
        for pid in 1..=3 {
            assert_eq!(join(Party::Process(pid), 10_000), 256);
        }
        let elsewhere = Party::Machine([10, 0, 0, 1].into(), Some(Serial(1)));
        // Up to the reserve.
        assert_eq!(join(elsewhere, 10_000), 128);
        // New ones get a few of that, until servers and commands alone get some.
        let few: usize = (10..100).map(|pid| join(Party::Process(pid), 100)).sum();
        assert_eq!(few, 64);
        assert_eq!(join(Party::Own, 64), 64);
        assert_eq!(join(Party::Process(500), 1), 0);
    }

    #[test]
    fn what_is_given_back_can_be_had_again_and_small_servers_do_not_share() {
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
