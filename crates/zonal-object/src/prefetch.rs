//! Prefetch: the look-ups that a request begins with, made before it has the target to itself.
//!
//! See `zonal_meta::prefetch`: where reads of the index have missed its cache lately, many threads
//! read the disk at the same time, and a plan under the target's mutex finds its pages in the
//! cache.

use crate::ids::ObjectId;
use crate::key;
use zonal_types::KvRead;
use zonal_types::limits::{CHUNK_BYTES, STORAGE_IO_BYTES_MAX};

/// Reads an object's header and the chunks of ranges (offset, length), each of at most
/// [`STORAGE_IO_BYTES_MAX`]. What cannot be read is met again by the request.
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
