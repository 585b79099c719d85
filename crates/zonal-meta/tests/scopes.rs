//! Clients with a scope: the requests that a shard allows them. The rest of the tree does not exist
//! for them.
#![allow(
    clippy::too_many_lines,
    reason = "a test tells one story from its start to its end"
)]
#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of tests are small"
)]
#![allow(
    clippy::unwrap_used,
    reason = "a test ends where something is not as it should be"
)]

mod common;
mod random_requests;
mod scoped_tree;

use common::{Cell, Client, MemKv, name, none};
use random_requests::Noise;
use scoped_tree::{SECRET, Tree};
use std::collections::BTreeSet;
use zonal_meta::keys;
use zonal_testkit::Rng;
use zonal_types::{Blob, Codec, Credentials, ErrorCode, Ino, SessionId, Timestamp};
use zonal_wire::meta::flags::{O_RDONLY, O_RDWR, O_TRUNC, O_WRONLY, RENAME_EXCHANGE};
use zonal_wire::meta::{AppendPlace, Event, FileUse, LockKind};
use zonal_wire::{MetaReply, MetaRequest};

#[test]
fn a_client_with_a_path_sees_only_its_path() {
    let mut tree = Tree::new(false, |_scope| {});
    let (home, inside, outside) = (tree.home, tree.inside, tree.outside);
    let (file, secret) = (tree.file, tree.secret);
    let Tree { cell, scoped, .. } = &mut tree;
    assert_eq!(scoped.lookup(cell, Ino::ROOT, "home"), Ok(home));
    assert_eq!(scoped.lookup(cell, home, "d0"), Ok(inside));
    assert_eq!(scoped.lookup(cell, inside, "f"), Ok(file));
    for (dir, text) in [
        (Ino::ROOT, SECRET),
        (Ino::ROOT, "d0"),
        (home, "d1"),
        (home, "none"),
    ] {
        assert_eq!(scoped.lookup(cell, dir, text), Err(ErrorCode::NotFound));
    }
    for above in [Ino::ROOT, home] {
        assert_eq!(scoped.attr(cell, above).unwrap().ino, above);
    }
    // The number of an inode outside is as good as an unused number.
    let nothing = Ino::new(outside.partition(), 1 << 40);
    for ino in [outside, secret, nothing] {
        assert_eq!(scoped.attr(cell, ino), Err(ErrorCode::Stale));
        assert_eq!(scoped.lookup(cell, ino, "f"), Err(ErrorCode::Stale));
        assert_eq!(scoped.open(cell, ino, O_RDONLY), Err(ErrorCode::Stale));
        assert_eq!(scoped.truncate(cell, ino, 0, 0), Err(ErrorCode::Stale));
        let made = scoped.create(cell, ino, "new", 0o644);
        assert_eq!(made, Err(ErrorCode::Stale));
        for request in [
            MetaRequest::Readlink { ino },
            MetaRequest::ReadInline { ino },
            MetaRequest::Parent { ino },
        ] {
            assert_eq!(scoped.call(cell, ino, &request), Err(ErrorCode::Stale));
        }
    }
    let who = Credentials::root();
    for (dir, code) in [
        (Ino::ROOT, ErrorCode::Access),
        (home, ErrorCode::Access),
        (outside, ErrorCode::Stale),
    ] {
        let who = who.clone();
        let (cookie, entries, plus) = (0, 100, true);
        let list = MetaRequest::ReadDir {
            who: who.clone(),
            dir,
            cookie,
            entries,
            plus,
        };
        assert_eq!(scoped.call(cell, dir, &list), Err(code));
        let dirs = vec![dir];
        let list = MetaRequest::ReadDirs { who, dirs, entries };
        assert_eq!(scoped.call(cell, dir, &list), Err(code));
        assert_eq!(scoped.mkdir(cell, dir, "new"), Err(code));
        assert_eq!(scoped.unlink(cell, dir, "f"), Err(code));
    }
    assert_eq!(scoped.rmdir(cell, home, "d0"), Err(ErrorCode::Access));
    let dirs = vec![inside, outside, home];
    let list = MetaRequest::ReadDirs {
        who,
        dirs,
        entries: 100,
    };
    let MetaReply::Dirs { listings } = scoped.call(cell, inside, &list).unwrap() else {
        panic!();
    };
    assert_eq!(listings.len(), 1);
    let name = Blob(b"user.a".to_vec());
    let who = Credentials::root();
    let ino = home;
    let xattr = MetaRequest::GetXattr { who, ino, name };
    assert_eq!(scoped.call(cell, ino, &xattr), Err(ErrorCode::NoData));
    cell.assert_sound();
}

