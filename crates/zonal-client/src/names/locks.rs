//! POSIX and flock locks: the shard decides, and the client remembers held locks for a restart of
//! the shard.
//!
//! A reply may come from an earlier boot of the shard, while the next boot has already heard what
//! this client holds. So the client notes a grant first. The grant counts only if no restart was
//! seen since the request was sent. Otherwise the client repeats the request under its number.

use crate::cell::session::Link;
use crate::client::{Client, ClientCall};
use crate::held_locks::{ClosedOwner, Owner, WaitingRequest, owner_of};
use crate::inode_cache::PendingPageVersion;
use crate::transport::mutex::lock;
use crate::transport::net::Net;
use crate::transport::retry::{is_passing, leaves_gathered};
use zonal_types::{ErrorCode, Ino, SessionId, ShardId};
use zonal_wire::{LockRange, MetaReply, MetaRequest};

/// Outcome of a requeued request at a restarted shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequeuedLock {
    /// Granted, as if by an event.
    Granted {
        /// The inode.
        ino: Ino,
        /// The request.
        waiter: u64,
    },
    /// No longer waiting.
    Refused {
        /// The request.
        waiter: u64,
        /// Why.
        code: ErrorCode,
    },
}

/// Next step for a requeued request.
enum RequeueOutcome {
    Waits,
    Over(RequeuedLock),
    TakenBack,
    /// The shard did not answer: ask again.
    Unanswered,
}

/// The outcome of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOutcome {
    /// Held. `changed`: the file's data is newer than the kernel's pages, which must be dropped
    /// before the holder acts on the grant. Then call [`Client::pages_dropped`].
    Granted {
        /// The newer version, where there is one.
        changed: Option<PendingPageVersion>,
    },
    /// Queued: an event will report the grant.
    Queued,
}

impl<N: Net> Client<N> {
    /// A number that names a lock request until it has ended.
    pub fn lock_number(&self) -> u64 {
        lock(&self.locks).next_number()
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Requests a lock. `waiter`: number under which to wait where the lock is not free. The range
    /// carries a `lock_number`; 0: it gets one.
    ///
    /// # Errors
    /// `WouldBlock`, `Deadlock`, `NoLocks`, or a shard that does not answer.
    pub async fn lock(
        &self,
        ino: Ino,
        mut range: LockRange,
        waiter: Option<u64>,
    ) -> Result<LockOutcome, ErrorCode> {
        if range.number == 0 {
            range.number = self.lock_number();
        }
        self.send_late_of(ino, owner_of(&range)).await?;
        let mut outcome = self.ask_for_lock(ino, range, waiter).await;
        if let Ok(LockOutcome::Granted { .. }) = outcome {
            outcome = self.learn_of_holders(ino).await;
        }
        match outcome {
            Ok(LockOutcome::Granted { .. }) => lock(&self.locks).settle(ino, &range),
            // The caller gets an error and will not release the lock, which the shard may have
            // granted or may grant later.
            Err(code) if leaves_gathered(code) => self.take_back_later(ino, range, waiter),
            Err(_refused) => {
                let mut locks = lock(&self.locks);
                locks.withdraw(ino, &range, waiter);
                locks.settle(ino, &range);
            }
            Ok(LockOutcome::Queued) => {}
        }
        outcome
    }

    /// Repeats the request until the answer comes from a shard that knows what this client holds.
    async fn ask_for_lock(
        &self,
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    ) -> Result<LockOutcome, ErrorCode> {
        loop {
            let link = self.reach(ino).await?;
            let life = link.life();
            let settled = lock(&self.locks).begin(ino, range, waiter);
            let request = MetaRequest::Lock {
                ino,
                range,
                wait: waiter.is_some(),
                waiter: waiter.unwrap_or(0),
                settled,
            };
            let outcome = match self.meta(&link, &request).await {
                Ok(_done) => {
                    let mut locks = lock(&self.locks);
                    if waiter.is_some_and(|waiter| !locks.waiting.contains_key(&waiter)) {
                        drop(locks);
                        self.answered_late(ino, range, waiter);
                        return Ok(LockOutcome::Queued);
                    }
                    locks.granted(ino, range, waiter);
                    LockOutcome::Granted { changed: None }
                }
                Err(ErrorCode::LockQueued) => {
                    let mut locks = lock(&self.locks);
                    let waiting = waiter.and_then(|waiter| locks.waiting.get_mut(&waiter));
                    let Some(waiting) = waiting else {
                        drop(locks);
                        self.answered_late(ino, range, waiter);
                        return Ok(LockOutcome::Queued);
                    };
                    waiting.is_queued = true;
                    LockOutcome::Queued
                }
                Err(code) => return Err(code),
            };
            let is_owner = self.link_of(ino).is_ok_and(|of| of.shard == link.shard);
            if is_owner && link.life() == life {
                return Ok(outcome);
            }
            zonal_types::mark!(LockAskedAgain);
        }
    }

    /// Handles an answer to a request whose grant an event reported before. The waiter has heard of
    /// it, and restarted shards are told of the lock. A repeated request would forget it. Where the
    /// lock has been released since, the answer may be of an attempt that came later.
    fn answered_late(&self, ino: Ino, range: LockRange, waiter: Option<u64>) {
        let is_held = {
            let locks = lock(&self.locks);
            locks.held.has_number(ino, owner_of(&range), range.number)
        };
        if !is_held {
            self.take_back_later(ino, range, waiter);
        }
    }

    /// Requeues requests that a restarted shard has forgotten. Returns those that no longer wait,
    /// and whether all were sent. Otherwise the shard did not answer, and the caller must try
    /// again.
    pub async fn queue_locks_again(&self, shard: ShardId) -> (Vec<RequeuedLock>, bool) {
        let map = self.map();
        let at_shard = |ino: Ino| {
            map.shard_of(ino.partition())
                .is_some_and(|known| known.id == shard)
        };
        let queued: Vec<(u64, WaitingRequest)> = lock(&self.locks)
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.is_queued && at_shard(waiting.ino))
            .map(|(waiter, waiting)| (*waiter, *waiting))
            .collect();
        let mut over = Vec::new();
        for (waiter, WaitingRequest { ino, range, .. }) in queued {
            {
                let mut locks = lock(&self.locks);
                if !locks.waiting.contains_key(&waiter) {
                    // Granted or withdrawn since.
                    continue;
                }
                if locks.queued_again.contains_key(&waiter) {
                    // After a move two shards seem to have restarted: the other's request first.
                    return (over, false);
                }
                locks.queued_again.insert(waiter, false);
            }
            let call = self.another();
            let link = self.link(shard);
            let life = link.life();
            let request = MetaRequest::Lock {
                ino,
                range,
                wait: true,
                waiter,
                settled: 0,
            };
            let answer = call.meta(&link, &request).await;
            match self.queued_again(&link, life, (ino, range, waiter), answer.map(drop)) {
                RequeueOutcome::Waits => {}
                RequeueOutcome::Over(queued) => over.push(queued),
                // Sent again, because the first one may have come before the shard had queued the
                // request.
                RequeueOutcome::TakenBack => call.take_back(ino, range, waiter).await,
                RequeueOutcome::Unanswered => return (over, false),
            }
        }
        (over, true)
    }

