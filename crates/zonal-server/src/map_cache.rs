//! Map cache: the newest zone map that this process knows.
//!
//! In a manager's process the manager publishes each durable map here. Elsewhere the map is
//! fetched at start, and when a request's header names a newer version. A header with a false
//! version costs one fetch in [`REFETCH_MS`].
//!
//! A request waits [`REQUEST_WAIT_MS`] for its fetch. After one without an answer, managers are
//! silent: requests go on with the known map, so that a zone that is cut off serves on. A thread
//! asks every [`SILENCE_MS`] until there is an answer.
//!
//! The cache has the node's lease too, under which its targets carry out guarded requests. It is
//! counted from the sending of the question, on the monotonic clock, and only once the map here is
//! as new as the answer. Fetches of the map do not renew it: a manager that does not lead may
//! answer them.

use crate::clock;
use crate::join::chain;
use crate::peers::{PeerError, Peers};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;
use zonal_types::limits::{REQUEST_DEADLINE_MS, TARGET_LEASE_MS};
use zonal_types::{CellId, Instant, MapVersion, NodeId};
use zonal_wire::{ManagerReply, ManagerRequest};
use zonal_zonemap::{Fetch, FetchError, ZoneMap};

/// Least time between two fetches.
const REFETCH_MS: u64 = 50;
/// How long a request waits for a newer map, ms.
const REQUEST_WAIT_MS: u64 = 500;
/// Time between two fetches for requests while managers are silent, ms.
const SILENCE_MS: u64 = 2_000;

/// How long each manager is waited for that is asked for the lease, ms.
const RENEWAL_MS: u64 = 1_000;

/// Source of newer maps.
enum Origin {
    /// The manager is in this process and publishes.
    Here,
    /// The managers, which are fetched from. Where one is in this process, it publishes too.
    Managers(Arc<Peers>),
}

/// The map cache.
pub struct MapCache {
    origin: Origin,
    map: RwLock<Arc<ZoneMap>>,
    /// Locked for a moment only, never during a fetch.
    fetching: Mutex<FetchState>,
    /// Signalled when a fetch ends.
    fetched: Condvar,
    /// When the question for the lease was sent that was answered last.
    leased: Mutex<Option<Instant>>,
}

/// Why a fetch failed.
#[derive(Debug, thiserror::Error)]
enum MapFetchError {
    /// The manager did not answer.
    #[error(transparent)]
    Peer(PeerError),
    /// The manager's answer was unusable.
    #[error(transparent)]
    Answer(#[from] FetchError),
}

/// Outcome of a fetch from the manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchOutcome {
    Answered,
    /// The manager did not answer in time, or the answer was of no use.
    Silent,
    /// No fetch was made, because one had just ended.
    JustBefore,
}

/// State of fetches.
#[derive(Default)]
struct FetchState {
    is_under_way: bool,
    /// End of the last fetch.
    ended: Option<Instant>,
    /// Managers are silent; when they were asked last.
    silent: Option<Instant>,
}

/// A fetch of another thread takes longer than the caller waits.
#[derive(Debug)]
struct FetchIsSlow;

/// The right to fetch; one thread has it at a time.
struct FetchTurn<'a>(&'a MapCache);

impl Drop for FetchTurn<'_> {
    fn drop(&mut self) {
        let mut fetching = self.0.fetching();
        fetching.is_under_way = false;
        fetching.ended = Some(clock::instant());
        drop(fetching);
        self.0.fetched.notify_all();
    }
}

impl MapCache {
    /// The cache of the only manager's node: only [`Self::publish`] changes it.
    #[must_use]
    pub fn here(cell: CellId) -> Self {
        Self::new(cell, Origin::Here)
    }

    /// The cache of any other node.
    #[must_use]
    pub fn of_managers(cell: CellId, peers: Arc<Peers>) -> Self {
        Self::new(cell, Origin::Managers(peers))
    }

    /// Takes over an older map, where none is known: the addresses in it are good enough to find
    /// others. Any answer of a manager replaces it.
    pub(crate) fn remember(&self, mut map: ZoneMap) {
        map.version = MapVersion(0);
        let mut known = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if known.version == MapVersion(0) {
            *known = Arc::new(map);
        }
    }

    fn new(cell: CellId, origin: Origin) -> Self {
        Self {
            origin,
            map: RwLock::new(Arc::new(ZoneMap::unknown(cell))),
            fetching: Mutex::default(),
            fetched: Condvar::new(),
            leased: Mutex::default(),
        }
    }

    /// True while the node's targets may carry out guarded requests. The only manager's own node
    /// always has the lease: its map is the newest.
    #[must_use]
    pub fn has_lease(&self) -> bool {
        match self.origin {
            Origin::Here => true,
            Origin::Managers(_) => self.has_lease_at(clock::instant()),
        }
    }

    fn has_lease_at(&self, now: Instant) -> bool {
        let leased = *self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        leased.is_some_and(|sent| now.ms_since(sent) < TARGET_LEASE_MS)
    }

