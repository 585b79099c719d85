//! `node.toml`: who a server process is, where it listens, which roles it has.
//!
//! Unknown keys, values without units, values out of range and roles that do not go together are errors
//! that name the file, the line and the key. Paths are relative to the file's folder. Nothing is opened here.

use crate::units::{Millis, Size};
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use toml::Spanned;
use zonal_types::limits::{
    CONNECTIONS_MAX, REQUEST_DEADLINE_MS, SCRUB_PERIOD_MS_DEFAULT, SCRUB_RATE_DEFAULT,
};
use zonal_types::{CellId, NodeId, TargetId, ZoneId};

const KIB: u64 = 1 << 10;
/// Cache of a shard's index where nothing is set: look-ups in large directories go all over it.
const SHARD_CACHE_DEFAULT: u64 = 48 * MIB;
/// Cache of a target's index where nothing is set.
const TARGET_CACHE_DEFAULT: u64 = 16 * MIB;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Why a config cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// The text is not what a config looks like: syntax, unknown keys, units.
    #[error("{}:{line}: {message}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// A value is outside of its range.
    #[error("{}:{line}: {key} is {found}, allowed is {allowed}", path.display())]
    Range {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// Its key, with its table.
        key: &'static str,
        /// What is there.
        found: String,
        /// What may be there.
        allowed: String,
    },
    /// Roles or addresses that do not fit each other.
    #[error("{}: {message}", path.display())]
    Together {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        message: &'static str,
    },
}

impl ConfigError {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } => "name the node.toml with --config; `zonal up` writes such files",
            Self::Parse { .. } => "samples of every role are in deploy/",
            Self::Range { .. } => "sizes and times carry units, such as \"64 MiB\" and \"10 s\"",
            Self::Together { .. } => {
                "`zonal server` takes --config several times: one process, several nodes"
            }
        }
    }
}

/// The zone that a node is in.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ZoneConfig {
    /// 1 and up.
    pub id: u16,
    /// For people; used when the zone is new.
    #[serde(default)]
    pub name: String,
}

/// Memory and log of one store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreConfig {
    /// Length of the log, fixed when formatting.
    pub log: u64,
    /// Recent changes kept in memory between checkpoints.
    pub overlay: u64,
    /// Cache of the index.
    pub cache: u64,
}

/// A target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StorageConfig {
    /// Its id in the cell.
    pub target: TargetId,
    /// Bytes that it may use.
    pub capacity: u64,
    /// Bytes of a segment file, fixed when formatting.
    pub segment: u64,
    /// Memory of small writes that are not yet in segments.
    pub pending: u64,
    /// Bytes a second of a scrub.
    pub scrub_rate: u64,
    /// Time from the end of a scrub to the next; 0: only when told.
    pub scrub_period: Millis,
    /// Its store.
    pub store: StoreConfig,
}

/// Bounds of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// How long a request may take where the sender does not say.
    pub request_deadline: Millis,
    /// Connections accepted.
    pub connections: usize,
    /// Requests that take longer are logged.
    pub slow_operation: Millis,
}

/// One node, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeConfig {
    /// The file it came from.
    pub path: PathBuf,
    /// The cell.
    pub cell: CellId,
    /// The node.
    pub node: NodeId,
    /// Its zone.
    pub zone: ZoneId,
    /// The zone's name, where it is new.
    pub zone_name: String,
    /// Where it listens.
    pub listen: SocketAddr,
    /// What others connect to.
    pub advertise: SocketAddr,
    /// The manager.
    pub manager: SocketAddr,
    /// Its folder.
    pub dir: PathBuf,
    /// The cell key, where one is used.
    pub key_file: Option<PathBuf>,
    /// Where metrics are served.
    pub admin: Option<SocketAddr>,
    /// Lowest level logged.
    pub log_level: String,
    /// Bounds.
    pub limits: Limits,
    /// The manager role with the root shard.
    pub manager_role: Option<StoreConfig>,
    /// The role of a zone's metadata server.
    pub meta_role: Option<StoreConfig>,
    /// The role of a storage server.
    pub storage_role: Option<StorageConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawNode {
    cell: Spanned<String>,
    node: Spanned<u32>,
    zone: Spanned<ZoneConfig>,
    listen: SocketAddr,
    advertise: Option<SocketAddr>,
    manager_address: Option<SocketAddr>,
    #[serde(default = "here")]
    dir: PathBuf,
    key_file: Option<PathBuf>,
    #[serde(default)]
    log: RawLog,
    #[serde(default)]
    limits: RawLimits,
    admin: Option<RawAdmin>,
    manager: Option<RawStore>,
    meta: Option<RawStore>,
    storage: Option<RawStorage>,
}

