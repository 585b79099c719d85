//! The cached zone map: the client fetches it from a manager, follows newer versions that servers
//! name, and checks it after a failure.

use crate::cell::Cell;
use crate::cell::call::Call;
use crate::cell::owner::SessionOwner;
use crate::transport::mutex::lock;
use crate::transport::net::{Message, Net, NetFailure};
use crate::transport::retry::{failure_code, is_passing};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use zonal_basics::const_u32;
use zonal_types::limits::REPLICA_ATTEMPT_MS;
use zonal_types::{CellId, Codec, ErrorCode, Instant, MapVersion, NodeId, PartitionId, ShardId};
use zonal_wire::{ManagerReply, ManagerRequest, Service};
use zonal_zonemap::{Fetch, FetchError, KnownManager, ZoneMap};

/// Least time between two checks of the map after failures, ms.
const CHECK_PAUSE_MS: u64 = 500;
/// How long a check waits for a manager, ms.
const CHECK_WAIT_MS: u64 = 300;

/// The map, and hints of newer ones.
pub(crate) struct CachedMap {
    current: Mutex<Arc<ZoneMap>>,
    /// The version at which held state was last told to new owners of partitions.
    told: AtomicU64,
    /// Shards that have got partitions of shards at which this client has sessions.
    new_owners: Mutex<BTreeSet<ShardId>>,
    /// The newest version that a server named.
    hint: AtomicU64,
    /// A target did not answer at the address in the map.
    is_doubted: AtomicBool,
    refreshing: async_lock::Mutex<()>,
    /// Begin of the last check after a failure.
    checked: Mutex<Option<Instant>>,
    manager: KnownManager,
}

impl CachedMap {
    /// A cache without a map yet.
    pub(crate) fn new(cell: CellId) -> Self {
        Self {
            current: Mutex::new(Arc::new(ZoneMap::unknown(cell))),
            told: AtomicU64::new(0),
            new_owners: Mutex::default(),
            hint: AtomicU64::new(0),
            is_doubted: AtomicBool::new(false),
            refreshing: async_lock::Mutex::new(()),
            checked: Mutex::default(),
            manager: KnownManager::default(),
        }
    }
}

impl<N: Net> Cell<N> {
    /// The zone map as this client knows it.
    #[must_use]
    pub fn map(&self) -> Arc<ZoneMap> {
        lock(&self.map.current).clone()
    }

    pub(crate) fn note_map_version(&self, version: MapVersion) {
        self.map.hint.fetch_max(version.0, Ordering::Relaxed);
    }

    /// True once for each change of the map.
    pub(crate) fn take_map_change(&self) -> bool {
        let version = self.map().version.0;
        self.map.told.swap(version, Ordering::Relaxed) != version
    }

    /// Shards that have got partitions since the last call.
    pub(crate) fn take_new_owners(&self) -> BTreeSet<ShardId> {
        std::mem::take(&mut *lock(&self.map.new_owners))
    }

    /// Notes the shards to which partitions went from shards that know this client.
    fn note_new_owners(&self, before: &ZoneMap, now: &ZoneMap) {
        let links = self.all_links();
        let open = links.iter().filter(|link| link.is_open());
        let known: BTreeSet<ShardId> = open.map(|link| link.shard).collect();
        for range in &before.partitions {
            if !known.contains(&range.shard) || now.partitions.contains(range) {
                continue;
            }
            for number in range.first.0..range.first.0.saturating_add(range.count) {
                let owner = now.shard_of(PartitionId(number)).map(|shard| shard.id);
                let other = owner.filter(|owner| *owner != range.shard);
                lock(&self.map.new_owners).extend(other);
            }
        }
    }

    /// True where a server knows a newer map.
    #[must_use]
    pub fn map_is_old(&self) -> bool {
        self.map.hint.load(Ordering::Relaxed) > self.map().version.0
    }
}