#[test]
fn below_its_path_a_client_may_do_everything() {
    let mut tree = Tree::new(true, |_scope| {});
    let inside = tree.inside;
    let Tree { cell, scoped, .. } = &mut tree;
    let sub = scoped.mkdir(cell, inside, "sub").unwrap();
    let deep = scoped.mkdir(cell, sub, "deep").unwrap();
    let (file, _) = scoped.create_open(cell, deep, "g").unwrap();
    scoped.write_inline(cell, file, 0, b"bytes").unwrap();
    scoped.report(cell, file, 9_000).unwrap();
    scoped.link(cell, file, sub, "g2").unwrap();
    scoped.unlink(cell, deep, "g").unwrap();
    assert_eq!(scoped.lookup(cell, sub, "g2"), Ok(file));
    scoped.moved(cell, (sub, "g2"), (inside, "g3"));
    scoped
        .rename(cell, (inside, "g3"), (inside, "f"), RENAME_EXCHANGE)
        .unwrap();
    scoped.truncate(cell, file, 100, 0).unwrap();
    scoped.setxattr(cell, file, "user.b", b"1", 0).unwrap();
    // An orphan, while it is open.
    scoped.unlink(cell, inside, "f").unwrap();
    scoped.report(cell, file, 10_000).unwrap();
    scoped.close(cell, file).unwrap();
    scoped.rmdir(cell, sub, "deep").unwrap();
    assert_eq!(scoped.attr(cell, deep), Err(ErrorCode::Stale));
    cell.assert_sound();
}

#[test]
fn nothing_above_the_path_is_granted_for_caching() {
    let mut tree = Tree::new(true, |_scope| {});
    let (home, inside, file) = (tree.home, tree.inside, tree.file);
    let data = true;
    for ino in [Ino::ROOT, home] {
        let reply = tree.ask(ino, &MetaRequest::GetAttr { ino, data });
        let Ok(MetaReply::Attr { attr_ms, .. }) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(attr_ms, 0);
    }
    for (parent, text, is_cached) in [
        (Ino::ROOT, "home", false),
        (home, "d0", false),
        (inside, "f", true),
    ] {
        let who = Credentials::root();
        let name = name(text);
        let reply = tree.ask(parent, &MetaRequest::Lookup { who, parent, name });
        let Ok(MetaReply::Entry { entry }) = reply else {
            panic!("{reply:?}");
        };
        assert_eq!(entry.entry_ms > 0, is_cached, "{text}");
        assert_eq!(entry.attr_ms > 0, is_cached, "{text}");
    }
    let ino = file;
    let reply = tree.ask(ino, &MetaRequest::GetAttr { ino, data });
    assert!(matches!(reply, Ok(MetaReply::Attr { attr_ms: 1.., .. })));
}

