//! The small files of a store, `power` and `starts`, and streams. Checksums are corrected first, so
//! that the fuzzer reaches the fields.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_disk::power_loss::PowerNote;
use zonal_disk::start_marks::Starts;
use zonal_disk::stream::StreamReader;
use zonal_wire::frame::crc32c;

fn sealed(data: &[u8]) -> Vec<u8> {
    [data, &crc32c(data).to_le_bytes()].concat()
}

fuzz_target!(|data: &[u8]| {
    for bytes in [data.to_vec(), sealed(data)] {
        if let Some(note) = PowerNote::decode(&bytes) {
            assert_eq!(PowerNote::decode(&note.encode()), Some(note));
        }
        if let Some(starts) = Starts::decode(&bytes) {
            assert_eq!(starts.encode(), bytes);
        }
    }
    stream(data);
    if let Some((header, frames)) = data.split_at_checked(60) {
        stream(&[sealed(header).as_slice(), frames].concat());
    }
});

fn stream(bytes: &[u8]) {
    if let Ok(mut reader) = StreamReader::new(bytes) {
        while let Ok(Some(frame)) = reader.next_frame() {
            assert!(frame.payload.len() < bytes.len());
        }
    }
}
