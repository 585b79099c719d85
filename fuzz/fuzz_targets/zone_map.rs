//! Zone maps and edits: decoding, checking and looking up never panic.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_types::{Codec, Ino, PartitionId, StripeSetId, TargetId};
use zonal_zonemap::{MapEdit, ZoneMap};

fuzz_target!(|data: &[u8]| {
    let edits = Vec::<MapEdit>::from_bytes(data);
    if let Ok(map) = ZoneMap::from_bytes(data) {
        assert_eq!(map.to_bytes(), data);
        let _ = map.check();
        let _ = (map.target(TargetId(1)), map.set(StripeSetId(1)));
        let _ = (map.shard_of(PartitionId(1)), map.zone_of(Ino(u64::MAX)));
        let _ = map.targets_by_zone();
    }
    if let Ok(edits) = edits {
        let map = ZoneMap::new(zonal_types::CellId::default());
        if let Ok(Some(next)) = map.edited(&edits) {
            let _ = next.check();
        }
    }
});
