//! Listing directories: each entry once, in linear time, whatever changes or is damaged meanwhile.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::dentry::{Dentry, name_cookie};
use zonal_meta::keys;
use zonal_types::{Codec, ErrorCode, FileKind, Ino};
use zonal_wire::{MetaReply, MetaRequest};

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
