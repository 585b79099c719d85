//! The check of a running cell: changes during the check are no findings. Real damage is a finding,
//! under the name that it has in a check of the stopped cell.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{Bench, Made, Open, TestCell, entry, get_entry, inode};
use zonal_disk::Engine;
use zonal_disk::LogRoom;
use zonal_meta::dentry::name_cookie;
use zonal_meta::inode::{FLAG_ORPHAN, Inode};
use zonal_meta::keys;
use zonal_object::ObjectId;
use zonal_offline::{OfflineError, running_cell};
use zonal_types::{Codec, Column, FileKind, Ino, KvChange, KvRead};
use zonal_zonemap::{JunctionChange, junctions};

fn put(inode: &Inode) -> KvChange {
    KvChange::put(keys::inode(inode.ino), inode.to_bytes())
}

fn nothing(_open: &Open, _number: u32) {}

/// Removes a file with its objects, as its shard and its targets do.
fn remove(open: &Open, file: &Made) {
    let shard = &open.shards[1];
    let found = inode(shard, file.ino);
    let (_, last) = file.path.rsplit_once('/').unwrap();
    let mut dir = inode(shard, found.parent);
    dir.size -= 1;
    let changes = vec![
        KvChange::remove(keys::inode(file.ino)),
        KvChange::remove(keys::data(found.layout.components[0].data_id)),
        KvChange::remove(keys::xattr(file.ino, b"user.note")),
        KvChange::remove(keys::dentry(dir.ino, name_cookie(last.as_bytes(), 55))),
        put(&dir),
    ];
    shard.append_with(changes, &[], LogRoom::Normal).unwrap();
    remove_objects(open, file);
}

fn remove_objects(open: &Open, file: &Made) {
    for target in &open.targets {
        for column in 0..file.layout.components[0].count {
            let data_id = file.layout.components[0].data_id;
            let column = Column(column);
            let (first, last) = zonal_object::key::object_range(ObjectId { data_id, column });
            let mut gone = Vec::new();
            target
                .engine
                .scan(&first, &last, &mut |key, _| {
                    gone.push(KvChange::remove(key.to_vec()));
                    true
                })
                .unwrap();
            target.engine.apply_unlogged(gone);
        }
    }
}

fn single_name(cell: &TestCell) -> Vec<&Made> {
    // Every tenth file has a second name.
    let files = cell.files.iter().enumerate();
    let files = files.filter(|(at, file)| at % 10 != 0 && file.size > 5000);
    files.map(|(_, file)| file).collect()
}

#[test]
fn a_healthy_cell_is_clean_also_where_servers_are_restarted() {
    let cell = TestCell::make("running-healthy", 300);
    let before = cell.save();
    for dying in [0, 1, running_cell::ROUNDS_MAX - 1] {
        let (summary, heard) = cell.look(dying, &nothing).unwrap();
        assert_eq!(heard.findings, []);
        assert_eq!((summary.found, summary.notes, summary.changing), (0, 0, 0));
        assert!(summary.inodes > 300 && summary.objects > 250, "{summary:?}");
    }
    let lost = cell.look(running_cell::ROUNDS_MAX, &nothing);
    assert!(matches!(lost, Err(OfflineError::SnapshotGone(_))));
    assert!(!cell.dir.join("scratch").exists(), "something is left");
    cell.restore(&before);
    assert_eq!(cell.fsck(false).0.found, 0);
}

#[test]
fn changes_during_a_check_are_no_findings() {
    let cell = TestCell::make("running-younger", 200);
    let saved = cell.save();
    let files = single_name(&cell);
    let (gone, cut) = (&files[..5], files[6]);
    // Removed between the list of objects and the snapshots.
    let removed = |open: &Open, number: u32| {
        if number == 1 {
            gone.iter().for_each(|file| remove(open, file));
        }
    };
    let (summary, heard) = cell.look(0, &removed).unwrap();
    assert_eq!(heard.findings, []);
    assert_eq!((summary.found, summary.changing), (0, 0));
    // The same, but its objects stay: nobody will ever remove them.
    cell.restore(&saved);
    let leaked = |open: &Open, number: u32| {
        if number == 1 {
            let shard = &open.shards[1];
            let deleted = vec![KvChange::remove(keys::inode(files[0].ino))];
            shard.append_with(deleted, &[], LogRoom::Normal).unwrap();
        }
    };
    let (_, heard) = cell.look(0, &leaked).unwrap();
    assert!(
        heard.names().contains(&"object-no-inode"),
        "{:?}",
        heard.names()
    );
    // A file that is written all the time is counted as changing.
    cell.restore(&saved);
    let growing = |open: &Open, number: u32| {
        let mut found = inode(&open.shards[1], cut.ino);
        found.allocated += 4096 * u64::from(number);
        open.shards[1]
            .append_with(vec![put(&found)], &[], LogRoom::Normal)
            .unwrap();
    };
    let (summary, heard) = cell.look(0, &growing).unwrap();
    assert_eq!(heard.findings, []);
    assert_eq!((summary.notes, summary.changing), (0, 1));
    // A late report arrives.
    cell.restore(&saved);
    let reported = |open: &Open, number: u32| {
        let mut found = inode(&open.shards[1], cut.ino);
        match number {
            1 => found.allocated += 8192,
            2 => found.allocated -= 8192,
            _ => return,
        }
        open.shards[1]
            .append_with(vec![put(&found)], &[], LogRoom::Normal)
            .unwrap();
    };
    let (summary, heard) = cell.look(0, &reported).unwrap();
    assert_eq!((heard.findings, summary.changing), (vec![], 0));
}

