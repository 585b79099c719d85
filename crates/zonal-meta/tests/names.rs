//! Names, links and counts, one rule a test.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::{Deletion, JunctionChange, keys};
use zonal_types::{Codec, ErrorCode, FileKind, Ino, KvRead};
use zonal_wire::meta::flags::{RENAME_EXCHANGE, RENAME_NOREPLACE};
use zonal_wire::meta::{LockKind, LockRange, NewKind};
use zonal_wire::{MetaReply, MetaRequest};

fn start() -> (Cell, Client, Ino) {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    (cell, client, home)
}

/// The first deletions that are due at the zone's shard.
fn deletions(cell: &mut Cell) -> Vec<Deletion> {
    let now = cell.now.instant;
    let store = &mut cell.stores[1];
    store.shard.deletions(&store.kv, now, 10).unwrap()
}

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
fn a_removed_open_file_lives_until_its_last_close() {
    let (mut cell, mut client, home) = start();
    let mut other = cell.client(2);
    let (f, _) = client.create_open(&mut cell, home, "f").unwrap();
    other.open(&mut cell, f, 0).unwrap();
    client.unlink(&mut cell, home, "f").unwrap();
    assert_eq!(client.attr(&mut cell, f).unwrap().nlink, 0);
    assert_eq!(
        client.link(&mut cell, f, home, "g"),
        Err(ErrorCode::NotFound)
    );
    client.close(&mut cell, f).unwrap();
    cell.assert_sound();
    cell.restart(1);
    cell.assert_sound();
    assert_eq!(
        other.attr(&mut cell, f),
        Err(ErrorCode::UnknownSession),
        "it must tell what it holds first"
    );
    other.reclaim(&mut cell, 1, vec![f]);
    assert!(other.attr(&mut cell, f).is_ok());
    other.close(&mut cell, f).unwrap();
    cell.pass_ms(2_000);
    assert_eq!(other.attr(&mut cell, f), Err(ErrorCode::Stale));
    let due = deletions(&mut cell);
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].layout.components[0].count, 3);
    let store = &mut cell.stores[1];
    let keys = due.into_iter().map(|deletion| deletion.key).collect();
    let effect = store.shard.deletion_done(keys);
    apply(&mut store.kv, &effect);
    assert_eq!(deletions(&mut cell).len(), 0);
    cell.assert_sound();
}

#[test]
fn opens_of_inodes_that_do_not_exist_are_not_reclaimed() {
    let (mut cell, mut client, home) = start();
    let (f, _) = client.create_open(&mut cell, home, "f").unwrap();
    cell.restart(1);
    let absent = (1..1000).map(|step| Ino(f.0 + step));
    let range = LockRange {
        whole_file: true,
        owner: 1,
        pid: 1,
        kind: LockKind::Exclusive,
        start: 0,
        end: u64::MAX,
    };
    let request = MetaRequest::Reclaim {
        opens: absent.chain([f, f]).collect(),
        locks: vec![(Ino(f.0 + 7), range)],
    };
    assert_eq!(client.call(&mut cell, f, &request), Ok(MetaReply::Done));
    let gauges = cell.stores[1].shard.gauges();
    let gauge = |name: &str| gauges.iter().find(|(known, _)| *known == name).unwrap().1;
    assert_eq!((gauge("opens"), gauge("locks")), (1, 0));
    cell.assert_sound();
    // Both opens of the one that exists count.
    client.unlink(&mut cell, home, "f").unwrap();
    client.close(&mut cell, f).unwrap();
    cell.pass_ms(2_000);
    assert!(client.attr(&mut cell, f).is_ok());
    client.close(&mut cell, f).unwrap();
    cell.pass_ms(2_000);
    assert_eq!(client.attr(&mut cell, f), Err(ErrorCode::Stale));
}

