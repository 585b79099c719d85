//! States of nodes without I/O: neighbours watch one another, a reporter a zone gathers their
//! sightings, and the manager decides.
//!
//! | layer | runs on | takes | gives |
//! | --- | --- | --- | --- |
//! | [`Neighbours`] | each node | results of heartbeats | sightings |
//! | [`ZoneReport`] | the reporter of a zone | sightings of its zone | digests |
//! | [`NodeStates`] | the manager | digests, results of its own heartbeats | states, changes |
//!
//! All take the time as a value. Invariant: without a contradicting sighting a node is down only
//! where two watchers get no answer, or the only one.

mod neighbours;
mod node_states;
mod ring;
mod zone_report;

pub use neighbours::{Neighbours, differ};
pub use node_states::{NodeStates, StateChange, WatchOrders};
pub use ring::{ZoneMembers, ring_of, watched_from};
pub use zone_report::{ZoneDigest, ZoneReport};
