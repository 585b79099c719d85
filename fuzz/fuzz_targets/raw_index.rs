//! An index's file read without its library: whichever bytes are changed, every entry that is read
//! is one that was written.
//!
//! The input is a list of changes: position (3 bytes), value.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use zonal_disk::{Engine, EngineConfig, IndexItem, LogRoom, StoreIdentity, StoreKind, walk_index};
use zonal_types::KvChange;

struct Made {
    path: PathBuf,
    bytes: Vec<u8>,
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
}

const WHO: StoreIdentity = StoreIdentity {
    cell: [7; 16],
    kind: StoreKind::Shard,
    id: 3,
};
const CONFIG: EngineConfig = EngineConfig {
    log_bytes: 1 << 20,
    overlay_bytes: 1 << 20,
    cache_bytes: 1 << 20,
    room_wait: std::time::Duration::from_secs(1),
};

/// A store of some hundred entries, with its index copied aside.
fn made() -> &'static Made {
    static MADE: OnceLock<Made> = OnceLock::new();
    MADE.get_or_init(|| {
        let dir = std::env::temp_dir().join(format!("zonal-fuzz-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        Engine::format(&dir, WHO, &CONFIG).expect("format");
        let engine = Engine::open(&dir, &WHO, CONFIG, &mut |_, _, _| true).expect("open");
        let entry = |number: u32| {
            (
                number.to_be_bytes().to_vec(),
                vec![number as u8; 40 + number as usize % 90],
            )
        };
        let entries: BTreeMap<_, _> = (0..700).map(entry).collect();
        let puts = entries
            .iter()
            .map(|(key, value)| KvChange::put(key.clone(), value.clone()));
        engine
            .append_with(puts.collect(), &[], LogRoom::Normal)
            .expect("append");
        engine.checkpoint(&mut || Ok(())).expect("checkpoint");
        drop(engine);
        let bytes = fs::read(dir.join("index.redb")).expect("index");
        fs::remove_dir_all(&dir).expect("remove");
        let path = dir.with_extension("redb");
        Made {
            path,
            bytes,
            entries,
        }
    })
}

fuzz_target!(|data: &[u8]| {
    let made = made();
    let mut bytes = made.bytes.clone();
    for change in data.chunks_exact(4).take(64) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize % bytes.len();
        bytes[at] = change[3];
    }
    fs::write(&made.path, &bytes).expect("write");
    let _ = walk_index(&made.path, &mut |found| {
        if let IndexItem::Entry(key, value) = found {
            assert_eq!(made.entries.get(key).map(Vec::as_slice), Some(value));
        }
        true
    });
    fs::remove_file(&made.path).expect("remove");
});
