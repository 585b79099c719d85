//! Truncation: the shard first, then the columns.
//!
//! What is gathered behind the new end stays aside meanwhile ([`BytesPastEnd`]), and is read as if nothing
//! had been cut. Where the shard did not answer it may have cut the file, or may not: then it stays
//! there, and nothing of the file is sent before the shard has told. *Invariant*: when bytes are
//! put aside nothing is under way; so what is gathered later is newer, and what was sent before is
//! older.
//!
//! A file that another process opens while it is truncated by its name may be told of as it was
//! before: `cuts_by_name` tells an open of that.

use crate::dirty_ranges::overlap;
use crate::file::{File, FileState};
use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::{is_unsure, leaves_gathered, lock};
use crate::tail_ownership::TailOwnership;
use std::sync::atomic::Ordering;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{Attr, Credentials, ErrorCode, FileData, Ino};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};

/// Gathered bytes behind the end that a truncation sets.
pub(crate) struct BytesPastEnd {
    size: u64,
    /// The last shrink known when the shard was asked and did not answer.
    unanswered: Option<u64>,
    cut: Vec<(u64, Vec<u8>)>,
}

impl BytesPastEnd {
    /// Whether the truncation has ended, and it is not known how.
    pub(crate) fn is_doubted(&self) -> bool {
        self.unanswered.is_some()
    }

    /// Copies of what lies within `offset..end`.
    pub(crate) fn copies(&self, offset: u64, end: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let overlaps = move |(at, bytes): &(u64, Vec<u8>)| overlap(*at, bytes, offset, end);
        self.cut.iter().filter_map(overlaps)
    }

    /// What was cut does not come back.
    pub(crate) fn forget(&mut self) {
        self.cut.clear();
    }

