//! Damage to the records of targets. Each kind is found by its name, a repair leaves the cell
//! clean, and undamaged files stay as they were.
#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests: one list of damages each"
)]

mod common;

use common::{Bench, GEOMETRY, Made, OpenTarget, inode, lists, open_engine};
use zonal_disk::Engine;
use zonal_object::chunk::{BlockState, Chunk};
use zonal_object::{ObjectId, Truncation, key};
use zonal_testkit::Rng;
use zonal_types::limits::{FILE_BYTES_MAX, TRUNCATION_NUMBER_MAX};
use zonal_types::{Column, DataId, KvChange, KvRead};

#[test]
fn damaged_targets_are_repaired() {
    let bench = Bench::new("target");
    let mut sets = bench.cell.map.default_sets(zonal_types::ZoneId(1));
    let set = sets.next().unwrap().clone();
    // Files with a whole block, and the store of their first column.
    let large: Vec<&Made> = bench
        .cell
        .files
        .iter()
        .filter(|file| file.size >= 65_536)
        .collect();
    for round in 0..lists() {
        let mut rng = Rng(round * 77 + 3);
        let file = large[rng.index(large.len())];
        let component = &file.layout.components[0];
        let object = ObjectId {
            data_id: component.data_id,
            column: Column(0),
        };
        let slot = usize::from(component.start_column.0) % set.slots.len();
        let at = 1 + set.slots[slot].target.0 as usize;
        let on = |context: &str,
                  expected: &str,
                  suffering,
                  damage: &dyn Fn(&Engine) -> Vec<KvChange>| {
            let context = format!("round {round}: {context} of {}", file.path);
            bench.try_damage(&context, expected, suffering, at, damage);
        };
        let chunk_key = key::chunk(object, 0);
        let chunk = |engine: &Engine| {
            Chunk::decode(
                &GEOMETRY,
                &chunk_key,
                &engine.get(&chunk_key).unwrap().unwrap(),
            )
            .unwrap()
        };
        on("a damaged chunk", "target-key", 1, &|_| {
            vec![KvChange::put(chunk_key.clone(), vec![5; 40])]
        });
        on("a missing header", "object-header", 0, &|_| {
            vec![KvChange::remove(key::header(object))]
        });
        on("a damaged header", "target-key", 0, &|_| {
            vec![KvChange::put(key::header(object), vec![5; 40])]
        });
        on("a damaged bitmap", "target-key", 0, &|_| {
            vec![KvChange::put(key::segment(0), vec![1; 10])]
        });
        on("a missing bitmap", "allocation", 0, &|_| {
            vec![KvChange::remove(key::segment(0))]
        });
        on("the target's own record", "target-key", 0, &|_| {
            vec![KvChange::put(key::target(), vec![1; 10])]
        });
        on(
            "a tombstone of one that lives",
            "object-deletion",
            0,
            &|engine| {
                let key = key::tombstone(object);
                let sealed = zonal_object::repair::repair(
                    &GEOMETRY,
                    engine,
                    &zonal_object::TargetDefect::HalfDeleted(object),
                    &|_| None,
                );
                let changes = sealed.unwrap();
                assert_eq!(changes[0].key, key);
                changes
            },
        );
        on("a unit that two refer to", "unit-twice", 0, &|engine| {
            // A new chunk that claims the unit of another file, with a checksum that does not fit.
            let place = chunk(engine).get(0).place().unwrap();
            let mut copy = chunk(engine);
            let free = (0..64).find(|block| copy.get(*block) == BlockState::Hole);
            let Some(free) = free else {
                // A full chunk behind the object's end.
                let mut more = Chunk::default();
                more.set(63, BlockState::Written(place, 1));
                let key = key::chunk(object, 40);
                return vec![KvChange::put(key.clone(), more.encode(&key))];
            };
            copy.set(free, BlockState::Written(place, 1));
            vec![KvChange::put(chunk_key.clone(), copy.encode(&chunk_key))]
        });
    }
}

