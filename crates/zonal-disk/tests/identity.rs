//! Identity of a directory: wrong cell, kind, number, version; formatting; two openers.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use std::fs;
use std::path::Path;

use common::{identity, small};
use zonal_disk::disk::SyncHook;
use zonal_disk::{DiskError, Engine, EngineConfig, StoreIdentity, StoreKind, UnflushedWrites};
use zonal_testkit::Scratch;

fn open(dir: &Path, expected: &StoreIdentity) -> Result<Engine, DiskError> {
    Engine::open(dir, expected, small(), &mut |_, _, _| true)
}

#[test]
fn another_identity_is_refused() {
    let dir = Scratch::new("identity");
    Engine::format(&dir, identity(), &small()).unwrap();
    let cell = StoreIdentity {
        cell: [8; 16],
        ..identity()
    };
    assert!(matches!(
        open(&dir, &cell),
        Err(DiskError::WrongCell { .. })
    ));
    let kind = StoreIdentity {
        kind: StoreKind::Target,
        ..identity()
    };
    assert!(matches!(
        open(&dir, &kind),
        Err(DiskError::WrongKind { .. })
    ));
    let id = StoreIdentity {
        id: 4,
        ..identity()
    };
    assert!(matches!(
        open(&dir, &id),
        Err(DiskError::WrongId {
            found: 3,
            expected: 4
        })
    ));
    open(&dir, &identity()).unwrap();
}

#[test]
fn a_damaged_or_newer_identity_is_refused() {
    let dir = Scratch::new("identity");
    Engine::format(&dir, identity(), &small()).unwrap();
    let path = dir.join("identity");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        match open(&dir, &identity()) {
            Err(DiskError::WrongVersion { .. }) => assert!((8..12).contains(&at)),
            Err(DiskError::Corrupt(_)) => {}
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened with byte {at} flipped"),
        }
    }
    fs::write(&path, &good[..20]).unwrap();
    assert!(matches!(
        open(&dir, &identity()),
        Err(DiskError::Corrupt(_))
    ));
    fs::write(&path, &good).unwrap();
    open(&dir, &identity()).unwrap();
}

#[test]
fn a_store_opens_once_at_a_time() {
    let dir = Scratch::new("identity");
    Engine::format(&dir, identity(), &small()).unwrap();
    let engine = open(&dir, &identity()).unwrap();
    assert!(matches!(open(&dir, &identity()), Err(DiskError::Locked(_))));
    drop(engine);
    open(&dir, &identity()).unwrap();
}

#[test]
fn formatting_keeps_existing_files() {
    let dir = Scratch::new("identity");
    assert!(matches!(
        open(&dir, &identity()),
        Err(DiskError::NotFormatted(_))
    ));
    fs::write(dir.join("thesis.tex"), "x").unwrap();
    let refused = Engine::format(&dir, identity(), &small());
    assert!(matches!(refused, Err(DiskError::NotOurs(_))));
    assert!(matches!(
        open(&dir, &identity()),
        Err(DiskError::NotOurs(_))
    ));
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "nothing touched");
    fs::remove_file(dir.join("thesis.tex")).unwrap();
    // Left behind by a format that was killed.
    fs::write(dir.join("log"), "half").unwrap();
    Engine::format(&dir, identity(), &small()).unwrap();
    let refused = Engine::format(&dir, identity(), &small());
    assert!(matches!(refused, Err(DiskError::AlreadyFormatted(_))));
    let wrong = EngineConfig {
        log_bytes: 1000,
        ..EngineConfig::default()
    };
    let other = Scratch::new("identity");
    assert!(matches!(
        Engine::format(&other, identity(), &wrong),
        Err(DiskError::Config(_))
    ));
}

#[test]
fn missing_or_cut_files_are_damage() {
    for name in ["log", "index.redb"] {
        let dir = Scratch::new("identity");
        Engine::format(&dir, identity(), &small()).unwrap();
        let path = dir.join(name);
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
        assert!(matches!(
            open(&dir, &identity()),
            Err(DiskError::Corrupt(_) | DiskError::Io { .. })
        ));
        fs::remove_file(&path).unwrap();
        assert!(matches!(
            open(&dir, &identity()),
            Err(DiskError::Corrupt(_))
        ));
    }
}

/// Names and contents of a folder.
fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, fs::read(entry.path()).unwrap())
    });
    let mut all: Vec<_> = entries.collect();
    all.sort();
    all
}

