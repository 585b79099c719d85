//! Damage to what stores say, put in through their own engines: each kind is found by its name, a repair leaves the
//! cell clean, and what was not damaged is as it was.
#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests: one list of damages each"
)]

mod common;

use common::{
    GEOMETRY, Made, OpenTarget, TestCell, entry, get_entry, lookup, open_engine, read_map,
};
use std::collections::BTreeMap;
use std::path::PathBuf;
use zonal_disk::Engine;
use zonal_disk::engine::Room;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::inode::{FLAG_ORPHAN, Inode};
use zonal_meta::keys;
use zonal_object::chunk::{BlockState, Chunk};
use zonal_object::{Cut, ObjectId, key};
use zonal_testkit::Rng;
use zonal_types::{Codec, Column, DataId, FileKind, Ino, KvChange, KvRead, ShardId};

type Saved = BTreeMap<PathBuf, Vec<u8>>;

struct Bench {
    cell: TestCell,
    saved: Saved,
}

impl Bench {
    fn new(name: &str) -> Self {
        let cell = TestCell::make(name, 160);
        // Everything into the indexes, so that each damage is a record of its own.
        for at in 0..2 {
            open_engine(cell.spec(at))
                .checkpoint(&mut || Ok(()))
                .unwrap();
        }
        let saved = cell.save();
        Self { cell, saved }
    }

    /// Changes one store, checks and repairs; `suffering`: files that may be elsewhere or incomplete afterwards.
    fn try_damage(
        &self,
        context: &str,
        expected: &str,
        suffering: usize,
        at: usize,
        damage: &dyn Fn(&Engine) -> Vec<KvChange>,
    ) {
        self.put_in(context, at, damage);
        self.put_right(context, expected, suffering);
    }

    fn put_in(&self, context: &str, at: usize, damage: &dyn Fn(&Engine) -> Vec<KvChange>) {
        self.cell.restore(&self.saved);
        {
            let engine = open_engine(self.cell.spec(at));
            let changes = damage(&engine);
            assert!(!changes.is_empty(), "{context}: no damage");
            if at < 2 {
                engine.append_with(changes, &[], Room::Normal).unwrap();
                engine.sync_all().unwrap();
            } else {
                // A target's records carry notes: into the index with what the log has of them.
                drop(engine);
                let mut target = OpenTarget::open(self.cell.spec(at)).unwrap();
                target.checkpoint();
                target.engine.apply_unlogged(changes);
                target.engine.checkpoint(&mut || Ok(())).unwrap();
            }
        }
    }

    fn put_right(&self, context: &str, expected: &str, suffering: usize) {
        let (found, heard) = self.cell.fsck(false);
        assert!(
            found.found > 0,
            "{context}: not found: {:?}",
            heard.findings
        );
        assert!(
            heard.names().contains(&expected),
            "{context}: {:?}",
            heard.names()
        );
        let (repaired, more) = self.cell.fsck(true);
        assert_eq!(repaired.left, 0, "{context}: {:#?}", more.findings);
        let (again, told) = self.cell.fsck(false);
        assert_eq!(again.found, 0, "{context}: {:#?}", told.findings);
        let (_, other) = self.cell.verify(context);
        assert!(
            other <= suffering,
            "{context}: {other} files suffer\n{:#?}",
            heard.findings
        );
        self.cell.work(context);
    }

    fn file(&self, rng: &mut Rng) -> &Made {
        &self.cell.files[rng.index(self.cell.files.len())]
    }

    fn lost_found(&self, name: &str) -> Option<Ino> {
        let (root, shard) = (
            open_engine(self.cell.spec(0)),
            open_engine(self.cell.spec(1)),
        );
        lookup(&root, &shard, &format!("/lost+found-1/{name}"))
    }
}

fn inode(engine: &Engine, ino: Ino) -> Inode {
    Inode::decode(ino, &engine.get(&keys::inode(ino)).unwrap().unwrap()).unwrap()
}

fn put(inode: &Inode) -> KvChange {
    KvChange::put(keys::inode(inode.ino), inode.to_bytes())
}

fn directories(engine: &Engine) -> Vec<Inode> {
    let mut found = Vec::new();
    engine
        .scan(&[], &[0xff], &mut |key, value| {
            if key[4] == keys::TAG_INODE {
                let inode = Inode::decode(keys::ino_of(key).unwrap(), value).unwrap();
                if inode.is_dir() && inode.parent != Ino::ROOT {
                    found.push(inode);
                }
            }
            true
        })
        .unwrap();
    found
}

fn rounds() -> u64 {
    let wanted = std::env::var("ZONAL_DAMAGES").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(1)
}

