//! Prefetch: makes the index look-ups of a request before it takes the target's mutex.
//!
//! See `zonal_meta::prefetch`. Where reads of the index have missed its cache lately, many threads
//! read the disk side by side. A plan made under the mutex then finds its pages cached.

use crate::ids::ObjectId;
use crate::key;
use zonal_types::KvRead;
use zonal_types::limits::{CHUNK_BYTES, STORAGE_IO_BYTES_MAX};

/// Reads an object's header and the chunks of `ranges` (offset, length), each of at most
/// [`STORAGE_IO_BYTES_MAX`]. Ignores errors: the request meets them again.
pub fn prefetch(kv: &dyn KvRead, object: ObjectId, ranges: &[(u64, u64)]) {
    if !matches!(kv.get(&key::header(object)), Ok(Some(_))) {
        return;
    }
    let mut last = None;
    for (offset, length) in ranges {
        let length = (*length).min(STORAGE_IO_BYTES_MAX as u64);
        let first = offset / CHUNK_BYTES as u64;
        let behind = offset.saturating_add(length).div_ceil(CHUNK_BYTES as u64);
        for chunk in first..behind {
            if last.replace(chunk) != Some(chunk) && kv.get(&key::chunk(object, chunk)).is_err() {
                return;
            }
        }
    }
}
