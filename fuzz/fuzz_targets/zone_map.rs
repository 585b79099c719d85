//! Zone maps, edits, changes and replies of a manager: decoding, checking, looking up and applying
//! never panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::sync::Arc;
use zonal_types::{CellId, Codec, Ino, PartitionId, StripeSetId, TargetId};
use zonal_wire::ManagerReply;
use zonal_zonemap::junctions::{self, JUNCTION_KEY, JunctionListing};
use zonal_zonemap::{Assembly, Fetch, MapChange, MapEdit, ZoneMap, map_records};

fuzz_target!(|data: &[u8]| {
    let edits = Vec::<MapEdit>::from_bytes(data);
    if let Ok(map) = ZoneMap::from_bytes(data) {
        assert_eq!(map.to_bytes(), data);
        let _ = map.check();
        let _ = (map.target(TargetId(1)), map.set(StripeSetId(1)));
        let _ = (map.shard_of(PartitionId(1)), map.zone_of(Ino(u64::MAX)));
        let _ = map.targets_by_zone();
    }
    let map = ZoneMap::new(CellId::default());
    if let Ok(edits) = edits
        && let Ok(Some(next)) = map.edited(&edits)
    {
        let _ = next.check();
        let change = map.change_to(&next);
        assert_eq!(map.changed(&change), Ok(next));
    }
    if let Ok(change) = MapChange::from_bytes(data)
        && let Ok(next) = map.changed(&change)
    {
        let _ = next.check();
    }
    if let Ok(reply) = ManagerReply::from_bytes(data) {
        let mut fetch = Fetch::newer(Arc::new(map));
        let _ = fetch.take(reply.clone());
        let _ = fetch.take(reply);
    }
    // Decode the input as an entry of a store, too.
    let (key, value) = data.split_at(data.len() / 2);
    let _ = Assembly::default().take(key, value);
    let _ = map_records::describe(key, value);
    let key = [&JUNCTION_KEY[..], key].concat();
    let _ = junctions::describe(&key, value);
    let store = BTreeMap::from([(key, value.to_vec())]);
    let _ = (
        JunctionListing::read(&store),
        junctions::page(&store, None, 9),
    );
});
