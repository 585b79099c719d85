//! How a shard's effects come into its log: room for them, one record with the map's edits, and what must be durable at once.

use super::{MetaRole, State};
use crate::manager_role::ManagerError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zonal_disk::DiskError;
use zonal_disk::Room;
use zonal_meta::JunctionChange;
use zonal_types::{ErrorCode, KvChange};
use zonal_wire::MetaRequest;
use zonal_zonemap::ZoneMap;

/// Left free on the disk below a shard's store, or inside its index, by what adds to the name space: a checkpoint, of deletions too, needs it.
const META_HEADROOM_BYTES: u64 = 64 << 20;
/// What a new name takes with its inode, about: what statfs tells of names that fit is reckoned by it.
const NAME_BYTES: u64 = 1 << 10;

impl MetaRole {
    /// Logs an effect. The map returned is to be settled by the manager outside of the mutex.
    pub(crate) fn log(
        &self,
        state: &mut State,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
    ) -> Result<Option<Arc<ZoneMap>>, ErrorCode> {
        if effect.is_empty() && junctions.is_empty() {
            return Ok(None);
        }
        let result = self.try_log(state, effect, junctions);
        result.map_err(|error| {
            tracing::error!(%error, "the shard stops serving: its log takes no record");
            self.trouble.medium(&error.to_string());
            self.failed.store(true, Ordering::Release);
            match error {
                ManagerError::Disk(error) => error.code(),
                _ => ErrorCode::Io,
            }
        })
    }

    fn try_log(
        &self,
        state: &mut State,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
    ) -> Result<Option<Arc<ZoneMap>>, ManagerError> {
        let deletes = puts(&effect, zonal_meta::keys::TAG_DELETION);
        let reserves = [zonal_meta::keys::TAG_IDS, zonal_meta::keys::TAG_DATA_IDS];
        let reserves = reserves.iter().any(|tag| puts(&effect, *tag));
        let is_half = puts(&effect, zonal_meta::keys::TAG_DETACHED);
        let fences = puts(&effect, zonal_meta::keys::TAG_FENCE);
        let map = match &self.manager {
            Some(manager) if !junctions.is_empty() => {
                let map = manager.append_junctions(effect, junctions)?;
                state.map_version = map.version;
                state.shard.set_map(Arc::clone(&map));
                Some(map)
            }
            _ => {
                self.engine.append_with(effect, &[], Room::Reserve)?;
                None
            }
        };
        if reserves || is_half {
            // Few flushes in a thousand creates: a number that was given must not be given again after a power loss. And before the root shard
            // hears of a first-level directory's half here, this half is durable: the root's is at once.
            self.engine.sync_all()?;
        }
        if deletes && !state.has_deletions {
            state.has_deletions = true;
            self.pushing.notify_all();
        }
        if fences {
            self.fencing.notify_all();
        }
        Ok(map)
    }

    /// Whether the store has room for what a request may write. Reading needs none. What adds to the name space leaves room
    /// for checkpoints; the rest, deletions among it, may use the log nearly to its end.
    pub(super) fn check_room(&self, request: &MetaRequest) -> Result<(), ErrorCode> {
        let reads = matches!(request.tag(), 2 | 10..=20 | 60..=63 | 84);
        if reads {
            return Ok(());
        }
        if request.adds() {
            if !self.engine.has_room(META_HEADROOM_BYTES) {
                return Err(ErrorCode::NoSpace);
            }
            return Ok(self.engine.wait_for_room()?);
        }
        match self.engine.wait_for_room() {
            Err(DiskError::LogFull) if self.log_has_reserve() => Ok(()),
            result => Ok(result?),
        }
    }

    /// Whether any one record fits into the log besides what waits for it already.
    pub(crate) fn log_has_reserve(&self) -> bool {
        let stats = self.engine.stats();
        stats.log_used <= stats.log_capacity / 16 * 15
    }

    /// Whether it refuses what adds to the name space, for want of space.
    pub(crate) fn is_full(&self) -> bool {
        self.engine.is_short(META_HEADROOM_BYTES)
    }

    /// New names that fit, about; 0 where they are refused.
    pub(super) fn names_left(&self) -> u64 {
        self.engine.room_left(META_HEADROOM_BYTES) / NAME_BYTES
    }

    pub(crate) fn sync(&self) -> Result<(), ErrorCode> {
        let synced = self.engine.sync_all();
        Ok(synced.inspect_err(|error| self.trouble.medium(&error.to_string()))?)
    }

    pub(super) fn settle(&self, map: Option<Arc<ZoneMap>>) -> Result<(), ErrorCode> {
        let (Some(map), Some(manager)) = (map, &self.manager) else {
            return Ok(());
        };
        manager.settle(map).map_err(|error| {
            tracing::error!(%error, "a junction cannot be made durable");
            self.failed.store(true, Ordering::Release);
            ErrorCode::Io
        })
    }
}

/// True where the effect sets a key with this tag: a key's fifth byte (zonal_meta::keys).
fn puts(effect: &[KvChange], tag: u8) -> bool {
    effect
        .iter()
        .any(|change| change.value.is_some() && change.key.get(4) == Some(&tag))
}