#[test]
fn a_file_without_its_objects_is_reported_by_its_path() {
    let cell = TestCell::make("running-missing", 100);
    let file = single_name(&cell)[0].clone();
    {
        let open = cell.open();
        remove_objects(&open, &file);
        for target in &open.targets {
            target.engine.checkpoint(&mut || Ok(())).unwrap();
        }
    }
    let (summary, heard) = cell.look(0, &nothing).unwrap();
    assert_eq!((summary.found, summary.notes), (0, 1));
    let (_, finding) = &heard.findings[0];
    assert_eq!(finding.what.name(), "allocated");
    assert_eq!(finding.path.as_deref(), Some(file.path.as_str()));
}

#[test]
fn planted_damage_has_the_name_that_the_stopped_check_gives_it() {
    let bench = Bench::new("running-planted");
    let file = single_name(&bench.cell)[3].clone();
    let ino = file.ino;
    let (_, last) = file.path.rsplit_once('/').unwrap();
    let cookie = name_cookie(last.as_bytes(), 55);
    let dir = {
        let shard = common::open_engine(bench.cell.spec(1));
        inode(&shard, ino).parent
    };
    let changed = |ino: Ino, engine: &Engine, change: &dyn Fn(&mut Inode)| {
        let mut found = inode(engine, ino);
        change(&mut found);
        vec![put(&found)]
    };
    type Damage<'a> = (&'a str, usize, Box<dyn Fn(&Engine) -> Vec<KvChange> + 'a>);
    let damages: Vec<Damage<'_>> = vec![
        (
            "inode-links",
            1,
            Box::new(|engine| changed(ino, engine, &|inode| inode.nlink += 3)),
        ),
        (
            "orphan",
            1,
            Box::new(|engine| changed(ino, engine, &|inode| inode.flags |= FLAG_ORPHAN)),
        ),
        (
            "directory-counts",
            1,
            Box::new(|engine| changed(dir, engine, &|inode| inode.size = 9999)),
        ),
        (
            "inode-no-name",
            1,
            Box::new(|_| vec![KvChange::remove(keys::dentry(dir, cookie))]),
        ),
        (
            "entry-nowhere",
            1,
            Box::new(|_| vec![KvChange::remove(keys::inode(ino))]),
        ),
        (
            "object-no-inode",
            1,
            Box::new(|_| vec![KvChange::remove(keys::inode(ino))]),
        ),
        (
            "shard-key",
            1,
            Box::new(|_| vec![KvChange::put(keys::inode(ino), vec![1, 2, 3])]),
        ),
        (
            "entry-type",
            1,
            Box::new(|engine| {
                let mut found = get_entry(engine, dir, last).unwrap();
                found.kind = FileKind::Symlink;
                vec![KvChange::put(keys::dentry(dir, cookie), found.to_bytes())]
            }),
        ),
        (
            "allocated",
            1,
            Box::new(|engine| changed(ino, engine, &|inode| inode.allocated += 4096)),
        ),
        (
            "data-behind-size",
            1,
            Box::new(|engine| changed(ino, engine, &|inode| inode.size = 1)),
        ),
        (
            "junction",
            0,
            Box::new(|engine| {
                let last = junctions::all(engine).unwrap().pop().unwrap();
                let gone = JunctionChange::Remove { ino: last.ino };
                junctions::plan(engine, vec![gone], &|_ino| None).unwrap()
            }),
        ),
        (
            "inode-links",
            1,
            Box::new(|_| vec![entry(dir, "another", ino, FileKind::File)]),
        ),
    ];
    for (expected, at, damage) in &damages {
        bench.put_in(expected, *at, damage.as_ref());
        let (summary, heard) = bench.cell.look(0, &nothing).unwrap();
        let stopped = bench.cell.fsck(false);
        assert!(
            heard.names().contains(expected),
            "{expected}: {:?}",
            heard.names()
        );
        assert_eq!(heard.names(), stopped.1.names(), "{expected}");
        assert_eq!(summary.found, stopped.0.found, "{expected}");
    }
}
