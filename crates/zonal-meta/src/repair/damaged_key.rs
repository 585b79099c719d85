//! Repair of a damaged key: the key is removed, and numbers that it reserved stay unused.

use super::Result;
use crate::id_ranges::Counter;
use crate::inode::Inode;
use crate::inode_counts;
use crate::keys;
use zonal_types::{Codec, KvChange, KvRead, Layout, PartitionId};

/// Numbers skipped where it is not known which were given.
const IDS_MARGIN: u64 = 1 << 20;

/// The changes that make a damaged key harmless. Works without a shard, because the shard may not
/// load before.
///
/// # Errors
/// The error of `kv`.
pub fn repair_key(kv: &dyn KvRead, key: &[u8]) -> Result<Vec<KvChange>> {
    let partition = key
        .first_chunk::<4>()
        .map(|bytes| u32::from_be_bytes(*bytes));
    let counter = key.get(4).and_then(|tag| Counter::of_tag(*tag));
    let counter = counter.filter(|_| key.len() == 5);
    match (partition, counter) {
        (Some(keys::SHARD_PARTITION), Some(Counter::Inodes)) => {
            let (start, end) = keys::tag_range(keys::SHARD_PARTITION, keys::TAG_SESSION);
            let mut last = 0;
            kv.scan(&start, &end, &mut |key, _value| {
                last = keys::ino_of(key).map_or(last, |id| id.0.max(last));
                true
            })?;
            let next = last.saturating_add(IDS_MARGIN);
            Ok(vec![KvChange::put(keys::session_ids(), next.to_bytes())])
        }
        (Some(partition), Some(counter)) if partition != keys::SHARD_PARTITION => {
            reserve_again(kv, counter, PartitionId(partition))
        }
        (Some(partition), None) if inode_counts::is_count(key) => {
            let partition = PartitionId(partition);
            let count = inode_counts::count(kv, partition)?;
            let key = keys::inode_count(partition);
            Ok(vec![KvChange::put(key, count.to_bytes())])
        }
        _ => Ok(vec![KvChange::remove(key.to_vec())]),
    }
}

/// Reserves numbers behind all that are in use.
pub(super) fn reserve_again(
    kv: &dyn KvRead,
    counter: Counter,
    partition: PartitionId,
) -> Result<Vec<KvChange>> {
    let mut last = counter.first();
    let mut note = |number: u64| last = number.max(last);
    let note_layout = |layout: &Layout, note: &mut dyn FnMut(u64)| {
        let ids = layout.data_ids().filter(|id| id.partition() == partition);
        ids.for_each(|id| note(id.sequence()));
    };
    let scan = |tag, take: &mut dyn FnMut(&[u8], &[u8])| {
        let (start, end) = keys::tag_range(partition.0, tag);
        kv.scan(&start, &end, &mut |key, value| {
            take(key, value);
            true
        })
    };
    match counter {
        Counter::Inodes => scan(keys::TAG_INODE, &mut |key, _value| {
            if let Some(ino) = keys::ino_of(key) {
                note(ino.sequence());
            }
        })?,
        Counter::Data => {
            scan(keys::TAG_DATA, &mut |key, _value| {
                if let Some(id) = keys::data_of(key) {
                    note(id.sequence());
                }
            })?;
            scan(keys::TAG_INODE, &mut |_key, value| {
                if let Ok(inode) = Inode::from_bytes(value) {
                    note_layout(&inode.layout, &mut note);
                }
            })?;
            scan(keys::TAG_DELETION, &mut |_key, value| {
                if let Ok(layout) = Layout::from_bytes(value) {
                    note_layout(&layout, &mut note);
                }
            })?;
        }
    }
    let next = last.saturating_add(IDS_MARGIN);
    let value = counter.record(next);
    Ok(vec![KvChange::put(counter.key(partition), value)])
}
