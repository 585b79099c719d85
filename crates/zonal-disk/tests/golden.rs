//! The bytes of the formats, written down: a change of any of them is a change of version.
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

use common::{MemDisk, identity};
use zonal_disk::identity::{self as ident, Stored};
use zonal_disk::log::{RecordHeader, RecordKind};
use zonal_disk::start_marks::{Starts, StoredMark};
use zonal_disk::stream::{StreamHeader, StreamKind, StreamReader, StreamWriter};
use zonal_disk::{LogRoom, power_loss, record};
use zonal_testkit::{Scratch, to_hex as hex};
use zonal_types::KvChange;

#[test]
fn header() {
    let header = RecordHeader {
        kind: RecordKind::Record,
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
    assert_eq!(RecordHeader::decode(&bytes), Some(header));
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
    let lsn = engine.append_with(changes, b"n", LogRoom::Normal).unwrap();
    assert_eq!(lsn.0, 128);
    let bytes = disk.log.live();
    let header = RecordHeader::decode(&bytes).unwrap();
    assert_eq!((header.lsn, header.synced, header.epoch), (0, 0, 1));
    assert_eq!(header.payload_len, 18);
    assert_eq!(hex(&bytes[64..82]), "01000000010100610100000031010000006e");
    assert!(bytes[82..].iter().all(|byte| *byte == 0));
}

#[test]
fn power_file() {
    let note = power_loss::PowerNote {
        boot: *b"0123456789abcdef",
        doubt: true,
        verifier: 0x1122_3344_5566_7788,
    };
    let bytes = note.encode();
    let expected = [
        "5a4f4e414c505752",                 // magic
        "01000000",                         // version
        "01000000",                         // flags: a flush failed
        "30313233343536373839616263646566", // boot id
        "8877665544332211",                 // verifier
        "00000000",
    ];
    assert_eq!(hex(&bytes[..44]), expected.concat());
    assert_eq!(hex(&bytes[44..]), "49d68689");
    assert_eq!(power_loss::PowerNote::decode(&bytes), Some(note));
}

#[test]
fn starts_file() {
    let mark = |number, tag| StoredMark { number, tag };
    let starts = Starts {
        taken: mark(5, 0x1122_3344_5566_7788),
        proposed: vec![mark(6, 1), mark(7, 2)],
    };
    let bytes = starts.encode();
    let expected = [
        "5a4f4e414c535441",                 // magic
        "01000000",                         // version
        "02000000",                         // marks proposed
        "05000000000000008877665544332211", // the last one taken
        "06000000000000000100000000000000",
        "07000000000000000200000000000000",
    ];
    assert_eq!(hex(&bytes[..64]), expected.concat());
    assert_eq!(hex(&bytes[64..]), "84988885");
    assert_eq!(Starts::decode(&bytes), Some(starts));
}

#[test]
fn stream() {
    let header = StreamHeader {
        kind: StreamKind::Objects,
        cell: [7; 16],
        target: Some(0x0102_0304),
        made: 1_800_000_000,
    };
    let mut writer = StreamWriter::new(Vec::new(), &header).unwrap();
    writer.frame(2, b"bytes").unwrap();
    let bytes = writer.finish().unwrap();
    let expected = [
        "5a4f4e414c535452",                 // magic
        "01000000",                         // version
        "02000000",                         // kind: objects
        "07070707070707070707070707070707", // cell
        "00d2496b00000000",                 // made
        "04030201",                         // target
        "00000000000000000000000000000000",
    ];
    assert_eq!(hex(&bytes[..60]), expected.concat());
    assert_eq!(hex(&bytes[60..64]), "763fffd8");
    // A frame: kind, zero, length, checksum, contents.
    assert_eq!(hex(&bytes[64..81]), "0200000005000000ffeff8fc6279746573");
    // The end: the number of frames before it.
    assert_eq!(
        hex(&bytes[81..]),
        "ff00000008000000d7ab01ed0100000000000000"
    );
    let mut reader = StreamReader::new(bytes.as_slice()).unwrap();
    assert_eq!(reader.header(), &header);
    assert_eq!(reader.next_frame().unwrap().unwrap().payload, b"bytes");
    assert_eq!(reader.next_frame().unwrap(), None);
}
