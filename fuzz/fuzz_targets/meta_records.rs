//! Keys and values of a shard's store, decoded by `zonal dump`, by `zonal fsck` and by the shard.
//! The first byte is the key's length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use zonal_meta::acl::Acl;
use zonal_meta::check::{Broken, Fact, Scan};
use zonal_meta::dentry::Dentry;
use zonal_meta::inode::Inode;
use zonal_meta::{ShardConfig, describe};
use zonal_types::{Codec, Ino};

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first() else {
        return;
    };
    let (key, value) = rest.split_at(usize::from(*length).min(rest.len()));
    let _ = describe::entry(key, value);
    let (mut emit, mut wrong) = (|_: Fact| (), |_: Broken| ());
    let mut scan = Scan::new(ShardConfig::HASH_BITS, &mut emit, &mut wrong);
    scan.take(key, value);
    scan.finish();
    let _ = Acl::parse(rest);
    if let Ok(inode) = Inode::from_bytes(rest) {
        assert_eq!(inode.to_bytes(), rest);
        let _ = (Inode::decode(inode.ino, rest), Inode::decode(Ino(0), rest));
        let _ = inode.allocated_bytes();
    }
    if let Ok(dentry) = Dentry::decode(rest) {
        assert_eq!(dentry.to_bytes(), rest);
    }
});
