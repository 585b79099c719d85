//! A file replacement interrupted after any of its steps, and done again.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, iter};

use zonal_testkit::{Rng, Scratch};
use zonal_types::{KvChange, KvRead};

use super::file_replacement::{FROM_COPY, MENDED, Step, place};
use super::{NEW_SUMS, StoreRepair, copy_restore, make_index, mend, restore_index};
use crate::files::INDEX;
use crate::{DiskError, Engine, EngineConfig, LogRoom, StoreIdentity, StoreKind};

const WHO: StoreIdentity = StoreIdentity {
    cell: [7; 16],
    kind: StoreKind::Shard,
    id: 3,
};
type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Files = BTreeMap<String, Vec<u8>>;

fn config() -> EngineConfig {
    EngineConfig {
        log_bytes: 2 << 20,
        ..EngineConfig::default()
    }
}

fn open(dir: &Path) -> Result<Engine, DiskError> {
    Engine::open(dir, &WHO, config(), &mut |_, _, _| true)
}

fn contents(engine: &Engine) -> Map {
    let mut map = Map::new();
    let scanned = engine.scan(&[], &[0xff; 9], &mut |key, value| {
        map.insert(key.to_vec(), value.to_vec());
        true
    });
    scanned.unwrap();
    map
}

fn files(dir: &Path) -> Files {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let read = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    };
    files.map(read).collect()
}

fn put_back(dir: &Path, files: &Files) {
    fs::remove_dir_all(dir).unwrap();
    fs::create_dir(dir).unwrap();
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// A store with entries in its index and in its log. One page of the index is damaged so that no
/// entry is lost by it.
fn damaged(dir: &Path) -> Map {
    Engine::format(dir, WHO, &config()).unwrap();
    let engine = open(dir).unwrap();
    let mut rng = Rng(5);
    for round in 0..20 {
        let key = |rng: &mut Rng| format!("{:04}", rng.below(900)).into_bytes();
        let put = |rng: &mut Rng| KvChange::put(key(rng), rng.bytes(300));
        let changes: Vec<_> = iter::repeat_with(|| put(&mut rng)).take(60).collect();
        engine.append_with(changes, b"", LogRoom::Normal).unwrap();
        if round % 6 == 5 {
            engine.checkpoint(&mut || Ok(())).unwrap();
        }
    }
    engine.sync_all().unwrap();
    let map = contents(&engine);
    drop(engine);
    let mut index = fs::read(dir.join(INDEX)).unwrap();
    let leaf = index.chunks(4096).rposition(|page| page[0] == 1).unwrap();
    index[leaf * 4096 + 2000] ^= 4;
    fs::write(dir.join(INDEX), index).unwrap();
    map
}

/// Interrupts the replacement of a store's index after each number of steps; checks the store then
/// and after another repair.
fn ended_at_each(
    name: &str,
    steps: &[Step],
    begin: &dyn Fn(&Path, &[Step]),
    repair: &dyn Fn(&Path),
) {
    let dir = Scratch::new(name);
    let map = damaged(&dir);
    let before = files(&dir);
    let mut usable = 0;
    for done in 0..=steps.len() {
        put_back(&dir, &before);
        begin(&dir, &steps[..done]);
        let ended = files(&dir);
        assert!(ended.contains_key(INDEX), "{done}: no index is left");
        if ended[INDEX] != before[INDEX] {
            usable += 1;
            assert_eq!(contents(&open(&dir).unwrap()), map, "{done}: in use");
            assert!(!dir.join(NEW_SUMS).exists(), "{done}: without checksums");
            put_back(&dir, &ended);
        }
        repair(&dir);
        assert_eq!(contents(&open(&dir).unwrap()), map, "{done}: repaired");
    }
    assert!(usable >= 2, "{usable} states with the new index");
}

#[test]
fn a_repair_interrupted_at_any_step_loses_nothing() {
    let how = StoreRepair {
        identity: WHO,
        config: config(),
        uuid: None,
        extra: Vec::new(),
        is_newer: &|_, _, _| true,
    };
    let begin = |dir: &Path, steps: &[Step]| {
        let (new, lost) = make_index(dir, &how, &mut |_, _, _| true).unwrap();
        assert!(lost.is_empty());
        place(dir, &new.stored, steps).unwrap();
    };
    let repair = |dir: &Path| {
        assert!(mend(dir, &how, &mut |_, _, _| true).unwrap().is_empty());
    };
    ended_at_each("mend-steps", MENDED, &begin, &repair);
}

#[test]
fn a_restore_from_the_copy_interrupted_at_any_step_loses_nothing() {
    let begin = |dir: &Path, steps: &[Step]| {
        let stored = copy_restore::make_index(dir, &WHO, None, &config()).unwrap();
        place(dir, &stored.unwrap(), steps).unwrap();
    };
    let repair = |dir: &Path| assert!(restore_index(dir, &WHO, None, &config()).unwrap());
    ended_at_each("restore-steps", FROM_COPY, &begin, &repair);
}
