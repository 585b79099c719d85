//! Encodes findings for the file from which an interrupted check resumes. This is no stable format:
//! only the program that wrote the bytes reads them.

use crate::finding::{FindingKind, StoreFault};
use crate::junctions::Mismatch;
use zonal_types::codec_of;

codec_of!(StoreFault {
    1 = Missing(text),
    2 = Stranger(text),
    3 = Identity(text),
    4 = Starts,
    5 = LogLost(text),
    6 = LogTorn(text),
    7 = IndexLost(text),
    8 = IndexShut(text),
    9 = Flipped(offset),
    10 = BadPage(offset),
    11 = BadEntry(text),
    12 = Foreign(text),
    13 = Segment(number),
    14 = FromCopy(text),
    15 = Copy(text),
    16 = LogFlipped(offset),
});

codec_of!(Mismatch {
    1 = NoDirectory { name, cookie, ino },
    2 = NoEntry { ino, zone },
    3 = Map { name, ino, zone },
    4 = Extra { path, ino },
});

codec_of!(FindingKind {
    1 = Store(fault),
    2 = Shard(broken),
    3 = Target(broken),
    4 = Junction(mismatch),
    5 = MapLost(text),
    6 = NoInode { data_id, objects, bytes },
    7 = Misplaced { object, ino, is_copy },
    8 = Shared { data_id, ino, other },
    9 = Layout { ino },
    10 = Shrinks { ino, known, found },
    11 = BehindSize { ino, size, end },
    12 = Allocated { ino, counted, found },
    13 = LostWithTarget { ino, target, ranges },
    14 = Damaged { ino, target, ranges },
    15 = KnownLost { ino, target, ranges },
    16 = CopiesDiffer { ino, data_id, column, right, wrong, chosen },
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::{ColumnCopy, CopyChoice};
    use crate::ranges::Ranges;
    use zonal_meta::check::Broken as OfShard;
    use zonal_object::ids::Place;
    use zonal_object::{ObjectId, TargetDefect as OfTarget};
    use zonal_types::{Codec, Column, DataId, ErrorCode, Ino, PartitionId, TargetId, ZoneId};

    fn round_trips(whats: &[FindingKind]) {
        let mut all = Vec::new();
        for what in whats {
            assert_eq!(FindingKind::from_bytes(&what.to_bytes()).as_ref(), Ok(what));
            all.push(what.to_bytes());
        }
        // Each kind has an encoding of its own.
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn findings_about_stores_round_trip() {
        let text = || "why".to_owned();
        let faults = [
            StoreFault::Missing(text()),
            StoreFault::Stranger(text()),
            StoreFault::Identity(text()),
            StoreFault::Starts,
            StoreFault::LogLost(text()),
            StoreFault::LogTorn(text()),
            StoreFault::IndexLost(text()),
            StoreFault::IndexShut(text()),
            StoreFault::Flipped(7),
            StoreFault::BadPage(7),
            StoreFault::BadEntry(text()),
            StoreFault::Foreign(text()),
            StoreFault::Segment(7),
            StoreFault::FromCopy(text()),
            StoreFault::Copy(text()),
            StoreFault::LogFlipped(7),
        ];
        round_trips(&faults.map(FindingKind::Store));
    }

    #[test]
    fn findings_about_shards_round_trip() {
        let (dir, ino, cookie) = (Ino(1), Ino(2), 3);
        let parent = Ino(4);
        let partition = PartitionId(5);
        let broken = [
            OfShard::Key { key: vec![1, 2, 3] },
            OfShard::WrongPlace { dir, cookie },
            OfShard::NoFirstPlace { dir, cookie },
            OfShard::NotInDirectory { dir, entries: 9 },
            OfShard::LeadsNowhere { dir, cookie, ino },
            OfShard::WrongType { dir, cookie, ino },
            OfShard::WrongParent { ino, parent, dir },
            OfShard::NoName { ino },
            OfShard::SecondName { dir, cookie, ino },
            OfShard::Cycle { dir, cookie, ino },
            OfShard::Ids {
                partition,
                reserved: 8,
                last: 9,
            },
            OfShard::Counts {
                ino,
                counted: (1, 2),
                found: (3, 4),
            },
            OfShard::Links {
                ino,
                counted: 1,
                names: 2,
            },
            OfShard::OrphanMark {
                ino,
                has_record: true,
            },
            OfShard::DetachedMark {
                ino,
                has_record: false,
            },
            OfShard::AliveDeletion { ino },
            OfShard::Xattrs { ino, missing: 3 },
            OfShard::Inline {
                ino,
                bytes: 5,
                room: 4,
            },
            OfShard::Homeless { ino, data_id: None },
            OfShard::Homeless {
                ino,
                data_id: Some(DataId(6)),
            },
            OfShard::DataIds {
                partition,
                reserved: 8,
                last: 9,
            },
            OfShard::Unindexed {
                ino,
                data_id: DataId(6),
            },
            OfShard::StrayData {
                ino,
                data_id: DataId(6),
            },
        ];
        round_trips(&broken.map(FindingKind::Shard));
    }

    #[test]
    fn findings_about_targets_round_trip() {
        let object = ObjectId::default();
        let place = Place {
            segment: 1,
            unit: 2,
        };
        let broken = [
            OfTarget::Unreadable(ErrorCode::Corrupt),
            OfTarget::Key { key: vec![9] },
            OfTarget::Note,
            OfTarget::Geometry {
                found: 1,
                expected: 2,
            },
            OfTarget::Twice {
                place,
                object,
                block: 3,
            },
            OfTarget::Outside {
                place,
                object,
                block: 3,
            },
            OfTarget::NotMarked(4),
            OfTarget::Leaked(4),
            OfTarget::NoHeader(object),
            OfTarget::Blocks {
                object,
                counted: 1,
                found: 2,
            },
            OfTarget::Objects {
                counted: 1,
                found: 2,
            },
            OfTarget::Tombstone(object),
            OfTarget::HalfDeleted(object),
        ];
        round_trips(&broken.map(FindingKind::Target));
    }

    #[test]
    fn findings_between_stores_round_trip() {
        let (ino, other, data_id, target) = (Ino(1), Ino(2), DataId(3), TargetId(4));
        let (name, zone) = ("name".to_owned(), ZoneId(1));
        let ranges = Ranges::of_column(0..10_000, 10, 3, 1);
        round_trips(&[
            FindingKind::Junction(Mismatch::NoDirectory {
                name: name.clone(),
                cookie: 1,
                ino,
            }),
            FindingKind::Junction(Mismatch::NoEntry { ino, zone }),
            FindingKind::Junction(Mismatch::Map {
                name: name.clone(),
                ino,
                zone,
            }),
            FindingKind::Junction(Mismatch::Extra {
                path: name.clone(),
                ino,
            }),
            FindingKind::MapLost(name),
            FindingKind::NoInode {
                data_id,
                objects: 1,
                bytes: 2,
            },
            FindingKind::Misplaced {
                object: ObjectId::default(),
                ino,
                is_copy: true,
            },
            FindingKind::Shared {
                data_id,
                ino,
                other,
            },
            FindingKind::Layout { ino },
            FindingKind::Shrinks {
                ino,
                known: 1,
                found: 2,
            },
            FindingKind::BehindSize {
                ino,
                size: 1,
                end: 2,
            },
            FindingKind::Allocated {
                ino,
                counted: 1,
                found: 2,
            },
            FindingKind::LostWithTarget {
                ino,
                target,
                ranges: ranges.clone(),
            },
            FindingKind::Damaged {
                ino,
                target,
                ranges: ranges.clone(),
            },
            FindingKind::KnownLost {
                ino,
                target,
                ranges,
            },
        ]);
    }

    #[test]
    fn findings_about_copies_round_trip() {
        let copy = |object| ColumnCopy {
            object: Column(object),
            target: TargetId(4),
            blocks: 9,
        };
        let finding = |chosen| FindingKind::CopiesDiffer {
            ino: Ino(1),
            data_id: DataId(3),
            column: Column(1),
            right: vec![copy(3)],
            wrong: vec![copy(0), copy(6)],
            chosen,
        };
        round_trips(&[
            finding(CopyChoice::Newest),
            finding(CopyChoice::Majority),
            finding(CopyChoice::First),
        ]);
    }
}
