//! What a shard must still hear of locks, as it did not answer in time: sent again until it does.
//!
//! Whoever asked was told of an error, or is gone, so nobody else would tell the shard. A shard
//! that starts anew forgets all locks and is not told of these, so what reaches it late changes
//! nothing there; but locks under which something was written that has not arrived stay until it
//! has.

use super::lock_table::{Owner, owner_of};
use crate::client::Client;
use crate::net::Net;
use crate::operation::ClientCall;
use crate::session::{leaves_gathered, lock};
use zonal_types::{ErrorCode, Ino};
use zonal_wire::{LockRange, MetaRequest};

/// How much is remembered; past it what is newest is dropped, and its lock stays until its session
/// ends.
const LATE_RELEASES_MAX: usize = 65_536;

/// An owner that has closed: what it got before that is released, whoever has its name by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClosedOwner {
    pub(super) ino: Ino,
    pub(super) owner: Owner,
    /// Only what was got through this open file.
    pub(super) handle: Option<u64>,
    /// Requests below.
    pub(super) number: u64,
}

impl ClosedOwner {
    pub(super) fn means(&self, held: &LockRange) -> bool {
        held.number < self.number && self.handle.is_none_or(|handle| held.handle == handle)
    }

    pub(super) fn request(&self) -> MetaRequest {
        let (owner, whole_file) = self.owner;
        MetaRequest::ReleaseLocks {
            ino: self.ino,
            owner,
            whole_file,
            handle: self.handle,
            number: self.number,
        }
    }
}

/// What a shard must still hear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PendingRelease {
    /// An owner is gone.
    Owner(ClosedOwner),
    /// A request failed that the shard may have granted, or queued under `waiter`.
    Request {
        ino: Ino,
        range: LockRange,
        waiter: Option<u64>,
    },
}

impl PendingRelease {
    pub(super) fn ino(&self) -> Ino {
        self.owner().0
    }

    /// Inode, owner, and whether it is about flock.
    fn owner(&self) -> (Ino, Owner) {
        match self {
            Self::Owner(gone) => (gone.ino, gone.owner),
            Self::Request { ino, range, .. } => (*ino, owner_of(range)),
        }
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Takes a request back that may be queued or granted.
    pub async fn take_back(&self, ino: Ino, range: LockRange, waiter: u64) {
        self.take_back_later(ino, range, Some(waiter));
        self.send_taken_back(ino, range).await;
    }
}

impl<N: Net> Client<N> {
    /// As [`Self::take_back`], with the next housekeeping, or [`Self::send_taken_back`]. From here
    /// on the lock counts as not held. The caller of the request hears of its end after this: the
    /// same request, made again, is sent behind it.
    pub fn take_back_later(&self, ino: Ino, range: LockRange, waiter: Option<u64>) {
        let mut locks = lock(&self.locks);
        locks.withdraw(ino, &range, waiter);
        let late = PendingRelease::Request { ino, range, waiter };
        if locks.late.len() < LATE_RELEASES_MAX && !locks.late.contains(&late) {
            locks.late.push(late);
        }
    }
}

impl<N: Net> ClientCall<'_, N> {
    /// Tells the shard what it must still hear of the owner of a range.
    pub async fn send_taken_back(&self, ino: Ino, range: LockRange) {
        self.send_late_of(ino, owner_of(&range)).await.ok();
    }

    /// The owner is gone.
    pub(super) fn release_later(&self, gone: ClosedOwner) {
        let mut locks = lock(&self.locks);
        let late = PendingRelease::Owner(gone);
        if locks.late.len() < LATE_RELEASES_MAX && !locks.late.contains(&late) {
            locks.late.push(late);
        }
    }

    /// Sends what is late of one owner, before it asks for anything else.
    pub(super) async fn send_late_of(&self, ino: Ino, owner: Owner) -> Result<(), ErrorCode> {
        let of_owner = |late: &PendingRelease| late.owner() == (ino, owner);
        let late: Vec<PendingRelease> = {
            let locks = lock(&self.locks);
            locks.late.iter().copied().filter(of_owner).collect()
        };
        for late in late {
            self.send_late(late).await?;
        }
        Ok(())
    }

    /// Sends everything that is late; true where some stays.
    pub(crate) async fn send_late_releases(&self) -> bool {
        let late = lock(&self.locks).late.clone();
        for late in late {
            if self.another().send_late(late).await.is_err() {
                break;
            }
        }
        !lock(&self.locks).late.is_empty()
    }

    async fn send_late(&self, late: PendingRelease) -> Result<(), ErrorCode> {
        let (ino, request) = match late {
            PendingRelease::Owner(gone) => {
                self.flush_if_dirty(gone.ino).await?;
                let (all, is_meant) = ((0, u64::MAX), |held: &LockRange| gone.means(held));
                let mut locks = lock(&self.locks);
                locks.held.give_up(gone.ino, gone.owner, all, is_meant);
                (gone.ino, gone.request())
            }
            PendingRelease::Request { ino, range, waiter } => {
                let request = MetaRequest::CancelLock {
                    ino,
                    range,
                    waiter: waiter.unwrap_or(0),
                    // What the owner held there before.
                    before: lock(&self.locks).held.within(ino, &range),
                };
                (ino, request)
            }
        };
        match self.tell_shard(ino, &request).await {
            Err(code) if leaves_gathered(code) => Err(code),
            _over => {
                let mut locks = lock(&self.locks);
                locks.late.retain(|known| *known != late);
                if let PendingRelease::Request { ino, range, .. } = late {
                    locks.settle(ino, &range);
                }
                Ok(())
            }
        }
    }

    async fn tell_shard(&self, ino: Ino, request: &MetaRequest) -> Result<(), ErrorCode> {
        let link = self.reach(ino).await?;
        self.meta(&link, request).await.map(drop)
    }
}
