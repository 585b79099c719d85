//! Names, links and counts, one rule a test.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::JunctionChange;
use zonal_types::{ErrorCode, FileKind, Ino};
use zonal_wire::meta::NewKind;
use zonal_wire::meta::flags::{RENAME_EXCHANGE, RENAME_NOREPLACE, RENAME_WHITEOUT};
use zonal_wire::{MetaReply, MetaRequest};

#[test]
fn a_first_level_directory_lives_in_its_zone_and_its_entry_in_the_root() {
    let (mut cell, mut client, home) = start();
    assert_eq!(cell.shard_of(home), 1);
    client.zone = zonal_types::ZoneId(2);
    let far = client.mkdir(&mut cell, Ino::ROOT, "far").unwrap();
    assert_eq!(cell.shard_of(far), 2);
    assert_eq!(client.lookup(&mut cell, Ino::ROOT, "far"), Ok(far));
    let root = client.attr(&mut cell, Ino::ROOT).unwrap();
    assert_eq!(root.nlink, 4);
    assert_eq!(
        client.mkdir(&mut cell, Ino::ROOT, "far"),
        Err(ErrorCode::Exists)
    );
    client.zone = zonal_types::ZoneId(9);
    assert_eq!(
        client.mkdir(&mut cell, Ino::ROOT, "x"),
        Err(ErrorCode::Invalid)
    );
    client.create(&mut cell, far, "f", 0o644).unwrap();
    assert_eq!(
        client.rmdir(&mut cell, Ino::ROOT, "far"),
        Err(ErrorCode::NotEmpty)
    );
    assert_eq!(
        client.rename(&mut cell, (far, "f"), (home, "f"), 0),
        Err(ErrorCode::CrossShard)
    );
    client.unlink(&mut cell, far, "f").unwrap();
    client.moved(&mut cell, (Ino::ROOT, "far"), (Ino::ROOT, "away"));
    client
        .rename(
            &mut cell,
            (Ino::ROOT, "away"),
            (Ino::ROOT, "home"),
            RENAME_EXCHANGE,
        )
        .unwrap();
    assert_eq!(client.lookup(&mut cell, Ino::ROOT, "home"), Ok(far));
    client.moved(&mut cell, (Ino::ROOT, "away"), (Ino::ROOT, "home"));
    assert_eq!(client.lookup(&mut cell, Ino::ROOT, "home"), Ok(home));
    assert_eq!(client.attr(&mut cell, far), Err(ErrorCode::Stale));
    client.rmdir(&mut cell, Ino::ROOT, "home").unwrap();
    assert_eq!(client.attr(&mut cell, home), Err(ErrorCode::Stale));
    assert_eq!(client.attr(&mut cell, Ino::ROOT).unwrap().nlink, 2);
    assert!(matches!(&cell.junctions[0], JunctionChange::Add { path, .. } if path == "/home"));
    assert_eq!(
        cell.junctions.last(),
        Some(&JunctionChange::Remove { ino: home })
    );
    cell.assert_sound();
}

#[test]
fn a_sticky_root_keeps_other_users_directories() {
    let (mut cell, client, home) = start();
    let mut root = client.clone();
    root.chmod(&mut cell, Ino::ROOT, 0o1777).unwrap();
    root.sequence += 100;
    let mut anna = root.who(100, 100);
    let mine = anna.mkdir(&mut cell, Ino::ROOT, "anna").unwrap();
    assert_eq!(anna.attr(&mut cell, mine).unwrap().uid, 100);
    assert_eq!(
        anna.rmdir(&mut cell, Ino::ROOT, "home"),
        Err(ErrorCode::NotPermitted)
    );
    let mut berta = anna.who(101, 101);
    assert_eq!(
        berta.rename(&mut cell, (Ino::ROOT, "anna"), (Ino::ROOT, "x"), 0),
        Err(ErrorCode::NotPermitted)
    );
    anna.sequence = berta.sequence;
    anna.rmdir(&mut cell, Ino::ROOT, "anna").unwrap();
    assert!(anna.attr(&mut cell, home).is_ok());
    cell.assert_sound();
}

