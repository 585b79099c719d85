//! The stores of every released version open, for use and for inspection, with exactly the entries
//! that they had.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "common/pack.rs"]
mod pack;

use std::path::Path;
use zonal_disk::engine::EngineConfig;
use zonal_disk::{DiskError, Engine, ReadStore, StoreKind, identity};
use zonal_testkit::Scratch;
use zonal_types::KvRead;

/// Version, store, its kind, entries, and the crc32c of all keys and values with their lengths.
const STORES: &[(&str, &str, StoreKind, u64, u32)] = &[
    (
        "v0.1.0",
        "manager/manager",
        StoreKind::Manager,
        28,
        513_079_603,
    ),
    ("v0.1.0", "meta1/shard", StoreKind::Shard, 44, 3_312_282_093),
    (
        "v0.1.0",
        "storage1-1/target",
        StoreKind::Target,
        13,
        498_724_646,
    ),
];

fn unpacked(version: &str) -> Scratch {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let packed = std::fs::read(root.join("testdata").join(version).join("cell.pack")).unwrap();
    let dir = Scratch::new("fixture");
    pack::unpack(&packed, &dir);
    dir
}

fn sum(kv: &dyn KvRead) -> (u64, u32) {
    let mut count = 0;
    let mut all = Vec::new();
    kv.scan(&[], &[0xff; 8], &mut |key, value| {
        count += 1;
        for part in [key, value] {
            all.extend_from_slice(&(part.len() as u64).to_le_bytes());
            all.extend_from_slice(part);
        }
        true
    })
    .unwrap();
    (count, crc_fast::crc32_iscsi(&all))
}

#[test]
fn stores_of_every_version_open_with_their_entries() {
    for (version, store, kind, count, crc) in STORES {
        let dir = unpacked(version);
        let path = dir.join(store);
        let stored = identity::load(&path).unwrap().unwrap();
        assert_eq!(stored.identity.kind, *kind);
        let looked_at = ReadStore::open(&path, &stored.identity, &mut |_, _, _| true).unwrap();
        assert_eq!(looked_at.damage(), [], "{version} {store}");
        assert_eq!(
            sum(&looked_at),
            (*count, *crc),
            "{version} {store}, looked at"
        );
        drop(looked_at);
        let mut records = 0;
        let opened = Engine::open(
            &path,
            &stored.identity,
            EngineConfig::default(),
            &mut |_, _, _| {
                records += 1;
                true
            },
        );
        let engine = opened.unwrap();
        assert_eq!(sum(&engine), (*count, *crc), "{version} {store}, opened");
        assert!(records > 0, "{version} {store}: nothing is in its log");
        engine.checkpoint(&mut || Ok(())).unwrap();
        drop(engine);
        let again = Engine::open(
            &path,
            &stored.identity,
            EngineConfig::default(),
            &mut |_, _, _| true,
        );
        assert_eq!(
            sum(&again.unwrap()),
            (*count, *crc),
            "{version} {store}, opened again"
        );
    }
}

#[test]
fn a_newer_store_is_refused_by_its_version_before_anything_is_touched() {
    let dir = unpacked(STORES[0].0);
    for (_, store, ..) in STORES {
        let path = dir.join(store);
        let stored = identity::load(&path).unwrap().unwrap();
        let file = path.join(identity::FILE_NAME);
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[8] += 1;
        let crc = crc_fast::crc32_iscsi(&bytes[..76]);
        bytes[76..80].copy_from_slice(&crc.to_le_bytes());
        std::fs::write(&file, bytes).unwrap();
        let names = |path: &Path| {
            let entries = std::fs::read_dir(path).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let before = names(&path);
        let opened = Engine::open(
            &path,
            &stored.identity,
            EngineConfig::default(),
            &mut |_, _, _| true,
        );
        let newer = |error: Option<DiskError>| {
            matches!(error, Some(DiskError::WrongVersion { found: 2, known: 1 }))
        };
        assert!(newer(opened.err()), "{store}");
        let looked_at = ReadStore::open(&path, &stored.identity, &mut |_, _, _| true);
        assert!(newer(looked_at.err()), "{store}");
        let formatted = Engine::format(&path, stored.identity, &EngineConfig::default());
        assert!(
            matches!(formatted.err(), Some(DiskError::AlreadyFormatted(_))),
            "{store}"
        );
        assert_eq!(names(&path), before);
    }
}
