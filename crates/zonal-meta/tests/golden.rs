//! The stored form of a shard, byte for byte. A change here is a change of the format
//! (docs/on-disk-format.md).
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::*;
use zonal_meta::dentry::name_cookie;
use zonal_meta::keys;
use zonal_testkit::to_hex as hex;
use zonal_types::{DataId, Ino};

#[test]
fn cookies() {
    let cookies = [
        (&b"a"[..], COOKIE_A),
        (b"eight888", COOKIE_EIGHT),
        (b"", COOKIE_EMPTY),
    ];
    for (name, cookie) in cookies {
        assert_eq!(format!("{:x}", name_cookie(name, 55)), cookie);
    }
}

#[test]
fn keys_and_values() {
    let mut cell = Cell::new();
    let mut client = cell.client(1);
    let home = client.mkdir(&mut cell, Ino::ROOT, "home").unwrap();
    let f = client.create(&mut cell, home, "f", 0o644).unwrap();
    assert_eq!((home, f), (Ino((1 << 43) + 16), Ino((1 << 43) + 17)));
    let kv = &cell.stores[1].kv;
    assert_eq!(hex(&keys::inode(f)), "00000001100000080000000011");
    assert_eq!(hex(kv.get(&keys::inode(f)).unwrap()), INODE);
    // The data id is another number than the inode's.
    let data = DataId((1 << 43) + (1 << 20));
    assert_eq!(hex(&keys::data(data)), "000000011c0000080000100000");
    assert_eq!(hex(kv.get(&keys::data(data)).unwrap()), "1100000000080000");
    let reserved = kv.get(&keys::data_ids(f.partition())).unwrap();
    assert_eq!(hex(reserved), "0010100000000000");
    let reserved = kv.get(&keys::ids(f.partition())).unwrap();
    assert_eq!(hex(reserved), "10040000000000000000000000000000");
    let count = kv.get(&keys::inode_count(f.partition())).unwrap();
    assert_eq!(
        (hex(&keys::inode_count(f.partition())), hex(count)),
        ("0000000103".into(), "0200000000000000".into())
    );
    client.write_inline(&mut cell, f, 2, b"abc").unwrap();
    let kv = &cell.stores[1].kv;
    assert_eq!(hex(&keys::inline(f)), "00000001180000080000000011");
    assert_eq!(hex(kv.get(&keys::inline(f)).unwrap()), "0000616263");
    let cookie = name_cookie(b"f", 55);
    assert_eq!(hex(kv.get(&keys::dentry(home, cookie)).unwrap()), DENTRY);
    assert_eq!(
        hex(kv.get(&keys::format()).unwrap()),
        "03000100000037000000"
    );
}

const COOKIE_A: &str = "1a7e0e5fc22ef800";
const COOKIE_EIGHT: &str = "7e85798d7bbb1a00";
const COOKIE_EMPTY: &str = "af3c906c1cc8d00";
const INODE: &str = "0311000000000800000000000001a40100000000000000000000000000000100000000000000000000000000000000000000\
    0000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000004042\
    0f00000000000000000040420f00000000000000000040420f00000000000000000040420f00000000000000000001000000\
    0000000000000000000000000000000000000000000010000000000800000100000100000001000000020010000000000000\
    00000000ffffffffffffffff0000100000080000010001000000000003000000100000000000000000000000000000";
const DENTRY: &str = "110000000008000001000100000066";