#[test]
fn a_directory_that_stays_detached_is_settled_by_asking_the_root() {
    let (mut cell, _client, home) = start();
    let request = MetaRequest::MakeDetachedDir {
        uid: 1,
        gid: 1,
        mode: 0o755,
        default_acl: None,
        token: 77,
    };
    let MetaReply::Detached { ino } = cell.send(1, none(), &request) else {
        panic!()
    };
    assert_eq!(cell.send(1, none(), &request), MetaReply::Detached { ino });
    let store = &cell.stores[1];
    assert!(
        store
            .shard
            .detached(&store.kv, cell.now, 9)
            .unwrap()
            .is_empty()
    );
    cell.pass_ms(61_000);
    let store = &cell.stores[1];
    let due = store.shard.detached(&store.kv, cell.now, 9).unwrap();
    assert_eq!(due.iter().map(|found| found.ino).collect::<Vec<_>>(), [ino]);
    assert_eq!(
        cell.send(0, none(), &MetaRequest::HasEntry { ino }),
        MetaReply::Yes { yes: false }
    );
    assert_eq!(
        cell.send(0, none(), &MetaRequest::HasEntry { ino: home }),
        MetaReply::Yes { yes: true }
    );
    assert_eq!(
        cell.send(1, none(), &MetaRequest::DropDir { ino }),
        MetaReply::Done
    );
    assert_eq!(
        cell.send(1, none(), &MetaRequest::DropDir { ino }),
        MetaReply::Done
    );
    cell.assert_sound();
}

#[test]
fn renames_keep_counts_and_refuse_loops() {
    let (mut cell, mut client, home) = start();
    let a = client.mkdir(&mut cell, home, "a").unwrap();
    let b = client.mkdir(&mut cell, a, "b").unwrap();
    let c = client.mkdir(&mut cell, b, "c").unwrap();
    let f = client.create(&mut cell, a, "f", 0o644).unwrap();
    for (from, to, flags, code) in [
        ((home, "a"), (c, "a"), 0, ErrorCode::Invalid),
        ((home, "a"), (a, "x"), 0, ErrorCode::Invalid),
        ((b, "c"), (home, "a"), 0, ErrorCode::NotEmpty),
        ((a, "f"), (a, "b"), 0, ErrorCode::IsDirectory),
        ((a, "b"), (a, "f"), 0, ErrorCode::NotDirectory),
        ((a, "f"), (a, "b"), RENAME_NOREPLACE, ErrorCode::Exists),
        ((a, "f"), (a, "n"), RENAME_EXCHANGE, ErrorCode::NotFound),
    ] {
        let refused = client.rename(&mut cell, from, to, flags);
        assert_eq!(refused, Err(code), "{from:?} to {to:?}");
    }
    client
        .rename(&mut cell, (a, "f"), (a, "b"), RENAME_EXCHANGE)
        .unwrap();
    assert_eq!(client.lookup(&mut cell, a, "b"), Ok(f));
    client.moved(&mut cell, (a, "f"), (home, "moved"));
    assert_eq!(client.attr(&mut cell, a).unwrap().nlink, 2);
    assert_eq!(client.attr(&mut cell, home).unwrap().nlink, 4);
    let empty = client.mkdir(&mut cell, home, "empty").unwrap();
    client.moved(&mut cell, (home, "moved"), (home, "empty"));
    assert_eq!(client.attr(&mut cell, empty), Err(ErrorCode::Stale));
    assert_eq!(client.lookup(&mut cell, home, "empty"), Ok(b));
    let reply = client
        .call(&mut cell, b, &MetaRequest::Parent { ino: b })
        .unwrap();
    assert_eq!(reply, MetaReply::Parent { parent: home });
    cell.assert_sound();
}

/// The entries of a directory.
fn listed(cell: &mut Cell, client: &mut Client, dir: Ino) -> Vec<(String, Ino)> {
    let entries = client.list(cell, dir).into_iter();
    let mut names: Vec<_> = entries
        .map(|entry| (entry.name.to_string(), entry.entry.ino))
        .collect();
    names.sort();
    names
}