#[test]
fn a_reader_changes_nothing() {
    let mut tree = Tree::new(false, |scope| scope.is_read_only = true);
    let (home, inside, file) = (tree.home, tree.inside, tree.file);
    let before = tree.cell.stores[1].kv.clone();
    let Tree { cell, scoped, .. } = &mut tree;
    assert_eq!(scoped.lookup(cell, inside, "f"), Ok(file));
    scoped.open(cell, file, O_RDONLY).unwrap();
    let read = scoped.call(cell, file, &MetaRequest::ReadInline { ino: file });
    assert_eq!(
        read.unwrap(),
        MetaReply::Inline {
            bytes: Blob(b"public".to_vec())
        }
    );
    let reads = vec![(
        file,
        Timestamp {
            seconds: 1 << 40,
            nanos: 0,
        },
    )];
    scoped
        .call(cell, file, &MetaRequest::Touch { reads })
        .unwrap();
    let no = ErrorCode::ReadOnly;
    for flags in [O_WRONLY, O_RDWR, O_TRUNC] {
        assert_eq!(scoped.open(cell, file, flags), Err(no));
    }
    assert_eq!(scoped.report(cell, file, 1), Err(no));
    assert_eq!(scoped.truncate(cell, file, 0, 0), Err(no));
    assert_eq!(scoped.unlink(cell, inside, "f"), Err(no));
    assert_eq!(scoped.mkdir(cell, inside, "new"), Err(no));
    let mut range = common::whole_file();
    (range.whole_file, range.kind) = (false, LockKind::Exclusive);
    let lock = |range| MetaRequest::Lock {
        ino: file,
        range,
        wait: false,
        waiter: 0,
        settled: 0,
    };
    assert_eq!(scoped.call(cell, file, &lock(range)), Err(no));
    range.kind = LockKind::Shared;
    scoped.call(cell, file, &lock(range)).unwrap();
    // Nor after a restart, when it could claim opens that it never had.
    cell.restart(1);
    let place = AppendPlace {
        offset: 6,
        length: 1 << 20,
        truncate_seq: 0,
    };
    let appends = vec![(file, place)];
    let claimed = scoped.call(cell, file, &MetaRequest::ReclaimAppends { appends });
    assert_eq!(claimed, Err(no));
    range.kind = LockKind::Exclusive;
    let (opens, locks) = (vec![file], vec![(file, range)]);
    let claimed = scoped.call(cell, file, &MetaRequest::Reclaim { opens, locks });
    assert_eq!(claimed, Err(no));
    let mut noise = Noise {
        random: Rng(3),
        inos: vec![inside, file, home, Ino::ROOT],
    };
    let mut refused = 0;
    for _ in 0..3_000 {
        let request = noise.request();
        scoped.sequence += 1;
        let reply = cell.send(1, scoped.caller(1), &request);
        let failed = matches!(reply, MetaReply::Failed { .. });
        let may = matches!(
            request,
            MetaRequest::Open { .. } | MetaRequest::Close { .. } | MetaRequest::Touch { .. }
        );
        if request.is_mutation() && !may {
            assert!(failed, "{request:?}: {reply:?}");
            refused += 1;
        }
    }
    assert!(refused > 1_000);
    assert_same(&before, &tree.cell.stores[1].kv, |_ino| true);
}

#[test]
fn a_client_speaks_for_its_users_only() {
    let mut tree = Tree::new(false, |scope| {
        scope.path = Vec::new();
        scope.uids = Some((1000, 1999));
    });
    let (inside, secret) = (tree.inside, tree.secret);
    let Tree { cell, scoped, .. } = &mut tree;
    for uid in [0, 999, 2000, 65_534] {
        let mut other = scoped.who(uid, 7);
        other.sequence = scoped.sequence + 1;
        assert_eq!(other.lookup(cell, inside, "f"), Err(ErrorCode::Access));
        assert_eq!(other.mkdir(cell, inside, "new"), Err(ErrorCode::Access));
        scoped.sequence = other.sequence;
    }
    let mut user = scoped.who(1000, 7);
    let made = user.create(cell, inside, "own", 0o600).unwrap();
    assert_eq!(user.attr(cell, made).unwrap().uid, 1000);
    // No bytes without an open, and an open needs the permission.
    let no = Err(ErrorCode::BadHandle);
    let read = MetaRequest::ReadInline { ino: secret };
    assert_eq!(user.call(cell, secret, &read), no.clone());
    assert_eq!(
        user.write_inline(cell, secret, 0, b"x").map(drop),
        no.clone().map(drop)
    );
    assert_eq!(
        user.report(cell, secret, 1 << 20).map(drop),
        no.clone().map(drop)
    );
    user.open(cell, secret, O_RDONLY).unwrap();
    assert!(user.call(cell, secret, &read).is_ok());
    assert_eq!(
        user.write_inline(cell, secret, 0, b"x").map(drop),
        no.map(drop)
    );
    user.close(cell, secret).unwrap();
    user.open(cell, secret, O_RDWR).unwrap();
    user.write_inline(cell, secret, 0, b"x").unwrap();
}