fn here() -> PathBuf {
    PathBuf::from(".")
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawLog {
    level: Option<Spanned<String>>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    request_deadline: Option<Spanned<Millis>>,
    connections: Option<Spanned<u64>>,
    slow_operation: Option<Spanned<Millis>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAdmin {
    listen: SocketAddr,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct RawStore {
    log: Option<Spanned<Size>>,
    overlay: Option<Spanned<Size>>,
    cache: Option<Spanned<Size>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStorage {
    target: Spanned<u32>,
    capacity: Spanned<Size>,
    segment: Option<Spanned<Size>>,
    pending: Option<Spanned<Size>>,
    scrub_rate: Option<Spanned<Size>>,
    scrub_period: Option<Spanned<Millis>>,
    log: Option<Spanned<Size>>,
    overlay: Option<Spanned<Size>>,
    cache: Option<Spanned<Size>>,
}

/// The text being read, to turn positions into lines.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    fn range_error(
        &self,
        at: usize,
        key: &'static str,
        found: &dyn std::fmt::Display,
        allowed: impl Into<String>,
    ) -> ConfigError {
        ConfigError::Range {
            path: self.path.to_owned(),
            line: self.line(at),
            key,
            found: found.to_string(),
            allowed: allowed.into(),
        }
    }

    fn size(
        &self,
        key: &'static str,
        value: Option<&Spanned<Size>>,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<u64, ConfigError> {
        let Some(value) = value else {
            return Ok(default);
        };
        let size = *value.get_ref();
        if range.contains(&size.0) {
            return Ok(size.0);
        }
        let allowed = format!("{} to {}", Size(*range.start()), Size(*range.end()));
        Err(self.range_error(value.span().start, key, &size, allowed))
    }

    fn time(
        &self,
        key: &'static str,
        value: Option<&Spanned<Millis>>,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Result<Millis, ConfigError> {
        let Some(value) = value else {
            return Ok(Millis(default));
        };
        let time = *value.get_ref();
        if range.contains(&time.0) {
            return Ok(time);
        }
        let allowed = format!("{} to {}", Millis(*range.start()), Millis(*range.end()));
        Err(self.range_error(value.span().start, key, &time, allowed))
    }

    fn store(
        &self,
        log: Option<&Spanned<Size>>,
        overlay: Option<&Spanned<Size>>,
        (cache, cache_default): (Option<&Spanned<Size>>, u64),
    ) -> Result<StoreConfig, ConfigError> {
        let bytes = self.size("log", log, 32 * MIB, 8 * MIB..=GIB)?;
        if bytes % 4096 != 0 {
            let at = log.map_or(0, |value| value.span().start);
            return Err(self.range_error(at, "log", &Size(bytes), "a multiple of 4 KiB"));
        }
        Ok(StoreConfig {
            log: bytes,
            overlay: self.size("overlay", overlay, 8 * MIB, MIB..=4 * GIB)?,
            cache: self.size("cache", cache, cache_default, MIB..=1024 * GIB)?,
        })
    }

    fn storage(&self, raw: &RawStorage) -> Result<StorageConfig, ConfigError> {
        let target = *raw.target.get_ref();
        if target == 0 {
            return Err(self.range_error(raw.target.span().start, "target", &target, "1 and up"));
        }
        let segment = self.size("segment", raw.segment.as_ref(), 64 * MIB, MIB..=GIB)?;
        if segment % MIB != 0 {
            let at = raw.segment.as_ref().map_or(0, |value| value.span().start);
            let allowed = "a multiple of 1 MiB";
            return Err(self.range_error(at, "segment", &Size(segment), allowed));
        }
        let capacity = Some(&raw.capacity);
        Ok(StorageConfig {
            target: TargetId(target),
            capacity: self.size("capacity", capacity, 0, segment..=1024 * 1024 * GIB)?,
            segment,
            pending: self.size(
                "pending",
                raw.pending.as_ref(),
                16 * MIB,
                256 * KIB..=4 * GIB,
            )?,
            scrub_rate: self.size(
                "scrub_rate",
                raw.scrub_rate.as_ref(),
                SCRUB_RATE_DEFAULT,
                64 * KIB..=64 * GIB,
            )?,
            scrub_period: self.time(
                "scrub_period",
                raw.scrub_period.as_ref(),
                SCRUB_PERIOD_MS_DEFAULT,
                0..=31_536_000_000,
            )?,
            store: self.store(
                raw.log.as_ref(),
                raw.overlay.as_ref(),
                (raw.cache.as_ref(), TARGET_CACHE_DEFAULT),
            )?,
        })
    }

    fn limits(&self, raw: &RawLimits) -> Result<Limits, ConfigError> {
        let connections = match &raw.connections {
            None => CONNECTIONS_MAX,
            Some(value) => usize::try_from(*value.get_ref())
                .ok()
                .filter(|count| (1..=65_536).contains(count))
                .ok_or_else(|| {
                    let at = value.span().start;
                    self.range_error(at, "connections", value.get_ref(), "1 to 65536")
                })?,
        };
        let deadline = raw.request_deadline.as_ref();
        let slow = raw.slow_operation.as_ref();
        Ok(Limits {
            request_deadline: self.time(
                "request_deadline",
                deadline,
                REQUEST_DEADLINE_MS,
                100..=600_000,
            )?,
            connections,
            slow_operation: self.time("slow_operation", slow, 500, 1..=3_600_000)?,
        })
    }

    fn together(&self, message: &'static str) -> ConfigError {
        ConfigError::Together {
            path: self.path.to_owned(),
            message,
        }
    }

    fn node(&self, raw: &RawNode) -> Result<NodeConfig, ConfigError> {
        let cell: CellId = raw.cell.get_ref().parse().map_err(|_error| {
            let at = raw.cell.span().start;
            self.range_error(at, "cell", raw.cell.get_ref(), "32 hexadecimal digits")
        })?;
        let node = *raw.node.get_ref();
        if node == 0 {
            return Err(self.range_error(raw.node.span().start, "node", &node, "1 and up"));
        }
        let zone = raw.zone.get_ref();
        if zone.id == 0 {
            return Err(self.range_error(raw.zone.span().start, "zone.id", &zone.id, "1 and up"));
        }
        let log_level = match &raw.log.level {
            None => "info".to_owned(),
            Some(level) => {
                let known = ["error", "warn", "info", "debug", "trace"];
                if !known.contains(&level.get_ref().as_str()) {
                    let at = level.span().start;
                    return Err(self.range_error(
                        at,
                        "log.level",
                        level.get_ref(),
                        known.join(", "),
                    ));
                }
                level.get_ref().clone()
            }
        };
        let manager = match (&raw.manager, raw.manager_address) {
            (_, Some(address)) => address,
            (Some(_), None) => raw.advertise.unwrap_or(raw.listen),
            (None, None) => return Err(self.together("`manager_address` is missing")),
        };
        let stores = |raw: &RawStore| {
            let cache = (raw.cache.as_ref(), SHARD_CACHE_DEFAULT);
            self.store(raw.log.as_ref(), raw.overlay.as_ref(), cache)
        };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let config = NodeConfig {
            path: self.path.to_owned(),
            cell,
            node: NodeId(node),
            zone: ZoneId(zone.id),
            zone_name: zone.name.clone(),
            listen: raw.listen,
            advertise: raw.advertise.unwrap_or(raw.listen),
            manager,
            dir: clean(&folder.join(&raw.dir)),
            key_file: raw.key_file.as_ref().map(|file| folder.join(file)),
            admin: raw.admin.as_ref().map(|admin| admin.listen),
            log_level,
            limits: self.limits(&raw.limits)?,
            manager_role: raw.manager.as_ref().map(stores).transpose()?,
            meta_role: raw.meta.as_ref().map(stores).transpose()?,
            storage_role: raw
                .storage
                .as_ref()
                .map(|raw| self.storage(raw))
                .transpose()?,
        };
        self.check_together(&config)?;
        Ok(config)
    }

    fn check_together(&self, config: &NodeConfig) -> Result<(), ConfigError> {
        if config.roles().is_empty() {
            return Err(self.together("no role: add [manager], [meta] or [storage]"));
        }
        if config.manager_role.is_some() && config.meta_role.is_some() {
            return Err(self.together(
                "[manager] brings the root shard and [meta] another one: a node has one shard, give the second a node.toml of its own",
            ));
        }
        if config.advertise.ip().is_unspecified() {
            return Err(
                self.together("others cannot connect to an unspecified address: set `advertise`")
            );
        }
        if config.key_file.is_none() && !config.listen.ip().is_loopback() {
            return Err(
                self.together("`listen` outside of loopback needs a cell key: set `key_file`")
            );
        }
        Ok(())
    }
}

/// Without `.` components, so that what is printed reads well.
fn clean(path: &Path) -> PathBuf {
    let kept: PathBuf = path
        .components()
        .filter(|part| *part != std::path::Component::CurDir)
        .collect();
    if kept.as_os_str().is_empty() {
        here()
    } else {
        kept
    }
}

impl NodeConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(path, &text)
    }

    /// Checks a file's text.
    ///
    /// # Errors
    /// See [`ConfigError`].
    pub fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = Source { path, text };
        let raw: RawNode = toml::from_str(text).map_err(|error| ConfigError::Parse {
            path: path.to_owned(),
            line: source.line(error.span().map_or(0, |span| span.start)),
            message: error.message().trim().replace('\n', " "),
        })?;
        source.node(&raw)
    }

    /// Names of the roles, for people.
    #[must_use]
    pub fn roles(&self) -> Vec<&'static str> {
        let roles = [
            ("manager", self.manager_role.is_some()),
            ("meta", self.meta_role.is_some()),
            ("storage", self.storage_role.is_some()),
        ];
        roles
            .iter()
            .filter(|(_, on)| *on)
            .map(|(name, _)| *name)
            .collect()
    }

    /// Folder of the manager's store.
    #[must_use]
    pub fn manager_dir(&self) -> PathBuf {
        self.dir.join("manager")
    }

    /// Folder of the shard's store.
    #[must_use]
    pub fn meta_dir(&self) -> PathBuf {
        self.dir.join("shard")
    }

    /// Folder of the target's store.
    #[must_use]
    pub fn target_dir(&self) -> PathBuf {
        self.dir.join("target")
    }
}
