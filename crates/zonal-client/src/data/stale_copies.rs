//! Changes beside an outage: before a change leaves a copy out, the shard marks it as stale
//! (docs/rfcs/2026-11-27-outages.md).
//!
//! While all targets of a file's set are in service it costs no message. For a file with one copy
//! it costs no look at the map either.

use crate::cell::call::SentRequest;
use crate::cell::outages::CopyState;
use crate::cell::placement::TargetPlace;
use crate::client::ClientCall;
use crate::data::relocated_places::is_read_at;
use crate::file::File;
use crate::file::unsynced_writes::UnsyncedWrites;
use crate::transport::net::Net;
use crate::transport::retry::{RETRY_MS, late};
use zonal_basics::BackOff;
use zonal_layout::Piece;
use zonal_types::{Attr, ErrorCode, FileData, Ino, TargetId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply};

/// How long a change waits for the reply of a copy before it reports the target, and after each
/// report, ms.
const REPORT_EVERY_MS: u64 = 500;
/// How long the first attempt of a change waits for the reply of a copy, ms. The wait doubles from
/// attempt to attempt: a slow target must get its turn.
const CHANGE_WAIT_MS: u64 = 4_000;
/// The longest wait, as a power of two of the first.
const CHANGE_WAIT_DOUBLINGS: u32 = 3;

