//! Requests: checks the sender, runs the operation on the target, makes the reply.

use super::{NotAdmitted, Refused, ReplyRoom, TargetDriver, TargetHost};
use zonal_object::{ChangeAttempt, ChangeOutcome, Delete, Edit, ObjectId, Sender, Truncation};
use zonal_types::limits::{FENCES_AT_ONCE_MAX, ORDER_AHEAD_US_MAX};
use zonal_types::{ErrorCode, Fence, HolderNumber};
use zonal_wire::{Header, ObjectRef, StorageReply, StorageRequest};

/// Ranges in one reply of `Map`.
const MAP_RANGES_MAX: u32 = 16_384;

/// The sender of a change of a range.
#[derive(Clone, Copy)]
pub struct ChangeSender<'a> {
    /// The attempt, by which repeats are recognised.
    pub attempt: ChangeAttempt,
    /// True where the change must not be made any more. The sender has hung up, and nobody waits
    /// for it. Or the slot has changed: the object may have left, and its bytes may be deleted.
    pub is_gone: &'a dyn Fn() -> bool,
}

impl<'a> ChangeSender<'a> {
    /// The target itself, which fills a copy. `is_overtaken`: a client has changed the same bytes.
    /// `order`: the highest one of the bytes.
    pub(super) fn filling(is_overtaken: &'a dyn Fn() -> bool, order: u64) -> Self {
        let attempt = ChangeAttempt {
            order,
            is_fill: true,
            ..ChangeAttempt::default()
        };
        Self {
            attempt,
            is_gone: is_overtaken,
        }
    }

    /// The last check before a commit.
    pub(super) fn check(self) -> Result<(), Refused> {
        if (self.is_gone)() {
            // A sender that lives retries: a server that stops also ends its connections.
            let why = "the sender has hung up, or the slot has changed";
            return Err(Refused::new(ErrorCode::NotReady, why));
        }
        Ok(())
    }
}

