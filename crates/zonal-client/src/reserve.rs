//! fallocate: reservation, holes, zeros.

use crate::client::Client;
use crate::file::File;
use crate::inline::end_of_inline;
use crate::net::{Net, wait_for};
use std::sync::atomic::Ordering;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{Column, ErrorCode};
use zonal_wire::{ObjectRef, StorageRequest};

/// What `fallocate` does to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Space for holes; data stays.
    Allocate,
    /// A hole.
    Punch,
    /// Zeros, with space.
    Zero,
}

impl<N: Net> Client<N> {
    /// Punches, zeroes or reserves `offset..offset + length`. The file grows to the range's end unless `keep_size`.
    ///
    /// # Errors
    /// `FileTooBig`, `NoSpace`, a target that does not answer.
    pub async fn reserve(
        &self,
        file: &File<N>,
        offset: u64,
        length: u64,
        how: Reserve,
        keep_size: bool,
    ) -> Result<(), ErrorCode> {
        let end = offset
            .checked_add(length)
            .filter(|end| *end <= FILE_BYTES_MAX)
            .ok_or(ErrorCode::FileTooBig)?;
        let _gate = wait_for(&self.net, &file.gate).await?;
        self.flush_gated(file).await?;
        self.refetch(file).await?;
        let data = file.state().data.clone();
        let make = |object: ObjectRef, from: u64, to: u64| match how {
            Reserve::Punch => StorageRequest::Punch {
                object,
                offset: from,
                length: to - from,
            },
            Reserve::Allocate => StorageRequest::Allocate {
                object,
                offset: from,
                length: to - from,
                zero: false,
            },
            Reserve::Zero => StorageRequest::Allocate {
                object,
                offset: from,
                length: to - from,
                zero: true,
            },
        };
        let inline = end_of_inline(&data);
        if offset < inline {
            self.reserve_inline(file, (offset, end.min(inline)), how, keep_size);
        }
        let offset = offset.max(inline.min(end));
        let mut delta = 0;
        for (index, component) in data.layout.components.iter().enumerate() {
            for column in (0..component.count).map(Column) {
                let from = zonal_layout::object_bytes(component, offset, column);
                let to = zonal_layout::object_bytes(component, end, column);
                if from >= to {
                    continue;
                }
                let make = |object| make(object, from, to);
                let (reply, _, target) = self
                    .storage_retry(file, (index, column), &make, &[], None, None)
                    .await?;
                delta += file.state().note_written(target, &reply);
            }
        }
        {
            let mut state = file.state();
            if !keep_size {
                state.size = state.size.max(end);
            }
            let report = state.report_mut();
            report.allocated_delta += delta;
            report.mtime = Some(self.net.wall());
            if !keep_size {
                report.size = report.size.max(end);
            }
        }
        self.send_report(file).await
    }

    /// The part of [`Self::reserve`] that the shard has, for the report: zeros take space there, also where they are a hole.
    fn reserve_inline(
        &self,
        file: &File<N>,
        (offset, end): (u64, u64),
        how: Reserve,
        keep_size: bool,
    ) {
        let mut state = file.state();
        let end = if keep_size { end.min(state.size) } else { end };
        if how == Reserve::Allocate {
            // Only the shard knows what is not there, whoever else writes now.
            let report = state.report_mut();
            report.allocate = report.allocate.max(end as u32);
            return;
        }
        let before = state.dirty.bytes();
        let zeros = vec![0; end.saturating_sub(offset) as usize];
        state.dirty.insert(offset, &zeros);
        self.dirty_bytes
            .fetch_add(state.dirty.bytes() - before, Ordering::Relaxed);
    }
}