#[test]
fn an_inode_that_is_damaged_keeps_no_other_from_being_reclaimed() {
    let (mut cell, mut client, home) = start();
    let mut open = |cell: &mut Cell, name: &str| client.create_open(cell, home, name).unwrap().0;
    let (bad, good) = (open(&mut cell, "bad"), open(&mut cell, "good"));
    let (bad_orphan, good_orphan) = (open(&mut cell, "x"), open(&mut cell, "y"));
    client.unlink(&mut cell, home, "x").unwrap();
    client.unlink(&mut cell, home, "y").unwrap();
    for ino in [bad, bad_orphan] {
        cell.stores[1].kv.insert(keys::inode(ino), vec![0xff]);
    }
    cell.restart(1);

    client.reclaim(&mut cell, 1, vec![bad, good]);
    assert_eq!(client.attr(&mut cell, bad), Err(ErrorCode::Corrupt));
    let inos = vec![bad, bad_orphan, good];
    client.unlink(&mut cell, home, "good").unwrap();
    assert!(client.attr(&mut cell, good).is_ok(), "it is open");
    let closed = client.call(&mut cell, home, &MetaRequest::Close { inos });
    assert_eq!(closed, Ok(MetaReply::Done));
    cell.pass_ms(2_000);
    for ino in [good, good_orphan] {
        assert_eq!(client.attr(&mut cell, ino), Err(ErrorCode::Stale));
    }
    assert_eq!(deletions(&mut cell).len(), 2);
}

#[test]
fn a_deletion_that_is_damaged_keeps_no_other_from_being_done() {
    let (mut cell, mut client, home) = start();
    let remove = |cell: &mut Cell, client: &mut Client, name: &str| {
        let ino = client.create(cell, home, name, 0o644).unwrap();
        client.unlink(cell, home, name).unwrap();
        cell.pass_ms(2_000);
        ino
    };
    let inos = ["a", "b", "c"].map(|name| remove(&mut cell, &mut client, name));
    let key = keys::deletion(inos[1]);
    cell.stores[1].kv.insert(key, vec![0xff]);
    for is_restarted in [false, true] {
        if is_restarted {
            cell.restart(1);
            client.holds_nothing(&mut cell, 1);
        }
        assert_eq!(deletions(&mut cell).len(), 2, "{is_restarted}");
    }
    let done = [inos[0], inos[2]].map(keys::deletion).to_vec();
    let now = cell.now.instant;
    let store = &mut cell.stores[1];
    let effect = store.shard.deletion_done(done);
    apply(&mut store.kv, &effect);
    let left = store.shard.deletions(&store.kv, now, 10);
    assert!(matches!(left, Err(ErrorCode::Corrupt)), "it is told");
    remove(&mut cell, &mut client, "d");
    assert_eq!(deletions(&mut cell).len(), 1);
}

/// A store that cannot be searched beyond a key.
struct Torn<'a>(&'a dyn KvRead, Vec<u8>);

impl KvRead for Torn<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        self.0.get(key)
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        self.0.scan(start, end.min(&self.1), visit)?;
        if end > &self.1[..] {
            return Err(ErrorCode::Io);
        }
        Ok(())
    }
}

#[test]
fn deletions_before_a_place_that_cannot_be_read_are_done() {
    let (mut cell, mut client, home) = start();
    let inos = ["a", "b", "c"].map(|name| {
        let ino = client.create(&mut cell, home, name, 0o644).unwrap();
        client.unlink(&mut cell, home, name).unwrap();
        ino
    });
    cell.pass_ms(2_000);
    cell.restart(1);
    let now = cell.now.instant;
    let store = &mut cell.stores[1];
    let torn = Torn(&store.kv, keys::deletion(inos[2]));
    assert_eq!(store.shard.deletions(&torn, now, 10).unwrap().len(), 2);
    let done = [inos[0], inos[1]].map(keys::deletion).to_vec();
    let effect = store.shard.deletion_done(done);
    apply(&mut store.kv, &effect);
    let torn = Torn(&store.kv, keys::deletion(inos[2]));
    let left = store.shard.deletions(&torn, now, 10);
    assert!(matches!(left, Err(ErrorCode::Io)));
    // It passes.
    assert_eq!(store.shard.deletions(&store.kv, now, 10).unwrap().len(), 1);
}

#[test]
fn an_orphan_goes_with_its_session() {
    let (mut cell, mut client, home) = start();
    let mut other = cell.client(2);
    let (f, _) = client.create_open(&mut cell, home, "f").unwrap();
    client.unlink(&mut cell, home, "f").unwrap();
    cell.pass_ms(30_000);
    assert!(other.attr(&mut cell, f).is_ok());
    cell.pass_ms(31_000);
    cell.tick();
    assert_eq!(client.attr(&mut cell, f), Err(ErrorCode::UnknownSession));
    cell.pass_ms(2_000);
    assert_eq!(other.attr(&mut cell, f), Err(ErrorCode::Stale));
    cell.assert_sound();
}

