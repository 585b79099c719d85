//! Host of a shard: clock, store, log, map and network, as the server and the simulator have them.

use std::future::Future;
use std::sync::Arc;

use zonal_meta::{JunctionChange, Now};
use zonal_types::{ErrorCode, Instant, KvChange, KvRead, MapVersion, ShardId, TargetId, ZoneId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

/// When a record must be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// At a later flush.
    Later,
    /// Before [`ShardHost::append`] returns.
    AtOnce,
}

/// What a [`super::ShardDriver`] runs on. No method may call the driver back, but from another
/// task.
pub trait ShardHost {
    /// The shard's ordered store.
    type Store: KvRead;

    /// The store, with all records that were appended.
    fn store(&self) -> &Self::Store;

    /// The time.
    fn now(&self) -> Now;

    /// Waits until then.
    fn sleep_until(&self, until: Instant) -> impl Future<Output = ()>;

    /// Random bits.
    ///
    /// # Errors
    /// Where the system has none yet.
    fn random(&self) -> Result<u64, ErrorCode>;

    /// The newest map that this process knows.
    fn map(&self) -> Arc<ZoneMap>;

    /// Asks the manager for a newer map than the one of version `known`.
    fn seek_map(&self, known: MapVersion) -> impl Future<Output = ()>;

    /// Has the stripe sets of a zone opened, where the manager is in this process.
    ///
    /// # Errors
    /// `NotOwner` where it is not; why the map cannot be changed.
    fn open_sets(&self, zone: ZoneId) -> Result<MetaReply, ErrorCode>;

    /// Whether the store serves.
    ///
    /// # Errors
    /// Why it does not.
    fn check_health(&self) -> Result<(), ErrorCode>;

    /// Whether the store has room for what a request may write; may wait for a checkpoint.
    ///
    /// # Errors
    /// `NoSpace` where there is none; others where the store fails.
    fn check_room(&self, request: &MetaRequest) -> Result<(), ErrorCode>;

    /// Whether the log has room for a record of the shard's own.
    fn has_reserve(&self) -> bool;

    /// Reads what the request begins with into the store's cache, where that pays.
    fn prefetch(&self, request: &MetaRequest);

    /// Appends one record, with the changes of the map's junctions. Called under the shard's mutex;
    /// the newer map, if any, is to be published outside of it.
    ///
    /// # Errors
    /// Where the log takes no record: the shard serves no more.
    fn append(
        &self,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        durability: Durability,
    ) -> Result<Option<Arc<ZoneMap>>, ErrorCode>;

    /// Makes all records durable that were appended.
    ///
    /// # Errors
    /// Where the medium fails.
    fn flush(&self) -> impl Future<Output = Result<(), ErrorCode>>;

    /// Makes a map durable and known.
    ///
    /// # Errors
    /// Where the medium fails.
    fn publish(&self, map: Arc<ZoneMap>) -> impl Future<Output = Result<(), ErrorCode>>;

    /// Asks another shard; what it says of stripe sets, the manager in this process may say. Runs
    /// to its end once begun.
    ///
    /// # Errors
    /// Where there is no answer.
    fn call_shard(
        &self,
        shard: ShardId,
        request: &MetaRequest,
    ) -> impl Future<Output = Result<MetaReply, ErrorCode>>;

    /// Makes calls that nobody waits for, after the reply. What fails is settled by housekeeping
    /// later.
    fn call_later(&self, calls: Vec<(ShardId, MetaRequest)>) -> impl Future<Output = ()>;

    /// Asks targets, side by side; a reply each, where one came.
    fn call_targets(
        &self,
        requests: Vec<(TargetId, StorageRequest)>,
    ) -> impl Future<Output = Vec<Option<StorageReply>>>;

    /// A directory was settled, or could not be; an inode or deletions could not be read.
    fn note(&self, note: ShardNote<'_>);
}

/// What a driver tells its host for the log.
#[derive(Debug)]
pub enum ShardNote<'a> {
    /// A session has ended, and a removed file that it had open cannot be read: it keeps its space.
    UnreadOrphan(ErrorCode),
    /// Deletions cannot be read; they are tried again.
    UnreadDeletions(ErrorCode),
    /// Directories without an entry cannot be read.
    UnreadDetached(ErrorCode),
    /// The root's shard did not say whether a directory has its entry; it is tried again.
    NotSettled(zonal_types::Ino),
    /// A directory without an entry was settled by this request, with this reply.
    Settled(zonal_types::Ino, &'a MetaReply),
}
