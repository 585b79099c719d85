//! Seek, copy and location: operations that ask where a file has bytes.
//!
//! Data and holes are reported in whole blocks. Programs take a hole that begins inside a block for
//! an error, or copy the rest of the block as data.

use crate::client::{Client, ClientCall};
use crate::file::File;
use crate::file::inline_bytes::end_of_inline;
use crate::transport::net::Net;
use std::collections::BTreeMap;
use zonal_basics::to_usize;
use zonal_layout::{ColumnRanges, Seek, next_data, next_hole};
use zonal_types::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use zonal_types::{Column, ErrorCode, FileData};
use zonal_wire::{StorageReply, StorageRequest};

/// Most ranges of one Map request.
const MAP_RANGES: u32 = 1024;
/// Bytes of a block.
const BLOCK: u64 = BLOCK_BYTES as u64;

impl<N: Net> ClientCall<'_, N> {
    /// Finds data (`data` true: `SEEK_DATA`) or a hole (`SEEK_HOLE`) from `offset` on.
    ///
    /// # Errors
    /// `NoDevice` past the end, or where no data follows.
    pub async fn seek(&self, file: &File<N>, offset: u64, data: bool) -> Result<u64, ErrorCode> {
        self.settle(file).await?;
        self.refetch(file).await?;
        let (layout, size) = {
            let state = file.state();
            (state.data.layout.clone(), state.size)
        };
        if offset >= size {
            return Err(ErrorCode::NoDevice);
        }
        let Some(component) = layout.components.first() else {
            return Err(ErrorCode::NoDevice);
        };
        let inline = u64::from(layout.inline_bytes());
        if offset < inline {
            let stored = self.inline_bytes(file.ino).await?.len() as u64;
            let end = stored.next_multiple_of(BLOCK);
            let is_data = offset < end;
            if is_data == data {
                return Ok(offset);
            }
            if is_data && end < inline {
                return Ok(end.min(size));
            }
        }
        let offset = offset.max(inline);
        if offset >= size {
            return if data {
                Err(ErrorCode::NoDevice)
            } else {
                Ok(size)
            };
        }
        let mut columns = vec![ColumnRanges::default(); usize::from(component.count)];
        loop {
            let step = if data {
                next_data(component, &columns, offset)
            } else {
                next_hole(component, &columns, offset)
            };
            match step {
                Seek::Found(at) if at < size => return Ok(at),
                Seek::Found(_) | Seek::None if data => return Err(ErrorCode::NoDevice),
                Seek::Found(_) | Seek::None => return Ok(size),
                Seek::Ask(column, from) => {
                    if zonal_layout::file_offset_of(component, column, from) >= size {
                        return if data {
                            Err(ErrorCode::NoDevice)
                        } else {
                            Ok(size)
                        };
                    }
                    self.map_column(file, column, from, &mut columns).await?;
                }
            }
        }
    }

    async fn map_column(
        &self,
        file: &File<N>,
        column: Column,
        from: u64,
        columns: &mut [ColumnRanges],
    ) -> Result<(), ErrorCode> {
        // The target may know only the first bytes of a block.
        let from = from - from % BLOCK;
        let make = |object| StorageRequest::Map {
            object,
            offset: from,
            end: u64::MAX,
            limit: MAP_RANGES,
        };
        let (reply, _, _) = self
            .storage_retry(file, (0, column), &make, &[], None, None)
            .await?;
        let StorageReply::Map { ranges, .. } = reply else {
            return Err(ErrorCode::Protocol);
        };
        let known = columns
            .get_mut(usize::from(column.0))
            .ok_or(ErrorCode::Protocol)?;
        take_ranges(known, from, ranges)
    }

    /// Copies a range between files of the cell through this client. Calls `begins` with each range
    /// before it is written. Returns the bytes copied.
    ///
    /// # Errors
    /// Those of reading, of writing or of `begins`, where nothing was copied.
    pub async fn copy_range(
        &self,
        (from, from_offset): (&File<N>, u64),
        (to, to_offset): (&File<N>, u64),
        length: u64,
        begins: &mut dyn FnMut(u64, u64) -> Result<(), ErrorCode>,
    ) -> Result<u64, ErrorCode> {
        const STEP: u64 = 1 << 20;
        if to_offset
            .checked_add(length)
            .is_none_or(|end| end > FILE_BYTES_MAX)
        {
            return Err(ErrorCode::FileTooBig);
        }
        let mut buffer = vec![0; to_usize(STEP.min(length))];
        let mut done = 0;
        while done < length {
            let step = to_usize(STEP.min(length - done));
            let read = self
                .read(from, from_offset + done, &mut buffer[..step])
                .await;
            let at = to_offset + done;
            let begun = read.and_then(|got| {
                begins(at, at + got as u64)?;
                Ok(got)
            });
            let written = match begun {
                Ok(0) => break,
                Ok(got) => {
                    let written = self.write(to, at, &buffer[..got], false).await;
                    written.map(|()| got)
                }
                Err(code) => Err(code),
            };
            match written {
                Ok(got) => done += got as u64,
                Err(code) if done == 0 => return Err(code),
                Err(_later) => break,
            }
        }
        Ok(done)
    }
}

