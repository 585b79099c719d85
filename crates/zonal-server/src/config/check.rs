//! From the raw config to a checked one: defaults and ranges.

use super::raw::{RawAgent, RawLimits, RawLog, RawManager, RawMeta, RawNode, RawStorage, here};
use super::{
    AgentConfig, ConfigError, Limits, NodeConfig, StorageConfig, StoreConfig, UplinkRates,
};
use crate::units::{ByteSize, Millis};
use std::ops::RangeInclusive;
use std::path::{Component, Path, PathBuf};
use toml::Spanned;
use zonal_net::Transport;
use zonal_types::limits::{
    AGENT_RANKS_DEFAULT, AGENT_RANKS_MAX, AGENT_USER_MIN_DEFAULT, BLOCK_BYTES, CONNECTIONS_MAX,
    INLINE_BYTES_DEFAULT, INLINE_BYTES_MAX, REBUILD_AFTER_MS_DEFAULT, REQUEST_DEADLINE_MS,
    SCRUB_PERIOD_MS_DEFAULT, SCRUB_RATE_DEFAULT, SET_WIDTH_DEFAULT, SHARDS_PER_ZONE_MAX, SLOTS_MAX,
};
use zonal_types::{CellId, NodeId, TargetId, ZoneId};
use zonal_zonemap::SubnetTable;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Default cache of a shard's index: look-ups in large directories touch all parts of it, and it
/// has the inline bytes of small files.
const SHARD_CACHE_DEFAULT: u64 = 128 * MIB;

/// Default cache of the root shard's index: it has first-level directories and the files beside
/// them.
const ROOT_CACHE_DEFAULT: u64 = 48 * MIB;

/// Default cache of a target's index.
const TARGET_CACHE_DEFAULT: u64 = 16 * MIB;

/// The text of the file, to turn positions into lines.
pub(super) struct Source<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
}

/// Path of `file` relative to `folder`, lexically. Where the folder is a link to another disk, `..`
/// is still the folder that has the link, not the one above its destination.
pub(super) fn beside(folder: &Path, file: &Path) -> PathBuf {
    let mut base = folder.to_owned();
    let mut rest = file.components().peekable();
    while rest.peek() == Some(&Component::ParentDir)
        && matches!(base.components().next_back(), Some(Component::Normal(_)))
    {
        base.pop();
        rest.next();
    }
    base.join(rest.collect::<PathBuf>())
}