    /// Handles the answer to a requeued request.
    fn queued_again(
        &self,
        link: &Link,
        life: (u64, SessionId),
        (ino, range, waiter): (Ino, LockRange, u64),
        answer: Result<(), ErrorCode>,
    ) -> RequeueOutcome {
        let mut locks = lock(&self.locks);
        let is_wanted = locks.waiting.contains_key(&waiter);
        let is_taken_back = locks.queued_again.remove(&waiter) == Some(true);
        match answer {
            Ok(()) if is_wanted => {
                if let Some(granted) = locks.grant(waiter)
                    && link.life() != life
                {
                    // The shard restarted once more.
                    locks.ungrant(waiter, granted);
                    return RequeueOutcome::Unanswered;
                }
                RequeueOutcome::Over(RequeuedLock::Granted { ino, waiter })
            }
            Ok(()) | Err(ErrorCode::LockQueued) if is_taken_back => RequeueOutcome::TakenBack,
            // Its grant was reported before, and the lock was released since.
            Ok(()) if !locks.held.has_number(ino, owner_of(&range), range.number) => {
                RequeueOutcome::TakenBack
            }
            // Or its grant was reported before.
            Ok(()) | Err(ErrorCode::LockQueued) => RequeueOutcome::Waits,
            Err(code) if is_passing(code) => RequeueOutcome::Unanswered,
            // A deadlock may have arisen meanwhile.
            Err(code) => {
                locks.withdraw(ino, &range, Some(waiter));
                locks.settle(ino, &range);
                RequeueOutcome::Over(RequeuedLock::Refused { waiter, code })
            }
        }
    }

