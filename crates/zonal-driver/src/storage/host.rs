//! Host of a target: log, index, segments, map and network.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use zonal_object::{EffectRecord, ObjectId};
use zonal_types::{ErrorCode, KvChange, KvRead, MapVersion, ShardId};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};
use zonal_zonemap::ZoneMap;

/// The reason why a segment did not take bytes.
#[derive(Debug)]
pub enum WriteFailure<E> {
    /// The file system below has no space for that segment.
    NoSpace(E),
    /// The medium takes no writes.
    Medium(E),
    /// The bytes or the place are wrong; the medium is not at fault.
    Bytes(E),
}

/// Space of the file system that holds the segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackingSpace {
    /// Bytes of segments that exist.
    pub made: u64,
    /// Bytes that further segments may take.
    pub unmade: u64,
}

/// Events that a target reports to people.
pub enum TargetNote<'a> {
    /// Stored bytes cannot be read.
    Unreadable {
        /// The object.
        object: ObjectId,
        /// First byte of the object that cannot be read.
        offset: u64,
        /// The host's error.
        error: &'a dyn Display,
    },
    /// Stored bytes differ from their checksum.
    Damaged {
        /// Object and place.
        detail: &'a str,
    },
    /// Segments take no bytes: pending blocks stay pending.
    CannotMove {
        /// The reason.
        why: &'a dyn Display,
    },
    /// The target serves nothing until a restart.
    Stopped {
        /// The failure that ended it.
        why: &'a str,
    },
}

/// Log, index, segments and map of a target.
///
/// A method that returns a future may let other requests run, or block.
pub trait TargetHost {
    /// The error of its disk.
    type Error: Display + Into<ErrorCode>;
    /// A position in the log.
    type Position: Copy;
    /// The right to make a checkpoint, which one request has at a time.
    type Turn<'a>
    where
        Self: 'a;
    /// A checkpoint that has begun.
    type Begun<'a>
    where
        Self: 'a;

    /// The index with the log's changes applied.
    fn store(&self) -> &dyn KvRead;

    /// True where reads of the index have missed its cache lately.
    fn is_cold(&self) -> bool;

    /// Returns when the log has room.
    ///
    /// # Errors
    /// No checkpoint makes room.
    fn wait_for_room(&self) -> impl Future<Output = Result<(), Self::Error>>;

    /// True where any one record fits the log now. Called under the target's mutex.
    fn has_room(&self) -> bool;

    /// Appends a record in the critical section of the change, without waiting for room. Survives a
    /// kill of the process once it returns.
    ///
    /// # Errors
    /// The log takes no record: the target is ahead of it.
    fn append(&self, record: EffectRecord) -> Result<Self::Position, Self::Error>;

    /// The position behind all records.
    fn head(&self) -> Self::Position;

    /// Returns when the records up to `upto` are durable, with all segment writes that came before.
    ///
    /// # Errors
    /// The failure of the flush; nothing is promised after it.
    fn flush(&self, upto: Self::Position) -> impl Future<Output = Result<(), Self::Error>>;

    /// A number that changes whenever acknowledged writes that were not flushed may be lost.
    fn verifier(&self) -> u64;

    /// Fills `buffer` from a segment that the index names.
    ///
    /// # Errors
    /// The medium does not return the bytes.
    fn read_segment(
        &self,
        segment: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Writes to a segment, and creates it where it does not exist.
    ///
    /// # Errors
    /// See [`WriteFailure`].
    fn write_segment(
        &self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
    ) -> impl Future<Output = Result<(), WriteFailure<Self::Error>>>;

    /// Space of the file system below.
    ///
    /// # Errors
    /// The file system does not tell.
    fn space(&self) -> Result<BackingSpace, Self::Error>;

    /// The reason why the host takes no changes any more, where it does not.
    fn failure(&self) -> Option<String>;

    /// True while the target may serve files with copies: it is taken out only after the lease. The
    /// map known here is as new as the manager's answer that gave the lease.
    fn has_lease(&self) -> bool;

    /// The newest map known here.
    fn map(&self) -> Arc<ZoneMap>;

    /// The newest map known here; fetches a newer one where `version` is newer.
    fn map_at_least(&self, version: MapVersion) -> impl Future<Output = Arc<ZoneMap>>;

    /// Asks a shard; `None` where it does not answer.
    fn ask_shard(
        &self,
        shard: ShardId,
        request: &MetaRequest,
    ) -> impl Future<Output = Option<MetaReply>>;

    /// Reads an object of another target, by the slots of this map. Its target needs its lease. The
    /// bytes end where the object ends.
    ///
    /// # Errors
    /// The target's error, or that it does not answer.
    fn read_copy(
        &self,
        map: &ZoneMap,
        request: &StorageRequest,
    ) -> impl Future<Output = Result<CopyBytes, ErrorCode>>;

    /// The calendar, us since 1970.
    fn calendar_us(&self) -> u64;

    /// Asks for a checkpoint soon. Called under the target's mutex.
    fn request_checkpoint(&self);

    /// Waits for the turn to make a checkpoint.
    fn checkpoint_turn(&self) -> impl Future<Output = Self::Turn<'_>>;

    /// Begins a checkpoint of the index as it is now, with changes that have no record. Called
    /// under the target's mutex.
    fn begin_checkpoint(&self, changes: Vec<KvChange>) -> Self::Begun<'_>;

    /// Makes a checkpoint durable; the log drops the records that it covers.
    ///
    /// # Errors
    /// It failed: the next one covers the same records.
    fn commit_checkpoint(
        &self,
        begun: Self::Begun<'_>,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Counts and logs an event.
    fn note(&self, note: TargetNote<'_>);
}

/// Bytes of another copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CopyBytes {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// The highest order of a change of these bytes.
    pub order: u64,
}

/// The buffer in which a reply's payload is made, and the connection that waits for it.
pub trait ReplyRoom {
    /// Makes a payload of `bytes` bytes and returns it; the caller fills all of it.
    fn room(&mut self, bytes: usize) -> &mut [u8];

    /// Shortens the payload to `bytes`.
    fn cut(&mut self, bytes: usize);

    /// From now on makes the payload in memory that no other process can change.
    fn leave_shared(&mut self);

    /// True where the sender has hung up: nobody waits for the reply.
    fn is_sender_gone(&self) -> bool;
}
