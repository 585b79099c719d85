//! The shard as a value: it takes a request, the time and a reader of its store, and returns the
//! step to take.
//!
//! *Invariants*:
//! 1. Nothing in memory changes before a request counts.
//! 2. A request that waits or asks another shard runs again from its start.
//! 3. State in memory is volatile by design (opens, locks, leases, events, tickets), or is loaded
//!    from the store (sessions, slots, orphans, number ranges).

mod admission;
mod execution;
mod housekeeping;
mod remote_calls;
mod scope_check;
mod startup;
mod table_quotas;

pub(crate) use admission::{is_slotted, opened_by};

use crate::append::Tickets;
use crate::append::lent_ends::LentEnds;
use crate::config::{Caller, Now, ShardConfig};
use crate::deletions::Deletions;
use crate::events::EventQueues;
use crate::id_ranges::IdRanges;
use crate::leases::{LeaseChange, Leases};
use crate::moves::Moves;
use crate::open_files::OpenFiles;
use crate::outcome::{Attempt, Facts, JunctionChange, Outcome, PendingCall, Question, WaitOn};
use crate::recent_removals::RecentRemovals;
use crate::scope_cache::{ScopeCache, VisibleTree};
use crate::session::Sessions;
use crate::shard_loads::ShardLoads;
use crate::spare_partitions::SparePartitions;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zonal_types::limits::PARTITIONS_PER_SHARD_MAX;
use zonal_types::{
    ErrorCode, Holder, Ino, Instant, KvChange, KvRead, PartitionId, SessionId, ShardId, TargetId,
};
use zonal_wire::meta::ShardLoad;
use zonal_wire::storage::ErrorNumber;
use zonal_wire::{DirectoryTrafficTable, MetaReply, MetaRequest};
use zonal_zonemap::ZoneMap;

/// A request that was told to wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    pub facts: Facts,
    /// Directories that grant nothing because of it.
    pub changes: Vec<LeaseChange>,
    /// Time at which a wait for events is over.
    pub until: Option<Instant>,
    /// The poll has renewed the session's leases.
    pub is_renewed: bool,
}

/// One metadata shard.
#[derive(Debug)]
pub struct MetaShard {
    pub(crate) config: ShardConfig,
    pub(crate) map: Arc<ZoneMap>,
    pub(crate) partitions: Vec<PartitionId>,
    pub(crate) opens: OpenFiles,
    pub(crate) recent: RecentRemovals,
    pub(crate) deletions: Deletions,
    pub(crate) ids: IdRanges,
    pub(crate) live_inodes: u64,
    pub(crate) sessions: Sessions,
    pub(crate) leases: Leases,
    pub(crate) events: EventQueues,
    pub(crate) locks: crate::locks::LockTable,
    pub(crate) tickets: Tickets,
    pub(crate) ends: LentEnds,
    pub(crate) waiting: BTreeMap<Attempt, Waiting>,
    /// First-level directories of requests that wait for another shard's answer, with their counts.
    asking: BTreeMap<Ino, u32>,
    next_attempt: u64,
    /// Until then locks of silent sessions may be reclaimed.
    pub(crate) lock_grace_until: Instant,
    /// Sessions to end because their event queue overflowed.
    pub(crate) doomed: BTreeSet<SessionId>,
    /// Sessions from before our start that end unless they tell their state at once: others wait
    /// for locks that they may have.
    pub(crate) late: BTreeSet<SessionId>,
    has_lost_orphans: bool,
    pub(crate) woken: BTreeSet<WaitOn>,
    pub(crate) recheck: bool,
    pub(crate) scopes: ScopeCache,
    pub(crate) fencing: crate::fences::Fencing,
    pub(crate) sets: crate::stripe_set_choice::StripeSetChooser,
    /// Files may lie on targets of other zones; the store has it.
    pub(crate) has_remote_data: bool,
    /// Partitions that leave and come.
    pub(crate) moves: Moves,
    /// Bytes that clients reported.
    pub(crate) directories: DirectoryTrafficTable,
    /// Partitions without inodes.
    pub(crate) spare: SparePartitions,
    /// Loads of the zones' shards (root shard only).
    pub(crate) loads: ShardLoads,
}

