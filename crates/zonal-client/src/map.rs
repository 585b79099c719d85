//! The zone map as this client knows it: fetched from a manager, followed as others name newer
//! versions, and doubted where it leads nowhere.

use crate::client::Client;
use crate::net::{Message, Net, NetFailure};
use crate::operation::ClientCall;
use crate::session::{failure_code, is_passing, lock};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use zonal_types::{CellId, Codec, ErrorCode, MapVersion, NodeId};
use zonal_wire::{ManagerReply, Service};
use zonal_zonemap::{Fetch, FetchError, ZoneMap};

/// The map, and what is known of newer ones.
pub(crate) struct CachedMap {
    current: Mutex<Arc<ZoneMap>>,
    /// The newest version that a server named.
    hint: AtomicU64,
    /// A target did not answer where the map has it.
    is_doubted: AtomicBool,
    refreshing: async_lock::Mutex<()>,
    /// The manager that answered last, by its place in the list.
    answered: AtomicUsize,
}

impl CachedMap {
    /// Of a cell of which nothing is known yet.
    pub(crate) fn new(cell: CellId) -> Self {
        Self {
            current: Mutex::new(Arc::new(ZoneMap::unknown(cell))),
            hint: AtomicU64::new(0),
            is_doubted: AtomicBool::new(false),
            refreshing: async_lock::Mutex::new(()),
            answered: AtomicUsize::new(0),
        }
    }
}

impl<N: Net> Client<N> {
    /// The zone map as this client knows it.
    #[must_use]
    pub fn map(&self) -> Arc<ZoneMap> {
        lock(&self.map.current).clone()
    }

    pub(crate) fn note_map_version(&self, version: MapVersion) {
        self.map.hint.fetch_max(version.0, Ordering::Relaxed);
    }

    /// True where a server knows a newer map.
    #[must_use]
    pub fn map_is_old(&self) -> bool {
        self.map.hint.load(Ordering::Relaxed) > self.map().version.0
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Fetches a newer map, once for all who ask at a time.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn refresh_map(&self) -> Result<(), ErrorCode> {
        let before = self.map().version;
        let _guard = self.wait_for(&self.map.refreshing).await?;
        if self.map().version > before {
            return Ok(());
        }
        self.fetch_map(before).await
    }

    /// A target did not answer in time where the map has it.
    pub(crate) fn doubt_map(&self) {
        self.map.is_doubted.store(true, Ordering::Relaxed);
    }

    /// Has the manager's map, where ours was doubted, or where `is_sure`. The manager is believed
    /// whatever version its map has: a map that nobody else has is never followed by a newer one.
    pub(crate) async fn settle_doubts(&self, is_sure: bool) {
        if !self.map.is_doubted.swap(false, Ordering::Relaxed) && !is_sure {
            return;
        }
        if let Ok(_guard) = self.wait_for(&self.map.refreshing).await {
            // Who does not answer either is asked at the next failure.
            self.fetch_map(MapVersion(0)).await.ok();
        }
    }

    /// As [`Self::refresh_map`]; as long as no manager answers, the map at hand must do, and the
    /// caller tries again later.
    pub(crate) async fn try_refresh_map(&self) -> Result<(), ErrorCode> {
        match self.refresh_map().await {
            Err(code) if is_passing(code) => Ok(()),
            other => other,
        }
    }

    /// The map of the first manager that answers, if it is newer than what we `have` (0: whatever
    /// it is). The manager that answered last is asked first.
    pub(crate) async fn fetch_map(&self, have: MapVersion) -> Result<(), ErrorCode> {
        let mut last = ErrorCode::Unreachable;
        let first = self.map.answered.load(Ordering::Relaxed);
        let places = 0..self.options.managers.len();
        for place in places.clone().cycle().skip(first).take(places.len()) {
            let Some(manager) = self.options.managers.get(place) else {
                continue;
            };
            match self.fetch_map_from(manager, have).await {
                Ok(map) => {
                    self.map.answered.store(place, Ordering::Relaxed);
                    return self.take_map(map);
                }
                Err(MapFetchFailure::Silent(failure)) => {
                    let server = format!("manager at {manager}");
                    self.net
                        .complain(self.context(), &server, "GetMap", failure);
                    last = failure_code(failure);
                }
                Err(MapFetchFailure::Answer(error)) => return Err(error.code()),
            }
        }
        Err(last)
    }

    async fn fetch_map_from(
        &self,
        manager: &str,
        have: MapVersion,
    ) -> Result<Arc<ZoneMap>, MapFetchFailure> {
        let mut fetch = match have {
            MapVersion(0) => Fetch::believing(self.map()),
            _ => Fetch::newer(self.map()),
        };
        loop {
            let header = self.header(Service::Manager);
            let message = Message {
                node: NodeId(0),
                header,
                body: &fetch.request().to_bytes(),
                payload: &[],
                room: 0,
            };
            let sent = self.start(manager, message);
            let reply = self.finish(manager, sent, None).await;
            let reply = reply.map_err(MapFetchFailure::Silent)?;
            let reply = ManagerReply::from_bytes(&reply.body)
                .map_err(|_error| FetchError::Decode(ErrorCode::Protocol))?;
            if let Some(map) = fetch.take(reply)? {
                return Ok(map);
            }
        }
    }

    fn take_map(&self, map: Arc<ZoneMap>) -> Result<(), ErrorCode> {
        {
            let mut current = lock(&self.map.current);
            if current.version.0 > 0 && current.cell != map.cell {
                return Err(ErrorCode::WrongCell);
            }
            if map == *current {
                return Ok(());
            }
            if map.version <= current.version {
                zonal_types::mark!(MapReplaced);
                self.map.hint.store(map.version.0, Ordering::Relaxed);
            }
            *current = map;
        }
        Ok(())
    }
}

/// Why a manager's map was not fetched.
enum MapFetchFailure {
    /// It does not answer.
    Silent(NetFailure),
    /// What it answers is of no use.
    Answer(FetchError),
}

impl From<FetchError> for MapFetchFailure {
    fn from(error: FetchError) -> Self {
        Self::Answer(error)
    }
}
