//! The client of one cell: its state and its options.

use crate::file::FileTable;
use crate::locks::LockState;
use crate::map::CachedMap;
use crate::net::Net;
use crate::session::{Links, lock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};
use zonal_types::limits::{
    LOCKS_MAX, OPENS_MAX, REQUEST_DEADLINE_MS, WRITE_BEHIND_AGE_MS, WRITE_BEHIND_BYTES_DEFAULT,
    WRITE_BEHIND_FILE_BYTES_MAX,
};
use zonal_types::{
    CellId, ClientId, ErrorCode, Incarnation, Ino, MapVersion, NodeId, ShardId, TraceId, ZoneId,
};
use zonal_wire::LockRange;

/// Options of a client.
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// The cell, where it is known; all zeros: the client takes it from the first map.
    pub cell: CellId,
    /// Addresses of managers.
    pub managers: Vec<String>,
    /// The zone of the mount: home of directories that it makes in the root.
    pub zone: ZoneId,
    /// The node of the mount, on which files of directories with the placement `node` lie; 0: none.
    pub node: NodeId,
    /// Random number that names this client in the whole cell.
    pub client: ClientId,
    /// Name for people, in lists of sessions.
    pub name: String,
    /// Whether the mount lists directories as the superuser, after it has checked the right of the
    /// user. False where its credential does not let it act for root.
    pub lists_as_root: bool,
    /// Whether the kernel may cache names and attributes under leases.
    pub cache: bool,
    /// How long the kernel may trust names and attributes without a lease, ms, because nobody else
    /// writes the mounted tree. Normally 0.
    pub exclusive_ms: u32,
    /// Deadline of a request, retries included, ms.
    pub deadline_ms: u64,
    /// Idle time after which the session at a shard ends where nothing is held there, ms.
    pub leave_idle_ms: u64,
    /// How long one attempt waits for its reply, ms.
    pub attempt_ms: u64,
    /// Bound of gathered writes of the whole mount, bytes.
    pub write_behind_bytes: usize,
    /// Bound of gathered writes of one file, bytes.
    pub write_behind_file_bytes: usize,
    /// Age at which gathered writes are flushed, ms.
    pub write_behind_age_ms: u64,
}

/// Longer than any lease that a shard grants, ms.
const LEAVE_IDLE_MS: u64 = 60_000;

impl ClientOptions {
    /// Default options for a mount in `zone` whose manager listens at `manager`.
    #[must_use]
    pub fn new(manager: &str, zone: ZoneId, client: ClientId) -> Self {
        Self {
            cell: CellId::default(),
            managers: vec![manager.to_owned()],
            zone,
            node: NodeId(0),
            client,
            name: String::new(),
            lists_as_root: true,
            cache: true,
            exclusive_ms: 0,
            deadline_ms: REQUEST_DEADLINE_MS,
            leave_idle_ms: LEAVE_IDLE_MS,
            attempt_ms: REQUEST_DEADLINE_MS,
            write_behind_bytes: WRITE_BEHIND_BYTES_DEFAULT,
            write_behind_file_bytes: WRITE_BEHIND_FILE_BYTES_MAX,
            write_behind_age_ms: WRITE_BEHIND_AGE_MS,
        }
    }
}

/// The client of one cell.
pub struct Client<N: Net> {
    pub(crate) net: N,
    pub(crate) options: ClientOptions,
    pub(crate) map: CachedMap,
    pub(crate) links: Links,
    pub(crate) files: FileTable<N>,
    pub(crate) locks: Mutex<LockState>,
    /// Versions that the kernel's pages of files show.
    pub(crate) page_versions: Mutex<crate::page_validity::PageVersions>,
    /// Attributes of removed inodes that may still be open.
    pub(crate) removed_attributes: Mutex<crate::removed_attributes::RemovedAttributes>,
    /// Attributes of directories after this client's own changes.
    pub(crate) parent_attributes: Mutex<crate::parent_attributes::ParentAttributes>,
    pub(crate) kept_listings: Mutex<crate::kept_listings::KeptListings>,
    pub(crate) readdir_prefetch: crate::readdir_prefetch::ReaddirPrefetch,
    /// Directories of which every name is known.
    pub(crate) complete_directories: Mutex<crate::complete_directories::CompleteDirectories>,
    pub(crate) unsynced_closed_files: Mutex<crate::sync::UnsyncedClosedFiles>,
    pub(crate) inline_cache: Mutex<crate::inline_cache::InlineCache>,
    pub(crate) access_times: Mutex<crate::access_times::Touches>,
    pub(crate) dirty_bytes: AtomicUsize,
    /// Writes in flight by target.
    pub(crate) writes_in_flight: crate::in_flight::WritesInFlight,
    pub(crate) silent_servers: crate::silent_servers::SilentServers,
    /// Completed truncations of files that this client did not have open.
    pub(crate) cuts_by_name: AtomicU64,
    /// Number of this client's incarnation.
    pub(crate) incarnation: AtomicU32,
    /// The highest number of an attempt.
    pub(crate) attempts: AtomicU32,
    traces: AtomicU64,
    caches: AtomicBool,
    dropper: OnceLock<Dropper>,
}

/// Drops everything cached of shards' names and attributes. True where no cached entry is used any
/// more.
type Dropper = Box<dyn Fn() -> bool + Send + Sync>;

