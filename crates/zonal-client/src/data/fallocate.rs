//! fallocate: reserves space, punches holes, writes zeros.

use crate::client::ClientCall;
use crate::data::storage_retry::MakeRequest;
use crate::file::File;
use crate::file::inline_bytes::end_of_inline;
use crate::transport::net::Net;
use crate::transport::retry::late;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use zonal_basics::to_usize;
use zonal_types::limits::{CHUNK_BYTES, FILE_BYTES_MAX, STORAGE_STEP_BYTES};
use zonal_types::{Column, ErrorCode, FileData};
use zonal_wire::{ObjectRef, StorageReply, StorageRequest};

/// The longest range that a target changes in one step at any offset: all of it or nothing.
const ONE_STEP_BYTES: u64 = STORAGE_STEP_BYTES - CHUNK_BYTES as u64;

/// Kinds of changes that `fallocate` makes to a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reserve {
    /// Allocates space for holes; data stays.
    Allocate,
    /// Makes a hole.
    Punch,
    /// Writes zeros and allocates space.
    Zero,
}

impl Reserve {
    /// The request that changes a range of an object.
    fn request(self, object: ObjectRef, offset: u64, length: u64) -> StorageRequest {
        if self == Self::Punch {
            return StorageRequest::Punch {
                object,
                offset,
                length,
            };
        }
        StorageRequest::Allocate {
            object,
            offset,
            length,
            zero: self == Self::Zero,
        }
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Punches, zeroes or reserves `offset..offset + length`. The file grows to the range's end
    /// unless `keep_size`.
    ///
    /// # Errors
    /// `FileTooBig`, `NoSpace`, or a target that does not answer.
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
        let _gate = self.wait_for(&file.gate).await?;
        self.settle_gated(file).await?;
        let takes_space = how != Reserve::Punch || !keep_size;
        if !takes_space || !self.own_reserved(file, end, keep_size).await? {
            self.refetch(file).await?;
        }
        let data = file.state().data.clone();
        let inline = end_of_inline(&data);
        if offset < inline {
            self.reserve_inline(file, (offset, end.min(inline)), how, keep_size);
        }
        let offset = offset.max(inline.min(end));
        let (delta, reserved) = self.reserve_objects(file, &data, (offset, end), how).await;
        // Space taken before a failure stays taken.
        if reserved.is_err() && delta == 0 {
            return reserved;
        }
        {
            let mut state = file.state();
            let grows = reserved.is_ok() && !keep_size;
            if grows {
                state.size = state.size.max(end);
            }
            let report = state.report_mut();
            let allocated = &mut report.allocated_delta;
            *allocated = allocated.saturating_add(delta);
            report.mtime = Some(self.net.wall());
            if grows {
                report.size = report.size.max(end);
            }
        }
        let reported = self.send_report(file).await;
        reserved.and(reported)
    }

    /// Changes the range in all objects, last in copies that are being filled. Returns the change
    /// of allocated bytes, also on failure.
    async fn reserve_objects(
        &self,
        file: &File<N>,
        data: &FileData,
        (offset, end): (u64, u64),
        how: Reserve,
    ) -> (i64, Result<(), ErrorCode>) {
        let components = data.layout.components.iter().enumerate();
        let mut left: VecDeque<_> = components
            .flat_map(|(index, component)| {
                zonal_layout::places(component).map(move |place| (index, component, place, false))
            })
            .collect();
        let all: Vec<_> = left.iter().copied().collect();
        let mut placed_by = data.layout.clone();
        let (mut delta, mut rounds, deadline) = (0, 0, self.deadline());
        let mut order = self.order_of_reserve(file, how, rounds);
        loop {
            let Some((index, component, column, fills)) = left.pop_front() else {
                let new = file.state().late_places(&mut placed_by);
                if new.is_empty() {
                    break;
                }
                let late_of = |(index, place): &(usize, Column)| {
                    let component = data.layout.components.get(*index)?;
                    Some((*index, component, *place, true))
                };
                left.extend(new.iter().filter_map(late_of));
                continue;
            };
            let from = zonal_layout::object_bytes(component, offset, column);
            let to = zonal_layout::object_bytes(component, end, column);
            if from >= to {
                continue;
            }
            let make = |object| how.request(object, from, to - from);
            let whole = to - from <= ONE_STEP_BYTES;
            let change = self.reserve_column(file, (index, column), &make, (whole, fills, order));
            let (changed, outcome) = change.await;
            delta += changed;
            match outcome {
                Ok(StorageReply::Done) if !fills => {
                    left.push_back((index, component, column, true));
                }
                Ok(_changed) => {}
                // A copy has a later change of these bytes: all get this one again.
                Err(ErrorCode::Overtaken) if !self.is_over(deadline) => {
                    rounds += 1;
                    order = self.order_of_reserve(file, how, rounds);
                    left = all.iter().copied().collect();
                    placed_by = data.layout.clone();
                }
                Err(code) => return (delta, Err(late(code))),
            }
        }
        (delta, Ok(()))
    }

    /// The order of a change of bytes; 0 where no byte changes, or the file has one copy.
    fn order_of_reserve(&self, file: &File<N>, how: Reserve, rounds: u32) -> u64 {
        match how {
            Reserve::Allocate => 0,
            Reserve::Punch | Reserve::Zero => self.order_of_change(file, rounds),
        }
    }

    /// Changes the range in one object. Returns the change of allocated bytes, also on failure.
    /// `whole`: the target changes all of it or nothing. `fills`: the other copies have the change.
    async fn reserve_column(
        &self,
        file: &File<N>,
        at: (usize, Column),
        make: MakeRequest<'_>,
        (whole, fills, order): (bool, bool, u64),
    ) -> (i64, Result<StorageReply, ErrorCode>) {
        let before = if whole {
            None
        } else {
            self.column_allocated(file, at).await.ok()
        };
        let changed = match fills {
            true => self.storage_fill(file, at, make, (&[], order)).await,
            false => {
                self.storage_change(file, at, make, (&[], order), None)
                    .await
            }
        };
        let failed = match changed {
            Ok((reply, _, target)) => {
                return (file.state().note_written_at(at, target, &reply), Ok(reply));
            }
            Err(code) => code,
        };
        let mut change = 0;
        if let Some(before) = before
            && let Ok(after) = self.column_allocated(file, at).await
        {
            change = after.wrapping_sub(before).cast_signed();
        }
        (change, Err(failed))
    }

    /// Bytes that a column's target has allocated for it.
    async fn column_allocated(
        &self,
        file: &File<N>,
        at: (usize, Column),
    ) -> Result<u64, ErrorCode> {
        let make = |object| StorageRequest::Stat { object };
        let (reply, ..) = self.storage_retry(file, at, &make, &[], None, None).await?;
        match reply {
            StorageReply::Stat { allocated, .. } => Ok(allocated),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Handles the part of [`Self::reserve`] that the shard keeps, by way of the report. Zeros take
    /// space there, also for a hole.
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
            // Only the shard knows which bytes are missing, because others may write now.
            let report = state.report_mut();
            report.allocate = report.allocate.max(u32::try_from(end).unwrap_or(u32::MAX));
            return;
        }
        let before = state.dirty.bytes();
        let zeros = vec![0; to_usize(end.saturating_sub(offset))];
        state.dirty.insert(offset, &zeros);
        self.dirty_bytes
            .fetch_add(state.dirty.bytes() - before, Ordering::Relaxed);
    }
}
