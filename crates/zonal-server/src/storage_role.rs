//! A target on its disk: drives the core [`Target`] with an engine and segment files.
//!
//! A request plans under the target's mutex, reads and writes segments outside of it, and commits with the append of
//! its record under it. Checksums are computed outside. The bytes of a read go from the page cache to the reply's
//! buffer and from there to the socket.
//!
//! Invariants: records are appended in the order in which the target changed; a plan that took space is committed or
//! aborted; once an append failed, nothing is served until a restart (the target is ahead of its log).
//! Lock order: `Storage::checkpointing`, `Storage::target`, then the engine's own. No segment is touched under the mutex.

use crate::config::StorageConfig;
use crate::map_cache::MapCache;
use crate::seldom::Seldom;
use crate::storage_io;
use crate::trouble::Trouble;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use zonal_disk::engine::Room;
use zonal_disk::{DiskError, Engine, Lsn, Segments};
use zonal_net::{PayloadBuf, ReplyBuilder};
use zonal_object::{
    Committed, Cut, Delete, DeleteStep, Edit, ObjectId, Outcome, Planned, Record, Step, Target,
    WritePlan, WriteRequest,
};
use zonal_types::limits::{PAYLOAD_BYTES_MAX, STORAGE_IO_BYTES_MAX};
use zonal_types::{Epoch, ErrorCode, TargetId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, ObjectRef, StorageReply, StorageRequest};

/// How often a step is tried again when its blocks move away under it. Each retry means that another one went on.
const RETRIES: usize = 100;
/// How often a write that finds no space looks for it again.
const SPACE_TRIES: usize = 6;
/// Ranges in one reply of `Map`.
const MAP_RANGES_MAX: u32 = 16_384;
/// Slots in one refusal of an epoch.
const STALE_SLOTS_MAX: usize = 16_384;

/// Why a request failed, with words for the reply.
pub(crate) struct Refused {
    pub code: ErrorCode,
    pub detail: String,
}

impl From<ErrorCode> for Refused {
    fn from(code: ErrorCode) -> Self {
        Self {
            code,
            detail: String::new(),
        }
    }
}

impl From<DiskError> for Refused {
    fn from(error: DiskError) -> Self {
        Self {
            code: error.code(),
            detail: error.to_string(),
        }
    }
}

/// The storage role.
pub struct Storage {
    id: TargetId,
    pub(crate) target: Mutex<Target>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) segments: Arc<Segments>,
    /// Held over a checkpoint. Before `target`.
    pub(crate) checkpointing: Mutex<()>,
    map: Arc<MapCache>,
    /// Why it does not serve any more.
    failed: OnceLock<String>,
    /// That pending blocks stay pending.
    pub(crate) cannot_move: Seldom,
    damaged: AtomicU64,
    unreadable: AtomicU64,
    pub(crate) trouble: Trouble,
}

impl Storage {
    /// Puts an opened target to work.
    #[must_use]
    pub fn new(
        config: &StorageConfig,
        target: Target,
        engine: Arc<Engine>,
        segments: Arc<Segments>,
        map: Arc<MapCache>,
    ) -> Self {
        Self {
            id: config.target,
            target: Mutex::new(target),
            engine,
            segments,
            checkpointing: Mutex::new(()),
            map,
            failed: OnceLock::new(),
            cannot_move: Seldom::default(),
            damaged: AtomicU64::new(0),
            unreadable: AtomicU64::new(0),
            trouble: Trouble::default(),
        }
    }

