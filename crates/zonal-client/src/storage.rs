//! Requests to targets: where a piece lies, sending in parallel, repeating what failed.

use crate::client::Client;
use crate::file::File;
use crate::net::{Message, Net, Reply};
use crate::session::{failure_code, late, leaves_gathered};
use crate::unsynced::Unsynced;
use std::sync::atomic::Ordering;
use zonal_layout::{Piece, object_bytes};
use zonal_types::{Codec, Column, Component, Epoch, ErrorCode, FileData, Instant, TargetId};
use zonal_wire::{ObjectRef, Service, StorageReply, StorageRequest};

/// Pause before a request is repeated, at first and at most.
const RETRY_MS: (u64, u64) = (20, 500);

/// A target with what a request to it needs.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    pub(crate) target: TargetId,
    pub(crate) address: String,
    pub(crate) epoch: Epoch,
}

/// A target that was asked to make everything durable.
pub(crate) struct Syncing<N: Net> {
    target: TargetId,
    started: Result<(Place, N::Pending), ErrorCode>,
}

/// A request without its place: made anew for each attempt.
pub(crate) type MakeRequest<'a> = &'a dyn Fn(ObjectRef) -> StorageRequest;

impl<N: Net> Client<N> {
    /// The width of a component's stripe set.
    pub(crate) fn set_width(&self, component: &Component) -> u16 {
        self.map()
            .set(component.set)
            .map_or(0, |set| u16::try_from(set.slots.len()).unwrap_or(u16::MAX))
    }

