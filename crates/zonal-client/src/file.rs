//! A file that this client has open or has unwritten data of.
//!
//! Lock order: `gate` before `state`. `gate` is async and held across flushes, truncations and
//! appends; `state` is never held across an await.
//!
//! Every written byte is in `append_buffer`, in `inflight` or in `dirty`, or its target has
//! acknowledged it. Reads lay these three over the targets' bytes in that order of age. (During a
//! truncation bytes may also be in `aside`: `bytes_past_end.rs`.)

pub(crate) mod append_buffer;
pub(crate) mod batch;
pub(crate) mod bytes_past_end;
pub(crate) mod dirty_ranges;
pub(crate) mod inline_bytes;
pub(crate) mod privileges;
pub(crate) mod tail_ownership;
pub(crate) mod unsynced_closed_files;
pub(crate) mod unsynced_writes;
pub(crate) mod write_failures;

pub use write_failures::ReportedFailures;

use crate::cell::placement::TargetPlace;
use crate::transport::in_flight::InFlightGuard;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::run::Run;
use append_buffer::AppendBuffer;
use batch::Batch;
use bytes_past_end::BytesPastEnd;
use dirty_ranges::{DirtyRanges, copy_overlap};
use inline_bytes::end_of_inline;
use privileges::Privileges;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use tail_ownership::TailOwnership;
use unsynced_writes::UnsyncedWrites;
use write_failures::WriteFailures;
use zonal_basics::to_usize;
use zonal_layout::Piece;
use zonal_types::{
    Attr, ErrorCode, FileData, Ino, Instant, Layout, TargetId, Timestamp, truncation,
};
use zonal_wire::StorageReply;

/// Open and dirty files by inode.
pub(crate) type FileTable<N> = Mutex<BTreeMap<Ino, Arc<File<N>>>>;

/// One file.
pub struct File<N: Net> {
    /// Its inode number.
    pub ino: Ino,
    pub(crate) gate: async_lock::Mutex<()>,
    state: Mutex<FileState<N>>,
}

pub(crate) struct FileState<N: Net> {
    pub(crate) data: FileData,
    /// The shard may know of a later truncation. The client asks it before it sends anything to
    /// targets, or reads.
    pub(crate) is_outdated: bool,
    /// How often `is_outdated` was set: an answer to an earlier request does not clear it.
    pub(crate) outdatings: u64,
    /// Size as this client sees it: the shard's, and the end of own writes since.
    pub(crate) size: u64,
    /// Change counter of the last answer taken: answers may arrive out of order.
    pub(crate) change: u64,
    /// Unpublished appends.
    pub(crate) append_buffer: AppendBuffer,
    pub(crate) dirty: DirtyRanges,
    pub(crate) inflight: VecDeque<InFlightBatch<N>>,
    /// End of the gathered bytes that targets may already have, because their writer was killed or
    /// its deadline passed.
    pub(crate) unsure_end: u64,
    /// Changes not yet reported to the shard.
    pub(crate) report: Option<WriteReport>,
    /// The report in flight: answers of the shard do not include it yet.
    pub(crate) reporting: Option<WriteReport>,
    pub(crate) opens: usize,
    /// Acknowledged changes that are not durable yet.
    pub(crate) unsynced: UnsyncedWrites,
    /// Writes that failed after they were accepted.
    pub(crate) failures: WriteFailures,
    pub(crate) dirty_since: Option<Instant>,
    /// The last flush by age met a server that did not answer.
    pub(crate) was_kept: bool,
    /// Ownership of the bytes behind the end.
    pub(crate) tail_ownership: TailOwnership,
    /// Bytes gathered before a truncation that is in flight or was not answered.
    pub(crate) aside: Option<BytesPastEnd>,
    /// Closes that must wait until the shard knows of the writes before them.
    pub(crate) late_closes: usize,
    /// Number of the next change that is sent to targets.
    pub(crate) attempt: u32,
    /// Known set-id bits and capabilities.
    pub(crate) privileges: Privileges,
}

/// A batch on its way to the targets.
pub(crate) struct InFlightBatch<N: Net> {
    pub(crate) batch: Arc<Batch>,
    pub(crate) parts: Vec<InFlightMessage<N>>,
    /// Pieces of copies that miss changes: they follow after the others.
    pub(crate) left_out: Vec<Piece>,
    /// The layout by which its pieces were made.
    pub(crate) placed_by: Layout,
    /// The last truncation known when the batch was sent.
    pub(crate) truncate_seq: u64,
    /// Ranges of the file that a copy refused by their order: they go to all copies again.
    pub(crate) overtaken: Vec<(u64, u64)>,
}

/// A message with pieces of a batch, without a reply yet.
pub(crate) struct InFlightMessage<N: Net> {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) place: TargetPlace,
    pub(crate) pending: crate::cell::call::SentRequest<N>,
    /// Counted at its target until it is answered or abandoned.
    pub(crate) ticket: InFlightGuard,
}

