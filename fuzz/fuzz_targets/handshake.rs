//! The first messages of a connection, from strangers: an accepted message encodes to the same
//! bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_net::handshake::Handshake;
use zonal_types::Codec;

fuzz_target!(|data: &[u8]| {
    if let Ok(message) = Handshake::from_bytes(data) {
        assert_eq!(message.to_bytes(), data);
    }
});