impl<C: SessionOwner> Call<'_, C> {
    /// Fetches a newer map, once for all concurrent callers.
    ///
    /// # Errors
    /// `Unreachable` or `TimedOut` where no manager answers; the refusal of a manager.
    pub async fn refresh_map(&self) -> Result<(), ErrorCode> {
        let before = self.cell().map().version;
        let _guard = self.wait_for(&self.cell().map.refreshing).await?;
        if self.cell().map().version > before {
            return Ok(());
        }
        self.fetch_map(before).await
    }

    /// Notes that a target did not answer in time at the address in the map.
    pub(crate) fn doubt_map(&self) {
        self.cell().map.is_doubted.store(true, Ordering::Relaxed);
    }

    /// Fetches the manager's map, if the known one is doubted or `is_sure`. Takes it whatever its
    /// version: a map that no server has is never followed by a newer one.
    pub(crate) async fn settle_doubts(&self, is_sure: bool) {
        if !self.cell().map.is_doubted.swap(false, Ordering::Relaxed) && !is_sure {
            return;
        }
        if let Ok(_guard) = self.wait_for(&self.cell().map.refreshing).await {
            // A manager that does not answer is asked again at the next failure.
            self.fetch_map(MapVersion(0)).await.ok();
        }
    }

    /// As [`Self::refresh_map`]. While no manager answers, the known map stays, and the caller
    /// tries again later.
    pub(crate) async fn try_refresh_map(&self) -> Result<(), ErrorCode> {
        match self.refresh_map().await {
            Err(code) if is_passing(code) => Ok(()),
            other => other,
        }
    }

    /// After a server could not be reached: fetches a newer map where it may be elsewhere now. One
    /// caller asks each [`CHECK_PAUSE_MS`], or any where a server named a newer map. Each waits
    /// only briefly, as managers may be silent too.
    pub(crate) async fn check_map(&self) {
        if !self.cell().map_is_old() {
            let now = self.cell().net.now();
            let mut checked = lock(&self.cell().map.checked);
            if checked.is_some_and(|last| now.ms_since(last) < CHECK_PAUSE_MS) {
                return;
            }
            *checked = Some(now);
        }
        // The next failure checks again.
        self.briefly(CHECK_WAIT_MS).refresh_map().await.ok();
    }

    /// Fetches the map from the first manager that answers, if it is newer than `have` (0: any
    /// version). The manager that answered last is asked first.
    pub(crate) async fn fetch_map(&self, have: MapVersion) -> Result<(), ErrorCode> {
        let mut last = ErrorCode::Unreachable;
        let cell = self.cell();
        let managers = cell.map.manager.order(&cell.map(), &cell.options.managers);
        let is_among_several = managers.len() > 1;
        for manager in &managers {
            match self.fetch_map_from(manager, is_among_several, have).await {
                Ok(map) => {
                    cell.map.manager.answered(manager);
                    return self.take_map(map);
                }
                Err(MapFetchFailure::Silent(failure)) => {
                    cell.map.manager.silent(manager, &managers);
                    let server = format!("manager at {manager}");
                    cell.net
                        .complain(self.context(), &server, "GetMap", failure);
                    last = failure_code(failure);
                    // Without time the others would look silent, too.
                    if self.is_over(self.deadline()) {
                        break;
                    }
                }
                // It is not a manager any more, or another one leads.
                Err(MapFetchFailure::Answer(FetchError::Refused { code, .. }))
                    if is_among_several
                        && matches!(code, ErrorCode::NotOwner | ErrorCode::WrongTarget) =>
                {
                    last = ErrorCode::NotReady;
                }
                Err(MapFetchFailure::Answer(error)) => return Err(error.code()),
            }
        }
        Err(last)
    }

    async fn fetch_map_from(
        &self,
        manager: &str,
        is_among_several: bool,
        have: MapVersion,
    ) -> Result<Arc<ZoneMap>, MapFetchFailure> {
        let mut fetch = match have {
            MapVersion(0) => Fetch::believing(self.cell().map()),
            _ => Fetch::newer(self.cell().map()),
        };
        loop {
            let request = fetch.request();
            let reply = self.ask_one_manager(manager, is_among_several, &request);
            if let Some(map) = fetch.take(reply.await?)? {
                return Ok(map);
            }
        }
    }

    async fn ask_one_manager(
        &self,
        manager: &str,
        is_among_several: bool,
        request: &ManagerRequest,
    ) -> Result<ManagerReply, MapFetchFailure> {
        let mut header = self.header(Service::Manager);
        if is_among_several {
            header.deadline_ms = header.deadline_ms.min(const_u32(REPLICA_ATTEMPT_MS));
        }
        let message = Message {
            node: NodeId(0),
            header,
            body: &request.to_bytes(),
            payload: &[],
            room: 0,
        };
        let sent = self.start(manager, message);
        let reply = self.finish(manager, sent, None).await;
        let reply = reply.map_err(MapFetchFailure::Silent)?;
        let reply = ManagerReply::from_bytes(&reply.body);
        Ok(reply.map_err(|_error| FetchError::Decode(ErrorCode::Protocol))?)
    }

    /// Sends a request to the first manager that carries it out or refuses it. The manager that
    /// answered last is asked first.
    ///
    /// # Errors
    /// `Unreachable` where none answers; a manager's refusal.
    pub(crate) async fn ask_manager(
        &self,
        request: &ManagerRequest,
    ) -> Result<ManagerReply, ErrorCode> {
        let cell = self.cell();
        let managers = cell.map.manager.order(&cell.map(), &cell.options.managers);
        let is_among_several = managers.len() > 1;
        for manager in &managers {
            let reply = self.ask_one_manager(manager, is_among_several, request);
            match reply.await {
                Ok(ManagerReply::Failed { code, .. })
                    if !matches!(code.0, ErrorCode::NotOwner | ErrorCode::WrongTarget) =>
                {
                    return Err(code.0);
                }
                Err(MapFetchFailure::Silent(_)) => {
                    cell.map.manager.silent(manager, &managers);
                    if self.is_over(self.deadline()) {
                        break;
                    }
                }
                Ok(ManagerReply::Failed { .. }) | Err(MapFetchFailure::Answer(_)) => {}
                Ok(reply) => {
                    cell.map.manager.answered(manager);
                    return Ok(reply);
                }
            }
        }
        Err(ErrorCode::Unreachable)
    }

    fn take_map(&self, map: Arc<ZoneMap>) -> Result<(), ErrorCode> {
        {
            let mut current = lock(&self.cell().map.current);
            if current.version.0 > 0 && current.cell != map.cell {
                return Err(ErrorCode::WrongCell);
            }
            if map == *current {
                return Ok(());
            }
            if map.version <= current.version {
                zonal_types::mark!(MapReplaced);
                self.cell().map.hint.store(map.version.0, Ordering::Relaxed);
            }
            self.cell().note_new_owners(&current, &map);
            *current = map;
        }
        Ok(())
    }
}

/// Why a manager's map was not fetched.
enum MapFetchFailure {
    /// The manager does not answer.
    Silent(NetFailure),
    /// The manager's answer is unusable.
    Answer(FetchError),
}

impl From<FetchError> for MapFetchFailure {
    fn from(error: FetchError) -> Self {
        Self::Answer(error)
    }
}