/// A client may write, and not read, a file that its user may write and not read.
#[test]
fn a_file_open_for_writing_only_is_not_readable() {
    let mut tree = Tree::new(false, |scope| scope.uids = Some((1000, 1999)));
    let inside = tree.inside;
    let drop_box = tree.as_admin(|admin, cell| admin.create(cell, inside, "box", 0o622).unwrap());
    let mut user = tree.scoped.who(1000, 1000);
    let no = Err(ErrorCode::Access);
    assert_eq!(user.open(&mut tree.cell, drop_box, O_RDWR), no);
    assert_eq!(user.open(&mut tree.cell, drop_box, O_RDONLY), no);
    user.open(&mut tree.cell, drop_box, O_WRONLY).unwrap();
    user.write_inline(&mut tree.cell, drop_box, 0, b"x")
        .unwrap();
    let read = user.read_inline(&mut tree.cell, drop_box);
    assert_eq!(read, Err(ErrorCode::BadHandle));
    for (for_use, may) in [
        (FileUse::Look, true),
        (FileUse::Read, false),
        (FileUse::Write, true),
    ] {
        assert_eq!(tree.may_use(drop_box, for_use), Ok(may), "{for_use:?}");
    }
    // A truncation by name gives no right to read either.
    user.close(&mut tree.cell, drop_box).unwrap();
    user.truncate(&mut tree.cell, drop_box, 1, 0).unwrap();
    assert_eq!(tree.may_use(drop_box, FileUse::Read), Ok(false));
    let read = user.read_inline(&mut tree.cell, drop_box);
    assert_eq!(read, Err(ErrorCode::BadHandle));
    // Another handle may be for reading.
    tree.as_admin(|admin, cell| admin.chmod(cell, drop_box, 0o666).unwrap());
    user.open(&mut tree.cell, drop_box, O_WRONLY).unwrap();
    assert_eq!(tree.may_use(drop_box, FileUse::Read), Ok(false));
    user.open(&mut tree.cell, drop_box, O_RDONLY).unwrap();
    assert_eq!(tree.may_use(drop_box, FileUse::Read), Ok(true));
    assert_eq!(user.read_inline(&mut tree.cell, drop_box).unwrap(), b"x");
}

/// A client says after a restart what it has open, and nobody checks whether its users may. That
/// adds nothing to what an open was permitted for, whichever comes first.
#[test]
fn opens_told_after_a_restart_add_nothing_to_what_was_granted() {
    for is_told_first in [false, true] {
        let mut tree = Tree::new(false, |scope| scope.uids = Some((1000, 1999)));
        let inside = tree.inside;
        let (write_only, read_only) = tree.as_admin(|admin, cell| {
            let write_only = admin.create(cell, inside, "box", 0o622).unwrap();
            (
                write_only,
                admin.create(cell, inside, "notice", 0o644).unwrap(),
            )
        });
        let mut user = tree.scoped.who(1000, 1000);
        let told = vec![write_only, read_only];
        if is_told_first {
            user.reclaim(&mut tree.cell, 1, told.clone());
        }
        user.open(&mut tree.cell, write_only, O_WRONLY).unwrap();
        user.open(&mut tree.cell, read_only, O_RDONLY).unwrap();
        if !is_told_first {
            user.reclaim(&mut tree.cell, 1, told);
        }
        assert_eq!(tree.may_use(write_only, FileUse::Read), Ok(false));
        assert_eq!(tree.may_use(write_only, FileUse::Write), Ok(true));
        assert_eq!(tree.may_use(read_only, FileUse::Read), Ok(true));
        assert_eq!(tree.may_use(read_only, FileUse::Write), Ok(false));
        let read = user.read_inline(&mut tree.cell, write_only);
        assert_eq!(read, Err(ErrorCode::BadHandle));
    }
}