    /// Its end.
    pub(crate) fn end(&self) -> u64 {
        let ends = self.cut.iter().map(|(at, bytes)| at + bytes.len() as u64);
        ends.max().unwrap_or(0)
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Sets the size of a file.
    ///
    /// # Errors
    /// Permissions and limits as the shard says; a target that does not answer.
    pub async fn truncate(
        &self,
        who: &Credentials,
        ino: Ino,
        size: u64,
        by_handle: bool,
        kill_suid: bool,
    ) -> Result<Attr, ErrorCode> {
        if size > FILE_BYTES_MAX {
            return Err(ErrorCode::FileTooBig);
        }
        let request = MetaRequest::Truncate {
            who: who.clone(),
            ino,
            size,
            by_handle,
            confirmed_seq: 0,
            kill_suid,
        };
        let file = self.file(ino);
        let _gate = match &file {
            Some(file) => Some(self.wait_for(&file.gate).await?),
            None => None,
        };
        let (attr, data, push) = match &file {
            Some(file) => {
                let shrunk = self.truncate_open(file, size, &request).await?;
                // Where it fails it stays to be reported.
                self.send_report(file).await.ok();
                shrunk
            }
            None => self.truncate_by_name(ino, &request).await?,
        };
        if !push {
            lock(&self.page_versions).own_change(ino, attr.change);
            return Ok(attr);
        }
        let attr = self.push_truncate(ino, &data).await?.unwrap_or(attr);
        if let Some(file) = &file {
            let mut state = file.state();
            state.change = state.change.max(attr.change);
        }
        Ok(attr)
    }

    /// Of a file that nobody here has open, or had when it began.
    async fn truncate_by_name(
        &self,
        ino: Ino,
        request: &MetaRequest,
    ) -> Result<(Attr, FileData, bool), ErrorCode> {
        let shrunk = self.truncate_at_shard(ino, request).await;
        self.cuts_by_name.fetch_add(1, Ordering::SeqCst);
        if let Some(file) = self.file(ino) {
            let mut state = file.state();
            match &shrunk {
                Ok((attr, data, _push)) => state.refresh(attr, Some(data.clone())),
                Err(code) => state.unsure_behind(*code),
            }
        }
        shrunk
    }

    /// At the shard, and here. A column that does not hear of it afterwards cuts before it is read
    /// or written next. The caller holds the gate.
    async fn truncate_open(
        &self,
        file: &File<N>,
        size: u64,
        request: &MetaRequest,
    ) -> Result<(Attr, FileData, bool), ErrorCode> {
        self.hear_of_cut(file).await?;
        // What comes back of these is older than what is gathered.
        let count = file.state().inflight.len();
        match self.finish_oldest(file, count).await {
            Err(code) if leaves_gathered(code) => return Err(code),
            Ok(()) | Err(_) => {}
        }
        self.set_aside(file, size);
        self.tell_unsure(file, size);
        let cuts_unsent = file.state().aside.is_some();
        let mut shrunk = match self.settle_gated(file).await {
            Ok(()) => {
                self.end_moves(file);
                self.truncate_at_shard(file.ino, request).await
            }
            Err(code) => {
                self.gather_again(&mut file.state());
                return Err(code);
            }
        };
        let mut state = file.state();
        match &mut shrunk {
            Ok((attr, data, _push)) => {
                if data.truncate_seq > state.data.truncate_seq {
                    // What lay behind the end is cut when its columns see the number.
                    state.tail_ownership = TailOwnership::Ours;
                }
                state.aside = None;
                state.take_data(data.clone());
                state.size = size.max(state.unreported_end());
                state.change = state.change.max(attr.change);
                if cuts_unsent {
                    // The shard saw no other size, perhaps, and then left the times where they
                    // were.
                    let now = self.net.wall();
                    state.report_mut().mtime = Some(now);
                    attr.mtime = attr.mtime.max(now);
                    attr.ctime = attr.ctime.max(now);
                }
            }
            Err(code) => {
                state.unsure_behind(*code);
                let truncate_seq = state.data.truncate_seq;
                match &mut state.aside {
                    Some(aside) if is_unsure(*code) => aside.unanswered = Some(truncate_seq),
                    _refused => self.gather_again(&mut state),
                }
            }
        }
        drop(state);
        shrunk
    }

    /// Nothing was cut: what was put aside is to be there.
    fn gather_again(&self, state: &mut FileState<N>) {
        let mut again = 0;
        for (at, bytes) in state.aside.take().map_or(Vec::new(), |aside| aside.cut) {
            again += state.give_back(at, &bytes);
        }
        if again > 0 {
            self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
            state.size = state.size.max(state.dirty.end());
            state.dirty_since.get_or_insert(self.net.now());
        }
    }

    /// Before anything is sent: what became of a truncation that the shard did not answer. The
    /// caller holds the gate.
    ///
    /// # Errors
    /// A shard that does not answer: nothing may be sent.
    pub(crate) async fn hear_of_cut(&self, file: &File<N>) -> Result<(), ErrorCode> {
        if !file.state().is_doubted() {
            return Ok(());
        }
        let heard = self.freshen(file).await;
        let mut state = file.state();
        match heard {
            Err(code) if !leaves_gathered(code) => state.aside = None,
            // Something else was not answered meanwhile: the answer was to an earlier question.
            Ok(()) if state.is_doubted() => return Err(ErrorCode::NotReady),
            _heard_or_later => {}
        }
        heard
    }

    /// The shard has told what the file is, since the truncation.
    pub(crate) fn judge_cut(&self, state: &mut FileState<N>, attr: &Attr) {
        let Some(aside) = &state.aside else { return };
        let Some(truncate_seq) = aside.unanswered else {
            return;
        };
        if state.data.truncate_seq > truncate_seq && state.data.truncate_size == aside.size {
            // Done: what was written before it is cut.
            state.aside = None;
            state.size = attr.size.max(state.unreported_end());
        } else {
            self.gather_again(state);
        }
    }

    /// Takes what is gathered behind `size` out of what is sent.
    fn set_aside(&self, file: &File<N>, size: u64) {
        let mut state = file.state();
        let before = state.dirty.bytes();
        let cut = state.dirty.copies(size, u64::MAX);
        state.dirty.cut(size, u64::MAX);
        self.dirty_bytes
            .fetch_sub(before - state.dirty.bytes(), Ordering::Relaxed);
        let unanswered = None;
        state.aside = (!cut.is_empty()).then_some(BytesPastEnd {
            size,
            unanswered,
            cut,
        });
    }

    /// Targets may have bytes behind `size` of which the shard does not know: with them the file is
    /// longer, and the shard numbers the cut.
    fn tell_unsure(&self, file: &File<N>, size: u64) {
        let mut state = file.state();
        let end = state.unsure_end;
        if end > size {
            zonal_types::mark!(CutOfUnsure);
            let report = state.report_mut();
            report.size = report.size.max(end);
        }
    }

    /// What the file is then, and whether its columns are to hear of it.
    async fn truncate_at_shard(
        &self,
        ino: Ino,
        request: &MetaRequest,
    ) -> Result<(Attr, FileData, bool), ErrorCode> {
        let link = self.reach(ino).await?;
        loop {
            match self.meta(&link, request).await {
                Ok(MetaReply::Truncated { attr, data, push }) => return Ok((attr, data, push)),
                Ok(_other) => return Err(ErrorCode::Protocol),
                Err(ErrorCode::TruncateUnconfirmed) => self.finish_others_truncate(ino).await?,
                Err(code) => return Err(code),
            }
        }
    }

    /// Somebody's truncation was never confirmed: push it for them.
    pub(crate) async fn finish_others_truncate(&self, ino: Ino) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        match self
            .meta(&link, &MetaRequest::GetAttr { ino, data: true })
            .await?
        {
            MetaReply::Attr {
                data: Some(data), ..
            } => self.push_truncate(ino, &data).await.map(|_attr| ()),
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Makes all columns see the last shrink, then confirms it.
    pub(crate) async fn push_truncate(
        &self,
        ino: Ino,
        data: &FileData,
    ) -> Result<Option<Attr>, ErrorCode> {
        let temporary;
        let open = self.file(ino);
        let file = if let Some(file) = &open {
            file.state().take_data(data.clone());
            file.as_ref()
        } else {
            temporary = self.detached_file(ino, data.clone());
            &temporary
        };
        let (replies, all) = self
            .all_columns(file, &|object| StorageRequest::Truncate { object })
            .await;
        let allocated_delta = replies
            .iter()
            .map(|(reply, target)| file.state().note_written(*target, reply))
            .sum();
        let link = self.reach(ino).await?;
        let request = MetaRequest::ConfirmTruncate {
            ino,
            // What some columns gave up counts, though the shrink is not confirmed before all of
            // them have seen it.
            truncate_seq: if all.is_ok() { data.truncate_seq } else { 0 },
            allocated_delta,
        };
        if all.is_err() && allocated_delta != 0 {
            self.meta(&link, &request).await.ok();
        }
        all?;
        let reply = self.meta(&link, &request).await?;
        self.note_own_change(ino, &reply);
        Ok(if let MetaReply::Attr { attr, .. } = reply {
            Some(attr)
        } else {
            None
        })
    }
}