    /// Which target it is.
    pub(crate) fn id(&self) -> TargetId {
        self.id
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Target> {
        self.target.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends in the critical section of the change; a failure ends service.
    pub(crate) fn append(&self, record: Record) -> Result<Lsn, DiskError> {
        self.engine
            .append_with(record.changes, &record.note, Room::Reserve)
            .inspect_err(|error| self.stop_serving(&format!("its log takes no record: {error}")))
    }

    /// The target, when there is room in the log for any one record: an append under the mutex must not wait for a
    /// checkpoint, which needs the mutex.
    fn lock_with_room(&self) -> Result<MutexGuard<'_, Target>, DiskError> {
        loop {
            self.engine.wait_for_room()?;
            let target = self.lock();
            let stats = self.engine.stats();
            if stats.log_used <= stats.log_capacity / 16 * 13 {
                return Ok(target);
            }
        }
    }

    /// Ends service until a restart.
    fn stop_serving(&self, why: &str) {
        if self.failed.set(why.to_owned()).is_ok() {
            tracing::error!(target_id = self.id.0, why, "the target stops serving");
        }
    }

    /// Why it does not serve, where it does not.
    #[must_use]
    pub fn failure(&self) -> Option<String> {
        let engine = self.engine.failure();
        self.failed
            .get()
            .map(String::as_str)
            .or(engine)
            .map(str::to_owned)
    }

    /// Whether it serves.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.failed.get().is_none() && !self.engine.failed()
    }

    /// Makes everything written durable. The first failure is told in the log, with what becomes of the target.
    fn sync(&self, lsn: Lsn) -> Result<(), Refused> {
        self.engine.sync(lsn).map_err(|error| {
            self.stop_serving(self.engine.failure().unwrap_or("a flush failed"));
            error.into()
        })
    }

    /// Writes to a segment. A medium that takes no writes is not asked to acknowledge any more.
    pub(crate) fn write_segment(
        &self,
        segment: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DiskError> {
        let written = self.segments.write_at(segment, offset, bytes);
        match &written {
            Err(DiskError::NoSpace(_)) => {
                // Space in segments that are there is used up first.
                self.lock().limit_segments(Some(segment));
            }
            Err(error @ DiskError::Io { .. }) => {
                self.stop_serving(&format!("the medium takes no writes: {error}"));
            }
            _ => {}
        }
        written
    }

    /// Reads what a plan wants; a failure of the medium is told with target, object and offset.
    fn fill(&self, plan: &zonal_object::ReadPlan, buffer: &mut [u8]) -> Result<(), Refused> {
        storage_io::fill_from(&self.segments, plan, buffer).map_err(|(at, error)| {
            let (object, offset) = (plan.object(), plan.offset_of(at));
            self.unreadable.fetch_add(1, Ordering::Relaxed);
            tracing::error!(target_id = self.id.0, %object, offset, %error, "stored data cannot be read");
            Refused {
                code: error.code(),
                detail: format!("object {object} byte {offset}: {error}"),
            }
        })
    }

    /// Figures for people.
    #[must_use]
    pub fn gauges(&self) -> Vec<(String, u64)> {
        let (space, pending) = {
            let target = self.lock();
            (target.statfs(), target.pending_bytes())
        };
        let stats = self.engine.stats();
        let overlay = self.engine.overlay_memory();
        vec![
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
                self.damaged.load(Ordering::Relaxed),
            ),
            (
                "target_index_damaged_blocks_total".into(),
                stats.damaged_blocks,
            ),
            (
                "target_read_errors_total".into(),
                self.unreadable.load(Ordering::Relaxed),
            ),
            ("target_healthy".into(), u64::from(self.is_healthy())),
        ]
    }

    /// Bytes in all and free, as a client may use them.
    fn statfs(&self) -> Result<StorageReply, Refused> {
        let below = self.segments.space()?;
        let (space, is_limited) = {
            let mut target = self.lock();
            if below.unmade > 0 {
                target.limit_segments(None);
            }
            (target.statfs(), target.usable_segments().is_some())
        };
        if is_limited {
            return Ok(StorageReply::StatFs {
                total: space.total,
                free: space.free,
                objects: space.objects,
            });
        }
        let unmade = space.total.saturating_sub(below.made);
        // Where the file system below is fuller than the capacity allows for.
        let missing = unmade.saturating_sub(below.unmade);
        Ok(StorageReply::StatFs {
            total: space.total,
            free: space.free.saturating_sub(missing),
            objects: space.objects,
        })
    }

