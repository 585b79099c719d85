//! The manager's records of the cell's stores: the zone map, the owner of each store, and its last
//! start.

use crate::cell::StoreSpec;
use zonal_disk::start_marks::StoredMark;
use zonal_disk::{ReadStore, StoreKind};
use zonal_fsck::FindingPlace;
use zonal_types::{Codec, KvRead, ShardId};
use zonal_zonemap::ZoneMap;

/// Reads the zone map of a manager's store.
pub(crate) fn read_map(store: &ReadStore) -> Result<ZoneMap, String> {
    let map = ZoneMap::load(store).map_err(|code| code.to_string())?;
    let map = map.ok_or("it is not there")?;
    match map.check().first() {
        Some(broken) => Err(broken.clone()),
        None => Ok(map),
    }
}

/// Key prefix of the manager's records of stores; kind and number follow. The value: uuid, number
/// and tag of the last start.
const STORES_KEY: [u8; 5] = [0xff, 0xff, 0xff, 0xff, 0xf1];

/// A store as the manager saw it at the store's last start.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KnownStore {
    pub uuid: [u8; 16],
    pub mark: StoredMark,
}

pub(super) fn known_store(manager: &ReadStore, spec: &StoreSpec) -> Option<KnownStore> {
    let kind = match spec.identity.kind {
        StoreKind::Shard => 1,
        StoreKind::Target => 2,
        StoreKind::Manager => return None,
    };
    let mut key = STORES_KEY.to_vec();
    key.push(kind);
    key.extend_from_slice(&spec.identity.id.to_be_bytes());
    let value = manager.get(&key).ok().flatten()?;
    let (uuid, (number, tag)) = <([u8; 16], (u64, u64))>::from_bytes(&value).ok()?;
    let mark = StoredMark { number, tag };
    Some(KnownStore { uuid, mark })
}

/// The shard that a store belongs to.
pub(crate) fn shard_of(spec: &StoreSpec, map: &ZoneMap) -> Option<ShardId> {
    let is_root = spec.identity.kind == StoreKind::Manager;
    let mut shards = map.shards.iter();
    shards
        .find(|shard| shard.node == spec.node && (shard.id == ShardId(0)) == is_root)
        .map(|shard| shard.id)
}

pub(super) fn place_of(spec: &StoreSpec, map: Option<&ZoneMap>) -> FindingPlace {
    match (spec.identity.kind, spec.geometry) {
        (_, Some(geometry)) => FindingPlace::Target(geometry.target),
        (StoreKind::Manager, _) => FindingPlace::Manager,
        _ => {
            let shard = map.and_then(|map| shard_of(spec, map));
            FindingPlace::Shard(shard.unwrap_or(ShardId(spec.node.0)))
        }
    }
}