/// A report of writes that a flush sends to the shard.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WriteReport {
    pub(crate) size: u64,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) allocated_delta: i64,
    pub(crate) kill_suid: bool,
    /// End of the bytes that the shard keeps and allocates.
    pub(crate) allocate: u32,
}

impl<N: Net> File<N> {
    /// A file that nobody has open, of unknown size. `attempt`: number of its first change.
    pub(crate) fn new(ino: Ino, data: FileData, attempt: u32) -> Self {
        Self {
            ino,
            gate: async_lock::Mutex::new(()),
            state: Mutex::new(FileState {
                data,
                is_outdated: false,
                outdatings: 0,
                size: 0,
                change: 0,
                append_buffer: AppendBuffer::default(),
                dirty: DirtyRanges::default(),
                inflight: VecDeque::new(),
                unsure_end: 0,
                report: None,
                reporting: None,
                opens: 0,
                unsynced: UnsyncedWrites::default(),
                failures: WriteFailures::default(),
                dirty_since: None,
                was_kept: false,
                tail_ownership: TailOwnership::Unknown(Instant::default()),
                aside: None,
                late_closes: 0,
                attempt,
                privileges: Privileges::default(),
            }),
        }
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, FileState<N>> {
        lock(&self.state)
    }

    /// Number of opens that the shard must count.
    pub(crate) fn open_count(&self) -> usize {
        let state = self.state();
        state.opens + state.late_closes
    }

    /// Its size, as this client knows it now.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.state().size
    }

    /// Number of its first bytes that its shard keeps.
    #[must_use]
    pub fn inline_bytes(&self) -> u64 {
        self.state().data.layout.inline_bytes().into()
    }

    /// Returns a loss that no write has reported yet, before a write through an open with the state
    /// `told`.
    ///
    /// # Errors
    /// The loss.
    pub fn tell_writer(&self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        self.state().failures.tell_writer(told)
    }

    /// The state of failures at which a new open begins.
    #[must_use]
    pub fn told(&self) -> ReportedFailures {
        self.state().failures.sample()
    }
}

impl<N: Net> FileState<N> {
    /// Notes a target's acknowledgement; returns the change of allocated bytes.
    pub(crate) fn note_written(&mut self, target: TargetId, reply: &StorageReply) -> i64 {
        let StorageReply::Written {
            allocated_delta,
            verifier,
            ..
        } = reply
        else {
            return 0;
        };
        self.unsynced.insert(target, *verifier);
        *allocated_delta
    }

    /// Marks the file as outdated: the shard may know something that this client does not.
    pub(crate) fn outdate(&mut self) {
        self.is_outdated = true;
        self.outdatings += 1;
    }

    /// A truncation was not answered, and may or may not have been executed.
    pub(crate) fn is_doubted(&self) -> bool {
        self.aside.as_ref().is_some_and(BytesPastEnd::is_doubted)
    }

    /// Whether the batch was gathered under locks that others have got since: it is not sent any
    /// more.
    pub(crate) fn is_forfeited(&self, batch: &Batch) -> bool {
        batch.forfeits() != self.failures.forfeits()
    }

    /// A batch in flight.
    pub(crate) fn in_flight(&mut self, batch: &Batch) -> Option<&mut InFlightBatch<N>> {
        let mut all = self.inflight.iter_mut();
        all.find(|of| std::ptr::eq(&raw const *of.batch, batch))
    }

