//! Requests to targets: sends in parallel and retries failures.

use crate::cell::call::SentRequest;
use crate::cell::outages::CopyState;
use crate::cell::placement::TargetPlace;
use crate::client::ClientCall;
use crate::data::copies::CopyChoice;
use crate::file::File;
use crate::transport::net::Net;
use crate::transport::retry::{RETRY_MS, is_passing, late};
use std::sync::atomic::Ordering;
use zonal_basics::BackOff;
use zonal_layout::{PlaceUse, place_use};
use zonal_types::{
    Column, Component, ErrorCode, FileData, Incarnation, Instant, Redundancy, TargetId,
};
use zonal_wire::{ObjectRef, StorageReply, StorageRequest};

/// How the attempts of a request go on.
#[derive(Clone, Copy)]
pub(crate) struct Persistence {
    /// No attempt begins after it.
    pub(crate) deadline: Instant,
    /// After a truncation by another client the request is made anew for the bytes that remain.
    pub(crate) follows_truncations: bool,
    /// The copies that have all changes have this one: it may go to a copy that is being filled.
    pub(crate) fills: bool,
    /// By which copies order the change; 0: it has no order.
    pub(crate) order: u64,
}

/// Makes a request for an object; each attempt calls it anew.
pub(crate) type MakeRequest<'a> = &'a dyn Fn(ObjectRef) -> StorageRequest;

