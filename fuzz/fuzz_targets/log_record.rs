//! Log headers, log records, and a store's identity file, as they are on disk.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_disk::{identity::Stored, log::RecordHeader, record};

fuzz_target!(|data: &[u8]| {
    let _ = RecordHeader::decode(data);
    let _ = Stored::decode(data);
    if let Some(found) = record::decode(data) {
        let mut bytes = Vec::new();
        if record::encode(&mut bytes, &found.changes, &found.note).is_ok() {
            assert_eq!(bytes, data);
        }
    }
});
