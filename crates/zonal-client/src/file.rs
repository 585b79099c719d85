//! A file that this client has open or has unwritten data of.
//!
//! Lock order: `gate` (async, held across flush, truncation, append and the like) before `state`
//! (never held across an await). Every byte that was written is in `gathered`, in `dirty`, in
//! `inflight`, or acknowledged by its target; reads lay the first three over what the targets say,
//! in that order of age. (Or, for a moment, aside: `truncate.rs`.)

use crate::append_buffer::AppendBuffer;
use crate::batch::Batch;
use crate::dirty_ranges::{DirtyRanges, copy_overlap};
use crate::in_flight::InFlightGuard;
use crate::inline_data::end_of_inline;
use crate::net::Net;
use crate::placement::TargetPlace;
use crate::privileges::Privileges;
use crate::run::Run;
use crate::session::lock;
use crate::tail_ownership::TailOwnership;
use crate::truncate::BytesPastEnd;
use crate::unsynced_writes::UnsyncedWrites;
use crate::write_failures::{ReportedFailures, WriteFailures};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use zonal_layout::Piece;
use zonal_types::{Attr, ErrorCode, FileData, Ino, Instant, TargetId, Timestamp, cut};
use zonal_wire::StorageReply;

/// Open and dirty files by inode.
pub(crate) type FileTable<N> = Mutex<BTreeMap<Ino, Arc<File<N>>>>;

/// One file.
pub struct File<N: Net> {
    /// Its inode.
    pub ino: Ino,
    pub(crate) gate: async_lock::Mutex<()>,
    state: Mutex<FileState<N>>,
}

pub(crate) struct FileState<N: Net> {
    pub(crate) data: FileData,
    /// The shard may know of a later shrink: it is asked before anything is sent to targets, or
    /// read.
    pub(crate) is_outdated: bool,
    /// How often it became so: an answer to an earlier question says nothing of it.
    pub(crate) outdatings: u64,
    /// Size as this client sees it: what the shard said, and what was written here since.
    pub(crate) size: u64,
    /// Change counter of the last answer that was taken: answers may arrive out of order.
    pub(crate) change: u64,
    /// Appends that are not published.
    pub(crate) append_buffer: AppendBuffer,
    pub(crate) dirty: DirtyRanges,
    pub(crate) inflight: VecDeque<InFlightBatch<N>>,
    /// Up to where targets may have what is gathered again, since its writer was killed or its time
    /// was over.
    pub(crate) unsure_end: u64,
    /// What the shard has not been told yet.
    pub(crate) report: Option<WriteReport>,
    /// What the shard is being told: its answers do not have it yet.
    pub(crate) reporting: Option<WriteReport>,
    pub(crate) opens: usize,
    /// What was acknowledged and is not durable yet.
    pub(crate) unsynced: UnsyncedWrites,
    /// Writes that failed after they were accepted.
    pub(crate) failures: WriteFailures,
    pub(crate) dirty_since: Option<Instant>,
    /// Its last flush by age met a server that did not answer.
    pub(crate) was_kept: bool,
    /// What lies behind the end.
    pub(crate) tail_ownership: TailOwnership,
    /// Gathered before a truncation that is under way, or was not answered.
    pub(crate) aside: Option<BytesPastEnd>,
    /// Closes that the shard is not told before what was written.
    pub(crate) late_closes: usize,
    /// The number of the next change that is sent to targets.
    pub(crate) attempt: u32,
    /// What is known of its set-id bits and capabilities.
    pub(crate) privileges: Privileges,
}

/// Runs on their way to the targets.
pub(crate) struct InFlightBatch<N: Net> {
    pub(crate) batch: Arc<Batch>,
    pub(crate) parts: Vec<InFlightMessage<N>>,
    /// The last shrink that was known when they were sent.
    pub(crate) truncate_seq: u64,
}

/// A message with pieces of a batch, without its answer.
pub(crate) struct InFlightMessage<N: Net> {
    pub(crate) pieces: Vec<Piece>,
    pub(crate) place: TargetPlace,
    pub(crate) pending: crate::operation::SentRequest<N>,
    /// Counted at its target until it is answered or given up.
    pub(crate) ticket: InFlightGuard,
}

/// What a flush tells the shard.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WriteReport {
    pub(crate) size: u64,
    pub(crate) mtime: Option<Timestamp>,
    pub(crate) allocated_delta: i64,
    pub(crate) kill_suid: bool,
    /// Bytes that the shard keeps are allocated up to here.
    pub(crate) allocate: u32,
}

impl<N: Net> File<N> {
    /// That nobody has open, and whose size is not known yet. `attempt`: the first number of its
    /// changes.
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

