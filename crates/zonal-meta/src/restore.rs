//! Restore: converts a backup's entries for the store that takes the shard's place.
//!
//! The backup does not know the numbers given, files truncated and caches filled since it was made.
//! So every number that must never be given twice rises by [`RESTORE_STEP`]:
//!
//! * inode numbers, data ids and sessions
//! * change counters, so that no cache takes its copy for the present one
//! * the truncation number of each file with data, at its size in the backup. Targets then truncate
//!   bytes written behind it later, and refuse nothing as older than they know.

use crate::id_ranges::Counter;
use crate::inode::{FLAG_UNCONFIRMED, FLAG_UNPUSHED, FLAG_WRITTEN, Inode};
use crate::keys;
use zonal_types::limits::RESTORE_STEP;
use zonal_types::{Codec, ErrorCode, KvChange, PartitionId};

/// Partition and tag of a key.
fn parts(key: &[u8]) -> Option<(u32, u8)> {
    let (partition, rest) = key.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*partition), *rest.first()?))
}

/// True where `key` holds reserved numbers, of a partition or of sessions.
#[must_use]
pub fn is_reserved(key: &[u8]) -> bool {
    let counter = parts(key).and_then(|(_, tag)| Counter::of_tag(tag));
    key.len() == 5 && counter.is_some()
}

/// The value of an entry in the new store.
///
/// # Errors
/// `Corrupt` where it cannot be decoded; `NoSpace` where a partition has no numbers left.
pub fn value(key: &[u8], value: Vec<u8>) -> Result<Vec<u8>, ErrorCode> {
    match parts(key).ok_or(ErrorCode::Corrupt)? {
        (keys::SHARD_PARTITION, keys::TAG_IDS) => {
            let next = u64::from_bytes(&value).map_err(|_error| ErrorCode::Corrupt)?;
            Ok(next.saturating_add(RESTORE_STEP).to_bytes())
        }
        (keys::SHARD_PARTITION, _) => Ok(value),
        (_, keys::TAG_INODE) => {
            let ino = keys::ino_of(key).ok_or(ErrorCode::Corrupt)?;
            let mut inode = Inode::decode(ino, &value)?;
            inode.change = inode.change.wrapping_add(RESTORE_STEP);
            if inode.is_file() && !inode.layout.components.is_empty() {
                inode.truncate_seq = inode.truncate_seq.saturating_add(RESTORE_STEP);
                inode.truncate_size = inode.size;
                inode.set(FLAG_UNPUSHED | FLAG_WRITTEN, false);
                inode.set(FLAG_UNCONFIRMED, true);
            }
            Ok(inode.to_bytes())
        }
        (_, tag) => match Counter::of_tag(tag) {
            Some(counter) => counter.restored(Some(&value)),
            None => Ok(value),
        },
    }
}

/// Entries that the new store needs and the backup lacks: number ranges of partitions without a
/// number given so far, and of sessions.
///
/// # Errors
/// `NoSpace` where a partition has no numbers left.
pub fn missing(
    partitions: &[PartitionId],
    is_there: impl Fn(&[u8]) -> bool,
) -> Result<Vec<KvChange>, ErrorCode> {
    let mut changes = Vec::new();
    if !is_there(&keys::session_ids()) {
        let value = RESTORE_STEP.to_bytes();
        changes.push(KvChange::put(keys::session_ids(), value));
    }
    for partition in partitions {
        for counter in Counter::ALL {
            let key = counter.key(*partition);
            if !is_there(&key) {
                changes.push(KvChange::put(key, counter.restored(None)?));
            }
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use zonal_types::{
        Column, Component, ComponentKind, DataId, FileKind, Ino, Redundancy, StripeSetId,
        Timestamp, ZoneId,
    };

    fn file(size: u64, has_data: bool) -> Inode {
        let ino = Ino::new(PartitionId(3), 77);
        let mut inode = Inode::new(
            ino,
            FileKind::File,
            Ino::ROOT,
            ZoneId(1),
            Timestamp::default(),
        );
        (inode.size, inode.truncate_seq, inode.truncate_size) = (size, 4, 10);
        if has_data {
            inode.layout.components.push(Component {
                kind: ComponentKind::Striped,
                start: 0,
                end: u64::MAX,
                data_id: DataId::new(PartitionId(3), 1 << 20),
                zone: ZoneId(1),
                set: StripeSetId(1),
                start_column: Column(0),
                count: 2,
                unit: 1 << 20,
                span: 0,
                redundancy: Redundancy::None,
                relocations: Vec::new(),
            });
        }
        inode
    }

    fn through(inode: &Inode) -> Inode {
        let key = keys::inode(inode.ino);
        Inode::decode(inode.ino, &value(&key, inode.to_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn a_file_with_data_is_truncated_at_its_size_and_caches_see_a_change() {
        let before = file(5000, true);
        let after = through(&before);
        assert_eq!(after.truncate_seq, 4 + RESTORE_STEP);
        assert_eq!((after.size, after.truncate_size), (5000, 5000));
        assert!(after.has(FLAG_UNCONFIRMED));
        assert_eq!(after.change, before.change + RESTORE_STEP);
        let bare = through(&file(5000, false));
        assert_eq!((bare.truncate_seq, bare.truncate_size), (4, 10));
        assert!(!bare.has(FLAG_UNCONFIRMED));
    }

    #[test]
    fn no_number_is_given_twice() {
        let [one, two] = [PartitionId(1), PartitionId(2)];
        for counter in Counter::ALL {
            let stored = counter.restored(None).unwrap();
            let again = value(&counter.key(one), stored.clone()).unwrap();
            let reserved = counter.reserved_in(&again).unwrap();
            assert_eq!(reserved, counter.first() + 2 * RESTORE_STEP);
            let added = missing(&[one, two], |key| key == counter.key(one)).unwrap();
            let keys: Vec<_> = added.iter().map(|change| change.key.clone()).collect();
            assert!(keys.contains(&keys::session_ids()) && keys.len() == 4);
            assert!(keys.contains(&keys::ids(two)) && keys.contains(&keys::data_ids(two)));
            assert!(!keys.contains(&counter.key(one)));
            let other = added.iter().find(|change| change.key == counter.key(two));
            assert_eq!(other.unwrap().value, Some(stored));
        }
        let count = value(&keys::inode_count(one), 7_u64.to_bytes()).unwrap();
        assert_eq!(u64::from_bytes(&count), Ok(7));
        let sessions = value(&keys::session_ids(), 5_u64.to_bytes()).unwrap();
        assert_eq!(u64::from_bytes(&sessions), Ok(5 + RESTORE_STEP));
    }

    #[test]
    fn damage_is_an_error() {
        for key in [
            keys::inode(Ino(9)),
            keys::ids(PartitionId(0)),
            keys::data_ids(PartitionId(0)),
            keys::session_ids(),
        ] {
            assert_eq!(value(&key, vec![1, 2, 3]), Err(ErrorCode::Corrupt));
        }
        assert_eq!(value(b"abc", Vec::new()), Err(ErrorCode::Corrupt));
    }
}
