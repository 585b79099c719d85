//! Host of a shard: an engine, the manager beside it, the map cache, and connections.
//!
//! Its calls block, so its futures are ready when first polled. A sleep is pending, and holds no
//! thread. So is a request that waits for its [permit](crate::permits) to call another shard, to
//! flush or to fetch the map.

use super::lost_clients::LostClients;
use super::store_failures::StoreFailures;
use crate::clock;
use crate::manager_role::{ManagerError, ManagerRole};
use crate::map_cache::MapCache;
use crate::medium_health::MediumHealth;
use crate::meta_calls::{DeferredCalls, call_target};
use crate::peers::Peers;
use crate::permits::Permits;
use crate::shard_log::{ShardLog, ShardLogError};
use crate::timers::Timers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use zonal_consensus::LogIndex;
use zonal_disk::{DiskError, Engine, LogRoom};
use zonal_driver::shard::{Durability, ShardHost, ShardNote};
use zonal_meta::{JunctionChange, Now};
use zonal_types::{
    ErrorCode, Instant, KvChange, MapVersion, PartitionId, ShardId, TargetId, ZoneId,
};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

/// Bytes that new names leave free on the disk below a shard's store, or inside its index. A
/// checkpoint needs them, also one of deletions.
const META_HEADROOM_BYTES: u64 = 64 << 20;
/// Approximate bytes of a new name with its inode; statfs derives the number of free names from it.
const NAME_BYTES: u64 = 1 << 10;
/// Targets called in parallel.
const TARGETS_AT_ONCE: usize = 32;

/// The environment of a shard in a server.
pub struct MetaHost {
    pub(super) id: ShardId,
    pub(super) hash_bits: u32,
    pub(super) log: ShardLog,
    pub(super) manager: Option<Arc<ManagerRole>>,
    pub(super) map: Arc<MapCache>,
    pub(super) peers: Arc<Peers>,
    pub(super) timers: Arc<Timers>,
    pub(super) later: DeferredCalls,
    pub(super) permits: Permits,
    /// An append to the log failed.
    pub(super) failed: AtomicBool,
    pub(super) medium_health: MediumHealth,
    pub(super) store_failed: StoreFailures,
    pub(super) lost: LostClients,
}

impl MetaHost {
    pub(super) fn engine(&self) -> &Engine {
        self.log.engine()
    }

    /// A thread of the shard has panicked: what it had under way is not known.
    pub(super) fn fail_after_panic(&self) {
        self.failed.store(true, Ordering::Release);
        self.log.fail(ErrorCode::Io);
    }

    pub(super) fn is_healthy(&self) -> bool {
        !self.failed.load(Ordering::Acquire) && !self.engine().failed()
    }

    /// True where any one record fits into the log besides those that wait for it.
    fn log_has_reserve(&self) -> bool {
        let stats = self.engine().stats();
        stats.log_used <= stats.log_capacity / 16 * 15
    }

    /// True where the shard refuses new names, for want of space.
    pub(super) fn is_full(&self) -> bool {
        self.engine().is_short(META_HEADROOM_BYTES)
    }

    /// Approximate number of new names that fit; 0 where they are refused.
    pub(super) fn names_left(&self) -> u64 {
        self.engine().room_left(META_HEADROOM_BYTES) / NAME_BYTES
    }

    fn try_append(
        &self,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        durability: Durability,
    ) -> Result<Option<Arc<ZoneMap>>, ManagerError> {
        let map = match &self.manager {
            Some(manager) if !junctions.is_empty() => {
                Some(manager.append_junctions(effect, junctions, durability)?)
            }
            _ => {
                self.log.append(effect, LogRoom::Reserve, durability)?;
                None
            }
        };
        Ok(map)
    }
}

impl ShardHost for MetaHost {
    type Store = Engine;
    type Position = LogIndex;

    fn store(&self) -> &Engine {
        self.engine()
    }

    fn now(&self) -> Now {
        Now {
            instant: clock::instant(),
            wall: clock::wall(),
        }
    }

    fn sleep_until(&self, until: Instant) -> impl Future<Output = ()> {
        self.timers.sleep_until(until)
    }

    fn random(&self) -> Result<u64, ErrorCode> {
        getrandom::u64().map_err(|_error| ErrorCode::NotReady)
    }

    fn map(&self) -> Arc<ZoneMap> {
        self.map.current()
    }

    async fn seek_map(&self, known: MapVersion) {
        let _permit = self.permits.fetch().await;
        self.map.seek(known);
    }

    fn open_sets(&self, zone: ZoneId) -> Result<MetaReply, ErrorCode> {
        let manager = self.manager.as_ref().ok_or(ErrorCode::NotOwner)?;
        manager.open_sets(zone).map_err(|error| error.code())
    }

    fn more_partitions(&self, shard: ShardId) -> Result<MetaReply, ErrorCode> {
        let manager = self.manager.as_ref().ok_or(ErrorCode::NotOwner)?;
        let added = manager.add_partitions(shard);
        added.map_err(|error| error.code())
    }

    fn give_partition(
        &self,
        partition: PartitionId,
        from: ShardId,
        to: ShardId,
    ) -> Result<MetaReply, ErrorCode> {
        let manager = self.manager.as_ref().ok_or(ErrorCode::NotOwner)?;
        let given = manager.give_partition(partition, from, to);
        given.map_err(|error| error.code())
    }

