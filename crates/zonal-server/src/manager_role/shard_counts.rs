//! Numbers of shards that zones are to have: that of the config, or a higher one that a command
//! asked for. The higher ones are keys of the manager's store, beside the zone map.
//!
//! *Invariants*: (1) a number is durable before it is told; (2) it never falls; (3) it is at most
//! [`SHARDS_PER_ZONE_MAX`].

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use zonal_disk::{Engine, LogRoom};
use zonal_driver::shard::Durability;
use zonal_types::describe::Described;
use zonal_types::limits::SHARDS_PER_ZONE_MAX;
use zonal_types::{Codec, ErrorCode, KvChange, KvRead, ZoneId};

use super::ManagerError;
use crate::shard_log::ShardLog;

/// Prefix of the keys; the zone follows.
const KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf8];
/// End of the keys (exclusive).
const END: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf9];

fn key(zone: ZoneId) -> Vec<u8> {
    let mut key = KEY.to_vec();
    key.extend_from_slice(&zone.0.to_be_bytes());
    key
}

fn zone_of(key: &[u8]) -> Option<ZoneId> {
    let zone = key.strip_prefix(&KEY)?.try_into().ok()?;
    Some(ZoneId(u16::from_be_bytes(zone)))
}

/// The record in printable form, for dumps; `None` where the key is another one, or the value is
/// damaged.
#[must_use]
pub fn describe(key: &[u8], value: &[u8]) -> Option<Described> {
    let zone = zone_of(key)?;
    let count = u16::from_bytes(value).ok()?;
    let shown = Described::new("wanted shards").with("zone", zone.0);
    Some(shown.with("shards", count))
}

/// The numbers of all zones.
pub(super) struct ShardCounts {
    /// From the config.
    each: usize,
    raised: Mutex<BTreeMap<ZoneId, u16>>,
}

impl ShardCounts {
    /// Loads the numbers that commands asked for. `each`: that of the config.
    pub(super) fn open(engine: &Engine, each: usize) -> Result<Self, ManagerError> {
        let (mut raised, mut is_damaged) = (BTreeMap::new(), false);
        let scanned = engine.scan(&KEY, &END, &mut |key, value| {
            match (zone_of(key), u16::from_bytes(value)) {
                (Some(zone), Ok(count)) => {
                    raised.insert(zone, count);
                }
                _ => is_damaged = true,
            }
            !is_damaged
        });
        scanned.map_err(ManagerError::Stored)?;
        match is_damaged {
            true => Err(ManagerError::Stored(ErrorCode::Corrupt)),
            false => Ok(Self {
                each,
                raised: Mutex::new(raised),
            }),
        }
    }

    fn raised(&self) -> MutexGuard<'_, BTreeMap<ZoneId, u16>> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shards that a zone is to have.
    pub(super) fn wanted(&self, zone: ZoneId) -> usize {
        let raised = self.raised().get(&zone).copied();
        self.each.max(raised.map_or(0, usize::from))
    }

    /// Raises the number of a zone durably; a lower one changes nothing.
    pub(super) fn raise(
        &self,
        log: &ShardLog,
        zone: ZoneId,
        shards: u16,
    ) -> Result<(), ManagerError> {
        if usize::from(shards) > SHARDS_PER_ZONE_MAX {
            return Err(ManagerError::TooManyShards { zone, shards });
        }
        if usize::from(shards) <= self.wanted(zone) {
            return Ok(());
        }
        // Held while logging: the store's last number is the highest.
        let mut raised = self.raised();
        let change = KvChange::put(key(zone), shards.to_bytes());
        log.append(vec![change], LogRoom::Normal, Durability::Later)?;
        log.flush_now()?;
        let known = raised.entry(zone).or_default();
        *known = shards.max(*known);
        Ok(())
    }
}
