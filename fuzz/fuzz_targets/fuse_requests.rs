//! Requests of the kernel, in each supported version of the protocol. The first byte selects the
//! version, the second the operation; the length is corrected first.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_fuse::abi;
use zonal_fuse::request::{FuseRequest, Protocol, RequestHeader};

fuzz_target!(|data: &[u8]| {
    let [version, operation, rest @ ..] = data else {
        return;
    };
    let protocol = Protocol {
        minor: abi::MINOR_MIN + u32::from(*version) % (abi::MINOR - abi::MINOR_MIN + 1),
        flags: if version & 0x80 == 0 { u64::MAX } else { 0 },
    };
    for is_right in [false, true] {
        let mut bytes = rest.to_vec();
        if is_right && bytes.len() >= abi::IN_HEADER {
            let length = bytes.len() as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
            bytes[4..8].copy_from_slice(&u32::from(*operation).to_le_bytes());
        }
        if let Ok(header) = RequestHeader::decode(&bytes) {
            let _ = FuseRequest::decode(header, &bytes, &protocol)
                .map(|request| format!("{request:?}"));
        }
    }
});
