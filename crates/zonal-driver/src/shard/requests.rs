//! Requests: decides and logs under the mutex; waits, flushes and calls outside of it.

use std::sync::{Arc, MutexGuard};

use zonal_meta::{Attempt, Caller, Outcome, PendingCall};
use zonal_types::{DataId, ErrorCode, Holder, Instant, NodeId, SessionId, ShardId};
use zonal_wire::meta::{BytesPlace, FileUse};
use zonal_wire::{ErrorNumber, Header, MetaReply, MetaRequest, Service};
use zonal_zonemap::{ShardVerdict, ZoneMap};

use super::waits::{Key, Wait};
use super::{ShardDriver, ShardHost, State};
use crate::joined_futures::either;

/// A request as it was received.
#[derive(Clone, Copy)]
struct ReceivedRequest<'a> {
    caller: Caller,
    from: Option<&'a Arc<Holder>>,
    request: &'a MetaRequest,
}

/// The next step of a request, taken without the mutex.
enum Step<'a, H: ShardHost> {
    Reply(LoggedReply<H::Position>),
    Wait {
        attempt: Abandon<'a, H>,
        wait: Wait<'a>,
        until: Instant,
    },
    Call {
        shard: ShardId,
        question: MetaRequest,
        call: PendingCall,
        /// The question depends on records up to here.
        position: H::Position,
    },
}

/// A reply whose effect is in the log.
struct LoggedReply<P> {
    reply: MetaReply,
    /// The reply depends on records up to here.
    position: P,
    /// Map to publish before the reply leaves.
    map: Option<Arc<ZoneMap>>,
    /// True where the log must be flushed before the reply leaves.
    must_flush: bool,
    /// Calls to make after the reply.
    after: Vec<(ShardId, MetaRequest)>,
}

/// Unregisters a request that is dropped while it waits.
struct Abandon<'a, H: ShardHost> {
    driver: &'a ShardDriver<H>,
    attempt: Option<Attempt>,
}

impl<H: ShardHost> Abandon<'_, H> {
    fn goes_on(mut self) -> Option<Attempt> {
        self.attempt.take()
    }
}

impl<H: ShardHost> Drop for Abandon<'_, H> {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt {
            self.driver.lock().shard.abandon(attempt);
        }
    }
}

impl<H: ShardHost> ShardDriver<H> {
    /// Answers a request as soon as the shard can. Where it is dropped while it waits, it leaves
    /// nothing behind. It is answered `TimedOut` once the deadline in its header has passed.
    pub async fn serve(
        &self,
        header: &Header,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
    ) -> MetaReply {
        let answer = self.answer(header, from, request).await;
        answer.unwrap_or_else(failed)
    }

    /// Answers a request of this process to its own shard.
    pub async fn serve_own(&self, request: &MetaRequest) -> MetaReply {
        let header = Header::request(Service::Meta, self.host.map().cell);
        self.serve(&header, None, request).await
    }

    /// Refuses to hear what a client holds, or that it holds nothing, by a map from before a move.
    fn check_telling(&self, header: &Header, request: &MetaRequest) -> Result<(), ErrorCode> {
        let tells = matches!(
            request,
            MetaRequest::Reclaim { .. }
                | MetaRequest::ReclaimAppends { .. }
                | MetaRequest::CloseSession
        );
        match tells && header.map_version < self.map_to_tell_by() {
            true => Err(ErrorCode::StaleEpoch),
            false => Ok(()),
        }
    }

    async fn answer(
        &self,
        header: &Header,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        let came = self.host.now().instant;
        let deadline = match header.deadline_ms {
            0 => None,
            ms => Some(came.plus_ms(ms.into())),
        };
        self.host.check_health()?;
        if let Some(refused) = self.check_epoch(header).await {
            return refused;
        }
        if let Some(reply) = self.answer_without_shard(header, request).await {
            return reply;
        }
        if matches!(request, MetaRequest::MakeDetachedDir { .. }) {
            self.get_partitions().await;
        }
        let known = self.host.map().version;
        if header.map_version > known {
            self.host.seek_map(known).await;
        }
        self.check_telling(header, request)?;
        let has_room = match self.host.check_room(request) {
            Ok(()) => true,
            Err(ErrorCode::NoSpace) => false,
            Err(code) => return Err(code),
        };
        self.host.prefetch(request);
        let asked = ReceivedRequest {
            caller: Caller::of(header),
            from,
            request,
        };
        let mut step = self.begin(asked, has_room)?;
        loop {
            step = match step {
                Step::Reply(logged) => return self.conclude(logged).await,
                Step::Wait {
                    attempt,
                    wait,
                    until,
                } => {
                    let until = deadline.map_or(until, |deadline| deadline.min(until));
                    either(wait, self.host.sleep_until(until)).await;
                    if self.is_stopping() {
                        return Err(ErrorCode::NotReady);
                    }
                    if deadline.is_some_and(|deadline| deadline <= self.host.now().instant) {
                        return Err(ErrorCode::TimedOut);
                    }
                    self.go_on(asked, attempt.goes_on())?
                }
                Step::Call {
                    shard,
                    question,
                    call,
                    position,
                } => {
                    self.host.settled(position).await?;
                    let reply = self.host.call_shard(shard, &question).await;
                    self.resume(asked, call, reply.unwrap_or_else(failed))?
                }
            }
        }
    }

