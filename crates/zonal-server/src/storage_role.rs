//! The storage role: a target on its disk. Drives [`zonal_driver::storage`] with an engine and
//! segment files, and sends its replies.
//!
//! Lock order: `TargetDisk::checkpointing`, the target's mutex, then the engine's own. No segment
//! is touched under the mutex.

mod fill_threads;
mod host;

use crate::client_traffic::TrafficCounters;
use crate::config::StorageConfig;
use crate::map_cache::MapCache;
use crate::medium_health::MediumHealth;
use crate::peers::Peers;
use crate::rate_limited_log::RateLimit;
use fill_threads::FillThreads;
use host::{Payload, TargetDisk};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use zonal_disk::{DiskError, Engine, Segments};
pub(crate) use zonal_driver::storage::Refused;
use zonal_driver::storage::{NotAdmitted, ResyncRound, TargetDriver};
use zonal_driver::{NotReady, at_once};
use zonal_net::ReplyBuilder;
use zonal_object::{ObjectId, StorageTarget};
use zonal_types::{ErrorCode, HolderNumber, ShardId, TargetId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, StorageReply, StorageRequest};

/// The storage role.
pub struct StorageRole {
    driver: TargetDriver<TargetDisk>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) medium_health: MediumHealth,
    pub(crate) traffic: TrafficCounters,
    /// Files whose stale copies were filled here, and the bytes taken for that.
    mended: AtomicU64,
    filled_bytes: AtomicU64,
    /// Damaged blocks that were replaced by those of other copies.
    repaired: AtomicU64,
}

impl StorageRole {
    /// Starts an opened target.
    #[must_use]
    pub fn new(
        config: &StorageConfig,
        target: StorageTarget,
        engine: Arc<Engine>,
        segments: Arc<Segments>,
        (map, peers): (Arc<MapCache>, Arc<Peers>),
    ) -> Self {
        let host = TargetDisk {
            id: config.target,
            engine: Arc::clone(&engine),
            segments: Arc::clone(&segments),
            map,
            peers,
            checkpointing: Mutex::new(()),
            cannot_move: RateLimit::default(),
            damaged: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
        };
        Self {
            driver: TargetDriver::new(config.target, target, host),
            engine,
            segments,
            medium_health: MediumHealth::default(),
            traffic: TrafficCounters::default(),
            mended: AtomicU64::new(0),
            filled_bytes: AtomicU64::new(0),
            repaired: AtomicU64::new(0),
        }
    }