#[test]
fn damaged_shards_are_put_right() {
    let bench = Bench::new("shard");
    let name = |ino: Ino, what: &str| format!("{what}-{}-{}", ino.partition(), ino.sequence());
    for round in 0..rounds() {
        let mut rng = Rng(round * 91 + 5);
        let file = bench.file(&mut rng).clone();
        let ino = file.ino;
        let (above, last) = file.path.rsplit_once('/').unwrap();
        let dir = {
            bench.cell.restore(&bench.saved);
            let (root, shard) = (
                open_engine(bench.cell.spec(0)),
                open_engine(bench.cell.spec(1)),
            );
            lookup(&root, &shard, above).unwrap()
        };
        let cookie = name_cookie(last.as_bytes(), 55);
        let on = |context: &str,
                  expected: &str,
                  suffering,
                  damage: &dyn Fn(&Engine) -> Vec<KvChange>| {
            let context = format!("round {round}: {context} of {}", file.path);
            bench.try_damage(&context, expected, suffering, 1, damage);
        };
        let changed = |ino: Ino, change: &dyn Fn(&mut Inode), engine: &Engine| {
            let mut found = inode(engine, ino);
            change(&mut found);
            vec![put(&found)]
        };
        on("links", "inode-links", 0, &|engine| {
            changed(ino, &|inode| inode.nlink += 3, engine)
        });
        on("orphan's mark", "orphan", 0, &|engine| {
            changed(ino, &|inode| inode.flags |= FLAG_ORPHAN, engine)
        });
        on("directory's counts", "directory-counts", 0, &|engine| {
            changed(dir, &|inode| (inode.size, inode.nlink) = (9999, 77), engine)
        });
        on("the entry", "inode-no-name", 1, &|_| {
            vec![KvChange::remove(keys::dentry(dir, cookie))]
        });
        on("the inode", "entry-nowhere", 2, &|_| {
            vec![KvChange::remove(keys::inode(ino))]
        });
        on("a damaged inode", "shard-key", 2, &|_| {
            vec![KvChange::put(keys::inode(ino), vec![1, 2, 3])]
        });
        on("a damaged entry", "shard-key", 1, &|_| {
            vec![KvChange::put(keys::dentry(dir, cookie), vec![0xff; 9])]
        });
        on("the type", "entry-type", 0, &|engine| {
            let mut found = get_entry(engine, dir, last).unwrap();
            found.kind = FileKind::Symlink;
            vec![KvChange::put(keys::dentry(dir, cookie), found.to_bytes())]
        });
        on("an entry in the wrong place", "entry-place", 0, &|engine| {
            let found = get_entry(engine, dir, last).unwrap();
            vec![
                KvChange::remove(keys::dentry(dir, cookie)),
                KvChange::put(keys::dentry(dir, cookie ^ 0x10_0000), found.to_bytes()),
            ]
        });
        on(
            "an entry without its first place",
            "entry-place",
            0,
            &|engine| {
                let found = get_entry(engine, dir, last).unwrap();
                vec![
                    KvChange::remove(keys::dentry(dir, cookie)),
                    KvChange::put(keys::dentry(dir, cookie + 3), found.to_bytes()),
                ]
            },
        );
        on("a deletion", "deletion", 0, &|engine| {
            let layout = inode(engine, ino).layout;
            vec![KvChange::put(keys::deletion(ino), layout.to_bytes())]
        });
        on("attributes of nobody", "inode-remains", 0, &|_| {
            let nobody = Ino(ino.0 + 500);
            vec![KvChange::put(keys::xattr(nobody, b"user.x"), vec![1])]
        });
        on("attributes that are not known", "inode-xattrs", 0, &|_| {
            vec![KvChange::put(keys::xattr(ino, b"trusted.x"), vec![1])]
        });
        on("numbers", "inode-numbers", 0, &|_| {
            vec![KvChange::remove(keys::ids(ino.partition()))]
        });
        on("a session", "shard-key", 0, &|_| {
            vec![KvChange::put(
                keys::session(zonal_types::SessionId(7)),
                vec![1],
            )]
        });
        on("the format", "shard-key", 0, &|_| {
            vec![KvChange::put(keys::format(), vec![9])]
        });
        on(
            "the same name twice for a directory",
            "directory-names",
            0,
            &|engine| {
                let inner = directories(engine).remove(0);
                vec![entry(dir, "again", inner.ino, FileKind::Directory)]
            },
        );
        on("a wrong parent", "directory-parent", 0, &|engine| {
            let inner = directories(engine).pop().unwrap();
            changed(inner.ino, &|inode| inode.parent = Ino(ino.0), engine)
        });
        let some = 160;
        on("a directory's inode", "entry-no-directory", 0, &|engine| {
            let inner = directories(engine).remove(0);
            vec![KvChange::remove(keys::inode(inner.ino))]
        });
        on("a cycle", "directory-cycle", some, &|engine| {
            // A directory goes below one that is below it.
            let all = directories(engine);
            let lower = all
                .iter()
                .find(|one| all.iter().any(|other| other.ino == one.parent));
            let lower = lower.unwrap();
            let upper = inode(engine, lower.parent);
            let text = |dir: &Inode| {
                let mut found = None;
                let (start, end) = keys::dentries(dir.parent);
                engine
                    .scan(&start, &end, &mut |key, value| {
                        let dentry = Dentry::decode(value).unwrap();
                        if dentry.ino == dir.ino {
                            found = Some(key.to_vec());
                        }
                        true
                    })
                    .unwrap();
                found.unwrap()
            };
            let mut moved = upper.clone();
            moved.parent = lower.ino;
            vec![
                KvChange::remove(text(&upper)),
                entry(lower.ino, "around", upper.ino, FileKind::Directory),
                put(&moved),
            ]
        });
        on(
            "what a file without a name is called",
            "inode-no-name",
            1,
            &|_| vec![KvChange::remove(keys::dentry(dir, cookie))],
        );
        let number: u64 = last.trim_start_matches("file").parse().unwrap();
        if !number.is_multiple_of(10) {
            assert_eq!(
                bench.lost_found(&name(ino, "file")),
                Some(ino),
                "{}",
                file.path
            );
        }
    }
}

