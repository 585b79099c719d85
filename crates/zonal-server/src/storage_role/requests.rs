//! Requests of clients: who asks, what is meant, the reply.

use super::changes::Asker;
use super::{Refused, Storage, named};
use zonal_net::ReplyBuilder;
use zonal_object::{Attempt, Delete, Edit, ObjectId, Sender};
use zonal_types::limits::FENCES_AT_ONCE_MAX;
use zonal_types::{Epoch, ErrorCode, HolderNumber, TargetId};
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{Header, StorageReply, StorageRequest};

/// Ranges in one reply of `Map`.
const MAP_RANGES_MAX: u32 = 16_384;

/// Slots in one refusal of an epoch.
const STALE_SLOTS_MAX: usize = 16_384;

impl Storage {
    /// Answers a request.
    pub fn handle(
        &self,
        (header, holder): (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Result<(), ErrorCode> {
        match self.answer((header, holder), request, payload, reply) {
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

    /// Is it one for this target as it is now?
    fn admit(&self, header: &Header, request: &StorageRequest) -> Result<(), Refused> {
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
        refuse_conditions(request)?;
        Ok(())
    }

    fn answer(
        &self,
        (header, holder): (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut ReplyBuilder,
    ) -> Result<StorageReply, Refused> {
        self.admit(header, request)?;
        let is_about_target = matches!(
            request,
            StorageRequest::Sync { .. } | StorageRequest::StatFs { .. }
        );
        if !is_about_target {
            self.lock().admit(sender(header, holder))?;
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
            StorageRequest::Fence { fences, .. } => {
                if fences.len() > FENCES_AT_ONCE_MAX {
                    return Err(ErrorCode::Invalid.into());
                }
                let lsn = {
                    let mut target = self.lock_with_room()?;
                    let record = target.fence(fences);
                    self.append(record)?
                };
                self.sync(lsn)?;
                tracing::info!(
                    target_id = self.id.0,
                    fences = fences.len(),
                    "clients are fenced"
                );
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

fn target_of(request: &StorageRequest) -> TargetId {
    match request {
        StorageRequest::Read { object, .. }
        | StorageRequest::Write { object, .. }
        | StorageRequest::WriteRanges { object, .. }
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
        | StorageRequest::Fence { target, .. }
        | StorageRequest::StatFs { target } => *target,
    }
}
