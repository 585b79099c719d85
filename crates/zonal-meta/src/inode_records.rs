//! Inode records: reads all records of one tag, such as orphans.

use crate::keys;
use zonal_types::{Codec, ErrorCode, Ino, KvRead, PartitionId};

/// All records of a tag, for tags with few records at any time.
///
/// # Errors
/// `Corrupt` where a record cannot be read; else the error of `kv`.
pub(crate) fn all<T: Codec>(
    kv: &dyn KvRead,
    partitions: &[PartitionId],
    tag: u8,
) -> Result<Vec<(Ino, T)>, ErrorCode> {
    let mut found = Vec::new();
    let mut broken = false;
    for partition in partitions {
        let (start, end) = keys::tag_range(partition.0, tag);
        kv.scan(&start, &end, &mut |key, value| {
            match (keys::ino_of(key), T::from_bytes(value)) {
                (Some(ino), Ok(record)) => found.push((ino, record)),
                _ => broken = true,
            }
            !broken
        })?;
    }
    if broken {
        Err(ErrorCode::Corrupt)
    } else {
        Ok(found)
    }
}
