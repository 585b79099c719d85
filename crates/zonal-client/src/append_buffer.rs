//! Appends that are gathered: records behind the end of a file that is lent to this client,
//! published together as one long append.
//!
//! The shard lends the end to a client that alone has the file open
//! (docs/rfcs/2026-11-25-appends-gathered.md). From then on a record gets its offset here, and is
//! kept like any other write. Only the shard's answer to `AppendAt` says whether the end is lent
//! still.
//!
//! *Invariants*: (1) who changes anything here holds the file's gate, but for `is_recalled` and
//! `cuts`; (2) records are gathered while nothing else of the file is unsent, and nothing else is
//! sent before they are published: so they are older than what is in `dirty` and `inflight`; (3) a
//! record's offset never changes: where its place is gone it is lost, and told; (4) an end of an
//! append that was not answered keeps its slot, and is repeated there before anything else is asked
//! of the file's end, or gathered.

use crate::dirty_ranges::overlap;
use crate::file::{File, FileState};
use crate::inline_data::split;
use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::{AppendInFlight, Link, SlotPlace, is_unsure, leaves_gathered};
use crate::tail_ownership::TailOwnership;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use zonal_types::limits::{CACHE_TERM_MS, FILE_BYTES_MAX};
use zonal_types::{ErrorCode, FileData, Ino, Instant, Timestamp};
use zonal_wire::{AppendPlace, MetaReply, MetaRequest};

/// Longer records go through.
const RECORD_MAX: usize = 64 << 10;
/// Records gathered of one file; past it they are published.
const RECORDS_BYTES_MAX: usize = 1 << 20;
/// How long a shard is not asked again for an end that it did not lend, or wanted back.
const ASK_AGAIN_MS: u64 = 1_000;

/// What is gathered of one file, and what it is gathered under.
#[derive(Default)]
pub(crate) struct AppendBuffer {
    lent: Option<LentEnd>,
    /// Where the records begin.
    at: u64,
    /// One behind the other.
    records: Arc<Vec<u8>>,
    /// Of the newest.
    mtime: Option<Timestamp>,
    /// Of attempts to write them.
    allocated_delta: i64,
    /// An end of a part of them that was not answered.
    ending: Option<UnconfirmedEnd>,
    /// Where the last append of this client ended.
    last_end: Option<u64>,
    /// The shard is not asked for the end before that.
    ask_from: Instant,
    /// The shard wants it back.
    is_recalled: bool,
    /// Opens of this client that cut the file, under way.
    cuts: usize,
}

/// The end of the file as it is lent.
struct LentEnd {
    append: AppendInFlight,
    /// Of its link, then.
    places_lost: u64,
}

/// An `AppendEnd` whose reply was not heard.
struct UnconfirmedEnd {
    slot: SlotPlace,
    request: MetaRequest,
    append: AppendInFlight,
}

/// What an attempt to publish came to.
enum PublishOutcome {
    Published,
    /// To be tried again at once.
    Again(ErrorCode),
    /// The records stay gathered.
    Kept(ErrorCode),
    Lost(ErrorCode),
}

impl AppendBuffer {
    /// Bytes that are not published.
    pub(crate) fn bytes(&self) -> usize {
        self.records.len()
    }

    /// True where there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The end of them, or 0.
    pub(crate) fn end(&self) -> u64 {
        if self.is_empty() {
            return 0;
        }
        self.at + self.records.len() as u64
    }

    /// When the last was written.
    pub(crate) fn mtime(&self) -> Option<Timestamp> {
        self.mtime
    }

    /// A copy of what lies within `offset..end`.
    pub(crate) fn copies(&self, offset: u64, end: u64) -> Option<(u64, Vec<u8>)> {
        overlap(self.at, &self.records, offset, end)
    }

    /// The first `length` bytes are published, or all are lost. Returns how many are gathered no
    /// more.
    fn take(&mut self, length: usize) -> usize {
        let length = length.min(self.records.len());
        if length == self.records.len() {
            // What was allocated for a flood goes with it.
            self.records = Arc::default();
            self.mtime = None;
        } else {
            Arc::make_mut(&mut self.records).drain(..length);
        }
        self.at += length as u64;
        self.allocated_delta = 0;
        length
    }
}

