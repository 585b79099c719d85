//! Walks one file of a copy, for `zonal dump`.

use super::chain::Chain;
use crate::files::error::DiskError;
use std::fs::File;
use std::path::Path;

/// An item of a file of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyItem<'a> {
    /// The beginning of a record.
    Record {
        /// Where it is in the file.
        at: u64,
        /// Number of its cycle.
        cycle: u64,
        /// Its own number.
        sequence: u64,
        /// The log's end at its checkpoint.
        applied: u64,
        /// Epoch of the checkpoint.
        epoch: u64,
        /// Entries of its slice.
        slice: u32,
        /// Its slice ends the cycle.
        is_whole: bool,
    },
    /// An entry of the record, of the slice or a change; no value means a removal.
    Entry {
        /// It belongs to the slice.
        of_slice: bool,
        /// The key.
        key: &'a [u8],
        /// The value.
        value: Option<&'a [u8]>,
    },
    /// The record's bytes fail their checksum, or are not a record.
    Damaged,
    /// Trailing bytes that are no record.
    Rest {
        /// Where they begin.
        at: u64,
        /// How many bytes.
        bytes: u64,
    },
}

/// Passes all items of the file at `path` to `visit`, of any store; false ends the walk.
///
/// # Errors
/// `Io`.
pub fn walk_copy(
    path: &Path,
    visit: &mut dyn FnMut(CopyItem<'_>) -> bool,
) -> Result<(), DiskError> {
    let failed = |error| DiskError::io("read the copy of the index", error);
    let file = File::open(path).map_err(failed)?;
    let length = file.metadata().map_err(failed)?.len();
    let chain = Chain::of(file, &|_| true).map_err(failed)?;
    for (at, header) in &chain.records {
        let mut goes_on = visit(CopyItem::Record {
            at: *at,
            cycle: header.cycle,
            sequence: header.sequence,
            applied: header.applied,
            epoch: header.applied_epoch,
            slice: header.slice,
            is_whole: header.whole,
        });
        let shown = if chain.is_intact(*at, header).map_err(failed)? {
            chain.entries(*at, header, &mut |of_slice, key, value| {
                goes_on = goes_on
                    && visit(CopyItem::Entry {
                        of_slice,
                        key,
                        value,
                    });
                Ok(())
            })
        } else {
            Err(DiskError::Corrupt("its checksum fails".into()))
        };
        match shown {
            Err(DiskError::Corrupt(_)) => goes_on = goes_on && visit(CopyItem::Damaged),
            shown => shown?,
        }
        if !goes_on {
            return Ok(());
        }
    }
    let bytes = length.saturating_sub(chain.end());
    if bytes > 0 {
        visit(CopyItem::Rest {
            at: chain.end(),
            bytes,
        });
    }
    Ok(())
}
