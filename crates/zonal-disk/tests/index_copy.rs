//! The copy of an index: whatever happens to the index, copy and log restore exactly its contents.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::identity;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use zonal_disk::repair::{can_restore_index, drop_copy, restore_index};
use zonal_disk::{DiskError, Engine, EngineConfig, LogRoom, ReadStore, StoreDamage};
use zonal_testkit::{Rng, Scratch};
use zonal_types::{KvChange, KvRead};

const CONFIG: EngineConfig = EngineConfig {
    log_bytes: 2 << 20,
    overlay_bytes: 1 << 20,
    cache_bytes: 1 << 20,
    room_wait: std::time::Duration::from_secs(1),
};
const COPIES: [&str; 2] = ["copy.0", "copy.1"];
const INDEX: [&str; 2] = ["index.redb", "index.sums"];

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(dir: &Path) -> Engine {
    Engine::open(dir, &identity(), CONFIG, &mut |_, _, _| true).unwrap()
}

fn restore(dir: &Path) -> bool {
    let could = can_restore_index(dir, &identity(), None, &CONFIG).unwrap();
    let done = restore_index(dir, &identity(), None, &CONFIG).unwrap();
    assert_eq!(could, done, "what was foretold");
    done
}

fn contents(engine: &Engine) -> Map {
    let mut map = Map::new();
    let all = engine.scan(&[], &[0xff; 9], &mut |key, value| {
        map.insert(key.to_vec(), value.to_vec());
        true
    });
    all.unwrap();
    map
}

fn damage(dir: &Path) -> Vec<StoreDamage> {
    let store = ReadStore::open(dir, &identity(), &mut |_, _, _| true).unwrap();
    store.damage().to_vec()
}

/// Random changes of up to 3,000 keys, some 3 MB of them: a dozen slices a cycle.
fn change(engine: &Engine, map: &mut Map, rng: &mut Rng, records: u64) {
    for _ in 0..records {
        let mut changes = Vec::new();
        for _ in 0..30 {
            let key = format!("{:06}", rng.below(3000)).into_bytes();
            if rng.chance(20) {
                map.remove(&key);
                changes.push(KvChange::remove(key));
            } else {
                let length = usize::try_from(rng.below(2000)).unwrap();
                let value = rng.bytes(length);
                map.insert(key.clone(), value.clone());
                changes.push(KvChange::put(key, value));
            }
        }
        engine
            .append_with(changes, b"note", LogRoom::Normal)
            .unwrap();
    }
}

fn checkpoint(engine: &Engine) {
    engine.checkpoint(&mut || Ok(())).unwrap();
}

fn save(dir: &Path, names: &[&str], to: &Path) {
    fs::create_dir_all(to).unwrap();
    for name in names {
        let _ = fs::remove_file(to.join(name));
        if dir.join(name).exists() {
            fs::copy(dir.join(name), to.join(name)).unwrap();
        }
    }
}

fn bytes_of(dir: &Path, names: &[&str]) -> u64 {
    names
        .iter()
        .map(|name| fs::metadata(dir.join(name)).map_or(0, |found| found.len()))
        .sum()
}

/// The ways in which an index is lost.
fn lose(dir: &Path, rng: &mut Rng) {
    let path = dir.join(INDEX[0]);
    let bytes = fs::read(&path).unwrap();
    match rng.below(4) {
        0 => fs::remove_file(path).unwrap(),
        1 => fs::write(path, b"").unwrap(),
        2 => fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
        _ => fs::write(path, rng.bytes(bytes.len())).unwrap(),
    }
    if rng.chance(50) {
        fs::remove_file(dir.join(INDEX[1])).unwrap();
    }
}

#[test]
fn a_lost_index_is_restored_exactly_whenever_it_is_lost() {
    let scratch = Scratch::new("index-copy");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(11));
    let mut largest = 0;
    for round in 0..60 {
        let engine = open(&dir);
        assert_eq!(contents(&engine), map, "round {round}");
        for _ in 0..rng.below(4) {
            let records = 1 + rng.below(14);
            change(&engine, &mut map, &mut rng, records);
            checkpoint(&engine);
            let live: usize = map.iter().map(|(key, value)| key.len() + value.len()).sum();
            let copies = bytes_of(&dir, &COPIES);
            // Four times the entries, and the part of a cycle that began when there were fewer.
            assert!(copies < 5 * live as u64 + (2 << 20), "{copies} for {live}");
            largest = largest.max(copies);
        }
        let records = rng.below(6);
        change(&engine, &mut map, &mut rng, records);
        // Killed: only the log has the records behind the last checkpoint.
        drop(engine);
        assert_eq!(damage(&dir), [], "round {round}");
        if round % 2 == 1 {
            lose(&dir, &mut rng);
            let names_it = |found: &StoreDamage| {
                matches!(found, StoreDamage::IndexLost(_) | StoreDamage::IndexShut(_))
            };
            assert!(damage(&dir).iter().any(names_it), "round {round}");
            assert!(restore(&dir), "round {round}");
            assert_eq!(damage(&dir), [], "round {round}");
        }
    }
    assert!(largest > 6 << 20, "only {largest}: hardly a cycle");
}

