//! Hostile bytes never make a decoder panic, and it encodes accepted bytes again as they came. Runs
//! over the committed corpus (`testdata/*.hex`), its prefixes, its flipped bits, and bytes from a
//! seed.
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod samples;

use samples::{Kind, corpus, headers, kinds};
use zonal_testkit::{Rng, mangled};
use zonal_wire::{HEADER_BYTES, Header, frame};

/// Accepted bytes have one form only, except that unknown error numbers become `Io`.
fn feed(kind: &Kind, bytes: &[u8]) -> bool {
    let Some(back) = (kind.roundtrip)(bytes) else {
        return false;
    };
    assert_eq!(back.len(), bytes.len(), "{}: {bytes:02x?}", kind.name);
    let is_failure = bytes.first() == Some(&0);
    assert!(is_failure || back == bytes, "{}: {bytes:02x?}", kind.name);
    true
}

fn seeds(kind: &Kind) -> Vec<Vec<u8>> {
    let kept = corpus(&format!("{}.hex", kind.name));
    assert!(!kept.is_empty(), "no corpus for {}", kind.name);
    let found = corpus("hostile.hex").into_iter();
    let found = found.filter(|(name, _)| *name == kind.name);
    kept.into_iter()
        .chain(found)
        .map(|(_, bytes)| bytes)
        .collect()
}

#[test]
fn every_prefix_of_every_message_is_refused() {
    for kind in kinds() {
        for (name, _, bytes) in &kind.samples {
            for end in 0..bytes.len() {
                assert!(!feed(&kind, &bytes[..end]), "{name} cut at {end}");
            }
            let longer = [bytes.as_slice(), &[0]].concat();
            assert!(!feed(&kind, &longer), "{name} with a byte too many");
        }
    }
}

#[test]
fn flipped_bits_never_panic() {
    for kind in kinds() {
        for bytes in seeds(&kind) {
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                feed(&kind, &bad);
            }
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut random = Rng(3);
    for kind in kinds() {
        for _ in 0..20_000 {
            let count = random.index(200);
            let mut bytes = random.bytes(count);
            // Half of them with a known tag and small counts, so that they get past the first
            // fields.
            if random.below(2) == 0 && !bytes.is_empty() {
                bytes[0] = kind.samples[random.index(kind.samples.len())].1;
                for byte in bytes.iter_mut().skip(1) {
                    if random.below(4) > 0 {
                        *byte = random.below(3) as u8;
                    }
                }
            }
            feed(&kind, &bytes);
        }
    }
}

#[test]
fn spliced_and_overwritten_messages_never_panic() {
    let mut random = Rng(4);
    for kind in kinds() {
        let seeds = seeds(&kind);
        for _ in 0..20_000 {
            let bytes = mangled(&seeds, &mut random);
            feed(&kind, &bytes);
        }
    }
}

#[test]
fn headers_with_a_right_checksum_and_wrong_fields_are_refused_or_exact() {
    let mut random = Rng(5);
    for round in 0..50_000 {
        let (_, header) = &headers()[round % headers().len()];
        let mut bytes = header.encode();
        for _ in 0..=random.below(4) {
            let at = random.index(HEADER_BYTES - 4);
            bytes[at] = random.byte();
        }
        let crc = frame::crc32c(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
        if let Ok(header) = Header::decode(&bytes) {
            let back = header.encode();
            // Without its flag, the payload's checksum means nothing and is dropped.
            assert!(
                back == bytes || header.payload_crc.is_none(),
                "{bytes:02x?}"
            );
        }
    }
}

#[test]
fn random_headers_are_refused() {
    let mut random = Rng(6);
    for _ in 0..20_000 {
        let mut bytes: [u8; HEADER_BYTES] = random.bytes(HEADER_BYTES).try_into().unwrap();
        if random.below(2) == 0 {
            bytes[..4].copy_from_slice(&frame::MAGIC);
        }
        assert!(Header::decode(&bytes).is_err());
    }
}
