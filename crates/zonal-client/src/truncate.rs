//! Truncation: the shard first, then the columns.
//!
//! What is gathered behind the new end is set aside meanwhile. Where the shard did not answer it may have cut the file, or may not: then it stays aside
//! ([`Doubted`]), read as if nothing had been cut, and nothing of the file is sent before the shard has told.
//! *Invariant*: while bytes stay aside nothing is under way, and what is gathered is newer.

use crate::behind::Behind;
use crate::client::Client;
use crate::dirty::overlap;
use crate::file::{File, FileState};
use crate::net::{Net, wait_for};
use crate::session::{is_unsure, leaves_gathered, lock};
use std::sync::atomic::Ordering;
use zonal_types::limits::FILE_BYTES_MAX;
use zonal_types::{Attr, Credentials, ErrorCode, FileData, Ino};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};

/// What a truncation that the shard did not answer has cut, if it was executed.
pub(crate) struct Doubted {
    size: u64,
    /// The last shrink known then.
    truncate_seq: u64,
    cut: Vec<(u64, Vec<u8>)>,
}

impl Doubted {
    /// Copies of what lies within `offset..end`.
    pub(crate) fn copies(&self, offset: u64, end: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let overlaps = move |(at, bytes): &(u64, Vec<u8>)| overlap(*at, bytes, offset, end);
        self.cut.iter().filter_map(overlaps)
    }

    /// Its end.
    pub(crate) fn end(&self) -> u64 {
        let ends = self.cut.iter().map(|(at, bytes)| at + bytes.len() as u64);
        ends.max().unwrap_or(0)
    }
}

impl<N: Net> Client<N> {
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
            Some(file) => Some(wait_for(&self.net, &file.gate).await?),
            None => None,
        };
        let (attr, data, push) = match &file {
            Some(file) => self.truncate_open(file, size, &request).await?,
            None => self.truncate_at_shard(ino, &request).await?,
        };
        if !push {
            lock(&self.seen).own_change(ino, attr.change);
            return Ok(attr);
        }
        let attr = self.push_truncate(ino, &data).await?.unwrap_or(attr);
        if let Some(file) = &file {
            let mut state = file.state();
            state.change = state.change.max(attr.change);
        }
        Ok(attr)
    }

    /// At the shard, and here. A column that does not hear of it afterwards cuts before it is read or written next. The caller holds the gate.
    async fn truncate_open(
        &self,
        file: &File<N>,
        size: u64,
        request: &MetaRequest,
    ) -> Result<(Attr, FileData, bool), ErrorCode> {
        let cut = self.set_aside(file, size);
        if let Err(code) = self.settle_gated(file).await {
            self.gather_again(&mut file.state(), cut);
            return Err(code);
        }
        let shrunk = self.truncate_at_shard(file.ino, request).await;
        let mut state = file.state();
        match &shrunk {
            Ok((attr, data, _push)) => {
                if data.truncate_seq > state.data.truncate_seq {
                    // What lay behind the end is cut when its columns see the number.
                    state.behind = Behind::Ours;
                }
                state.take_data(data.clone());
                state.size = size;
                state.change = state.change.max(attr.change);
            }
            Err(code) if is_unsure(*code) && !cut.is_empty() => {
                state.unsure_behind(*code);
                state.dirty_since.get_or_insert(self.net.now());
                state.doubted = Some(Doubted {
                    size,
                    truncate_seq: state.data.truncate_seq,
                    cut,
                });
            }
            Err(code) => {
                state.unsure_behind(*code);
                self.gather_again(&mut state, cut);
            }
        }
        drop(state);
        shrunk
    }

    /// Nothing was cut: what was written is to be there.
    fn gather_again(&self, state: &mut FileState<N>, cut: Vec<(u64, Vec<u8>)>) {
        let mut again = 0;
        for (at, bytes) in cut {
            again += state.give_back(at, &bytes);
        }
        if again > 0 {
            self.dirty_bytes.fetch_add(again, Ordering::Relaxed);
            state.size = state.size.max(state.dirty.end());
            state.dirty_since.get_or_insert(self.net.now());
        }
    }

    /// Before anything is sent: what became of a truncation that the shard did not answer. The caller holds the gate.
    ///
    /// # Errors
    /// A shard that does not answer: nothing may be sent.
    pub(crate) async fn hear_of_cut(&self, file: &File<N>) -> Result<(), ErrorCode> {
        if file.state().doubted.is_none() {
            return Ok(());
        }
        let heard = self.freshen(file).await;
        if heard.is_err_and(|code| !leaves_gathered(code)) {
            file.state().doubted = None;
        }
        heard
    }

    /// The shard has told what the file is.
    pub(crate) fn judge_cut(&self, state: &mut FileState<N>, attr: &Attr) {
        let Some(doubted) = state.doubted.take() else {
            return;
        };
        let data = &state.data;
        if data.truncate_seq > doubted.truncate_seq && data.truncate_size == doubted.size {
            // Done: what was written before it is cut.
            state.size = attr.size.max(state.unreported_end());
        } else {
            self.gather_again(state, doubted.cut);
        }
    }

    /// Takes out what is gathered behind `size`, without sending it.
    fn set_aside(&self, file: &File<N>, size: u64) -> Vec<(u64, Vec<u8>)> {
        let mut state = file.state();
        let before = state.dirty.bytes();
        let cut = state.dirty.copies(size, u64::MAX);
        state.dirty.cut(size, u64::MAX);
        self.dirty_bytes
            .fetch_sub(before - state.dirty.bytes(), Ordering::Relaxed);
        cut
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
            // What some columns gave up counts, though the shrink is not confirmed before all of them have seen it.
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
