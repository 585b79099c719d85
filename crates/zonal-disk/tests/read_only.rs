//! A store opened for inspection: reads return what was written, nothing changes on disk, damage is
//! reported.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{identity, put_record};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use zonal_disk::{
    DiskError, Engine, EngineConfig, IndexItem, LogRoom, ReadStore, StoreDamage, StoreIdentity,
};
use zonal_testkit::{Rng, Scratch};
use zonal_types::{KvChange, KvRead};

const CONFIG: EngineConfig = EngineConfig {
    log_bytes: 1 << 20,
    overlay_bytes: 1 << 20,
    cache_bytes: 1 << 20,
    room_wait: std::time::Duration::from_secs(1),
};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store with records in the index and some only in the log; killed, not closed, where `kill`.
fn fill(dir: &Path, seed: u64) -> Map {
    Engine::format(dir, identity(), &CONFIG).unwrap();
    let engine = Engine::open(dir, &identity(), CONFIG, &mut |_, _, _| true).unwrap();
    let mut rng = Rng(seed);
    let mut map = Map::new();
    for round in 0..40 {
        let mut changes = Vec::new();
        for _ in 0..60 {
            let key = format!("{:06}", rng.below(6000)).into_bytes();
            if rng.below(5) == 0 {
                map.remove(&key);
                changes.push(KvChange::remove(key));
            } else {
                let length = if rng.below(50) == 0 { 9000 } else { 120 };
                let value = vec![u8::try_from(rng.below(256)).unwrap(); length];
                map.insert(key.clone(), value.clone());
                changes.push(KvChange::put(key, value));
            }
        }
        engine
            .append_with(changes, b"note", LogRoom::Normal)
            .unwrap();
        if round % 6 == 5 {
            engine.checkpoint(&mut || Ok(())).unwrap();
        }
    }
    engine.sync_all().unwrap();
    // Its header says that all earlier records were durable.
    engine.append(&put_record("a", "last")).unwrap();
    map.insert(b"a".to_vec(), b"last".to_vec());
    map
}

fn open(dir: &Path) -> ReadStore {
    ReadStore::open(dir, &identity(), &mut |_, _, _| true).unwrap()
}

/// Returns entries, number of bad pages and entries, and number of mended pages.
fn walk(store: &ReadStore) -> (Map, usize, usize) {
    let (mut map, mut bad, mut mended) = (Map::new(), 0, 0);
    let mut last = Vec::new();
    store.walk(&[], None, &mut |found| {
        match found {
            IndexItem::Entry(key, value) => {
                assert!(last.as_slice() < key || map.is_empty(), "not in order");
                last = key.to_vec();
                map.insert(key.to_vec(), value.to_vec());
            }
            IndexItem::BadEntry { .. } | IndexItem::BadPage { .. } => bad += 1,
            IndexItem::Mended { .. } => mended += 1,
        }
        true
    });
    (map, bad, mended)
}

fn bytes_of(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .map(|path| (path.clone(), fs::read(path).unwrap()))
        .collect()
}

#[test]
fn reads_return_what_was_written_and_nothing_changes() {
    for seed in 0..6 {
        let dir = Scratch::new(&format!("same-{seed}"));
        let map = fill(&dir, seed);
        let before = bytes_of(&dir);
        let store = open(&dir);
        assert_eq!(store.damage(), []);
        assert!(store.log().records > 0);
        assert_eq!(walk(&store), (map.clone(), 0, 0));
        for number in 0..6000 {
            let key = format!("{number:06}").into_bytes();
            assert_eq!(store.get(&key).unwrap().as_ref(), map.get(&key));
        }
        let mut rng = Rng(seed);
        for _ in 0..200 {
            let mut ends = [rng.below(6500), rng.below(6500)];
            ends.sort_unstable();
            let [from, to] = ends.map(|end| format!("{end:06}").into_bytes());
            let mut seen = Map::new();
            store
                .scan(&from, &to, &mut |key, value| {
                    seen.insert(key.to_vec(), value.to_vec());
                    true
                })
                .unwrap();
            let wanted = map
                .range(from..to)
                .map(|(key, value)| (key.clone(), value.clone()));
            assert_eq!(seen, wanted.collect());
        }
        drop(store);
        assert_eq!(bytes_of(&dir), before);
    }
}

#[test]
fn a_store_in_use_is_refused() {
    let dir = Scratch::new("locked");
    fill(&dir, 1);
    let engine = Engine::open(&dir, &identity(), CONFIG, &mut |_, _, _| true).unwrap();
    let refused = ReadStore::open(&dir, &identity(), &mut |_, _, _| true);
    assert!(matches!(refused, Err(DiskError::Locked(_))));
    drop(engine);
    open(&dir);
    let other = StoreIdentity {
        id: 4,
        ..identity()
    };
    let refused = ReadStore::open(&dir, &other, &mut |_, _, _| true);
    assert!(matches!(refused, Err(DiskError::WrongId { .. })));
}

#[test]
fn a_lock_that_cannot_be_looked_at_is_not_taken_for_free() {
    let scratch = Scratch::new("lock");
    let dir = scratch.join("store");
    fill(&dir, 1);
    fs::remove_file(dir.join("lock")).unwrap();
    open(&dir);
    std::os::unix::fs::symlink("lock", dir.join("lock")).unwrap();
    let opened = ReadStore::open(&dir, &identity(), &mut |_, _, _| true);
    assert!(matches!(opened, Err(DiskError::Untrusted(_))));
}