    /// Splits a file range.
    pub(crate) fn pieces(
        &self,
        data: &FileData,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, ErrorCode> {
        zonal_layout::pieces(&data.layout, offset, length, |component| {
            self.set_width(component)
        })
        .map_err(zonal_layout::LayoutError::code)
    }

    /// Fetches the map where a layout names a stripe set that ours does not have: one that was made since.
    pub(crate) async fn know_sets(&self, data: &FileData) -> Result<(), ErrorCode> {
        if self.knows_sets(data) {
            return Ok(());
        }
        self.refresh_map().await
    }

    /// [`Self::pieces`], with a newer map where ours lacks a stripe set.
    ///
    /// # Errors
    /// As [`Self::pieces`]; `Unreachable` or what else passes where no manager gives a map that has the set.
    pub(crate) async fn known_pieces(
        &self,
        data: &FileData,
        offset: u64,
        length: u64,
    ) -> Result<Vec<Piece>, ErrorCode> {
        if !self.knows_sets(data) {
            self.refresh_map().await?;
            if !self.knows_sets(data) {
                return Err(ErrorCode::Unreachable);
            }
        }
        self.pieces(data, offset, length)
    }

    fn knows_sets(&self, data: &FileData) -> bool {
        let map = self.map();
        let mut components = data.layout.components.iter();
        components.all(|component| map.set(component.set).is_some())
    }

    /// Where a column lies now.
    pub(crate) fn place(&self, component: &Component, column: Column) -> Result<Place, ErrorCode> {
        let map = self.map();
        let set = map.set(component.set).ok_or(ErrorCode::StaleEpoch)?;
        let width = u16::try_from(set.slots.len()).unwrap_or(u16::MAX);
        let slot = zonal_layout::slot_of(component, column, width)
            .map_err(zonal_layout::LayoutError::code)?;
        let slot = set.slots.get(usize::from(slot)).ok_or(ErrorCode::Corrupt)?;
        let node = map
            .target(slot.target)
            .and_then(|target| map.node(target.node));
        let address = node.ok_or(ErrorCode::StaleEpoch)?.address.clone();
        Ok(Place {
            target: slot.target,
            address,
            epoch: slot.slot_epoch,
        })
    }

    /// The object of a column, with what its target must know of truncations.
    pub(crate) fn object(
        data: &FileData,
        component: &Component,
        column: Column,
        target: TargetId,
    ) -> ObjectRef {
        ObjectRef {
            target,
            data_id: component.data_id,
            column,
            layout_gen: data.layout.layout_gen.0,
            truncate_seq: data.truncate_seq,
            truncate_bytes: object_bytes(component, data.truncate_size, column),
        }
    }

    /// Sends one request that changes no object; the reply is for [`Self::storage_reply`].
    pub(crate) fn start_storage(&self, place: &Place, request: &StorageRequest) -> N::Pending {
        self.start_change(place, request, &[], 0)
    }

    /// Sends one request as the file's attempt of this number.
    pub(crate) fn start_change(
        &self,
        place: &Place,
        request: &StorageRequest,
        payload: &[&[u8]],
        attempt: u32,
    ) -> N::Pending {
        let mut header = self.header(Service::Storage, self.trace());
        header.epoch = place.epoch;
        header.session = self.sender;
        header.sequence = attempt;
        self.net.start(
            &place.address,
            &Message {
                header,
                body: &request.to_bytes(),
                payload,
            },
        )
    }

    /// Receives one reply. `Failed` replies become errors.
    pub(crate) async fn storage_reply(
        &self,
        place: &Place,
        pending: N::Pending,
        out: Option<&mut [u8]>,
    ) -> Result<(StorageReply, usize), ErrorCode> {
        match self.net.finish(pending, out).await {
            Ok(Reply {
                header,
                body,
                payload_bytes,
            }) => {
                self.note_map_version(header.map_version);
                match StorageReply::from_bytes(&body).map_err(|_error| ErrorCode::Protocol)? {
                    StorageReply::Failed { code, .. } => Err(code.0),
                    StorageReply::Stale { map_version, .. } => {
                        self.note_map_version(map_version);
                        Err(ErrorCode::StaleEpoch)
                    }
                    reply => Ok((reply, payload_bytes)),
                }
            }
            Err(failure) => {
                self.net.complain(
                    &format!("target {} at {}", place.target, place.address),
                    "storage",
                    failure,
                );
                Err(failure_code(failure))
            }
        }
    }

    /// One request of one column, repeated until it is answered or the deadline is over.
    ///
    /// `first` is the outcome of an attempt that was already made.
    pub(crate) async fn storage_retry(
        &self,
        file: &File<N>,
        (component, column): (usize, Column),
        make: MakeRequest<'_>,
        payload: &[u8],
        out: Option<&mut [u8]>,
        first: Option<ErrorCode>,
    ) -> Result<(StorageReply, usize, TargetId), ErrorCode> {
        let deadline = self.deadline();
        let at = (component, column);
        self.storage_until(file, at, make, payload, (out, first), (deadline, true))
            .await
    }

    /// As [`Self::storage_retry`], with another deadline: no attempt begins after it. `follows_cuts`: where somebody has cut the file
    /// meanwhile, the request is made anew for what is left.
    pub(crate) async fn storage_until(
        &self,
        file: &File<N>,
        (component, column): (usize, Column),
        make: MakeRequest<'_>,
        payload: &[u8],
        (mut out, first): (Option<&mut [u8]>, Option<ErrorCode>),
        (deadline, follows_cuts): (Instant, bool),
    ) -> Result<(StorageReply, usize, TargetId), ErrorCode> {
        let mut pause = RETRY_MS.0;
        let mut failed = first;
        let mut sent = None;
        loop {
            if let Some(code) = failed {
                self.number_anew(file, code, sent);
                match code {
                    ErrorCode::StaleTruncate if follows_cuts => {
                        self.refetch(file).await?;
                    }
                    ErrorCode::StaleEpoch | ErrorCode::WrongTarget => {
                        self.try_refresh_map().await?;
                    }
                    ErrorCode::Unreachable
                    | ErrorCode::TimedOut
                    | ErrorCode::NotReady
                    | ErrorCode::Overloaded => {
                        if self.map_is_old() {
                            self.try_refresh_map().await?;
                        }
                    }
                    ErrorCode::Superseded => {}
                    other => return Err(other),
                }
                let is_news = matches!(code, ErrorCode::StaleTruncate | ErrorCode::Superseded);
                if !is_news && self.net.now() < deadline {
                    self.net.sleep(pause).await;
                    pause = (pause * 2).min(RETRY_MS.1);
                }
                if self.net.now() >= deadline {
                    self.doubt_map();
                    return Err(late(code));
                }
            }
            let (data, attempt) = {
                let state = file.state();
                (state.data.clone(), state.attempt)
            };
            let component = data
                .layout
                .components
                .get(component)
                .ok_or(ErrorCode::Stale)?;
            let place = match self.place(component, column) {
                Ok(place) => place,
                Err(code) => {
                    failed = Some(code);
                    continue;
                }
            };
            let request = make(Self::object(&data, component, column, place.target));
            let pieces = [payload];
            let pieces = if payload.is_empty() {
                &[][..]
            } else {
                &pieces[..]
            };
            let pending = self.start_change(&place, &request, pieces, attempt);
            sent = Some(attempt);
            match self
                .storage_reply(&place, pending, out.as_deref_mut())
                .await
            {
                Ok((reply, bytes)) => return Ok((reply, bytes, place.target)),
                Err(code) => failed = Some(code),
            }
        }
    }

    /// After an attempt that ended with `code`. Where a target may carry it out yet, what is sent from now on has a higher number, so that
    /// the target refuses it when it comes too late. `sent`: its number, where that is known.
    fn number_anew(&self, file: &File<N>, code: ErrorCode, sent: Option<u32>) {
        let mut state = file.state();
        // The file was forgotten since its last number was given.
        let is_behind = code == ErrorCode::Superseded && sent == Some(state.attempt);
        if is_behind || may_come_late(code) {
            state.attempt = self.attempts.fetch_add(1, Ordering::Relaxed) + 1;
        }
    }

    /// The same request to every column of the file, all at once. Returns the replies with their targets, and why one is missing.
    pub(crate) async fn all_columns(
        &self,
        file: &File<N>,
        make: MakeRequest<'_>,
    ) -> (Vec<(StorageReply, TargetId)>, Result<(), ErrorCode>) {
        let (data, attempt) = {
            let state = file.state();
            (state.data.clone(), state.attempt)
        };
        let mut started = Vec::new();
        for (index, component) in data.layout.components.iter().enumerate() {
            for column in (0..component.count).map(Column) {
                let first = self.place(component, column).map(|place| {
                    let request = make(Self::object(&data, component, column, place.target));
                    let pending = self.start_change(&place, &request, &[], attempt);
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
                Ok(answered) => replies.push(answered),
                Err(code) => all = Err(code),
            }
        }
        (replies, all)
    }

    /// Makes durable what targets acknowledged, all at once.
    pub(crate) async fn sync_targets(&self, unsynced: &mut Unsynced) -> Result<(), ErrorCode> {
        let started = self.start_sync(&unsynced.targets());
        self.finish_sync(started, unsynced).await
    }

    /// Asks targets to make durable what they acknowledged; the replies are for [`Self::finish_sync`].
    pub(crate) fn start_sync(&self, targets: &[TargetId]) -> Vec<Syncing<N>> {
        let start = |target: &TargetId| {
            let started = self.target_place(*target).map(|place| {
                let pending = self.start_storage(&place, &StorageRequest::Sync { target: *target });
                (place, pending)
            });
            Syncing {
                target: *target,
                started,
            }
        };
        targets.iter().map(start).collect()
    }

    /// Waits until all of them have; repeats what failed for as long as the deadline allows. What is durable, or is lost
    /// (`Io`, once), leaves `unsynced`.
    pub(crate) async fn finish_sync(
        &self,
        started: Vec<Syncing<N>>,
        unsynced: &mut Unsynced,
    ) -> Result<(), ErrorCode> {
        let mut failed = None;
        for Syncing { target, started } in started {
            let mut outcome = match started {
                Ok((place, pending)) => self.storage_reply(&place, pending, None).await,
                Err(code) => Err(code),
            };
            let deadline = self.deadline();
            while matches!(
                outcome,
                Err(ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::NotReady)
            ) && self.net.now() < deadline
            {
                self.net.sleep(RETRY_MS.1).await;
                let place = self.target_place(target)?;
                let again = self.start_storage(&place, &StorageRequest::Sync { target });
                outcome = self.storage_reply(&place, again, None).await;
            }
            let outcome = match outcome {
                Ok((StorageReply::Synced { verifier }, _)) => {
                    if unsynced.synced(target, verifier) {
                        Ok(())
                    } else {
                        zonal_types::mark!(TargetLostPower);
                        Err(ErrorCode::Io)
                    }
                }
                Ok(_other) => Err(ErrorCode::Protocol),
                Err(code) => Err(code),
            };
            // What is lost is told once, so nothing that passes may hide it.
            if let Err(code) = outcome
                && failed.is_none_or(leaves_gathered)
            {
                failed = Some(code);
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Where a target is, whatever slot it has.
    pub(crate) fn target_place(&self, target: TargetId) -> Result<Place, ErrorCode> {
        let map = self.map();
        let node = map.target(target).and_then(|target| map.node(target.node));
        let address = node.ok_or(ErrorCode::WrongTarget)?.address.clone();
        Ok(Place {
            target,
            address,
            epoch: Epoch(0),
        })
    }
}

/// Nobody knows what became of a request that ended so.
fn may_come_late(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::Unreachable | ErrorCode::TimedOut | ErrorCode::Interrupted
    )
}