    /// Tells a target whether a client may use the bytes of a file in this way, and where they are.
    ///
    /// # Errors
    /// The client may not, or the store cannot be read.
    pub async fn may_use(
        &self,
        of: &Holder,
        data_id: DataId,
        for_use: FileUse,
    ) -> Result<Option<BytesPlace>, ErrorCode> {
        self.host.check_health()?;
        let (place, position) = {
            let mut state = self.lock();
            self.adopt_map(&mut state);
            let (kv, now) = (self.host.store(), self.host.now());
            let place = state.shard.may_use(kv, now, of, data_id, for_use)?;
            (place, self.host.position())
        };
        self.host.settled(position).await?;
        Ok(place)
    }

    /// Asks for more partitions where no partition is spare for a first-level directory. Without an
    /// answer, the directory shares one.
    async fn get_partitions(&self) {
        let is_wanted = {
            let mut state = self.lock();
            self.adopt_map(&mut state);
            state.shard.wants_partitions()
        };
        if is_wanted {
            let request = MetaRequest::MorePartitions { shard: self.id };
            if let Ok(MetaReply::Done) = self.host.call_shard(ShardId(0), &request).await {
                self.host.seek_map(self.host.map().version).await;
            }
        }
    }

    fn begin(&self, asked: ReceivedRequest<'_>, has_room: bool) -> Result<Step<'_, H>, ErrorCode> {
        let ReceivedRequest {
            caller,
            from,
            request,
        } = asked;
        let mut state = self.lock();
        state.requests = state.requests.saturating_add(1);
        self.adopt_map(&mut state);
        match request {
            MetaRequest::MakeDetachedDir { .. } if state.detached_at.is_none() => {
                let now = self.host.now().instant;
                state.detached_at = Some(now.plus_ms(self.pace.detached_ms));
                self.waits.wake(Key::Deletions);
            }
            MetaRequest::OpenSession { .. } => state.shard.add_chance(self.host.random()?),
            _ => {}
        }
        let (shard, kv) = (&mut state.shard, self.host.store());
        let outcome = if has_room {
            shard.handle_from(kv, self.host.now(), caller, from, request, None)
        } else {
            shard.handle_full(kv, caller, from, request)
        };
        self.carry_out(state, request, outcome)
    }

    fn go_on(
        &self,
        asked: ReceivedRequest<'_>,
        attempt: Option<Attempt>,
    ) -> Result<Step<'_, H>, ErrorCode> {
        let mut state = self.lock();
        self.adopt_map(&mut state);
        let (kv, now) = (self.host.store(), self.host.now());
        let ReceivedRequest {
            caller,
            from,
            request,
        } = asked;
        let outcome = state
            .shard
            .handle_from(kv, now, caller, from, request, attempt);
        self.carry_out(state, request, outcome)
    }

