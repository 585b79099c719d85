//! Map cache: the newest zone map that this process knows.
//!
//! In a manager's process the manager publishes each durable map here. Elsewhere the map is
//! fetched at start, and when a request's header names a newer version. A header with a false
//! version costs one fetch in [`REFETCH_MS`].

use crate::clock;
use crate::join::chain;
use crate::peers::{PeerError, Peers};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;
use zonal_types::{CellId, Instant, MapVersion};
use zonal_wire::ManagerRequest;
use zonal_zonemap::{Fetch, FetchError, ZoneMap};

/// Least time between two fetches.
const REFETCH_MS: u64 = 50;

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
    /// The manager did not answer, or the answer was of no use.
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
}

/// The right to fetch; one thread has it at a time.
struct FetchTurn<'a>(&'a MapCache);

impl Drop for FetchTurn<'_> {
    fn drop(&mut self) {
        let fetching = self.0.fetching.lock();
        let mut fetching = fetching.unwrap_or_else(PoisonError::into_inner);
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
        }
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

    /// The newest map; fetches first where the sender's version `hint` is newer.
    pub fn at_least(&self, hint: MapVersion) -> Arc<ZoneMap> {
        let known = self.current();
        if hint <= known.version {
            return known;
        }
        if self.ask() == FetchOutcome::JustBefore && self.current().version < hint {
            // A fetch has just ended with a map older than the sender's. So a header with a false
            // version delays only its own request.
            std::thread::sleep(Duration::from_millis(REFETCH_MS));
            self.ask();
        }
        self.current()
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
        let Origin::Managers(peers) = &self.origin else {
            return FetchOutcome::Answered;
        };
        let before = self.current().version;
        let Some(_turn) = self.take_turn(before) else {
            return FetchOutcome::JustBefore;
        };
        let ask = |request: &ManagerRequest| {
            let known = self.current();
            peers.manager(&known, request).map_err(MapFetchError::Peer)
        };
        match Fetch::newer(self.current()).run(ask) {
            Ok(map) if map.cell == self.current().cell => self.publish(map),
            Ok(_other) => tracing::error!("the manager sent the zone map of another cell"),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the zone map cannot be refreshed");
                return FetchOutcome::Silent;
            }
        }
        FetchOutcome::Answered
    }

    /// Waits for a fetch in progress. `None` where one has just ended, or has brought a newer map
    /// than `before`.
    fn take_turn(&self, before: MapVersion) -> Option<FetchTurn<'_>> {
        let fetching = self.fetching.lock();
        let fetching = fetching.unwrap_or_else(PoisonError::into_inner);
        let free = self
            .fetched
            .wait_while(fetching, |fetching| fetching.is_under_way);
        let mut fetching = free.unwrap_or_else(PoisonError::into_inner);
        let is_recent = fetching
            .ended
            .is_some_and(|when| clock::instant().ms_since(when) < REFETCH_MS);
        if is_recent || self.current().version > before {
            return None;
        }
        fetching.is_under_way = true;
        Some(FetchTurn(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn only_newer_maps_are_published() {
        let cell = CellId([3; 16]);
        let cache = MapCache::here(cell);
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
        let turn = cache.take_turn(none).expect("nobody asks");
        assert!(cache.fetching.try_lock().is_ok(), "held over the network");
        std::thread::scope(|scope| {
            for _other in 0..4 {
                scope.spawn(|| {
                    let _turn = cache.take_turn(none);
                    assert!(has_ended.load(Ordering::SeqCst), "two ask at once");
                });
            }
            for _moment in 0..1_000 {
                std::thread::yield_now();
            }
            has_ended.store(true, Ordering::SeqCst);
            drop(turn);
        });
        while cache.take_turn(none).is_none() {
            std::thread::yield_now();
        }
    }
}