impl<N: Net> FileState<N> {
    /// Whether the next record may be gathered.
    fn gathers(&self, link: &Link) -> bool {
        let Some(lent) = &self.append_buffer.lent else {
            return false;
        };
        let is_alone = self.dirty.is_empty()
            && self.inflight.is_empty()
            && self.aside.is_none()
            && self.report.is_none()
            && self.reporting.is_none();
        let place = lent.append.1;
        let is_same = place
            .left(self.data.truncate_seq, self.data.truncate_size)
            .is_some();
        is_alone
            && is_same
            && !self.is_outdated
            && !self.append_buffer.is_recalled
            && self.append_buffer.ending.is_none()
            && self.append_buffer.cuts == 0
            && lent.places_lost == link.places_lost()
    }

    /// The end of the file as the shard has to know it, where it is lent to us still.
    fn published_end(&self) -> u64 {
        if self.append_buffer.is_empty() {
            self.size
        } else {
            self.append_buffer.at
        }
    }

    /// The end is not ours any more, as far as is known here. True where it was.
    fn unlend(&mut self, link: &Link) -> bool {
        let lent = self.append_buffer.lent.take();
        if let Some(lent) = &lent {
            link.end_append(lent.append);
        }
        lent.is_some()
    }

    /// The file is forgotten: what was lent goes, and what was to be asked.
    pub(crate) fn forget_gathered(&mut self, link: &Link) -> usize {
        self.unlend(link);
        if let Some(ending) = self.append_buffer.ending.take() {
            link.end_append(ending.append);
            link.free_slot(&ending.slot);
        }
        self.append_buffer.take(usize::MAX)
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Appends `bytes`, gathered where the end of the file is lent to this client, as
    /// [`Self::append`] else; returns where they are.
    ///
    /// # Errors
    /// As [`Self::append`]; what was gathered before and is lost now.
    pub async fn append_gathered(
        &self,
        file: &File<N>,
        bytes: &[u8],
        kill_suid: bool,
    ) -> Result<u64, ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        // Who may not keep set-id bits has the shard take them at once.
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

    /// Gathers a record; `None` where it has to go through. The caller holds the gate.
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

    /// An append went through, from and to these offsets, or failed: is the end to be had? The
    /// caller holds the gate.
    async fn after_append(&self, file: &File<N>, appended: Option<(u64, u64)>) {
        let Ok(link) = self.link_of(file.ino) else {
            return;
        };
        let now = self.net.now();
        {
            let mut state = file.state();
            let is_lent = state.gathers(&link);
            // What is gathered was gathered behind it: a restarted shard has to hear of both.
            if !is_lent && state.append_buffer.is_empty() {
                state.unlend(&link);
            }
            let gathered = &mut state.append_buffer;
            let last_end = std::mem::replace(&mut gathered.last_end, appended.map(|(_, end)| end));
            let follows = appended.is_some_and(|(at, _end)| last_end == Some(at));
            // What was given up may get a place yet.
            let is_quiet = gathered.cuts == 0 && link.given_up() == 0;
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
        // A shard that was restarted since was told without it, and a session that was opened since
        // does not have it.
        if link.life() == life && state.size == offset {
            state.append_buffer.lent = Some(LentEnd {
                append,
                places_lost,
            });
        } else {
            link.end_append(append);
        }
    }

    /// Publishes what is gathered of appends. The caller holds the gate.
    ///
    /// # Errors
    /// A server that does not answer: they stay gathered. Else they are lost, and their writers
    /// will be told.
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
            return self.end_gathered(file, link, ending).await;
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
            // A restarted shard was told without it, perhaps; in another session it is nobody's.
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
            state.append_buffer.allocated_delta += delta;
            let mtime = state.append_buffer.mtime.unwrap_or_else(|| self.net.wall());
            (mtime, state.append_buffer.allocated_delta)
        };
        match written {
            Err(code) if leaves_gathered(code) || code == ErrorCode::UnknownLease => {
                link.end_append(append);
                return match code {
                    // The shard is asked again whether the end is ours.
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
            let slot = link.take_slot().await.keep();
            let ending = UnconfirmedEnd {
                slot,
                request,
                append,
            };
            return self.end_gathered(file, link, ending).await;
        };
        if self.meta(link, &request).await.is_ok() {
            file.state().append_buffer.allocated_delta = 0;
        } else {
            link.give_up_append(file.ino, place, session);
        }
        link.end_append(append);
        PublishOutcome::Lost(code)
    }

    /// Tells the shard that a place is written, in the slot in which it was told before, perhaps.
    async fn end_gathered(
        &self,
        file: &File<N>,
        link: &Arc<Link>,
        mut ending: UnconfirmedEnd,
    ) -> PublishOutcome {
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
                    self.end_again(file, link, place).await;
                }
                PublishOutcome::Published
            }
            // Not executed. The shard is asked again whether the end is ours.
            Err(ErrorCode::UnknownLease) => PublishOutcome::Again(ErrorCode::TimedOut),
            Err(code) if is_unsure(code) => PublishOutcome::Kept(code),
            Err(code) => PublishOutcome::Lost(code),
        }
    }

    /// A restarted shard may have heard of a place after it had executed its end: then it holds up
    /// the appends behind it.
    async fn end_again(&self, file: &File<N>, link: &Link, place: AppendPlace) {
        let over = MetaRequest::AppendEnd {
            ino: file.ino,
            offset: place.offset,
            reserved: place.length,
            length: 0,
            mtime: self.net.wall(),
            allocated_delta: 0,
            kill_suid: false,
            inline: None,
        };
        self.meta(link, &over).await.ok();
        // It may have numbered a shrink.
        file.state().outdate();
    }

    /// What is gathered is lost. Returns what who waits for it is told.
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
                // What was written took its space.
                state.report_mut().allocated_delta += delta;
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

    /// A place as a restarted shard is to hear of it: an end is where it is now.
    pub(crate) fn place_to_tell(&self, (ino, place): AppendInFlight) -> AppendInFlight {
        let file = self.file(ino).filter(|_file| place.length == 0);
        let offset = file.map_or(place.offset, |file| file.state().published_end());
        (ino, AppendPlace { offset, ..place })
    }

    /// The shard wants an end back: nothing more is gathered behind it.
    pub(crate) fn end_recalled(&self, link: &Link, ino: Ino) {
        if let Some(file) = self.file(ino) {
            file.state().append_buffer.is_recalled = true;
        }
        link.want_end(ino);
    }

    /// Publishes what was appended to files whose ends others want, and gives these back. True
    /// where some stay.
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
        // Under the gate: it is not asked for meanwhile.
        self.give_end_back(link, file.ino).await
    }

    /// Before this client cuts a file by opening it: what was appended comes before that. Nothing
    /// is gathered before [`Self::cut_ends`].
    ///
    /// # Errors
    /// A server that does not answer.
    pub(crate) async fn cut_begins(&self, file: &File<N>) -> Result<(), ErrorCode> {
        let _gate = self.wait_for(&file.gate).await?;
        self.settle_gated(file).await?;
        file.state().append_buffer.cuts += 1;
        Ok(())
    }

    /// It has cut the file, or has not: the end is another one. The caller need not hold the gate:
    /// nothing is gathered.
    pub(crate) fn cut_ends(&self, file: &File<N>) {
        let link = self.link_of(file.ino);
        let mut state = file.state();
        state.append_buffer.cuts = state.append_buffer.cuts.saturating_sub(1);
        if let Ok(link) = link {
            state.unlend(&link);
        }
    }

    /// The end is another one, or others may get it. The caller holds the gate, and has published
    /// what was gathered.
    pub(crate) fn end_moves(&self, file: &File<N>) {
        if let Ok(link) = self.link_of(file.ino) {
            file.state().unlend(&link);
        }
    }
}