    /// Opens, as the shard is to count them.
    pub(crate) fn open_count(&self) -> usize {
        let state = self.state();
        state.opens + state.late_closes
    }

    /// Its size, as this client knows it now.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.state().size
    }

    /// Before a write through an open that was told up to `told`: a loss that no write was told of.
    ///
    /// # Errors
    /// That.
    pub fn tell_writer(&self, told: &mut ReportedFailures) -> Result<(), ErrorCode> {
        self.state().failures.tell_writer(told)
    }

    /// Where an open that begins now stands among the failures of writes.
    #[must_use]
    pub fn told(&self) -> ReportedFailures {
        self.state().failures.sample()
    }
}

impl<N: Net> FileState<N> {
    /// Notes that a target acknowledged a change; returns by how much it changed the allocated
    /// bytes.
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

    /// The shard may know what we have not heard of.
    pub(crate) fn outdate(&mut self) {
        self.is_outdated = true;
        self.outdatings += 1;
    }

    /// A truncation was not answered, and it is not known whether it was executed.
    pub(crate) fn is_doubted(&self) -> bool {
        self.aside.as_ref().is_some_and(BytesPastEnd::is_doubted)
    }

    /// A batch was gathered under locks that others have got since: it is sent no more.
    pub(crate) fn is_forfeited(&self, batch: &Batch) -> bool {
        batch.forfeits() != self.failures.forfeits()
    }

    /// Nothing is written that the shard and the targets do not know.
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

    /// Takes what the shard says of the file, unless a later answer was taken already; our own
    /// unreported writes stay on top.
    pub(crate) fn refresh(&mut self, attr: &Attr, data: Option<FileData>) {
        if let Some(data) = data {
            self.take_data(data);
        }
        if attr.change >= self.change {
            self.change = attr.change;
            self.size = attr.size.max(self.unreported_end());
        }
    }

    /// Takes a layout, unless it is older than ours.
    pub(crate) fn take_data(&mut self, data: FileData) {
        if data.truncate_seq >= self.data.truncate_seq
            && data.layout.layout_gen >= self.data.layout.layout_gen
        {
            let before = std::mem::replace(&mut self.data, data);
            if self.data.truncate_seq > before.truncate_seq {
                // Targets refuse what they have not taken yet.
                self.unsure_end = 0;
            }
            if let Some(mut report) = self.report.take() {
                report.size = self.left_of(before.truncate_seq, report.size);
                self.report = Some(report);
            }
        }
    }

    /// [`left_of`] what targets acknowledged. A file that others had made longer meanwhile, because
    /// our session was over, has lost the rest: that is told.
    pub(crate) fn left_of(&mut self, truncate_seq: u64, end: u64) -> u64 {
        let left = left_of(&self.data, truncate_seq, end);
        if left < end
            && end > end_of_inline(&self.data)
            && cut::is_disowning(self.data.truncate_seq)
        {
            self.failures.note(ErrorCode::Io);
        }
        left
    }

    /// The parts of `bytes` at `offset` that no run under way covers, from the one numbered `newer`
    /// on: what is sent again must not come after what was written over it, and is on its way
    /// already.
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
                    (before as usize, behind as usize)
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

    /// The end of what was written here and the shard does not know.
    pub(crate) fn unreported_end(&self) -> u64 {
        let told = self.reporting.map_or(0, |report| report.size);
        let reported = self.report.map_or(told, |report| report.size.max(told));
        let under_way = self.inflight.iter().map(|run| run.batch.end()).max();
        let aside = self.aside.as_ref().map_or(0, BytesPastEnd::end);
        let gathered = self.dirty.end().max(aside).max(self.append_buffer.end());
        reported.max(gathered).max(under_way.unwrap_or(0))
    }

    /// Moves runs from the gathered writes to those under way, without a moment in which readers
    /// miss them.
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
            truncate_seq: self.data.truncate_seq,
        });
        Some(batch)
    }

    /// Copies of everything unacknowledged within `offset..end`, oldest first.
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

/// Up to where bytes are left of those up to `end` that targets acknowledged when `truncate_seq`
/// was the last shrink known: a later one cuts them.
pub(crate) fn left_of(data: &FileData, truncate_seq: u64, end: u64) -> u64 {
    if truncate_seq < data.truncate_seq {
        end.min(data.truncate_size)
    } else {
        end
    }
}

/// Lays copies over `out`, which lies at `offset`.
pub(crate) fn lay_over(copies: &[(u64, Vec<u8>)], offset: u64, out: &mut [u8]) {
    for (at, bytes) in copies {
        copy_overlap(*at, bytes, offset, out);
    }
}