#[test]
fn a_start_with_a_wrong_index_is_refused_and_writes_nothing() {
    let dir = Scratch::new("identity");
    Engine::format(&dir, identity(), &small()).unwrap();
    let engine = open(&dir, &identity()).unwrap();
    for number in 0..200 {
        let record = common::put_record(&format!("{number:05}"), &"v".repeat(900));
        engine.append(&record).unwrap();
    }
    engine.checkpoint(&mut || Ok(())).unwrap();
    drop(engine);
    let good = contents(&dir);
    let path = dir.join("index.redb");
    let right = fs::read(&path).unwrap();
    let wrong = [
        Vec::new(),
        vec![0],
        vec![0; 512],
        vec![0; 4096],
        vec![0; right.len()],
        vec![0xff; 100],
        right[..64].to_vec(),
        right[..4096].to_vec(),
        right[..right.len() / 2].to_vec(),
    ];
    for bytes in wrong {
        fs::write(&path, &bytes).unwrap();
        let before = contents(&dir);
        let opened = open(&dir, &identity());
        assert!(
            matches!(opened, Err(DiskError::Corrupt(_) | DiskError::Io { .. })),
            "an index of {} bytes: {:?}",
            bytes.len(),
            opened.err()
        );
        let length = bytes.len();
        assert!(
            contents(&dir) == before,
            "an index of {length} bytes was refused and something written"
        );
        fs::write(&path, &right).unwrap();
        let engine = open(&dir, &identity()).unwrap();
        assert_eq!(engine.stats().damaged_blocks, 0);
        let found = zonal_types::KvRead::get(&engine, b"00199").unwrap();
        assert_eq!(found.map(|value| value.len()), Some(900));
        drop(engine);
        for (name, bytes) in &good {
            fs::write(dir.join(name), bytes).unwrap();
        }
    }
}

#[test]
fn a_pipe_in_place_of_a_file_is_refused_without_waiting() {
    for name in [
        "identity",
        "lock",
        "log",
        "index.redb",
        "index.sums",
        "power",
        "starts",
    ] {
        let dir = Scratch::new("pipe");
        Engine::format(&dir, identity(), &small()).unwrap();
        drop(open(&dir, &identity()).unwrap());
        let path = dir.join(name);
        // Not every file exists from the start.
        let _ = fs::remove_file(&path);
        let made = std::process::Command::new("mkfifo").arg(&path).status();
        assert!(made.unwrap().success());
        let (tell, told) = std::sync::mpsc::channel();
        let at = dir.to_path_buf();
        std::thread::spawn(move || {
            let opened = open(&at, &identity()).map(drop);
            let read = zonal_disk::ReadStore::open(&at, &identity(), &mut |_, _, _| true).map(drop);
            let _ = tell.send((opened, read));
        });
        let (opened, read) = told
            .recv_timeout(std::time::Duration::from_secs(20))
            .unwrap_or_else(|_| panic!("it waits for the pipe {name}"));
        for result in [opened, read] {
            let text = result.unwrap_err().to_string();
            assert!(
                text.contains(name) && text.contains("no regular file"),
                "{name}: {text}"
            );
        }
    }
}

#[test]
fn a_failed_flush_is_known_at_the_next_opening() {
    let dir = Scratch::new("doubt");
    Engine::format(&dir, identity(), &small()).unwrap();
    let open = |boot| {
        Engine::open_at_boot(
            &dir,
            &identity(),
            small(),
            Some([boot; 16]),
            &mut |_, _, _| true,
        )
        .unwrap()
    };
    let engine = open(1);
    let first = engine.verifier();
    assert_eq!(engine.past(), UnflushedWrites::Lost);
    drop(engine);
    let engine = open(1);
    assert_eq!(
        (engine.past(), engine.verifier()),
        (UnflushedWrites::Kept, first)
    );
    let hook = SyncHook(|| Err(std::io::Error::other("planted")));
    engine.set_data_sync(std::sync::Arc::new(hook)).unwrap();
    engine.append(&common::put_record("a", "1")).unwrap();
    assert!(engine.sync_all().is_err());
    assert!(engine.failure().unwrap().contains("planted"));
    assert!(engine.append(&common::put_record("b", "1")).is_err());
    drop(engine);
    let engine = open(1);
    assert_eq!(engine.past(), UnflushedWrites::Doubted);
    let second = engine.verifier();
    assert_ne!(second, first);
    drop(engine);
    let engine = open(1);
    assert_eq!(
        (engine.past(), engine.verifier()),
        (UnflushedWrites::Kept, second)
    );
    drop(engine);
    assert_eq!(open(2).past(), UnflushedWrites::Lost);
}