impl<N: Net> Client<N> {
    /// Fetches the map and makes a client.
    ///
    /// # Errors
    /// `Unreachable` or `TimedOut` where no manager answers; the refusal of a manager.
    pub async fn connect(net: N, options: ClientOptions) -> Result<Self, ErrorCode> {
        let first_trace = net.random();
        let client = Self {
            net,
            map: CachedMap::new(options.cell),
            caches: AtomicBool::new(options.cache),
            options,
            links: Mutex::new(BTreeMap::new()),
            files: Mutex::new(BTreeMap::new()),
            locks: Mutex::default(),
            page_versions: Mutex::new(crate::page_validity::PageVersions::default()),
            removed_attributes: Mutex::default(),
            parent_attributes: Mutex::default(),
            kept_listings: Mutex::default(),
            readdir_prefetch: crate::readdir_prefetch::ReaddirPrefetch::default(),
            complete_directories: Mutex::default(),
            unsynced_closed_files: Mutex::default(),
            inline_cache: Mutex::default(),
            access_times: Mutex::default(),
            dirty_bytes: AtomicUsize::new(0),
            writes_in_flight: crate::in_flight::WritesInFlight::default(),
            silent_servers: crate::silent_servers::SilentServers::default(),
            cuts_by_name: AtomicU64::new(0),
            incarnation: AtomicU32::new(Incarnation::FIRST.0),
            attempts: AtomicU32::new(0),
            traces: AtomicU64::new(first_trace),
            dropper: OnceLock::new(),
        };
        client.begin().fetch_map(MapVersion(0)).await?;
        Ok(client)
    }

    /// The options of this client.
    #[must_use]
    pub fn options(&self) -> &ClientOptions {
        &self.options
    }

    /// Forbids caching: this kernel cannot drop cached entries on request.
    pub fn stop_caching(&self) {
        self.caches.store(false, Ordering::Relaxed);
    }

    /// Whether the kernel may cache.
    pub fn caches(&self) -> bool {
        self.caches.load(Ordering::Relaxed)
    }

    /// Sets how to drop everything that is cached. The client calls it after a restart of a shard
    /// and then tells the shard, which need not wait for the old leases. Only the first call
    /// counts.
    pub fn when_to_drop(&self, dropper: impl Fn() -> bool + Send + Sync + 'static) {
        let _ = self.dropper.set(Box::new(dropper));
    }

    /// Drops everything that is cached; true where nothing cached is used any more.
    pub(crate) fn drop_cached(&self) -> bool {
        self.dropper.get().is_some_and(|drop_all| drop_all())
    }

    /// The transport.
    #[must_use]
    pub fn net(&self) -> &N {
        &self.net
    }

    /// The trace of the next operation.
    pub(crate) fn next_trace(&self) -> TraceId {
        TraceId(self.traces.fetch_add(1, Ordering::Relaxed))
    }

    /// Locks that this client holds at a shard.
    pub(crate) fn locks_at(&self, shard: ShardId) -> Vec<(Ino, LockRange)> {
        let map = self.map();
        lock(&self.locks).held.of_inodes(|ino| {
            map.shard_of(ino.partition())
                .is_some_and(|known| known.id == shard)
        })
    }

    /// Bytes of gathered writes, for the gauge.
    #[must_use]
    pub fn dirty_bytes(&self) -> usize {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Number of files that are open or dirty, for the gauge.
    #[must_use]
    pub fn open_files(&self) -> usize {
        lock(&self.files).len()
    }

    /// Gauges of the client's memory: name, value, bound.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, u64, u64)> {
        let shards = self.map().shards.len() as u64;
        let locks = lock(&self.locks).held.len();
        let closes: usize = self
            .all_links()
            .iter()
            .map(|link| link.closes())
            .max()
            .unwrap_or(0);
        let (known_directories, known_names) = lock(&self.complete_directories).len();
        let (listed_ahead, known_beside) = self.readdir_prefetch.len();
        vec![
            (
                "open_files",
                self.open_files() as u64,
                shards * OPENS_MAX as u64,
            ),
            ("held_locks", locks as u64, shards * LOCKS_MAX as u64),
            (
                "seen_pages",
                lock(&self.page_versions).len() as u64,
                crate::page_validity::SEEN_MAX as u64,
            ),
            (
                "fresh_directories",
                lock(&self.parent_attributes).len() as u64,
                crate::parent_attributes::FRESH_MAX as u64,
            ),
            (
                "kept_listings",
                lock(&self.kept_listings).len() as u64,
                crate::kept_listings::LISTED_MAX as u64,
            ),
            (
                "listed_ahead",
                listed_ahead as u64,
                crate::readdir_prefetch::KEPT_MAX as u64,
            ),
            (
                "known_beside",
                known_beside as u64,
                crate::readdir_prefetch::BESIDE_MAX as u64,
            ),
            (
                "known_directories",
                known_directories as u64,
                crate::complete_directories::KNOWN_DIRECTORIES_MAX as u64,
            ),
            (
                "known_names",
                known_names as u64,
                crate::complete_directories::KNOWN_NAMES_MAX as u64,
            ),
            (
                "left_behind",
                lock(&self.unsynced_closed_files).len() as u64,
                crate::sync::LEFT_BEHIND_MAX as u64,
            ),
            (
                "small_files",
                lock(&self.inline_cache).len() as u64,
                crate::inline_cache::SMALL_MAX as u64,
            ),
            (
                "ghosts",
                lock(&self.removed_attributes).len() as u64,
                crate::removed_attributes::GHOSTS_MAX as u64,
            ),
            (
                "unflushed_changes",
                self.all_links()
                    .iter()
                    .map(|link| lock(&link.changes).len() as u64)
                    .max()
                    .unwrap_or(0),
                2 * crate::unsynced_changes::CHANGES_MAX as u64,
            ),
            ("links", lock(&self.links).len() as u64, shards),
            (
                "longest_close_queue",
                closes as u64,
                shards * OPENS_MAX as u64,
            ),
        ]
    }
}
