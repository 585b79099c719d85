//! A testbed: a data centre of network namespaces on one machine, with a cell in it.
//!
//! Each rack has a switch, which is a bridge in a namespace of its own, and an uplink to the core
//! switch. Each node is a network namespace and a mount namespace with one server process and one
//! mount. Every link has a rate in each direction.
//!
//! *Invariants*:
//! 1. Nothing is made in the machine's own network namespace, so no interface that was there before
//!    can be touched.
//! 2. The state file names everything before anything is made; `down` needs no other record.
//! 3. `down` ends exactly the processes that run in the testbed's network namespaces.

pub mod cell_folder;
pub mod conditions;
pub mod iproute;
pub mod links;
pub mod namespaces;
pub mod network;
pub mod node_entry;
pub mod nodes;
pub mod plan;
pub mod rate_check;
pub mod shape;
pub mod shaping;
pub mod state;
pub mod teardown;