impl MetaShard {
    /// Adopts a newer zone map.
    pub fn set_map(&mut self, map: Arc<ZoneMap>) {
        let partitions = map.partitions_of(self.config.shard);
        if self.partitions != partitions {
            self.spare.change(&self.partitions, &partitions);
            self.partitions = partitions;
            self.deletions.read_again();
        }
        self.sets.map_changed(&map);
        self.map = map;
    }

    /// Takes another shard's report of its load: inodes, and requests in its life. Only the root
    /// shard uses it.
    pub fn take_load(&mut self, shard: ShardId, load: (u64, u64), now: Instant) {
        self.loads.report(&self.map, shard, load, now);
    }

    /// Loads of the zones' shards, as the root shard knows them.
    #[must_use]
    pub fn shard_loads(&self, now: Instant) -> Vec<ShardLoad> {
        self.loads.list(&self.map, now)
    }

    /// True where the next first-level directory would share its partition with another, and the
    /// shard may have more partitions.
    #[must_use]
    pub fn wants_partitions(&self) -> bool {
        let count = u32::try_from(self.partitions.len()).unwrap_or(u32::MAX);
        count < PARTITIONS_PER_SHARD_MAX && !self.spare.may_have()
    }

    /// Number of inodes.
    #[must_use]
    pub fn inodes(&self) -> u64 {
        self.live_inodes
    }

    /// Handles one request. `attempt` comes from the last [`Outcome::Wait`] of the same request
    /// (`None` the first time).
    pub fn handle(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        request: &MetaRequest,
        attempt: Option<Attempt>,
    ) -> Outcome {
        self.handle_from(kv, now, caller, None, request, attempt)
    }

    /// As [`Self::handle`], for a connection that has proved a subject (`None`: it did not have
    /// to).
    pub fn handle_from(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
        attempt: Option<Attempt>,
    ) -> Outcome {
        self.recent.sweep(now.instant);
        let waited = attempt.and_then(|attempt| self.waiting.remove(&attempt));
        let waited = waited.unwrap_or_default();
        self.handle_waited(kv, now, caller, from, request, waited)
    }

    /// As [`Self::handle`], where the disk has no room for the records of the request. A request
    /// that was executed before gets its reply again; any other is refused with `NoSpace`.
    pub fn handle_full(
        &mut self,
        kv: &dyn KvRead,
        caller: Caller,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
    ) -> Outcome {
        let session = self.sessions.get_mut(caller.session);
        if session.is_some_and(|session| !session.is_of(from)) {
            return self.refuse(ErrorCode::UnknownSession);
        }
        match self.repeated(kv, caller, request) {
            Ok(None) => self.fail(caller, request, ErrorCode::NoSpace, &Waiting::default()),
            Ok(Some(reply)) => self.reply(reply),
            Err(code) => self.refuse(code),
        }
    }

    fn handle_waited(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        from: Option<&Arc<Holder>>,
        request: &MetaRequest,
        waited: Waiting,
    ) -> Outcome {
        match self.begin(kv, now, caller, from, request, &waited) {
            Ok(None) => {}
            Ok(Some(outcome)) => {
                self.leases.finish(&waited.changes);
                return outcome;
            }
            Err(code) => {
                self.leases.finish(&waited.changes);
                return self.refuse(code);
            }
        }
        let is_of_root = matches!(
            request,
            MetaRequest::AttachDir { .. }
                | MetaRequest::DetachDir { .. }
                | MetaRequest::DropDir { .. }
                | MetaRequest::SetAttr { .. }
        );
        if is_of_root && caller.session == SessionId(0) {
            self.scopes.first_level_changed();
        }
        let scope = from.and_then(|from| from.scope.as_ref());
        let Some(scope) = scope else {
            let sight = VisibleTree::default();
            return self.run(kv, now, caller, (from, sight), request, waited);
        };
        if !waited.facts.has_asked_first
            && let Some(name) = self.unknown_first(now, scope)
        {
            self.leases.finish(&waited.changes);
            let ask = MetaRequest::FirstLevel { name: name.clone() };
            let call = PendingCall {
                caller,
                from: from.cloned(),
                request: request.clone(),
                asked: Question::FirstLevel(name.clone()),
                facts: waited.facts,
            };
            return self.ask(ShardId(0), ask, call);
        }
        match self.restrict(kv, now, caller, scope, request) {
            Ok((request, sight)) => {
                let outcome = self.run(kv, now, caller, (from, sight), &request, waited);
                if let Outcome::Reply { reply, effect, .. } = &outcome {
                    self.note_scoped(kv, now, caller, (sight, effect), &request, reply);
                }
                outcome
            }
            // Nothing was done, and a repeat gets the same error.
            Err(code) => self.fail(caller, request, code, &waited),
        }
    }

