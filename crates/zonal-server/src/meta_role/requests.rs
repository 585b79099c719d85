//! Requests: run by the core under the mutex; waits, and calls to other shards, outside of it.

use super::{DETACHED_CHECK_MS, MetaRole, State, failure, now, wait_timeout};
use crate::clock;
use std::sync::{Arc, MutexGuard};
use zonal_meta::{Attempt, Caller, Outcome, PendingCall, WaitOn};
use zonal_net::Subject;
use zonal_types::{ErrorCode, Holder, Instant, MapVersion, NodeId, SessionId, ShardId, ZoneId};
use zonal_wire::{Header, MetaReply, MetaRequest};
use zonal_zonemap::ShardVerdict;

/// The client that a target asks about.
fn holder_of(subject: &str) -> Result<Holder, ErrorCode> {
    let parsed = Subject::parse(subject).map_err(|_error| ErrorCode::Invalid)?;
    Ok(Holder {
        subject: subject.to_owned(),
        scope: parsed.scope().cloned(),
    })
}

impl MetaRole {
    /// Answers a request, when it can be answered.
    pub fn handle(
        &self,
        header: &Header,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
    ) -> MetaReply {
        let mut reply = self.answer(header, from, request).unwrap_or_else(failure);
        if let MetaReply::StatFs { names_left, .. } = &mut reply {
            *names_left = self.names_left();
        }
        if let MetaReply::Failed { code } = &reply {
            self.note_failure(request, code.0);
        }
        reply
    }