/// An open that is repeated after a restart gets its kept reply, and the shard does not know any
/// more for what it was.
#[test]
fn an_open_that_is_repeated_after_a_restart_grants_nothing() {
    let mut tree = Tree::new(false, |scope| scope.uids = Some((1000, 1999)));
    let inside = tree.inside;
    let drop_box = tree.as_admin(|admin, cell| admin.create(cell, inside, "box", 0o622).unwrap());
    let mut user = tree.scoped.who(1000, 1000);
    tree.as_admin(|admin, cell| admin.write_inline(cell, drop_box, 0, b"x").unwrap());
    let open = MetaRequest::Open {
        who: user.who.clone(),
        ino: drop_box,
        open_flags: O_WRONLY | O_TRUNC,
    };
    user.call(&mut tree.cell, drop_box, &open).unwrap();
    tree.cell.restart(1);
    user.holds_nothing(&mut tree.cell, 1);
    let repeated = tree.cell.send(1, user.caller(1), &open);
    assert!(
        !matches!(repeated, MetaReply::Failed { .. }),
        "{repeated:?}"
    );
    for for_use in [FileUse::Read, FileUse::Write] {
        assert_ne!(tree.may_use(drop_box, for_use), Ok(true), "{for_use:?}");
    }
    let read = user.read_inline(&mut tree.cell, drop_box);
    assert_eq!(read, Err(ErrorCode::BadHandle));
}

#[test]
fn a_squashed_root_has_no_more_rights_than_nobody() {
    let mut tree = Tree::new(false, |scope| scope.squashes_root = true);
    let inside = tree.inside;
    let private = tree.as_admin(|admin, cell| {
        let private = admin.create(cell, inside, "private", 0o600).unwrap();
        admin.mkdir_mode(cell, inside, "closed", 0o700).unwrap();
        private
    });
    let Tree { cell, scoped, .. } = &mut tree;
    let made = scoped.create(cell, inside, "own", 0o600).unwrap();
    let attr = scoped.attr(cell, made).unwrap();
    assert_eq!((attr.uid, attr.gid), (65_534, 65_534));
    assert_eq!(scoped.open(cell, private, O_RDONLY), Err(ErrorCode::Access));
    let closed = scoped.lookup(cell, inside, "closed").unwrap();
    assert_eq!(
        scoped.create(cell, closed, "x", 0o600),
        Err(ErrorCode::Access)
    );
    let change = zonal_wire::meta::AttrChange {
        uid: Some(0),
        ..Default::default()
    };
    let who = Credentials::root();
    let ino = made;
    let chown = MetaRequest::SetAttr { who, ino, change };
    assert_eq!(scoped.call(cell, ino, &chown), Err(ErrorCode::NotPermitted));
}

#[test]
fn opens_told_after_a_restart_give_no_user_a_right() {
    let mut tree = Tree::new(false, |scope| scope.uids = Some((1000, 1999)));
    let inside = tree.inside;
    let private = tree.as_admin(|admin, cell| admin.create(cell, inside, "s", 0o600).unwrap());
    let tell = |locks| MetaRequest::Reclaim {
        opens: vec![private],
        locks,
    };
    let read = MetaRequest::ReadInline { ino: private };
    let lock = MetaRequest::Lock {
        ino: private,
        range: common::whole_file(),
        wait: false,
        waiter: 0,
        settled: 0,
    };
    for life in 0..2 {
        // In a new session, and in one from before the shard's start.
        let locks = vec![(private, common::whole_file())];
        if life == 0 {
            assert_eq!(tree.ask(private, &read), Err(ErrorCode::BadHandle));
            let refused = tree.ask(private, &tell(locks));
            assert_eq!(refused, Err(ErrorCode::UnknownLease));
        }
        let told = tree.ask(private, &tell(Vec::new()));
        assert_eq!(told, Ok(MetaReply::Done));
        assert_eq!(tree.ask(private, &read), Err(ErrorCode::BadHandle));
        assert_eq!(tree.ask(private, &lock), Err(ErrorCode::BadHandle));
        for for_use in [FileUse::Look, FileUse::Read, FileUse::Write] {
            assert_eq!(tree.may_use(private, for_use), Ok(false));
        }
        tree.cell.restart(1);
    }
}

