//! Assertions of the engine fire when an invariant is broken.

use std::sync::Arc;

use zonal_testkit::Scratch;
use zonal_types::KvChange;

use crate::files::group_commit::lock;
use crate::index::index_copy::IndexCopy;
use crate::index::overlay::Overlay;
use crate::{Engine, EngineConfig, StoreDir, StoreIdentity, StoreKind};

fn engine(scratch: &Scratch) -> Engine {
    let identity = StoreIdentity {
        cell: [1; 16],
        kind: StoreKind::Shard,
        id: 1,
    };
    let config = EngineConfig {
        log_bytes: 4 << 20,
        ..EngineConfig::default()
    };
    let dir = scratch.join("store");
    Engine::format(&dir, identity, &config).unwrap();
    Engine::open(&dir, &identity, config, &mut |_, _, _| true).unwrap()
}

fn put(key: &str) -> Vec<KvChange> {
    vec![KvChange::put(key.into(), vec![7; 100])]
}

#[test]
#[should_panic(expected = "the tail of the log never falls and never passes its head")]
fn a_tail_past_the_head_is_refused() {
    let scratch = Scratch::new("invariants");
    let engine = engine(&scratch);
    let mut guard = lock(&engine.append_lock);
    let head = guard.head;
    engine.set_tail(&mut guard, head + 64);
}

#[test]
#[should_panic(expected = "a record never overwrites the part of the log in use")]
fn a_record_over_the_log_in_use_is_refused() {
    let scratch = Scratch::new("invariants");
    let engine = engine(&scratch);
    let mut guard = lock(&engine.append_lock);
    guard.head = guard.tail + engine.capacity;
    engine.place_record(&guard, 128);
}

#[test]
#[should_panic(expected = "one checkpoint freezes the overlay at a time")]
fn a_second_frozen_overlay_is_refused() {
    let scratch = Scratch::new("invariants");
    let engine = engine(&scratch);
    engine.change_views(|views| views.frozen = Some(Arc::new(Overlay::default())));
    let _ = engine.begin_checkpoint();
}

#[test]
#[should_panic(expected = "a checkpoint ends with the overlay that it froze")]
fn a_checkpoint_that_lost_its_overlay_is_refused() {
    let scratch = Scratch::new("invariants");
    let engine = engine(&scratch);
    engine.apply_unlogged(put("a"));
    let checkpoint = engine.begin_checkpoint();
    engine.change_views(|views| views.frozen = None);
    let _ = checkpoint.commit(&mut || Ok(()));
}

#[test]
#[should_panic(expected = "the copy accepts its records in order and once")]
fn a_copy_record_accepted_twice_is_refused() {
    let scratch = Scratch::new("invariants");
    let engine = engine(&scratch);
    let progress = engine.index.progress().unwrap();
    let dir = StoreDir::plain(&scratch.join("store"));
    let mut copy = IndexCopy::open(&dir, engine.store, &progress);
    let snapshot = engine.index.snapshot().unwrap();
    let write = |copy: &IndexCopy| copy.write(&snapshot, &Overlay::default(), &progress);
    let (one, other) = (write(&copy).unwrap(), write(&copy).unwrap());
    copy.accept(one);
    copy.accept(other);
}
