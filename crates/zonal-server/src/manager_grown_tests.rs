//! The manager role in a cell that grows, on a real store: joins one at a time, and very many
//! junctions. `cargo test --profile suite -p zonal-server grown -- --nocapture` prints figures.

use crate::manager_role::ManagerRole;
use crate::manager_tests::{failed, join, manager, manager_joins};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zonal_driver::shard::Durability;
use zonal_testkit::Scratch;
use zonal_types::{Codec, Ino, MapVersion, PartitionId, ZoneId};
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::{Fetch, FetchError, JunctionChange, ZoneMap};

const TARGETS: u32 = 300;
const JUNCTIONS: u64 = 100_000;

fn fetch(manager: &ManagerRole, have: &Arc<ZoneMap>) -> (Arc<ZoneMap>, u32) {
    let mut replies = 0;
    let map = Fetch::newer(have.clone()).run(|request| {
        replies += 1;
        Ok::<_, FetchError>(manager.handle(request.clone()))
    });
    (map.unwrap(), replies)
}

#[test]
fn three_hundred_targets_join_one_at_a_time() {
    let scratch = Scratch::new("grown-joins");
    let since = Instant::now();
    let kept = {
        let (manager, cache) = manager(&scratch);
        manager_joins(&manager);
        let shard = join(2, 2, true, None);
        assert_eq!(failed(&manager.handle(shard)), None);
        let (mut follower, _) = fetch(&manager, &cache.current());
        for target in 1..=TARGETS {
            let request = join(10 + target, 2, false, Some((target, 1)));
            assert_eq!(failed(&manager.handle(request)), None, "target {target}");
            if target % 50 == 0 {
                let (now, replies) = fetch(&manager, &follower);
                assert_eq!(replies, 1, "changes in one reply");
                follower = now;
            }
        }
        assert_eq!(follower, cache.current());
        follower
    };
    let slots: usize = kept.sets.iter().map(|set| set.slots.len()).sum();
    assert_eq!(slots, TARGETS as usize);
    assert_eq!(kept.default_sets(ZoneId(2)).count(), 5);
    let took = since.elapsed();
    let (again, cache) = manager(&scratch);
    assert_eq!(cache.current(), kept);
    let (whole, _) = fetch(&again, &Arc::new(ZoneMap::unknown(kept.cell)));
    assert_eq!(whole, kept);
    println!(
        "{TARGETS} joins: {took:.1?}; {slots} slots in {} sets; the map has {} bytes",
        kept.sets.len(),
        kept.to_bytes().len()
    );
}

/// Makes junctions from `first` on; `settled` of them become durable together.
fn make_junctions(manager: &ManagerRole, first: u64, count: u64, settled: u64) -> Duration {
    let since = Instant::now();
    for number in first..first + count {
        let add = JunctionChange::Add {
            ino: Ino::new(PartitionId(1), 16 + number),
            path: format!("/directory-{number}"),
            zone: ZoneId(1),
        };
        let map = manager
            .append_junctions(Vec::new(), vec![add], Durability::Later)
            .unwrap();
        if number % settled == settled - 1 {
            manager.settle(map).unwrap();
        }
    }
    let took = since.elapsed();
    // In a server the checkpointer does this on its own thread.
    let engine = manager.engine();
    if engine.wants_checkpoint() {
        engine.checkpoint(&mut || Ok(())).unwrap();
    }
    took
}

#[test]
fn a_junction_costs_the_same_with_a_hundred_thousand_of_them() {
    let (scratch, other) = (Scratch::new("grown-junctions"), Scratch::new("grown-few"));
    let (manager, cache) = manager(&scratch);
    let (few, _) = super::manager_tests::manager(&other);
    manager_joins(&manager);
    manager_joins(&few);
    let before = cache.current();
    let measured = 1000;
    for hundred in (0..JUNCTIONS - measured).step_by(100) {
        make_junctions(&manager, hundred, 100, 100);
    }
    // As with mkdir, each is durable before the next. By turns, and the best of ten, because of
    // other work on the machine.
    let (mut with_few, mut with_many) = (Duration::MAX, Duration::MAX);
    for number in (0..measured).step_by(100) {
        with_few = with_few.min(make_junctions(&few, number, 100, 1));
        let first = JUNCTIONS - measured + number;
        with_many = with_many.min(make_junctions(&manager, first, 100, 1));
    }
    println!("a hundred junctions: {with_few:.1?} beside few, {with_many:.1?} beside {JUNCTIONS}");
    // Work that grows with the number of junctions would be a thousand times as long.
    assert!(with_many < with_few * 10, "{with_few:?}, {with_many:?}");
    // A holder of the map sees no change.
    let have = before.version;
    let reply = manager.handle(ManagerRequest::GetMap { have });
    assert_eq!(reply, ManagerReply::At { version: have });
    let (whole, replies) = fetch(&manager, &Arc::new(ZoneMap::unknown(before.cell)));
    assert_eq!((whole, replies), (before, 1));
    let at = ManagerRequest::JunctionsAt {
        path: "/directory-77777".into(),
    };
    match manager.handle(at) {
        ManagerReply::Junctions {
            junctions, count, ..
        } => assert_eq!((junctions.len(), count), (1, JUNCTIONS)),
        other => panic!("{other:?}"),
    }
    let have = MapVersion(0);
    let whole = manager.handle(ManagerRequest::GetMap { have });
    println!(
        "the whole map in one reply of {} bytes",
        whole.to_bytes().len()
    );
    let (mut listed, mut after) = (0, None);
    loop {
        let request = ManagerRequest::Junctions {
            after,
            entries: u32::MAX,
        };
        let reply = manager.handle(request);
        assert!(reply.to_bytes().len() < zonal_types::limits::BODY_BYTES_MAX);
        let ManagerReply::Junctions { junctions, end, .. } = reply else {
            panic!("{reply:?}");
        };
        listed += junctions.len() as u64;
        after = junctions.last().map(|last| (last.path.clone(), last.ino));
        if end {
            break;
        }
    }
    assert_eq!(listed, JUNCTIONS);
}