#[test]
fn targets_hear_what_a_client_has_open() {
    let mut tree = Tree::new(false, |_scope| {});
    let (file, secret) = (tree.file, tree.secret);
    for ino in [file, secret] {
        assert_eq!(tree.may_use(ino, FileUse::Read), Ok(false));
    }
    tree.scoped.open(&mut tree.cell, file, O_RDONLY).unwrap();
    assert_eq!(tree.may_use(file, FileUse::Read), Ok(true));
    assert_eq!(tree.may_use(file, FileUse::Write), Ok(false));
    tree.scoped.open(&mut tree.cell, file, O_RDWR).unwrap();
    assert_eq!(tree.may_use(file, FileUse::Write), Ok(true));
    assert_eq!(tree.may_use(secret, FileUse::Read), Ok(false));
    // Opens of others do not count.
    tree.as_admin(|admin, cell| admin.open(cell, secret, O_RDWR).unwrap());
    assert_eq!(tree.may_use(secret, FileUse::Read), Ok(false));
    // After a restart no session is served before it has reclaimed its state; inodes outside cannot
    // be told.
    tree.cell.restart(1);
    assert_eq!(tree.may_use(file, FileUse::Read), Err(ErrorCode::NotReady));
    tree.scoped
        .reclaim(&mut tree.cell, 1, vec![file, secret, secret]);
    assert_eq!(tree.may_use(file, FileUse::Write), Ok(true));
    assert_eq!(tree.may_use(secret, FileUse::Read), Ok(false));
    for _ in 0..2 {
        tree.scoped.close(&mut tree.cell, file).unwrap();
    }
    assert_eq!(tree.may_use(file, FileUse::Read), Ok(false));
    // Truncated by its name: the columns follow.
    tree.scoped.truncate(&mut tree.cell, file, 1, 0).unwrap();
    assert_eq!(tree.may_use(file, FileUse::Write), Ok(true));
    assert_eq!(tree.may_use(file, FileUse::Look), Ok(true));
    assert_eq!(tree.may_use(file, FileUse::Read), Ok(false));
    tree.cell.pass_ms(60_001);
    assert_eq!(tree.may_use(file, FileUse::Write), Ok(false));
    let elsewhere = Ino::new(zonal_types::PartitionId(60_000), 17);
    assert_eq!(
        tree.may_use(elsewhere, FileUse::Read),
        Err(ErrorCode::NotOwner)
    );
}

/// Compares the keys of inodes outside of the path: they must not have changed.
fn assert_same(before: &MemKv, after: &MemKv, is_outside: impl Fn(Ino) -> bool) {
    let of_tree = |kv: &MemKv| -> MemKv {
        let own = kv.iter().filter(|(key, _)| {
            key[..4] != [0xff; 4] && key[4] >= keys::TAG_INODE && key[4] < keys::TAG_SESSION
        });
        own.filter(|(key, _)| keys::ino_of(key).is_some_and(&is_outside))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect()
    };
    assert_eq!(of_tree(before), of_tree(after));
}

