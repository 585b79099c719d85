//! Truncation: first at the shard, then at the columns.
//!
//! Meanwhile gathered bytes behind the new end are held back in [`BytesPastEnd`], and reads still
//! see them. Where the shard did not answer, it may or may not have truncated the file. Then the
//! bytes stay there, and nothing of the file is sent before the shard's state is known.
//!
//! *Invariant*: when bytes are held back nothing is in flight. So bytes gathered later are newer,
//! and bytes sent before are older.
//!
//! Another process may open a file during a truncation by name, and get its earlier state.
//! `truncations_by_name` lets the open detect that.

use crate::client::ClientCall;
use crate::file::bytes_past_end::BytesPastEnd;
use crate::file::tail_ownership::TailOwnership;
use crate::file::{File, FileState};
use crate::transport::net::Net;
use crate::transport::retry::{is_unsure, leaves_gathered};
use std::sync::atomic::Ordering;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{Attr, Credentials, ErrorCode, FileData, Ino};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Sets the size of a file.
    ///
    /// # Errors
    /// Permissions and limits of the shard; a target that does not answer.
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
                // A failed report stays to be sent.
                self.send_report(file).await.ok();
                shrunk
            }
            None => self.truncate_by_name(ino, &request).await?,
        };
        if !push {
            self.inode_cache
                .page_versions()
                .own_change(ino, attr.change);
            return Ok(attr);
        }
        let attr = self.push_truncate(ino, &data).await?.unwrap_or(attr);
        if let Some(file) = &file {
            let mut state = file.state();
            state.change = state.change.max(attr.change);
        }
        Ok(attr)
    }

    /// Truncates a file that this client did not have open at the start.
    async fn truncate_by_name(
        &self,
        ino: Ino,
        request: &MetaRequest,
    ) -> Result<(Attr, FileData, bool), ErrorCode> {
        let shrunk = self.truncate_at_shard(ino, request).await;
        self.truncations_by_name.fetch_add(1, Ordering::SeqCst);
        if let Some(file) = self.file(ino) {
            let mut state = file.state();
            match &shrunk {
                Ok((attr, data, _push)) => state.refresh(attr, Some(data.clone())),
                Err(code) => state.unsure_behind(*code),
            }
        }
        shrunk
    }

    /// Truncates at the shard and here. A column that does not hear of it truncates before its next
    /// read or write. The caller holds the gate.
    async fn truncate_open(
        &self,
        file: &File<N>,
        size: u64,
        request: &MetaRequest,
    ) -> Result<(Attr, FileData, bool), ErrorCode> {
        self.hear_of_truncation(file).await?;
        // Bytes of these that are gathered again are older than the gathered ones.
        let count = file.state().inflight.len();
        match self.finish_oldest(file, count).await {
            Err(code) if leaves_gathered(code) => return Err(code),
            Ok(()) | Err(_) => {}
        }
        self.set_aside(file, size);
        self.tell_unsure(file, size);
        let truncates_unsent = file.state().aside.is_some();
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
                    // Columns remove the bytes behind the end when they see the number.
                    state.tail_ownership = TailOwnership::Ours;
                }
                state.aside = None;
                state.take_data(data.clone());
                state.size = size.max(state.unreported_end());
                state.change = state.change.max(attr.change);
                if truncates_unsent {
                    // The shard may have seen no other size, and then kept the times.
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

    /// Nothing was truncated: gathers the held bytes again.
    fn gather_again(&self, state: &mut FileState<N>) {
        let mut again = 0;
        for (at, bytes) in state.aside.take().map_or(Vec::new(), |aside| aside.bytes) {
            again += state.give_back(at, &bytes);
        }
        if again > 0 {
            self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
            state.size = state.size.max(state.dirty.end());
            state.dirty_since.get_or_insert(self.net.now());
        }
    }

    /// Finds the outcome of an unanswered truncation, before anything is sent. The caller holds the
    /// gate.
    ///
    /// # Errors
    /// A shard that does not answer: nothing may be sent.
    pub(crate) async fn hear_of_truncation(&self, file: &File<N>) -> Result<(), ErrorCode> {
        if !file.state().is_doubted() {
            return Ok(());
        }
        let heard = self.freshen(file).await;
        let mut state = file.state();
        match heard {
            Err(code) if !leaves_gathered(code) => state.aside = None,
            // Another request was not answered meanwhile: this answer belongs to an earlier one.
            Ok(()) if state.is_doubted() => return Err(ErrorCode::NotReady),
            _heard_or_later => {}
        }
        heard
    }

    /// Decides the outcome of an unanswered truncation by the shard's state.
    pub(crate) fn judge_truncation(&self, state: &mut FileState<N>, attr: &Attr) {
        let Some(aside) = &state.aside else { return };
        let Some(truncate_seq) = aside.unanswered else {
            return;
        };
        if state.data.truncate_seq > truncate_seq && state.data.truncate_size == aside.size {
            // Executed: earlier writes behind the end are gone.
            state.aside = None;
            state.size = attr.size.max(state.unreported_end());
        } else {
            self.gather_again(state);
        }
    }

    /// Holds back the gathered bytes behind `size`.
    fn set_aside(&self, file: &File<N>, size: u64) {
        let mut state = file.state();
        assert!(
            state.inflight.is_empty(),
            "bytes are held back while a batch is in flight"
        );
        let before = state.dirty.bytes();
        let bytes = state.dirty.copies(size, u64::MAX);
        state.dirty.remove(size, u64::MAX);
        assert!(
            !state.dirty.has_behind(size),
            "dirty bytes stay behind {size}"
        );
        self.dirty_bytes
            .fetch_sub(before - state.dirty.bytes(), Ordering::Relaxed);
        let unanswered = None;
        state.aside = (!bytes.is_empty()).then_some(BytesPastEnd {
            size,
            unanswered,
            bytes,
        });
    }

    /// Reports bytes behind `size` that targets may have without the shard's knowledge. With them
    /// the file is longer, so the shard numbers the truncation.
    fn tell_unsure(&self, file: &File<N>, size: u64) {
        let mut state = file.state();
        let end = state.unsure_end;
        if end > size {
            zonal_types::mark!(TruncationOfUnsure);
            let report = state.report_mut();
            report.size = report.size.max(end);
        }
    }

    /// Truncates at the shard. Returns the file's state, and whether its columns must hear of it.
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

    /// Pushes another client's unconfirmed truncation to the columns.
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

    /// Makes all columns see the last truncation, then confirms it.
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
            // A reply may claim anything.
            .fold(0, i64::saturating_add);
        let link = self.reach(ino).await?;
        let request = MetaRequest::ConfirmTruncate {
            ino,
            // Space that some columns freed counts, although the truncation is confirmed only when
            // all of them have seen it.
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
