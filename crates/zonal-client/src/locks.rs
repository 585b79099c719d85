//! POSIX and flock locks: the shard decides; what is held is remembered for the shard's restart.
//!
//! The reply to a request may be from a life of the shard that is over, and the next life has heard
//! what is held without it. So a grant is noted first, and counts only if the shard has not been
//! heard to restart since the request was sent; else it is asked for again, under its number.

mod lock_table;
pub(crate) mod retries;
mod state;

use lock_table::{Owner, owner_of};
use retries::ClosedOwner;
pub(crate) use state::LockState;
use state::WaitingRequest;

use crate::client::Client;
use crate::net::Net;
use crate::operation::ClientCall;
use crate::page_validity::PendingPageVersion;
use crate::session::{Link, is_passing, leaves_gathered, lock};
use zonal_types::{ErrorCode, Ino, SessionId, ShardId};
use zonal_wire::{LockRange, MetaReply, MetaRequest};

/// What became of a queued request at a restarted shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequeuedLock {
    /// Held: as if the shard had told so.
    Granted {
        /// The inode.
        ino: Ino,
        /// The request.
        waiter: u64,
    },
    /// It waits no more.
    Refused {
        /// The request.
        waiter: u64,
        /// Why.
        code: ErrorCode,
    },
}

/// What is to be done about one.
enum RequeueOutcome {
    Waits,
    Over(RequeuedLock),
    TakenBack,
    /// The shard is to be asked again.
    Unanswered,
}

/// The outcome of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOutcome {
    /// Held. `changed`: the file's data is newer than what the kernel's pages show, which are to be
    /// dropped before anybody acts on the grant; then [`Client::pages_dropped`] is told.
    Granted {
        /// See above.
        changed: Option<PendingPageVersion>,
    },
    /// An event will tell.
    Queued,
}

impl<N: Net> Client<N> {
    /// A number for a lock request, which names it until it is over.
    pub fn lock_number(&self) -> u64 {
        lock(&self.locks).next_number()
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Asks for a lock. `waiter`: waits under this number where it is not free. The range has a
    /// [`Self::lock_number`]; 0: it gets one.
    ///
    /// # Errors
    /// `WouldBlock`, `Deadlock`, `NoLocks`, a shard that does not answer.
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
        let link = self.reach(ino).await?;
        let mut outcome = self.ask_for_lock(&link, ino, range, waiter).await;
        if let Ok(LockOutcome::Granted { .. }) = outcome {
            outcome = self.learn_of_holders(ino).await;
        }
        match outcome {
            Ok(LockOutcome::Granted { .. }) => lock(&self.locks).settle(ino, &range),
            // The caller hears of an error and will not release it: the shard may have granted it,
            // or grant it later.
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

    /// Asks until the answer is one of a shard that knows what we hold.
    async fn ask_for_lock(
        &self,
        link: &Link,
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    ) -> Result<LockOutcome, ErrorCode> {
        loop {
            let life = link.life();
            let settled = lock(&self.locks).begin(ino, range, waiter);
            let request = MetaRequest::Lock {
                ino,
                range,
                wait: waiter.is_some(),
                waiter: waiter.unwrap_or(0),
                settled,
            };
            let outcome = match self.meta(link, &request).await {
                Ok(_done) => {
                    let mut locks = lock(&self.locks);
                    if waiter.is_some_and(|waiter| !locks.waiting.contains_key(&waiter)) {
                        // An event was quicker, and counted: its waiter knows, and restarted shards
                        // are told. To ask again would forget it.
                        return Ok(LockOutcome::Queued);
                    }
                    locks.granted(ino, range, waiter);
                    LockOutcome::Granted { changed: None }
                }
                Err(ErrorCode::LockQueued) => {
                    let mut locks = lock(&self.locks);
                    let waiting = waiter.and_then(|waiter| locks.waiting.get_mut(&waiter));
                    // Where the grant was quicker, it is not there any more.
                    let Some(waiting) = waiting else {
                        return Ok(LockOutcome::Queued);
                    };
                    waiting.is_queued = true;
                    LockOutcome::Queued
                }
                Err(code) => return Err(code),
            };
            if link.life() == life {
                return Ok(outcome);
            }
            zonal_types::mark!(LockAskedAgain);
        }
    }

    /// Queues again what a restarted shard has forgotten. Returns what waits no more, and whether
    /// all was asked for: otherwise the shard did not answer, and this is to be called again.
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
            lock(&self.locks).queued_again.insert(waiter, false);
            let answer = call.meta(&link, &request).await;
            match self.queued_again(&link, life, (ino, range, waiter), answer.map(drop)) {
                RequeueOutcome::Waits => {}
                RequeueOutcome::Over(queued) => over.push(queued),
                // It is sent once more, as it may have come before the shard had queued it.
                RequeueOutcome::TakenBack => call.take_back(ino, range, waiter).await,
                RequeueOutcome::Unanswered => return (over, false),
            }
        }
        (over, true)
    }