    fn answer(
        &self,
        header: &Header,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
    ) -> Result<MetaReply, ErrorCode> {
        if !self.is_healthy() {
            return Err(ErrorCode::Io);
        }
        if let Some(refused) = self.check_epoch(header) {
            return refused;
        }
        if let Some(reply) = self.answer_aside(header, request) {
            return reply;
        }
        self.map.at_least(header.map_version);
        let has_room = match self.check_room(request) {
            Ok(()) => true,
            Err(ErrorCode::NoSpace) => false,
            Err(code) => return Err(code),
        };
        let caller = Caller::of(header);
        if self.engine.is_cold() {
            zonal_meta::prefetch(&*self.engine, self.hash_bits, request);
        }
        let mut state = self.lock();
        self.take_map(&mut state, header.map_version);
        if let Some(reply) = self.tell_open(&mut state, request) {
            return reply;
        }
        if matches!(request, MetaRequest::MakeDetachedDir { .. }) && state.detached_at.is_none() {
            state.detached_at = Some(clock::instant().plus_ms(DETACHED_CHECK_MS));
            self.pushing.notify_all();
        }
        let (shard, kv) = (&mut state.shard, &*self.engine);
        if matches!(request, MetaRequest::OpenSession { .. }) {
            shard.add_chance(getrandom::u64().map_err(|_error| ErrorCode::NotReady)?);
        }
        let mut outcome = if has_room {
            shard.handle_from(kv, now(), caller, from, request, None)
        } else {
            shard.handle_full(kv, caller, from, request)
        };
        loop {
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
                    self.wake(&state, &wake, recheck);
                    self.mind_deadline(&state);
                    let is_missing = state.flushed.is_missing(request, &reply);
                    drop(state);
                    self.settle(map)?;
                    self.make_calls(after);
                    if is_missing {
                        self.sync()?;
                        self.lock().flushed.note(&reply);
                    }
                    return Ok(reply);
                }
                Outcome::Wait {
                    attempt,
                    until,
                    on,
                    wake,
                    recheck,
                } => {
                    self.wake(&state, &wake, recheck);
                    self.mind_deadline(&state);
                    state = self.wait(state, attempt, until, on)?;
                    let (kv, attempt) = (&*self.engine, Some(attempt));
                    outcome = state
                        .shard
                        .handle_from(kv, now(), caller, from, request, attempt);
                }
                Outcome::Call {
                    shard,
                    request: question,
                    call,
                    wake,
                } => {
                    self.wake(&state, &wake, false);
                    drop(state);
                    let (resumed, next) = self.ask(shard, &question, call);
                    state = resumed;
                    outcome = next;
                }
            }
        }
    }

    /// Answers what is asked of the store, or by a tool, and not of the shard's contents.
    fn answer_aside(
        &self,
        header: &Header,
        request: &MetaRequest,
    ) -> Option<Result<MetaReply, ErrorCode>> {
        if matches!(request, MetaRequest::Sync) {
            return Some(self.sync().map(|()| {
                let boot = self.lock().shard.boot();
                MetaReply::Synced { boot }
            }));
        }
        if let MetaRequest::OpenSets { zone } = request {
            return Some(self.open_sets(*zone));
        }
        if matches!(request, MetaRequest::StatFs) && header.session == SessionId(0) {
            // A tool without a session.
            let gauges = self.lock().shard.gauges();
            let found = gauges.iter().find(|(name, _)| *name == "inodes");
            let inodes = found.map_or(0, |(_, value)| *value);
            let names_left = u64::MAX;
            return Some(Ok(MetaReply::StatFs { inodes, names_left }));
        }
        None
    }

    /// Answers a target that asks what a client has open.
    fn tell_open(
        &self,
        state: &mut State,
        request: &MetaRequest,
    ) -> Option<Result<MetaReply, ErrorCode>> {
        let MetaRequest::HasOpen {
            subject,
            data_id,
            writes,
        } = request
        else {
            return None;
        };
        let told = holder_of(subject).and_then(|of| {
            let (shard, kv) = (&mut state.shard, &*self.engine);
            shard.may_use(kv, now(), &of, *data_id, *writes)
        });
        Some(told.map(|component| MetaReply::MayUse { component }))
    }

    /// The refusal of a sender that knows another owner of this shard: an earlier one, or a later one. Of a later one this server's
    /// map hears, too.
    fn check_epoch(&self, header: &Header) -> Option<Result<MetaReply, ErrorCode>> {
        let map = self.map.current();
        match map.judge_shard(self.id, self.epoch, header.epoch) {
            ShardVerdict::Current => None,
            ShardVerdict::Stale => Some(Ok(MetaReply::StaleShard {
                shard: self.id,
                node: map.shard(self.id).map_or(NodeId(0), |own| own.node),
                epoch: self.epoch,
                map_version: map.version,
            })),
            ShardVerdict::Lost => {
                self.map.refresh();
                Some(Err(ErrorCode::NotOwner))
            }
        }
    }

    /// Has the stripe sets of a zone opened, where the manager is in this process.
    fn open_sets(&self, zone: ZoneId) -> Result<MetaReply, ErrorCode> {
        let manager = self.manager.as_ref().ok_or(ErrorCode::NotOwner)?;
        let opened = manager.open_sets(zone);
        opened.map_err(|error| error.code())
    }

    fn ask(
        &self,
        shard: ShardId,
        question: &MetaRequest,
        call: PendingCall,
    ) -> (MutexGuard<'_, State>, Outcome) {
        let reply = match question {
            MetaRequest::OpenSets { zone } if self.manager.is_some() => {
                self.open_sets(*zone).unwrap_or_else(failure)
            }
            _ => self.ask_shard(shard, question),
        };
        let mut state = self.lock();
        let outcome = state.shard.resume(&*self.engine, now(), call, reply);
        (state, outcome)
    }

    fn ask_shard(&self, shard: ShardId, question: &MetaRequest) -> MetaReply {
        self.peers.shard(&self.map, shard, question).unwrap_or_else(|error| {
            tracing::warn!(%error, shard = shard.0, operation = question.name(), "a shard does not help");
            failure(error.code())
        })
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        attempt: Attempt,
        until: Instant,
        on: WaitOn,
    ) -> Result<MutexGuard<'a, State>, ErrorCode> {
        if self.is_stopping() {
            state.shard.abandon(attempt);
            return Err(ErrorCode::NotReady);
        }
        let left = clock::until(until);
        match on {
            WaitOn::Recalls => Ok(wait_timeout(&self.recalls, state, left)),
            WaitOn::Events(session) => {
                let poller = Arc::clone(state.sessions.entry(session).or_default());
                let mut state = wait_timeout(&poller, state, left);
                // The map's and ours: nobody else waits.
                if Arc::strong_count(&poller) == 2 {
                    state.sessions.remove(&session);
                }
                Ok(state)
            }
        }
    }

    /// Sends what nobody waits for; what fails is settled by housekeeping later.
    pub(crate) fn make_calls(&self, calls: Vec<(ShardId, MetaRequest)>) {
        for (shard, request) in calls {
            if let Err(error) = self.peers.shard(&self.map, shard, &request) {
                tracing::warn!(%error, shard = shard.0, operation = request.name(), "left to housekeeping");
            }
        }
    }

    /// A request that this process makes of its own shard.
    pub(crate) fn own_request(&self, request: &MetaRequest) -> MetaReply {
        let header = Header::request(zonal_wire::Service::Meta, self.map.current().cell);
        self.handle(&header, None, request)
    }

    /// Asks the manager for its map, and goes by it from now on: the version. Without an answer it is the one known here.
    pub(crate) fn adopt_newest_map(&self) -> MapVersion {
        self.map.refresh();
        let mut state = self.lock();
        self.take_map(&mut state, MapVersion(0));
        state.map_version
    }

    fn take_map(&self, state: &mut State, hint: MapVersion) {
        let map = self.map.current();
        if map.version > state.map_version {
            state.map_version = map.version;
            state.shard.set_map(map);
        }
        if hint > state.map_version {
            tracing::debug!(
                hint = hint.0,
                "a sender names a map that the manager does not give"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::meta_background::tests::shard;
    use std::sync::Arc;
    use zonal_testkit::Scratch;
    use zonal_types::{Epoch, ErrorCode, NodeId, ShardId, ZoneId};
    use zonal_wire::{ErrorNumber, Header, MetaReply, MetaRequest, Service};
    use zonal_zonemap::MapEdit;

    #[test]
    fn a_shard_is_asked_only_as_its_owner() {
        let scratch = Scratch::new("epochs");
        let role = shard(&scratch);
        let ask = |epoch| {
            let mut header = Header::request(Service::Meta, role.map.current().cell);
            header.epoch = Epoch(epoch);
            role.handle(&header, None, &MetaRequest::StatFs)
        };
        let lost = MetaReply::Failed {
            code: ErrorNumber(ErrorCode::NotOwner),
        };
        for served in [0, 1] {
            assert!(matches!(ask(served), MetaReply::StatFs { .. }));
        }
        assert_eq!(ask(2), lost);
        assert_eq!(ask(u64::MAX), lost);
        // Its own map says so.
        let moved = MapEdit::Join {
            node: NodeId(3),
            zone: ZoneId(1),
            zone_name: String::new(),
            address: "127.0.0.1:2".into(),
            shard: Some(ShardId(1)),
            targets: Vec::new(),
        };
        let map = role.map.current().edited(&[moved]).unwrap().unwrap();
        role.map.publish(Arc::new(map));
        for refused in 0..3 {
            assert_eq!(ask(refused), lost);
        }
    }

    #[test]
    fn a_sender_that_knows_an_earlier_owner_is_told_of_this_one() {
        let scratch = Scratch::new("epochs");
        let mut role = shard(&scratch);
        // As if it had become the owner later.
        role.epoch = Epoch(5);
        let mut header = Header::request(Service::Meta, role.map.current().cell);
        header.epoch = Epoch(4);
        let told = MetaReply::StaleShard {
            shard: ShardId(1),
            node: NodeId(2),
            epoch: Epoch(5),
            map_version: role.map.current().version,
        };
        assert_eq!(role.handle(&header, None, &MetaRequest::StatFs), told);
    }
}
