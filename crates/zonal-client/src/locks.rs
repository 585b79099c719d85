//! POSIX and flock locks: the shard decides; what is held is remembered for the shard's restart.

mod held;
pub(crate) mod late;

pub(crate) use held::Held;
use held::Owner;

use crate::client::Client;
use crate::net::Net;
use crate::session::{is_passing, leaves_gathered, lock};
use std::collections::BTreeMap;
use std::sync::Mutex;
use zonal_types::{ErrorCode, Ino, ShardId};
use zonal_wire::{LockRange, MetaReply, MetaRequest};

/// Ranges that are held: a restarted shard is told of them. One whose release is under way is not among them, as the shard may
/// have released it already, and given it to another.
pub(crate) type HeldLocks = Mutex<Held>;

/// Requests that may be queued at a shard, by waiter. A grant moves its range to what is held before anybody acts on it: a
/// shard that restarts then hears of it, whatever became of the reply to the request.
pub(crate) type WaitingLocks = Mutex<BTreeMap<u64, Waiting>>;

/// What became of a queued request at a restarted shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueuedAgain {
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

/// One of them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    ino: Ino,
    range: LockRange,
    /// The shard said that it is queued: the request itself is over, so a restarted shard must be asked anew.
    is_queued: bool,
}

/// The outcome of a lock request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LockOutcome {
    /// Held. `changed`: the file's data is newer than what the kernel's pages show.
    Granted {
        /// See above.
        changed: bool,
    },
    /// An event will tell.
    Queued,
}

impl<N: Net> Client<N> {
    /// Asks for a lock. `waiter`: waits under this number where it is not free.
    ///
    /// # Errors
    /// `WouldBlock`, `Deadlock`, `NoLocks`, a shard that does not answer.
    pub async fn lock(
        &self,
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    ) -> Result<LockOutcome, ErrorCode> {
        let owner = (range.owner, range.whole_file);
        self.send_late_of(ino, owner).await?;
        let was_held = lock(&self.held).holds(ino, &range);
        let link = self.reach(ino).await?;
        let request = MetaRequest::Lock {
            ino,
            range,
            wait: waiter.is_some(),
            waiter: waiter.unwrap_or(0),
        };
        if let Some(waiter) = waiter {
            let is_queued = false;
            lock(&self.waiting_locks).insert(
                waiter,
                Waiting {
                    ino,
                    range,
                    is_queued,
                },
            );
        }
        let answer = self.meta(&link, &request).await;
        if let Some(waiter) = waiter {
            let mut waiting = lock(&self.waiting_locks);
            if matches!(answer, Err(ErrorCode::LockQueued)) {
                // Where the grant was quicker, it is not there any more.
                if let Some(waiting) = waiting.get_mut(&waiter) {
                    waiting.is_queued = true;
                }
            } else {
                waiting.remove(&waiter);
            }
        }
        let outcome = match answer {
            Ok(_done) => self.learn_of_holders(ino, range).await,
            Err(ErrorCode::LockQueued) => return Ok(LockOutcome::Queued),
            Err(code) => Err(code),
        };
        if outcome.is_err_and(leaves_gathered) && !was_held {
            // The caller hears of an error and will not release it: the shard may have granted it, or grant it later.
            self.take_back_later(ino, range, waiter);
        }
        outcome
    }

    /// The shard granted a queued request.
    pub(crate) fn note_grant(&self, waiter: u64) {
        let granted = lock(&self.waiting_locks).remove(&waiter);
        if let Some(Waiting { ino, range, .. }) = granted {
            lock(&self.held).hold(ino, range);
        }
    }

