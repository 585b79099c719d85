//! `node.toml` before checks: keys, some optional; each value with its position in the file.

use super::ZoneConfig;
use crate::units::{ByteSize, Millis, UplinkRate};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawNode {
    pub(super) cell: Spanned<String>,
    pub(super) node: Spanned<u32>,
    pub(super) zone: Option<Spanned<ZoneConfig>>,
    pub(super) rack: Option<Spanned<String>>,
    pub(super) listen: Spanned<String>,
    pub(super) advertise: Option<Spanned<String>>,
    pub(super) manager_address: Option<Spanned<String>>,
    pub(super) manager_addresses: Option<Spanned<Vec<Spanned<String>>>>,
    #[serde(default = "here")]
    pub(super) dir: PathBuf,
    pub(super) key_file: Option<PathBuf>,
    pub(super) transport: Option<Spanned<String>>,
    #[serde(default)]
    pub(super) shares_machine: bool,
    #[serde(default)]
    pub(super) log: RawLog,
    #[serde(default)]
    pub(super) limits: RawLimits,
    pub(super) admin: Option<RawAdmin>,
    pub(super) manager: Option<RawManager>,
    pub(super) meta: Option<Spanned<RawMeta>>,
    pub(super) storage: Option<RawStorage>,
    pub(super) agent: Option<RawAgent>,
}

pub(super) fn here() -> PathBuf {
    PathBuf::from(".")
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLog {
    pub(super) level: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawLimits {
    pub(super) request_deadline: Option<Spanned<Millis>>,
    pub(super) connections: Option<Spanned<u64>>,
    pub(super) slow_operation: Option<Spanned<Millis>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAdmin {
    pub(super) listen: Spanned<String>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) grpc: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawManager {
    pub(super) log: Option<Spanned<ByteSize>>,
    pub(super) overlay: Option<Spanned<ByteSize>>,
    pub(super) cache: Option<Spanned<ByteSize>>,
    pub(super) inline: Option<Spanned<ByteSize>>,
    pub(super) root_uid: Option<u32>,
    pub(super) root_gid: Option<u32>,
    pub(super) set_width: Option<Spanned<u64>>,
    pub(super) rebuild_after: Option<Spanned<Millis>>,
    pub(super) replicas: Option<Spanned<u64>>,
    pub(super) shards: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) replicated: bool,
    #[serde(default)]
    pub(super) subnets: Vec<RawSubnet>,
    pub(super) uplink_rate: Option<Spanned<UplinkRate>>,
    #[serde(default)]
    pub(super) uplinks: BTreeMap<String, Spanned<UplinkRate>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSubnet {
    pub(super) cidr: Spanned<String>,
    pub(super) zone: Option<Spanned<u16>>,
    pub(super) rack: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMeta {
    pub(super) log: Option<Spanned<ByteSize>>,
    pub(super) overlay: Option<Spanned<ByteSize>>,
    pub(super) cache: Option<Spanned<ByteSize>>,
    pub(super) inline: Option<Spanned<ByteSize>>,
    #[serde(default)]
    pub(super) replicated: bool,
    pub(super) of_zone: Option<Spanned<u16>>,
    /// Accepted here only so that the error can name the right table.
    pub(super) root_uid: Option<u32>,
    pub(super) root_gid: Option<u32>,
    /// Keys of a second node, beside `[manager]` at the top.
    pub(super) node: Option<Spanned<u32>>,
    pub(super) listen: Option<Spanned<String>>,
    pub(super) advertise: Option<Spanned<String>>,
    pub(super) admin: Option<Spanned<RawAdmin>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStorage {
    pub(super) target: Spanned<u32>,
    pub(super) capacity: Spanned<ByteSize>,
    pub(super) segment: Option<Spanned<ByteSize>>,
    pub(super) pending: Option<Spanned<ByteSize>>,
    pub(super) scrub_rate: Option<Spanned<ByteSize>>,
    pub(super) scrub_period: Option<Spanned<Millis>>,
    pub(super) log: Option<Spanned<ByteSize>>,
    pub(super) overlay: Option<Spanned<ByteSize>>,
    pub(super) cache: Option<Spanned<ByteSize>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAgent {
    pub(super) ranks: Option<Spanned<u64>>,
    #[serde(default)]
    pub(super) standby: bool,
    pub(super) user_min: Option<u32>,
    #[serde(default)]
    pub(super) no_new_privs: bool,
}
