//! Session list: the sessions of a shard and the state that they hold, for people.

use crate::MetaShard;
use std::ops::Bound;
use zonal_types::{Instant, SessionId};
use zonal_wire::SessionEntry;

/// Sessions in one list.
const AT_ONCE_MAX: usize = 1_000;

impl MetaShard {
    /// True where a session from before our start has not reclaimed its state yet.
    #[must_use]
    pub fn has_silent_sessions(&self) -> bool {
        !self.sessions.silent.is_empty()
    }

    /// Sessions behind `after` in order, at most `limit`; true: the list ends here.
    #[must_use]
    pub fn sessions(
        &self,
        after: SessionId,
        limit: u32,
        now: Instant,
    ) -> (Vec<SessionEntry>, bool) {
        let limit = (limit as usize).clamp(1, AT_ONCE_MAX);
        let behind = (Bound::Excluded(after), Bound::Unbounded);
        let mut found = self.sessions.range(behind);
        let listed: Vec<_> = found
            .by_ref()
            .take(limit)
            .map(|(id, session)| SessionEntry {
                session: *id,
                identity: session.record.identity,
                zone: session.record.zone,
                name: session.record.name.clone(),
                idle_ms: now.ms_since(session.last_seen),
                open_files: self.opens.files_of(*id),
                locked_files: self.locks.files_of(*id),
            })
            .collect();
        (listed, found.next().is_none())
    }
}