    /// Asks the leading manager for the lease of this node; false where it is not renewed.
    pub(crate) fn renew_lease(&self, node: NodeId) -> bool {
        let Origin::Managers(peers) = &self.origin else {
            return true;
        };
        let sent = clock::instant();
        let request = ManagerRequest::RenewLease { node };
        let version = match peers.manager_within(&self.current(), &request, RENEWAL_MS) {
            Ok(ManagerReply::At { version }) => version,
            Ok(refused) => {
                tracing::debug!(?refused, "no lease");
                return false;
            }
            Err(error) => {
                tracing::debug!(error = %chain(&error), "no lease");
                return false;
            }
        };
        if self.current().version < version {
            let _fetched = self.newest();
        }
        self.take_lease(sent, version)
    }

    /// Notes the answer to a question for the lease; false where the map here is older.
    fn take_lease(&self, sent: Instant, version: MapVersion) -> bool {
        if self.current().version < version {
            return false;
        }
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        *leased = (*leased).max(Some(sent));
        true
    }

    /// The newest map.
    #[must_use]
    pub fn current(&self) -> Arc<ZoneMap> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stores a map where it is newer.
    pub fn publish(&self, map: Arc<ZoneMap>) {
        let mut known = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.version > known.version {
            tracing::info!(version = map.version.0, "zone map");
            *known = map;
        }
    }

    /// The newest map; fetches first where the version `hint` in a request's header is newer.
    pub fn at_least(self: &Arc<Self>, hint: MapVersion) -> Arc<ZoneMap> {
        if self.current().version < hint
            && self.ask_briefly() == FetchOutcome::JustBefore
            && self.current().version < hint
        {
            // A fetch has just ended with a map older than the sender's. So a header with a false
            // version delays only its own request.
            std::thread::sleep(Duration::from_millis(REFETCH_MS));
            self.ask_briefly();
        }
        self.current()
    }

    /// Fetches the map for a request, if none newer than `known` is here.
    pub fn seek(self: &Arc<Self>, known: MapVersion) {
        if self.current().version <= known {
            self.ask_briefly();
        }
    }

    /// The map as the manager has it now; `None` where it does not answer. A fetch that has just
    /// ended does not count: nodes that join one after another are often behind it.
    pub fn newest(&self) -> Option<Arc<ZoneMap>> {
        let mut asked = self.ask();
        if asked == FetchOutcome::JustBefore {
            std::thread::sleep(Duration::from_millis(REFETCH_MS));
            asked = self.ask();
        }
        // A fetch of another thread in between has brought the newest.
        (asked != FetchOutcome::Silent).then(|| self.current())
    }

    /// Asks the manager; an unreachable one leaves the map as it is.
    pub fn refresh(&self) {
        self.ask();
    }

    fn ask(&self) -> FetchOutcome {
        self.ask_within(REQUEST_DEADLINE_MS)
    }

    /// Asks for a request, which waits only briefly, and not while managers are silent.
    fn ask_briefly(self: &Arc<Self>) -> FetchOutcome {
        if self.fetching().silent.is_none() {
            let outcome = self.ask_within(REQUEST_WAIT_MS);
            if outcome == FetchOutcome::Silent {
                self.fetching().silent = Some(clock::instant());
            }
            return outcome;
        }
        let is_due = {
            let (mut fetching, now) = (self.fetching(), clock::instant());
            let since = fetching.silent.map_or(0, |asked| now.ms_since(asked));
            let is_due = since >= SILENCE_MS && !fetching.is_under_way;
            if is_due {
                fetching.silent = Some(now);
            }
            is_due
        };
        if is_due {
            let cache = Arc::clone(self);
            let thread = std::thread::Builder::new().name("map-fetch".into());
            if let Err(error) = thread.spawn(move || cache.refresh()) {
                tracing::warn!(%error, "no thread to fetch the zone map");
            }
        }
        FetchOutcome::Silent
    }