    fn resume(
        &self,
        asked: ReceivedRequest<'_>,
        call: PendingCall,
        reply: MetaReply,
    ) -> Result<Step<'_, H>, ErrorCode> {
        let mut state = self.lock();
        // The other shard may have got partitions, which its answer names.
        self.adopt_map(&mut state);
        let (kv, now) = (self.host.store(), self.host.now());
        let outcome = state.shard.resume(kv, now, call, reply);
        self.carry_out(state, asked.request, outcome)
    }

    /// Carries out the part of an outcome that belongs under the mutex: appends the record and
    /// wakes waiters.
    fn carry_out<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        request: &MetaRequest,
        outcome: Outcome,
    ) -> Result<Step<'a, H>, ErrorCode> {
        match outcome {
            Outcome::Reply {
                reply,
                effect,
                junctions,
                wake,
                recheck,
                after,
            } => {
                let map = self.log(&mut state, effect, junctions)?;
                self.wake(&wake, recheck);
                self.wake_for_deadline(&state);
                Ok(Step::Reply(LoggedReply {
                    must_flush: state.flushed.is_missing(request, &reply),
                    position: self.host.position(),
                    reply,
                    map,
                    after,
                }))
            }
            Outcome::Wait {
                attempt,
                until,
                on,
                wake,
                recheck,
            } => {
                self.wake(&wake, recheck);
                self.wake_for_deadline(&state);
                Ok(Step::Wait {
                    wait: self.waits.register(Key::Request(on)),
                    attempt: Abandon {
                        driver: self,
                        attempt: Some(attempt),
                    },
                    until,
                })
            }
            Outcome::Call {
                shard,
                request: question,
                call,
                wake,
            } => {
                self.wake(&wake, false);
                Ok(Step::Call {
                    shard,
                    question,
                    call,
                    position: self.host.position(),
                })
            }
        }
    }

    async fn conclude(&self, logged: LoggedReply<H::Position>) -> Result<MetaReply, ErrorCode> {
        let LoggedReply {
            reply,
            position,
            map,
            must_flush,
            after,
        } = logged;
        self.host.settled(position).await?;
        if let Some(map) = map {
            self.host.publish(map).await?;
        }
        if must_flush {
            self.host.flush().await?;
            self.lock().flushed.note(&reply);
        }
        if !after.is_empty() {
            self.host.call_later(after).await;
        }
        Ok(reply)
    }

    /// Answers requests about the store, and requests of tools, which do not need the shard's
    /// contents.
    async fn answer_without_shard(
        &self,
        header: &Header,
        request: &MetaRequest,
    ) -> Option<Result<MetaReply, ErrorCode>> {
        match request {
            MetaRequest::Sync => {
                let flushed = self.host.flush().await;
                Some(flushed.map(|()| MetaReply::Synced {
                    boot: self.lock().shard.boot(),
                }))
            }
            MetaRequest::OpenSets { zone } => Some(self.host.open_sets(*zone)),
            MetaRequest::MorePartitions { shard } => Some(self.host.more_partitions(*shard)),
            MetaRequest::GivePartition {
                partition,
                from,
                to,
            } => Some(self.host.give_partition(*partition, *from, *to)),
            MetaRequest::MovePartition { .. }
            | MetaRequest::GetMoves
            | MetaRequest::CancelMove { .. } => Some(self.answer_about_departures(request).await),
            MetaRequest::MoveBegin { .. }
            | MetaRequest::MoveEntries { .. }
            | MetaRequest::MoveEnd { .. }
            | MetaRequest::MoveDropped { .. } => Some(self.answer_about_arrivals(request).await),
            // A target that starts.
            MetaRequest::FencesOf {
                target,
                after,
                holder,
            } => {
                let (reply, position) = {
                    let state = self.lock();
                    let reply = state.shard.fences_of(*target, (*after, *holder));
                    (reply, self.host.position())
                };
                Some(self.host.settled(position).await.map(|()| reply))
            }
            MetaRequest::StaleFiles { target, after } => {
                let (reply, position) = {
                    let mut state = self.lock();
                    self.adopt_map(&mut state);
                    let kv = self.host.store();
                    let reply = state.shard.stale_files(kv, (*target, *after));
                    (reply, self.host.position())
                };
                Some(self.host.settled(position).await.and(reply))
            }
            // A tool without a session.
            MetaRequest::StatFs if header.session == SessionId(0) => Some(Ok(MetaReply::StatFs {
                inodes: self.lock().shard.inodes(),
                names_left: u64::MAX,
            })),
            MetaRequest::ReportShardLoad { .. } | MetaRequest::GetShardLoads => {
                Some(Ok(self.answer_about_loads(header, request)))
            }
            _ => None,
        }
    }

    /// Refuses a sender that knows an earlier or a later owner of this shard. In the second case
    /// this server also fetches the newer map.
    async fn check_epoch(&self, header: &Header) -> Option<Result<MetaReply, ErrorCode>> {
        let map = self.host.map();
        match map.judge_shard(self.id, self.epoch, header.epoch) {
            ShardVerdict::Current => None,
            ShardVerdict::Stale => Some(Ok(MetaReply::StaleShard {
                shard: self.id,
                node: map.shard(self.id).map_or(NodeId(0), |own| own.node),
                epoch: self.epoch,
                map_version: map.version,
            })),
            ShardVerdict::Lost => {
                self.host.seek_map(map.version).await;
                Some(Err(ErrorCode::NotOwner))
            }
        }
    }
}

fn failed(code: ErrorCode) -> MetaReply {
    MetaReply::Failed {
        code: ErrorNumber(code),
    }
}