    /// Queues again what a restarted shard has forgotten. Returns what waits no more, and whether all was asked for: otherwise the shard
    /// did not answer, and this is to be called again.
    pub async fn queue_locks_again(&self, shard: ShardId) -> (Vec<QueuedAgain>, bool) {
        let map = self.map();
        let at_shard = |ino: Ino| {
            map.shard_of(ino.partition())
                .is_some_and(|known| known.id == shard)
        };
        let queued: Vec<(u64, Waiting)> = lock(&self.waiting_locks)
            .iter()
            .filter(|(_, waiting)| waiting.is_queued && at_shard(waiting.ino))
            .map(|(waiter, waiting)| (*waiter, *waiting))
            .collect();
        let mut over = Vec::new();
        for (waiter, Waiting { ino, range, .. }) in queued {
            self.net.begin();
            let link = self.link(shard);
            let request = MetaRequest::Lock {
                ino,
                range,
                wait: true,
                waiter,
            };
            let answer = self.meta(&link, &request).await;
            let is_wanted = lock(&self.waiting_locks).contains_key(&waiter);
            match answer {
                Ok(_done) if is_wanted => {
                    self.note_grant(waiter);
                    over.push(QueuedAgain::Granted { ino, waiter });
                }
                Err(ErrorCode::LockQueued) if is_wanted => {}
                // A signal took it back meanwhile, perhaps before the shard had queued it.
                Ok(_) | Err(ErrorCode::LockQueued) => {
                    self.take_back(ino, range, waiter).await;
                }
                Err(code) if is_passing(code) => return (over, false),
                // A deadlock may have come up meanwhile.
                Err(code) => {
                    lock(&self.waiting_locks).remove(&waiter);
                    over.push(QueuedAgain::Refused { waiter, code });
                }
            }
        }
        (over, true)
    }

    /// A lock that was waited for is held: learns what the last holder wrote.
    ///
    /// # Errors
    /// A shard that does not answer: then the lock goes back.
    pub async fn lock_granted(&self, ino: Ino, range: LockRange) -> Result<LockOutcome, ErrorCode> {
        let outcome = self.learn_of_holders(ino, range).await;
        if outcome.is_err() {
            self.take_back_later(ino, range, None);
        }
        outcome
    }

    /// The lock is held: remembers it, and learns what the last holder wrote.
    async fn learn_of_holders(&self, ino: Ino, range: LockRange) -> Result<LockOutcome, ErrorCode> {
        lock(&self.held).hold(ino, range);
        lock(&self.small).forget(ino);
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
        let mut seen = lock(&self.seen);
        let changed = seen.differs(ino, attr.change);
        if changed {
            let now = seen.moment();
            seen.note(ino, attr.change, now);
        }
        Ok(LockOutcome::Granted { changed })
    }

    /// Releases a range. What was written under the lock is flushed first: where a server does not take it, the lock stays, for whoever holds
    /// it next would not find it, and it would be written over what they write.
    ///
    /// # Errors
    /// A server that does not answer.
    pub async fn unlock(&self, ino: Ino, range: LockRange) -> Result<(), ErrorCode> {
        self.flush_if_dirty(ino).await?;
        let owner = (range.owner, range.whole_file);
        let cut = (range.start, range.end);
        self.send_release(ino, &MetaRequest::Unlock { ino, range }, owner, cut)
            .await
    }

    /// Sends a release. What it releases is held again where it fails.
    async fn send_release(
        &self,
        ino: Ino,
        request: &MetaRequest,
        owner: Owner,
        cut: (u64, u64),
    ) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        let released = lock(&self.held).give_up(ino, owner, cut);
        let answer = self.meta(&link, request).await;
        if answer.is_err() {
            let mut held = lock(&self.held);
            released.into_iter().for_each(|range| held.hold(ino, range));
        }
        answer.map(drop)
    }

    /// Releases all locks of an owner on an inode, where there may be any.
    ///
    /// # Errors
    /// As [`Self::unlock`].
    pub async fn release_locks(
        &self,
        ino: Ino,
        owner: u64,
        whole_file: bool,
    ) -> Result<(), ErrorCode> {
        let of = (owner, whole_file);
        if !lock(&self.held).has_any(ino, of) {
            return Ok(());
        }
        if let Err(code) = self.flush_if_dirty(ino).await {
            // As in `unlock`. There is nobody left who could try again.
            self.release_later(ino, owner, whole_file);
            return Err(code);
        }
        let request = MetaRequest::ReleaseLocks {
            ino,
            owner,
            whole_file,
        };
        let cut = (0, u64::MAX);
        let released = self.send_release(ino, &request, of, cut).await;
        if released.is_err_and(leaves_gathered) {
            // There is nobody left who could try again; a shard that starts anew is not told of it.
            self.release_later(ino, owner, whole_file);
            lock(&self.held).give_up(ino, of, cut);
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
