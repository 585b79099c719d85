//! Strangers: connections whose handshake is not done yet, and how many each source may have.
//!
//! There are [`STRANGERS_MAX`] places. Where all are taken, a new stranger displaces the oldest
//! stranger of the source with the most of them. So a source that opens connections and stays
//! silent displaces its own. A client that shakes hands in milliseconds gets in beside it, also
//! from the same address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::address::Endpoint;
use crate::server::STRANGERS_MAX;

/// Source of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Source {
    /// An IP address.
    Address(IpAddr),
    /// A user of this machine.
    User(u32),
}

impl Source {
    pub(crate) fn of(endpoint: Endpoint) -> Self {
        match endpoint {
            Endpoint::Tcp(address) | Endpoint::Unix(address) => Self::Address(address.ip()),
            Endpoint::Local { uid, .. } => Self::User(uid),
        }
    }
}

/// The strangers of each source, by age. At most [`STRANGERS_MAX`] in all.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    by_source: BTreeMap<Source, BTreeSet<u64>>,
    count: usize,
}

impl Strangers {
    /// Counts a new stranger (ids rise); returns the id of the stranger that it displaces.
    pub(crate) fn join(&mut self, source: Source, id: u64) -> Option<u64> {
        let goes = if self.count >= STRANGERS_MAX {
            self.oldest_of_most()
        } else {
            None
        };
        if let Some((source, id)) = goes {
            self.leave(source, id);
        }
        self.by_source.entry(source).or_default().insert(id);
        self.count += 1;
        goes.map(|(_source, id)| id)
    }

    fn oldest_of_most(&self) -> Option<(Source, u64)> {
        let most = self.by_source.iter().max_by_key(|(_, ids)| ids.len());
        let (source, ids) = most?;
        Some((*source, *ids.first()?))
    }

    /// Removes a stranger that has gone or is known now. Without effect on a displaced one.
    pub(crate) fn leave(&mut self, source: Source, id: u64) {
        let Some(ids) = self.by_source.get_mut(&source) else {
            return;
        };
        if ids.remove(&id) {
            self.count -= 1;
        }
        if ids.is_empty() {
            self.by_source.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flooding_source_displaces_its_own_oldest_stranger() {
        let mut strangers = Strangers::default();
        let (flood, other) = (Source::User(1), Source::Address([10, 0, 0, 1].into()));
        assert_eq!(strangers.join(other, 0), None);
        let most = STRANGERS_MAX as u64;
        for id in 1..most {
            assert_eq!(strangers.join(flood, id), None);
        }
        for id in most..1000 {
            assert_eq!(strangers.join(flood, id), Some(id - most + 1));
        }
        // A displaced stranger leaves later; one that is known now makes room.
        strangers.leave(flood, 1);
        strangers.leave(other, 0);
        assert_eq!(strangers.join(other, 1000), None);
        assert_eq!(strangers.count, STRANGERS_MAX);
        for id in 0..=1000 {
            strangers.leave(flood, id);
            strangers.leave(other, id);
        }
        assert!(strangers.by_source.is_empty() && strangers.count == 0);
    }
}
