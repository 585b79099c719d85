//! Gathered appends: fills and publishes the append buffer of a file (`file/append_buffer.rs`, with
//! its invariants), and returns its lent end.

use crate::cell::session::AppendInFlight;
use crate::cell::session::Link;
use crate::client::ClientCall;
use crate::file::File;
use crate::file::append_buffer::{
    ASK_AGAIN_MS, LentEnd, PublishOutcome, RECORD_MAX, RECORDS_BYTES_MAX, UnconfirmedEnd,
};
use crate::file::inline_bytes::split;
use crate::file::tail_ownership::TailOwnership;
use crate::transport::net::Net;
use crate::transport::retry::{is_unsure, leaves_gathered};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zonal_types::limits::{CACHE_TERM_MS, FILE_BYTES_MAX};
use zonal_types::{ErrorCode, FileData, Ino, Instant};
use zonal_wire::{AppendPlace, MetaReply, MetaRequest};

impl<N: Net> ClientCall<'_, N> {
    /// Appends `bytes` and returns their offset. Gathers them where the end is lent to this client,
    /// otherwise works as [`Self::append`].
    ///
    /// # Errors
    /// As [`Self::append`]; also the loss of records gathered before.
    pub async fn append_gathered(
        &self,
        file: &File<N>,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<u64, ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        // A writer that may not keep set-id bits needs the shard to clear them at once.
        let is_fit = !kill_suid && !bytes.is_empty() && bytes.len() <= RECORD_MAX;
        if is_fit && let Some(at) = self.gather_record(file, bytes).await? {
            return Ok(at);
        }
        let appended = self.append_gated(file, bytes, kill_suid).await;
        let end = appended.map(|at| (at, at + bytes.len() as u64));
        if is_fit || end.is_err() {
            self.after_append(file, end.ok()).await;
        }
        appended
    }

    /// Gathers a record; `None` where the record cannot be gathered. The caller holds the gate.
    async fn gather_record(&self, file: &File<N>, bytes: &[u8]) -> Result<Option<u64>, ErrorCode> {
        let Ok(link) = self.link_of(file.ino) else {
            return Ok(None);
        };
        if file.state().append_buffer.bytes() + bytes.len() > RECORDS_BYTES_MAX
            && let Err(code) = self.publish_gathered(file).await
        {
            if !leaves_gathered(code) {
                file.state().failures.writer_met();
            }
            return Err(code);
        }
        let is_full = self.dirty_bytes() + bytes.len() > self.options.write_behind_bytes;
        let mut state = file.state();
        if is_full || !state.gathers(&link) {
            return Ok(None);
        }
        if state.append_buffer.is_empty() {
            state.append_buffer.at = state.size;
        }
        let at = state.append_buffer.at + state.append_buffer.bytes() as u64;
        let end = at.checked_add(bytes.len() as u64);
        let end = end.filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(ErrorCode::FileTooBig)?;
        Arc::make_mut(&mut state.append_buffer.records).extend_from_slice(bytes);
        state.append_buffer.mtime = Some(self.net.wall());
        state.append_buffer.last_end = Some(end);
        state.size = state.size.max(end);
        state.dirty_since.get_or_insert(self.net.now());
        drop(state);
        self.dirty_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(Some(at))
    }

    /// Asks the shard for the end, if this append (its start and end, or `None` after a failure)
    /// suggests a sequence. The caller holds the gate.
    async fn after_append(&self, file: &File<N>, appended: Option<(u64, u64)>) {
        let Ok(link) = self.link_of(file.ino) else {
            return;
        };
        let now = self.net.now();
        {
            let mut state = file.state();
            let is_lent = state.gathers(&link);
            // Gathered records lie behind the lent end: a restarted shard must hear of both.
            if !is_lent && state.append_buffer.is_empty() {
                state.unlend(&link);
            }
            let gathered = &mut state.append_buffer;
            let last_end = std::mem::replace(&mut gathered.last_end, appended.map(|(_, end)| end));
            let follows = appended.is_some_and(|(at, _end)| last_end == Some(at));
            // An abandoned append may still get a place.
            let is_quiet = gathered.truncations == 0 && link.given_up() == 0;
            let may_ask = !is_lent && gathered.is_empty() && is_quiet && now >= gathered.ask_from;
            if !follows || !may_ask {
                return;
            }
            gathered.ask_from = now.plus_ms(ASK_AGAIN_MS);
            gathered.is_recalled = false;
        }
        let life = link.life();
        let places_lost = link.places_lost();
        let asked = MetaRequest::LendEnd { ino: file.ino };
        let Ok(MetaReply::Appending { offset, data }) = self.meta(&link, &asked).await else {
            return;
        };
        let place = AppendPlace {
            offset,
            length: 0,
            truncate_seq: data.truncate_seq,
        };
        let append = (file.ino, place);
        link.begin_append(append);
        let mut state = file.state();
        state.take_data(data);
        // A shard that restarted meanwhile has not heard of this place, and a session opened
        // meanwhile does not own it.
        if link.life() == life && state.size == offset {
            state.append_buffer.lent = Some(LentEnd {
                append,
                places_lost,
            });
        } else {
            link.end_append(append);
        }
    }

    /// Publishes the gathered records. The caller holds the gate.
    ///
    /// # Errors
    /// After a passing error the records stay gathered. After any other error they are lost, and
    /// their writers get an error.
    pub(crate) async fn publish_gathered(&self, file: &File<N>) -> Result<(), ErrorCode> {
        if file.state().append_buffer.is_empty() {
            return Ok(());
        }
        let link = self.reach(file.ino).await?;
        let deadline = self.deadline();
        while !file.state().append_buffer.is_empty() {
            let step = self.publish_once(file, &link).await;
            match step {
                PublishOutcome::Published => {}
                PublishOutcome::Again(_) if !self.is_over(deadline) => {}
                PublishOutcome::Again(code) | PublishOutcome::Kept(code) => return Err(code),
                PublishOutcome::Lost(code) => {
                    return Err(self.lose_gathered(file, &link, code).await);
                }
            }
        }
        Ok(())
    }

    async fn publish_once(&self, file: &File<N>, link: &Arc<Link>) -> PublishOutcome {
        let ending = file.state().append_buffer.ending.take();
        if let Some(ending) = ending {
            zonal_types::mark!(AppendsUnconfirmed);
            return self.end_gathered(file, ending).await;
        }
        let (lent, at, records) = {
            let state = file.state();
            let gathered = &state.append_buffer;
            let lent = gathered.lent.as_ref().map(|lent| lent.append);
            (lent, gathered.at, gathered.records.clone())
        };
        let is_lent = || lent.is_some_and(|lent| link.is_appending(lent));
        if !is_lent() {
            return PublishOutcome::Lost(ErrorCode::UnknownLease);
        }
        let boot = link.boot();
        let until = self.net.now().plus_ms(CACHE_TERM_MS);
        let Ok(length) = u32::try_from(records.len()) else {
            return PublishOutcome::Lost(ErrorCode::Invalid);
        };
        let begin = MetaRequest::AppendAt {
            ino: file.ino,
            offset: at,
            length,
        };
        let data = match self.meta(link, &begin).await {
            Ok(MetaReply::Appending { offset, data }) if offset == at => data,
            Ok(_other) => return PublishOutcome::Lost(ErrorCode::Protocol),
            Err(code) if is_unsure(code) => return PublishOutcome::Kept(code),
            Err(code) => return PublishOutcome::Lost(code),
        };
        let given = data.clone();
        file.state().take_data(data);
        let place = AppendPlace {
            offset: at,
            length,
            truncate_seq: given.truncate_seq,
        };
        let append = (file.ino, place);
        link.begin_append(append);
        if link.boot() != boot || !is_lent() {
            // A restarted shard may not have heard of the place, and in another session nobody owns
            // it.
            link.end_append(append);
            return PublishOutcome::Again(ErrorCode::TimedOut);
        }
        self.write_gathered(file, link, (append, given, until), &records)
            .await
    }

    async fn write_gathered(
        &self,
        file: &File<N>,
        link: &Arc<Link>,
        (append, given, until): (AppendInFlight, FileData, Instant),
        records: &[u8],
    ) -> PublishOutcome {
        let place = append.1;
        let (_boot, session) = link.life();
        let (inline, own) = split(&given, place.offset, records);
        let mut delta = 0;
        let behind = &records[own..];
        let written = self
            .write_pieces(file, (link, append, given), behind, until, &mut delta)
            .await;
        let (mtime, allocated_delta) = {
            let mut state = file.state();
            let allocated = &mut state.append_buffer.allocated_delta;
            *allocated = allocated.saturating_add(delta);
            let mtime = state.append_buffer.mtime.unwrap_or_else(|| self.net.wall());
            (mtime, state.append_buffer.allocated_delta)
        };
        match written {
            Err(code) if leaves_gathered(code) || code == ErrorCode::UnknownLease => {
                link.end_append(append);
                return match code {
                    // The next attempt asks the shard whether the end is still lent.
                    ErrorCode::UnknownLease => PublishOutcome::Again(ErrorCode::TimedOut),
                    passing => PublishOutcome::Kept(passing),
                };
            }
            _over => {}
        }
        let request = MetaRequest::AppendEnd {
            ino: file.ino,
            offset: place.offset,
            reserved: place.length,
            length: if written.is_ok() { place.length } else { 0 },
            mtime,
            allocated_delta,
            kill_suid: false,
            inline: inline.filter(|_bytes| written.is_ok()),
        };
        let Err(code) = written else {
            let slot = match self.take_slot(link).await {
                Ok(slot) => slot.keep(),
                Err(code) => {
                    link.end_append(append);
                    return PublishOutcome::Kept(code);
                }
            };
            let ending = UnconfirmedEnd {
                link: Arc::clone(link),
                slot,
                request,
                append,
            };
            return self.end_gathered(file, ending).await;
        };
        if self.meta(link, &request).await.is_ok() {
            file.state().append_buffer.allocated_delta = 0;
        } else {
            link.give_up_append(file.ino, place, session);
        }
        link.end_append(append);
        PublishOutcome::Lost(code)
    }

    /// Tells the shard that a place is written. A repeated request uses the slot of the first
    /// attempt.
    async fn end_gathered(&self, file: &File<N>, mut ending: UnconfirmedEnd) -> PublishOutcome {
        let link = &Arc::clone(&ending.link);
        let boot = link.boot();
        let reply = self
            .meta_at(link, &ending.request, Some(&mut ending.slot))
            .await;
        if let Err(code) = reply
            && is_unsure(code)
            && ending.slot.was_sent()
        {
            file.state().append_buffer.ending = Some(ending);
            return PublishOutcome::Kept(code);
        }
        link.free_slot(&ending.slot);
        link.end_append(ending.append);
        let place = ending.append.1;
        match reply {
            Ok(reply) => {
                self.note_own_change(file.ino, &reply);
                let gone = {
                    let mut state = file.state();
                    let buffer = &state.append_buffer;
                    assert!(
                        buffer.is_empty() || buffer.at == place.offset,
                        "records at {} were published at {}",
                        buffer.at,
                        place.offset
                    );
                    let gone = state.append_buffer.take(place.length as usize);
                    if state.is_clean() {
                        state.dirty_since = None;
                    }
                    if let MetaReply::Attr { attr, data, .. } = reply {
                        state.refresh(&attr, data);
                    }
                    gone
                };
                self.dirty_bytes.fetch_sub(gone, Ordering::Relaxed);
                if link.boot() != boot {
                    self.end_reclaimed_place(file, link, place).await;
                }
                PublishOutcome::Published
            }
            // Not executed. The next attempt asks the shard whether the end is still lent.
            Err(ErrorCode::UnknownLease) => PublishOutcome::Again(ErrorCode::TimedOut),
            Err(code) if is_unsure(code) => PublishOutcome::Kept(code),
            Err(code) => PublishOutcome::Lost(code),
        }
    }

    /// Drops the gathered records as lost. Returns the error for the waiting caller.
    async fn lose_gathered(&self, file: &File<N>, link: &Link, code: ErrorCode) -> ErrorCode {
        zonal_types::mark!(AppendsLost);
        let told = match code {
            ErrorCode::UnknownLease => ErrorCode::Io,
            other => other,
        };
        let gone = {
            let mut state = file.state();
            let delta = state.append_buffer.allocated_delta;
            if delta != 0 {
                // The written bytes take space.
                let allocated = &mut state.report_mut().allocated_delta;
                *allocated = allocated.saturating_add(delta);
            }
            let gone = state.forget_gathered(link);
            state.append_buffer.ask_from = self.net.now().plus_ms(ASK_AGAIN_MS);
            state.append_buffer.last_end = None;
            state.failures.note(told);
            state.tail_ownership = TailOwnership::Unknown(Instant::default());
            state.outdate();
            gone
        };
        self.dirty_bytes.fetch_sub(gone, Ordering::Relaxed);
        self.give_end_back(link, file.ino).await.ok();
        told
    }

    async fn give_end_back(&self, link: &Link, ino: Ino) -> Result<(), ErrorCode> {
        let inos = vec![ino];
        let asked = MetaRequest::ReturnEnds { inos };
        self.meta(link, &asked).await.map(|_done| ())
    }

    /// Notes a recall of the end: no further record is gathered.
    pub(crate) fn end_recalled(&self, link: &Link, ino: Ino) {
        if let Some(file) = self.file(ino) {
            file.state().append_buffer.is_recalled = true;
        }
        link.want_end(ino);
    }

    /// Publishes records of files whose ends were recalled and returns the ends. True where some
    /// could not be returned.
    pub async fn return_ends(&self) -> bool {
        let mut some_stay = false;
        for link in self.all_links() {
            for ino in link.wanted_ends() {
                let call = self.another();
                let returned = match self.file(ino) {
                    Some(file) => call.return_end(&file, &link).await,
                    None => call.give_end_back(&link, ino).await,
                };
                match returned {
                    Ok(()) => link.end_returned(ino),
                    Err(_later) => some_stay = true,
                }
            }
        }
        some_stay
    }

    async fn return_end(&self, file: &File<N>, link: &Link) -> Result<(), ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        self.settle_gated(file).await?;
        {
            let mut state = file.state();
            state.unlend(link);
            state.append_buffer.is_recalled = false;
            state.append_buffer.ask_from = self.net.now().plus_ms(ASK_AGAIN_MS);
        }
        // Under the gate nobody asks for the end meanwhile.
        self.give_end_back(link, file.ino).await
    }

    /// Publishes records before an open of this client truncates the file. No record is gathered
    /// until [`Self::truncation_ends`].
    ///
    /// # Errors
    /// A server that does not answer.
    pub(crate) async fn truncation_begins(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        self.settle_gated(file).await?;
        file.state().append_buffer.truncations += 1;
        Ok(())
    }

    /// Ends what [`Self::truncation_begins`] began, whether the file was truncated or not: the lent
    /// end is void. The caller need not hold the gate, because no record is gathered.
    pub(crate) fn truncation_ends(&self, file: &File<N>) {
        let link = self.link_of(file.ino);
        let mut state = file.state();
        state.append_buffer.truncations = state.append_buffer.truncations.saturating_sub(1);
        if let Ok(link) = link {
            state.unlend(&link);
        }
    }

    /// Drops the lent end, which moves or may go to others. The caller holds the gate and has
    /// published the records.
    pub(crate) fn end_moves(&self, file: &File<N>) {
        if let Ok(link) = self.link_of(file.ino) {
            file.state().unlend(&link);
        }
    }
}