#[test]
fn an_index_without_a_checkpoint_is_restored_from_the_log() {
    let scratch = Scratch::new("index-copy-new");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(17));
    for round in 0..4 {
        let engine = open(&dir);
        assert_eq!(contents(&engine), map, "round {round}");
        change(&engine, &mut map, &mut rng, 2);
        drop(engine);
        lose(&dir, &mut rng);
        assert!(restore(&dir), "round {round}");
    }
    assert_eq!(contents(&open(&dir)), map);
}

#[test]
fn a_copy_record_without_its_commit_is_overwritten() {
    let scratch = Scratch::new("index-copy-cut");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(12));
    for round in 0..40 {
        let engine = open(&dir);
        assert_eq!(contents(&engine), map, "round {round}");
        let records = 1 + rng.below(12);
        change(&engine, &mut map, &mut rng, records);
        engine.sync_all().unwrap();
        save(&dir, &INDEX, &scratch.join("before"));
        checkpoint(&engine);
        drop(engine);
        if rng.chance(50) {
            // Killed between the record and the commit of the index.
            save(&scratch.join("before"), &INDEX, &dir);
        }
        if rng.chance(30) {
            lose(&dir, &mut rng);
            assert!(restore(&dir), "round {round}");
        }
        assert_eq!(damage(&dir), [], "round {round}");
    }
}

#[test]
fn a_torn_copy_record_without_its_commit_is_left_out() {
    let scratch = Scratch::new("index-copy-torn");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(18));
    let mut torn = 0;
    for round in 0..30 {
        let engine = open(&dir);
        assert_eq!(contents(&engine), map, "round {round}");
        checkpoint(&engine);
        let records = 1 + rng.below(12);
        change(&engine, &mut map, &mut rng, records);
        engine.sync_all().unwrap();
        let before = scratch.join("before");
        save(&dir, &[COPIES, INDEX].concat(), &before);
        checkpoint(&engine);
        drop(engine);
        // Power loss after the header had reached the medium, before the rest did, and before the
        // commit of the index.
        save(&before, &INDEX, &dir);
        let written = |name: &&&str| {
            let old = fs::read(before.join(name)).unwrap_or_default();
            fs::read(dir.join(name)).unwrap_or_default() != old
        };
        let name = COPIES.iter().find(written).unwrap();
        let old = fs::metadata(before.join(name)).map_or(0, |found| found.len());
        let mut bytes = fs::read(dir.join(name)).unwrap();
        let start = if bytes.len() as u64 > old {
            usize::try_from(old).unwrap()
        } else {
            0
        };
        let body = start + 80..bytes.len();
        let at = body.start + rng.index(body.len());
        bytes[at] ^= 0x40;
        fs::write(dir.join(name), bytes).unwrap();
        let is_damaged = matches!(damage(&dir)[..], [StoreDamage::Copy(_)]);
        lose(&dir, &mut rng);
        // A new cycle was begun over the only complete one: nothing is left.
        if restore(&dir) {
            torn += 1;
        } else {
            assert!(is_damaged || round == 0, "round {round}");
            save(&before, &INDEX, &dir);
        }
    }
    assert!(torn > 25, "{torn}");
}

#[test]
fn an_unreadable_copy_does_not_keep_the_store_from_opening() {
    let scratch = Scratch::new("index-copy-eio");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(19));
    let engine = open(&dir);
    for _ in 0..24 {
        change(&engine, &mut map, &mut rng, 12);
        checkpoint(&engine);
    }
    drop(engine);
    for name in COPIES {
        fs::remove_file(dir.join(name)).unwrap();
        // Reading it fails.
        fs::create_dir(dir.join(name)).unwrap();
        assert_eq!(contents(&open(&dir)), map);
        assert!(matches!(damage(&dir)[..], [StoreDamage::Copy(_)]));
    }
    lose(&dir, &mut rng);
    assert!(!restore(&dir));
}

#[test]
fn a_copy_of_another_time_is_not_used() {
    let scratch = Scratch::new("index-copy-stale");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(13));
    let engine = open(&dir);
    change(&engine, &mut map, &mut rng, 10);
    checkpoint(&engine);
    drop(engine);
    save(&dir, &COPIES, &scratch.join("old"));
    let engine = open(&dir);
    // Several laps of the log.
    for _ in 0..20 {
        change(&engine, &mut map, &mut rng, 10);
        checkpoint(&engine);
    }
    change(&engine, &mut map, &mut rng, 2);
    drop(engine);
    save(&scratch.join("old"), &COPIES, &dir);
    save(&dir, &INDEX, &scratch.join("sound"));
    // The index says which record the copy should end with.
    assert!(matches!(damage(&dir)[..], [StoreDamage::Copy(_)]));
    assert!(!restore(&dir));
    // Without the index, the log does.
    fs::remove_file(dir.join(INDEX[0])).unwrap();
    assert!(!restore(&dir));
    save(&scratch.join("sound"), &INDEX, &dir);
    // A new one begins by itself.
    let engine = open(&dir);
    for _ in 0..20 {
        change(&engine, &mut map, &mut rng, 10);
        checkpoint(&engine);
    }
    drop(engine);
    lose(&dir, &mut rng);
    assert!(restore(&dir));
    assert_eq!(contents(&open(&dir)), map);
}