#[test]
fn a_rename_leaves_a_whiteout_where_that_is_asked() {
    for hash_bits in [55, 1] {
        let mut cell = Cell::with(hash_bits, false);
        let mut client = cell.client(1);
        let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
        let other = client.mkdir(&mut cell, home, "other").unwrap();
        let f = client.create(&mut cell, home, "f", 0o644).unwrap();
        let g = client.create(&mut cell, home, "g", 0o644).unwrap();
        let d = client.mkdir(&mut cell, home, "d").unwrap();
        client.chmod(&mut cell, home, 0o777).unwrap();
        for flags in [RENAME_WHITEOUT | RENAME_EXCHANGE, 8 | RENAME_WHITEOUT] {
            let refused = client.rename(&mut cell, (home, "f"), (home, "g"), flags);
            assert_eq!(refused, Err(ErrorCode::Invalid), "{flags}");
        }
        let flags = RENAME_WHITEOUT | RENAME_NOREPLACE;
        let refused = client.rename(&mut cell, (home, "f"), (home, "g"), flags);
        assert_eq!(refused, Err(ErrorCode::Exists));
        // To a free name, over a name, a directory to another parent.
        let mut user = client.who(1000, 1000);
        user.rename(&mut cell, (home, "f"), (home, "new"), flags)
            .unwrap();
        client.sequence = user.sequence;
        client
            .rename(&mut cell, (home, "new"), (home, "g"), RENAME_WHITEOUT)
            .unwrap();
        client
            .rename(&mut cell, (home, "d"), (other, "d"), RENAME_WHITEOUT)
            .unwrap();
        cell.assert_sound();
        assert_eq!(client.lookup(&mut cell, home, "g"), Ok(f));
        assert_eq!(client.lookup(&mut cell, other, "d"), Ok(d));
        cell.pass_ms(2_000);
        assert_eq!(client.attr(&mut cell, g), Err(ErrorCode::Stale));
        let names = listed(&mut cell, &mut client, home);
        let texts: Vec<_> = names.iter().map(|(text, _)| text.as_str()).collect();
        assert_eq!(texts, ["d", "f", "g", "new", "other"]);
        for text in ["d", "f", "new"] {
            let ino = client.lookup(&mut cell, home, text).unwrap();
            let attr = client.attr(&mut cell, ino).unwrap();
            assert_eq!((attr.kind, attr.rdev), (FileKind::CharDevice, 0), "{text}");
            assert_eq!((attr.mode, attr.nlink), (0, 1), "{text}");
            let owner = if text == "f" { 1000 } else { 0 };
            assert_eq!(attr.uid, owner, "{text}");
            client.unlink(&mut cell, home, text).unwrap();
        }
        assert_eq!(client.attr(&mut cell, home).unwrap().nlink, 3);
        assert_eq!(client.attr(&mut cell, home).unwrap().size, 4_096 + 2 * 32);
        cell.assert_sound();
        let first = client.rename(&mut cell, (Ino::ROOT, "home"), (Ino::ROOT, "h"), flags);
        assert_eq!(first, Err(ErrorCode::Invalid), "it leads to another shard");
    }
}

#[test]
fn renaming_over_another_name_of_the_same_file_does_nothing() {
    let (mut cell, mut client, home) = start();
    let f = client.create(&mut cell, home, "f", 0o644).unwrap();
    client.link(&mut cell, f, home, "g").unwrap();
    client.moved(&mut cell, (home, "f"), (home, "g"));
    assert_eq!(client.attr(&mut cell, f).unwrap().nlink, 2);
    assert_eq!(client.lookup(&mut cell, home, "f"), Ok(f));
    assert_eq!(
        client.link(&mut cell, home, home, "d"),
        Err(ErrorCode::NotPermitted)
    );
    cell.assert_sound();
}

#[test]
fn a_file_made_without_a_name_may_get_one() {
    let (mut cell, mut client, home) = start();
    let make = |client: &mut Client, cell: &mut Cell, exclusive| {
        let zone = client.zone;
        let who = client.who.clone();
        let request = MetaRequest::Tmpfile {
            who,
            parent: home,
            mode: 0o600,
            umask: 0o22,
            zone,
            node: zonal_types::NodeId(0),
            exclusive,
        };
        entry_of(client.call(cell, home, &request).unwrap())
            .unwrap()
            .ino
    };
    let t = make(&mut client, &mut cell, false);
    assert_eq!(client.attr(&mut cell, t).unwrap().nlink, 0);
    cell.assert_sound();
    client.link(&mut cell, t, home, "t").unwrap();
    client.close(&mut cell, t).unwrap();
    assert_eq!(client.attr(&mut cell, t).unwrap().nlink, 1);
    let hidden = make(&mut client, &mut cell, true);
    assert_eq!(
        client.link(&mut cell, hidden, home, "h"),
        Err(ErrorCode::NotFound)
    );
    client.close(&mut cell, hidden).unwrap();
    cell.pass_ms(2_000);
    assert_eq!(client.attr(&mut cell, hidden), Err(ErrorCode::Stale));
    cell.assert_sound();
}

