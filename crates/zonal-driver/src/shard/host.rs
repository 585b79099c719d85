//! Host of a shard: clock, store, log, map and network, as the server and the simulator provide
//! them.

use std::future::Future;
use std::sync::Arc;

use zonal_meta::{JunctionChange, LostClient, Now};
use zonal_types::{
    ErrorCode, Instant, KvChange, KvRead, MapVersion, PartitionId, ShardId, TargetId, ZoneId,
};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

/// When a record must be durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// At a later flush.
    Later,
    /// Before [`ShardHost::settled`] lets any reply leave that was decided after it.
    AtOnce,
}

/// Everything that a [`super::ShardDriver`] runs on. A method may call the driver back only from
/// another task.
pub trait ShardHost {
    /// The shard's ordered store.
    type Store: KvRead;
    /// A place in the shard's log.
    type Position: Copy;

    /// The store, with all records that were appended.
    fn store(&self) -> &Self::Store;

    /// The time.
    fn now(&self) -> Now;

    /// Waits until `until`.
    fn sleep_until(&self, until: Instant) -> impl Future<Output = ()>;

    /// Random bits.
    ///
    /// # Errors
    /// The system has none yet.
    fn random(&self) -> Result<u64, ErrorCode>;

    /// The newest map that this process knows.
    fn map(&self) -> Arc<ZoneMap>;

    /// Asks the manager for a newer map than version `known`.
    fn seek_map(&self, known: MapVersion) -> impl Future<Output = ()>;

    /// Opens the stripe sets of a zone, where the manager is in this process.
    ///
    /// # Errors
    /// `NotOwner` where the manager is elsewhere; the reason where the map cannot be changed.
    fn open_sets(&self, zone: ZoneId) -> Result<MetaReply, ErrorCode>;

    /// Gives a shard more partitions, where the manager is in this process.
    ///
    /// # Errors
    /// As [`Self::open_sets`].
    fn more_partitions(&self, shard: ShardId) -> Result<MetaReply, ErrorCode>;

    /// Gives a partition of one shard to another, where the manager is in this process.
    ///
    /// # Errors
    /// As [`Self::open_sets`].
    fn give_partition(
        &self,
        partition: PartitionId,
        from: ShardId,
        to: ShardId,
    ) -> Result<MetaReply, ErrorCode>;

    /// Checks that the store serves.
    ///
    /// # Errors
    /// The reason why it does not.
    fn check_health(&self) -> Result<(), ErrorCode>;

    /// Checks that the store has room for the records of a request; may wait for a checkpoint.
    ///
    /// # Errors
    /// `NoSpace` where there is none; others where the store fails.
    fn check_room(&self, request: &MetaRequest) -> Result<(), ErrorCode>;

    /// True where the log has room for a record of the shard's background work.
    fn has_reserve(&self) -> bool;

    /// Reads the keys that the request begins with into the store's cache, where that pays.
    fn prefetch(&self, request: &MetaRequest);

    /// Appends one record, with the changes of the map's junctions. Called under the shard's mutex;
    /// the caller publishes a returned map outside of it.
    ///
    /// # Errors
    /// The log takes no record: the shard serves no more.
    fn append(
        &self,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        durability: Durability,
    ) -> Result<Option<Arc<ZoneMap>>, ErrorCode>;

    /// The place of the last appended record. Called under the shard's mutex.
    fn position(&self) -> Self::Position;

    /// Waits until no failure of a server can take back the records up to this place, and this
    /// process alone decides for the shard. Replies that depend on them may leave then. A shard
    /// without other replicas is always so far.
    ///
    /// # Errors
    /// `NotOwner` where another process decides for the shard now.
    fn settled(&self, upto: Self::Position) -> impl Future<Output = Result<(), ErrorCode>>;

    /// Makes all appended records durable.
    ///
    /// # Errors
    /// The medium fails.
    fn flush(&self) -> impl Future<Output = Result<(), ErrorCode>>;

    /// Makes a map durable and known to this process.
    ///
    /// # Errors
    /// The medium fails.
    fn publish(&self, map: Arc<ZoneMap>) -> impl Future<Output = Result<(), ErrorCode>>;

    /// Calls another shard. A question about stripe sets may be answered by the manager in this
    /// process. A call that has begun runs to its end.
    ///
    /// # Errors
    /// There is no answer.
    fn call_shard(
        &self,
        shard: ShardId,
        request: &MetaRequest,
    ) -> impl Future<Output = Result<MetaReply, ErrorCode>>;

    /// Makes calls after the reply, for which nobody waits. Housekeeping settles failures later.
    fn call_later(&self, calls: Vec<(ShardId, MetaRequest)>) -> impl Future<Output = ()>;

    /// Calls targets in parallel; one reply each, `None` where none came.
    fn call_targets(
        &self,
        requests: Vec<(TargetId, StorageRequest)>,
    ) -> impl Future<Output = Vec<Option<StorageReply>>>;

    /// Counts and logs an event of the shard's background work.
    fn note(&self, note: ShardNote<'_>);
}

/// Events that a driver reports to its host's log.
#[derive(Debug)]
pub enum ShardNote<'a> {
    /// The session has ended, and a removed file that it had open cannot be read: the file keeps
    /// its space.
    UnreadOrphan(ErrorCode),
    /// A client sent nothing for the term of its session.
    ClientLost(LostClient),
    /// Deletions cannot be read; the driver retries.
    UnreadDeletions(ErrorCode),
    /// Directories without an entry cannot be read.
    UnreadDetached(ErrorCode),
    /// The root shard did not say whether a directory has its entry; the driver asks again.
    NotSettled(zonal_types::Ino),
    /// This request settled a directory without an entry, with this reply.
    Settled(zonal_types::Ino, &'a MetaReply),
}