#[test]
fn damaged_files_are_reported_and_the_rest_is_right() {
    let dir = Scratch::new("damage");
    let map = fill(&dir, 9);
    let index = fs::read(dir.join("index.redb")).unwrap();
    let (mut told, mut whole, mut flips_mended) = (0, 0, 0);
    for seed in 0..240 {
        let mut rng = Rng(seed);
        let mut damaged = index.clone();
        let at = rng.index(damaged.len());
        let kind = rng.below(4);
        match kind {
            0 => damaged[at] ^= 1 << rng.below(8),
            1 => damaged[at / 4096 * 4096..(at / 4096 + 1) * 4096].fill(0),
            2 => {
                let other = usize::try_from(rng.below(damaged.len() as u64 / 4096)).unwrap();
                let page = damaged[other * 4096..(other + 1) * 4096].to_vec();
                damaged[at / 4096 * 4096..(at / 4096 + 1) * 4096].copy_from_slice(&page);
            }
            _ => damaged.truncate(at),
        }
        fs::write(dir.join("index.redb"), &damaged).unwrap();
        let store = open(&dir);
        let (found, bad, mended) = walk(&store);
        for (key, value) in &found {
            assert_eq!(map.get(key), Some(value), "seed {seed}: a wrong value");
        }
        if found == map {
            whole += 1;
            flips_mended += mended;
        } else {
            told += 1;
            let damage = bad + store.damage().len();
            assert!(damage > 0, "seed {seed}: entries are missing silently");
            assert!(
                kind > 0 || at < 4096,
                "seed {seed}: one flipped bit loses something"
            );
        }
    }
    assert!(
        told > 30 && whole > 30 && flips_mended > 5,
        "{told}, {whole}, {flips_mended}"
    );
}

#[test]
fn a_young_store_without_its_index_is_complete_in_its_log() {
    let dir = Scratch::new("young");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let engine = Engine::open(&dir, &identity(), CONFIG, &mut |_, _, _| true).unwrap();
    for number in 0..100 {
        engine
            .append(&put_record(&format!("{number:03}"), "value"))
            .unwrap();
        if number == 50 {
            engine.checkpoint(&mut || Ok(())).unwrap();
        }
    }
    drop(engine);
    fs::remove_file(dir.join("index.redb")).unwrap();
    fs::remove_file(dir.join("identity")).unwrap();
    fs::write(dir.join("notes.txt"), "mine").unwrap();
    let store = open(&dir);
    let kinds = store.damage();
    assert!(matches!(
        kinds,
        [
            StoreDamage::Identity(_),
            StoreDamage::Foreign(_),
            StoreDamage::IndexLost(_)
        ]
    ));
    assert_eq!(walk(&store).0.len(), 100);
    assert_eq!(store.log().applied, 0);
}

#[test]
fn a_torn_log_gives_all_readable_records_and_is_reported() {
    let dir = Scratch::new("torn");
    let map = fill(&dir, 4);
    let clean = open(&dir).log();
    let mut log = fs::read(dir.join("log")).unwrap();
    // The first record behind the index was durable.
    let at = usize::try_from(clean.applied % (1 << 20)).unwrap();
    log[at + 70] ^= 3;
    fs::write(dir.join("log"), &log).unwrap();
    let store = open(&dir);
    assert!(matches!(store.damage(), [StoreDamage::LogTorn { end, .. }] if *end == clean.applied));
    assert_eq!(store.log().records, clean.records - 1);
    let (found, ..) = walk(&store);
    let keys = map.keys().chain(found.keys()).collect::<BTreeSet<_>>();
    let differ = keys
        .into_iter()
        .filter(|key| map.get(*key) != found.get(*key));
    // The record had 60 changes; some keys were changed again behind it.
    assert!((1..=60).contains(&differ.count()));
    drop(store);
    fs::remove_file(dir.join("log")).unwrap();
    assert!(matches!(open(&dir).damage(), [StoreDamage::LogLost(_)]));
}

#[test]
fn a_flipped_bit_of_a_log_loses_nothing() {
    let dir = Scratch::new("log-bits");
    Engine::format(&dir, identity(), &CONFIG).unwrap();
    let engine = Engine::open(&dir, &identity(), CONFIG, &mut |_, _, _| true).unwrap();
    let mut map = Map::new();
    for step in 0..40_u8 {
        let (key, value) = (
            format!("k{}", step % 30),
            vec![step; 40 * usize::from(step)],
        );
        map.insert(key.clone().into_bytes(), value.clone());
        let changes = vec![KvChange::put(key.into_bytes(), value)];
        engine
            .append_with(changes, b"note", LogRoom::Normal)
            .unwrap();
    }
    drop(engine);
    let end = open(&dir).log();
    let log = fs::read(dir.join("log")).unwrap();
    let mut rng = Rng(8);
    let mut told = 0;
    for seed in 0..400 {
        let mut damaged = log.clone();
        // One or two bits; of two in one record neither can be found.
        let flips = if seed % 4 == 3 { 2 } else { 1 };
        for _ in 0..flips {
            let at = usize::try_from(end.applied + rng.below(end.end - end.applied)).unwrap();
            damaged[at] ^= 1 << rng.below(8);
        }
        fs::write(dir.join("log"), &damaged).unwrap();
        let store = open(&dir);
        let is_flip = |damage: &StoreDamage| matches!(damage, StoreDamage::LogFlipped(_));
        if store.damage().iter().all(is_flip) {
            assert_eq!(walk(&store).0, map, "seed {seed}: {:?}", store.damage());
            told += store.damage().len();
        } else {
            assert_eq!(flips, 2, "seed {seed}: {:?}", store.damage());
        }
    }
    // Some bits lie between records.
    assert!(told > 300, "{told}");
}