#[test]
fn the_index_of_another_store_is_not_used() {
    let scratch = Scratch::new("index-of-another");
    let (dir, other) = (scratch.join("store"), scratch.join("other"));
    let mut maps = [Map::new(), Map::new()];
    for (seed, (dir, map)) in (13..).zip([&dir, &other].into_iter().zip(&mut maps)) {
        Engine::format(dir, identity(), &CONFIG).unwrap();
        let engine = open(dir);
        change(&engine, map, &mut Rng(seed), 10);
        checkpoint(&engine);
    }
    save(&other, &INDEX, &dir);
    let opened = Engine::open(&dir, &identity(), CONFIG, &mut |_, _, _| true);
    assert!(matches!(opened, Err(DiskError::Corrupt(_))));
    assert!(matches!(damage(&dir)[..], [StoreDamage::IndexLost(_)]));
    assert!(restore(&dir));
    assert_eq!(contents(&open(&dir)), maps[0]);
}

#[test]
fn a_flipped_bit_in_the_copy_makes_no_other_index() {
    let scratch = Scratch::new("index-copy-flip");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(14));
    let engine = open(&dir);
    for _ in 0..24 {
        change(&engine, &mut map, &mut rng, 12);
        checkpoint(&engine);
    }
    drop(engine);
    let kept = scratch.join("kept");
    save(&dir, &[COPIES, INDEX].concat(), &kept);
    fs::copy(dir.join("log"), kept.join("log")).unwrap();
    let (mut refused, mut whole) = (0, 0);
    for turn in 0..60 {
        save(&kept, &[&COPIES[..], &INDEX, &["log"]].concat(), &dir);
        let path = dir.join(COPIES[usize::from(rng.chance(50))]);
        let mut bytes = fs::read(&path).unwrap();
        let at = if turn % 4 == 0 {
            usize::try_from(rng.below(80)).unwrap()
        } else {
            rng.index(bytes.len())
        };
        bytes[at] ^= 1 << rng.below(8);
        fs::write(&path, bytes).unwrap();
        fs::remove_file(dir.join(INDEX[0])).unwrap();
        if restore(&dir) {
            // In parts that are not needed: slices of the newer file.
            whole += 1;
            assert_eq!(contents(&open(&dir)), map, "turn {turn}");
        } else {
            refused += 1;
        }
    }
    assert!(refused > 20, "{refused} refused, {whole} whole");
}

#[test]
fn a_store_without_a_copy_begins_one() {
    let scratch = Scratch::new("index-copy-none");
    let dir = scratch.join("store");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(15));
    let engine = open(&dir);
    for _ in 0..10 {
        change(&engine, &mut map, &mut rng, 12);
        checkpoint(&engine);
    }
    drop(engine);
    drop_copy(&dir).unwrap();
    assert_eq!(damage(&dir), []);
    save(&dir, &INDEX, &scratch.join("sound"));
    lose(&dir, &mut rng);
    assert!(!restore(&dir), "from nothing");
    save(&scratch.join("sound"), &INDEX, &dir);
    let engine = open(&dir);
    for _ in 0..30 {
        change(&engine, &mut map, &mut rng, 4);
        checkpoint(&engine);
    }
    drop(engine);
    lose(&dir, &mut rng);
    assert!(restore(&dir));
    assert_eq!(contents(&open(&dir)), map);
}

#[test]
fn the_store_of_a_damaged_identity_is_known_by_its_number() {
    let scratch = Scratch::new("index-copy-identity");
    let dir = scratch.join("store");
    let stored = Engine::format(&dir, identity(), &CONFIG).unwrap();
    let (mut map, mut rng) = (Map::new(), Rng(16));
    let engine = open(&dir);
    change(&engine, &mut map, &mut rng, 12);
    checkpoint(&engine);
    drop(engine);
    let bytes = fs::read(dir.join("identity")).unwrap();
    fs::remove_file(dir.join("identity")).unwrap();
    fs::remove_file(dir.join(INDEX[0])).unwrap();
    assert!(!restore(&dir));
    assert!(restore_index(&dir, &identity(), Some(stored.uuid), &CONFIG).unwrap());
    fs::write(dir.join("identity"), bytes).unwrap();
    assert_eq!(contents(&open(&dir)), map);
}
