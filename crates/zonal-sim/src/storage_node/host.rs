//! The simulated host of a target's driver: a simulated disk, and the newest map that the process
//! knows.
//!
//! Where calls of the server's host block, other requests may run: before a commit, between parts
//! of a write or a read, in a checkpoint.

use crate::clock::VirtualClock;
use crate::disk::{BegunCheckpoint, VirtualDisk};
use crate::meta_node::peer_calls::PeerCalls;
use crate::planted_bugs::Plant;
use crate::rng::SimRng;
use async_lock::{Mutex, MutexGuard};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use zonal_driver::storage::{
    BackingSpace, CopyBytes, ReplyRoom, TargetHost, TargetNote, WriteFailure,
};
use zonal_object::EffectRecord;
use zonal_types::limits::TARGET_LEASE_MS;
use zonal_types::{ErrorCode, Instant, KvChange, KvRead, MapVersion, ShardId};
use zonal_wire::{MetaReply, MetaRequest, StorageRequest};
use zonal_zonemap::ZoneMap;

/// Commits, and accesses of a segment, that let other requests run first, of 1000.
const AT_COMMIT: u64 = 300;
const AT_SEGMENT: u64 = 50;
/// Longest pause, ns.
const PAUSE_MAX: u64 = 3_000_000;

/// A target's disk, with the process's other memory.
pub(super) struct SimDisk {
    pub clock: VirtualClock,
    pub disk: Rc<VirtualDisk>,
    pub line: PeerCalls,
    /// The newest map that this process knows.
    pub known: Rc<RefCell<Arc<ZoneMap>>>,
    pub rng: RefCell<SimRng>,
    pub plant: Plant,
    /// Whether other requests may run during a request.
    pub pauses: Cell<bool>,
    pub checkpointing: Mutex<()>,
    /// A checkpoint is due.
    pub is_due: Cell<bool>,
    /// Where files have copies: when the manager was last asked that answered.
    pub lease: Option<Rc<Cell<Option<Instant>>>>,
}

impl SimDisk {
    /// Lets other requests run for a while, in `of_1000` of 1000 cases.
    async fn pause(&self, of_1000: u64) {
        if !self.pauses.get() {
            return;
        }
        let nanos = {
            let mut rng = self.rng.borrow_mut();
            rng.chance(of_1000).then(|| rng.below(PAUSE_MAX))
        };
        if let Some(nanos) = nanos {
            self.clock.sleep(nanos).await;
        }
    }

    /// Learns of the newest map.
    pub(super) fn hear_of_map(&self) {
        self.known.replace(self.line.map.borrow().clone());
    }
}

impl TargetHost for SimDisk {
    type Error = ErrorCode;
    type Position = ();
    type Turn<'a> = MutexGuard<'a, ()>;
    type Begun<'a> = BegunCheckpoint;

    fn store(&self) -> &dyn KvRead {
        self.disk.as_ref()
    }

    fn is_cold(&self) -> bool {
        false
    }

    async fn wait_for_room(&self) -> Result<(), ErrorCode> {
        self.pause(AT_COMMIT).await;
        Ok(())
    }

    fn has_room(&self) -> bool {
        true
    }

    fn append(&self, record: EffectRecord) -> Result<(), ErrorCode> {
        self.disk.append(record, true);
        Ok(())
    }

    fn head(&self) {}

    async fn flush(&self, _upto: ()) -> Result<(), ErrorCode> {
        self.pause(AT_COMMIT).await;
        if self.plant != Plant::SyncDoesNothing {
            self.disk.sync();
        }
        Ok(())
    }

    fn verifier(&self) -> u64 {
        self.disk.power_losses()
    }

    async fn read_segment(
        &self,
        segment: u32,
        offset: u64,
        buffer: &mut [u8],
    ) -> Result<(), ErrorCode> {
        self.pause(AT_SEGMENT).await;
        self.disk.read_segment(segment, offset, buffer)
    }

    async fn write_segment(
        &self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), WriteFailure<ErrorCode>> {
        self.pause(AT_SEGMENT).await;
        self.disk.write_segment(segment, offset, bytes);
        Ok(())
    }

    fn space(&self) -> Result<BackingSpace, ErrorCode> {
        Ok(BackingSpace {
            made: 0,
            unmade: u64::MAX,
        })
    }

    fn failure(&self) -> Option<String> {
        None
    }

    fn map(&self) -> Arc<ZoneMap> {
        self.known.borrow().clone()
    }

    async fn map_at_least(&self, _version: MapVersion) -> Arc<ZoneMap> {
        self.hear_of_map();
        self.map()
    }

    async fn ask_shard(&self, shard: ShardId, request: &MetaRequest) -> Option<MetaReply> {
        match self.line.ask(shard, request).await {
            Ok(MetaReply::Fences { .. }) if self.plant == Plant::FencesAreForgotten => {
                let (fences, end) = (Vec::new(), true);
                Some(MetaReply::Fences { fences, end })
            }
            answered => answered.ok(),
        }
    }

    async fn read_copy(
        &self,
        map: &ZoneMap,
        request: &StorageRequest,
    ) -> Result<CopyBytes, ErrorCode> {
        let read = self.line.read_object(map, request).await;
        match self.plant {
            Plant::FillsAreEmpty => read.map(|_copied| CopyBytes::default()),
            _ => read,
        }
    }

    fn has_lease(&self) -> bool {
        let Some(lease) = &self.lease else {
            return true;
        };
        let now = self.line.now().instant;
        let is_kept = |sent: Instant| now.ms_since(sent) < TARGET_LEASE_MS;
        lease.get().is_some_and(is_kept)
    }

    fn calendar_us(&self) -> u64 {
        self.line.now().wall.micros()
    }

    fn request_checkpoint(&self) {
        self.is_due.set(true);
    }

    async fn checkpoint_turn(&self) -> MutexGuard<'_, ()> {
        self.checkpointing.lock().await
    }

    fn begin_checkpoint(&self, changes: Vec<KvChange>) -> BegunCheckpoint {
        self.is_due.set(false);
        self.disk.freeze(changes)
    }

    async fn commit_checkpoint(&self, begun: Self::Begun<'_>) -> Result<(), ErrorCode> {
        self.pause(AT_COMMIT).await;
        self.disk.checkpoint(&begun);
        Ok(())
    }

    fn note(&self, _note: TargetNote<'_>) {}
}

/// The payload of a reply. The client waits: bytes that were sent before a client was killed arrive
/// nevertheless.
#[derive(Default)]
pub(super) struct Payload(pub Vec<u8>);

impl ReplyRoom for Payload {
    fn room(&mut self, bytes: usize) -> &mut [u8] {
        self.0.clear();
        self.0.resize(bytes, 0);
        &mut self.0
    }

    fn cut(&mut self, bytes: usize) {
        self.0.truncate(bytes);
    }

    fn leave_shared(&mut self) {}

    fn is_sender_gone(&self) -> bool {
        false
    }
}
