//! The bytes of the formats, written down: a change of any of them is a change of version.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{MemDisk, identity};
use zonal_disk::identity::{self as ident, Stored};
use zonal_disk::log::{Header, Kind};
use zonal_disk::{Room, record};
use zonal_testkit::Scratch;
use zonal_types::KvChange;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn header() {
    let header = Header {
        kind: Kind::Record,
        dropped: true,
        lsn: 0x1122_3344_5566_7780,
        synced: 0x0102_0304_0506_0708,
        epoch: 9,
        payload_len: 300,
        payload_crc: 0xaabb_ccdd,
        store: 0x8877_6655_4433_2211,
    };
    let bytes = header.encode();
    let expected = "5a4c4f47010101008077665544332211080706050403020109000000000000002c010000\
                    ddccbbaa1122334455667788000000000000000000000000";
    assert_eq!(hex(&bytes[..60]), expected);
    assert_eq!(hex(&bytes[60..]), "cc469ba8");
    assert_eq!(Header::decode(&bytes), Some(header));
}

#[test]
fn payload() {
    let changes = [
        KvChange::put(b"key".to_vec(), b"value".to_vec()),
        KvChange::remove(b"k".to_vec()),
    ];
    let mut bytes = Vec::new();
    record::encode(&mut bytes, &changes, b"note").unwrap();
    assert_eq!(bytes.len(), record::encoded_size(&changes, b"note"));
    let expected = "0200000001030\
                    06b65790500000076616c75650001006b040000006e6f7465";
    assert_eq!(hex(&bytes), expected);
    let decoded = record::decode(&bytes).unwrap();
    assert_eq!(decoded.changes, changes);
    assert_eq!(decoded.note, b"note");
}

#[test]
fn identity_file() {
    let stored = Stored {
        identity: identity(),
        uuid: *b"0123456789abcdef",
        log_bytes: 16 << 20,
    };
    let dir = Scratch::new("golden");
    ident::save(&dir, &stored).unwrap();
    let bytes = std::fs::read(dir.join("identity")).unwrap();
    let expected = "5a4f4e414c49440a0100000001000000070707070707070707070707070707070300000000000000\
                    303132333435363738396162636465660000000100000000000000000000000000000000";
    assert_eq!(hex(&bytes[..76]), expected);
    assert_eq!(hex(&bytes[76..]), "4853fd20");
    assert_eq!(Stored::decode(&bytes).unwrap(), stored);
}

#[test]
fn a_record_in_the_log() {
    let disk = MemDisk::new();
    let engine = disk.open().unwrap();
    let changes = vec![KvChange::put(b"a".to_vec(), b"1".to_vec())];
    let lsn = engine.append_with(changes, b"n", Room::Normal).unwrap();
    assert_eq!(lsn.0, 128);
    let bytes = disk.log.live();
    let header = Header::decode(&bytes).unwrap();
    assert_eq!((header.lsn, header.synced, header.epoch), (0, 0, 1));
    assert_eq!(header.payload_len, 18);
    assert_eq!(hex(&bytes[64..82]), "01000000010100610100000031010000006e");
    assert!(bytes[82..].iter().all(|byte| *byte == 0));
}