    /// The answer to a request that was queued before the shard's restart.
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
                    // Restarted once more.
                    locks.ungrant(waiter, granted);
                    return RequeueOutcome::Unanswered;
                }
                RequeueOutcome::Over(RequeuedLock::Granted { ino, waiter })
            }
            Ok(()) | Err(ErrorCode::LockQueued) if is_taken_back => RequeueOutcome::TakenBack,
            // Or its grant was told before.
            Ok(()) | Err(ErrorCode::LockQueued) => RequeueOutcome::Waits,
            Err(code) if is_passing(code) => RequeueOutcome::Unanswered,
            // A deadlock may have come up meanwhile.
            Err(code) => {
                locks.withdraw(ino, &range, Some(waiter));
                locks.settle(ino, &range);
                RequeueOutcome::Over(RequeuedLock::Refused { waiter, code })
            }
        }
    }

    /// A lock that was waited for is held: learns what the last holder wrote.
    ///
    /// # Errors
    /// A shard that does not answer: then the lock goes back.
    pub async fn lock_granted(&self, ino: Ino, range: LockRange) -> Result<LockOutcome, ErrorCode> {
        let outcome = self.learn_of_holders(ino).await;
        if outcome.is_err() {
            self.take_back_later(ino, range, None);
        } else {
            lock(&self.locks).settle(ino, &range);
        }
        outcome
    }

    /// The lock is held: learns what the last holder wrote.
    async fn learn_of_holders(&self, ino: Ino) -> Result<LockOutcome, ErrorCode> {
        lock(&self.inline_cache).forget(ino);
        let asked = lock(&self.page_versions).moment();
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
        let differs = lock(&self.page_versions).differs(ino, attr.change);
        let changed = differs.then(|| PendingPageVersion::new(attr.change, asked));
        Ok(LockOutcome::Granted { changed })
    }
}

impl<N: Net> Client<N> {
    /// The kernel has dropped the pages of a file that were there when `changed` was told: it shows
    /// what is newer from here on.
    pub fn pages_dropped(&self, ino: Ino, changed: PendingPageVersion) {
        lock(&self.page_versions).dropped(ino, changed);
    }

    /// The kernel's pages of a file may be older than what is known of them: drops that were asked
    /// for until now do not mend that.
    pub fn doubt_pages(&self, ino: Ino) {
        lock(&self.page_versions).doubt(ino);
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Releases a range. What was written under the lock is flushed first: where a server does not
    /// take it, the lock stays, for whoever holds it next would not find it, and it would be
    /// written over what they write.
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

    /// Sends a release. What it releases is held again where it fails.
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
                // Where another owner here has been granted what excludes it, the shard has
                // executed the release, and its answer is lost.
                if !locks.held.excludes(ino, &range) {
                    locks.held.hold(ino, range);
                }
            }
        }
        answer.map(drop)
    }

    /// Releases the locks that an owner has got on an inode until now, where there may be any;
    /// `handle`: through this open file only.
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
            // As in `unlock`. There is nobody left who could try again.
            self.release_later(gone);
            return Err(code);
        }
        let cut = (0, u64::MAX);
        let is_meant = |held: &LockRange| gone.means(held);
        let released = self
            .send_release(ino, &gone.request(), of, cut, is_meant)
            .await;
        if released.is_err_and(leaves_gathered) {
            // There is nobody left who could try again; a shard that starts anew is not told of it.
            self.release_later(gone);
            lock(&self.locks).held.give_up(ino, of, cut, is_meant);
        }
        released
    }

    /// The first lock that is in the way of `range`.
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

    pub(super) async fn flush_if_dirty(&self, ino: Ino) -> Result<(), ErrorCode> {
        match self.file(ino) {
            Some(file) if !file.state().is_clean() => self.settle(&file).await,
            _ => Ok(()),
        }
    }
}