    /// The target's id.
    pub(crate) fn id(&self) -> TargetId {
        self.driver.id()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StorageTarget> {
        self.driver.lock()
    }

    /// The target's driver.
    #[cfg(test)]
    pub(crate) fn driver(&self) -> &TargetDriver<TargetDisk> {
        &self.driver
    }

    /// Answers a request.
    pub fn handle(
        &self,
        from: (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Result<(), ErrorCode> {
        let mut room = Payload(reply);
        let answer = at_once(self.driver.handle(from, request, payload, &mut room));
        let answer = answer.unwrap_or_else(|waits| Err(waited(waits).into()));
        match answer {
            Ok(message) => {
                if let StorageRequest::Fence { fences, .. } = request {
                    let (target_id, fences) = (self.id().0, fences.len());
                    tracing::info!(target_id, fences, "clients are fenced");
                }
                reply.message(&message);
                Ok(())
            }
            Err(NotAdmitted::Stale(newer)) => {
                reply.message(&newer);
                Err(ErrorCode::StaleEpoch)
            }
            Err(NotAdmitted::Refused(refused)) => {
                match refused.code {
                    ErrorCode::Io if self.is_healthy() => {
                        self.medium_health.medium(&refused.detail);
                    }
                    ErrorCode::Corrupt => self.medium_health.damage(&refused.detail),
                    _ => {}
                }
                reply.message(&StorageReply::Failed {
                    code: ErrorNumber(refused.code),
                    detail: refused.detail,
                });
                Err(refused.code)
            }
        }
    }

    /// Continues deletions that were begun before a restart.
    pub(crate) fn resume(&self) -> Result<(), Refused> {
        at_once(self.driver.resume()).unwrap_or_else(|waits| Err(waited(waits)))
    }

    /// Fills stale copies of a shard's files.
    pub(crate) fn resync(&self, shard: ShardId) -> Result<ResyncRound, Refused> {
        let round = at_once(self.driver.resync(shard, &FillThreads));
        let round = round.unwrap_or_else(|waits| Err(waited(waits)))?;
        self.mended.fetch_add(round.mended, Ordering::Relaxed);
        self.filled_bytes.fetch_add(round.bytes, Ordering::Relaxed);
        Ok(round)
    }

    /// Notes a damaged block that a scrub has found.
    pub(crate) fn note_damage(&self, object: ObjectId, offset: u64) {
        self.driver.note_damage(object, offset);
    }

    /// Replaces damaged blocks of files with copies. Returns how many.
    pub(crate) fn repair_damage(&self) -> u64 {
        let repaired = at_once(self.driver.repair_damage()).unwrap_or(0);
        self.repaired.fetch_add(repaired, Ordering::Relaxed);
        repaired
    }

    /// Moves pending blocks to segments, then makes a checkpoint of the index.
    pub(crate) fn checkpoint(&self) -> Result<(), DiskError> {
        at_once(self.driver.checkpoint()).unwrap_or_else(|waits| {
            let source = std::io::Error::other(waited(waits).detail);
            Err(DiskError::io("a checkpoint", source))
        })
    }

    /// Why it does not serve; `None` where it serves.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        self.driver.failure()
    }

    /// True where it serves.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.failure().is_none()
    }

    /// Gauges for `zonal status` and `/metrics`.
    #[must_use]
    pub fn gauges(&self) -> Vec<(String, u64)> {
        let (space, pending) = {
            let target = self.lock();
            (target.statfs(), target.pending_bytes())
        };
        let (stats, host) = (self.engine.stats(), self.driver.host());
        let overlay = self.engine.overlay_memory();
        let mut gauges = self.traffic.gauges(self.id());
        gauges.extend([
            ("target_total_bytes".into(), space.total),
            ("target_free_bytes".into(), space.free),
            ("target_objects".into(), space.objects),
            ("target_pending_bytes".into(), pending.0),
            ("target_pending_bytes_max".into(), pending.1),
            ("target_log_used_bytes".into(), stats.log_used),
            ("target_log_used_bytes_max".into(), stats.log_capacity),
            ("target_overlay_bytes".into(), overlay.0),
            ("target_overlay_bytes_max".into(), overlay.1),
            (
                "target_index_cache_bytes_max".into(),
                self.engine.index_cache_bytes(),
            ),
            ("target_checkpoints_total".into(), stats.checkpoints),
            ("target_flushes_total".into(), stats.flushes),
            (
                "target_damaged_blocks_total".into(),
                host.damaged.load(Ordering::Relaxed),
            ),
            (
                "target_index_damaged_blocks_total".into(),
                stats.damaged_blocks,
            ),
            (
                "target_read_errors_total".into(),
                host.unreadable.load(Ordering::Relaxed),
            ),
            (
                "target_mended_files_total".into(),
                self.mended.load(Ordering::Relaxed),
            ),
            (
                "target_filled_bytes_total".into(),
                self.filled_bytes.load(Ordering::Relaxed),
            ),
            (
                "target_repaired_blocks_total".into(),
                self.repaired.load(Ordering::Relaxed),
            ),
            ("target_healthy".into(), u64::from(self.is_healthy())),
        ]);
        gauges
    }

    /// Makes everything durable, at the end.
    ///
    /// # Errors
    /// Where the disk fails.
    pub fn finish(&self) -> Result<(), DiskError> {
        self.engine.sync_all()
    }
}

/// A call of [`TargetDisk`] was not ready when polled, which does not happen.
fn waited(waits: NotReady) -> Refused {
    debug_assert!(false, "{waits}");
    Refused::new(ErrorCode::Io, waits.to_string())
}
