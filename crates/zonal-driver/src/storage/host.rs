//! What a target needs of where it runs.

use std::fmt::Display;
use std::future::Future;
use std::sync::Arc;
use zonal_object::{EffectRecord, ObjectId};
use zonal_types::{
    ClientId, ErrorCode, Fence, HolderNumber, KvChange, KvRead, MapVersion, ShardId, TargetId,
};
use zonal_zonemap::ZoneMap;

/// Why a segment did not take bytes.
#[derive(Debug)]
pub enum WriteFailure<E> {
    /// There is no space below for that segment.
    NoSpace(E),
    /// The medium takes no writes.
    Medium(E),
    /// The bytes or the place are at fault, and not the medium.
    Bytes(E),
}

/// Space of the file system below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Below {
    /// Bytes of segments that are made.
    pub made: u64,
    /// Bytes that further segments may take.
    pub unmade: u64,
}

/// What people are to hear of a target.
pub enum Note<'a> {
    /// Stored bytes cannot be read.
    Unreadable {
        /// Whose.
        object: ObjectId,
        /// The first byte of the object that is concerned.
        offset: u64,
        /// What the host said.
        error: &'a dyn Display,
    },
    /// Stored bytes are not what was stored.
    Damaged {
        /// Which.
        detail: &'a str,
    },
    /// Pending blocks stay pending: segments do not take them.
    CannotMove {
        /// What is in the way.
        why: &'a dyn Display,
    },
    /// It serves nothing until a restart.
    Stopped {
        /// What ended it.
        why: &'a str,
    },
}

/// Log, index, segments and map of a target.
///
/// Where calls give futures the host may let other requests run, or block.
pub trait TargetHost {
    /// What its disk says.
    type Error: Display + Into<ErrorCode>;
    /// A position in the log.
    type Position: Copy;
    /// The right to make a checkpoint, which one has at a time.
    type Turn<'a>
    where
        Self: 'a;
    /// A checkpoint that is begun.
    type Begun<'a>
    where
        Self: 'a;

    /// The index with what the log has changed.
    fn store(&self) -> &dyn KvRead;

    /// Whether reads of the index have missed its cache lately.
    fn is_cold(&self) -> bool;

    /// Returns when the log has room.
    ///
    /// # Errors
    /// Where no checkpoint makes any.
    fn wait_for_room(&self) -> impl Future<Output = Result<(), Self::Error>>;

    /// Whether any one record fits the log now. Under the target's mutex.
    fn has_room(&self) -> bool;

    /// Appends a record, in the critical section of the change. Durable over a kill of the process;
    /// without waiting for room.
    ///
    /// # Errors
    /// The log takes no record: the target is ahead of it.
    fn append(&self, record: EffectRecord) -> Result<Self::Position, Self::Error>;

    /// The position behind all records.
    fn head(&self) -> Self::Position;

    /// Returns when the records up to a position are durable, with all that was written to segments
    /// before.
    ///
    /// # Errors
    /// The flush that failed; nothing is promised after it.
    fn flush(&self, upto: Self::Position) -> impl Future<Output = Result<(), Self::Error>>;

    /// A number that changes where what was acknowledged and not flushed may be gone.
    fn verifier(&self) -> u64;

    /// Fills `buffer` from a segment that the index names.
    ///
    /// # Errors
    /// The medium does not give it.
    fn read_segment(
        &self,
        segment: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Writes to a segment, which is made where it is not there.
    ///
    /// # Errors
    /// See [`WriteFailure`].
    fn write_segment(
        &self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
    ) -> impl Future<Output = Result<(), WriteFailure<Self::Error>>>;

    /// Space below.
    ///
    /// # Errors
    /// The file system below does not tell.
    fn space(&self) -> Result<Below, Self::Error>;

    /// Why it takes no changes any more, where it does not.
    fn failure(&self) -> Option<String>;

    /// The newest map known here.
    fn map(&self) -> Arc<ZoneMap>;

    /// The same, asked for where a sender has a newer one.
    fn map_at_least(&self, version: MapVersion) -> impl Future<Output = Arc<ZoneMap>>;

    /// Asks a shard which clients are fenced here, behind this client and holder; true with the
    /// last. `None` where it does not say.
    fn fences_of(
        &self,
        shard: ShardId,
        target: TargetId,
        after: (ClientId, HolderNumber),
    ) -> impl Future<Output = Option<(Vec<Fence>, bool)>>;

    /// A checkpoint is due: one is made soon. Under the target's mutex.
    fn request_checkpoint(&self);

    /// Waits for the turn to make a checkpoint.
    fn checkpoint_turn(&self) -> impl Future<Output = Self::Turn<'_>>;

    /// Begins a checkpoint of the index as it is now, with changes that have no record. Under the
    /// target's mutex.
    fn begin_checkpoint(&self, changes: Vec<KvChange>) -> Self::Begun<'_>;

    /// Makes it durable; the log forgets its records.
    ///
    /// # Errors
    /// It failed: the next one covers it.
    fn commit_checkpoint(
        &self,
        begun: Self::Begun<'_>,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Counts and tells it.
    fn note(&self, note: Note<'_>);
}

/// Where a reply's payload is made, and who waits for it.
pub trait ReplyRoom {
    /// Makes a payload of `bytes` bytes and gives it out to be filled, all of it.
    fn room(&mut self, bytes: usize) -> &mut [u8];

    /// Cuts the payload.
    fn cut(&mut self, bytes: usize);

    /// From now on the payload is made where nobody else can change it.
    fn leave_shared(&mut self);

    /// Whether who asked has hung up: nobody waits for the reply.
    fn is_asker_gone(&self) -> bool;
}