#[test]
fn names_that_share_a_hash_stay_apart() {
    let mut cell = Cell::with(2, false);
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let mut inos = Vec::new();
    for index in 0..40 {
        inos.push(
            client
                .create(&mut cell, home, &format!("n{index}"), 0o644)
                .unwrap(),
        );
    }
    cell.assert_sound();
    let before = client.list(&mut cell, home);
    for index in (0..40).step_by(3) {
        client
            .unlink(&mut cell, home, &format!("n{index}"))
            .unwrap();
        cell.assert_sound();
    }
    for (index, ino) in inos.iter().enumerate() {
        let expected = if index % 3 == 0 {
            Err(ErrorCode::NotFound)
        } else {
            Ok(*ino)
        };
        assert_eq!(
            client.lookup(&mut cell, home, &format!("n{index}")),
            expected
        );
    }
    for entry in client.list(&mut cell, home) {
        let same = before.iter().find(|old| old.name == entry.name).unwrap();
        assert_eq!(same.cookie, entry.cookie);
    }
    for index in 0..40 {
        let name = format!("n{index}");
        if index % 3 == 0 {
            client.create(&mut cell, home, &name, 0o644).unwrap();
        }
        client.moved(&mut cell, (home, &name), (home, &format!("r{index}")));
        client
            .unlink(&mut cell, home, &format!("r{index}"))
            .unwrap();
    }
    client.rmdir(&mut cell, Ino::ROOT, "home").unwrap();
    let left = cell.stores[1]
        .kv
        .keys()
        .filter(|key| key[4] == 0x20)
        .count();
    assert_eq!(left, 0);
    cell.assert_sound();
}

#[test]
fn creating_costs_few_keys() {
    let (mut cell, mut client, home) = start();
    client.create(&mut cell, home, "first", 0o644).unwrap();
    client.create(&mut cell, home, "second", 0o644).unwrap();
    // Entry, inode, index key of its data id, directory, slot, number of inodes.
    assert_eq!(cell.last_effect.len(), 6);
    client.lookup(&mut cell, home, "second").unwrap();
    assert!(cell.last_effect.is_empty());
}

#[test]
fn special_files_and_links_keep_what_they_are() {
    let (mut cell, mut client, home) = start();
    let text = zonal_types::Blob(b"to/somewhere".to_vec());
    let request =
        client.create_request(home, "l", NewKind::Symlink { text: text.clone() }, 0, false);
    let link = entry_of(client.call(&mut cell, home, &request).unwrap()).unwrap();
    assert_eq!(
        (link.attr.unwrap().size, link.attr.unwrap().mode),
        (12, 0o777)
    );
    let reply = client
        .call(
            &mut cell,
            link.ino,
            &MetaRequest::Readlink { ino: link.ino },
        )
        .unwrap();
    assert_eq!(reply, MetaReply::Text { text });
    assert_eq!(client.open(&mut cell, link.ino, 0), Err(ErrorCode::Loop));
    let request =
        client.create_request(home, "d", NewKind::CharDevice { rdev: 0x103 }, 0o666, false);
    let device = entry_of(client.call(&mut cell, home, &request).unwrap()).unwrap();
    assert_eq!(device.attr.unwrap().rdev, 0x103);
    let mut user = client.who(1, 1);
    client.chmod(&mut cell, home, 0o777).unwrap();
    user.sequence = client.sequence;
    let request = user.create_request(home, "e", NewKind::BlockDevice { rdev: 1 }, 0o666, false);
    assert_eq!(
        user.call(&mut cell, home, &request),
        Err(ErrorCode::NotPermitted)
    );
    assert_eq!(
        client.call(&mut cell, home, &MetaRequest::Readlink { ino: home }),
        Err(ErrorCode::Invalid)
    );
}

#[test]
fn the_reply_to_a_removal_has_the_last_attributes_unless_it_is_a_file() {
    let (mut cell, mut client, home) = start();
    let request = |dir: bool| {
        let (who, parent) = (zonal_types::Credentials::root(), home);
        let name = name("x");
        if dir {
            MetaRequest::Rmdir { who, parent, name }
        } else {
            MetaRequest::Unlink { who, parent, name }
        }
    };
    let removed = |cell: &mut Cell, client: &mut Client, dir: bool| match client
        .call(cell, home, &request(dir))
        .unwrap()
    {
        MetaReply::Attr { attr, .. } => Some((attr.ino, attr.nlink)),
        MetaReply::Done => None,
        other => panic!("{other:?}"),
    };
    let x = client.mkdir(&mut cell, home, "x").unwrap();
    assert_eq!(removed(&mut cell, &mut client, true), Some((x, 0)));
    let fifo = client.create_request(home, "x", NewKind::Fifo, 0o644, false);
    client.call(&mut cell, home, &fifo).unwrap();
    let x = client.lookup(&mut cell, home, "x").unwrap();
    client.link(&mut cell, x, home, "y").unwrap();
    assert_eq!(removed(&mut cell, &mut client, false), None);
    client.moved(&mut cell, (home, "y"), (home, "x"));
    assert_eq!(removed(&mut cell, &mut client, false), Some((x, 0)));
    client.create(&mut cell, home, "x", 0o644).unwrap();
    assert_eq!(removed(&mut cell, &mut client, false), None);
}
