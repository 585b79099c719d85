//! Values and notes of a target's index: accepted bytes decode and encode to the same. The checksum
//! is corrected first, so that the fuzzer reaches the fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_object::chunk::Chunk;
use zonal_object::key::{self, IndexKey};
use zonal_object::{ObjectId, TargetConfig, describe};
use zonal_types::{Column, DataId};
use zonal_wire::frame::crc32c;

const GEOMETRY: TargetConfig = TargetConfig {
    segment_units: 1 << 14,
    segments: 64,
    pending_blocks_max: 16,
};
const OBJECT: ObjectId = ObjectId {
    data_id: DataId(1),
    column: Column(2),
};

fuzz_target!(|data: &[u8]| {
    let _ = describe::note(data);
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    let key = match kind % 7 {
        0 => key::target(),
        1 => key::segment(3),
        2 => key::tombstone(OBJECT),
        3 => key::pending(OBJECT, 4),
        4 => key::header(OBJECT),
        5 => key::chunk(OBJECT, 5),
        _ => body.to_vec(),
    };
    let _ = describe::entry(&key, body);
    let mut value = body.to_vec();
    value.extend_from_slice(&crc32c(&[body, &key].concat()).to_le_bytes());
    let _ = describe::entry(&key, &value);
    if let (Ok(IndexKey::Chunk(..)), Ok(chunk)) =
        (key::parse(&key), Chunk::decode(&GEOMETRY, &key, &value))
    {
        let again = Chunk::decode(&GEOMETRY, &key, &chunk.encode(&key));
        assert_eq!(again, Ok(chunk));
    }
});
