//! The server process: roles over their cores, configuration, metrics, admin HTTP.
//!
//! [`server::run`] is the entry. [`node::ServerNode`] hands requests to [`manager_role`],
//! [`meta_role`] and [`storage_role`]. Each role drives a core, which decides; this crate reads and
//! writes files, waits, and calls other servers.
#![cfg_attr(
    test,
    allow(
        clippy::cast_possible_truncation,
        reason = "numbers of tests are small"
    )
)]
#![forbid(unsafe_code)]

mod access;
pub mod admin;
pub mod agent_role;
mod client_traffic;
pub mod clock;
pub mod config;
mod control;
mod cpu_use;
#[cfg(test)]
mod crash_tests;
pub mod error;
pub mod grants;
mod join;
pub mod logging;
pub mod manager_drain;
#[cfg(test)]
mod manager_grown_tests;
mod manager_link;
pub mod manager_role;
#[cfg(test)]
mod manager_tests;
pub mod map_cache;
mod medium_health;
mod meta_calls;
mod meta_role;
pub mod metrics;
pub mod node;
mod node_clock;
mod node_probe;
mod node_watch;
pub mod peers;
mod pending_reply;
mod periodic_thread;
mod permits;
mod placement_grpc;
pub mod placement_pages;
pub mod placement_service;
mod rate_limited_log;
pub mod replica_recovery;
pub mod replica_role;
pub mod restore;
mod revocations;
mod root_names;
mod scrub;
mod scrub_record;
#[cfg(test)]
mod scrub_tests;
pub mod server;
pub mod shard_log;
pub mod shard_service;
mod spare_threads;
mod starting_node;
mod storage_io;
pub mod storage_role;
#[cfg(test)]
mod storage_tests;
mod store_starts;
mod stores;
mod subjects;
mod target_lease;
mod target_resync;
mod timers;
pub mod units;

pub use config::NodeConfig;
pub use error::ServerError;
pub use manager_role::{
    describe_event, describe_join_token, describe_revoked, describe_wanted_shards,
};
pub use scrub_record::{SCRUB_KEY, SHARD_SCRUB_KEY, describe as describe_scrub};
pub use store_starts::describe as describe_start;
