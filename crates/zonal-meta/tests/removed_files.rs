//! Removed files: how long they live while open, and how their deletions are carried out.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::{Deletion, keys};
use zonal_types::{ErrorCode, Ino, KvRead};
use zonal_wire::{MetaReply, MetaRequest};

/// The first deletions that are due at the zone's shard.
fn deletions(cell: &mut Cell) -> Vec<Deletion> {
    let now = cell.now.instant;
    let store = &mut cell.stores[1];
    store.shard.deletions(&store.kv, now, 10).unwrap()
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
    assert!(
        other.attr(&mut cell, f).is_ok(),
        "the record of an open by the one that has not told may be lost"
    );
    client.holds_nothing(&mut cell, 1);
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
    let range = whole_file();
    let request = MetaRequest::Reclaim {
        opens: absent.chain([f, f]).collect(),
        locks: vec![(Ino(f.0 + 7), range)],
    };
    assert_eq!(client.call(&mut cell, f, &request), Ok(MetaReply::Done));
    let gauges = cell.stores[1].shard.gauges();
    let gauge = |name: &str| gauges.iter().find(|(known, _)| *known == name).unwrap().1;
    assert_eq!((gauge("opens"), gauge("locks")), (1, 0));
    cell.assert_sound();
    // Both opens of the existing file count.
    client.unlink(&mut cell, home, "f").unwrap();
    client.close(&mut cell, f).unwrap();
    cell.pass_ms(2_000);
    assert!(client.attr(&mut cell, f).is_ok());
    client.close(&mut cell, f).unwrap();
    cell.pass_ms(2_000);
    assert_eq!(client.attr(&mut cell, f), Err(ErrorCode::Stale));
}

#[test]
fn a_damaged_inode_does_not_keep_others_from_being_reclaimed() {
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
fn a_damaged_deletion_does_not_delay_others() {
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

/// A store that counts how often it is searched, and may fail beyond a key.
struct Watched<'a> {
    kv: &'a dyn KvRead,
    searches: std::cell::Cell<usize>,
    torn_at: Option<Vec<u8>>,
}

impl<'a> Watched<'a> {
    fn new(kv: &'a dyn KvRead, torn_at: Option<Vec<u8>>) -> Self {
        let searches = std::cell::Cell::new(0);
        Self {
            kv,
            searches,
            torn_at,
        }
    }
}

impl KvRead for Watched<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, ErrorCode> {
        self.kv.get(key)
    }

    fn scan(
        &self,
        start: &[u8],
        end: &[u8],
        visit: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), ErrorCode> {
        self.searches.set(self.searches.get() + 1);
        match &self.torn_at {
            Some(torn_at) if end > &torn_at[..] => {
                self.kv.scan(start, torn_at, visit)?;
                Err(ErrorCode::Io)
            }
            _ => self.kv.scan(start, end, visit),
        }
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
    let torn = Watched::new(&store.kv, Some(keys::deletion(inos[2])));
    assert_eq!(store.shard.deletions(&torn, now, 10).unwrap().len(), 2);
    let done = [inos[0], inos[1]].map(keys::deletion).to_vec();
    let effect = store.shard.deletion_done(done);
    apply(&mut store.kv, &effect);
    let torn = Watched::new(&store.kv, Some(keys::deletion(inos[2])));
    let left = store.shard.deletions(&torn, now, 10);
    assert!(matches!(left, Err(ErrorCode::Io)));
    // The damage is gone: deletions go on.
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
fn after_a_restart_a_removed_file_waits_for_sessions_that_may_have_it_open() {
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
fn a_removed_file_can_be_opened_for_a_moment_longer() {
    let (mut cell, mut client, home) = start();
    let mut other = cell.client(2);
    let f = client.create(&mut cell, home, "f", 0o644).unwrap();
    client.setxattr(&mut cell, f, "user.k", b"v", 0).unwrap();
    client.create(&mut cell, home, "new", 0o644).unwrap();
    // The other client has looked `f` up when the name is replaced.
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
    // Once its objects may be deleted, nothing brings it back.
    assert_eq!(deletions(&mut cell).len(), 1);
    assert_eq!(other.open(&mut cell, f, 0), Err(ErrorCode::Stale));
    assert_eq!(other.attr(&mut cell, f), Err(ErrorCode::Stale));
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
            let counting = Watched::new(&store.kv, None);
            let found = store.shard.deletions(&counting, now, 100).unwrap();
            searches += counting.searches.get();
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