impl<N: Net> ClientCall<'_, N> {
    /// Sends a request as an attempt with the file's present number, which may have risen since an
    /// earlier read of it.
    pub(crate) fn start_change(
        &self,
        file: &File<N>,
        place: &TargetPlace,
        request: &StorageRequest,
        (payload, order): (&[&[u8]], u64),
    ) -> SentRequest<N> {
        let attempt = file.state().attempt;
        let identity = self.identity_for(file.ino);
        self.start_numbered(identity, place, request, (payload, 0), (attempt, order))
    }

    /// Sends a request for one column and retries it until the deadline.
    ///
    /// `first` is the error of an attempt already made.
    pub(crate) async fn storage_retry(
        &self,
        file: &File<N>,
        (component, column): (usize, Column),
        make: MakeRequest<'_>,
        payload: &[u8],
        out: Option<&mut [u8]>,
        first: Option<ErrorCode>,
    ) -> Result<(StorageReply, usize, TargetId), ErrorCode> {
        let at = (component, column);
        let how = self.persistence();
        self.storage_until(file, at, make, payload, (out, first), how)
            .await
    }

    /// As [`Self::storage_retry`], for a change with an order. `Overtaken`: its copy has a change
    /// with a higher one.
    pub(crate) async fn storage_change(
        &self,
        file: &File<N>,
        at: (usize, Column),
        make: MakeRequest<'_>,
        (payload, order): (&[u8], u64),
        first: Option<ErrorCode>,
    ) -> Result<(StorageReply, usize, TargetId), ErrorCode> {
        let how = Persistence {
            order,
            ..self.persistence()
        };
        self.storage_until(file, at, make, payload, (None, first), how)
            .await
    }

    /// Sends a change for an object that was left out at first, after the other copies have it.
    /// `Done` where it is left out still.
    pub(crate) async fn storage_fill(
        &self,
        file: &File<N>,
        at: (usize, Column),
        make: MakeRequest<'_>,
        (payload, order): (&[u8], u64),
    ) -> Result<(StorageReply, usize, TargetId), ErrorCode> {
        zonal_types::mark!(FillingCopyChanged);
        let how = Persistence {
            fills: true,
            order,
            ..self.persistence()
        };
        self.storage_until(file, at, make, payload, (None, None), how)
            .await
    }

    fn persistence(&self) -> Persistence {
        Persistence {
            deadline: self.deadline(),
            follows_truncations: true,
            fills: false,
            order: 0,
        }
    }

    /// As [`Self::storage_retry`]. A change that leaves its copy out returns `Done`:
    /// [`Self::storage_fill`] follows after the change of the other copies.
    pub(crate) async fn storage_until(
        &self,
        file: &File<N>,
        (component, column): (usize, Column),
        make: MakeRequest<'_>,
        payload: &[u8],
        (mut out, first): (Option<&mut [u8]>, Option<ErrorCode>),
        how: Persistence,
    ) -> Result<(StorageReply, usize, TargetId), ErrorCode> {
        let mut pause = BackOff::new(RETRY_MS);
        let mut failed = first;
        let mut choice = CopyChoice::new(&file.state().data, component, out.is_some());
        // For earlier attempts: only reads have an output buffer.
        let mut is_change = out.is_none();
        // Incarnation of the last attempt, where this call made it, and its target.
        let mut incarnation = None;
        let mut asked: Option<TargetId> = None;
        let mut slow_attempts = 0_u32;
        let forfeits = file.state().failures.forfeits();
        if is_change && forfeits > 0 && failed == Some(ErrorCode::Fenced) {
            // The earlier attempt was made under locks that others have got.
            return Err(ErrorCode::Io);
        }
        loop {
            if let Some(code) = failed
                && !choice.has_another(code)
            {
                if is_change && may_come_late(code) {
                    self.number_anew(file);
                }
                if let Some(target) = asked.filter(|_| !choice.is_free()) {
                    self.note_silence(file, target, code).await;
                }
                self.prepare_retry(file, code, incarnation, how).await?;
                self.pause_after(code, &mut pause, how.deadline).await?;
            }
            if is_change && file.state().failures.forfeits() != forfeits {
                return Err(ErrorCode::Io);
            }
            let data = file.state().data.clone();
            let component = data.layout.components.get(component);
            let component = component.ok_or(ErrorCode::Stale)?;
            let standing = standing_place(component, column, make);
            let Some(column) = standing.filter(|place| !self.is_gone(component, *place)) else {
                return Ok((StorageReply::Done, 0, TargetId(0)));
            };
            let (place, request) =
                match self.make_for_copy(&data, component, column, make, &mut choice) {
                    Ok((place, _))
                        if !choice.is_free()
                            && self.is_left_out(file, component, column, how.fills).await? =>
                    {
                        return Ok((StorageReply::Done, 0, place.target));
                    }
                    Ok(made) => made,
                    Err(code) => {
                        failed = Some(code);
                        continue;
                    }
                };
            is_change = request.changes_range();
            incarnation = Some(self.identity_for(file.ino).incarnation);
            asked = Some(place.target);
            let kind = (data.layout.has_copies(), choice.is_free(), slow_attempts);
            let (made, sent) = ((&place, &request), (payload, how.order));
            match self
                .attempt(file, kind, made, sent, out.as_deref_mut())
                .await
            {
                Ok((reply, bytes)) => return Ok((reply, bytes, place.target)),
                Err(ErrorCode::NoSpace) if how.fills && is_filled_now(component, column) => {
                    failed = self.give_up_place(file, place.target).await.err();
                }
                Err(code) => {
                    // The next one waits longer for a slow target, not for one that was away.
                    slow_attempts += u32::from(code == ErrorCode::TimedOut);
                    failed = Some(code);
                }
            }
        }
    }

    /// Sends one attempt and takes its reply. With copies each waits briefly: a change for the
    /// outage of its target, a read (`is_free`) for another copy.
    async fn attempt(
        &self,
        file: &File<N>,
        (has_copies, is_free, number): (bool, bool, u32),
        (place, request): (&TargetPlace, &StorageRequest),
        payload: (&[u8], u64),
        out: Option<&mut [u8]>,
    ) -> Result<(StorageReply, usize), ErrorCode> {
        if has_copies && !is_free {
            let pending = self.start_payload(file, (place, request), payload);
            return self.reply_of_copy(place, pending, number).await;
        }
        let brief = has_copies.then(|| self.until_other_copy(number));
        let call = brief.as_ref().unwrap_or(self);
        let pending = call.start_payload(file, (place, request), payload);
        call.storage_reply(place, pending, out).await
    }

    fn start_payload(
        &self,
        file: &File<N>,
        (place, request): (&TargetPlace, &StorageRequest),
        (payload, order): (&[u8], u64),
    ) -> SentRequest<N> {
        match payload {
            [] => self.start_change(file, place, request, (&[], order)),
            payload => self.start_change(file, place, request, (&[payload], order)),
        }
    }

    /// The request of the next attempt, and its place: for its own object, or for a copy in service
    /// where any has the answer.
    fn make_for_copy(
        &self,
        data: &FileData,
        component: &Component,
        column: Column,
        make: MakeRequest<'_>,
        choice: &mut CopyChoice,
    ) -> Result<(TargetPlace, StorageRequest), ErrorCode> {
        let made_for = |column| {
            let place = self.place_known(data.as_of, component, column)?;
            let request = make(Self::object(data, component, column, &place));
            Ok((place, request))
        };
        let own = made_for(column)?;
        choice.answers(&own.1);
        if !choice.is_free() || component.redundancy == Redundancy::None {
            return Ok(own);
        }
        let whole = self.whole_copies(&data.layout, component, column);
        match choice.object(&whole, column) {
            other if other != column => made_for(other),
            _own => Ok(own),
        }
    }

    /// Whether a change leaves this copy out. A copy whose target is out is marked first.
    async fn is_left_out(
        &self,
        file: &File<N>,
        component: &Component,
        column: Column,
        fills: bool,
    ) -> Result<bool, ErrorCode> {
        if component.redundancy == Redundancy::None {
            return Ok(false);
        }
        let layout = file.state().data.layout.clone();
        if self.copy_state(&layout, component, column) == CopyState::Out {
            let target = self.place(component, column)?.target;
            self.mark_stale(file, vec![target]).await?;
        }
        let layout = file.state().data.layout.clone();
        Ok(match self.copy_state(&layout, component, column) {
            CopyState::Stale => true,
            CopyState::Filling => !fills,
            CopyState::InService | CopyState::Out => false,
        })
    }

    /// Reports a target that keeps a change from its copy.
    async fn note_silence(&self, file: &File<N>, target: TargetId, code: ErrorCode) {
        let is_silent = matches!(
            code,
            ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::NotReady
        );
        let data = file.state().data.clone();
        if is_silent && data.layout.has_copies() {
            self.report_outage(target).await;
        }
    }

    /// Waits before the next attempt, unless news came with the refusal.
    ///
    /// # Errors
    /// The deadline is over.
    async fn pause_after(
        &self,
        code: ErrorCode,
        pause: &mut BackOff,
        deadline: Instant,
    ) -> Result<(), ErrorCode> {
        let is_news = matches!(code, ErrorCode::StaleTruncate | ErrorCode::Superseded);
        if !is_news && !self.is_over(deadline) {
            self.sleep(pause.next_ms()).await;
        }
        if self.is_over(deadline) {
            self.doubt_map();
            return Err(late(code));
        }
        Ok(())
    }

    /// Fetches what the next attempt needs after `code`. Returns `code` where no attempt can help.
    async fn prepare_retry(
        &self,
        file: &File<N>,
        code: ErrorCode,
        incarnation: Option<Incarnation>,
        how: Persistence,
    ) -> Result<(), ErrorCode> {
        let deadline = how.deadline;
        match code {
            ErrorCode::StaleTruncate if how.follows_truncations => {
                self.refetch(file).await.map(drop)
            }
            ErrorCode::StaleEpoch | ErrorCode::WrongTarget => {
                self.try_refresh_map().await?;
                self.refetch(file).await.map(drop)
            }
            // Its server may have come up at another address.
            ErrorCode::Unreachable | ErrorCode::TimedOut => {
                self.check_map().await;
                Ok(())
            }
            ErrorCode::NotReady | ErrorCode::Overloaded => {
                if self.map_is_old() {
                    self.try_refresh_map().await?;
                }
                Ok(())
            }
            ErrorCode::Fenced => self.was_fenced(file, incarnation, deadline).await,
            ErrorCode::Superseded => Ok(()),
            other => Err(other),
        }
    }

    /// Handles `Fenced` from a target, for this incarnation or an earlier one. Tells a newer
    /// incarnation to the file's shard; what the shard has forgotten is reported to the opens of
    /// the file. Opens a session where there is none, because targets serve only an incarnation
    /// that the shard has acknowledged.
    async fn was_fenced(
        &self,
        file: &File<N>,
        incarnation: Option<Incarnation>,
        deadline: Instant,
    ) -> Result<(), ErrorCode> {
        let Some(incarnation) = incarnation else {
            return Ok(());
        };
        let link = self.reach(file.ino).await?;
        let mut told = self.renew(&link, incarnation, true).await;
        if told.is_ok() {
            told = self.open_session(&link, deadline).await;
        }
        match told {
            Err(code) if !is_passing(code) => Err(code),
            _told => Ok(()),
        }
    }

    /// Raises the file's attempt number: the target then refuses an earlier request that arrives
    /// late.
    fn number_anew(&self, file: &File<N>) {
        // Under the lock: a file's number never falls.
        let mut state = file.state();
        let attempt = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        assert!(
            attempt > state.attempt,
            "attempt {attempt} follows {}",
            state.attempt
        );
        state.attempt = attempt;
    }

    /// A file's state with all marks, also of the targets that are out now: a change of all its
    /// objects leaves them out.
    async fn marked_data_for_all(&self, file: &File<N>) -> Result<FileData, ErrorCode> {
        let data = self.marked_data(file).await?;
        let out = self.unmarked_outages(&data);
        if !out.is_empty() {
            self.mark_stale(file, out).await?;
        }
        Ok(file.state().data.clone())
    }

    /// Sends the same change to every object of the file in parallel, then to copies that are being
    /// filled. Returns the replies with their targets, and an error if one is missing.
    pub(crate) async fn all_columns(
        &self,
        file: &File<N>,
        make: MakeRequest<'_>,
    ) -> (Vec<(StorageReply, TargetId)>, Result<(), ErrorCode>) {
        let data = match self.marked_data_for_all(file).await {
            Ok(data) => data,
            Err(code) => return (Vec::new(), Err(code)),
        };
        let (mut started, mut left_out) = (Vec::new(), Vec::new());
        for (index, component) in data.layout.components.iter().enumerate() {
            for column in zonal_layout::places(component) {
                if self.misses_changes(&data.layout, component, column) {
                    left_out.push((index, column));
                    continue;
                }
                let first = self.place_known(data.as_of, component, column);
                let first = first.map(|place| {
                    let request = make(Self::object(&data, component, column, &place));
                    let pending = self.start_change(file, &place, &request, (&[], 0));
                    (place, pending)
                });
                started.push((index, column, first));
            }
        }
        let mut replies = Vec::with_capacity(started.len());
        let mut all = Ok(());
        for (index, column, first) in started {
            let outcome = match first {
                Ok((place, pending)) => self
                    .storage_reply(&place, pending, None)
                    .await
                    .map(|(reply, _)| (reply, place.target)),
                Err(code) => Err(code),
            };
            let outcome = match outcome {
                Ok(reply) => Ok(reply),
                Err(code) => self
                    .storage_retry(file, (index, column), make, &[], None, Some(code))
                    .await
                    .map(|(reply, _, target)| (reply, target)),
            };
            match outcome {
                Ok((StorageReply::Done, _)) => left_out.push((index, column)),
                Ok(answered) => replies.push(answered),
                Err(code) => all = Err(code),
            }
        }
        let mut placed_by = data.layout.clone();
        while all.is_ok() {
            let Some(at) = left_out.pop() else {
                left_out = file.state().late_places(&mut placed_by);
                if left_out.is_empty() {
                    break;
                }
                // The last one is taken first: places before come before new ones.
                left_out.reverse();
                continue;
            };
            match self.storage_fill(file, at, make, (&[], 0)).await {
                Ok((StorageReply::Done, ..)) => {}
                Ok((reply, _, target)) => {
                    // Only the main place of an object that moves counts.
                    let delta = file.state().note_written_at(at, target, &reply);
                    if delta != 0 {
                        replies.push((reply, target));
                    }
                }
                Err(code) => all = Err(code),
            }
        }
        (replies, all)
    }
}

/// The place by which a request goes on where the layout has changed. Where an object has moved,
/// its new place is its only one by now. A change of the place before goes there; that of the new
/// place needs nothing more (`None`).
fn standing_place(component: &Component, place: Column, make: MakeRequest<'_>) -> Option<Column> {
    let object = zonal_layout::object_of(component, place);
    if place == object || zonal_layout::places(component).any(|of| of == place) {
        return Some(place);
    }
    let probe = make(ObjectRef {
        target: TargetId(0),
        set: component.set,
        slot: 0,
        data_id: component.data_id,
        column: object,
        layout_gen: 0,
        truncate_seq: 0,
        truncate_bytes: 0,
    });
    let is_read = matches!(
        probe,
        StorageRequest::Read { .. } | StorageRequest::Map { .. } | StorageRequest::Stat { .. }
    );
    is_read.then_some(object)
}

/// True where a target fills the place, which nobody reads yet.
fn is_filled_now(component: &Component, place: Column) -> bool {
    place_use(component, place) == PlaceUse::Filling
}

/// Whether a request that ended like this may still be executed.
fn may_come_late(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::Interrupted
    )
}
