//! Quotas: the share of the shard's tables that the holder of one credential may fill.
//!
//! | table | at most |
//! | --- | --- |
//! | sessions | a quarter (`admission.rs`) |
//! | opens, lock ranges and waiters, append tickets | a quarter, once the table is half full |
//!
//! So one holder leaves half of each table to others. Peers without a certificate, who are root or
//! the servers' user, have no quota. A holder's entries are counted only where a table is half
//! full; then a request costs a look at the state of its sessions.

use super::MetaShard;
use zonal_types::{ErrorCode, Holder, SessionId};
use zonal_wire::MetaRequest;

impl MetaShard {
    /// Refuses a request whose holder has used up its share of the table that the request would
    /// fill.
    pub(super) fn check_share(
        &self,
        holder: &Holder,
        request: &MetaRequest,
    ) -> Result<(), ErrorCode> {
        let sessions = || self.sessions.of_holder(&holder.subject);
        let sum = |count: &dyn Fn(SessionId) -> usize| sessions().map(count).sum::<usize>();
        let (code, filled, max, own): (_, _, _, &dyn Fn() -> usize) = match request {
            MetaRequest::Open { .. }
            | MetaRequest::Create { open: true, .. }
            | MetaRequest::Tmpfile { .. }
            | MetaRequest::BeginRestripe { .. } => (
                ErrorCode::Overloaded,
                self.opens.len(),
                self.config.opens_max,
                &|| sum(&|session| self.opens.files_of(session) as usize),
            ),
            MetaRequest::Lock { .. } => {
                let (ranges_max, waiters_max) = self.locks.limits();
                let waiting = self.locks.waiter_count();
                let is_of_waiters = waiting > waiters_max / 2;
                match is_of_waiters {
                    true => (ErrorCode::NoLocks, waiting, waiters_max, &|| {
                        sum(&|session| self.locks.waiters_of(session))
                    }),
                    false => (
                        ErrorCode::NoLocks,
                        self.locks.range_count(),
                        ranges_max,
                        &|| sum(&|session| self.locks.ranges_of(session)),
                    ),
                }
            }
            MetaRequest::AppendBegin { .. } | MetaRequest::AppendAt { .. } => (
                ErrorCode::Overloaded,
                self.tickets.len(),
                zonal_types::limits::APPEND_TICKETS_MAX,
                &|| sum(&|session| self.tickets.of_session(session)),
            ),
            _ => return Ok(()),
        };
        match filled > max / 2 && own() >= max / 4 {
            true => Err(code),
            false => Ok(()),
        }
    }
}