    /// Refreshes the file after the grant of a queued lock, to see the last holder's writes.
    ///
    /// # Errors
    /// A shard that does not answer: then the lock is released.
    pub async fn lock_granted(&self, ino: Ino, range: LockRange) -> Result<LockOutcome, ErrorCode> {
        let outcome = self.learn_of_holders(ino).await;
        if outcome.is_err() {
            self.take_back_later(ino, range, None);
        } else {
            lock(&self.locks).settle(ino, &range);
        }
        outcome
    }

    /// Refreshes the file after a grant, to see the last holder's writes.
    async fn learn_of_holders(&self, ino: Ino) -> Result<LockOutcome, ErrorCode> {
        self.inode_cache.forget_bytes(ino);
        let asked = self.inode_cache.page_versions().now();
        let link = self.reach(ino).await?;
        let reply = self
            .meta(&link, &MetaRequest::GetAttr { ino, data: true })
            .await?;
        let MetaReply::Attr { attr, data, .. } = reply else {
            return Err(ErrorCode::Protocol);
        };
        if let Some(file) = self.file(ino) {
            file.state().refresh(&attr, data);
        }
        let differs = self.inode_cache.page_versions().differs(ino, attr.change);
        let changed = differs.then(|| PendingPageVersion::new(attr.change, asked));
        Ok(LockOutcome::Granted { changed })
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Releases a range after it has flushed the writes under it. Where a server does not take them
    /// the lock stays: otherwise the next holder would miss them, and they would overwrite newer
    /// bytes.
    ///
    /// # Errors
    /// A server that does not answer.
    pub async fn unlock(&self, ino: Ino, mut range: LockRange) -> Result<(), ErrorCode> {
        range.number = self.lock_number();
        self.flush_if_dirty(ino).await?;
        let cut = (range.start, range.end);
        let request = MetaRequest::Unlock { ino, range };
        let is_meant = |held: &LockRange| held.number < range.number;
        self.send_release(ino, &request, owner_of(&range), cut, is_meant)
            .await
    }

    /// Sends a release. Where it fails, the ranges are held again.
    async fn send_release(
        &self,
        ino: Ino,
        request: &MetaRequest,
        owner: Owner,
        cut: (u64, u64),
        is_meant: impl Fn(&LockRange) -> bool,
    ) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        let released = lock(&self.locks).held.give_up(ino, owner, cut, is_meant);
        let answer = self.meta(&link, request).await;
        if answer.is_err() {
            let mut locks = lock(&self.locks);
            for range in released {
                // A conflicting grant to another owner here proves that the shard has executed the
                // release and its answer was lost.
                if !locks.held.excludes(ino, &range) {
                    locks.held.hold(ino, range);
                }
            }
        }
        answer.map(drop)
    }

    /// Releases all locks that an owner has got on an inode until now; `handle`: only those got
    /// through this open file.
    ///
    /// # Errors
    /// As [`Self::unlock`].
    pub async fn release_locks(
        &self,
        ino: Ino,
        owner: u64,
        whole_file: bool,
        handle: Option<u64>,
    ) -> Result<(), ErrorCode> {
        let of = (owner, whole_file);
        let number = {
            let mut locks = lock(&self.locks);
            if !locks.held.has_any(ino, of, handle) {
                return Ok(());
            }
            locks.next_number()
        };
        let gone = ClosedOwner {
            ino,
            owner: of,
            handle,
            number,
        };
        if let Err(code) = self.flush_if_dirty(ino).await {
            // As in `unlock`. No caller is left to try again.
            self.release_later(gone);
            return Err(code);
        }
        let cut = (0, u64::MAX);
        let is_meant = |held: &LockRange| gone.means(held);
        let released = self
            .send_release(ino, &gone.request(), of, cut, is_meant)
            .await;
        if released.is_err_and(leaves_gathered) {
            // No caller is left to try again. A restarted shard is not told of the lock.
            self.release_later(gone);
            lock(&self.locks).held.give_up(ino, of, cut, is_meant);
        }
        released
    }

    /// The first lock that conflicts with `range`.
    ///
    /// # Errors
    /// A shard that does not answer.
    pub async fn get_lock(
        &self,
        ino: Ino,
        range: LockRange,
    ) -> Result<Option<LockRange>, ErrorCode> {
        let link = self.reach(ino).await?;
        match self
            .meta(&link, &MetaRequest::GetLock { ino, range })
            .await?
        {
            MetaReply::Locked { holder } => Ok(holder),
            _other => Err(ErrorCode::Protocol),
        }
    }

    pub(crate) async fn flush_if_dirty(&self, ino: Ino) -> Result<(), ErrorCode> {
        match self.file(ino) {
            Some(file) if !file.state().is_clean() => self.settle(&file).await,
            _ => Ok(()),
        }
    }
}
