//! Streams survive a round trip; every flipped byte, every truncation and every moved frame is
//! detected.
#![allow(clippy::unwrap_used, reason = "tests")]

use zonal_disk::DiskError;
use zonal_disk::stream::{Frame, StreamHeader, StreamKind, StreamReader, StreamWriter};

const HEADER: StreamHeader = StreamHeader {
    kind: StreamKind::Objects,
    cell: [7; 16],
    target: Some(0x0102_0304),
    made: 1_800_000_000,
};

fn frames() -> Vec<(u8, Vec<u8>)> {
    vec![
        (1, b"first".to_vec()),
        (2, Vec::new()),
        (1, vec![9; 300]),
        (1, b"first".to_vec()),
    ]
}

fn written() -> Vec<u8> {
    let mut writer = StreamWriter::new(Vec::new(), &HEADER).unwrap();
    for (kind, payload) in frames() {
        writer.frame(kind, &payload).unwrap();
    }
    writer.finish().unwrap()
}

fn read(bytes: &[u8]) -> Result<Vec<Frame>, DiskError> {
    let mut reader = StreamReader::new(bytes)?;
    assert_eq!(reader.header(), &HEADER);
    let mut found = Vec::new();
    while let Some(frame) = reader.next_frame()? {
        found.push(frame);
    }
    assert_eq!(reader.next_frame()?, None);
    Ok(found)
}

#[test]
fn a_stream_is_read_back_complete() {
    let found = read(&written()).unwrap();
    let pairs: Vec<_> = found
        .into_iter()
        .map(|frame| (frame.kind, frame.payload))
        .collect();
    assert_eq!(pairs, frames());
}

#[test]
fn the_target_lies_in_bytes_that_were_zero_before() {
    let bytes = written();
    assert_eq!(bytes[40..44], [4, 3, 2, 1]);
    let none = StreamHeader {
        target: None,
        ..HEADER
    };
    let earlier = StreamWriter::new(Vec::new(), &none).unwrap();
    let earlier = earlier.finish().unwrap();
    assert_eq!(earlier[40..60], [0; 20]);
    let reader = StreamReader::new(earlier.as_slice()).unwrap();
    assert_eq!(reader.header(), &none);
}

#[test]
fn every_flipped_bit_and_every_truncation_is_detected() {
    let bytes = written();
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        let Ok(mut reader) = StreamReader::new(bad.as_slice()) else {
            continue;
        };
        let end = loop {
            match reader.next_frame() {
                Ok(Some(_)) => {}
                end => break end,
            }
        };
        assert!(
            matches!(end, Err(DiskError::Corrupt(_))),
            "bit {bit}: {end:?}"
        );
    }
    for end in 0..bytes.len() {
        assert!(
            matches!(read(&bytes[..end]), Err(DiskError::Corrupt(_))),
            "cut at {end}"
        );
    }
    assert!(matches!(
        read(&[bytes.as_slice(), &[0]].concat()),
        Err(DiskError::Corrupt(_))
    ));
}

#[test]
fn missing_or_repeated_frames_are_detected() {
    let bytes = written();
    // The first frame is 12 + 5 bytes behind the header of 64, the second 12.
    let (head, rest) = bytes.split_at(64);
    let (first, behind) = rest.split_at(17);
    assert!(read(&[head, behind].concat()).is_err());
    assert!(read(&[head, first, first, behind].concat()).is_err());
    let (second, behind) = behind.split_at(12);
    assert!(read(&[head, second, first, behind].concat()).is_err());
}

#[test]
fn a_newer_stream_is_refused_by_its_version() {
    let mut bytes = written();
    bytes[8] = 2;
    let refused = StreamReader::new(bytes.as_slice()).map(drop);
    assert!(matches!(
        refused,
        Err(DiskError::WrongVersion { found: 2, known: 1 })
    ));
}