    fn check_health(&self) -> Result<(), ErrorCode> {
        if self.is_healthy() {
            Ok(())
        } else {
            Err(ErrorCode::Io)
        }
    }

    /// Checks the free space for a request. Reads need none. New names leave some for checkpoints;
    /// other changes, such as deletions, may use the log nearly to its end.
    fn check_room(&self, request: &MetaRequest) -> Result<(), ErrorCode> {
        let reads = matches!(request.tag(), 2 | 10..=20 | 60..=63 | 84 | 110 | 112);
        if reads {
            return Ok(());
        }
        if self.log.is_congested() {
            return Err(ErrorCode::Overloaded);
        }
        if request.adds() {
            if !self.engine().has_room(META_HEADROOM_BYTES) {
                return Err(ErrorCode::NoSpace);
            }
            return Ok(self.engine().wait_for_room()?);
        }
        match self.engine().wait_for_room() {
            Err(DiskError::LogFull) if self.log_has_reserve() => Ok(()),
            result => Ok(result?),
        }
    }

    fn has_reserve(&self) -> bool {
        !self.log.is_congested()
            && (self.engine().wait_for_room().is_ok()
                || (self.is_healthy() && self.log_has_reserve()))
    }

    fn prefetch(&self, request: &MetaRequest) {
        if self.engine().is_cold() {
            zonal_meta::prefetch(self.engine(), self.hash_bits, request);
        }
    }

    fn append(
        &self,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        durability: Durability,
    ) -> Result<Option<Arc<ZoneMap>>, ErrorCode> {
        let appended = self.try_append(effect, junctions, durability);
        appended.map_err(|error| {
            let code = match &error {
                ManagerError::Log(error) => error.code(),
                _ => ErrorCode::Io,
            };
            self.failed.store(true, Ordering::Release);
            if code != ErrorCode::NotOwner {
                tracing::error!(%error, "the shard stops serving: its log takes no record");
                self.medium_health.medium(&error.to_string());
            }
            code
        })
    }

    fn position(&self) -> LogIndex {
        self.log.position()
    }

    async fn settled(&self, upto: LogIndex) -> Result<(), ErrorCode> {
        self.log.settled(upto).await
    }

    async fn flush(&self) -> Result<(), ErrorCode> {
        let flushed = self.log.flush(&self.permits).await;
        flushed.map_err(|error| {
            if let ShardLogError::Disk(_) = error {
                self.medium_health.medium(&error.to_string());
            }
            error.code()
        })
    }

    async fn publish(&self, map: Arc<ZoneMap>) -> Result<(), ErrorCode> {
        let Some(manager) = &self.manager else {
            return Ok(());
        };
        manager.settle(map).map_err(|error| {
            tracing::error!(%error, "a junction cannot be made durable");
            self.failed.store(true, Ordering::Release);
            ErrorCode::Io
        })
    }

    async fn call_shard(
        &self,
        shard: ShardId,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        if let MetaRequest::OpenSets { zone } = request
            && self.manager.is_some()
        {
            return self.open_sets(*zone);
        }
        if let MetaRequest::FirstLevel { name } = request
            && let Some(ino) = self.peers.root.first_level_in_silence(name)
        {
            return Ok(MetaReply::Child { ino: Some(ino) });
        }
        let Some(_permit) = self.permits.call(shard, &self.timers).await else {
            return Err(ErrorCode::TimedOut);
        };
        self.peers.shard(&self.map, shard, request).map_err(|error| {
            tracing::warn!(%error, shard = shard.0, operation = request.name(), "a call to a shard failed");
            error.code()
        })
    }

    async fn call_later(&self, calls: Vec<(ShardId, MetaRequest)>) {
        self.later.add(calls);
    }

    async fn call_targets(
        &self,
        requests: Vec<(TargetId, StorageRequest)>,
    ) -> Vec<Option<StorageReply>> {
        let call = |(target, request): &(TargetId, StorageRequest)| {
            call_target(&self.peers, &self.map, *target, request)
        };
        if let [one] = requests.as_slice() {
            return vec![call(one)];
        }
        let mut replies = Vec::with_capacity(requests.len());
        for some in requests.chunks(TARGETS_AT_ONCE) {
            std::thread::scope(|scope| {
                let start = |of| {
                    let thread = std::thread::Builder::new().name("target".into());
                    thread.spawn_scoped(scope, move || call(of)).ok()
                };
                let started: Vec<_> = some.iter().map(start).collect();
                let joined = started.into_iter().map(|thread| thread?.join().ok()?);
                replies.extend(joined);
            });
        }
        replies
    }

    fn note(&self, note: ShardNote<'_>) {
        match note {
            ShardNote::UnreadOrphan(code) => {
                tracing::error!(%code, "a session has ended, and a removed file that it had open cannot be read: it keeps its space. \
                    Hint: zonal fsck --repair, in the stopped cell");
            }
            ShardNote::ClientLost(client) => self.lost.add(client),
            ShardNote::UnreadDeletions(code) => tracing::error!(%code, "deletions cannot be read"),
            ShardNote::UnreadDetached(code) => {
                tracing::error!(%code, "directories without an entry cannot be read");
            }
            ShardNote::NotSettled(ino) => tracing::warn!(%ino, "not settled"),
            ShardNote::Settled(ino, reply) => {
                tracing::info!(%ino, ?reply, "a directory is settled");
            }
        }
    }
}