    /// Answers a request.
    pub fn handle(
        &self,
        header: &Header,
        request: &StorageRequest,
        payload: &mut PayloadBuf,
        reply: &mut ReplyBuilder,
    ) -> Result<(), ErrorCode> {
        match self.answer(header, request, payload, reply) {
            Ok(message) => {
                reply.message(&message);
                Ok(())
            }
            Err(refused) => {
                match refused.code {
                    ErrorCode::Io if self.is_healthy() => self.trouble.medium(&refused.detail),
                    ErrorCode::Corrupt => self.trouble.damage(&refused.detail),
                    _ => {}
                }
                reply.truncate_payload(0);
                reply.message(&if refused.code == ErrorCode::StaleEpoch {
                    self.stale()
                } else {
                    StorageReply::Failed {
                        code: ErrorNumber(refused.code),
                        detail: refused.detail,
                    }
                });
                Err(refused.code)
            }
        }
    }

    fn answer(
        &self,
        header: &Header,
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Result<StorageReply, Refused> {
        if !self.is_healthy() {
            return Err(Refused {
                code: ErrorCode::Io,
                detail: format!(
                    "target {} does not serve until it is restarted: {}",
                    self.id,
                    self.failure().unwrap_or_default()
                ),
            });
        }
        self.check_sender(header, target_of(request))?;
        match request {
            StorageRequest::Read {
                object,
                offset,
                length,
            } => self.read(object, *offset, *length, reply),
            StorageRequest::Write {
                object,
                offset,
                sync,
                ..
            } => {
                let (outcome, lsn) = self.write(object, *offset, payload)?;
                if *sync {
                    self.sync(lsn)?;
                }
                Ok(self.written(outcome))
            }
            StorageRequest::Truncate { object } => {
                let (id, cut) = named(object);
                self.edit(Edit::truncate(id, cut))
                    .map(|outcome| self.written(outcome))
            }
            StorageRequest::Punch {
                object,
                offset,
                length,
            } => {
                let (id, cut) = named(object);
                self.edit(Edit::punch(id, cut, *offset, *length)?)
                    .map(|outcome| self.written(outcome))
            }
            StorageRequest::Allocate {
                object,
                offset,
                length,
                zero,
            } => {
                let (id, cut) = named(object);
                self.edit(Edit::allocate(id, cut, *offset, *length, *zero)?)
                    .map(|outcome| self.written(outcome))
            }
            StorageRequest::Map {
                object,
                offset,
                end,
                limit,
            } => {
                let (id, cut) = named(object);
                let limit = (*limit).min(MAP_RANGES_MAX) as usize;
                let map = self
                    .lock()
                    .map(&*self.engine, id, cut, *offset, *end, limit)?;
                Ok(StorageReply::Map {
                    ranges: map.ranges,
                    object_bytes: map.object_bytes,
                })
            }
            StorageRequest::Stat { object } => {
                let stat = self.lock().stat(&*self.engine, named(object).0)?;
                Ok(StorageReply::Stat {
                    object_bytes: stat.object_bytes,
                    allocated: stat.allocated,
                    truncate_seq: stat.truncate_seq,
                })
            }
            StorageRequest::Sync { .. } => {
                self.sync(self.engine.head())?;
                let verifier = self.engine.verifier();
                Ok(StorageReply::Synced { verifier })
            }
            StorageRequest::Delete { objects, .. } => {
                let ids = objects.iter().map(|(data_id, column)| ObjectId {
                    data_id: *data_id,
                    column: *column,
                });
                self.delete(Delete::new(ids.collect()))?;
                Ok(StorageReply::Done)
            }
            StorageRequest::StatFs { .. } => self.statfs(),
            StorageRequest::Prepare { .. }
            | StorageRequest::Commit { .. }
            | StorageRequest::Abort { .. }
            | StorageRequest::Resolve { .. }
            | StorageRequest::MapExtents { .. }
            | StorageRequest::CommitExtents { .. } => Err(ErrorCode::NotSupported.into()),
        }
    }

    /// Is this target meant, and does the sender know the slot's last change? Which slot a request came by is not in
    /// it, so an epoch is refused where no slot of this target has it.
    pub(crate) fn check_sender(&self, header: &Header, meant: TargetId) -> Result<(), Refused> {
        if meant != self.id {
            return Err(Refused {
                code: ErrorCode::WrongTarget,
                detail: format!("this is target {}", self.id),
            });
        }
        if header.epoch == Epoch(0) {
            return Ok(());
        }
        let Some(newest) = self.epochs(header)? else {
            return Ok(());
        };
        Err(Refused {
            code: ErrorCode::StaleEpoch,
            detail: format!(
                "slot epoch {newest}, map version {}",
                self.map.current().version
            ),
        })
    }

    /// What a sender with an epoch that no slot has must know.
    fn stale(&self) -> StorageReply {
        let map = self.map.current();
        let slots = map.sets.iter().flat_map(|set| {
            let numbered = set.slots.iter().zip(0_u16..);
            numbered.map(|(slot, number)| (set.id, number, slot.target, slot.slot_epoch))
        });
        StorageReply::Stale {
            map_version: map.version,
            slots: slots
                .filter(|(_, _, target, _)| *target == self.id)
                .take(STALE_SLOTS_MAX)
                .collect(),
        }
    }

    /// `None` where the epoch is a current one; else the newest.
    fn epochs(&self, header: &Header) -> Result<Option<Epoch>, Refused> {
        for map in [self.map.current(), self.map.at_least(header.map_version)] {
            let slots = map.sets.iter().flat_map(|set| &set.slots);
            let mut epochs: Vec<Epoch> = slots
                .filter(|slot| slot.target == self.id)
                .map(|slot| slot.slot_epoch)
                .collect();
            epochs.sort_unstable();
            if epochs.contains(&header.epoch) {
                return Ok(None);
            }
            if header.map_version <= map.version {
                return Ok(Some(epochs.last().copied().unwrap_or(Epoch(0))));
            }
        }
        // The sender knows a newer map than the manager gives us: it may be right.
        Err(ErrorCode::NotReady.into())
    }

    fn read(
        &self,
        object: &ObjectRef,
        offset: u64,
        length: u32,
        reply: &mut ReplyBuilder,
    ) -> Result<StorageReply, Refused> {
        let (id, cut) = named(object);
        let length = length as usize;
        if length > STORAGE_IO_BYTES_MAX {
            return Err(ErrorCode::Invalid.into());
        }
        let mut before = None;
        loop {
            let plan = self
                .lock()
                .plan_read(&*self.engine, id, cut, offset, length)?;
            if before.as_ref() == Some(&plan) {
                return Err(self.damaged(&plan));
            }
            let object_bytes = plan.object_bytes();
            // A ragged range of the longest length takes more than a payload holds; it is copied once.
            if plan.buffer_len() > PAYLOAD_BYTES_MAX {
                let mut buffer = vec![0; plan.buffer_len()];
                self.fill(&plan, &mut buffer)?;
                if let Ok(range) = plan.finish(&mut buffer) {
                    reply
                        .payload_mut(range.len())
                        .copy_from_slice(&buffer[range]);
                    return Ok(StorageReply::Read { object_bytes });
                }
            } else {
                let buffer = reply.payload_mut(plan.buffer_len());
                self.fill(&plan, buffer)?;
                if let Ok(range) = plan.finish(buffer) {
                    let count = range.len();
                    if range.start > 0 {
                        buffer.copy_within(range, 0);
                    }
                    reply.truncate_payload(count);
                    return Ok(StorageReply::Read { object_bytes });
                }
            }
            before = Some(plan);
        }
    }

    /// The same plan failed twice: tells which block.
    fn damaged(&self, plan: &zonal_object::ReadPlan) -> Refused {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        let mut buffer = vec![0; plan.buffer_len()];
        let detail = match storage_io::fill(&self.segments, plan, &mut buffer) {
            Err(error) => error.to_string(),
            Ok(()) => match plan.finish(&mut buffer) {
                Err(damage) => damage.to_string(),
                Ok(_) => "a read failed its checksum twice, then passed".into(),
            },
        };
        tracing::error!(target_id = self.id.0, detail, "stored data is damaged");
        Refused {
            code: ErrorCode::Corrupt,
            detail,
        }
    }

    /// Runs `attempt` again after a checkpoint, or among the segments that there are, where that may help.
    fn with_space<T>(&self, mut attempt: impl FnMut() -> Result<T, Refused>) -> Result<T, Refused> {
        for _ in 0..SPACE_TRIES {
            let seen = self.engine.stats().checkpoints;
            let limit = self.lock().usable_segments();
            let refused = match attempt() {
                Err(refused) => refused,
                done => return done,
            };
            match refused.code {
                ErrorCode::NoSpace if self.reach_changed(limit)? => continue,
                ErrorCode::NoSpace if self.lock().reclaimable() > 0 => {}
                ErrorCode::Overloaded => {}
                _ => return Err(refused),
            }
            storage_io::checkpoint_after(self, seen)?;
        }
        attempt().map_err(|refused| match refused.code {
            // Small writes that cannot go anywhere.
            ErrorCode::Overloaded if self.lock().usable_segments().is_some() => {
                ErrorCode::NoSpace.into()
            }
            _ => refused,
        })
    }

    /// Whether other segments can be had than those up to `before`: fewer, as was just found, or more again.
    fn reach_changed(&self, before: Option<u32>) -> Result<bool, DiskError> {
        if self.lock().usable_segments() != before {
            return Ok(true);
        }
        let is_lifted = before.is_some() && self.segments.space()?.unmade > 0;
        if is_lifted {
            self.lock().limit_segments(None);
        }
        Ok(is_lifted)
    }

    pub(crate) fn write(
        &self,
        object: &ObjectRef,
        offset: u64,
        payload: &[u8],
    ) -> Result<(Outcome, Lsn), Refused> {
        let (id, cut) = named(object);
        let request = WriteRequest {
            object: id,
            cut,
            offset,
            length: payload.len(),
        };
        self.with_space(|| self.try_write(request, payload))
    }

    fn try_write(&self, request: WriteRequest, payload: &[u8]) -> Result<(Outcome, Lsn), Refused> {
        let mut plan = loop {
            // A statement of its own: the guard must be gone before the edit takes the lock.
            let planned = self.lock().plan_write(&*self.engine, request)?;
            match planned {
                Planned::Ready(plan) => break plan,
                Planned::CutFirst(mut edit) => self.run_edit(&mut edit).map(drop)?,
            }
        };
        let result = self.carry_out(&mut plan, payload);
        if result.is_err() {
            self.lock().abort_write(&mut plan);
        }
        result
    }

    fn carry_out(&self, plan: &mut WritePlan, payload: &[u8]) -> Result<(Outcome, Lsn), Refused> {
        for write in plan.writes() {
            let bytes = payload.get(write.payload).ok_or(ErrorCode::Invalid)?;
            self.write_segment(write.segment, write.offset, bytes)?;
        }
        plan.checksum(payload);
        for _ in 0..RETRIES {
            if let Some(old) = plan.old_blocks() {
                let mut buffer = vec![0; old.buffer_len()];
                self.fill(old, &mut buffer)?;
                if let Err(damage) = plan.supply(&mut buffer) {
                    if self.lock().refresh_write(&*self.engine, plan)? {
                        continue;
                    }
                    return Err(self.damaged_base(&damage));
                }
            }
            let mut target = self.lock_with_room()?;
            match target.commit_write(&*self.engine, plan, payload)? {
                Committed::Done { record, outcome } => {
                    let lsn = self.append(record)?;
                    storage_io::ask_for_checkpoint(self, &target);
                    return Ok((outcome, lsn));
                }
                Committed::Again => {}
            }
        }
        Err(ErrorCode::Overloaded.into())
    }

    fn damaged_base(&self, damage: &zonal_object::Damage) -> Refused {
        self.damaged.fetch_add(1, Ordering::Relaxed);
        tracing::error!(target_id = self.id.0, %damage, "stored data is damaged");
        Refused {
            code: damage.code(),
            detail: damage.to_string(),
        }
    }

    /// An edit goes on where it stopped, so one that ran into a bound is not begun anew.
    pub(crate) fn edit(&self, mut edit: Edit) -> Result<Outcome, Refused> {
        self.with_space(|| self.run_edit(&mut edit))
    }

    fn run_edit(&self, edit: &mut Edit) -> Result<Outcome, Refused> {
        let mut damage = None;
        loop {
            let mut target = self.lock_with_room()?;
            match target.edit_step(&*self.engine, edit)? {
                Step::Done(outcome) => return Ok(outcome),
                Step::Log { record, done } => {
                    self.append(record)?;
                    if let Some(outcome) = done {
                        storage_io::ask_for_checkpoint(self, &target);
                        return Ok(outcome);
                    }
                    damage = None;
                }
                Step::Read => {
                    drop(target);
                    let Some(old) = edit.old_blocks().cloned() else {
                        continue;
                    };
                    let mut buffer = vec![0; old.buffer_len()];
                    self.fill(&old, &mut buffer)?;
                    if let Err(found) = edit.supply(&mut buffer) {
                        if damage.as_ref() == Some(&old) {
                            return Err(self.damaged_base(&found));
                        }
                        damage = Some(old);
                    }
                }
            }
        }
    }

    pub(crate) fn delete(&self, mut delete: Delete) -> Result<(), Refused> {
        loop {
            let mut target = self.lock_with_room()?;
            match target.delete_step(&*self.engine, &mut delete)? {
                DeleteStep::Log(record) => {
                    self.append(record)?;
                    storage_io::ask_for_checkpoint(self, &target);
                }
                DeleteStep::Again => {}
                DeleteStep::Done => return Ok(()),
            }
        }
    }

    fn written(&self, outcome: Outcome) -> StorageReply {
        StorageReply::Written {
            allocated_delta: outcome.allocated_delta,
            object_bytes: outcome.object_bytes,
            verifier: self.engine.verifier(),
        }
    }

    /// Everything durable, at the end.
    ///
    /// # Errors
    /// Where the disk fails.
    pub fn finish(&self) -> Result<(), DiskError> {
        self.engine.sync_all()
    }
}

fn named(object: &ObjectRef) -> (ObjectId, Cut) {
    let id = ObjectId {
        data_id: object.data_id,
        column: object.column,
    };
    let cut = Cut {
        seq: object.truncate_seq,
        bytes: object.truncate_bytes,
    };
    (id, cut)
}

fn target_of(request: &StorageRequest) -> TargetId {
    match request {
        StorageRequest::Read { object, .. }
        | StorageRequest::Write { object, .. }
        | StorageRequest::Truncate { object }
        | StorageRequest::Punch { object, .. }
        | StorageRequest::Allocate { object, .. }
        | StorageRequest::Map { object, .. }
        | StorageRequest::Stat { object }
        | StorageRequest::Prepare { object, .. }
        | StorageRequest::Commit { object, .. }
        | StorageRequest::Abort { object, .. }
        | StorageRequest::Resolve { object, .. }
        | StorageRequest::MapExtents { object, .. }
        | StorageRequest::CommitExtents { object, .. } => object.target,
        StorageRequest::Sync { target }
        | StorageRequest::Delete { target, .. }
        | StorageRequest::StatFs { target } => *target,
    }
}
