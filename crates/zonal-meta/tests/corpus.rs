//! Hostile entries of a shard's store never make a decoder panic, and what it accepts it writes
//! back as it came. Runs over the committed corpus (`testdata/corpus.hex`): as it is, its prefixes,
//! its flipped bits, its parts mixed, and bytes from a seed.
#![allow(clippy::unwrap_used, reason = "a test may fail so")]

use zonal_meta::check::{Broken, Fact, Scan};
use zonal_meta::dentry::Dentry;
use zonal_meta::inode::Inode;
use zonal_meta::{ShardConfig, describe, keys};
use zonal_testkit::{Rng, from_hex};
use zonal_types::Codec;

type Entry = (Vec<u8>, Vec<u8>);

/// The right entries, and the hostile ones.
fn corpus() -> (Vec<Entry>, Vec<Entry>) {
    let text = include_str!("../testdata/corpus.hex");
    let entries = |lines: &mut dyn Iterator<Item = &str>| {
        let of = |line: &str| {
            let (key, value) = line.split_once(' ').unwrap();
            (from_hex(key), from_hex(value))
        };
        lines.map(of).collect::<Vec<Entry>>()
    };
    let mut lines = text.lines().skip(1);
    let good = entries(&mut lines.by_ref().take_while(|line| !line.starts_with('#')));
    (good, entries(&mut lines))
}

/// Feeds an entry to the decoders of the shard, `zonal dump` and `zonal fsck`; returns whether it
/// can be described.
fn feed((key, value): &Entry) -> bool {
    let (mut emit, mut wrong) = (|_: Fact| (), |_: Broken| ());
    let mut scan = Scan::new(ShardConfig::HASH_BITS, &mut emit, &mut wrong);
    scan.take(key, value);
    scan.finish();
    if let Ok(inode) = Inode::from_bytes(value) {
        assert_eq!(&inode.to_bytes(), value);
        let _ = inode.allocated_bytes();
        let _ = Inode::decode(inode.ino, value);
    }
    if let Ok(dentry) = Dentry::decode(value) {
        assert_eq!(&dentry.to_bytes(), value);
    }
    describe::entry(key, value).is_ok()
}

#[test]
fn right_entries_are_of_every_kind_and_accepted() {
    let (good, bad) = corpus();
    for entry in &good {
        assert!(feed(entry), "{entry:02x?}");
    }
    let tags: Vec<u8> = good.iter().map(|(key, _)| key[4]).collect();
    for tag in [
        keys::TAG_FORMAT,
        keys::TAG_IDS,
        keys::TAG_DATA_IDS,
        keys::TAG_INODE_COUNT,
        keys::TAG_DATA,
        keys::TAG_INODE,
        keys::TAG_INLINE,
        keys::TAG_SESSION,
        keys::TAG_SLOT,
        0x20,
        0x30,
        0x40,
        0x50,
    ] {
        assert!(tags.contains(&tag), "no entry of kind {tag:#x}");
    }
    assert!(bad.len() > 20);
}

#[test]
fn prefixes_and_flipped_bits_never_panic() {
    let (good, bad) = corpus();
    for (key, value) in good.into_iter().chain(bad) {
        for end in 0..=value.len() {
            feed(&(key.clone(), value[..end].to_vec()));
        }
        for end in 0..key.len() {
            feed(&(key[..end].to_vec(), value.clone()));
        }
        for bit in 0..value.len() * 8 {
            let mut value = value.clone();
            value[bit / 8] ^= 1 << (bit % 8);
            feed(&(key.clone(), value));
        }
        for bit in 0..key.len() * 8 {
            let mut key = key.clone();
            key[bit / 8] ^= 1 << (bit % 8);
            feed(&(key, value.clone()));
        }
    }
}

#[test]
fn mixed_and_random_bytes_never_panic() {
    let mut random = Rng(7);
    let (mut entries, bad) = corpus();
    entries.extend(bad);
    for _ in 0..30_000 {
        let (key, mut value) = entries[random.index(entries.len())].clone();
        let other = &entries[random.index(entries.len())].1;
        match random.below(4) {
            0 => {
                value.truncate(random.index(value.len() + 1));
                value.extend_from_slice(&other[random.index(other.len() + 1)..]);
            }
            1 => {
                let at = random.index(value.len().max(1));
                let count = random.index(9).min(value.len() - at.min(value.len()));
                let fill = [0, 1, 0x7f, 0x80, 0xff][random.index(5)];
                value[at..at + count].fill(fill);
            }
            2 => value.clone_from(other),
            _ => {
                let count = random.index(200);
                value = random.bytes(count);
            }
        }
        feed(&(key, value));
    }
}
