//! The client of one cell: its state.

mod kernel_copies;
mod requests;
mod session_owner;

use crate::cell::unsynced_changes::CHANGES_MAX;
use crate::cell::{Call, Cell, ClientOptions};
use crate::file::unsynced_closed_files::{LEFT_BEHIND_MAX, UnsyncedClosedFiles};
use crate::file::{File, FileTable};
use crate::held_locks::LockState;
use crate::inode_cache::InodeCache;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::operation::Cancellation;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use zonal_types::limits::{LOCKS_MAX, OPENS_MAX, TRAFFIC_FILES_MAX};
use zonal_types::{ErrorCode, Ino, MapVersion};

/// The client at work for one operation. Methods that may wait are here.
pub type ClientCall<'a, N> = Call<'a, Client<N>>;

/// The client of one cell.
pub struct Client<N: Net> {
    cell: Cell<N>,
    pub(crate) files: FileTable<N>,
    pub(crate) locks: Mutex<LockState>,
    pub(crate) inode_cache: InodeCache,
    pub(crate) unsynced_closed_files: Mutex<UnsyncedClosedFiles>,
    pub(crate) dirty_bytes: AtomicUsize,
    /// Completed truncations of files that this client did not have open.
    pub(crate) truncations_by_name: AtomicU64,
    /// The highest number of an attempt.
    pub(crate) attempts: AtomicU32,
    dropper: OnceLock<Dropper>,
}

impl<N: Net> Deref for Client<N> {
    type Target = Cell<N>;

    fn deref(&self) -> &Cell<N> {
        &self.cell
    }
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
        let client = Self {
            cell: Cell::new(net, options),
            files: Mutex::new(BTreeMap::new()),
            locks: Mutex::default(),
            inode_cache: InodeCache::default(),
            unsynced_closed_files: Mutex::default(),
            dirty_bytes: AtomicUsize::new(0),
            truncations_by_name: AtomicU64::new(0),
            attempts: AtomicU32::new(0),
            dropper: OnceLock::new(),
        };
        client.begin().fetch_map(MapVersion(0)).await?;
        Ok(client)
    }

    /// Begins an operation for a waiting caller.
    pub fn begin(&self) -> ClientCall<'_, N> {
        Call::new(self, true, Cancellation::default())
    }

    /// Begins an operation of the client's own work, which waits its full deadline for silent
    /// servers.
    pub fn background(&self) -> ClientCall<'_, N> {
        self.background_until(&Cancellation::default())
    }

    /// As [`Self::background`], with a cancellation. One operation at a time waits under it.
    pub fn background_until(&self, cancellation: &Cancellation) -> ClientCall<'_, N> {
        Call::new(self, false, cancellation.clone())
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

    /// The file, if it is open or dirty here.
    #[must_use]
    pub fn file(&self, ino: Ino) -> Option<Arc<File<N>>> {
        lock(&self.files).get(&ino).cloned()
    }

    /// All files in the table.
    pub(crate) fn all_files(&self) -> Vec<Arc<File<N>>> {
        lock(&self.files).values().cloned().collect()
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
        let mut gauges = vec![
            (
                "open_files",
                self.open_files() as u64,
                shards * OPENS_MAX as u64,
            ),
            ("held_locks", locks as u64, shards * LOCKS_MAX as u64),
            (
                "left_behind",
                lock(&self.unsynced_closed_files).len() as u64,
                LEFT_BEHIND_MAX as u64,
            ),
            (
                "unflushed_changes",
                self.all_links()
                    .iter()
                    .map(|link| lock(&link.changes).len() as u64)
                    .max()
                    .unwrap_or(0),
                2 * CHANGES_MAX as u64,
            ),
            ("links", lock(&self.links).len() as u64, shards),
            (
                "longest_close_queue",
                closes as u64,
                shards * OPENS_MAX as u64,
            ),
        ];
        gauges.push((
            "traffic_files",
            self.traffic.reports.waiting_files() as u64,
            TRAFFIC_FILES_MAX as u64,
        ));
        gauges.extend(self.inode_cache.gauges());
        gauges
    }
}
