//! Housekeeping: ends sessions, finds directories to settle, and reports the shard's memory as
//! gauges.

use super::MetaShard;
use crate::config::Now;
use crate::outcome::{Detached, Ticked};
use std::collections::BTreeSet;
use zonal_types::limits::{APPEND_TICKETS_MAX, DIRECTORIES_COUNTED_MAX, SESSION_SLOTS_MAX};
use zonal_types::{ErrorCode, Instant, KvRead, SessionId};

/// Time that a directory may stay detached before the root shard is asked, in seconds.
const DETACHED_SECONDS: i64 = 60;
/// Sessions ended in one step of housekeeping.
const ENDED_AT_ONCE: usize = 64;

impl MetaShard {
    /// Housekeeping, due at [`Self::poll_deadline`].
    pub fn tick(&mut self, kv: &dyn KvRead, now: Now) -> Ticked {
        self.leases.sweep(now.instant, 4096);
        let mut effect = Vec::new();
        let mut ending = self.sessions.expired(now.instant);
        let expired: BTreeSet<SessionId> = ending.iter().copied().collect();
        let mut lost_clients = Vec::new();
        ending.extend(std::mem::take(&mut self.doomed));
        ending.extend(std::mem::take(&mut self.late));
        if ending.len() > ENDED_AT_ONCE {
            self.doomed.extend(ending.split_off(ENDED_AT_ONCE));
        }
        if std::mem::take(&mut self.has_lost_orphans) {
            // Orphans left by sessions that ended in an earlier life: an unreadable one may be
            // readable now.
            let holders = self.opens.orphans.values().flatten();
            let lost: BTreeSet<SessionId> = holders
                .copied()
                .filter(|session| !self.sessions.contains(*session))
                .collect();
            ending.extend(lost);
        }
        let mut unread = None;
        for session in ending {
            if self.sessions.contains(session) {
                zonal_types::mark!(SessionExpired);
                let is_lost = expired.contains(&session);
                lost_clients.extend(self.sessions.client(session).filter(|_| is_lost));
                if let Some(begun) = self.begin_ending(now, session) {
                    effect.extend(begun);
                    continue;
                }
            }
            let (ended, failed) = self.end_session(kv, now, session);
            effect.extend(ended);
            unread = failed.or(unread);
        }
        for session in self.fencing.over(now.instant) {
            let (ended, failed) = self.end_session(kv, now, session);
            effect.extend(ended);
            unread = failed.or(unread);
        }
        Ticked {
            effect,
            unread,
            lost: lost_clients,
            wake: std::mem::take(&mut self.woken).into_iter().collect(),
            recheck: std::mem::take(&mut self.recheck),
        }
    }

    /// When [`Self::tick`] is due.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Instant> {
        if !self.doomed.is_empty() || !self.late.is_empty() || self.has_lost_orphans {
            return Some(Instant(0));
        }
        let times = [self.sessions.next_expiry(), self.fencing.next()];
        times.into_iter().flatten().min()
    }

    /// Directories that have been detached for more than a minute.
    ///
    /// # Errors
    /// The store's error; `Corrupt`.
    pub fn detached(
        &self,
        kv: &dyn KvRead,
        now: Now,
        limit: usize,
    ) -> Result<Vec<Detached>, ErrorCode> {
        let found = crate::op::detached_directories::unsettled(kv, &self.partitions)?;
        let old = found.into_iter().filter(|(_, record)| {
            now.wall.seconds.saturating_sub(record.since.seconds) >= DETACHED_SECONDS
        });
        let told = old.map(|(ino, record)| Detached {
            ino,
            since: record.since,
        });
        Ok(told.take(limit).collect())
    }

    /// Sizes of tables in memory, for metrics.
    #[must_use]
    pub fn gauges(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("sessions", self.sessions.len() as u64),
            ("sessions_max", self.config.sessions_max as u64),
            ("slot_replies", self.sessions.replies_in_memory() as u64),
            (
                "slot_replies_max",
                self.config.sessions_max as u64 * u64::from(SESSION_SLOTS_MAX),
            ),
            ("opens", self.opens.len() as u64),
            ("opens_max", self.config.opens_max as u64),
            ("orphans", self.opens.orphans.len() as u64),
            ("removed_inodes", self.recent.len() as u64),
            (
                "removed_inodes_max",
                crate::recent_removals::RECENT_MAX as u64,
            ),
            ("known_deletions", self.deletions.len() as u64),
            (
                "known_deletions_max",
                crate::deletions::DELETIONS_KNOWN_MAX as u64,
            ),
            ("leases", self.leases.len() as u64),
            ("leases_max", self.leases.limit() as u64),
            ("locks", self.locks.range_count() as u64),
            ("locks_max", self.locks.limits().0 as u64),
            ("lock_waiters", self.locks.waiter_count() as u64),
            ("lock_waiters_max", self.locks.limits().1 as u64),
            ("events_queued", self.events.len() as u64),
            ("longest_event_queue", self.events.longest() as u64),
            ("longest_event_queue_max", self.events.limit() as u64),
            ("append_tickets", self.tickets.len() as u64),
            ("append_tickets_max", APPEND_TICKETS_MAX as u64),
            ("append_ends", self.ends.len() as u64),
            ("append_ends_max", APPEND_TICKETS_MAX as u64),
            ("waiting_requests", self.waiting.len() as u64),
            ("fences", self.fencing.len() as u64),
            ("fences_max", zonal_types::limits::FENCES_MAX as u64),
            ("inodes", self.live_inodes),
            ("counted_directories", self.directories.len() as u64),
            ("counted_directories_max", DIRECTORIES_COUNTED_MAX as u64),
        ]
    }
}