impl<H: TargetHost> TargetDriver<H> {
    /// Answers a request. `reply` gets the payload; a failure has none.
    ///
    /// # Errors
    /// The request is refused, or failed.
    pub async fn handle(
        &self,
        from: (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut impl ReplyRoom,
    ) -> Result<StorageReply, NotAdmitted> {
        self.admit(from.0, request).await?;
        let answer = self.answer(from, request, payload, reply).await;
        answer.map_err(NotAdmitted::Refused)
    }

    /// Carries out a request that [`Self::admit`] lets pass.
    ///
    /// # Errors
    /// It failed; the reply's payload is cut off.
    pub async fn answer(
        &self,
        from: (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut impl ReplyRoom,
    ) -> Result<StorageReply, Refused> {
        let mut answer = self.carry_out(from, request, payload, reply).await;
        if answer.is_ok() && shows_contents(request) {
            let checked = self.check_again(from.0, request);
            answer = checked.and(answer);
        }
        answer.inspect_err(|_refused| reply.cut(0))
    }

    async fn carry_out(
        &self,
        (header, holder): (&Header, HolderNumber),
        request: &StorageRequest,
        payload: &[u8],
        reply: &mut impl ReplyRoom,
    ) -> Result<StorageReply, Refused> {
        let sender = Sender {
            identity: header.identity,
            holder,
        };
        self.fetch_fences(request).await?;
        self.refuse_fenced(sender, request)?;
        if self.host.is_cold() {
            self.prefetch(request, payload.len());
        }
        match request {
            StorageRequest::Read {
                object,
                offset,
                length,
            } => self.read(object, *offset, *length, reply).await,
            StorageRequest::Truncate { object } => self.truncate(header, request, object).await,
            StorageRequest::Map {
                object,
                offset,
                end,
                limit,
            } => self.map(object, (*offset, *end), *limit),
            StorageRequest::Stat { object } => self.stat(object),
            StorageRequest::Sync { .. } => {
                self.flush(self.host.head()).await?;
                let verifier = self.host.verifier();
                Ok(StorageReply::Synced { verifier })
            }
            StorageRequest::Delete { objects, .. } => {
                let ids = objects.iter().map(|(data_id, column)| ObjectId {
                    data_id: *data_id,
                    column: *column,
                });
                self.delete(Delete::new(ids.collect())).await?;
                Ok(StorageReply::Done)
            }
            StorageRequest::Fence { fences, .. } => self.fence(fences).await,
            StorageRequest::StatFs { .. } => self.statfs(),
            StorageRequest::Write { .. }
            | StorageRequest::WriteRanges { .. }
            | StorageRequest::Punch { .. }
            | StorageRequest::Allocate { .. } => {
                let attempt = ChangeAttempt {
                    sender,
                    number: header.sequence,
                    order: header.order,
                    is_fill: false,
                };
                let is_gone = &|| reply.is_sender_gone() || self.has_moved(header, request);
                let sender = ChangeSender { attempt, is_gone };
                self.change_in_order(sender, request, payload).await
            }
            StorageRequest::Prepare { .. }
            | StorageRequest::Commit { .. }
            | StorageRequest::Abort { .. }
            | StorageRequest::Resolve { .. }
            | StorageRequest::MapExtents { .. }
            | StorageRequest::CommitExtents { .. } => Err(ErrorCode::NotSupported.into()),
        }
    }

    async fn truncate(
        &self,
        header: &Header,
        request: &StorageRequest,
        object: &ObjectRef,
    ) -> Result<StorageReply, Refused> {
        let (id, truncation) = named(object);
        let has_moved = || self.has_moved(header, request);
        let sender = ChangeSender {
            attempt: ChangeAttempt::default(),
            is_gone: &has_moved,
        };
        let outcome = self.edit(Edit::truncate(id, truncation), sender).await?;
        Ok(self.written(outcome))
    }

    /// Carries out changes of a range. One that its order refuses gets the order that it needs.
    async fn change_in_order(
        &self,
        sender: ChangeSender<'_>,
        request: &StorageRequest,
        payload: &[u8],
    ) -> Result<StorageReply, Refused> {
        let order = sender.attempt.order;
        let now = if order > 0 {
            self.host.calendar_us()
        } else {
            0
        };
        if order > now.saturating_add(ORDER_AHEAD_US_MAX) {
            return Ok(StorageReply::Overtaken { order: now });
        }
        match (
            self.change_range(sender, request, payload).await,
            request.object(),
        ) {
            (Err(refused), Some(object)) if refused.code == ErrorCode::Overtaken => {
                let id = named(object).0;
                let order = self.lock().order_of(self.host.store(), id)?;
                Ok(StorageReply::Overtaken { order })
            }
            (changed, _) => changed,
        }
    }

    /// Carries out changes of a range, which are numbered by attempt.
    async fn change_range(
        &self,
        sender: ChangeSender<'_>,
        request: &StorageRequest,
        payload: &[u8],
    ) -> Result<StorageReply, Refused> {
        let outcome = match request {
            StorageRequest::Write {
                object,
                offset,
                sync,
                ..
            } => {
                let length = u32::try_from(payload.len()).map_err(|_error| ErrorCode::Invalid)?;
                let range = [(*offset, length)];
                let (outcome, behind) = self.write(object, sender, &range, payload).await?;
                if *sync {
                    self.flush(behind).await?;
                }
                outcome
            }
            StorageRequest::WriteRanges { object, ranges } => {
                self.write(object, sender, ranges, payload).await?.0
            }
            StorageRequest::Punch {
                object,
                offset,
                length,
            } => {
                let (id, truncation) = named(object);
                let punch = Edit::punch(id, truncation, *offset, *length)?;
                self.edit_range(punch, sender).await?
            }
            StorageRequest::Allocate {
                object,
                offset,
                length,
                zero,
            } => {
                let (id, truncation) = named(object);
                let allocate = Edit::allocate(id, truncation, *offset, *length, *zero)?;
                self.edit_range(allocate, sender).await?
            }
            _other => return Err(ErrorCode::NotSupported.into()),
        };
        Ok(self.written(outcome))
    }

    fn written(&self, outcome: ChangeOutcome) -> StorageReply {
        StorageReply::Written {
            allocated_delta: outcome.allocated_delta,
            object_bytes: outcome.object_bytes,
            verifier: self.host.verifier(),
        }
    }

    fn map(
        &self,
        object: &ObjectRef,
        (offset, end): (u64, u64),
        limit: u32,
    ) -> Result<StorageReply, Refused> {
        let (id, truncation) = named(object);
        let limit = limit.min(MAP_RANGES_MAX) as usize;
        let target = self.lock();
        let map = target.map(self.host.store(), id, truncation, offset, end, limit)?;
        Ok(StorageReply::Map {
            ranges: map.ranges,
            object_bytes: map.object_bytes,
        })
    }

    fn stat(&self, object: &ObjectRef) -> Result<StorageReply, Refused> {
        let stat = self.lock().stat(self.host.store(), named(object).0)?;
        Ok(StorageReply::Stat {
            object_bytes: stat.object_bytes,
            allocated: stat.allocated,
            truncate_seq: stat.truncate_seq,
        })
    }

    /// Refuses a client whose incarnation is fenced. Questions about the whole target stay allowed.
    fn refuse_fenced(&self, sender: Sender, request: &StorageRequest) -> Result<(), ErrorCode> {
        match request {
            StorageRequest::Sync { .. } | StorageRequest::StatFs { .. } => Ok(()),
            _ => self.lock().admit(sender),
        }
    }

    /// Stores fences of clients durably.
    pub(super) async fn fence(&self, fences: &[Fence]) -> Result<StorageReply, Refused> {
        if fences.len() > FENCES_AT_ONCE_MAX {
            return Err(ErrorCode::Invalid.into());
        }
        let behind = {
            let mut target = self.lock_with_room().await?;
            let record = target.fence(fences);
            self.append(record).map_err(Refused::by_host)?
        };
        self.flush(behind).await?;
        Ok(StorageReply::Done)
    }

    /// Reads the index for a request into the cache before the target's mutex is taken.
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
        zonal_object::prefetch(self.host.store(), named(object).0, &ranges);
    }
}

/// True for requests whose reply must not be older than the lease.
fn shows_contents(request: &StorageRequest) -> bool {
    matches!(
        request,
        StorageRequest::Read { .. } | StorageRequest::Map { .. } | StorageRequest::Stat { .. }
    )
}

/// The object that a request means, and the last truncation that its sender knows.
#[must_use]
pub fn named(object: &ObjectRef) -> (ObjectId, Truncation) {
    let id = ObjectId {
        data_id: object.data_id,
        column: object.column,
    };
    let truncation = Truncation {
        seq: object.truncate_seq,
        bytes: object.truncate_bytes,
    };
    (id, truncation)
}
