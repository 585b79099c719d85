//! Damage to the records of shards and of the map, made through their own engines. Each kind is
//! found by its name, a repair leaves the cell clean, and undamaged files stay as they were.
#![allow(
    clippy::unwrap_used,
    clippy::too_many_lines,
    reason = "tests: one list of damages each"
)]

mod common;

use common::{Bench, entry, get_entry, inode, lists, lookup, open_engine, read_map};
use zonal_disk::Engine;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::inode::{FLAG_ORPHAN, Inode};
use zonal_meta::keys;
use zonal_testkit::Rng;
use zonal_types::{Codec, FileKind, Ino, KvChange, KvRead, ShardId};
use zonal_zonemap::{JunctionChange, junctions};

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

#[test]
fn damaged_shards_are_repaired() {
    let bench = Bench::new("shard");
    let name = |ino: Ino, what: &str| format!("{what}-{}-{}", ino.partition(), ino.sequence());
    for round in 0..lists() {
        let mut rng = Rng(round * 91 + 5);
        let file = bench.file(&mut rng).clone();
        let ino = file.ino;
        let (above, last) = file.path.rsplit_once('/').unwrap();
        let (dir, links) = {
            bench.cell.restore(&bench.saved);
            let (root, shard) = (
                open_engine(bench.cell.spec(0)),
                open_engine(bench.cell.spec(1)),
            );
            let dir = lookup(&root, &shard, above).unwrap();
            (dir, inode(&shard, ino).nlink)
        };
        // A file with a second name keeps that name.
        let nameless = if links > 1 {
            "inode-links"
        } else {
            "inode-no-name"
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
        on("the entry", nameless, 1, &|_| {
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
                // Of two names in one directory either may go; of names in two directories the
                // repair knows the right one by the parent.
                let mut inner = directories(engine).into_iter();
                let inner = inner.find(|one| one.parent != dir && one.ino != dir);
                vec![entry(dir, "again", inner.unwrap().ino, FileKind::Directory)]
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
            // Moves a directory below one of its own descendants.
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
        on("what a file without a name is called", nameless, 1, &|_| {
            vec![KvChange::remove(keys::dentry(dir, cookie))]
        });
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
fn damaged_roots_and_maps_are_repaired() {
    let bench = Bench::new("root");
    let map = read_map(&open_engine(bench.cell.spec(0)));
    let all_junctions = junctions::all(&open_engine(bench.cell.spec(0))).unwrap();
    let first = all_junctions[0].ino;
    let cookie = name_cookie(b"first", 55);
    let all = 160;
    bench.try_damage("a root entry", "junction", all, 0, &|_| {
        vec![KvChange::remove(keys::dentry(Ino::ROOT, cookie))]
    });
    let root = open_engine(bench.cell.spec(0));
    assert!(get_entry(&root, Ino::ROOT, "lost+found-1").is_some_and(|dentry| dentry.ino == first));
    drop(root);
    let zone = zonal_types::ZoneId(1);
    let nowhere = Ino::new(map.partitions_of(ShardId(1))[0], 900_000);
    let add = |ino, path: &str| JunctionChange::Add {
        ino,
        path: path.to_owned(),
        zone,
    };
    let damages = [
        ("a junction", JunctionChange::Remove { ino: first }),
        ("a junction's path", add(first, "/elsewhere")),
        ("a junction to nowhere", add(nowhere, "/nowhere")),
    ];
    for (name, damage) in damages {
        bench.try_damage(name, "junction", 0, 0, &|engine| {
            junctions::plan(engine, vec![damage.clone()], &|_ino| None).unwrap()
        });
    }
    // Each of the junction's two keys.
    for (at, name) in [(1, "a junction by inode"), (2, "a junction by path")] {
        bench.try_damage(name, "junction", 0, 0, &|engine| {
            let mut keys = Vec::new();
            let start = [&junctions::JUNCTION_KEY[..], &[at]].concat();
            let end = [&junctions::JUNCTION_KEY[..], &[at + 1]].concat();
            let mut see = |key: &[u8], _value: &[u8]| {
                keys.push(key.to_vec());
                true
            };
            KvRead::scan(engine, &start, &end, &mut see).unwrap();
            vec![KvChange::put(keys[0].clone(), b"?".to_vec())]
        });
    }
    bench.try_damage(
        "a first-level directory",
        "entry-no-directory",
        0,
        1,
        &|_| vec![KvChange::remove(keys::inode(first))],
    );
}