#[test]
fn damaged_roots_and_maps_are_put_right() {
    let bench = Bench::new("root");
    let map = read_map(&open_engine(bench.cell.spec(0)));
    let first = map.junctions[0].ino;
    let cookie = name_cookie(b"first", 55);
    let put_map =
        |map: &zonal_zonemap::ZoneMap| KvChange::put(common::MAP_KEY.to_vec(), map.to_bytes());
    let all = 160;
    bench.try_damage("a root entry", "junction", all, 0, &|_| {
        vec![KvChange::remove(keys::dentry(Ino::ROOT, cookie))]
    });
    let root = open_engine(bench.cell.spec(0));
    assert!(get_entry(&root, Ino::ROOT, "lost+found-1").is_some_and(|dentry| dentry.ino == first));
    drop(root);
    bench.try_damage("a junction", "junction", 0, 0, &|_| {
        let mut map = map.clone();
        map.junctions.remove(0);
        vec![put_map(&map)]
    });
    bench.try_damage("a junction's path", "junction", 0, 0, &|_| {
        let mut map = map.clone();
        map.junctions[0].path = "/elsewhere".into();
        vec![put_map(&map)]
    });
    bench.try_damage("a junction to nowhere", "junction", 0, 0, &|_| {
        let mut map = map.clone();
        let partition = map.partitions_of(ShardId(1))[0];
        let ino = Ino::new(partition, 900_000);
        let path = "/nowhere".to_owned();
        let zone = zonal_types::ZoneId(1);
        map.junctions
            .push(zonal_zonemap::Junction { ino, path, zone });
        vec![put_map(&map)]
    });
    bench.try_damage(
        "a first-level directory",
        "entry-no-directory",
        0,
        1,
        &|_| vec![KvChange::remove(keys::inode(first))],
    );
}

#[test]
fn damaged_targets_are_put_right() {
    let bench = Bench::new("target");
    let set = bench
        .cell
        .map
        .zone(zonal_types::ZoneId(1))
        .unwrap()
        .default_set
        .unwrap();
    let set = bench.cell.map.set(set).unwrap().clone();
    // Files with a whole block, and the store of their first column.
    let large: Vec<&Made> = bench
        .cell
        .files
        .iter()
        .filter(|file| file.size >= 65_536)
        .collect();
    for round in 0..rounds() {
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
                    &zonal_object::Broken::HalfDeleted(object),
                    &|_| None,
                );
                let changes = sealed.unwrap();
                assert_eq!(changes[0].key, key);
                changes
            },
        );
        on("a unit that two refer to", "unit-twice", 0, &|engine| {
            // A chunk of its own that claims the unit of another file, with a checksum that does not fit.
            let place = chunk(engine).get(0).place().unwrap();
            let mut copy = chunk(engine);
            let free = (0..64).find(|block| copy.get(*block) == BlockState::Hole);
            let Some(free) = free else {
                // A full chunk: behind its end.
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
fn objects_in_wrong_places_are_put_right() {
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

    // Bytes of which no inode knows become a file that can be read.
    bench.cell.restore(&bench.saved);
    let data_id = DataId(object.data_id.0 + 5000);
    let nobody = ObjectId { data_id, ..object };
    open(right).write(nobody, 0, &[8; 9000]).unwrap();
    bench.put_right("an object of nobody", "object-no-inode", 0);
    let ino = Ino(data_id.0);
    let name = format!("data-{}-{}", ino.partition(), ino.sequence());
    assert_eq!(bench.lost_found(&name), Some(ino));
    let engine = open_engine(bench.cell.spec(1));
    assert_eq!(inode(&engine, ino).size, 9000);
    drop(engine);
    assert_eq!(open(right).read(nobody, 0, 9000).unwrap(), vec![8; 9000]);

    // A target knows a shrink that the inode does not: writes would be refused for ever.
    bench.cell.restore(&bench.saved);
    let cut = Cut {
        seq: 5,
        bytes: 65_536,
    };
    open(right).truncate(object, cut);
    bench.put_right("a shrink that the inode does not know", "shrinks", 0);
    let engine = open_engine(bench.cell.spec(1));
    assert_eq!(inode(&engine, file.ino).truncate_seq, 5);
    drop(engine);

    // What a crash of a client leaves is told and leaves the cell clean.
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