impl<N: Net> Client<N> {
    /// Bytes of a file by target, by its layout and size, without the shard's bytes.
    #[must_use]
    pub fn bytes_by_target(
        &self,
        data: &FileData,
        size: u64,
    ) -> BTreeMap<zonal_types::TargetId, u64> {
        let mut by_target = BTreeMap::new();
        let inline = end_of_inline(data);
        for component in &data.layout.components {
            for object in zonal_layout::objects(component) {
                let column = zonal_layout::main_place(component, object);
                if let Ok(place) = self.place(component, column) {
                    let bytes = zonal_layout::object_bytes(component, size, column);
                    let own = zonal_layout::object_bytes(component, inline, column);
                    *by_target.entry(place.target).or_default() += bytes.saturating_sub(own);
                }
            }
        }
        by_target
    }
}

/// Adds the ranges that a target reported of a column from `from` on, as whole blocks.
///
/// # Errors
/// `Protocol` where the ranges do not continue from `from`: the request would repeat for ever.
fn take_ranges(
    known: &mut ColumnRanges,
    from: u64,
    ranges: Vec<(u64, u64)>,
) -> Result<(), ErrorCode> {
    let mut end = from;
    for (start, length) in &ranges {
        if *start < end || *length == 0 {
            return Err(ErrorCode::Protocol);
        }
        end = start.checked_add(*length).ok_or(ErrorCode::Protocol)?;
    }
    // Fewer than requested: these are all.
    let is_all = ranges.len() < MAP_RANGES as usize;
    known.known_to = if is_all { u64::MAX } else { end };
    for (start, length) in ranges {
        let end = (start + length).checked_next_multiple_of(BLOCK);
        let (start, end) = (start - start % BLOCK, end.unwrap_or(u64::MAX));
        match known.ranges.last_mut() {
            Some(last) if last.0 + last.1 >= start => last.1 = last.1.max(end - last.0),
            _apart => known.ranges.push((start, end - start)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_columns_data_are_whole_blocks() {
        let mut known = ColumnRanges::default();
        let told = vec![(5, 10), (100, 4096), (9000, 1), (u64::MAX - 2, 2)];
        assert_eq!(take_ranges(&mut known, 0, told), Ok(()));
        let last = u64::MAX - u64::MAX % BLOCK;
        let blocks = [(0, 3 * BLOCK), (last, u64::MAX - last)];
        assert_eq!(known.ranges, blocks);
    }

    #[test]
    fn ranges_of_a_column_must_continue_from_the_request() {
        let mut known = ColumnRanges::default();
        let many = |first: u64| (0..u64::from(MAP_RANGES)).map(move |at| (first + at * 10, 5));
        assert_eq!(take_ranges(&mut known, 100, many(100).collect()), Ok(()));
        let behind = 100 + u64::from(MAP_RANGES - 1) * 10 + 5;
        assert_eq!(known.known_to, behind);
        let bad: [Vec<(u64, u64)>; 5] = [
            many(100).collect(),
            vec![(behind, 0)],
            vec![(behind + 10, 5), (behind + 12, 5)],
            vec![(u64::MAX, 2)],
            vec![(behind - 1, 1)],
        ];
        for ranges in bad {
            let taken = take_ranges(&mut known, behind, ranges);
            assert_eq!(taken, Err(ErrorCode::Protocol));
        }
        assert_eq!(take_ranges(&mut known, behind, vec![(behind, 5)]), Ok(()));
        assert_eq!(known.known_to, u64::MAX);
    }
}