    fn run(
        &mut self,
        kv: &dyn KvRead,
        now: Now,
        caller: Caller,
        (from, sight): (Option<&Arc<Holder>>, VisibleTree),
        request: &MetaRequest,
        waited: Waiting,
    ) -> Outcome {
        match self.in_memory(kv, now, caller, request, &waited) {
            Ok(None) => self.execute(kv, now, caller, (from, sight), request, waited),
            Ok(Some(outcome)) => {
                self.leases.finish(&waited.changes);
                outcome
            }
            Err(code) => {
                self.leases.finish(&waited.changes);
                self.refuse(code)
            }
        }
    }

    /// Forgets a waiting request whose client went away.
    pub fn abandon(&mut self, attempt: Attempt) {
        if let Some(waiting) = self.waiting.remove(&attempt) {
            self.leases.finish(&waiting.changes);
        }
    }

    /// Takes over from the life before what waits and asks in this process.
    pub(crate) fn keep_attempts_of(&mut self, before: &mut Self) {
        self.next_attempt = before.next_attempt;
        self.asking = std::mem::take(&mut before.asking);
    }

    // --- small parts ---

    pub(crate) fn wait(&mut self, waiting: Waiting, until: Instant, on: WaitOn) -> Outcome {
        let attempt = Attempt(self.next_attempt);
        self.next_attempt += 1;
        let before = self.waiting.insert(attempt, waiting);
        assert!(before.is_none(), "{attempt:?} waits already");
        Outcome::Wait {
            attempt,
            until,
            on,
            wake: std::mem::take(&mut self.woken).into_iter().collect(),
            recheck: std::mem::take(&mut self.recheck),
        }
    }

    pub(crate) fn reply(&mut self, reply: MetaReply) -> Outcome {
        self.outcome(reply, Vec::new(), Vec::new(), Vec::new())
    }

    pub(crate) fn refuse(&mut self, code: ErrorCode) -> Outcome {
        self.reply(MetaReply::Failed {
            code: ErrorNumber(code),
        })
    }

    /// Files whose copies on a target are stale, behind the inode.
    ///
    /// # Errors
    /// The store's error; `Corrupt`.
    pub fn stale_files(
        &self,
        kv: &dyn KvRead,
        of: (TargetId, Ino),
    ) -> Result<MetaReply, ErrorCode> {
        let unfrozen = self.partitions.iter().filter(|one| !self.is_frozen(**one));
        let partitions: Vec<PartitionId> = unfrozen.copied().collect();
        crate::op::stale_copies::files_of(kv, &partitions, of, &self.map)
    }

    pub(crate) fn outcome(
        &mut self,
        reply: MetaReply,
        effect: Vec<KvChange>,
        junctions: Vec<JunctionChange>,
        after: Vec<(ShardId, MetaRequest)>,
    ) -> Outcome {
        Outcome::Reply {
            reply,
            effect,
            junctions,
            wake: std::mem::take(&mut self.woken).into_iter().collect(),
            recheck: std::mem::take(&mut self.recheck),
            after,
        }
    }
}
