//! Host of a target in a server: an engine, segment files, and the map cache. Its calls block.

use crate::map_cache::MapCache;
use crate::peers::Peers;
use crate::rate_limited_log::RateLimit;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zonal_disk::{Checkpoint, DiskError, Engine, LogRoom, Lsn, Segments};
use zonal_driver::storage::{
    BackingSpace, CopyBytes, ReplyRoom, TargetHost, TargetNote, WriteFailure,
};
use zonal_net::ReplyBuilder;
use zonal_object::EffectRecord;
use zonal_types::{ErrorCode, KvChange, KvRead, MapVersion, ShardId, TargetId};
use zonal_wire::{MetaReply, MetaRequest, StorageReply, StorageRequest};
use zonal_zonemap::ZoneMap;

/// The disk of a target.
pub(crate) struct TargetDisk {
    pub(super) id: TargetId,
    pub(super) engine: Arc<Engine>,
    pub(super) segments: Arc<Segments>,
    pub(super) map: Arc<MapCache>,
    pub(super) peers: Arc<Peers>,
    /// Held during a checkpoint.
    pub(super) checkpointing: Mutex<()>,
    /// Rate limit of the message that pending blocks cannot be moved.
    pub(super) cannot_move: RateLimit,
    pub(super) damaged: AtomicU64,
    pub(super) unreadable: AtomicU64,
}

impl TargetHost for TargetDisk {
    type Error = DiskError;
    type Position = Lsn;
    type Turn<'a> = MutexGuard<'a, ()>;
    type Begun<'a> = Checkpoint<'a>;

    fn store(&self) -> &dyn KvRead {
        &*self.engine
    }

    fn is_cold(&self) -> bool {
        self.engine.is_cold()
    }

    async fn wait_for_room(&self) -> Result<(), DiskError> {
        self.engine.wait_for_room()
    }

    fn has_room(&self) -> bool {
        let stats = self.engine.stats();
        stats.log_used <= stats.log_capacity / 16 * 13
    }

    fn append(&self, record: EffectRecord) -> Result<Lsn, DiskError> {
        self.engine
            .append_with(record.changes, &record.note, LogRoom::Reserve)
    }

    fn head(&self) -> Lsn {
        self.engine.head()
    }

    async fn flush(&self, upto: Lsn) -> Result<(), DiskError> {
        self.engine.sync(upto)
    }

    fn verifier(&self) -> u64 {
        self.engine.verifier()
    }

    async fn read_segment(
        &self,
        segment: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), DiskError> {
        let read = self.segments.read_at(segment, offset, buffer);
        read.map_err(|error| match error {
            // The index names the range, so it has to exist.
            DiskError::Range(what) => DiskError::Corrupt(what),
            other => other,
        })
    }

    async fn write_segment(
        &self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WriteFailure<DiskError>> {
        let written = self.segments.write_at(segment, offset, bytes);
        written.map_err(|error| match &error {
            DiskError::NoSpace(_) => WriteFailure::NoSpace(error),
            // EFAULT is about the client's lent memory, not about the medium.
            DiskError::Io { source, .. } if Errno::from_io_error(source) != Some(Errno::FAULT) => {
                WriteFailure::Medium(error)
            }
            _ => WriteFailure::Bytes(error),
        })
    }

    fn space(&self) -> Result<BackingSpace, DiskError> {
        let space = self.segments.space()?;
        Ok(BackingSpace {
            made: space.made,
            unmade: space.unmade,
        })
    }

    fn failure(&self) -> Option<String> {
        self.engine.failure().map(str::to_owned)
    }

    fn has_lease(&self) -> bool {
        self.map.has_lease()
    }

    fn map(&self) -> Arc<ZoneMap> {
        self.map.current()
    }

    async fn map_at_least(&self, version: MapVersion) -> Arc<ZoneMap> {
        self.map.at_least(version)
    }

    async fn ask_shard(&self, shard: ShardId, request: &MetaRequest) -> Option<MetaReply> {
        let asked = self.peers.shard(&self.map, shard, request);
        // Where it does not answer, its server may have come up elsewhere.
        asked.inspect_err(|_error| self.map.refresh()).ok()
    }

    async fn read_copy(
        &self,
        map: &ZoneMap,
        request: &StorageRequest,
    ) -> Result<CopyBytes, ErrorCode> {
        let read = self.peers.read_object(map, request);
        let (reply, payload) = read.map_err(|error| error.code())?;
        match reply {
            StorageReply::Read { order, .. } => Ok(CopyBytes {
                bytes: payload,
                order,
            }),
            StorageReply::Failed { code, .. } => Err(code.0),
            StorageReply::Stale { .. } => Err(ErrorCode::StaleEpoch),
            _other => Err(ErrorCode::Protocol),
        }
    }

    fn calendar_us(&self) -> u64 {
        crate::clock::wall().micros()
    }

    fn request_checkpoint(&self) {
        self.engine.request_checkpoint();
    }

    async fn checkpoint_turn(&self) -> MutexGuard<'_, ()> {
        let turn = self.checkpointing.lock();
        turn.unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_checkpoint(&self, changes: Vec<KvChange>) -> Checkpoint<'_> {
        self.engine.apply_unlogged(changes);
        self.engine.begin_checkpoint()
    }

    async fn commit_checkpoint(&self, begun: Self::Begun<'_>) -> Result<(), DiskError> {
        begun.commit(&mut || Ok(()))
    }

    fn note(&self, note: TargetNote<'_>) {
        let target_id = self.id.0;
        match note {
            TargetNote::Unreadable {
                object,
                offset,
                error,
            } => {
                self.unreadable.fetch_add(1, Ordering::Relaxed);
                tracing::error!(target_id, %object, offset, %error, "stored data cannot be read");
            }
            TargetNote::Damaged { detail } => {
                self.damaged.fetch_add(1, Ordering::Relaxed);
                tracing::error!(target_id, detail, "stored data is damaged");
            }
            TargetNote::CannotMove { why } if self.cannot_move.is_due() => {
                tracing::warn!(target_id, %why, "small writes cannot be moved to segments");
            }
            TargetNote::CannotMove { .. } => {}
            TargetNote::Stopped { why } => {
                tracing::error!(target_id, why, "the target stops serving");
            }
        }
    }
}

/// The payload of a reply, in the room that a client lent or in memory of the connection.
pub(super) struct Payload<'a>(pub(super) &'a mut ReplyBuilder);

impl ReplyRoom for Payload<'_> {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        self.0.payload_mut(bytes)
    }

    fn cut(&mut self, bytes: usize) {
        self.0.truncate_payload(bytes);
    }

    fn leave_shared(&mut self) {
        self.0.leave_room();
    }

    fn is_sender_gone(&self) -> bool {
        self.0.is_peer_gone()
    }
}
