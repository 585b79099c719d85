//! Hostile entries and notes of a target never make a decoder panic. Runs over the committed
//! corpus (`testdata/corpus.hex`): unchanged, its prefixes, with flipped bits, and bytes from a
//! seed. Checksums of values are tried both unchanged and corrected.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

use zonal_object::chunk::Chunk;
use zonal_object::key::{self, IndexKey};
use zonal_object::{TargetConfig, describe};
use zonal_testkit::{Rng, from_hex, mangled};

const GEOMETRY: TargetConfig = TargetConfig {
    segment_units: 64,
    segments: 4,
    pending_blocks_max: 16,
};

/// An entry, or a note, which has no key.
struct Line {
    key: Option<Vec<u8>>,
    bytes: Vec<u8>,
}

fn corpus() -> Vec<Line> {
    let text = include_str!("../testdata/corpus.hex");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let (key, bytes) = line.split_once(' ').unwrap();
        Line {
            key: (key != "note").then(|| from_hex(key)),
            bytes: from_hex(bytes),
        }
    };
    lines.map(line).collect()
}

/// Whether the decoder accepts it.
fn feed(key: Option<&[u8]>, bytes: &[u8]) -> bool {
    let Some(key) = key else {
        return describe::note(bytes).is_ok();
    };
    if let Ok(IndexKey::Chunk(..)) = key::parse(key)
        && let Ok(chunk) = Chunk::decode(&GEOMETRY, key, bytes)
    {
        let again = Chunk::decode(&GEOMETRY, key, &chunk.encode(key));
        assert_eq!(again, Ok(chunk), "{bytes:02x?}");
    }
    describe::entry(key, bytes).is_ok()
}

/// Decodes it unchanged, and with its checksum corrected; returns whether the latter is accepted.
fn feed_both(key: Option<&[u8]>, bytes: &[u8]) -> bool {
    let is_good = feed(key, bytes);
    let (Some(key), Some(at)) = (key, bytes.len().checked_sub(4)) else {
        return is_good;
    };
    let mut sealed = bytes[..at].to_vec();
    let sum = crc_fast::crc32_iscsi(&[&sealed, key].concat());
    sealed.extend_from_slice(&sum.to_le_bytes());
    feed(Some(key), &sealed)
}

#[test]
fn right_lines_are_accepted_and_others_are_refused() {
    let text = include_str!("../testdata/corpus.hex");
    let good = text
        .lines()
        .skip(1)
        .take_while(|line| !line.starts_with('#'));
    let good = good.count();
    assert!(good >= 7, "{good}");
    for line in &corpus()[..good] {
        assert!(feed(line.key.as_deref(), &line.bytes));
        // A value under another key counts as damaged.
        if let Some(key) = &line.key {
            let other = [key.as_slice(), &[1]].concat();
            assert!(!feed(Some(&other), &line.bytes));
        }
    }
}

#[test]
fn prefixes_and_flipped_bits_never_panic() {
    for line in corpus() {
        let key = line.key.as_deref();
        feed_both(key, &line.bytes);
        for end in 0..line.bytes.len() {
            feed_both(key, &line.bytes[..end]);
        }
        for bit in 0..line.bytes.len() * 8 {
            let mut bad = line.bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            feed_both(key, &bad);
            assert!(key.is_none() || !feed(key, &bad), "bit {bit}");
        }
    }
}

#[test]
fn spliced_and_random_bytes_never_panic() {
    let mut random = Rng(6);
    let (lines, mut accepted) = (corpus(), 0);
    let seeds: Vec<Vec<u8>> = lines.iter().map(|line| line.bytes.clone()).collect();
    for _ in 0..30_000 {
        let line = &lines[random.index(lines.len())];
        let mut key = line.key.clone();
        let mut bytes = line.bytes.clone();
        match (random.below(4), &mut key) {
            (0, _) => {
                let count = random.index(120);
                bytes = random.bytes(count);
            }
            (1, Some(key)) => {
                let at = random.index(key.len());
                key[at] = random.byte();
                key.truncate(random.index(key.len() + 1));
            }
            _ => bytes = mangled(&seeds, &mut random),
        }
        accepted += u32::from(feed_both(key.as_deref(), &bytes));
    }
    assert!(accepted > 1_000, "{accepted} were accepted");
}
