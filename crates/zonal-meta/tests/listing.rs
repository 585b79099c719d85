//! Directory listings: each entry once, in linear time, whatever changes or is damaged meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::keys;
use zonal_types::limits::READDIR_TOGETHER_MAX;
use zonal_types::{Codec, Credentials, ErrorCode, FileKind, Ino};
use zonal_wire::{AttrChange, MetaReply, MetaRequest};

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
    // Entries are put straight into the store: only the listing counts here.
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

/// The shard's reply for several directories: for each, the number of entries, and whether its
/// listing ends there.
fn together(
    client: &mut Client,
    cell: &mut Cell,
    dirs: &[Ino],
) -> Result<Vec<(Ino, usize, bool)>, ErrorCode> {
    let request = MetaRequest::ReadDirs {
        who: client.who.clone(),
        dirs: dirs.to_vec(),
        entries: 1000,
    };
    match client.call(cell, dirs.first().copied().unwrap_or(Ino::ROOT), &request)? {
        MetaReply::Dirs { listings } => Ok(listings
            .iter()
            .map(|listing| (listing.dir, listing.entries.len(), listing.end))
            .collect()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn of_several_listed_directories_only_the_first_may_fail() {
    let (mut cell, mut client, home) = start();
    let dirs = ["a", "b", "c"].map(|name| client.mkdir(&mut cell, home, name).unwrap());
    for dir in dirs {
        client.create(&mut cell, dir, "f", 0o644).unwrap();
    }
    let file = client.create(&mut cell, home, "f", 0o644).unwrap();
    let [a, b, c] = dirs;
    let all = together(&mut client, &mut cell, &[a, file, b, Ino(77), a, c]).unwrap();
    let one = |dir| (dir, 1, true);
    assert_eq!(all, [one(a), one(b), one(a), one(c)]);
    let refused = together(&mut client, &mut cell, &[file, a]);
    assert_eq!(refused, Err(ErrorCode::NotDirectory));
    // A directory that its reader may not read is not listed.
    let change = AttrChange {
        mode: Some(0o700),
        ..AttrChange::default()
    };
    client.setattr(&mut cell, b, change).unwrap();
    client.who = Credentials {
        uid: 1000,
        gid: 1000,
        groups: Vec::new(),
    };
    let all = together(&mut client, &mut cell, &[a, b, c]).unwrap();
    assert_eq!(all, [one(a), one(c)]);
    let refused = together(&mut client, &mut cell, &[b, a]);
    assert_eq!(refused, Err(ErrorCode::Access));
}

#[test]
fn directories_that_are_listed_together_are_bounded() {
    let (mut cell, mut client, home) = start();
    let dirs: Vec<Ino> = (0..READDIR_TOGETHER_MAX)
        .map(|number| {
            let dir = client
                .mkdir(&mut cell, home, &format!("d{number}"))
                .unwrap();
            for file in 0..60 {
                let name = format!("{file:0>200}");
                client.create(&mut cell, dir, &name, 0o644).unwrap();
            }
            dir
        })
        .collect();
    let some = together(&mut client, &mut cell, &dirs).unwrap();
    assert!(
        some[..3]
            .iter()
            .all(|(_, count, end)| (*count, *end) == (60, true))
    );
    let entries: usize = some.iter().map(|(_, count, _)| count).sum();
    assert!(entries < 4 * 60, "{some:?}");
    // One entry more than the first, and as many as fit.
    let (_, count, end) = some[some.len() - 1];
    assert!(count > 0 && (count == 60) == end, "{some:?}");
    let too_many = vec![home; READDIR_TOGETHER_MAX + 1];
    assert_eq!(
        together(&mut client, &mut cell, &too_many),
        Err(ErrorCode::Invalid)
    );
    assert_eq!(
        together(&mut client, &mut cell, &[]),
        Err(ErrorCode::Invalid)
    );
}