#[test]
fn after_a_restart_a_removed_file_waits_for_those_who_may_have_it_open() {
    let (mut cell, mut client, home) = start();
    let mut other = cell.client(2);
    let (f, _) = client.create_open(&mut cell, home, "f").unwrap();
    cell.restart(1);
    other.holds_nothing(&mut cell, 1);
    other.unlink(&mut cell, home, "f").unwrap();
    client.reclaim(&mut cell, 1, vec![f]);
    assert!(client.attr(&mut cell, f).is_ok());
    client.close(&mut cell, f).unwrap();
    cell.pass_ms(2_000);
    assert_eq!(client.attr(&mut cell, f), Err(ErrorCode::Stale));
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
fn listing_survives_changes_between_its_parts() {
    let (mut cell, mut client, home) = start();
    for index in 0..300 {
        client
            .create(&mut cell, home, &format!("stay{index}"), 0o644)
            .unwrap();
        client
            .create(&mut cell, home, &format!("go{index}"), 0o644)
            .unwrap();
    }
    let (mut seen, mut cookie, mut step) = (Vec::new(), 0, 0);
    loop {
        let (entries, end) = client.readdir(&mut cell, home, cookie, 16).unwrap();
        if let Some(last) = entries.last() {
            cookie = last.cookie;
        }
        seen.extend(entries.into_iter().map(|entry| entry.name.to_string()));
        if end {
            break;
        }
        for index in step * 10..step * 10 + 10 {
            let _ = client.unlink(&mut cell, home, &format!("go{index}"));
            client
                .create(&mut cell, home, &format!("new{index}"), 0o644)
                .unwrap();
        }
        step += 1;
    }
    let mut stayed: Vec<_> = seen
        .iter()
        .filter(|name| name.starts_with("stay"))
        .collect();
    stayed.sort();
    let count = stayed.len();
    stayed.dedup();
    assert_eq!((count, stayed.len()), (300, 300), "each once");
}

#[test]
fn a_large_directory_is_listed_in_linear_time() {
    let (mut cell, mut client, home) = start();
    let ino = client.create(&mut cell, home, "file", 0o644).unwrap();
    // Entries put straight into the store: what counts here is the listing.
    for index in 1..100_000 {
        let name = name(&format!("file{index}"));
        let cookie = name_cookie(name.as_bytes(), 55);
        let entry = Dentry {
            ino,
            kind: FileKind::File,
            chained: false,
            name,
        };
        let kv = &mut cell.stores[1].kv;
        kv.insert(keys::dentry(home, cookie), entry.to_bytes());
    }
    let (mut count, mut cookie, mut replies) = (0, 0, 0);
    loop {
        let (entries, end) = client.readdir(&mut cell, home, cookie, 1024).unwrap();
        count += entries.len();
        replies += 1;
        if let Some(last) = entries.last() {
            cookie = last.cookie;
        }
        if end {
            break;
        }
    }
    assert_eq!(count, 100_000);
    assert!(replies <= 100, "{replies}");
}

#[test]
fn one_damaged_inode_does_not_hide_the_rest_of_its_directory() {
    let (mut cell, mut client, home) = start();
    let files = ["a", "b", "c"].map(|name| client.create(&mut cell, home, name, 0o644).unwrap());
    cell.stores[1]
        .kv
        .insert(keys::inode(files[1]), vec![1, 2, 3]);
    let request = MetaRequest::ReadDir {
        who: client.who.clone(),
        dir: home,
        cookie: 0,
        entries: 100,
        plus: true,
    };
    let MetaReply::Dir { entries, end: true } = client.call(&mut cell, home, &request).unwrap()
    else {
        panic!("a whole listing");
    };
    let bare: Vec<Ino> = entries
        .iter()
        .filter(|item| item.entry.attr.is_none() && item.entry.entry_ms == 0)
        .map(|item| item.entry.ino)
        .collect();
    assert_eq!((entries.len(), bare), (3, vec![files[1]]));
    assert_eq!(client.attr(&mut cell, files[1]), Err(ErrorCode::Corrupt));
}

#[test]
fn creating_costs_few_keys() {
    let (mut cell, mut client, home) = start();
    client.create(&mut cell, home, "first", 0o644).unwrap();
    client.create(&mut cell, home, "second", 0o644).unwrap();
    // Entry, inode, directory, slot.
    assert_eq!(cell.last_effect.len(), 4);
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
fn a_removed_file_can_be_opened_for_a_moment_longer() {
    let (mut cell, mut client, home) = start();
    let mut other = cell.client(2);
    let f = client.create(&mut cell, home, "f", 0o644).unwrap();
    client.setxattr(&mut cell, f, "user.k", b"v", 0).unwrap();
    client.create(&mut cell, home, "new", 0o644).unwrap();
    // The other one has looked `f` up when the name is replaced.
    client.moved(&mut cell, (home, "new"), (home, "f"));
    cell.assert_sound();
    assert_eq!(other.attr(&mut cell, f).unwrap().nlink, 0);
    cell.pass_ms(900);
    assert_eq!(other.open(&mut cell, f, 0), Ok(false));
    cell.assert_sound();
    cell.pass_ms(5_000);
    assert_eq!(other.attr(&mut cell, f).unwrap().nlink, 0);
    assert_eq!(other.getxattr(&mut cell, f, "user.k"), Ok(b"v".to_vec()));
    assert_eq!(deletions(&mut cell).len(), 0);
    assert_eq!(
        client.link(&mut cell, f, home, "again"),
        Err(ErrorCode::NotFound)
    );
    other.close(&mut cell, f).unwrap();
    cell.assert_sound();
    assert_eq!(deletions(&mut cell).len(), 0);
    assert!(cell.stores[1].shard.next_deletion().is_some());
    cell.pass_ms(1_000);
    // Once its objects may be gone, nothing brings it back.
    assert_eq!(deletions(&mut cell).len(), 1);
    assert_eq!(other.open(&mut cell, f, 0), Err(ErrorCode::Stale));
    assert_eq!(other.attr(&mut cell, f), Err(ErrorCode::Stale));
}

/// A store that counts how often it is searched.
struct Counting<'a>(&'a dyn KvRead, std::cell::Cell<usize>);

impl KvRead for Counting<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        self.0.get(key)
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        self.1.set(self.1.get() + 1);
        self.0.scan(start, end, visit)
    }
}