impl Source<'_> {
    pub(super) fn line(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    pub(super) fn range_error(
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
        value: Option<&Spanned<ByteSize>>,
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
        let allowed = format!("{} to {}", ByteSize(*range.start()), ByteSize(*range.end()));
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

    pub(super) fn manager(&self, raw: &RawManager) -> Result<StoreConfig, ConfigError> {
        let cache = (raw.cache.as_ref(), ROOT_CACHE_DEFAULT);
        self.store(raw.log.as_ref(), raw.overlay.as_ref(), cache)
    }

    pub(super) fn meta(&self, raw: &RawMeta) -> Result<StoreConfig, ConfigError> {
        let cache = (raw.cache.as_ref(), SHARD_CACHE_DEFAULT);
        self.store(raw.log.as_ref(), raw.overlay.as_ref(), cache)
    }

    /// The zone whose shard a node has a replica of; 0: its own.
    pub(super) fn meta_zone(&self, raw: Option<&RawMeta>) -> Result<ZoneId, ConfigError> {
        let Some((raw, zone)) = raw.and_then(|raw| Some((raw, raw.of_zone.as_ref()?))) else {
            return Ok(ZoneId(0));
        };
        match (*zone.get_ref(), raw.replicated) {
            (0, _) => Err(self.range_error(zone.span().start, "meta.of_zone", &0, "1 and up")),
            (number, false) => {
                let allowed = "a zone with replicas: set `replicated = true`";
                Err(self.range_error(zone.span().start, "meta.of_zone", &number, allowed))
            }
            (number, true) => Ok(ZoneId(number)),
        }
    }

    fn store(
        &self,
        log: Option<&Spanned<ByteSize>>,
        overlay: Option<&Spanned<ByteSize>>,
        (cache, cache_default): (Option<&Spanned<ByteSize>>, u64),
    ) -> Result<StoreConfig, ConfigError> {
        let bytes = self.size("log", log, 32 * MIB, 8 * MIB..=GIB)?;
        if bytes % 4096 != 0 {
            let at = log.map_or(0, |value| value.span().start);
            return Err(self.range_error(at, "log", &ByteSize(bytes), "a multiple of 4 KiB"));
        }
        Ok(StoreConfig {
            log: bytes,
            overlay: self.size("overlay", overlay, 8 * MIB, MIB..=4 * GIB)?,
            cache: self.size("cache", cache, cache_default, MIB..=1024 * GIB)?,
        })
    }

    pub(super) fn inline(&self, inline: Option<&Spanned<ByteSize>>) -> Result<u32, ConfigError> {
        let (default, max) = (u64::from(INLINE_BYTES_DEFAULT), INLINE_BYTES_MAX as u64);
        let bytes = self.size("inline", inline, default, 0..=max)?;
        #[expect(clippy::cast_possible_truncation, reason = "at most INLINE_BYTES_MAX")]
        let bytes = bytes as u32;
        if !(bytes as usize).is_multiple_of(BLOCK_BYTES) {
            let at = inline.map_or(0, |value| value.span().start);
            let allowed = "a multiple of 4 KiB";
            return Err(self.range_error(at, "inline", &ByteSize(bytes.into()), allowed));
        }
        Ok(bytes)
    }

    fn set_width(&self, manager: Option<&RawManager>) -> Result<u16, ConfigError> {
        let Some(width) = manager.and_then(|manager| manager.set_width.as_ref()) else {
            return Ok(SET_WIDTH_DEFAULT);
        };
        let slots = *width.get_ref();
        let fitting = u16::try_from(slots).ok();
        let fitting = fitting.filter(|slots| (1..=SLOTS_MAX).contains(&usize::from(*slots)));
        let at = width.span().start;
        let allowed = format!("1 to {SLOTS_MAX}");
        fitting.ok_or_else(|| self.range_error(at, "manager.set_width", &slots, allowed))
    }

    fn rebuild_after(&self, manager: Option<&RawManager>) -> Result<Millis, ConfigError> {
        let after = manager.and_then(|manager| manager.rebuild_after.as_ref());
        self.time(
            "manager.rebuild_after",
            after,
            REBUILD_AFTER_MS_DEFAULT,
            0..=31_536_000_000,
        )
    }

    fn replicas(&self, manager: Option<&RawManager>) -> Result<usize, ConfigError> {
        let Some(replicas) = manager.and_then(|manager| manager.replicas.as_ref()) else {
            return Ok(1);
        };
        let asked = *replicas.get_ref();
        match usize::try_from(asked) {
            Ok(count) if [1, 3, 5].contains(&count) => Ok(count),
            _ => {
                let at = replicas.span().start;
                Err(self.range_error(at, "manager.replicas", &asked, "1, 3 or 5"))
            }
        }
    }

    fn shards(&self, manager: Option<&RawManager>) -> Result<usize, ConfigError> {
        let Some(shards) = manager.and_then(|manager| manager.shards.as_ref()) else {
            return Ok(1);
        };
        let asked = *shards.get_ref();
        let count = usize::try_from(asked).ok();
        let count = count.filter(|count| (1..=SHARDS_PER_ZONE_MAX).contains(count));
        let at = shards.span().start;
        let allowed = format!("1 to {SHARDS_PER_ZONE_MAX}");
        count.ok_or_else(|| self.range_error(at, "manager.shards", &asked, allowed))
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
            return Err(self.range_error(at, "segment", &ByteSize(segment), allowed));
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

    fn agent(&self, raw: &RawAgent) -> Result<AgentConfig, ConfigError> {
        let ranks = match &raw.ranks {
            None => AGENT_RANKS_DEFAULT,
            Some(value) => usize::try_from(*value.get_ref())
                .ok()
                .filter(|count| (1..=AGENT_RANKS_MAX).contains(count))
                .ok_or_else(|| {
                    let at = value.span().start;
                    let allowed = format!("1 to {AGENT_RANKS_MAX}");
                    self.range_error(at, "agent.ranks", value.get_ref(), allowed)
                })?,
        };
        Ok(AgentConfig {
            ranks,
            is_standby: raw.standby,
            user_min: raw.user_min.unwrap_or(AGENT_USER_MIN_DEFAULT),
            no_new_privs: raw.no_new_privs,
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

    /// The number of a node, from `key`.
    pub(super) fn number(
        &self,
        key: &'static str,
        value: &Spanned<u32>,
    ) -> Result<NodeId, ConfigError> {
        match *value.get_ref() {
            0 => Err(self.range_error(value.span().start, key, &0, "1 and up")),
            number => Ok(NodeId(number)),
        }
    }

    fn log_level(&self, raw: &RawLog) -> Result<String, ConfigError> {
        let Some(level) = &raw.level else {
            return Ok("info".to_owned());
        };
        let known = ["error", "warn", "info", "debug", "trace"];
        if known.contains(&level.get_ref().as_str()) {
            return Ok(level.get_ref().clone());
        }
        let at = level.span().start;
        Err(self.range_error(at, "log.level", level.get_ref(), known.join(", ")))
    }

    fn transport(&self, raw: Option<&Spanned<String>>) -> Result<Transport, ConfigError> {
        let Some(text) = raw else {
            return Ok(Transport::Tls);
        };
        match text.get_ref().as_str() {
            "tls" => Ok(Transport::Tls),
            "plain" => Ok(Transport::Plain),
            other => {
                let at = text.span().start;
                Err(self.range_error(at, "transport", &other, "tls, plain"))
            }
        }
    }

    /// The node at the top of a file, with all its roles except a second shard.
    pub(super) fn node(&self, raw: &RawNode) -> Result<NodeConfig, ConfigError> {
        let cell: CellId = raw.cell.get_ref().parse().map_err(|_error| {
            let at = raw.cell.span().start;
            self.range_error(at, "cell", raw.cell.get_ref(), "32 hexadecimal digits")
        })?;
        let listen = self.address("listen", &raw.listen)?;
        let advertise = match &raw.advertise {
            Some(advertise) => self.address("advertise", advertise)?,
            None => listen,
        };
        let managers = self.managers(raw, listen, advertise)?;
        // Beside [manager], [meta] belongs to the second node.
        let meta = raw.meta.as_ref().map(Spanned::get_ref);
        let meta = meta.filter(|_| raw.manager.is_none());
        let inline = match (&raw.manager, meta) {
            (Some(manager), _) => manager.inline.as_ref(),
            (None, Some(meta)) => meta.inline.as_ref(),
            (None, None) => None,
        };
        let folder = self.path.parent().unwrap_or(Path::new("."));
        let admin = raw.admin.as_ref();
        let admin = admin.map(|admin| self.admin("admin.listen", admin, raw));
        Ok(NodeConfig {
            path: self.path.to_owned(),
            cell,
            node: self.number("node", &raw.node)?,
            zone: self.zone(raw)?,
            listen,
            advertise,
            managers,
            dir: clean(&folder.join(&raw.dir)),
            key_file: raw.key_file.as_ref().map(|file| beside(folder, file)),
            transport: self.transport(raw.transport.as_ref())?,
            shares_machine: raw.shares_machine,
            admin: admin.transpose()?,
            log_level: self.log_level(&raw.log)?,
            limits: self.limits(&raw.limits)?,
            inline_bytes: self.inline(inline)?,
            root_owner: self.root_owner(raw)?,
            replicated: match (&raw.manager, meta) {
                (Some(manager), _) => manager.replicated,
                (None, meta) => meta.is_some_and(|meta| meta.replicated),
            },
            meta_zone: self.meta_zone(meta)?,
            replicas: self.replicas(raw.manager.as_ref())?,
            shards: self.shards(raw.manager.as_ref())?,
            set_width: self.set_width(raw.manager.as_ref())?,
            rebuild_after: self.rebuild_after(raw.manager.as_ref())?,
            subnets: match &raw.manager {
                Some(manager) => self.subnets(manager)?,
                None => SubnetTable::default(),
            },
            uplinks: match &raw.manager {
                Some(manager) => self.uplinks(manager)?,
                None => UplinkRates::default(),
            },
            manager_role: raw
                .manager
                .as_ref()
                .map(|raw| self.manager(raw))
                .transpose()?,
            meta_role: meta.map(|raw| self.meta(raw)).transpose()?,
            storage_role: raw
                .storage
                .as_ref()
                .map(|raw| self.storage(raw))
                .transpose()?,
            agent_role: raw.agent.as_ref().map(|raw| self.agent(raw)).transpose()?,
            record: None,
        })
    }
}

/// Removes `.` components, for readable output.
fn clean(path: &Path) -> PathBuf {
    let kept: PathBuf = path
        .components()
        .filter(|part| *part != Component::CurDir)
        .collect();
    if kept.as_os_str().is_empty() {
        here()
    } else {
        kept
    }
}