fn named_in(reply: &MetaReply) -> Vec<Ino> {
    match reply {
        MetaReply::Entry { entry }
        | MetaReply::Made { entry, .. }
        | MetaReply::Opened { entry, .. }
        | MetaReply::OpenedSmall { entry, .. }
        | MetaReply::MadeOpen { entry, .. } => vec![entry.ino],
        MetaReply::Attr { attr, .. } | MetaReply::Truncated { attr, .. } => vec![attr.ino],
        MetaReply::Dir { entries, .. } => entries.iter().map(|item| item.entry.ino).collect(),
        MetaReply::Dirs { listings } => {
            let entries = listings.iter().flat_map(|listing| &listing.entries);
            entries.map(|item| item.entry.ino).collect()
        }
        MetaReply::Parent { parent } => vec![*parent],
        MetaReply::Events { events, .. } => events
            .iter()
            .flat_map(|(_, event)| match event {
                Event::Invalidate {
                    entries, inodes, ..
                } => [vec![*entries], inodes.clone()].concat(),
                Event::LockGranted { ino, .. }
                | Event::RecallLease { ino, .. }
                | Event::FileTruncated { ino }
                | Event::EndRecalled { ino } => vec![*ino],
            })
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn a_hostile_client_changes_and_learns_nothing_outside_of_its_path() {
    let rounds = 8;
    let mut done = 0;
    for seed in 0..rounds {
        let mut tree = Tree::new(seed % 2 == 0, |_scope| {});
        let beside = tree.outside;
        let more: Vec<Ino> = tree.as_admin(|admin, cell| {
            let lookup = |admin: &mut Client, cell: &mut Cell, of, text: &str| {
                admin.lookup(cell, of, text).unwrap()
            };
            let other = lookup(admin, cell, Ino::ROOT, SECRET);
            let hidden = lookup(admin, cell, beside, &format!("{SECRET}-name"));
            let link = lookup(admin, cell, beside, "x");
            vec![other, hidden, link]
        });
        let outside: BTreeSet<Ino> = [tree.outside, tree.secret]
            .into_iter()
            .chain(more)
            .collect();
        let above = [Ino::ROOT, tree.home];
        let before: Vec<MemKv> = tree
            .cell
            .stores
            .iter()
            .map(|store| store.kv.clone())
            .collect();
        let mut noise = Noise {
            random: Rng(seed),
            inos: outside.iter().copied().chain(above).collect(),
        };
        noise
            .inos
            .extend([tree.inside, tree.file, tree.inside, tree.file]);
        let owner = tree.admin.sessions.clone();
        for step in 0..3_000_u64 {
            tree.cell.pass_ms(7);
            let request = match noise.random.below(20) {
                0 => MetaRequest::PollEvents {
                    boot: 1,
                    acked: step,
                    wait_ms: 0,
                },
                _ => noise.request(),
            };
            tree.scoped.sequence += 1;
            let shard = noise.random.below(3) as usize;
            let mut caller = tree.scoped.caller(shard);
            if noise.random.below(30) == 0 {
                caller.session = owner[shard];
            }
            let reply = tree.cell.send(shard, caller, &request);
            let learnt = named_in(&reply);
            assert!(
                learnt.iter().all(|ino| !outside.contains(ino)),
                "{request:?}: {reply:?}"
            );
            let bytes = reply.to_bytes();
            let is_told = bytes
                .windows(SECRET.len())
                .any(|part| part == SECRET.as_bytes());
            assert!(!is_told, "{request:?}: {reply:?}");
            for ino in learnt {
                if noise.inos.len() < 60 && ino.is_valid() {
                    noise.inos.push(ino);
                }
            }
            done += usize::from(!matches!(reply, MetaReply::Failed { .. }));
            if step == 1_500 {
                tree.cell.restart(1);
            }
        }
        for (store, before) in tree.cell.stores.iter().zip(&before) {
            assert_same(before, &store.kv, |ino| {
                outside.contains(&ino) || above.contains(&ino)
            });
        }
        tree.cell.assert_sound();
        // New inodes lie inside.
        tree.cell.from = None;
        let nobody = tree.cell.send(1, none(), &MetaRequest::StatFs);
        assert!(matches!(nobody, MetaReply::Failed { .. }), "{nobody:?}");
        assert_ne!(owner[1], SessionId(0));
    }
    // Most requests are refused, but not all.
    assert!(done > 2_000, "{done}");
}