    fn fetching(&self) -> MutexGuard<'_, FetchState> {
        self.fetching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Each manager is waited for at most `ms`.
    fn ask_within(&self, ms: u64) -> FetchOutcome {
        let Origin::Managers(peers) = &self.origin else {
            return FetchOutcome::Answered;
        };
        let before = self.current().version;
        let _turn = match self.take_turn(before, ms) {
            Ok(Some(turn)) => turn,
            Ok(None) => return FetchOutcome::JustBefore,
            Err(FetchIsSlow) => return FetchOutcome::Silent,
        };
        let ask = |request: &ManagerRequest| {
            let known = self.current();
            let reply = peers.manager_within(&known, request, ms);
            reply.map_err(MapFetchError::Peer)
        };
        match Fetch::newer(self.current()).run(ask) {
            Ok(map) if map.cell == self.current().cell => self.publish(map),
            Ok(_other) => tracing::error!("the manager sent the zone map of another cell"),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the zone map cannot be refreshed");
                return FetchOutcome::Silent;
            }
        }
        self.fetching().silent = None;
        FetchOutcome::Answered
    }

    /// Waits at most `ms` for a fetch in progress. `None` where one has just ended, or has brought
    /// a newer map than `before`.
    fn take_turn(&self, before: MapVersion, ms: u64) -> Result<Option<FetchTurn<'_>>, FetchIsSlow> {
        let (fetching, limit) = (self.fetching(), Duration::from_millis(ms));
        let is_busy = |fetching: &mut FetchState| fetching.is_under_way;
        let free = self.fetched.wait_timeout_while(fetching, limit, is_busy);
        let (mut fetching, waited) = free.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            return Err(FetchIsSlow);
        }
        let is_recent = fetching
            .ended
            .is_some_and(|when| clock::instant().ms_since(when) < REFETCH_MS);
        if is_recent || self.current().version > before {
            return Ok(None);
        }
        fetching.is_under_way = true;
        Ok(Some(FetchTurn(self)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use zonal_net::{Identity, Pool, PoolConfig, Role};

    #[test]
    fn only_newer_maps_are_published() {
        let cell = CellId([3; 16]);
        let cache = Arc::new(MapCache::here(cell));
        let mut map = ZoneMap::new(cell);
        map.version = MapVersion(5);
        cache.publish(Arc::new(map.clone()));
        map.version = MapVersion(4);
        cache.publish(Arc::new(map));
        assert_eq!(cache.current().version, MapVersion(5));
        assert_eq!(cache.at_least(MapVersion(9)).version, MapVersion(5));
    }

    #[test]
    fn one_thread_fetches_at_a_time_and_holds_no_lock() {
        let cache = MapCache::here(CellId([3; 16]));
        let none = MapVersion(0);
        let has_ended = AtomicBool::new(false);
        let turn = cache.take_turn(none, 60_000).unwrap().expect("nobody asks");
        assert!(cache.fetching.try_lock().is_ok(), "held over the network");
        std::thread::scope(|scope| {
            for _other in 0..4 {
                scope.spawn(|| {
                    let _turn = cache.take_turn(none, 60_000);
                    assert!(has_ended.load(Ordering::SeqCst), "two ask at once");
                });
            }
            for _moment in 0..1_000 {
                std::thread::yield_now();
            }
            has_ended.store(true, Ordering::SeqCst);
            drop(turn);
        });
        while cache.take_turn(none, 60_000).unwrap().is_none() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_lease_runs_from_its_question_and_needs_the_map_of_its_answer() {
        let cell = CellId([3; 16]);
        assert!(MapCache::here(cell).has_lease(), "beside the only manager");
        let me = Identity::new(cell, Role::Server, NodeId(9), None);
        let pool = Arc::new(Pool::new(me, PoolConfig::default()));
        let cache = MapCache::of_managers(cell, Arc::new(Peers::new(pool, cell)));
        let at = |ms| Instant(0).plus_ms(ms);
        assert!(!cache.renew_lease(NodeId(9)), "no manager");
        assert!(!cache.has_lease());
        let mut map = ZoneMap::new(cell);
        map.version = MapVersion(5);
        cache.publish(Arc::new(map));
        assert!(!cache.has_lease(), "a newer map is no lease");
        assert!(!cache.take_lease(at(10_000), MapVersion(6)));
        assert!(!cache.has_lease_at(at(10_000)));
        assert!(cache.take_lease(at(10_000), MapVersion(5)));
        assert!(cache.has_lease_at(at(10_000 + TARGET_LEASE_MS - 1)));
        assert!(!cache.has_lease_at(at(10_000 + TARGET_LEASE_MS)));
        // An answer that comes late does not end the lease.
        assert!(cache.take_lease(at(9_000), MapVersion(4)));
        assert!(cache.has_lease_at(at(10_000 + TARGET_LEASE_MS - 1)));
    }

    #[test]
    fn requests_go_on_beside_a_silent_manager() {
        // It accepts connections and says nothing.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = silent.local_addr().expect("an address");
        let cell = CellId([3; 16]);
        let me = Identity::new(cell, Role::Server, NodeId(9), None);
        let pool = Arc::new(Pool::new(me, PoolConfig::default()));
        let peers = Peers::new(pool, cell).with_managers(&[address]);
        let cache = Arc::new(MapCache::of_managers(cell, Arc::new(peers)));
        cache.seek(MapVersion(0));
        assert_eq!(cache.at_least(MapVersion(9)).version, MapVersion(0));
        cache.seek(MapVersion(0));
        silent.set_nonblocking(true).expect("no wait");
        let asked = silent.incoming().take_while(Result::is_ok).count();
        assert_eq!(asked, 1, "each waits for the manager");
        // A fetch under way, which may take long, holds up no other request either.
        let turns = std::iter::repeat_with(|| cache.take_turn(MapVersion(0), 1).unwrap());
        let _turn = turns.flatten().next();
        cache.fetching().silent = None;
        assert_eq!(cache.ask_briefly(), FetchOutcome::Silent);
        assert!(cache.fetching().silent.is_some());
    }
}
