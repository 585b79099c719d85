//! Hostile bytes never make a decoder of a store's files panic, and accepted bytes are encoded back
//! unchanged. Runs over the committed corpus (`testdata/corpus.hex`): unchanged, its prefixes, with
//! flipped bits, and bytes from a seed. Checksums are tried both unchanged and corrected.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeSet;
use zonal_disk::identity::Stored;
use zonal_disk::log::RecordHeader;
use zonal_disk::start_marks::Starts;
use zonal_disk::stream::StreamReader;
use zonal_disk::{power_loss, record};
use zonal_testkit::{Rng, from_hex, mangled};

/// Decodes and encodes again. `None`: the bytes are refused, or have more than one encoding.
type Decode = fn(&[u8]) -> Option<Vec<u8>>;

struct Kind {
    name: &'static str,
    /// Position of the checksum of all bytes before it: from the start, or from the end where it is
    /// negative.
    sum_at: Option<isize>,
    decode: Decode,
}

const KINDS: [Kind; 6] = [
    Kind {
        name: "header",
        sum_at: Some(-4),
        // Unknown flags, zero fields and trailing bytes are not kept.
        decode: |bytes| {
            let header = RecordHeader::decode(bytes)?;
            assert_eq!(RecordHeader::decode(&header.encode()), Some(header));
            Some(bytes.to_vec())
        },
    },
    Kind {
        name: "record",
        sum_at: None,
        decode: |bytes| {
            let found = record::decode(bytes)?;
            let mut out = Vec::new();
            record::encode(&mut out, &found.changes, &found.note).unwrap();
            Some(out)
        },
    },
    Kind {
        name: "identity",
        sum_at: Some(-4),
        decode: |bytes| Stored::decode(bytes).ok().map(|_| bytes.to_vec()),
    },
    Kind {
        name: "power",
        sum_at: Some(-4),
        decode: |bytes| {
            let note = power_loss::PowerNote::decode(bytes)?;
            assert_eq!(power_loss::PowerNote::decode(&note.encode()), Some(note));
            Some(bytes.to_vec())
        },
    },
    Kind {
        name: "starts",
        sum_at: Some(-4),
        decode: |bytes| Starts::decode(bytes).map(|starts| starts.encode()),
    },
    Kind {
        name: "stream",
        sum_at: Some(60),
        decode: |bytes| {
            let mut reader = StreamReader::new(bytes).ok()?;
            while let Ok(Some(frame)) = reader.next_frame() {
                assert!(frame.payload.len() < bytes.len());
            }
            Some(bytes.to_vec())
        },
    },
];

fn corpus(kind: &Kind) -> Vec<Vec<u8>> {
    let text = include_str!("../testdata/corpus.hex");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let of_kind = lines.filter_map(|line| line.strip_prefix(kind.name)?.strip_prefix(' '));
    of_kind.map(from_hex).collect()
}

fn feed(kind: &Kind, bytes: &[u8]) -> bool {
    let Some(back) = (kind.decode)(bytes) else {
        return false;
    };
    assert_eq!(back, bytes, "{}", kind.name);
    true
}

/// Decodes the bytes unchanged, and with their checksum corrected; returns whether the latter were
/// accepted.
fn feed_both(kind: &Kind, bytes: &[u8]) -> bool {
    let is_good = feed(kind, bytes);
    let Some(at) = kind.sum_at else {
        return is_good;
    };
    let at = match usize::try_from(at) {
        Ok(at) => at,
        Err(_) => bytes.len().saturating_sub(at.unsigned_abs()),
    };
    let mut sealed = bytes.to_vec();
    let sum = crc_fast::crc32_iscsi(&sealed[..at.min(bytes.len())]).to_le_bytes();
    if let Some(place) = sealed.get_mut(at..at + 4) {
        place.copy_from_slice(&sum);
    }
    feed(kind, &sealed)
}

#[test]
fn the_corpus_has_every_kind_and_its_first_of_each_is_accepted() {
    let text = include_str!("../testdata/corpus.hex");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let named: BTreeSet<&str> = lines.filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(named, KINDS.iter().map(|kind| kind.name).collect());
    for kind in &KINDS {
        assert!(feed(kind, &corpus(kind)[0]), "{}", kind.name);
    }
}

#[test]
fn prefixes_and_flipped_bits_never_panic() {
    for kind in &KINDS {
        for (number, bytes) in corpus(kind).into_iter().enumerate() {
            feed_both(kind, &bytes);
            for end in 0..bytes.len() {
                feed_both(kind, &bytes[..end]);
            }
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                feed_both(kind, &bad);
                // A flipped bit is found wherever a checksum covers all bytes.
                let is_covered = kind.sum_at == Some(-4) && number == 0;
                assert!(!is_covered || !feed(kind, &bad), "{} bit {bit}", kind.name);
            }
        }
    }
}

#[test]
fn spliced_and_random_bytes_never_panic() {
    let mut random = Rng(5);
    let mut accepted = 0;
    for kind in &KINDS {
        let seeds = corpus(kind);
        for _ in 0..10_000 {
            let bytes = if random.chance(25) {
                let count = random.index(100);
                random.bytes(count)
            } else {
                mangled(&seeds, &mut random)
            };
            accepted += u32::from(feed_both(kind, &bytes));
        }
    }
    // Past the checksums, so that fields are checked.
    assert!(accepted > 1_000, "{accepted} were accepted");
}
