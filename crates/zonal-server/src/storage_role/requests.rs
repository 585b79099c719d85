//! Requests of clients: who asks, what is meant, the reply.

use super::changes::Asker;
use super::{Refused, Storage, named};
use zonal_net::ReplyBuilder;
use zonal_object::{Attempt, Delete, Edit, ObjectId, Sender};
use zonal_types::limits::FENCES_AT_ONCE_MAX;
use zonal_types::{ErrorCode, Fence, HolderNumber};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, StorageReply, StorageRequest};
use zonal_zonemap::{SlotClaim, SlotVerdict};

/// Ranges in one reply of `Map`.
const MAP_RANGES_MAX: u32 = 16_384;

/// Why a request is not carried out at all.
pub(crate) enum NotAdmitted {
    /// Its sender knows an older entry of the map: the newer one.
    Stale(StorageReply),
    /// Anything else.
    Refused(Refused),
}

impl From<Refused> for NotAdmitted {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl Storage {
    /// Answers a request.
    pub fn handle(
        &self,
        (header, holder): (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Result<(), ErrorCode> {
        let outcome = match self.admit(header, request) {
            Ok(()) => self.answer((header, holder), request, payload, reply),
            Err(NotAdmitted::Stale(newer)) => {
                reply.message(&newer);
                return Err(ErrorCode::StaleEpoch);
            }
            Err(NotAdmitted::Refused(refused)) => Err(refused),
        };
        match outcome {
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
                reply.message(&StorageReply::Failed {
                    code: ErrorNumber(refused.code),
                    detail: refused.detail,
                });
                Err(refused.code)
            }
        }
    }

    /// Is it one for this target as it is now?
    fn admit(&self, header: &Header, request: &StorageRequest) -> Result<(), NotAdmitted> {
        if !self.is_healthy() {
            return Err(Refused::new(
                ErrorCode::Io,
                format!(
                    "target {} does not serve until it is restarted: {}",
                    self.id,
                    self.failure().unwrap_or_default()
                ),
            )
            .into());
        }
        self.check_sender(header, request)?;
        refuse_conditions(request).map_err(Refused::from)?;
        Ok(())
    }

    fn answer(
        &self,
        (header, holder): (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Result<StorageReply, Refused> {
        self.refuse_fenced(sender(header, holder), request)?;
        if self.engine.is_cold() {
            self.prefetch(request, payload.len());
        }
        let is_gone = || reply.is_peer_gone();
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
                let asker = asker(header, holder, &is_gone);
                let length = u32::try_from(payload.len()).map_err(|_error| ErrorCode::Invalid)?;
                let (outcome, lsn) = self.write(object, asker, &[(*offset, length)], payload)?;
                sync.then(|| self.sync(lsn)).transpose()?;
                Ok(self.written(outcome))
            }
            StorageRequest::WriteRanges { object, ranges } => {
                let asker = asker(header, holder, &is_gone);
                let (outcome, _lsn) = self.write(object, asker, ranges, payload)?;
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
                let punch = Edit::punch(id, cut, *offset, *length)?;
                self.edit_range(punch, asker(header, holder, &is_gone))
                    .map(|outcome| self.written(outcome))
            }
            StorageRequest::Allocate {
                object,
                offset,
                length,
                zero,
            } => {
                let (id, cut) = named(object);
                let allocate = Edit::allocate(id, cut, *offset, *length, *zero)?;
                self.edit_range(allocate, asker(header, holder, &is_gone))
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
            StorageRequest::Fence { fences, .. } => self.fence(fences),
            StorageRequest::StatFs { .. } => self.statfs(),
            StorageRequest::Prepare { .. }
            | StorageRequest::Commit { .. }
            | StorageRequest::Abort { .. }
            | StorageRequest::Resolve { .. }
            | StorageRequest::MapExtents { .. }
            | StorageRequest::CommitExtents { .. } => Err(ErrorCode::NotSupported.into()),
        }
    }

    /// Refuses a client whose incarnation is over; what is asked of the whole target it may.
    fn refuse_fenced(&self, sender: Sender, request: &StorageRequest) -> Result<(), ErrorCode> {
        match request {
            StorageRequest::Sync { .. } | StorageRequest::StatFs { .. } => Ok(()),
            _ => self.lock().admit(sender),
        }
    }

    /// Fences clients, durably.
    pub(crate) fn fence(&self, fences: &[Fence]) -> Result<StorageReply, Refused> {
        if fences.len() > FENCES_AT_ONCE_MAX {
            return Err(ErrorCode::Invalid.into());
        }
        let lsn = {
            let mut target = self.lock_with_room()?;
            let record = target.fence(fences);
            self.append(record)?
        };
        self.sync(lsn)?;
        let fences = fences.len();
        tracing::info!(target_id = self.id.0, fences, "clients are fenced");
        Ok(StorageReply::Done)
    }

    /// Reads the index for a request before the target's mutex is taken.
    fn prefetch(&self, request: &StorageRequest, payload_bytes: usize) {
        let (object, ranges) = match request {
            StorageRequest::Read {
                object,
                offset,
                length,
            } => (object, vec![(*offset, u64::from(*length))]),
            StorageRequest::Write { object, offset, .. } => {
                (object, vec![(*offset, payload_bytes as u64)])
            }
            StorageRequest::WriteRanges { object, ranges } => {
                let wide = ranges.iter().map(|(at, length)| (*at, u64::from(*length)));
                (object, wide.collect())
            }
            StorageRequest::Truncate { object } | StorageRequest::Stat { object } => {
                (object, Vec::new())
            }
            _ => return,
        };
        zonal_object::prefetch(&*self.engine, named(object).0, &ranges);
    }

    /// Is this target meant, and does the sender know the slot by which it came as it is?
    pub(crate) fn check_sender(
        &self,
        header: &Header,
        request: &StorageRequest,
    ) -> Result<(), NotAdmitted> {
        if request.target() != self.id {
            return Err(Refused::new(
                ErrorCode::WrongTarget,
                format!("this is target {}", self.id),
            )
            .into());
        }
        let Some(object) = request.object() else {
            return Ok(());
        };
        let claim = SlotClaim {
            set: object.set,
            slot: object.slot,
            epoch: header.epoch,
            map_version: header.map_version,
        };
        let mut map = self.map.current();
        let mut verdict = map.judge_slot(self.id, claim);
        if verdict == SlotVerdict::Newer {
            map = self.map.at_least(header.map_version);
            verdict = map.judge_slot(self.id, claim);
        }
        match verdict {
            SlotVerdict::Current => Ok(()),
            SlotVerdict::Stale { target, epoch } => Err(NotAdmitted::Stale(StorageReply::Stale {
                map_version: map.version,
                set: object.set,
                slot: object.slot,
                target,
                epoch,
            })),
            SlotVerdict::Absent => Err(Refused::new(
                ErrorCode::WrongTarget,
                format!(
                    "slot {} of set {} is not target {}'s in map version {}",
                    object.slot, object.set, self.id, map.version
                ),
            )
            .into()),
            // It may be right: the manager does not give us so new a map.
            SlotVerdict::Newer => Err(Refused::from(ErrorCode::NotReady).into()),
        }
    }
}

fn sender(header: &Header, holder: HolderNumber) -> Sender {
    Sender {
        identity: header.identity,
        holder,
    }
}

fn asker<'a>(header: &Header, holder: HolderNumber, is_gone: &'a dyn Fn() -> bool) -> Asker<'a> {
    let attempt = Attempt {
        sender: sender(header, holder),
        number: header.sequence,
    };
    Asker { attempt, is_gone }
}

/// A conditional write, done as if it had no condition, would be silently wrong.
fn refuse_conditions(request: &StorageRequest) -> Result<(), ErrorCode> {
    match request {
        StorageRequest::Write {
            expected_version,
            txn,
            snap_epoch,
            ..
        } if (*expected_version, *txn, *snap_epoch) != (0, 0, 0) => Err(ErrorCode::NotSupported),
        _ => Ok(()),
    }
}
