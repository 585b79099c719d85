//! The first bytes of files, which the shard keeps (docs/rfcs/2026-11-22-small-files.md).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::{MetaShard, keys};
use zonal_types::{Codec, ErrorCode, FileData, Ino, KvChange};
use zonal_wire::meta::flags::{O_RDWR, O_TRUNC};
use zonal_wire::{MetaReply, MetaRequest};

/// A cell with a file in a directory of zone 1.
fn file() -> (Cell, Client, Ino, Ino) {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let f = client.create(&mut cell, home, "f", 0o644).unwrap();
    (cell, client, home, f)
}

fn data(client: &mut Client, cell: &mut Cell, ino: Ino) -> FileData {
    let ask = MetaRequest::GetAttr { ino, data: true };
    match client.call(cell, ino, &ask).unwrap() {
        MetaReply::Attr { data, .. } => data.unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn inline_bytes_are_written_read_truncated_and_counted() {
    let (mut cell, mut client, _home, f) = file();
    assert_eq!(data(&mut client, &mut cell, f).layout.inline_bytes(), 4096);
    assert_eq!(client.read_inline(&mut cell, f), Ok(Vec::new()));
    let attr = client.write_inline(&mut cell, f, 2, b"abc").unwrap();
    assert_eq!((attr.size, attr.allocated), (5, 512));
    assert_eq!(
        client.read_inline(&mut cell, f),
        Ok(b"\0\0abc".to_vec()),
        "a gap is zeros"
    );
    let attr = client.write_inline(&mut cell, f, 4_000, &[7; 96]).unwrap();
    assert_eq!((attr.size, attr.allocated), (4_096, 4_096));
    let seq = data(&mut client, &mut cell, f).truncate_seq;
    assert_eq!(client.truncate(&mut cell, f, 3, 0), Ok(false), "no column");
    let attr = client.attr(&mut cell, f).unwrap();
    assert_eq!((attr.size, attr.allocated), (3, 512));
    assert!(
        data(&mut client, &mut cell, f).truncate_seq > seq,
        "what was never told is cut when targets see it"
    );
    // A file extended again shows zeros, not the truncated bytes.
    assert_eq!(client.truncate(&mut cell, f, 1 << 30, 0), Ok(false));
    assert_eq!(client.read_inline(&mut cell, f), Ok(b"\0\0a".to_vec()));
    // Now columns may have bytes.
    assert_eq!(client.truncate(&mut cell, f, 1, 0), Ok(true));
    let seq = data(&mut client, &mut cell, f).truncate_seq;
    let confirm = MetaRequest::ConfirmTruncate {
        ino: f,
        truncate_seq: seq,
        allocated_delta: 0,
    };
    client.call(&mut cell, f, &confirm).unwrap();
    assert_eq!(client.open(&mut cell, f, O_RDWR | O_TRUNC), Ok(false));
    let attr = client.attr(&mut cell, f).unwrap();
    assert_eq!((attr.size, attr.allocated), (0, 0));
    let kv = &cell.stores[1].kv;
    assert!(!kv.contains_key(&keys::inline(f)), "no key without bytes");
    cell.assert_sound();
}

#[test]
fn writes_outside_of_the_inline_range_are_refused() {
    let (mut cell, mut client, home, f) = file();
    let mut write = |ino, offset, bytes: &[u8]| client.write_inline(&mut cell, ino, offset, bytes);
    assert_eq!(write(f, 4_090, b"1234567"), Err(ErrorCode::Invalid));
    assert_eq!(write(f, u32::MAX, b"1"), Err(ErrorCode::Invalid));
    assert_eq!(write(home, 0, b"1"), Err(ErrorCode::Invalid));
    assert_eq!(client.read_inline(&mut cell, home), Ok(Vec::new()));
    assert_eq!(client.attr(&mut cell, f).unwrap().size, 0);
    cell.assert_sound();
}

#[test]
fn inline_bytes_are_removed_and_brought_back_with_their_file() {
    let (mut cell, mut client, home, f) = file();
    client.write_inline(&mut cell, f, 0, b"bytes").unwrap();
    client.close(&mut cell, f).unwrap();
    client.unlink(&mut cell, home, "f").unwrap();
    let key = keys::inline(f);
    assert!(!cell.stores[1].kv.contains_key(&key));
    assert_eq!(client.read_inline(&mut cell, f), Ok(b"bytes".to_vec()));
    client.open(&mut cell, f, O_RDWR).unwrap();
    assert!(cell.stores[1].kv.contains_key(&key));
    client.close(&mut cell, f).unwrap();
    assert!(!cell.stores[1].kv.contains_key(&key));
    cell.assert_sound();
}

#[test]
fn a_store_of_another_format_is_refused() {
    let (mut cell, _client, _home, _f) = file();
    let config = cell.stores[1].config.clone();
    let format = keys::format();
    let own = u16::from(cell.stores[1].kv.get(&format).unwrap()[0]);
    for other in [own - 1, own + 1] {
        let other = (other, (config.shard, config.hash_bits)).to_bytes();
        apply(
            &mut cell.stores[1].kv,
            &[KvChange::put(format.clone(), other)],
        );
        let store = &cell.stores[1];
        let config = config.clone();
        let loaded = MetaShard::load(config, cell.map.clone(), &store.kv, cell.now.instant);
        assert!(matches!(loaded, Err(ErrorCode::WrongVersion)));
    }
}

#[test]
fn allocating_changes_no_byte_that_is_there() {
    let (mut cell, mut client, _home, f) = file();
    client.write_inline(&mut cell, f, 0, b"abc").unwrap();
    client.truncate(&mut cell, f, 1000, 0).unwrap();
    // From a client that saw the file empty.
    let attr = client.write_inline(&mut cell, f, 4096, b"").unwrap();
    assert_eq!((attr.size, attr.allocated), (1000, 1024));
    let bytes = client.read_inline(&mut cell, f).unwrap();
    assert_eq!((&bytes[..4], bytes.len()), (&b"abc\0"[..], 1000));
    cell.assert_sound();
}