#[test]
fn deletions_of_this_life_are_known_and_those_from_before_are_found() {
    let (mut cell, mut client, home) = start();
    let remove = |cell: &mut Cell, client: &mut Client, count: usize| {
        for index in 0..count {
            let name = format!("f{index}");
            client.create(cell, home, &name, 0o644).unwrap();
            client.unlink(cell, home, &name).unwrap();
        }
        cell.pass_ms(2_000);
    };
    let work_off = |cell: &mut Cell, searches_max: usize| {
        let now = cell.now.instant;
        let store = &mut cell.stores[1];
        let (mut done, mut searches) = (0, 0);
        loop {
            let counting = Counting(&store.kv, std::cell::Cell::new(0));
            let found = store.shard.deletions(&counting, now, 100).unwrap();
            searches += counting.1.get();
            if found.is_empty() {
                break;
            }
            done += found.len();
            let keys = found.into_iter().map(|deletion| deletion.key).collect();
            let effect = store.shard.deletion_done(keys);
            apply(&mut store.kv, &effect);
        }
        assert!(searches <= searches_max, "{searches} searches of the store");
        done
    };
    work_off(&mut cell, usize::MAX);
    remove(&mut cell, &mut client, 450);
    assert_eq!(work_off(&mut cell, 0), 450);
    remove(&mut cell, &mut client, 2_500);
    cell.restart(1);
    cell.assert_sound();
    assert_eq!(work_off(&mut cell, usize::MAX), 2_500);
    cell.assert_sound();
}

#[test]
fn a_removed_file_keeps_its_permissions_and_does_not_outlive_a_restart() {
    let (mut cell, mut client, home) = start();
    let secret = client.create(&mut cell, home, "secret", 0o600).unwrap();
    let link = client.create(&mut cell, home, "link", 0o644).unwrap();
    client.unlink(&mut cell, home, "secret").unwrap();
    client.unlink(&mut cell, home, "link").unwrap();
    let mut nobody = client.who(1000, 1000);
    assert_eq!(nobody.open(&mut cell, secret, 0), Err(ErrorCode::Access));
    cell.restart(1);
    client.holds_nothing(&mut cell, 1);
    assert_eq!(client.open(&mut cell, link, 0), Err(ErrorCode::Stale));
    cell.assert_sound();
}

#[test]
fn a_removal_tells_the_last_attributes_of_what_is_no_file() {
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
