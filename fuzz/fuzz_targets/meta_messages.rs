//! Messages of a metadata shard. The first byte chooses the kind; what is accepted has as many bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_types::Codec;
use zonal_wire::{Event, MetaReply, MetaRequest};

fn feed<T: Codec>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        assert_eq!(value.to_bytes().len(), bytes.len());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 3 {
        0 => feed::<MetaRequest>(bytes),
        1 => feed::<MetaReply>(bytes),
        _ => feed::<Event>(bytes),
    }
});