    /// True where the shard and the targets know of every write.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
            && self.append_buffer.is_empty()
            && self.aside.is_none()
            && self.inflight.is_empty()
            && self.report.is_none()
            && self.reporting.is_none()
    }

    pub(crate) fn report_mut(&mut self) -> &mut WriteReport {
        self.report.get_or_insert_with(WriteReport::default)
    }

    /// Takes the shard's attributes, unless a later answer was taken already. Own unreported writes
    /// stay on top.
    pub(crate) fn refresh(&mut self, attr: &Attr, data: Option<FileData>) {
        if let Some(data) = data {
            self.take_data(data);
        }
        if attr.change >= self.change {
            self.change = attr.change;
            self.size = attr.size.max(self.unreported_end());
        }
    }

    /// Takes a layout, unless it is older than the known one.
    pub(crate) fn take_data(&mut self, mut data: FileData) {
        if data.layout == self.data.layout {
            data.as_of = data.as_of.max(self.data.as_of);
        }
        if data.truncate_seq >= self.data.truncate_seq
            && data.layout.layout_gen >= self.data.layout.layout_gen
        {
            let before = std::mem::replace(&mut self.data, data);
            let is_other = !before.layout.data_ids().eq(self.data.layout.data_ids());
            if is_other && (self.report.is_some() || self.reporting.is_some()) {
                // The file got the bytes of a copy while this client's session had expired. Writes
                // that the shard had not heard of may be missing there.
                self.failures.note(ErrorCode::Io);
            }
            if self.data.truncate_seq > before.truncate_seq {
                // Targets refuse older writes that arrive after this.
                self.unsure_end = 0;
            }
            if let Some(mut report) = self.report.take() {
                report.size = self.left_of(before.truncate_seq, report.size);
                self.report = Some(report);
            }
        }
    }

    /// [`left_of`] for bytes that targets acknowledged. Others may have truncated them because this
    /// client's session had expired; that loss is noted.
    pub(crate) fn left_of(&mut self, truncate_seq: u64, end: u64) -> u64 {
        let left = left_of(&self.data, truncate_seq, end);
        if left < end
            && end > end_of_inline(&self.data)
            && truncation::is_disowning(self.data.truncate_seq)
        {
            self.failures.note(ErrorCode::Io);
        }
        left
    }

    /// Parts of `bytes` at `offset` that no batch in flight covers, from the batch numbered `newer`
    /// on. A resent byte must not overwrite a newer one that is in flight.
    pub(crate) fn beneath<'a>(
        &self,
        newer: usize,
        offset: u64,
        bytes: &'a [u8],
    ) -> Vec<(u64, &'a [u8])> {
        let mut parts = vec![(offset, bytes)];
        let end = offset + bytes.len() as u64;
        let others = self.inflight.iter().skip(newer);
        for (from, run) in others.flat_map(|other| other.batch.within(offset, end)) {
            let (from, to) = (*from, from + run.len() as u64);
            let cut = |(at, bytes): (u64, &'a [u8])| {
                let end = at + bytes.len() as u64;
                let before = from.clamp(at, end) - at;
                let behind = to.clamp(at, end) - at;
                let (before, behind) = if behind > before {
                    (to_usize(before), to_usize(behind))
                } else {
                    (bytes.len(), bytes.len())
                };
                [
                    (at, &bytes[..before]),
                    (at + behind as u64, &bytes[behind..]),
                ]
            };
            parts = parts.into_iter().flat_map(cut).collect();
            parts.retain(|(_at, bytes)| !bytes.is_empty());
        }
        parts
    }

    /// End of own writes that the shard does not know.
    pub(crate) fn unreported_end(&self) -> u64 {
        let told = self.reporting.map_or(0, |report| report.size);
        let reported = self.report.map_or(told, |report| report.size.max(told));
        let under_way = self.inflight.iter().map(|run| run.batch.end()).max();
        let aside = self.aside.as_ref().map_or(0, BytesPastEnd::end);
        let gathered = self.dirty.end().max(aside).max(self.append_buffer.end());
        reported.max(gathered).max(under_way.unwrap_or(0))
    }

    /// Moves runs from the dirty ranges into flight under one lock, so that readers never miss
    /// them.
    pub(crate) fn take_batch(
        &mut self,
        take: impl FnOnce(&mut DirtyRanges) -> Vec<(u64, Run)>,
    ) -> Option<Arc<Batch>> {
        let runs = take(&mut self.dirty);
        if runs.is_empty() {
            return None;
        }
        let batch = Arc::new(Batch::new(runs, self.failures.forfeits()));
        self.inflight.push_back(InFlightBatch {
            batch: batch.clone(),
            parts: Vec::new(),
            left_out: Vec::new(),
            placed_by: self.data.layout.clone(),
            truncate_seq: self.data.truncate_seq,
            overtaken: Vec::new(),
        });
        Some(batch)
    }

    /// Copies of all unacknowledged bytes within `offset..end`, oldest first.
    pub(crate) fn pending_copies(&self, offset: u64, end: u64) -> Vec<(u64, Vec<u8>)> {
        let under_way = self.inflight.iter();
        let under_way = under_way.flat_map(|run| run.batch.copies(offset, end));
        let appended = self.append_buffer.copies(offset, end).into_iter();
        let mut copies: Vec<(u64, Vec<u8>)> = appended.chain(under_way).collect();
        let aside = self.aside.iter();
        copies.extend(aside.flat_map(|aside| aside.copies(offset, end)));
        copies.extend(self.dirty.copies(offset, end));
        copies
    }
}

/// End of the bytes that remain of those up to `end` that targets acknowledged under
/// `truncate_seq`. A later truncation removes the rest.
pub(crate) fn left_of(data: &FileData, truncate_seq: u64, end: u64) -> u64 {
    if truncate_seq < data.truncate_seq {
        end.min(data.truncate_size)
    } else {
        end
    }
}

/// Lays copies over `out`, whose first byte has the offset `offset`.
pub(crate) fn lay_over(copies: &[(u64, Vec<u8>)], offset: u64, out: &mut [u8]) {
    for (at, bytes) in copies {
        copy_overlap(*at, bytes, offset, out);
    }
}
