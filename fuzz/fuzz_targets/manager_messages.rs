//! Messages of the manager and of commands. The first byte chooses the kind; what is accepted has as many bytes again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_types::Codec;
use zonal_wire::{AdminReply, AdminRequest, ManagerReply, ManagerRequest};

fn feed<T: Codec>(bytes: &[u8]) {
    if let Ok(value) = T::from_bytes(bytes) {
        assert_eq!(value.to_bytes().len(), bytes.len());
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((kind, bytes)) = data.split_first() else {
        return;
    };
    match kind % 4 {
        0 => feed::<ManagerRequest>(bytes),
        1 => feed::<ManagerReply>(bytes),
        2 => feed::<AdminRequest>(bytes),
        _ => feed::<AdminReply>(bytes),
    }
});
