//! A view never changes, whatever the store does meanwhile.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{identity, small};
use std::collections::BTreeMap;
use zonal_disk::{Engine, Record, View};
use zonal_testkit::Scratch;
use zonal_types::{KvChange, KvRead};

type Contents = BTreeMap<Vec<u8>, Vec<u8>>;

fn contents(kv: &dyn KvRead) -> Contents {
    let mut found = BTreeMap::new();
    kv.scan(&[], &[0xff], &mut |key, value| {
        found.insert(key.to_vec(), value.to_vec());
        true
    })
    .unwrap();
    found
}

fn put(engine: &Engine, key: u32, value: Option<u32>) {
    let key = key.to_be_bytes().to_vec();
    let value = value.map(|value| value.to_le_bytes().to_vec());
    let changes = vec![KvChange { key, value }];
    engine
        .append(&Record {
            changes,
            note: Vec::new(),
        })
        .unwrap();
}

#[test]
fn a_view_never_changes() {
    let dir = Scratch::new("view");
    Engine::format(&dir, identity(), &small()).unwrap();
    let engine = Engine::open(&dir, &identity(), small(), &mut |_, _, _| true).unwrap();
    let checkpoint = || engine.checkpoint(&mut || Ok(())).unwrap();
    let mut kept: Vec<(View, Contents)> = Vec::new();
    for round in 0..6_u32 {
        for key in 0..200 {
            put(&engine, key * 7 % 101 + round, Some(key + round));
            if key % 3 == 0 {
                put(&engine, key, None);
            }
            if key == 77 {
                checkpoint();
            }
        }
        let now = contents(&engine);
        assert!(now.len() > 50);
        let view = engine.view().unwrap();
        assert_eq!(view.position(), engine.head());
        assert!(engine.synced() >= view.position());
        kept.push((view, now));
        if round % 2 == 0 {
            checkpoint();
        }
    }
    for key in 0..300 {
        put(&engine, key, Some(1 << 20));
    }
    checkpoint();
    for (view, expected) in &kept {
        assert_eq!(&contents(view), expected);
        for key in (0..300_u32).map(u32::to_be_bytes) {
            assert_eq!(
                view.get(&key).unwrap().as_ref(),
                expected.get(key.as_slice())
            );
        }
        let start = 40_u32.to_be_bytes();
        let mut first = None;
        view.scan(&start, &[0xff], &mut |key, _value| {
            first = Some(key.to_vec());
            false
        })
        .unwrap();
        assert_eq!(
            first.as_ref(),
            expected.range(start.to_vec()..).next().map(|entry| entry.0)
        );
    }
}