#[test]
fn misplaced_objects_are_repaired() {
    let bench = Bench::new("objects");
    let file = bench
        .cell
        .files
        .iter()
        .find(|file| file.size == 65_536)
        .unwrap();
    let component = &file.layout.components[0];
    let object = ObjectId {
        data_id: component.data_id,
        column: Column(0),
    };
    let right = 2 + usize::from(component.start_column.0) % 3;
    let open = |at: usize| OpenTarget::open(bench.cell.spec(at)).unwrap();

    bench.cell.restore(&bench.saved);
    open(2 + (right - 1) % 3)
        .write(object, 0, &[7; 9000])
        .unwrap();
    bench.put_right("a copy on another target", "object-misplaced", 0);

    // Bytes without an inode become a file that can be read.
    bench.cell.restore(&bench.saved);
    let data_id = DataId(object.data_id.0 + 5000);
    let nobody = ObjectId { data_id, ..object };
    open(right).write(nobody, 0, &[8; 9000]).unwrap();
    bench.put_right("an object of nobody", "object-no-inode", 0);
    let name = format!("data-{}-{}", data_id.partition(), data_id.sequence());
    let ino = bench.lost_found(&name).unwrap();
    assert_ne!(ino.0, data_id.0);
    let engine = open_engine(bench.cell.spec(1));
    let found = inode(&engine, ino);
    assert_eq!(found.size, 9000);
    assert!(found.layout.data_ids().eq([data_id]));
    drop(engine);
    assert_eq!(open(right).read(nobody, 0, 9000).unwrap(), vec![8; 9000]);

    // The target knows a later truncation than the inode: it would refuse writes for ever.
    bench.cell.restore(&bench.saved);
    let truncation = Truncation {
        seq: 5,
        bytes: 65_536,
    };
    open(right).truncate(object, truncation);
    bench.put_right("a shrink that the inode does not know", "shrinks", 0);
    let engine = open_engine(bench.cell.spec(1));
    assert_eq!(inode(&engine, file.ino).truncate_seq, 5);
    drop(engine);

    // The last truncation number that a client may use.
    bench.cell.restore(&bench.saved);
    let seq = TRUNCATION_NUMBER_MAX;
    open(right).truncate(object, Truncation { seq, ..truncation });
    bench.put_right("the last number of a truncation", "shrinks", 0);
    let engine = open_engine(bench.cell.spec(1));
    assert_eq!(inode(&engine, file.ino).truncate_seq, seq);
    drop(engine);

    // Bytes behind the longest file with several columns.
    let wide = bench.cell.files.iter().find(|file| {
        let first = file.layout.components.first();
        first.is_some_and(|component| component.count > 1) && file.size > 0
    });
    let wide = wide.unwrap();
    bench.cell.restore(&bench.saved);
    let component = &wide.layout.components[0];
    let far = ObjectId {
        data_id: component.data_id,
        column: Column(0),
    };
    let at = 2 + usize::from(component.start_column.0) % 3;
    open(at).write(far, FILE_BYTES_MAX - 4096, &[1]).unwrap();
    let (repaired, heard) = bench.cell.fsck(true);
    assert_eq!(repaired.left, 0, "{:#?}", heard.findings);
    let (summary, heard) = bench.cell.fsck(false);
    assert_eq!(
        (summary.found, summary.notes),
        (0, 0),
        "{:#?}",
        heard.findings
    );
    let engine = open_engine(bench.cell.spec(1));
    assert_eq!(inode(&engine, wide.ino).size, FILE_BYTES_MAX);
    drop(engine);

    // Leftovers of a client's crash are reported, and the cell counts as clean.
    bench.cell.restore(&bench.saved);
    open(right).write(object, 65_536, &[9; 100]).unwrap();
    let (summary, heard) = bench.cell.fsck(false);
    assert_eq!(
        (summary.found, summary.notes),
        (0, 2),
        "{:#?}",
        heard.findings
    );
    assert_eq!(heard.names(), ["allocated", "data-behind-size"]);
}
