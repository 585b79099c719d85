//! Frame headers: an accepted header encodes to the same bytes. The checksum is corrected first, so
//! that the fuzzer reaches the fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_wire::frame::{HEADER_BYTES, Header, crc32c};

fuzz_target!(|data: &[u8]| {
    let Some(data) = data.first_chunk::<HEADER_BYTES>() else {
        return;
    };
    let mut bytes = *data;
    let _ = Header::decode(&bytes);
    let crc = crc32c(&bytes[..HEADER_BYTES - 4]);
    bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    if let Ok(header) = Header::decode(&bytes) {
        assert!(header.payload_crc.is_none() || header.encode() == bytes);
        let _ = header.reply().encode();
    }
});