impl<N: Net> ClientCall<'_, N> {
    /// Waits for the reply to a change of a copy. False where the time of this attempt is over, or
    /// the target is out.
    async fn has_reply_of_copy(
        &self,
        place: &TargetPlace,
        sent: &SentRequest<N>,
        attempt: u32,
    ) -> bool {
        let wait_ms = CHANGE_WAIT_MS << attempt.min(CHANGE_WAIT_DOUBLINGS);
        let until = sent.at.plus_ms(wait_ms.min(self.options.deadline_ms));
        loop {
            let left = until.ms_since(self.net.now());
            let is_over = left == 0 || self.map().is_out(place.target);
            let ms = if is_over {
                0
            } else {
                left.min(REPORT_EVERY_MS)
            };
            if self.has_reply(sent, ms).await {
                return true;
            }
            if is_over {
                return false;
            }
            self.report_outage(place.target).await;
        }
    }

    /// The reply to a change of a copy, as [`Self::storage_reply`]. `TimedOut` where its target is
    /// out, or the time of this attempt over.
    pub(crate) async fn reply_of_copy(
        &self,
        place: &TargetPlace,
        sent: SentRequest<N>,
        attempt: u32,
    ) -> Result<(StorageReply, usize), ErrorCode> {
        match self.has_reply_of_copy(place, &sent, attempt).await {
            true => self.storage_reply(place, sent, None).await,
            false => Err(ErrorCode::TimedOut),
        }
    }

    /// The state of a file with all marks. The caller holds the gate.
    pub(crate) async fn marked_data(&self, file: &File<N>) -> Result<FileData, ErrorCode> {
        let deadline = self.deadline();
        let mut pause = BackOff::new(RETRY_MS);
        loop {
            let data = file.state().data.clone();
            let mut components = data.layout.components.iter();
            if components.all(|component| self.has_marks(data.as_of, component)) {
                return Ok(data);
            }
            let before = data.as_of;
            self.refetch(file).await?;
            if file.state().data.as_of == before {
                // The shard does not know the newest map yet.
                if self.is_over(deadline) {
                    return Err(ErrorCode::TimedOut);
                }
                self.sleep(pause.next_ms()).await;
            }
        }
    }

    /// Marks the copies of these targets. Asks the shard again until the deadline. A copy that is
    /// the last without a mark stays in service: the change waits for its target.
    pub(crate) async fn mark_stale(
        &self,
        file: &File<N>,
        targets: Vec<TargetId>,
    ) -> Result<(), ErrorCode> {
        if let Some((attr, data)) = self.mark_stale_of(file.ino, targets).await? {
            file.state().refresh(&attr, Some(data));
        }
        Ok(())
    }

    /// Has the shard drop the relocations of a file's objects to a target that is full. Its other
    /// places have room.
    pub(crate) async fn give_up_place(
        &self,
        file: &File<N>,
        target: TargetId,
    ) -> Result<(), ErrorCode> {
        let link = self.reach(file.ino).await?;
        let ino = file.ino;
        let request = MetaRequest::GiveUpPlace { ino, target };
        match self.meta(&link, &request).await.map_err(late)? {
            MetaReply::Attr {
                attr,
                data: Some(data),
                ..
            } => {
                file.state().refresh(&attr, Some(data));
                Ok(())
            }
            _other => Err(ErrorCode::Protocol),
        }
    }

    /// Marks the copy of a closed file. False: the target has the file's only copy.
    pub(crate) async fn mark_closed(&self, ino: Ino, target: TargetId) -> Result<bool, ErrorCode> {
        let marked = self.mark_stale_of(ino, vec![target]).await?;
        let map = self.map();
        Ok(marked.is_some_and(|(_, data)| {
            data.layout.is_stale(target) || !is_read_at(&map, &data.layout, target)
        }))
    }

    /// The file after the mark. `None`: the copies were not marked, as no other one is left, or a
    /// target is back.
    async fn mark_stale_of(
        &self,
        ino: Ino,
        targets: Vec<TargetId>,
    ) -> Result<Option<(Attr, FileData)>, ErrorCode> {
        let deadline = self.deadline();
        let mut pause = BackOff::new(RETRY_MS);
        let request = MetaRequest::MarkStale {
            ino,
            targets: targets.clone(),
        };
        loop {
            let link = self.reach(ino).await?;
            match self.meta(&link, &request).await {
                Ok(MetaReply::Attr {
                    attr,
                    data: Some(data),
                    ..
                }) => {
                    zonal_types::mark!(CopyMarkedStale);
                    return Ok(Some((attr, data)));
                }
                Ok(_other) => return Err(ErrorCode::Protocol),
                Err(ErrorCode::Io) => return Ok(None),
                Err(ErrorCode::WrongTarget) if !self.is_over(deadline) => {
                    self.sleep(pause.next_ms()).await;
                    // Its map or ours is behind: a target may be back.
                    self.try_refresh_map().await?;
                    let map = self.map();
                    if targets.iter().any(|target| !map.is_out(*target)) {
                        return Ok(None);
                    }
                }
                Err(code) => return Err(late(code)),
            }
        }
    }

    /// Leaves out of a change the pieces on copies that miss changes, after marking those that are
    /// out. Returns them.
    pub(crate) async fn leave_out_stale(
        &self,
        file: &File<N>,
        pieces: &mut Vec<Piece>,
    ) -> Result<Vec<Piece>, ErrorCode> {
        let data = file.state().data.clone();
        let state_of = |data: &FileData, piece: &Piece| {
            let component = &data.layout.components[piece.component];
            self.copy_state(&data.layout, component, piece.column)
        };
        let out: Vec<TargetId> = pieces
            .iter()
            .filter(|piece| state_of(&data, piece) == CopyState::Out)
            .filter_map(|piece| {
                let component = &data.layout.components[piece.component];
                self.place(component, piece.column).ok()
            })
            .map(|place| place.target)
            .collect();
        if !out.is_empty() {
            self.mark_stale(file, out).await?;
        }
        let data = file.state().data.clone();
        let all = std::mem::take(pieces).into_iter();
        let misses = |piece: &Piece| {
            let component = &data.layout.components[piece.component];
            self.misses_changes(&data.layout, component, piece.column)
        };
        let (left_out, whole) = all.partition(misses);
        *pieces = whole;
        Ok(left_out)
    }

    /// Targets of a file's objects that are out and not marked.
    pub(crate) fn unmarked_outages(&self, data: &FileData) -> Vec<TargetId> {
        let mut out = Vec::new();
        for component in &data.layout.components {
            for object in zonal_layout::places(component) {
                if self.copy_state(&data.layout, component, object) == CopyState::Out
                    && let Ok(place) = self.place(component, object)
                {
                    out.push(place.target);
                }
            }
        }
        out
    }

    /// Forgets unsynced writes at targets that are out: the file's copies there are marked, and the
    /// other copies have the writes. A file's only copies stay.
    pub(crate) async fn leave_out_unsynced(
        &self,
        file: &File<N>,
        unsynced: &mut UnsyncedWrites,
    ) -> Result<(), ErrorCode> {
        let map = self.map();
        let targets = unsynced.targets().into_iter();
        let out: Vec<TargetId> = targets.filter(|target| map.is_out(*target)).collect();
        if out.is_empty() || !file.state().data.layout.has_copies() {
            return Ok(());
        }
        self.mark_stale(file, out.clone()).await?;
        let layout = file.state().data.layout.clone();
        for target in out {
            // A place that nobody reads owes no flush: its target fills it anew.
            if layout.is_stale(target) || !is_read_at(&map, &layout, target) {
                unsynced.forget(target);
            }
        }
        Ok(())
    }
}
