//! Admission: the checks before an operation. Is the session the caller's, was the request executed
//! before, is it about the store at all?

use super::{MetaShard, Waiting};
use crate::config::{Caller, Now};
use crate::outcome::{Outcome, WaitOn};
use crate::session::SlotAnswer;
use std::sync::Arc;
use zonal_types::{ErrorCode, Holder, Ino, KvRead, SessionId};
use zonal_wire::frame::NO_SLOT;
use zonal_wire::{MetaReply, MetaRequest};

impl MetaShard {
    /// Checks session and slot. `None`: go on with the operation.
    pub(super) fn begin(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
        waited: &Waiting,
    ) -> Result<Option<Outcome>, ErrorCode> {
        if let MetaRequest::OpenSession { zone, name } = request {
            return self
                .open_session(now, from, (caller.identity, *zone, name))
                .map(Some);
        }
        match self.sessions.get_mut(caller.session) {
            // Sent by a command: the server lets nobody else send it.
            Some(_) if matches!(request, MetaRequest::EvictSession) => {}
            Some(session) if session.is_ending => return Err(ErrorCode::UnknownSession),
            Some(session) if session.is_of(from) => {
                let known = session.record.identity;
                if caller.identity.client != known.client {
                    return Err(ErrorCode::UnknownSession);
                }
                if caller.identity != known {
                    // Sent before the client opened its session again, or the client has not told
                    // us yet that it has begun anew.
                    zonal_types::mark!(IncarnationRefused);
                    return Err(ErrorCode::Fenced);
                }
                // The end of a poll is no sign of life: the client may be stopped, or may have been
                // refused since.
                if waited.until.is_none() {
                    session.last_seen = now.instant;
                }
            }
            Some(_) => return Err(ErrorCode::UnknownSession),
            None if caller.session == SessionId(0) && is_internal(request) => {}
            None => return Err(ErrorCode::UnknownSession),
        }
        if self.sessions.silent.contains(&caller.session) && !is_for_silent(request) {
            // The client opens its session again, learns our boot, reclaims its state, and retries.
            zonal_types::mark!(SilentRefused);
            return Err(ErrorCode::UnknownSession);
        }
        // Only now: the state that the client reclaimed did not name an open whose reply it had not
        // heard. That open is counted now.
        if let Some(reply) = self.repeated(kv, caller, request)? {
            return Ok(Some(self.reply(reply)));
        }
        if let Some(holder) = from {
            self.check_share(holder, request)?;
        }
        Ok(None)
    }

    /// Handles requests that are not about the store. `None`: go on with the operation.
    pub(super) fn in_memory(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        waited: &Waiting,
    ) -> Result<Option<Outcome>, ErrorCode> {
        let outcome = self.run_volatile(kv, now, caller, request, waited)?;
        if let Some(Outcome::Reply { reply, effect, .. }) = &outcome
            && is_slotted(caller, request)
            && effect.is_empty()
        {
            let reply = Some(reply.clone());
            self.sessions
                .replied(caller.session, caller.slot, caller.sequence, reply);
        }
        Ok(outcome)
    }

    /// The reply of a request that was executed before, if it is kept.
    pub(super) fn repeated(
        &mut self,
        kv: &dyn KvRead,
        caller: Caller,
        request: &MetaRequest,
    ) -> Result<Option<MetaReply>, ErrorCode> {
        if !is_slotted(caller, request) {
            return Ok(None);
        }
        let answer = self
            .sessions
            .slot(kv, caller.session, caller.slot, caller.sequence)?;
        let SlotAnswer::Repeat(reply, is_from_before) = answer else {
            return Ok(None);
        };
        zonal_types::mark!(SlotRepeated);
        if is_from_before {
            zonal_types::mark!(SlotRepeatedAfterRestart);
            if matches!(request, MetaRequest::Close { .. }) {
                // The client had not heard the reply and reclaimed these files as open: they are
                // closed now.
                return Ok(None);
            }
            self.reopen(&reply, caller.session);
            if let MetaRequest::AppendEnd { ino, offset, .. } = request {
                self.tickets.drop_executed(*ino, caller.session, *offset);
                self.woken.insert(WaitOn::End(*ino));
            }
        }
        Ok(Some(reply))
    }

    /// Counts the open of a create or open that is repeated after our restart.
    fn reopen(&mut self, reply: &MetaReply, session: SessionId) {
        let is_here = |ino: &Ino| {
            let partition = ino.partition();
            self.partitions.binary_search(&partition).is_ok() && !self.is_frozen(partition)
        };
        if let Some(ino) = opened_by(reply).filter(is_here) {
            self.opens.open(ino, session);
            // In which ways is not kept, and the repeated request need not say the same.
            self.opens.tell(ino, session);
        }
    }
}

/// The inode that a kept reply opened ([`crate::lease_grants::without_times`]).
pub(crate) fn opened_by(kept: &MetaReply) -> Option<Ino> {
    match kept {
        MetaReply::Opened { entry, .. } => Some(entry.ino),
        _opens_nothing => None,
    }
}

/// True for requests that other shards send without a session.
fn is_internal(request: &MetaRequest) -> bool {
    matches!(
        request,
        MetaRequest::MakeDetachedDir { .. }
            | MetaRequest::AttachDir { .. }
            | MetaRequest::DetachDir { .. }
            | MetaRequest::DropDir { .. }
            | MetaRequest::HasEntry { .. }
            | MetaRequest::FirstLevel { .. }
            | MetaRequest::SettleDir { .. }
            | MetaRequest::MendCopy { .. }
            | MetaRequest::RelocateObjects { .. }
            | MetaRequest::CopiesOf { .. }
            | MetaRequest::GetAttr { .. }
            | MetaRequest::GetXattr { .. }
            | MetaRequest::SetAttr { .. }
            | MetaRequest::SetPolicy { .. }
    )
}

/// True for requests allowed to a session from before our start that has not reclaimed its state.
fn is_for_silent(request: &MetaRequest) -> bool {
    matches!(
        request,
        MetaRequest::PollEvents { .. }
            | MetaRequest::CloseSession
            | MetaRequest::EvictSession
            | MetaRequest::Reclaim { .. }
            | MetaRequest::ReclaimAppends { .. }
            | MetaRequest::DropLeases
            | MetaRequest::Sync
    )
}

pub(crate) fn is_slotted(caller: Caller, request: &MetaRequest) -> bool {
    caller.slot != NO_SLOT && request.is_mutation()
}
